"""The port: what a store must do to hold a space. The meaning of a space is defined above it.

A backend stores rows (rows.py) by their names, and one order of commits. It only has to guarantee:
- A `turn` is exclusive among all writers of the space, in any process; its reads include every earlier commit. A
  backend that commits in groups may let the next turn begin before this one is durable (it then reads what is being
  written), as long as leaving a turn returns only when its batch, and all before it, are durable.
- A batch is written completely or not at all. If the outcome is unknown, leaving the turn raises `CommitStateUnknown`.
- Reads outside a turn see only what is durable. They need not all see the same moment: commits and revisions never
  change, so a read of rows up to a committed seq gives the same answer at any time.
- Snapshots may come and go at any time; they only save work.
- Ids and names of branches are any text without control characters, at most 512 and 200 bytes (`rows.py`).

Others may take a turn away (`Fenced`), and answers get lost (`CommitStateUnknown`). Every write has a name, so a
repetition counts once: `until_decided` repeats the work until its outcome is known.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Protocol, TypeVar, runtime_checkable

from worm.clock import Clock, Ids, backoff
from worm.errors import CommitStateUnknown, Fenced
from worm.formats import JsonObject
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
    """Rows by name. Bulk calls take many ids of one branch at one seq; ids without a row are left out."""

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
        """Revisions of each id with `after[id] < seq <= upto`, in order. Those before the last `set` or `delete` among
        them may be left out."""
        ...

    def written(self, commits: Sequence[CommitRow]) -> dict[int, list[RevisionRow]]:
        """All revisions of these consecutive commits, by seq and in order. Commits without revisions are left out."""
        ...

    def depths(self, branch: str, ids: Collection[str]) -> dict[str, int]:
        """How many revisions each has after its newest snapshot, or in total. Only used to decide when a snapshot is
        due."""
        ...

    def touched(self, branch: str, after: int, upto: int) -> set[str]:
        """The ids that have revisions with `after < seq <= upto` on this very branch."""
        ...

    def branch(self, name: str) -> BranchRow | None: ...

    def branches(self) -> Sequence[BranchRow]:
        """All branches, including deleted ones, in the order of their creation."""
        ...

    def blob(self, hash: str) -> BlobRow | None: ...

    def blobs(self) -> Sequence[BlobRow]: ...


class Moment(Reads, Protocol):
    """Reads that all see the same moment, and a shortcut to one entity."""

    def current(self, branch: str, id: str) -> tuple[int, Pointer | None]:
        """The newest commit of all, and the head of an entity."""
        ...

    def past_head(self, branch: str, id: str, upto: int) -> Pointer | None:
        """The newest revision at or before `upto`."""
        ...

    def snapshot(self, branch: str, id: str, upto: int) -> SnapshotRow | None: ...

    def revisions_of(self, branch: str, id: str, after: int, upto: int) -> list[RevisionRow]:
        """Revisions before the last `set` or `delete` may be left out."""
        ...


@runtime_checkable
class Looking(Protocol):
    """A backend with moments has this class; any other is read row by row."""

    def look(self) -> AbstractContextManager[Moment]:
        """The current moment. For brief use by one thread."""
        ...


class Turn(Reads, Protocol):
    """Read, decide, and write at most one batch."""

    def write(self, batch: Batch) -> None:
        """Write a batch. It is durable when the turn has been left without an error."""
        ...

    def drop_blobs(self, hashes: Collection[str]) -> int:
        """Remove payloads; no commit can come between the reads of this turn and the removal."""
        ...


@runtime_checkable
class Handing(Protocol):
    """A backend whose transactions another process may commit has this class."""

    def is_writer(self) -> bool:
        """Whether this process is the writer, as far as it knows."""
        ...

    def ask(self, transaction: JsonObject) -> Asked:
        """Let the current writer commit it, if that is another process."""
        ...

    def polite_turn(self) -> AbstractContextManager[Turn]:
        """A turn that is not taken away from a process that accepts requests: raises `Fenced` instead."""
        ...

    def fresh_turn(self) -> Turn:
        """The current rows, to find out what would be decided: nothing that is written there is kept."""
        ...

    def serve(self, server: Callable[[Turn, JsonObject], Callable[[], JsonObject]]) -> None:
        """Set the function that decides the transactions of others. It returns a function that gives the outcome, once
        that is durable."""
        ...


class Backend(Reads, Protocol):
    """An open space of rows. Any thread may use it."""

    def turn(self) -> AbstractContextManager[Turn]:
        """An exception inside it writes nothing."""
        ...

    def as_of_now(self) -> AbstractContextManager[Reads]:
        """For many reads in a row: one check of what is durable now serves all of them."""
        ...

    def put_snapshots(self, rows: Sequence[SnapshotRow]) -> None:
        """Write snapshots outside of commits; an existing one stays. This method and the next two have their own turns,
        and retake a turn that another process took away."""
        ...

    def drop_snapshots(self, keep: int) -> int:
        """Keep only the newest `keep` of every entity on every branch. Returns the number dropped."""
        ...

    def forget_snapshots(self, branch: str, ids: Sequence[str]) -> None:
        """Drop all snapshots of these entities."""
        ...

    def put_blob(self, row: BlobRow, chunks: Iterable[bytes]) -> bool:
        """Put-if-absent of a payload; False if it already exists."""
        ...

    def blob_chunks(self, hash: str) -> Iterator[bytes]:
        """The payload, a piece at a time. `NotFound` if there is none."""
        ...

    def stray_parts(self, before: datetime) -> Sequence[str]:
        """Places with bytes of blobs that no row names, written before a time: leftovers of interrupted uploads and
        collections."""
        ...

    def drop_parts(self, places: Sequence[str]) -> None:
        """Remove the bytes at places that `stray_parts` returned."""
        ...

    def chains(self, branch: str, ids: Collection[str]) -> dict[str, list[RevisionRow]]:
        """All revisions of each on this branch, in order; none is left out. For checking."""
        ...

    def all_snapshots(self, branch: str, ids: Collection[str]) -> dict[str, list[SnapshotRow]]:
        """All snapshots of each that reads could use. For checking."""
        ...

    def problems(self) -> Sequence[str]:
        """The problems of the store itself, by its own check."""
        ...

    def upkeep(self) -> dict[str, int]:
        """Keep the store small and fast. Returns what was done, by name."""
        ...

    def figures(self) -> dict[str, int]:
        """The sizes of the store, by name."""
        ...

    def close(self) -> None: ...


TRIES = 30
HOLD_SECONDS = 0.1
"""The minimum pause before the next attempt: if we took the turn back at once, the new holder would fail, too."""
R = TypeVar("R")


def until_decided(work: Callable[[], R], clock: Clock, ids: Ids) -> R:
    """Repeat the work until it is refused or done, at most `TRIES` times."""
    for attempt in range(TRIES - 1):
        try:
            return work()
        except (Fenced, CommitStateUnknown):
            clock.sleep(HOLD_SECONDS + backoff(ids, attempt, base_seconds=HOLD_SECONDS, cap_seconds=2.0))
    return work()
