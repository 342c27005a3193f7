"""`worm space branch …`: list, make, end and compare the branches of a space."""

from __future__ import annotations

from typing import Annotated

import typer

from worm.cli.options import EndpointUrl
from worm.cli.output import RowFormat, echo_rows
from worm.cli.space_target import (
    COMMIT_COLUMNS,
    AtOption,
    SpaceFormat,
    SpaceName,
    SpaceUrl,
    commit_shape,
    entity_shape,
    moment,
    opened,
)
from worm.codec.strict_json import JsonObject
from worm.spaces.merging import Difference
from worm.spaces.results import Branch, Entity

COLUMNS = ("name", "parent", "forkSeq", "createdSeq", "headSeq", "status")

BranchName = Annotated[str, typer.Argument(metavar="BRANCH", help="Name of the branch.")]

app = typer.Typer(help="Branches: list, create, delete and compare them.", no_args_is_help=True)


@app.command("list")
def list_branches(
    context: typer.Context,
    name: SpaceName,
    format: SpaceFormat = RowFormat.table,
    url: SpaceUrl = None,
    endpoint_url: EndpointUrl = None,
) -> None:
    """List all branches in the order of their making, deleted ones too. The main branch has the name ''."""
    with opened(context, name, url, endpoint_url) as on:
        echo_rows(COLUMNS, [_shape(branch) for branch in on.space.branches()], format)


@app.command("create")
def create(
    context: typer.Context,
    name: SpaceName,
    branch: BranchName,
    parent: Annotated[str, typer.Option("--parent", metavar="B", help="What it begins as; the main one is ''.")] = "",
    at: AtOption = None,
    format: SpaceFormat = RowFormat.table,
    url: SpaceUrl = None,
    endpoint_url: EndpointUrl = None,
) -> None:
    """Make a branch that begins as its parent is now, or was at a commit or a time."""
    with opened(context, name, url, endpoint_url, for_writing=True) as on:
        done = on.space.create_branch(branch, parent=parent, at=moment(at))
    echo_rows(COMMIT_COLUMNS, [commit_shape(done)], format)


@app.command("delete")
def delete(
    context: typer.Context,
    name: SpaceName,
    branch: BranchName,
    format: SpaceFormat = RowFormat.table,
    url: SpaceUrl = None,
    endpoint_url: EndpointUrl = None,
) -> None:
    """End a branch: it takes no more commits, and can still be read."""
    with opened(context, name, url, endpoint_url, for_writing=True) as on:
        done = on.space.delete_branch(branch)
    echo_rows(COMMIT_COLUMNS, [commit_shape(done)], format)


@app.command("diff")
def diff(
    context: typer.Context,
    name: SpaceName,
    left: Annotated[str, typer.Argument(metavar="LEFT", help="A branch; the main one is ''.")],
    right: Annotated[str, typer.Argument(metavar="[RIGHT]", help="Another; without it, the main one.")] = "",
    at: AtOption = None,
    format: SpaceFormat = RowFormat.table,
    url: SpaceUrl = None,
    endpoint_url: EndpointUrl = None,
) -> None:
    """Show the documents that two branches do not have in the same state."""
    with opened(context, name, url, endpoint_url) as on:
        found = on.space.diff(left, right, at=moment(at))
    is_table = format in (RowFormat.table, RowFormat.csv)
    rows = [_values(one) if is_table else _difference(one) for one in found]
    echo_rows(("id", "left", "right"), rows, format)


def _shape(branch: Branch) -> JsonObject:
    return {
        "name": branch.name,
        "parent": branch.parent,
        "forkSeq": branch.fork_seq,
        "createdSeq": branch.created_seq,
        "headSeq": branch.head_seq,
        "status": "active" if branch.is_active else "deleted",
    }


def _difference(one: Difference) -> JsonObject:
    return {"id": one.id, "left": entity_shape(one.left), "right": entity_shape(one.right)}


def _values(one: Difference) -> JsonObject:
    return {"id": one.id, "left": _value(one.left), "right": _value(one.right)}


def _value(entity: Entity) -> JsonObject | str:
    """The document, or why there is none."""
    return f"({entity.presence.value})" if entity.value is None else entity.value
