"""sweep: finds changes that no event reported, by listing, and reconciles them.

Before all else, the documents of models in a space are brought to the end of its log, and a document that came back
after a commit had deleted it is deleted again. If nothing is behind, a space costs a look at the end of its log, and
two requests.

Then each model gets a *pass* (`sweep_pass.py`): the listing of its versions, a request per 1,000, is compared with its
table, range by range, and only entities that differ are read. A pass may take several runs: one that runs out of time
stores its position (`sweep_cursor.py`), and the next run continues there.

A run on a schedule comes every 15 minutes, but a pass that lists everything is due less often (`Scheduled`). In
between, and after each pass, a run creates what a table lacks, merges its files, and publishes the Delta table, unless
its newest version will still be new enough at the next run. Without time, it publishes no more than the worker `tables`
does after a fold.

Recorded changes wait for their fold until there are as many as the table has rows: a fold of a small table rewrites all
of it, so folding at every step would rewrite the first documents of a large adoption again and again. If a sweep dies
before a fold, the changes are still recorded; the next one finds and folds them.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence

from worm.clock import Deadline
from worm.errors import Invalid, WormError, show
from worm.spaces import Materialized
from worm.tables import Table
from worm.upkeep.materialize import Materializer
from worm.upkeep.session import Session
from worm.upkeep.sweep_cursor import SweepCursor
from worm.upkeep.sweep_pass import (
    EVERYTHING,
    DocumentPass,
    HistoryPass,
    How,
    Scheduled,
    SweepReport,
    complete_table,
)

NEXT_SECONDS = 15 * 60.0
"""When the next run comes (the schedule in template.yaml)."""
EVERY_SECONDS = 24 * 3600.0
BUILDS_MAX = 250_000
"""How many documents of a table a function reads again in its 15 minutes: two requests for each, about 600 a second."""


def scheduled(environment: Mapping[str, str] | None = None) -> Scheduled:
    """What a run on a schedule leaves out, from the variables that template.yaml sets."""
    values = os.environ if environment is None else environment
    text = values.get("WORM_SWEEP_EVERY") or str(EVERY_SECONDS / 3600)
    try:
        hours = float(text)
    except ValueError:
        hours = -1.0
    if not 0 <= hours < math.inf:
        what = f"the environment variable WORM_SWEEP_EVERY must be a number of hours from 0, not {show(text)}"
        raise Invalid(what, hint="set the stack's SweepEvery")
    return Scheduled(hours * 3600, BUILDS_MAX)


class Sweep:
    """The sweep of a session's models."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._materializer = Materializer(session)

    def run(
        self,
        deadline: Deadline,
        models: Iterable[str] | None = None,
        *,
        resume: bool = True,
        folds: bool = True,
        progress: Callable[[int], None] = lambda listed: None,
        scheduled: Scheduled = EVERYTHING,
    ) -> list[SweepReport]:
        """Sweep the models (default: all), one after the other, until the deadline. `resume` False: from the start, and
        no position is stored. `folds` False: the caller writes the tables. `progress` is called with the number of
        finished documents of the model. `scheduled`: what to leave out."""
        self._session.refresh()
        names = sorted(self._session.schema.models) if models is None else list(models)
        spaces = {name: self._materialize(name, deadline) for name in self._spaces(names)}
        how = How(deadline, resume, folds, progress, scheduled)
        reports = self._attempt_models(names, how)
        for report in reports:
            found = spaces.pop(self._session.schema.model(report.model).space or "", None)  # reported once
            if isinstance(found, WormError):
                report.error, report.finished = report.error or found, False
            elif found is not None:
                report.materialized += found.written
                report.finished = report.finished and found.is_done
        return reports

    def _spaces(self, names: Iterable[str]) -> list[str]:
        models = self._session.schema.models
        found = (models[name].space for name in names if name in models)
        return sorted({space for space in found if space is not None})

    def _materialize(self, space: str, deadline: Deadline) -> Materialized | WormError:
        """An unreadable space must not stop the others."""
        try:
            return self._materializer.run_space(space, deadline)
        except WormError as error:
            return error

    def _attempt_models(self, names: Sequence[str], how: How) -> list[SweepReport]:
        """The first one is always attempted; without time, the others wait. Each run begins with another model, because
        a large one may take all the time of many runs."""
        slot = int(self._session.clock.now().timestamp() // NEXT_SECONDS)
        first = slot % len(names) if how.resume and names else 0
        reports = dict[str, SweepReport]()
        for name in [*names[first:], *names[:first]]:
            is_late = bool(reports) and how.deadline() <= 0
            reports[name] = SweepReport(name, finished=False) if is_late else self._attempt_model(name, how)
        return [reports[name] for name in names]

    def _attempt_model(self, model: str, how: How) -> SweepReport:
        """A model that cannot be swept must not stop the others."""
        report = SweepReport(model)
        try:
            self._sweep_model(self._session.table(model), how, report)
        except WormError as error:
            report.error, report.finished = error, False
            return report
        if how.folds and self._session.schema.model(model).lake is not None:
            bytes_max = Table.SWEEP_BYTES_MAX if how.deadline() > 0 else Table.TIDY_BYTES_MAX
            try:
                self._session.lake(model).publish_due(bytes_max=bytes_max, ahead_seconds=NEXT_SECONDS)
            except WormError as error:
                report.error = error
        return report

    def _sweep_model(self, table: Table, how: How, report: SweepReport) -> None:
        definition, now = table.collection.definition, table.collection.clock.now()
        if not definition.oplog and not definition.keeps_manifest:
            return
        cursor = SweepCursor.read(table.collection) if how.resume else SweepCursor()
        report.is_due = cursor.is_due(now, how.scheduled.every_seconds) or _has_partial_heads(table)
        if not report.is_due:
            report.documents = cursor.listed
            self._keep_up(table, how, report)
        elif definition.oplog:
            HistoryPass(self._session, table, how, report).run(cursor.begun(now))
        else:
            DocumentPass(self._session, table, how, report).run(cursor.begun(now))

    def _keep_up(self, table: Table, how: How, report: SweepReport) -> None:
        """Between two passes: what costs a few requests."""
        if how.folds:
            complete_table(table, how, report, lists=False)


def _has_partial_heads(table: Table) -> bool:
    """Whether heads are lost, or they are one file and damaged, or lack entities after their file was lost. Only a pass
    completes them, and streams wait for it."""
    definition, heads = table.collection.definition, table.heads
    root = heads.root() if definition.oplog else None
    if heads.damage is not None or not definition.oplog:
        return heads.damage is not None
    if root is not None:
        return root.whole is not None and root.whole.partial
    rows = table.manifest.root() if definition.keeps_manifest else None
    return rows is not None and rows.count > 0 and not table.manifest.is_stale(rows)
