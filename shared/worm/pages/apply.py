"""Applying the log of a branch to its layers, without being its writer: for the `apply` worker and whoever cannot wait.

Reads the root, reads the log after the slot that is applied, and flushes. An event only says where to look.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from worm.clock import Clock, Deadline, Ids, SystemClock
from worm.errors import Expired, Fenced
from worm.log.keys import DbKeys
from worm.log.reader import LogReader
from worm.pages.flush import Flush, Flusher
from worm.pages.manifest import MAIN, Pages, PagesRoot
from worm.pages.memtable import Memtable
from worm.store.base import Store


@dataclass(frozen=True, slots=True)
class Applied:
    """What a run came to. `is_done`: nothing was left in the log."""

    branch: str
    slot: int
    lsn: int
    segments: int
    flushes: int
    is_done: bool


class Applier:
    """Applies logs of one database."""

    def __init__(
        self,
        store: Store,
        db_id: str,
        *,
        clock: Clock | None = None,
        ids: Ids | None = None,
        root: PagesRoot | None = None,
    ) -> None:
        self._store = store
        self._clock = clock or SystemClock()
        self._ids = ids or Ids.system(self._clock)
        self.root = root or PagesRoot(store, db_id, clock=self._clock, ids=self._ids)
        self._flusher = Flusher(store, self.root, self._ids)

    def run(self, branch: str = MAIN, *, upto: int | None = None, left: Deadline | None = None) -> Applied:
        """Apply the log of a branch to its end; or until LSN `upto` is applied, or no time is left."""
        segments = flushes = 0
        pages = self.root.read()
        while True:
            before = pages.branch(branch)
            is_enough = upto is not None and before.lsn >= upto
            if is_enough or (left is not None and left() <= 0):
                return Applied(branch, before.slot, before.lsn, segments, flushes, is_enough)
            try:
                with self.root.while_there(branch, before.id):
                    taken, is_end = self._taken(pages, branch)
                if taken.slot == before.slot:
                    return Applied(branch, before.slot, before.lsn, segments, flushes, True)
                slot, lsn, epoch, versions = taken.frozen()
                flush = Flush(branch, before.id, before.slot, slot, lsn, epoch, versions)
                pages = self._flusher.run(pages, flush)
            except (Expired, Fenced):
                now = self.root.read()  # somebody else applied it, and it was collected since
                if now.branch(branch) == before:
                    raise
                pages = now
                continue
            after = pages.branch(branch)
            segments, flushes = segments + after.slot - before.slot, flushes + 1
            if is_end and after.slot >= taken.slot:
                return Applied(branch, after.slot, after.lsn, segments, flushes, True)

    def _taken(self, pages: Pages, name: str) -> tuple[Memtable, bool]:
        """The log after what is applied, as much as makes a flush; and whether that is all."""
        branch = pages.branch(name)
        table = Memtable(branch.slot, branch.lsn, branch.base)
        keys = DbKeys(self.root.keys.db_id, branch.id)
        reader = LogReader(self._store, keys, clock=self._clock, ids=self._ids)
        for segment in reader.new_segments(branch.slot):
            table.add(segment, keys.slot(segment.slot))
            if table.bytes >= pages.config.flush_threshold_bytes:
                return table, False
        return table, True


def databases(store: Store) -> Iterator[str]:
    """The databases of a bucket or prefix: one LIST of one key for each."""
    after: str | None = None
    while True:
        found = next(iter(store.list("db/", start_after=after, limit=1)), None)
        if found is None:
            return
        name, slash, _ = found.key.removeprefix("db/").partition("/")
        if slash:
            yield name
        after = f"db/{name}0" if slash else found.key  # "0" comes right after "/"
