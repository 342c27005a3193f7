"""sweep: find by listing what no event reported, and reconcile it.

One listing of versions per collection (a request per 1,000 versions) is compared with the heads; only entities whose
newest version is not the recorded one are read. Bounded by a deadline: a sweep that runs out of time stores where it
stopped (`.worm.sweep/<collection>.json`) and the next one goes on from there.

Before that, the documents of models in a space are brought to the end of its log, and a document that came back after a
commit had deleted it goes again. Where nothing is behind, a space costs a look at the end of its log, and two
requests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

from worm.clock import Deadline, iso_seconds
from worm.codec.strict_json import dumps, loads_own
from worm.collections.collection import Collection, EntityOutcome
from worm.collections.entries import Change, Head, Heads
from worm.errors import Corrupt, Invalid, WormError
from worm.maintenance.materialize import Materialized, Materializer
from worm.session import Session
from worm.spaces.opening import database_id
from worm.tables.build import empty_manifest
from worm.tables.table import Table

CHUNK = 200


@dataclass
class SweepReport:
    """What a sweep of one collection found. `finished` is False when the deadline came first."""

    model: str
    listed: int = 0
    reconciled: int = 0
    recorded: int = 0
    materialized: int = 0
    """Documents that were written or deleted because the log of the model's space says so."""
    problems: dict[str, str] = field(default_factory=dict)
    finished: bool = True
    error: WormError | None = None
    """Why the model could not be swept."""
    failure: WormError | None = None
    """Why one of its documents could not be recorded although nothing is wrong with it: the first such reason."""

    def summary(self) -> dict[str, str | int | bool]:
        return {
            "model": self.model,
            "listed": self.listed,
            "reconciled": self.reconciled,
            "recorded": self.recorded,
            "materialized": self.materialized,
            "problems": len(self.problems),
            "finished": self.finished,
        }


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
        progress: Callable[[int], None] = lambda listed: None,
    ) -> list[SweepReport]:
        """Sweep the models (default: all), one after the other, until the deadline. `resume` False: from the start.
        `progress` hears how many documents of the model are done."""
        self._session.refresh()
        names = sorted(self._session.schema.models) if models is None else list(models)
        spaces = {name: self._materialize(name, deadline) for name in self._spaces(names)}
        reports = [self._attempt_model(model, deadline, resume, progress) for model in names]
        for report in reports:
            found = spaces.pop(self._session.schema.model(report.model).space or "", None)  # told once
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
        """One space that cannot be read must not keep the others from it."""
        try:
            return self._materializer.run(database_id(space), deadline)
        except WormError as error:
            return error

    def _attempt_model(
        self, model: str, deadline: Deadline, resume: bool, progress: Callable[[int], None]
    ) -> SweepReport:
        """One model that cannot be swept must not keep the others from it."""
        try:
            return self._sweep_model(model, deadline, resume, progress)
        except WormError as error:
            return SweepReport(model, finished=False, error=error)

    def _sweep_model(
        self, model: str, deadline: Deadline, resume: bool, progress: Callable[[int], None]
    ) -> SweepReport:
        table = self._session.table(model)
        definition = table.collection.definition
        report = SweepReport(model)
        if not definition.oplog:
            if definition.keeps_manifest:
                self._sweep_documents(table, report)
                progress(report.listed)
            return report
        heads = (table.heads.read() or Heads(model)).heads
        after = self._cursor(table.collection) if resume else None
        for suspects, reached in self._suspects(table.collection, heads, after, report):
            self._reconcile(table, suspects, heads, report)
            progress(report.listed)
            if deadline() <= 0 and reached is not None:
                self._save_cursor(table.collection, reached)
                report.finished = False
                return report
        if after is not None:
            self._save_cursor(table.collection, "")
        table.complete()
        return report

    def _suspects(
        self, collection: Collection, heads: dict[str, Head], after: str | None, report: SweepReport
    ) -> Iterator[tuple[list[str], str | None]]:
        """Chunks of ids to look at, with the key that the listing has reached (None: its end)."""
        seen: set[str] = set()
        suspects: list[str] = []
        has_versions = False
        for entity_id, version in collection.latest_versions(after):
            report.listed += 1
            seen.add(entity_id)
            has_versions = has_versions or version.version_id is not None
            head = heads.get(entity_id)
            if head is None or not head.names(version):
                suspects.append(entity_id)
            if len(suspects) >= CHUNK:
                yield suspects, version.key
                suspects = []
        for entity_id, head in heads.items():
            beyond = after is None or collection.documents.key(entity_id) > after
            if head.live and beyond and entity_id not in seen:
                suspects.append(entity_id)
        if not has_versions:
            suspects += _behind(collection, heads)
        yield sorted(set(suspects)), None

    def _reconcile(self, table: Table, suspects: list[str], heads: dict[str, Head], report: SweepReport) -> None:
        def one(entity_id: str) -> EntityOutcome:
            outcome = table.collection.reconcile(entity_id, heads.get(entity_id), heads.get(entity_id))
            return self._mended(table, entity_id, outcome) if outcome.is_late else outcome

        outcomes = self._session.in_parallel(one, suspects)
        for entity_id, outcome in zip(suspects, outcomes, strict=True):
            report.reconciled += 1
            report.recorded += outcome.appended
            report.materialized += outcome.is_mended
            if outcome.error is not None:
                report.problems[entity_id] = str(outcome.error)
                if isinstance(outcome.error, WormError) and not isinstance(outcome.error, Invalid):
                    report.failure = report.failure or outcome.error
        changes: list[Change] = [outcome.change for outcome in outcomes if outcome.change is not None]
        if changes:
            table.fold(changes)

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
            return None if found is None else str(loads_own(found.body, key=key).get("after", "")) or None
        except Corrupt:
            return None  # a whole pass instead; the next cursor replaces it

    def _save_cursor(self, collection: Collection, after: str) -> None:
        self._session.store.put(_cursor_key(collection), dumps({"version": 1, "after": after}))


def _cursor_key(collection: Collection) -> str:
    return f".worm.sweep/{collection.name}.json"


def _behind(collection: Collection, heads: dict[str, Head]) -> list[str]:
    """Entities with entries that the heads do not know. Without versions an equal etag does not prove an equal head."""
    return [
        entity_id
        for entity_id, seqs in collection.recorded_seqs().items()
        if (head := heads.get(entity_id)) is None or head.seq < max(seqs)
    ]
