"""The sweep as a Spark job (`upkeep/sweep_tasks.py`).

The listing comes from LIST requests, or from an S3 Inventory, which costs none of them. An inventory is up to two days
behind (`BEHIND`), so a head that is newer than that is only doubted if the inventory has a newer version. A pass is not
newer than what it saw: if no new inventories come, the function takes over.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING

from worm.clock import iso_seconds
from worm.collections import IdRange, KeyKind
from worm.errors import Invalid, NotFound
from worm.spark.cluster import JobSpec, parallelism
from worm.spark.inventory import CONFIGURE, MANIFEST_NAME, Inventory, InventoryFile, open_inventory
from worm.spark.rebuild_tasks import run
from worm.store import Version, open_store
from worm.upkeep import Session, SweptRange, TaskSweep

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BEHIND = timedelta(days=2)
ROW_BYTES = 50
"""About how many bytes a row of an inventory takes at least, compressed."""
SHOWN_MAX = 100
_DATED = re.compile(r"2\d{3}-\d\d-\d\dT\d\d-\d\dZ/manifest\.json")
Row = tuple[str, Version]
"""An id, and its newest version in an inventory."""


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
    collection, definition = spec.collection(), spec.collection().definition
    if not definition.oplog and not definition.keeps_manifest:
        return report
    if inventory is not None and not inventory.has_versions:
        raise Invalid("the inventory has only current versions", path="inventory", hint=CONFIGURE)
    tasks, keys = TaskSweep(collection), list[str]()
    tasks.check()
    began = _beginning(collection.clock.now(), inventory)
    for found in _swept(spark, spec, inventory, _ranges(spark, tasks, inventory)):
        report.add(found)
        keys += found.change_sets
    for key in keys:
        report.folded += tasks.fold(key)
    tasks.finish(began, report.listed, report.late)
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
    return not documents or TaskSweep(spec.collection()).known() > documents


def _ranges(spark: SparkSession, tasks: TaskSweep, inventory: Inventory | None) -> list[IdRange]:
    rows = 0 if inventory is None else sum(file.size for file in inventory.files) // ROW_BYTES
    return tasks.ranges(parallelism(spark), rows)


def _swept(
    spark: SparkSession, spec: JobSpec, inventory: Inventory | None, ranges: Sequence[IdRange]
) -> Iterator[SweptRange]:
    about = f"{spec.model}: sweep"
    if inventory is None:
        yield from run(spark, partial(_sweep, spec), ranges, about)
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


def _sweep(spec: JobSpec, within: IdRange) -> SweptRange:
    return SweptRange.of(Session(spec.store(), schema=spec.schema()), spec.model, within)


def _sweep_shown(spec: JobSpec, horizon: str, within: IdRange, rows: Iterator[Row]) -> SweptRange:
    return SweptRange.of(Session(spec.store(), schema=spec.schema()), spec.model, within, (rows, horizon))


def _itself(number: int) -> int:
    return number
