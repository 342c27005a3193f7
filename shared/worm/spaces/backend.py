"""The seam: what a store must do to hold a space. Everything that a space means lies above it.

A backend keeps rows (rows.py) by their names and one order of commits. All it has to promise:
- A `turn` is exclusive among all writers of the space, whatever process they are in; what it reads includes every
  commit before it. A backend that commits in groups may let the next turn begin before this one is durable (which then
  reads what is on its way), as long as leaving a turn returns only when its batch, and all before it, are durable.
- A batch is written whole or not at all. If the answer is not known, leaving the turn raises `CommitStateUnknown`.
- Reads outside a turn see only what is durable. They need not agree on a moment with each other: commits and revisions
  never change, so whoever asks for rows up to a seq that is committed gets the same answer at any time.
- Snapshots may come and go at any time; they only save work.
- Ids and names of branches are any text without control characters, at most 512 and 200 bytes (`rows.py`).

Others may take a turn away (`Fenced`), and answers get lost (`CommitStateUnknown`). Whoever writes has a name, so doing
it again counts once: `until_decided` does so until it is known what became of it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Protocol, TypeVar, runtime_checkable

from worm.clock import Clock, Ids, backoff
from worm.codec.strict_json import JsonObject
from worm.errors import CommitStateUnknown, Fenced
from worm.spaces.requests import Asked
from worm.spaces.rows import (
    Batch,
    BlobRow,
    BranchRow,
    CommitRow,
    Newest,
    Pointer,
    RevisionRow,
    SnapshotRow,
)


class Reads(Protocol):
    """Rows by name. Bulk calls are for many ids of one branch at one seq; ids without a row are left out."""

    def newest(self) -> Newest:
        """The end of the order of commits."""
        ...

    def commit_at(self, seq: int) -> CommitRow | None:
        """The newest commit at or before `seq`."""
        ...

    def commit_of(self, session_id: str, local_seq: int) -> CommitRow | None: ...

    def commits(
        self, after: int, upto: int, limit: int, *, branch: str | None = None, backwards: bool = False
    ) -> Sequence[CommitRow]:
        """Commits with `after < seq <= upto`, the oldest first, or the newest first."""
        ...

    def heads(self, branch: str, ids: Collection[str], upto: int) -> dict[str, Pointer]:
        """The newest revision of each at or before `upto`."""
        ...

    def snapshots(self, branch: str, ids: Collection[str], upto: int) -> dict[str, SnapshotRow]:
        """The newest snapshot of each at or before `upto`."""
        ...

    def revisions(self, branch: str, after: Mapping[str, int], upto: int) -> dict[str, list[RevisionRow]]:
        """Revisions of each id with `after[id] < seq <= upto` in order. Those before the last `set` or `delete` among
        them may be left out."""
        ...

    def written(self, commits: Sequence[CommitRow]) -> dict[int, list[RevisionRow]]:
        """All revisions of these commits, which follow one another, by seq and in order. Those without any are left
        out."""
        ...

    def depths(self, branch: str, ids: Collection[str]) -> dict[str, int]:
        """How many revisions each has after its newest snapshot, or in all. Decides only when a snapshot is due."""
        ...

    def touched(self, branch: str, after: int, upto: int) -> set[str]:
        """The ids that have revisions with `after < seq <= upto` on this very branch."""
        ...

    def branch(self, name: str) -> BranchRow | None: ...

    def branches(self) -> Sequence[BranchRow]:
        """All, deleted ones too, in the order of their making."""
        ...

    def blob(self, hash: str) -> BlobRow | None: ...

    def blobs(self) -> Sequence[BlobRow]: ...


class Moment(Reads, Protocol):
    """Reads that agree on a moment with each other, and the short way to one entity."""

    def current(self, branch: str, id: str) -> tuple[int, Pointer | None]:
        """The newest commit of all, and the head of an entity."""
        ...

    def past_head(self, branch: str, id: str, upto: int) -> Pointer | None:
        """The newest revision at or before `upto`."""
        ...

    def snapshot(self, branch: str, id: str, upto: int) -> SnapshotRow | None: ...

    def revisions_of(self, branch: str, id: str, after: int, upto: int) -> list[RevisionRow]:
        """Those before the last `set` or `delete` may be left out."""
        ...


@runtime_checkable
class Looking(Protocol):
    """A backend that has moments says so by its class; any other is asked row by row."""

    def look(self) -> AbstractContextManager[Moment]:
        """Of now. Only for a short while, by one thread."""
        ...


class Turn(Reads, Protocol):
    """Read, decide, and write at most one batch."""

    def write(self, batch: Batch) -> None:
        """Durable when the turn has been left without an error."""
        ...

    def drop_blobs(self, hashes: Collection[str]) -> int:
        """Removes payloads; no commit can come between the reads of this turn and this."""
        ...


@runtime_checkable
class Handing(Protocol):
    """A backend whose transactions another process may commit says so by its class."""

    def is_writer(self) -> bool:
        """Does this process write, as far as it knows?"""
        ...

    def ask(self, transaction: JsonObject) -> Asked:
        """Have the writer of now commit it, if that is another process."""
        ...

    def polite_turn(self) -> AbstractContextManager[Turn]:
        """One that is not taken away from a process that takes requests: `Fenced`."""
        ...

    def fresh_turn(self) -> Turn:
        """The rows of now, for a look at what would be decided: what is written there is not kept."""
        ...

    def serve(self, server: Callable[[Turn, JsonObject], Callable[[], JsonObject]]) -> None:
        """What decides the transactions of others; it returns what tells the outcome, once that is durable."""
        ...


class Backend(Reads, Protocol):
    """An open space of rows. Any thread may use it."""

    def turn(self) -> AbstractContextManager[Turn]:
        """An exception inside it writes nothing."""
        ...

    def as_of_now(self) -> AbstractContextManager[Reads]:
        """For many reads in a row: one look at what is durable now serves all of them."""
        ...

    def put_snapshots(self, rows: Sequence[SnapshotRow]) -> None:
        """Outside of commits; one that is there stays. This and the next two have turns of their own, and take them
        again should another take them away."""
        ...

    def drop_snapshots(self, keep: int) -> int:
        """Keeps the newest `keep` of every entity on every branch. How many went."""
        ...

    def forget_snapshots(self, branch: str, ids: Sequence[str]) -> None:
        """Drops all snapshots of these, whatever they hold."""
        ...

    def put_blob(self, row: BlobRow, chunks: Iterable[bytes]) -> bool:
        """Put-if-absent of a payload; False where it is there already."""
        ...

    def blob_chunks(self, hash: str) -> Iterator[bytes]:
        """The payload, a piece at a time. `NotFound` where there is none."""
        ...

    def stray_parts(self, before: datetime) -> Sequence[str]:
        """Places with bytes of blobs that no row names, written before a time: what uploads and collections left that
        did not come to their end."""
        ...

    def drop_parts(self, places: Sequence[str]) -> None:
        """Removes the bytes at places that `stray_parts` has named."""
        ...

    def chains(self, branch: str, ids: Collection[str]) -> dict[str, list[RevisionRow]]:
        """All revisions of each on this branch, in order; none is left out. For checking."""
        ...

    def all_snapshots(self, branch: str, ids: Collection[str]) -> dict[str, list[SnapshotRow]]:
        """All snapshots of each that reads could use. For checking."""
        ...

    def problems(self) -> Sequence[str]:
        """What is wrong with the store itself, by its own check."""
        ...

    def upkeep(self) -> dict[str, int]:
        """What keeps the store small and quick; what was done, by name."""
        ...

    def figures(self) -> dict[str, int]:
        """How large the store is, by name."""
        ...

    def close(self) -> None: ...


TRIES = 30
HOLD_SECONDS = 0.1
"""At least so long before the next try: whoever took over would fail, too, if its turn were taken back at once."""
R = TypeVar("R")


def until_decided(work: Callable[[], R], clock: Clock, ids: Ids) -> R:
    """Does the work again until it is refused or has counted; ends with the last of `TRIES`."""
    for attempt in range(TRIES - 1):
        try:
            return work()
        except (Fenced, CommitStateUnknown):
            clock.sleep(HOLD_SECONDS + backoff(ids, attempt, base_seconds=HOLD_SECONDS, cap_seconds=2.0))
    return work()
