"""compact: by schedule, page stores are kept small: what no event reported is applied, layers are merged and become
images, and what no read needs any more is deleted.

One run looks at every database of the bucket, in an order that chance decides: if the time does not suffice for all,
the next run begins with others. Each step can be repeated and cut short anywhere. A compaction that another one has
overtaken is no error; the other one's result counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from worm.clock import Deadline
from worm.errors import Fenced, Invalid, NotFound
from worm.pages.apply import Applier, databases
from worm.pages.collect import PageCollector
from worm.pages.compact import Compactor
from worm.schema.fields import segment_problem
from worm.session import Session

STEP_SECONDS = 60.0
"""A step (a flush, a merge, an image) cannot be stopped half-way, so none is begun with less time than this."""


@dataclass
class CompactReport:
    """What a run came to for one database. `finished` is False when the deadline came first, or another compaction."""

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


class Compact:
    """The compact worker."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def run(self, left: Deadline, names: Iterable[str] | None = None) -> list[CompactReport]:
        """Compact these databases (default: all that have pages), one after the other, until the deadline."""
        if names is None:
            chosen = [name for name in databases(self._session.store) if not segment_problem(name)]
            self._session.ids.rng.shuffle(chosen)
        else:
            chosen = checked_names(names)

        def step_left() -> float:
            return left() - STEP_SECONDS

        reports = [self._attempt(name, step_left, is_named=names is not None) for name in chosen]
        return [report for report in reports if report is not None]

    def _attempt(self, name: str, left: Deadline, *, is_named: bool) -> CompactReport | None:
        """One database that is damaged must not keep the others from it. None: it has no pages."""
        report = CompactReport(name)
        if left() <= 0:
            report.finished = False
            return report
        try:
            return report if self._compact(report, left, is_named) else None
        except Exception as error:  # noqa: BLE001 - part of the report; the handler raises it when all are done
            report.finished, report.error = False, error
            return report

    def _compact(self, report: CompactReport, left: Deadline, is_named: bool) -> bool:
        applier = Applier(self._session.store, report.database, clock=self._session.clock, ids=self._session.ids)
        pages = applier.root.read() if is_named else applier.root.find()
        if pages is None:
            return False
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
        for compactor in self._rounds(report.database, left):
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

    def _rounds(self, database: str, left: Deadline) -> Iterator[Compactor]:
        """A compaction does a bounded amount of work: more of them as long as there is time."""
        session = self._session
        compactor = Compactor(session.store, database, clock=session.clock, ids=session.ids)
        while left() > 0:
            yield compactor

    def _collect(self, report: CompactReport) -> None:
        session = self._session
        garbage = PageCollector(session.store, report.database, clock=session.clock, ids=session.ids).run()
        report.dropped = len(garbage.dropped)
        report.deleted = len(garbage.deleted) + len(garbage.orphans)
        report.slots = garbage.slots
        report.bytes_freed = garbage.bytes + garbage.slot_bytes


def checked_names(names: object) -> list[str]:
    """The databases that an event names; `Invalid` for anything but a list of names."""
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise Invalid(f"databases is {names!r:.80}, not a list of names", hint='{"databases": ["main"]}')
    return [str(name) for name in names]
