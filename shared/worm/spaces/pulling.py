"""A local replica: the commits of any space, in a SQLite database with the tables of `sqlite:///…`.

Commits are copied unchanged and in order, many with one read of the source and in one transaction of the replica. So at
any moment, the replica is the space as it was at some seq, and an interrupted pull continues from there. Do not write
to a replica: a replica with its own commits is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from worm.errors import Conflict, Corrupt, Invalid, NotFound, show
from worm.formats import loads_own
from worm.spaces import blobs as payloads
from worm.spaces import replay
from worm.spaces.backend import Backend
from worm.spaces.branches import BACK, END
from worm.spaces.opening import SUFFIX, open_backend
from worm.spaces.replay import nothing_known
from worm.spaces.rows import ACTIVE, DELETED, Batch, BranchRow, CommitRow, Pointer, RevisionRow
from worm.spaces.sqlite_backend import SqliteBackend

COMPARED = 16
"""How many of the replica's newest commits are compared with the source."""
BATCH_FIRST, BATCH_MAX = 250, 1_000
BATCH_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Pulled:
    """What a pull brought; `seq` is the newest commit of the replica."""

    seq: int
    commits: int
    revisions: int
    blobs: int
    snapshots: int


def pull_space(
    url: str,
    path: Path,
    name: str,
    *,
    blobs: bool = False,
    snapshots: bool = False,
    endpoint_url: str | None = None,
) -> Pulled:
    """Bring the replica at `path` up to date with the space, and create it if it does not exist. The path must end in
    `.sqlite`, so that it opens as `sqlite:///path`."""
    if path.suffix != SUFFIX:
        raise Invalid(f"{show(str(path))} does not end in {SUFFIX}", hint=f"name the replica {path.name}{SUFFIX}")
    source = open_backend(url, name, create=False, endpoint_url=endpoint_url)
    try:
        replica = SqliteBackend(path)
        try:
            return pull(source, replica, blobs=blobs, snapshots=snapshots)
        finally:
            replica.close()
    finally:
        source.close()


def pull(source: Backend, replica: SqliteBackend, *, blobs: bool = False, snapshots: bool = False) -> Pulled:
    """Pull all commits up to the current newest; with `blobs`, also missing payloads; with `snapshots`, also a snapshot
    of every entity that was written since its last one. `Conflict` if the replica is not a prefix of the source."""
    commits = revisions = 0
    limit = BATCH_FIRST
    after, upto, branches = _begin(source, replica)
    while after < upto:
        rows = source.commits(after, upto, limit)
        if [row.seq for row in rows] != list(range(after + 1, after + 1 + len(rows))) or not rows:
            raise Corrupt(f"the space has no commit {after + 1}, but its newest is {upto}")
        written = source.written(rows)
        if not _take(replica, after, rows, written, branches):  # another pull was faster
            after, upto, branches = _begin(source, replica)
            continue
        after = rows[-1].seq
        commits += len(rows)
        revisions += sum(map(len, written.values()))
        limit = _next_limit(rows)
    brought = _pull_blobs(source, replica) if blobs else 0
    made = replay.maintain_snapshots(replica, 1, nothing_known) if snapshots else 0
    return Pulled(after, commits, revisions, brought, made)


def _begin(source: Backend, replica: SqliteBackend) -> tuple[int, int, Mapping[str, BranchRow]]:
    """Where the replica ends, where the source ends, and the source's branches. The branches are read last, so that
    every commit finds its own."""
    own = replica.newest().seq
    upto = source.newest().seq
    hint = "something else wrote to one of them, or it is another space; pull into a new file"
    if own > upto:
        raise Conflict(f"the replica has commit {own}, but the space only has {upto}", key=str(replica.path), hint=hint)
    since = max(0, own - COMPARED)
    if own and list(replica.commits(since, own, COMPARED)) != list(source.commits(since, own, COMPARED)):
        what = f"the replica's commits up to {own} differ from those of the space"
        raise Conflict(what, key=str(replica.path), hint=hint)
    return own, upto, {row.name: row for row in source.branches()} if own < upto else {}


def _take(
    replica: SqliteBackend,
    after: int,
    rows: Sequence[CommitRow],
    written: Mapping[int, Sequence[RevisionRow]],
    branches: Mapping[str, BranchRow],
) -> bool:
    """Write all of them, or none; False if the replica no longer ends at `after`."""
    with replica.turn() as turn:
        if turn.newest().seq != after:
            return False
        for row in rows:
            turn.write(_batch(row, written.get(row.seq, ()), branches))
    return True


def _batch(commit: CommitRow, revisions: Sequence[RevisionRow], branches: Mapping[str, BranchRow]) -> Batch:
    """A commit with its branch as it was right after it."""
    branch = branches.get(commit.branch)
    if branch is None:
        raise Corrupt(f"commit {commit.seq} is on branch {show(commit.branch)}, which does not exist")
    command = None if revisions else loads_own(commit.original.encode(), f"commit {commit.seq}").get("cmd")
    heads = {row.id: Pointer(row.seq, row.op_index) for row in revisions}
    then = branch._replace(head_seq=commit.seq, status=DELETED if command == END else ACTIVE)
    return Batch(commit, then, revisions, (), heads, is_undelete=command == BACK)


def _next_limit(rows: Sequence[CommitRow]) -> int:
    """As many commits as are about `BATCH_BYTES`, judged by the previous ones."""
    size = sum(len(row.original) for row in rows)
    return max(1, min(BATCH_MAX, BATCH_BYTES * len(rows) // max(1, size)))


def _pull_blobs(source: Backend, replica: SqliteBackend) -> int:
    """Each payload is checked against its hash. Payloads that the source has collected stay in the replica."""
    there = {row.hash for row in replica.blobs()}
    brought = 0
    for row in source.blobs():
        if row.hash in there:
            continue
        try:
            brought += replica.put_blob(row, payloads.stream(source, row.hash))
        except NotFound:
            if source.blob(row.hash) is not None:
                raise
    return brought
