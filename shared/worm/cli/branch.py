"""`worm branch …`: branches of the models in a space: create, list, compare, merge, delete and undelete them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from worm.cli.arguments import MergePolicy
from worm.cli.options import AuthorSession, Session
from worm.cli.output import RowFormat, Rows, count, echo, echo_branches, echo_rows
from worm.formats import JsonObject, JsonValue
from worm.sdk import BranchChange, MergeResult

CHANGE_COLUMNS = ("model", "id", "change", "conflict", "fields")
BRANCH_HELP = "Name of the branch."

BranchName = Annotated[str, typer.Argument(metavar="BRANCH", help=BRANCH_HELP)]
SpaceOption = Annotated[
    str | None,
    typer.Option("--space", metavar="NAME", help="Only in this space; without it, in all spaces of the models."),
]
IntoOption = Annotated[str, typer.Option("--into", metavar="BRANCH", help="The branch that gets the changes.")]


def create(
    session: Session,
    branch: BranchName,
    at: Annotated[
        str | None,
        typer.Option("--at", metavar="SEQ|TIME", help="Start at this commit, or at the last one before this time."),
    ] = None,
    parent: Annotated[str, typer.Option("--parent", metavar="BRANCH", help="The branch to start from.")] = "main",
    space: SpaceOption = None,
    format: Rows = RowFormat.table,
) -> None:
    """Create a branch that begins as its parent is now, or was."""
    session.create_branch(branch, at=at, parent=parent, space=space)
    echo_branches([one for one in session.branches(space=space) if one.name == branch], format)


def list_branches(session: Session, space: SpaceOption = None, format: Rows = RowFormat.table) -> None:
    """List the branches, the main one first, including deleted ones."""
    echo_branches(session.branches(space=space), format)


def diff(session: Session, branch: BranchName, into: IntoOption = "main", format: Rows = RowFormat.table) -> None:
    """Show what a merge would change: documents and their fields, and conflicts between the branches."""
    _show_changes(session.diff(branch, into=into), format)


def merge(
    session: AuthorSession,
    branch: BranchName,
    into: IntoOption = "main",
    policy: Annotated[
        MergePolicy, typer.Option("--policy", help="What to do if both branches changed the same document.")
    ] = MergePolicy.fail,
    references: Annotated[
        bool, typer.Option("--references/--no-references", help="Refuse references to missing documents (default).")
    ] = True,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would change.")] = False,
    format: Rows = RowFormat.table,
) -> None:
    """Merge the changes of a branch into another one, after checking the result like a save."""
    done = session.merge(branch, into=into, policy=policy.value, dry_run=dry_run, check_references=references)
    _show_changes([change for one in done for change in one.changes], format)
    changed = count(sum(len(one.changes) for one in done), "document")
    if dry_run:
        echo(f"worm: dry run; {changed} would change", err=True)
    else:
        echo(f"worm: merged {changed}{_commits(done)}", err=True)


def delete(session: Session, branch: BranchName, space: SpaceOption = None, format: Rows = RowFormat.table) -> None:
    """Delete a branch: it takes no more commits, and can still be read."""
    session.delete_branch(branch, space=space)
    echo_branches([one for one in session.branches(space=space) if one.name == branch], format)


def undelete(session: Session, branch: BranchName, space: SpaceOption = None, format: Rows = RowFormat.table) -> None:
    """Restore a deleted branch: it takes commits again."""
    session.undelete_branch(branch, space=space)
    echo_branches([one for one in session.branches(space=space) if one.name == branch], format)


def _commits(done: Sequence[MergeResult]) -> str:
    seqs = [str(seq) for one in done for seq in one.seqs]
    return f" by commit {', '.join(seqs)}" if seqs else ""


def _show_changes(changes: Sequence[BranchChange], format: RowFormat) -> None:
    rows: list[JsonObject] = []
    for one in changes:
        changed: JsonObject = {name: list(values) for name, values in one.fields.items()}
        fields: JsonValue = ", ".join(one.fields) if format is RowFormat.table else changed
        rows.append(
            {"model": one.model, "id": one.id, "change": one.change, "conflict": one.is_conflict, "fields": fields}
        )
    echo_rows(CHANGE_COLUMNS, rows, format)
