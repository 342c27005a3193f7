"""Upkeep of a page store: apply what is only in the log, compact, and collect garbage. One call does all of it
(`maintain`): for the `compact` worker, for `worm db maintain`, and for programs without either.

A process that writes does the most urgent part by itself, in the background (`Background`): it flushes what has waited
for `flush_interval_seconds`, even if no further commit comes, and merges its own flushed layers when there are enough.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from worm import forks
from worm.clock import Clock, Deadline, Ids, SystemClock
from worm.errors import Fenced, NotFound
from worm.pages.apply import Applier
from worm.pages.collect import PageCollector
from worm.pages.compact import Compactor
from worm.pages.deleting import purge_database
from worm.store import Store

PAUSE_SECONDS = 0.02
"""The pause after work that changed nothing."""
END_SECONDS = 10.0
"""How long `close` waits for running work. Interrupting it at any point does no harm."""


@dataclass
class CompactReport:
    """The result of a run for one database. `finished` is False if the deadline or another compaction came first."""

    database: str
    branches: int = 0
    applied: int = 0
    merged: int = 0
    deltas: int = 0
    images: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    overtaken: int = 0
    dropped: int = 0
    deleted: int = 0
    slots: int = 0
    bytes_freed: int = 0
    finished: bool = True
    error: Exception | None = None

    def summary(self) -> dict[str, str | int | bool]:
        counts = {name: value for name, value in vars(self).items() if name != "error"}
        return counts if self.error is None else {**counts, "error": str(self.error)}


class Maintainer:
    """Upkeep of the databases of a store."""

    def __init__(self, store: Store, *, clock: Clock | None = None, ids: Ids | None = None) -> None:
        self._store = store
        self._clock = clock or SystemClock()
        self._ids = ids or Ids.system(self._clock)

    def run(self, report: CompactReport, left: Deadline, *, is_named: bool = True, purges: bool = False) -> bool:
        """Do what is due within the time. False: there is no page store with this name, or it was deleted. `purges`:
        also remove databases that were deleted long enough ago, including their root, which the worker is not allowed
        to do."""
        applier = Applier(self._store, report.database, clock=self._clock, ids=self._ids)
        pages = applier.root.find()
        if pages is None:
            if purges:
                report.deleted = purge_database(self._store, report.database, clock=self._clock, ids=self._ids)
            if is_named and not report.deleted:
                applier.root.read()  # raises the right error
            return bool(report.deleted)
        for branch in sorted(pages.branches):
            try:
                self._compact_branch(applier, branch, report, left)
            except NotFound:
                now = applier.root.find()
                if now is not None and branch in now.branches:
                    raise
            else:
                report.branches += 1
        if left() <= 0:
            report.finished = False
        else:
            self._collect(report)
        return True

    def _compact_branch(self, applier: Applier, branch: str, report: CompactReport, left: Deadline) -> None:
        report.applied += applier.run(branch, left=left).segments
        compactor = Compactor(self._store, report.database, clock=self._clock, ids=self._ids)
        while left() > 0:  # a compaction does a limited amount of work: repeat while there is time
            try:
                done = compactor.run(branch, left=left)
            except Fenced:
                report.overtaken += 1
                break
            report.merged += done.merged
            report.deltas += done.deltas
            report.images += done.images
            report.bytes_read += done.bytes_read
            report.bytes_written += done.bytes_written
            if done.is_done:
                return
        report.finished = False

    def _collect(self, report: CompactReport) -> None:
        garbage = PageCollector(self._store, report.database, clock=self._clock, ids=self._ids).run()
        report.dropped = len(garbage.dropped)
        report.deleted = len(garbage.deleted) + len(garbage.orphans)
        report.slots = garbage.slots
        report.bytes_freed = garbage.bytes + garbage.slot_bytes


def maintain(store: Store, db_id: str, *, clock: Clock | None = None, ids: Ids | None = None) -> CompactReport:
    """Apply, compact and collect, until nothing is due. `NotFound` if there is no such page store."""
    report = CompactReport(db_id)
    Maintainer(store, clock=clock, ids=ids).run(report, lambda: float("inf"), purges=True)
    return report


class Background:
    """A thread that does what is due, and lives only while something is waiting. `due` returns the seconds until the
    next work (None: there is none); `work` does it and never raises."""

    def __init__(self, due: Callable[[], float | None], work: Callable[[], None]) -> None:
        self._due, self._work = due, work
        self._lock = forks.new_lock()
        self.is_closed = False
        self._begin()
        forks.in_child(self._begin)

    def _begin(self) -> None:
        """In a forked child there is no thread."""
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()

    def wake(self, *, is_sooner: bool = False) -> None:
        """There may be something to do, or (`is_sooner`) it is due earlier than the work that is waited for. Costs
        almost nothing while the thread lives."""
        if is_sooner:
            self._wake.set()
        if self._thread is None and not self.is_closed:
            with self._lock:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="worm-upkeep", daemon=True)
                    self._thread.start()

    def close(self) -> None:
        """Start nothing more, and wait for running work."""
        self.is_closed = True
        self._wake.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(END_SECONDS)

    def _run(self) -> None:
        while not self.is_closed:
            self._wake.clear()
            seconds = self._due()
            if seconds is None:
                with self._lock:
                    if self._due() is None:
                        self._thread = None
                        return
            elif seconds > 0:
                self._wake.wait(seconds)
            else:
                self._work()
                self._wake.wait(PAUSE_SECONDS)
