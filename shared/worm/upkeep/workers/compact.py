"""compact: on a schedule, keeps page stores small: applies what no event reported, merges layers into images, and
deletes what no read needs.

One run visits every database of the bucket in random order: if time runs out, the next run starts with others. Each
step can be repeated and interrupted anywhere. A compaction that another one has overtaken is not an error; the other
one's result counts.
"""

from __future__ import annotations

from collections.abc import Iterable

from worm.clock import Deadline
from worm.errors import Invalid
from worm.formats import path_name_problem
from worm.log import databases
from worm.pages import CompactReport, Maintainer
from worm.upkeep.session import Session

STEP_SECONDS = 60.0
"""A step (a flush, a merge, an image) cannot be stopped halfway, so none is started with less time than this."""


class Compact:
    """The compact worker."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._maintainer = Maintainer(session.store, clock=session.clock, ids=session.ids)

    def run(self, left: Deadline, names: Iterable[str] | None = None) -> list[CompactReport]:
        """Compact these databases (default: all that have pages), one after the other, until the deadline."""
        if names is None:
            chosen = [name for name in databases(self._session.store) if not path_name_problem(name)]
            self._session.ids.rng.shuffle(chosen)
        else:
            chosen = checked_names(names)

        def step_left() -> float:
            return left() - STEP_SECONDS

        reports = [self._attempt(name, step_left, is_named=names is not None) for name in chosen]
        return [report for report in reports if report is not None]

    def _attempt(self, name: str, left: Deadline, *, is_named: bool) -> CompactReport | None:
        """A damaged database must not stop the others. None: it has no pages."""
        report = CompactReport(name)
        if left() <= 0:
            report.finished = False
            return report
        try:
            return report if self._maintainer.run(report, left, is_named=is_named) else None
        except Exception as error:  # noqa: BLE001 - part of the report; the handler raises it when all are done
            report.finished, report.error = False, error
            return report


def checked_names(names: object) -> list[str]:
    """The databases that an event names; `Invalid` for anything but a list of names."""
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise Invalid(f"databases must be a list of names, not {names!r:.80}", hint='{"databases": ["main"]}')
    return [str(name) for name in names]
