"""sweep: finds changes that no event reported, by listing, and reconciles them.

One listing of versions per collection (a request per 1,000 versions) is compared with the heads; only entities whose
newest version is not the recorded one are read. It has a deadline: a sweep that runs out of time stores its position
(`.worm.sweep/<collection>.json`) and the next one continues from there.

Recorded changes wait for their fold until there are as many as the table has rows: a fold of a small table rewrites all
of it, so folding at every step would rewrite the first documents of a large adoption again and again. If a sweep dies
before a fold, the changes are still recorded; the next one finds and folds them.

After that, the Delta table of a model is published, unless its newest version will still be new enough at the next
sweep.

Before all that, the documents of models in a space are brought to the end of its log, and a document that came back
after a commit had deleted it is deleted again. If nothing is behind, a space costs a look at the end of its log, and
two requests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import cast

from worm.clock import Deadline, iso_seconds
from worm.codec.shapes import TEXT, check_shape, record
from worm.codec.strict_json import dumps, loads_own
from worm.collections.collection import Collection, EntityOutcome
from worm.collections.entries import Change, Head, Heads
from worm.collections.oplog import Seqs
from worm.collections.reconcile import UNLISTED, Survey
from worm.errors import Corrupt, Invalid, WormError
from worm.maintenance.materialize import Materialized, Materializer
from worm.session import Session
from worm.spaces.opening import database_id
from worm.tables.build import empty_manifest
from worm.tables.table import SWEEP_BYTES_MAX, Table

CHUNK = 200
NEXT_SECONDS = 15 * 60.0
"""When the next sweep comes (the schedule in template.yaml)."""
FOLD_CHANGES_MAX = 5_000
FOLD_BYTES_MAX = 16 << 20
CURSOR = record("the cursor of a sweep", {}, {"after": TEXT})


@dataclass
class SweepReport:
    """What a sweep of one collection found. `finished` is False if time ran out."""

    model: str
    listed: int = 0
    reconciled: int = 0
    recorded: int = 0
    materialized: int = 0
    """Documents that were written or deleted because the log of the model's space says so."""
    problems: dict[str, str] = field(default_factory=dict)
    damaged: dict[str, Corrupt] = field(default_factory=dict)
    """Why the histories of some of these are damaged. Their documents are still served."""
    finished: bool = True
    error: WormError | None = None
    """Why the model could not be swept, or its Delta table not published."""
    failure: WormError | None = None
    """The first reason why a valid document could not be recorded."""

    def summary(self) -> dict[str, str | int | bool]:
        return {
            "model": self.model,
            "listed": self.listed,
            "reconciled": self.reconciled,
            "recorded": self.recorded,
            "materialized": self.materialized,
            "problems": len(self.problems),
            "damaged": len(self.damaged),
            "finished": self.finished,
        }


@dataclass(frozen=True, slots=True)
class _Pass:
    """How one run sweeps each of its models; see `Sweep.run`."""

    deadline: Deadline
    resume: bool
    folds: bool
    progress: Callable[[int], None]


_Suspects = dict[str, Survey]
"""Entities to check, with what the listing showed of each."""


@dataclass
class _Unfolded:
    """Recorded changes that are not in the table yet."""

    table: Table
    rows: int
    """Approximate rows of the table."""
    changes: list[Change] = field(default_factory=list)
    size_bytes: int = 0

    def is_due(self, suspects: _Suspects) -> bool:
        self.size_bytes += sum(one.sole.size for one in suspects.values() if one.sole is not None)
        is_large = self.size_bytes >= FOLD_BYTES_MAX
        return is_large or len(self.changes) >= min(max(self.rows, CHUNK), FOLD_CHANGES_MAX)

    def fold(self) -> None:
        if self.changes:
            self.table.fold(self.changes)
        self.rows += len(self.changes)
        self.changes, self.size_bytes = [], 0


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
    ) -> list[SweepReport]:
        """Sweep the models (default: all), one after the other, until the deadline. `resume` False: from the start.
        `folds` False: the caller writes the tables. `progress` is called with the number of finished documents of the
        model."""
        self._session.refresh()
        names = sorted(self._session.schema.models) if models is None else list(models)
        spaces = {name: self._materialize(name, deadline) for name in self._spaces(names)}
        reports = [self._attempt_model(model, _Pass(deadline, resume, folds, progress)) for model in names]
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
            return self._materializer.run(database_id(space), deadline)
        except WormError as error:
            return error

    def _attempt_model(self, model: str, how: _Pass) -> SweepReport:
        """A model that cannot be swept must not stop the others."""
        try:
            report = self._sweep_model(model, how)
        except WormError as error:
            return SweepReport(model, finished=False, error=error)
        if how.folds and self._session.schema.model(model).lake is not None:
            try:
                self._session.lake(model).publish_due(bytes_max=SWEEP_BYTES_MAX, ahead_seconds=NEXT_SECONDS)
            except WormError as error:
                report.error = error
        return report

    def _sweep_model(self, model: str, how: _Pass) -> SweepReport:
        table = self._session.table(model)
        definition = table.collection.definition
        report = SweepReport(model)
        if not definition.oplog:
            if definition.keeps_manifest:
                self._sweep_documents(table, report)
                how.progress(report.listed)
            return report
        heads = dict((table.heads.read() or Heads(model)).heads)
        if not how.folds:  # a repair: it does not trust heads whose entry was deleted
            recorded = table.collection.recorded_seqs()
            heads = {one: head for one, head in heads.items() if one in recorded and head.seq <= recorded[one].last}
        after = self._cursor(table.collection) if how.resume else None
        unfolded = _Unfolded(table, len(heads))
        for suspects, reached in self._suspects(table.collection, heads, after, report):
            changes = self._reconcile(table, suspects, heads, report)
            unfolded.changes += changes if how.folds else ()
            is_over = how.deadline() <= 0 and reached is not None
            if how.folds and (is_over or reached is None or unfolded.is_due(suspects)):
                unfolded.fold()
            if how.folds:
                table.serve((one for one in suspects if one in report.damaged), bytes_max=SWEEP_BYTES_MAX)
            how.progress(report.listed)
            if is_over and reached is not None:
                self._save_cursor(table.collection, reached)
                report.finished = False
                return report
        if after is not None:
            self._save_cursor(table.collection, "")
        if how.folds:
            if after is None:
                table.complete_heads()
            table.complete()
        return report

    def _suspects(
        self, collection: Collection, heads: dict[str, Head], after: str | None, report: SweepReport
    ) -> Iterator[tuple[_Suspects, str | None]]:
        """Chunks of entities to check, with the last listed key (None: the end)."""
        seen: set[str] = set()
        suspects: _Suspects = {}
        has_versions, recorded = False, None
        for entity_id, version, is_sole in collection.newest_versions(after):
            report.listed += 1
            seen.add(entity_id)
            has_versions = has_versions or version.version_id is not None
            if not has_versions and recorded is None:
                recorded = collection.recorded_seqs()
            head = heads.get(entity_id)
            if head is None or not head.names(version):
                is_unrecorded = recorded is not None and entity_id not in recorded
                suspects[entity_id] = Survey(version if is_sole else None, is_unrecorded)
            if len(suspects) >= CHUNK:
                yield suspects, version.key
                suspects = {}
        for entity_id, head in heads.items():
            beyond = after is None or collection.documents.key(entity_id) > after
            if head.live and beyond and entity_id not in seen:
                suspects.setdefault(entity_id, UNLISTED)
        if not has_versions:
            for entity_id in _behind(collection.recorded_seqs() if recorded is None else recorded, heads):
                suspects.setdefault(entity_id, UNLISTED)
        yield dict(sorted(suspects.items())), None

    def _reconcile(
        self, table: Table, suspects: _Suspects, heads: dict[str, Head], report: SweepReport
    ) -> list[Change]:
        """Record their changes; returns those for the table. `heads` is updated at once."""

        def one(entity_id: str) -> EntityOutcome:
            known = heads.get(entity_id)
            outcome = table.collection.reconcile(entity_id, known, known, survey=suspects[entity_id])
            return self._mended(table, entity_id, outcome) if outcome.is_late else outcome

        outcomes = self._session.in_parallel(one, suspects, lambda entity_id: _size_of(suspects[entity_id]))
        for entity_id, outcome in zip(suspects, outcomes, strict=True):
            report.reconciled += 1
            report.recorded += outcome.appended
            report.materialized += outcome.is_mended
            if outcome.error is not None:
                report.problems[entity_id] = str(outcome.error)
                if outcome.damage is not None:
                    report.damaged[entity_id] = outcome.damage
                elif isinstance(outcome.error, WormError) and not isinstance(outcome.error, Invalid):
                    report.failure = report.failure or outcome.error
        changes: list[Change] = [outcome.change for outcome in outcomes if outcome.change is not None]
        heads.update({change.id: change.head for change in changes if change.head is not None})
        return changes

    def _mended(self, table: Table, entity_id: str, outcome: EntityOutcome) -> EntityOutcome:
        try:
            return replace(outcome, is_mended=self._materializer.mend(table.collection.name, entity_id))
        except WormError as error:
            return replace(outcome, error=error)

    def _sweep_documents(self, table: Table, report: SweepReport) -> None:
        manifest = table.manifest.read() or empty_manifest(table.collection)
        suspects: set[str] = set()
        gone = dict(manifest.etags)
        for entity_id, version in table.collection.latest_versions():
            report.listed += 1
            if version.is_delete_marker:
                continue
            is_newer = iso_seconds(version.last_modified) > manifest.last_updated
            if gone.pop(entity_id, None) != version.etag or is_newer:
                suspects.add(entity_id)
        suspects |= set(gone)
        report.reconciled = len(suspects)
        self._session.in_parallel(table.collection.keep_snapshot, sorted(suspects))
        if suspects:
            table.fold_documents(suspects)
        table.complete()

    def _cursor(self, collection: Collection) -> str | None:
        key = _cursor_key(collection)
        found = self._session.store.get(key)
        try:
            shape = {} if found is None else loads_own(found.body, key=key)
            check_shape(shape, CURSOR, key)
        except Corrupt:
            return None  # start from the beginning; the next cursor replaces it
        return cast(str, shape.get("after", "")) or None

    def _save_cursor(self, collection: Collection, after: str) -> None:
        self._session.store.put(_cursor_key(collection), dumps({"version": 1, "after": after}))


def _cursor_key(collection: Collection) -> str:
    return f".worm.sweep/{collection.name}.json"


def _size_of(survey: Survey) -> int:
    """The size of its only version; 0 if it has several, or none was listed."""
    return 0 if survey.sole is None else survey.sole.size


def _behind(recorded: Mapping[str, Seqs], heads: dict[str, Head]) -> list[str]:
    """Entities with entries that the heads lack. Without versions an equal etag does not prove an equal head."""
    return [
        entity_id
        for entity_id, seqs in recorded.items()
        if (head := heads.get(entity_id)) is None or head.seq < seqs.last
    ]
