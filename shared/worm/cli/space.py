"""`worm space …`: the log of a space, its documents at any commit, transactions, merges, local replicas, branches,
blobs and maintenance."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from datetime import datetime, timedelta
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, cast

import typer

from worm.cli.arguments import MergePolicy, opened_input, opened_output, output_path, read_input
from worm.cli.options import Shared, Target
from worm.cli.output import (
    Report,
    ReportFormat,
    RowFormat,
    Rows,
    count,
    echo,
    echo_branches,
    echo_json,
    echo_json_lines,
    echo_rows,
    echo_table,
    printable,
)
from worm.clock import Ids, SystemClock, iso_millis
from worm.errors import Corrupt, Invalid, NotFound, show
from worm.formats import JsonObject, JsonValue, dumps, loads_document, position_of
from worm.spaces import Space, SpaceReport, SpaceTools, SpaceTransaction, list_spaces, open_space, pull_space, space_on
from worm.store import MemoryStore

LOG_COLUMNS = ("seq", "createdAt", "branch", "sessionId", "localSeq", "operations")
READ_COLUMNS = ("id", "presence", "seq", "value")
TRUNK = "main"
PULL_COLUMNS = ("seq", "commits", "revisions", "blobs", "snapshots")
BLOB_COLUMNS = ("hash", "size", "contentType")
SPACE_URL_HELP = "Where the space is: s3://bucket/prefix, a directory, memory://name, or sqlite:///absolute/path."
VERIFY_COLUMNS = ("seq", "commits", "revisions", "entities", "snapshots", "branches", "blobs")
POLL_SECONDS = 1.0
COMMIT_COLUMNS = ("seq", "branch", "sessionId", "localSeq", "createdAt", "isRepeat")

SpaceName = Annotated[str, typer.Argument(metavar="NAME", help="Name of the space.")]
SpaceTarget = Annotated[Target, Shared(url=SPACE_URL_HELP)]
BranchOption = Annotated[str, typer.Option("--branch", metavar="B", help="The branch.")]
AtOption = Annotated[
    str | None, typer.Option("--at", metavar="SEQ|TIME", help="At this commit, or at the last one before this time.")
]
BranchName = Annotated[str, typer.Argument(metavar="BRANCH", help="Name of the branch.")]


@contextmanager
def opened(
    target: Target, name: str, *, for_writing: bool = False, rehearse: Callable[[Space], object] | None = None
) -> Iterator[Space]:
    """To write, a store must outlive the command and honor write conditions. With `rehearse` the space is created
    if it does not exist. The write is first tried on an empty space in memory, so that a refused one leaves
    nothing behind."""
    if for_writing and target.url.startswith("memory:"):
        hint = "name a directory, a bucket or sqlite:///path with --url"
        raise Invalid("data in memory:// is lost when the command ends", hint=hint)
    space = _existing(target, name, is_needed=rehearse is None)
    if space is None and rehearse is not None:
        clock = SystemClock()
        with space_on(MemoryStore(), name, create=True, clock=clock, ids=Ids.system(clock)) as trial:
            rehearse(trial)
    try:
        if for_writing and not target.url.startswith("sqlite:"):
            target.store(for_writing=True)
        if space is None:
            space = open_space(target.url, name, endpoint_url=target.endpoint_url)
        yield space
    finally:
        if space is not None:
            space.close()


def _existing(target: Target, name: str, *, is_needed: bool) -> Space | None:
    """An existing space."""
    try:
        with as_space(target.url, name):
            return open_space(target.url, name, create=False, endpoint_url=target.endpoint_url)
    except NotFound:
        if is_needed:
            raise
        return None


@contextmanager
def as_space(url: str, name: str) -> Iterator[None]:
    """Report a missing page store as a missing space, because the user asked for a space."""
    try:
        yield
    except NotFound as error:
        if not error.message.startswith("there is no page store"):
            raise
        hint = "check --url; `worm space write` creates a space"
        raise NotFound(f"the space {show(name)} does not exist", key=url, hint=hint) from error


class BlobHistory(StrEnum):
    """Reads a past state."""

    keep = "keep"
    drop = "drop"


def log(
    target: SpaceTarget,
    name: SpaceName,
    after: Annotated[
        str, typer.Option("--after", metavar="SEQ|TIME", help="Only commits after this one, or after this time.")
    ] = "0",
    limit: Annotated[int | None, typer.Option("--limit", metavar="N", min=1, help="At most N commits.")] = None,
    format: Rows = RowFormat.table,
) -> None:
    """List the commits of all branches, the oldest first."""
    with opened(target, name) as on:
        entries = on.log(after=after, limit=limit)
        if format is RowFormat.ndjson:  # streamed: a log may be long
            echo_json_lines(entry.shape() for entry in entries)
        elif format is RowFormat.json:
            echo_rows(LOG_COLUMNS, [entry.shape() for entry in entries], format)
        else:
            rows = [entry.shape() | {"operations": entry.summary} for entry in entries]
            echo_rows(LOG_COLUMNS, rows, format)


def read(
    target: SpaceTarget,
    name: SpaceName,
    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="Ids of documents.")],
    branch: BranchOption = TRUNK,
    at: AtOption = None,
    format: Rows = RowFormat.table,
) -> None:
    """Show documents at one commit: the newest, or a past one. For missing documents it says why: deleted, empty
    (written later), or never written."""
    with opened(target, name) as on:
        found = on.read_many(list(dict.fromkeys(ids)), branch=branch, at=at)
        echo_rows(READ_COLUMNS, [entity.shape() for entity in found.values()], format)


def at(
    target: SpaceTarget,
    name: SpaceName,
    time: Annotated[str, typer.Argument(metavar="TIME", help="ISO 8601, such as 2026-02-24T12:00:00Z.")],
) -> None:
    """Print the seq of the last commit at or before a time; 0 before the first one."""
    wanted = position_of(time, "TIME")
    if not isinstance(wanted, datetime):
        raise Invalid(f"{show(time)} is already a seq", hint="write a time such as 2026-02-24T12:00:00Z")
    with opened(target, name) as on:
        echo(SpaceTools(on).seq_at(wanted))


def write(
    target: SpaceTarget,
    name: SpaceName,
    file: Annotated[str, typer.Argument(metavar="FILE", help="A transaction as JSON; `-` is stdin.")],
    branch: BranchOption = TRUNK,
    format: Rows = RowFormat.table,
) -> None:
    """Commit a transaction: all its operations, or none. Creates the space if it does not exist."""
    transact = partial(SpaceTransaction.parse(read_input(file)).commit, branch=branch)
    with opened(target, name, for_writing=True, rehearse=transact) as on:
        done = transact(on)
    echo_rows(COMMIT_COLUMNS, [done.shape()], format)


def merge(
    target: SpaceTarget,
    name: SpaceName,
    branch: Annotated[str, typer.Argument(metavar="BRANCH", help="The branch to merge.")],
    into: Annotated[str, typer.Option("--into", metavar="B", help="The branch that gets the changes.")] = TRUNK,
    policy: Annotated[
        MergePolicy,
        typer.Option(
            "--policy",
            help="For documents that both changed: refuse, keep `ours` (--into), take `theirs`, or merge by fields.",
        ),
    ] = MergePolicy.fail,
    format: Rows = RowFormat.table,
) -> None:
    """Merge the changes of a branch into another, in one commit, or in several if there are many."""
    with opened(target, name, for_writing=True) as on:
        done = on.merge(branch, into, policy.value)
    shape: JsonObject = {
        "seq": None if done.committed is None else done.committed.seq,
        "changed": list(done.changed),
        "conflicts": [one.id for one in done.conflicts],
    }
    echo_rows(("seq", "changed", "conflicts"), [shape], format)


def pull(
    target: SpaceTarget,
    name: SpaceName,
    path: Annotated[Path, typer.Argument(metavar="LOCAL.sqlite", help="The replica; created if it does not exist.")],
    blobs: Annotated[bool, typer.Option("--blobs", help="Include the payloads of blobs.")] = False,
    snapshots: Annotated[
        bool,
        typer.Option("--snapshots", help="Create snapshots of what was written since the last ones, for faster reads."),
    ] = False,
    format: Rows = RowFormat.table,
) -> None:
    """Create a local replica of a space, or bring it up to date."""
    with as_space(target.url, name):
        done = pull_space(target.url, path, name, blobs=blobs, snapshots=snapshots, endpoint_url=target.endpoint_url)
    echo_rows(PULL_COLUMNS, [asdict(done)], format)


def tail(
    target: SpaceTarget,
    name: SpaceName,
    lines: Annotated[int, typer.Option("--lines", "-n", metavar="N", min=0, help="How many commits.")] = 10,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep printing new commits until Ctrl-C.")] = False,
    raw: Annotated[bool, typer.Option("--raw", help="Complete records, as NDJSON.")] = False,
) -> None:
    """Print the last commits, one per line."""
    clock = SystemClock()
    with opened(target, name) as on:
        after = max(0, on.seq - lines)
        while True:
            for entry in on.log(after=after):
                shape = entry.shape()
                line = (str(entry.seq), str(shape["createdAt"]), entry.branch, entry.session_id, entry.summary)
                echo(dumps(shape).decode() if raw else printable("  ".join(line)))
                after = entry.seq
            if not follow:
                return
            clock.sleep(POLL_SECONDS)


# Maintenance


def list_all(target: SpaceTarget, format: Rows = RowFormat.table) -> None:
    """List the spaces at a URL."""
    names = list_spaces(target.url, endpoint_url=target.endpoint_url)
    echo_rows(("name",), [{"name": one} for one in names], format)


def stat(target: SpaceTarget, name: SpaceName, format: Rows = RowFormat.table) -> None:
    """Show the size of a space."""
    with opened(target, name) as on:
        found = on.stat()
    shape: JsonObject = {
        "seq": found.seq,
        "lastCommit": None if found.last_commit is None else iso_millis(found.last_commit),
        "branches": found.branches,
        "deletedBranches": found.deleted_branches,
        "entities": found.entities,
        "blobs": found.blobs,
        "blobBytes": found.blob_bytes,
        "store": dict(found.store),
    }
    echo_rows(tuple(shape), [shape], format)


def verify(target: SpaceTarget, name: SpaceName, format: Report = ReportFormat.table) -> None:
    """Read everything, and compare it with the records of the commits. Exit code 9 if anything is damaged."""
    with opened(target, name) as on:
        _show_report(on.verify(), format)


def _show_report(report: SpaceReport, format: ReportFormat) -> None:
    counts = {column: cast(int, getattr(report, column)) for column in VERIFY_COLUMNS}
    if format is ReportFormat.json:
        problems: list[JsonValue] = [
            {"kind": one.kind, "key": one.key, "message": one.message} for one in report.problems
        ]
        echo_json({**counts, "problems": problems})
    else:
        echo_table(VERIFY_COLUMNS, [[f"{one:,}" for one in counts.values()]], right=VERIFY_COLUMNS)
        for one in report.problems:
            echo(f"{one.kind}  {printable(one.key)}: {printable(one.message)}")
        echo(count(len(report.problems), "problem") if report.problems else "no problems")
    if report.problems:
        raise typer.Exit(Corrupt.exit_code)


def repair(
    target: SpaceTarget,
    name: SpaceName,
    dry_run: Annotated[bool, typer.Option("--dry-run/--no-dry-run", help="Only show what is wrong (default).")] = True,
    format: Report = ReportFormat.table,
) -> None:
    """Drop wrong snapshots: documents are then read from their revisions. Exit code 9 if anything else is damaged."""
    if dry_run:
        verify(target, name, format)
        return
    with opened(target, name, for_writing=True) as on:
        _show_report(on.repair(), format)


def maintain(target: SpaceTarget, name: SpaceName, format: Rows = RowFormat.table) -> None:
    """Create snapshots that are due, and keep the store small: apply, compact and collect, or SQLite's own
    maintenance."""
    with opened(target, name, for_writing=True) as on:
        done = on.maintain()
    echo_rows(("snapshots", *done.store), [{"snapshots": done.snapshots, **done.store}], format)


# Branches


def list_branches(target: SpaceTarget, name: SpaceName, format: Rows = RowFormat.table) -> None:
    """List all branches in the order of their creation, including deleted ones."""
    with opened(target, name) as on:
        echo_branches(on.branches(), format)


def create_branch(
    target: SpaceTarget,
    name: SpaceName,
    branch: BranchName,
    parent: Annotated[str, typer.Option("--parent", metavar="B", help="The branch to start from.")] = TRUNK,
    at: AtOption = None,
    format: Rows = RowFormat.table,
) -> None:
    """Create a branch that begins as its parent is now, or was at a commit or a time."""
    with opened(target, name, for_writing=True) as on:
        done = on.create_branch(branch, parent=parent, at=at)
    echo_rows(COMMIT_COLUMNS, [done.shape()], format)


def delete_branch(target: SpaceTarget, name: SpaceName, branch: BranchName, format: Rows = RowFormat.table) -> None:
    """Delete a branch: it takes no more commits, and can still be read."""
    with opened(target, name, for_writing=True) as on:
        done = on.delete_branch(branch)
    echo_rows(COMMIT_COLUMNS, [done.shape()], format)


def undelete_branch(target: SpaceTarget, name: SpaceName, branch: BranchName, format: Rows = RowFormat.table) -> None:
    """Restore a deleted branch: it takes commits again."""
    with opened(target, name, for_writing=True) as on:
        done = on.undelete_branch(branch)
    echo_rows(COMMIT_COLUMNS, [done.shape()], format)


def diff_branches(
    target: SpaceTarget,
    name: SpaceName,
    left: Annotated[str, typer.Argument(metavar="LEFT", help="A branch.")],
    right: Annotated[
        str, typer.Argument(metavar="[RIGHT]", help="The branch to compare it with; default main.")
    ] = TRUNK,
    at: AtOption = None,
    format: Rows = RowFormat.table,
) -> None:
    """Show the documents that differ between two branches."""
    with opened(target, name) as on:
        found = on.diff(left, right, at=at)
    is_table = format in (RowFormat.table, RowFormat.csv)
    rows: list[JsonObject] = [
        {"id": one.id, "left": one.left.value_or_reason, "right": one.right.value_or_reason}
        if is_table
        else one.shape()
        for one in found
    ]
    echo_rows(("id", "left", "right"), rows, format)


# Blobs


def put_blob(
    target: SpaceTarget,
    name: SpaceName,
    file: Annotated[str, typer.Argument(metavar="FILE", help="The bytes; `-` is stdin.")],
    content_type: Annotated[
        str | None, typer.Option("--content-type", metavar="TYPE", help="Media type, such as image/png.")
    ] = None,
    metadata: Annotated[
        str | None, typer.Option("--metadata", metavar="JSON", help="A JSON object to keep with hash and size.")
    ] = None,
    branch: BranchOption = TRUNK,
    format: Rows = RowFormat.table,
) -> None:
    """Store bytes once under their SHA-256, and commit their metadata. Creates the space if it does not exist."""
    more = None if metadata is None else loads_document(metadata.encode(errors="surrogateescape"))

    put = partial(Space.put_blob, content_type=content_type, metadata=more, branch=branch)
    with (
        opened_input(file) as data,
        opened(target, name, for_writing=True, rehearse=lambda trial: put(trial, b"")) as on,
    ):
        done = put(on, data)
    echo_rows(BLOB_COLUMNS, [{"hash": done.hash, "size": done.size, "contentType": done.content_type}], format)


def get_blob(
    target: SpaceTarget,
    name: SpaceName,
    hash: Annotated[str, typer.Argument(metavar="HASH", help="SHA-256 of the bytes, in hex.")],
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE", help="Write to this file; `-` is stdout.")
    ] = "-",
) -> None:
    """Print the bytes of a blob. They are checked against the hash: a file gets all of them, or is not written."""
    with opened(target, name) as on:
        on.blob(hash)  # before a file is touched
        path = output_path(output)
        with nullcontext(sys.stdout.buffer) if path is None else opened_output(path) as file:
            for chunk in on.stream_blob(hash):
                file.write(chunk)
            file.flush()


def list_blobs(target: SpaceTarget, name: SpaceName, format: Rows = RowFormat.table) -> None:
    """List the stored blobs by hash."""
    with opened(target, name) as on:
        shapes = SpaceTools(on).blobs()
    echo_rows((*BLOB_COLUMNS, "createdAt"), shapes, format)


def collect_blobs(
    target: SpaceTarget,
    name: SpaceName,
    older_than: Annotated[
        float,
        typer.Option(
            "--older-than", metavar="HOURS", min=0, max=1_000_000, help="Only blobs that are older than this."
        ),
    ] = 1.0,
    history: Annotated[
        BlobHistory,
        typer.Option(
            "--history", help="`keep` blobs that any past state names, or `drop` those that no active branch names now."
        ),
    ] = BlobHistory.keep,
    dry_run: Annotated[
        bool, typer.Option("--dry-run/--no-dry-run", help="Only show what would be removed (default).")
    ] = True,
    format: Rows = RowFormat.table,
) -> None:
    """Remove unused payloads, and leftovers of interrupted uploads."""
    with opened(target, name, for_writing=not dry_run) as on:
        gone, left = SpaceTools(on).collect_blobs(timedelta(hours=older_than), history.value, dry_run=dry_run)
        if dry_run:
            parts = f" and leftovers of {count(len(left), 'upload')}" if left else ""
            echo(f"worm: dry run; --no-dry-run will remove {count(len(gone), 'blob')}{parts}", err=True)
    rows = [(one, "unneeded" if dry_run else "removed") for one in gone]
    rows += [(one, "interrupted" if dry_run else "removed") for one in left]
    echo_rows(("hash", "result"), [{"hash": one, "result": result} for one, result in rows], format)
