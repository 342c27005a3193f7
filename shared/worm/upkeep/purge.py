"""purge: on a schedule, removes expired trash, snapshots beyond their limits, and table files that no root has named
for a day. `purge_answers` is for stores without lifecycle rules, such as directories.

The dates in a listing show which tombstones can have expired; only those are read. A corrupt tombstone is reported and
left alone. It has a deadline; the next run finds what is left.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import timedelta

from worm.clock import Deadline
from worm.collections import Collection, Trashed, layout
from worm.errors import Corrupt, Invalid, WormError
from worm.store import Listed, Won, in_chunks
from worm.upkeep.session import Session

CHUNK = 64
ANSWERS = ".worm.api"
"""The model name in the report about saved answers."""
ANSWERS_KEPT = timedelta(hours=25)
"""An answer is valid for 24 hours by its writer's clock; listings have the date of the store."""


@dataclass
class PurgeReport:
    """The result of purging one collection (or of a dry run). `finished` is False if time ran out; `problems` has
    reasons by id or key."""

    model: str
    purged: list[str] = field(default_factory=list)
    pruned: list[str] = field(default_factory=list)
    table_files: int = 0
    problems: dict[str, str] = field(default_factory=dict)
    finished: bool = True

    def summary(self) -> dict[str, str | int | bool]:
        return {
            "model": self.model,
            "purged": len(self.purged),
            "pruned": len(self.pruned),
            "table_files": self.table_files,
            "problems": len(self.problems),
            "finished": self.finished,
        }


class Purge:
    """The purge worker."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def run(
        self, deadline: Deadline, models: Iterable[str] | None = None, *, dry_run: bool = False
    ) -> list[PurgeReport]:
        """Purge and prune the models (default: all), one after the other, until the deadline."""
        self._session.refresh()
        names = sorted(self._session.schema.models) if models is None else list(models)
        return [self._purge_model(model, deadline, dry_run) for model in names]

    def purge_answers(self, *, dry_run: bool = False) -> PurgeReport:
        """Remove answers that the HTTP API no longer repeats; `purged` has their keys. An answer that a new call has
        reused in the meantime stays."""
        report, before = PurgeReport(ANSWERS), self._session.clock.now() - ANSWERS_KEPT
        old = (one for one in self._session.store.list(layout.ANSWERS_PREFIX) if one.last_modified < before)

        def remove(one: Listed) -> bool | WormError:
            try:
                return dry_run or isinstance(self._session.store.delete_if_match(one.key, one.etag), Won)
            except WormError as error:
                return error

        for chunk in in_chunks(old, CHUNK):
            for one, outcome in zip(chunk, self._session.in_parallel(remove, chunk), strict=True):
                if isinstance(outcome, WormError):
                    report.problems[one.key] = str(outcome)
                elif outcome:
                    report.purged.append(one.key)
        return report

    def _purge_model(self, model: str, deadline: Deadline, dry_run: bool) -> PurgeReport:
        table = self._session.table(model)
        collection, report = table.collection, PurgeReport(model)
        if collection.definition.soft_delete:
            self._purge_expired(collection, report, deadline, dry_run)
        if deadline() <= 0:
            report.finished = False
            return report
        if collection.definition.snapshots.enabled:
            pruned = collection.snapshots.prune(self._session.clock.now(), dry_run=dry_run, deadline=deadline)
            report.pruned = pruned.removed
            report.finished = report.finished and pruned.finished
        report.table_files = table.collect(dry_run=dry_run)
        if collection.definition.lake is not None:
            try:
                report.table_files += len(self._session.lake(model).vacuum(dry_run=dry_run))
            except (Corrupt, Invalid) as damage:  # of the log; the sweep reports it too
                report.problems[damage.key or ""] = str(damage)
        return report

    def _purge_expired(self, collection: Collection, report: PurgeReport, deadline: Deadline, dry_run: bool) -> None:
        trash = collection.trash

        def corrupt(damage: Corrupt) -> None:
            report.problems[damage.key or ""] = str(damage)

        def one(item: Trashed) -> bool | WormError:
            try:
                return dry_run or trash.purge(item.id, force=True, expected=item)
            except WormError as error:
                return error

        expired = trash.expired(self._session.clock.now(), on_corrupt=corrupt)
        chunks = in_chunks(expired, CHUNK)
        while deadline() > 0:
            chunk = next(chunks, None)
            if chunk is None:
                return
            for item, outcome in zip(chunk, self._session.in_parallel(one, chunk), strict=True):
                if isinstance(outcome, WormError):
                    report.problems[item.id] = str(outcome)
                elif outcome:
                    report.purged.append(item.id)
        report.finished = False
