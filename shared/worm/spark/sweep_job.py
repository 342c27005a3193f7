"""The sweep as a Spark job, for collections that are too large for the function `sweep`.

Each task takes a range of ids and does what a pass of the function does (`upkeep/sweep_pass.py`), in the same
bounded memory: it compares a listing with the heads, or with the manifest of a model without an oplog, and records what
no event reported. It folds nothing. Its changes go into change sets, as those of capture do, and the driver folds them
one after the other, so that tasks do not compete for a root. Where a stack is deployed, the function `tables` gets them
too; folding one twice changes nothing. If the job is killed before it has folded them, the entries are recorded,
and the next sweep finds that the heads lack them.

The listing comes from LIST requests, or from an S3 Inventory, which costs none of them. An inventory is a hint: it is
up to two days behind (`BEHIND`), so a head that is newer than that is only doubted if the inventory has a newer
version. Doubt costs a look at the entity, nothing else.

A run that reached its end is stored as a pass in the cursor of the model, so that the function does not begin one;
unless a document of a model in a space came back after a commit had deleted it: only the function may delete it again,
so it begins a pass, or goes on with its own.
A pass is not newer than what it saw: if no new inventories come, the function takes over.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from worm.clock import forever, iso_seconds
from worm.collections import (
    CONFIGURE,
    MANIFEST_NAME,
    Change,
    ChangeSet,
    Collection,
    EntityOutcome,
    Head,
    IdRange,
    Inventory,
    InventoryFile,
    KeyKind,
    Survey,
    open_inventory,
    plan_ranges,
)
from worm.errors import Invalid, NotFound, Unavailable
from worm.spark import plan
from worm.spark.cluster import JobSpec, parallelism
from worm.spark.rebuild_tasks import run
from worm.store import Version, Won, in_parallel, open_store
from worm.tables import Table
from worm.upkeep import (
    DocumentPass,
    HistoryPass,
    How,
    RangeListing,
    Seen,
    Session,
    SweepCursor,
    SweepReport,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BEHIND = timedelta(days=2)
IDS_PER_TASK = 50_000
ROW_BYTES = 50
"""About how many bytes a row of an inventory takes at least, compressed."""
SHOWN_MAX = 100
_DATED = re.compile(r"2\d{3}-\d\d-\d\dT\d\d-\d\dZ/manifest\.json")
Row = tuple[str, Version]
"""An id, and its newest version in an inventory."""


@dataclass(frozen=True, slots=True)
class Shown:
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


@dataclass
class SweepJobReport:
    """What a run found in one model, and how many changes it folded."""

    model: str
    listed: int = 0
    reconciled: int = 0
    recorded: int = 0
    folded: int = 0
    problems: int = 0
    late: int = 0
    shown: list[tuple[str, str]] = field(default_factory=list)

    def add(self, found: SweptRange) -> None:
        self.listed += found.listed
        self.reconciled += found.reconciled
        self.recorded += found.recorded
        self.problems += found.problems
        self.late += found.late
        self.shown += found.shown[: SHOWN_MAX - len(self.shown)]

    def summary(self) -> str:
        found = f"{self.listed:,} listed, {self.reconciled:,} checked, {self.recorded:,} oplog entries written"
        late = f", {self.late:,} left to the function" if self.late else ""
        return f"{self.model}: {found}, {self.folded:,} changes folded, {self.problems:,} not recorded{late}"


def sweep(spark: SparkSession, spec: JobSpec, inventory: Inventory | None = None) -> SweepJobReport:
    """Sweep one model: record in tasks, fold in the driver."""
    report = SweepJobReport(spec.model)
    definition, table = spec.collection().definition, Table(spec.collection())
    if not definition.oplog and not definition.keeps_manifest:
        return report
    _check(table, inventory)
    clock, keys = table.collection.clock, list[str]()
    cursor = SweepCursor().begun(_beginning(clock.now(), inventory))
    for found in _swept(spark, spec, inventory, _ranges(spark, table, inventory)):
        report.add(found)
        keys += found.change_sets
    for key in keys:
        report.folded += _fold(table, key)
    if not report.late:
        replace(cursor, listed=report.listed, by_spark=True).finished(clock.now()).save(table.collection)
    elif not SweepCursor.read(table.collection).start:  # a pass that goes on would never come to its end
        SweepCursor().save(table.collection)
    return report


def inventory_at(url: str, of: str, endpoint_url: str | None) -> Inventory:
    """The inventory with this `manifest.json`, or the newest one of the configuration whose folder it is. `of`: the URL
    of the store."""
    folder, _, name = url.rpartition("/")
    if name == MANIFEST_NAME:
        return open_inventory(url, of, endpoint_url)
    url = f"{folder}/{name}/" if name else url
    keys = (one.key for one in open_store(url, endpoint_url=endpoint_url).list("2"))  # of folders that are dates
    newest = max((key for key in keys if _DATED.fullmatch(key)), default=None)
    if newest is None:
        hint = "name the folder <destination prefix>/<source bucket>/<configuration>/, or a manifest.json"
        raise NotFound(f"there is no inventory at {url}", hint=hint)
    return open_inventory(url + newest, of, endpoint_url)


def _beginning(now: datetime, inventory: Inventory | None) -> datetime:
    """When the pass counts as begun."""
    return now if inventory is None else min(now, inventory.created + BEHIND)


def is_larger(spec: JobSpec, documents: int) -> bool:
    """Whether the table of the model has more documents than this, as its root says. 0: any."""
    return not documents or _known(Table(spec.collection())) > documents


def _known(table: Table) -> int:
    root = table.heads.root() if table.collection.definition.oplog else table.manifest.root()
    return 0 if root is None else root.count


def _check(table: Table, inventory: Inventory | None) -> None:
    if inventory is not None and not inventory.has_versions:
        raise Invalid("the inventory has only current versions", path="inventory", hint=CONFIGURE)
    if table.must_be_built():
        raise Invalid(
            f"the table of {table.collection.name} is missing or made for another schema",
            key=table.manifest.key,
            hint="run the Spark job `rebuild` first",
        )


def _ranges(spark: SparkSession, table: Table, inventory: Inventory | None) -> list[IdRange]:
    known = _known(table)
    if inventory is not None:
        known = max(known, sum(file.size for file in inventory.files) // ROW_BYTES)
    return plan_ranges(table.collection, max(parallelism(spark), known // IDS_PER_TASK))


def _swept(
    spark: SparkSession, spec: JobSpec, inventory: Inventory | None, ranges: Sequence[IdRange]
) -> Iterator[SweptRange]:
    about = f"{spec.model}: sweep"
    if inventory is None:
        yield from run(spark, partial(sweep_range, spec), ranges, about)
        return
    context = spark.sparkContext
    context.setJobDescription(about)
    files = context.parallelize(list(inventory.files), max(1, len(inventory.files)))
    rows = files.flatMap(partial(_rows_in, spec, inventory, [one.start for one in ranges]))
    work = partial(_sweep_shown, spec, iso_seconds(inventory.created - BEHIND))
    every = context.broadcast(ranges)
    parted = rows.partitionBy(len(ranges), _itself)
    yield from parted.mapPartitionsWithIndex(
        lambda number, found: [work(every.value[number], (row for _, row in found))]
    ).collect()


def _fold(table: Table, key: str) -> int:
    """Fold one change set. If it is gone, `tables` has folded it, or the next sweep finds its entities."""
    found = table.collection.store.get(key)
    if found is None:
        return 0
    changes = ChangeSet.decode(found.body, key).changes
    if table.collection.definition.oplog:
        table.fold(changes)
    else:
        table.fold_documents((change.id for change in changes), in_parallel)
    return len(changes)


# Tasks


def _rows_in(
    spec: JobSpec, inventory: Inventory, starts: Sequence[str], file: InventoryFile
) -> Iterator[tuple[int, Row]]:
    """The newest versions of documents, each with the number of its range."""
    collection = spec.collection()
    for version in inventory.versions(file):
        info = collection.resolver.parse(version.key) if version.is_latest else None
        if info is not None and info.kind is KeyKind.DOCUMENT and info.model == collection.name and info.id:
            yield bisect_right(starts, info.id) - 1, (info.id, version)


def _sweep_shown(spec: JobSpec, horizon: str, within: IdRange, rows: Iterator[Row]) -> SweptRange:
    return sweep_range(spec, within, _shown(rows, horizon))


def _shown(rows: Iterator[Row], horizon: str) -> Shown | None:
    """None: there are too many to hold, because the table that gave the plan knows few of them. Then the range is
    listed, part by part."""
    kept = list(islice(rows, plan.IDS_OF_A_TASK_MAX + 1))
    return Shown(sorted(kept, key=_id_of), horizon) if len(kept) <= plan.IDS_OF_A_TASK_MAX else None


def sweep_range(spec: JobSpec, within: IdRange, shown: Shown | None = None) -> SweptRange:
    """Record what no event reported in this range. `shown`: in place of listing it."""
    session = Session(spec.store(), schema=spec.schema())
    table, report, result = session.table(spec.model), SweepReport(spec.model), SweptRange()
    how = How(forever, resume=False, folds=True, progress=lambda listed: None)
    kind = _Histories if table.collection.definition.oplog else _Documents
    swept = kind(session, table, how, report)
    swept.until, swept.shown = within.end, shown
    swept.run(SweepCursor(within.start))
    result.change_sets = swept.written
    result.listed, result.reconciled, result.recorded = report.listed, report.reconciled, report.recorded
    result.problems, result.late = len(report.problems), len(swept.late)
    documents = table.collection.documents
    result.shown = [(documents.key(one), reason) for one, reason in list(report.problems.items())[:SHOWN_MAX]]
    return result


class _InTask:
    """What differs in a task: the source of the listing, and change sets in place of folds."""

    shown: Shown | None = None
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


def _itself(number: int) -> int:
    return number
