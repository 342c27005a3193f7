"""Deletes old slots of a commit log: first it raises the boundary, then it deletes the slots.

A deleted slot is free for put-if-absent again. A writer that slept could 'commit' there if it did not check the
boundary. It checks it unless its last commit is younger than half of the age below which nothing is deleted
(`writer.py`). Ages are differences of the store's own times, so a clock that is wrong by a day deletes nothing too
early. The next run removes what a dead collector left over, or what was written into a collected slot."""

from __future__ import annotations

from dataclasses import dataclass, replace

from worm.clock import Clock, Ids, SystemClock
from worm.errors import Corrupt
from worm.log.config import LogConfig
from worm.log.fence import LogFiles, boundary_of
from worm.log.hints import BY_HAND, VERIFY
from worm.log.keys import DbKeys
from worm.log.reader import find_tail
from worm.log.root import LogRoot
from worm.store import Store


@dataclass(frozen=True, slots=True)
class Collected:
    """What a run did (in a dry run: would do)."""

    boundary_before: int
    boundary: int
    deleted: int
    bytes: int


class LogCollector:
    """Collects slots that nobody needs. The caller decides which (`upto`), this class decides when."""

    def __init__(
        self,
        store: Store,
        db: str | DbKeys,
        *,
        config: LogConfig | None = None,
        clock: Clock | None = None,
        ids: Ids | None = None,
    ) -> None:
        self._store = store
        self._keys = DbKeys.of(db)
        self._config = config or LogConfig()
        self._clock = clock or SystemClock()
        ids = ids or Ids.system(self._clock)
        self._files = LogFiles(store, self._keys, clock=self._clock, ids=ids)

    def run(self, upto: int, *, dry_run: bool = False) -> Collected:
        """Delete slots up to `upto` that are old enough, but never the last one."""
        before = boundary_of(self._store, self._keys, self._files.root.read)
        boundary = max(before, self._oldest_kept(before, upto))
        if not dry_run and boundary > before:
            self._raise(boundary)
        deleted = size = 0
        for listed in self._store.list(self._keys.log):
            slot = self._keys.slot_of(listed.key)
            if slot is None or slot > boundary:
                continue
            deleted, size = deleted + 1, size + listed.size
            if not dry_run:
                self._store.delete(listed.key)
        return Collected(before, boundary, deleted, size)

    def _oldest_kept(self, boundary: int, upto: int) -> int:
        """The last slot that may be deleted: not beyond `upto`, before the end of the log, old enough."""
        tail = find_tail(self._store, self._keys, self._files.root.read, upto)
        upto = min(upto, (0 if tail is None else tail.slot) - 1)
        if upto <= boundary:
            return boundary
        min_age = self._min_age()
        now, low, high = self._files.store_time(), boundary, upto + 1
        while high - low > 1:  # slots were written in order, so there is one border between old and young
            middle = (low + high) // 2
            info = self._store.head(self._keys.slot(middle))
            if info is None and boundary_of(self._store, self._keys, self._files.root.read) < middle:
                raise Corrupt("a slot above the boundary is missing", key=self._keys.slot(middle), hint=VERIFY)
            is_old = info is None or (now - info.last_modified).total_seconds() >= min_age
            if is_old:  # or gone: another collector was faster
                low = middle
            else:
                high = middle
        return low

    def _min_age(self) -> float:
        """The longest age that any writer of this log relies on, plus one second, because times of objects are whole
        seconds."""
        lease = self._files.lease.read()
        return 1 + max(self._config.gc_min_age_seconds, 0 if lease is None else lease.min_age)

    def _raise(self, boundary: int) -> None:
        def raised(root: LogRoot | None) -> LogRoot | None:
            if root is None:
                raise Corrupt("the root is gone", key=self._keys.root, hint=BY_HAND)
            return None if root.boundary >= boundary else replace(root, boundary=boundary)

        self._files.root.update(raised)
