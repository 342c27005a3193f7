"""How a job divides a collection among its tasks.

A full rebuild and compact_oplog go through their range step by step, and only need a hint where to begin
(`planned_ranges`): a task that finds too many ids hands back the rest of its range (`collections/walks.py`). A task of
an incremental rebuild compares a range as a whole (`compared_ranges`); if it finds too many ids, it says so
(`listings.py`).

`verify` and `verify --fix` know what they hold before they start. A *share* is what one task of them works on: a range
of ids, divided into portions (`collections/portions.py`) that it takes one after the other, so that its memory does not
depend on the range. Tasks count the ids in listings, in rounds: each lists a bounded part of its range, and what is
left is divided further for the next round. The table's ids divide the ranges, too: it may have rows of millions of
documents that are gone. It is not enough alone: somebody may have imported millions of documents between two ids that
it knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from worm.collections import (
    IDS_PER_RANGE_MAX,
    IdRange,
    KnownIds,
    ListedPortions,
    counted,
    is_behind,
    known_ids,
    portions,
    probed_ranges,
    ranges_between,
    thinned,
)
from worm.spark.cluster import JobSpec, parallelism
from worm.spark.plan import grouped, tasks_for
from worm.spark.rebuild_tasks import for_spec, run_rounds

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

INLINE_IDS = 5_000
"""The driver counts this many by itself, before it starts tasks."""


@dataclass(frozen=True, slots=True)
class Share:
    """Neighboring portions."""

    portions: tuple[IdRange, ...]

    @property
    def within(self) -> IdRange:
        return IdRange(self.portions[0].start, self.portions[-1].end)


def planned_shares(spark: SparkSession, spec: JobSpec) -> list[Share]:
    """Shares of about `IDS_PER_RANGE_MAX` ids at most, in portions of about `PORTION_IDS`. Counting them takes one LIST
    for a thousand keys, which is 1 % of the requests of a job that reads what it lists."""
    collection, size = spec.collection(), portions.PORTION_IDS
    if collection.definition.is_singleton:
        return [Share((IdRange(),))]
    known, found = known_ids(collection), _counted(spark, spec)
    starts = {one.start for one in found}.union(thinned(known.starts, -(-known.count // size))) if known.count else ()
    every = ranges_between(sorted(starts)[1:]) if starts else found
    return [Share(tuple(group)) for group in _grouped(every, max(known.count, len(found) * size), spark)]


def planned_ranges(spark: SparkSession, spec: JobSpec) -> list[IdRange]:
    """Ranges for tasks that are prepared for many more ids. If a table knows the ids, it gives the plan, otherwise some
    listings of one key do."""
    collection = spec.collection()
    return _known_ranges(known_ids(collection), spark) or probed_ranges(collection, parallelism(spark))


def compared_ranges(spark: SparkSession, spec: JobSpec) -> list[IdRange]:
    """Ranges for tasks that can handle some more ids. The table gives the plan, unless its ends are far behind."""
    collection = spec.collection()
    known = known_ids(collection)
    ranges = _known_ranges(known, spark)
    return (
        ranges if ranges and not is_behind(collection, known) else [one.within for one in planned_shares(spark, spec)]
    )


def _known_ranges(known: KnownIds, spark: SparkSession) -> list[IdRange]:
    """Nothing if no table knows the ids well: its partitions have at most 100,000 rows."""
    if not 0 < known.count <= 2 * IDS_PER_RANGE_MAX * len(known.starts):
        return []
    ranges = ranges_between(thinned(known.starts, max(2, -(-known.count // portions.STEP)))[1:])
    return [Share(tuple(group)).within for group in _grouped(ranges, known.count, spark)]


def _grouped(ranges: Sequence[IdRange], count: int, spark: SparkSession) -> list[list[IdRange]]:
    """Neighbors together, for ranges of about this many ids."""
    return grouped(ranges, tasks_for(count, parallelism(spark)))


def _counted(spark: SparkSession, spec: JobSpec) -> list[IdRange]:
    first = counted(spec.collection(), IdRange(), INLINE_IDS)
    rest = [Share(tuple(group)).within for group in grouped(first.rest, parallelism(spark))] if first.rest else []
    found = [first, *run_rounds(spark, for_spec(count_range, spec), rest, f"{spec.model}: count")]
    return sorted((one for each in found for one in each.portions), key=lambda one: one.start)


def count_range(spec: JobSpec, within: IdRange) -> ListedPortions:
    return counted(spec.collection(), within)
