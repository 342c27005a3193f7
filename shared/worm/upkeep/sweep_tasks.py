"""The sweep of one collection by many tasks, for collections that are too large for the function `sweep`.

Each task takes a range of ids and does what a pass of the function does (`sweep_pass.py`), in the same bounded memory:
it compares a listing with the heads, or with the manifest of a model without an oplog, and records what no event
reported. It folds nothing. Its changes go into change sets, as those of capture do, and one process folds them one
after the other, so that tasks do not compete for a root. Where a stack is deployed, the function `tables` gets them
too; folding one twice changes nothing. If the process is killed before it has folded them, the entries are recorded,
and the next sweep finds that the heads lack them.

The listing comes from LIST requests, or from an inventory, which is a hint: a head that is newer than its *horizon* is
only doubted if the inventory has a newer version. Doubt costs a look at the entity, nothing else.

A run that reached its end is stored as a pass in the cursor of the model, so that the function does not begin one;
unless a document of a model in a space came back after a commit had deleted it: only the function may delete it again,
so it begins a pass, or goes on with its own.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import islice

from worm.clock import forever
from worm.collections import (
    Change,
    ChangeSet,
    Collection,
    EntityOutcome,
    Head,
    IdRange,
    Survey,
    division,
)
from worm.errors import Invalid, Unavailable
from worm.store import Version, Won, in_parallel
from worm.tables import Table
from worm.upkeep.session import Session
from worm.upkeep.sweep_cursor import SweepCursor
from worm.upkeep.sweep_listing import RangeListing, Seen
from worm.upkeep.sweep_pass import DocumentPass, HistoryPass, How, SweepReport

IDS_PER_TASK = 50_000
SHOWN_MAX = 100
Row = tuple[str, Version]
"""An id, and its newest version in an inventory."""


@dataclass(frozen=True, slots=True)
class _Shown:
    """What an inventory shows of a range, by ids in ascending order. `horizon`: heads from before are in it."""

    rows: Sequence[Row]
    horizon: str

    def list(self, within: IdRange, see: Seen) -> set[str]:
        start = bisect_left(self.rows, within.start, key=_id_of)
        end = len(self.rows) if within.end is None else bisect_left(self.rows, within.end, key=_id_of)
        for entity_id, version in self.rows[start:end]:
            see(entity_id, version, False)
        return {entity_id for entity_id, _ in self.rows[start:end]}


@dataclass
class SweptRange:
    """What a task found, and the change sets that it wrote."""

    listed: int = 0
    reconciled: int = 0
    recorded: int = 0
    problems: int = 0
    late: int = 0
    """Documents that only the function may delete again."""
    change_sets: list[str] = field(default_factory=list)
    shown: list[tuple[str, str]] = field(default_factory=list)
    """Some of the problems: the key, and the reason."""

    @classmethod
    def of(
        cls, session: Session, model: str, within: IdRange, shown: tuple[Iterable[Row], str] | None = None
    ) -> SweptRange:
        """Record what no event reported in this range. `shown`: what an inventory shows of it, in place of listing it,
        and its horizon."""
        table, report, result = session.table(model), SweepReport(model), cls()
        how = How(forever, resume=False, folds=True, progress=lambda listed: None)
        kind = _Histories if table.collection.definition.oplog else _Documents
        swept = kind(session, table, how, report)
        swept.until, swept.shown = within.end, None if shown is None else _held(*shown)
        swept.run(SweepCursor(within.start))
        result.change_sets = swept.written
        result.listed, result.reconciled, result.recorded = report.listed, report.reconciled, report.recorded
        result.problems, result.late = len(report.problems), len(swept.late)
        documents = table.collection.documents
        result.shown = [(documents.key(one), reason) for one, reason in list(report.problems.items())[:SHOWN_MAX]]
        return result


class TaskSweep:
    """What is done once, before and after the tasks."""

    def __init__(self, collection: Collection) -> None:
        self._table = Table(collection)

    def known(self) -> int:
        """How many documents the table has, as its root says."""
        table = self._table
        root = table.heads.root() if table.collection.definition.oplog else table.manifest.root()
        return 0 if root is None else root.count

    def check(self) -> None:
        if self._table.must_be_built():
            raise Invalid(
                f"the table of {self._table.collection.name} is missing or made for another schema",
                key=self._table.manifest.key,
                hint="run the Spark job `rebuild` first",
            )

    def ranges(self, least: int, documents: int = 0) -> list[IdRange]:
        """One for each task. `least`: how many at least; `documents`: about how many there are, if that is known."""
        known = max(self.known(), documents)
        return self._table.collection.ranges(max(least, known // IDS_PER_TASK))

    def fold(self, key: str) -> int:
        """Fold one change set. If it is gone, `tables` has folded it, or the next sweep finds its entities."""
        table = self._table
        found = table.collection.store.get(key)
        if found is None:
            return 0
        changes = ChangeSet.decode(found.body, key).changes
        if table.collection.definition.oplog:
            table.fold(changes)
        else:
            table.fold_documents((change.id for change in changes), in_parallel)
        return len(changes)

    def finish(self, began: datetime, listed: int, late: int) -> None:
        """Store the pass, which listed so many documents. `late`: documents that only the function may delete again."""
        collection = self._table.collection
        if not late:
            cursor = replace(SweepCursor().begun(began), listed=listed, by_spark=True)
            cursor.finished(collection.clock.now()).save(collection)
        elif not SweepCursor.read(collection).start:  # a pass that goes on would never come to its end
            SweepCursor().save(collection)


def _held(rows: Iterable[Row], horizon: str) -> _Shown | None:
    """None: there are too many to hold, because the table that gave the plan knows few of them. Then the range is
    listed, part by part."""
    kept = list(islice(rows, division.IDS_OF_A_TASK_MAX + 1))
    return _Shown(sorted(kept, key=_id_of), horizon) if len(kept) <= division.IDS_OF_A_TASK_MAX else None


class _InTask:
    """What differs in a task: the source of the listing, and change sets in place of folds."""

    shown: _Shown | None = None
    collection: Collection
    session: Session

    def __init__(self, session: Session, table: Table, how: How, report: SweepReport) -> None:
        super().__init__(session, table, how, report)  # type: ignore[call-arg]  # of the pass that it is mixed into
        self.changes: list[Change] = []
        self.written: list[str] = []
        self.late: list[str] = []

    def listed(self, within: IdRange, see: Seen) -> tuple[IdRange, set[str]]:
        if self.shown is not None:
            return within, self.shown.list(within, see)
        listing = RangeListing(self.collection, forever, see)
        return listing.run(within), listing.ids

    def fold(self) -> None:
        resolver, name = self.collection.resolver, self.collection.name
        for some in ChangeSet.split(name, self.changes):
            key = resolver.change_set_key(name, self.session.ids.ulid())
            if not isinstance(self.collection.store.put_if_absent(key, some.encode()), Won):
                raise Unavailable("another change set already has this name", key=key, hint="the task is retried")
            self.written.append(key)
        self.changes = []

    def complete(self) -> None:
        """Tables are merged elsewhere."""


class _Histories(_InTask, HistoryPass):
    def is_settled(self, head: Head) -> bool:
        return self.shown is None or head.ts < self.shown.horizon

    def _mended(self, entity_id: str, outcome: EntityOutcome) -> EntityOutcome:
        """A job may not delete documents."""
        self.late.append(entity_id)
        return outcome

    def serve(self, damaged: Sequence[str]) -> None:
        """Their rows follow with the next rebuild."""


class _Documents(_InTask, DocumentPass):
    def work(self, suspects: Mapping[str, Survey]) -> None:
        self.keep_snapshots(suspects)
        self.changes += [Change(entity_id, None, None) for entity_id in suspects]
        self.fold()  # who folds a change set reads all its documents, so none has more than a chunk


def _id_of(row: Row) -> str:
    return row[0]
