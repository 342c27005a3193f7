"""`worm space …`: the log of a space, its documents at any commit, transactions, merges, and local replicas."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from worm.cli import space_blob, space_branch
from worm.cli.arguments import read_input
from worm.cli.options import EndpointUrl, target
from worm.cli.output import RowFormat, echo_json_lines, echo_rows
from worm.cli.space_target import (
    COMMIT_COLUMNS,
    SPACE_URL_HELP,
    AtOption,
    BranchOption,
    SpaceFormat,
    SpaceName,
    SpaceUrl,
    as_space,
    commit_shape,
    entity_shape,
    moment,
    opened,
)
from worm.cli.space_transaction import parse_transaction
from worm.clock import iso_millis
from worm.codec.strict_json import JsonObject
from worm.errors import Invalid
from worm.spaces.pulling import pull_space
from worm.spaces.reading import seq_of
from worm.spaces.results import LogEntry

LOG_COLUMNS = ("seq", "createdAt", "branch", "sessionId", "localSeq", "operations")
READ_COLUMNS = ("id", "presence", "seq", "value")
PULL_COLUMNS = ("seq", "commits", "revisions", "blobs", "snapshots")

app = typer.Typer(help="Spaces: log, read, write, branches, blobs, and replicas.", no_args_is_help=True)
app.add_typer(space_branch.app, name="branch")
app.add_typer(space_blob.app, name="blob")


class MergePolicy(StrEnum):
    """Who wins where both branches changed the same document."""

    fail = "fail"
    ours = "ours"
    theirs = "theirs"


@app.command("log")
def log(
    context: typer.Context,
    name: SpaceName,
    after: Annotated[int, typer.Option("--after", metavar="SEQ", min=0, help="Only commits after this one.")] = 0,
    limit: Annotated[int | None, typer.Option("--limit", metavar="N", min=1, help="At most so many.")] = None,
    format: SpaceFormat = RowFormat.table,
    url: SpaceUrl = None,
    endpoint_url: EndpointUrl = None,
) -> None:
    """List the commits of all branches, the oldest first."""
    with opened(context, name, url, endpoint_url) as on:
        entries = on.space.log(after=after, limit=limit)
        if format is RowFormat.ndjson:  # as they come: a log may be long
            echo_json_lines(_log_shape(entry) for entry in entries)
        elif format is RowFormat.json:
            echo_rows(LOG_COLUMNS, [_log_shape(entry) for entry in entries], format)
        else:
            rows = [_log_shape(entry) | {"operations": _summary(entry)} for entry in entries]
            echo_rows(LOG_COLUMNS, rows, format)


@app.command("read")
def read(
    context: typer.Context,
    name: SpaceName,
    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="Ids of documents.")],
    branch: BranchOption = "",
    at: AtOption = None,
    format: SpaceFormat = RowFormat.table,
    url: SpaceUrl = None,
    endpoint_url: EndpointUrl = None,
) -> None:
    """Show documents as of one commit: the newest, or a past one. What is not there is told apart: deleted, empty
    (written later), never."""
    with opened(context, name, url, endpoint_url) as on:
        found = on.space.read_many(list(dict.fromkeys(ids)), branch=branch, at=moment(at))
        echo_rows(READ_COLUMNS, [entity_shape(entity) for entity in found.values()], format)


@app.command("at")
def at(
    context: typer.Context,
    name: SpaceName,
    time: Annotated[str, typer.Argument(metavar="TIME", help="ISO 8601, such as 2026-02-24T12:00:00Z.")],
    url: SpaceUrl = None,
    endpoint_url: EndpointUrl = None,
) -> None:
    """Print the seq of the last commit at or before a time; 0 before the first one."""
    wanted = moment(time)
    if not isinstance(wanted, datetime):
        raise Invalid(f"{time!r} is a seq already", hint="write a time such as 2026-02-24T12:00:00Z")
    with opened(context, name, url, endpoint_url) as on:
        typer.echo(seq_of(on.backend, wanted, on.backend.newest().seq))


@app.command("write")
def write(
    context: typer.Context,
    name: SpaceName,
    file: Annotated[str, typer.Argument(metavar="FILE", help="A transaction as JSON; `-` is stdin.")],
    branch: BranchOption = "",
    format: SpaceFormat = RowFormat.table,
    url: SpaceUrl = None,
    endpoint_url: EndpointUrl = None,
) -> None:
    """Commit a transaction: all its operations, or none. Makes the space where it is not there."""
    wanted = parse_transaction(read_input(file))
    with opened(context, name, url, endpoint_url, for_writing=True, create=True) as on:
        done = on.space.transact(
            wanted.ops, session_id=wanted.session_id, local_seq=wanted.local_seq, branch=branch, reads=wanted.reads
        )
    echo_rows(COMMIT_COLUMNS, [commit_shape(done)], format)


@app.command("merge")
def merge(
    context: typer.Context,
    name: SpaceName,
    branch: Annotated[str, typer.Argument(metavar="BRANCH", help="Whose changes are brought over.")],
    into: Annotated[
        str, typer.Option("--into", metavar="B", help="The branch that gets them; the main one is ''.")
    ] = "",
    policy: Annotated[
        MergePolicy, typer.Option("--policy", help="What both changed: refuse, keep `ours` (of --into), take `theirs`.")
    ] = MergePolicy.fail,
    format: SpaceFormat = RowFormat.table,
    url: SpaceUrl = None,
    endpoint_url: EndpointUrl = None,
) -> None:
    """Bring the changes of a branch into another, in one commit."""
    with opened(context, name, url, endpoint_url, for_writing=True) as on:
        done = on.space.merge(branch, into, policy.value)
    shape: JsonObject = {
        "seq": None if done.committed is None else done.committed.seq,
        "changed": list(done.changed),
        "conflicts": [one.id for one in done.conflicts],
    }
    echo_rows(("seq", "changed", "conflicts"), [shape], format)


@app.command("pull")
def pull(
    context: typer.Context,
    source: Annotated[str, typer.Argument(metavar="URL", help=SPACE_URL_HELP)],
    path: Annotated[Path, typer.Argument(metavar="LOCAL.sqlite", help="The replica; made where it is not there.")],
    name: SpaceName,
    blobs: Annotated[bool, typer.Option("--blobs", help="The payloads of blobs, too.")] = False,
    snapshots: Annotated[
        bool, typer.Option("--snapshots", help="Snapshots of what was written since the last ones: reads are quicker.")
    ] = False,
    format: SpaceFormat = RowFormat.table,
    endpoint_url: EndpointUrl = None,
) -> None:
    """Make a local replica of a space, or bring it up to date."""
    chosen = target(context, source, endpoint_url)
    with as_space(chosen.url, name):
        done = pull_space(chosen.url, path, name, blobs=blobs, snapshots=snapshots, endpoint_url=chosen.endpoint_url)
    echo_rows(PULL_COLUMNS, [asdict(done)], format)


def _log_shape(entry: LogEntry) -> JsonObject:
    return {
        "seq": entry.seq,
        "createdAt": iso_millis(entry.created_at),
        "branch": entry.branch,
        "sessionId": entry.session_id,
        "localSeq": entry.local_seq,
        "original": entry.original,
        "resolution": entry.resolution,
    }


def _summary(entry: LogEntry) -> str:
    """What a commit did, in a line: `set a, delete b`, or the command that made or ended a branch."""
    operations = entry.original.get("operations")
    if not isinstance(operations, list):
        return str(entry.original.get("cmd", ""))
    return ", ".join(f"{one.get('op')} {one.get('id')}" for one in operations if isinstance(one, dict))
