"""The rebuild of one collection (`tables/tasks/rebuild.py`) with the tasks of Spark.

A task of an incremental rebuild reads the deltas of the table for its range. If they are large, other tasks read each
of them once, and Spark brings their parts to the ranges, as it does with the rows of an inventory.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from worm.collections import Collection, IdRange
from worm.spark.cluster import JobSpec, job_specs, parallelism, spark_session
from worm.spark.inventory_frames import ShownIn, Source, shown_by_range
from worm.spark.rebuild_claims import restore_claims
from worm.spark.rebuild_index import build_indexes
from worm.spark.rebuild_tasks import run, run_rounds
from worm.spark.shares import compared_ranges, planned_ranges
from worm.tables import (
    ComparedRange,
    DeltaFile,
    Hint,
    IndexPieces,
    RangeTasks,
    RebuildReport,
    StagedFile,
    StagedRange,
    Staging,
    TableRebuild,
)

if TYPE_CHECKING:
    from pyspark import RDD
    from pyspark.sql import SparkSession

T = TypeVar("T")
R = TypeVar("R")
Item = tuple[IdRange, tuple[str, ...]]
"""A range, and the staged files that have any of it."""
Hinted = tuple[int, Hint]
"""The number of a range, and a hint for it."""


def rebuild_models(url: str, endpoint_url: str | None, models: Sequence[str]) -> list[RebuildReport]:
    """Runs in the session of this process, or in a new local one with this Python."""
    specs = job_specs(url, endpoint_url, models)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = spark_session("worm-rebuild")
    return [rebuild(spark, spec) for spec in specs]


def rebuild(spark: SparkSession, spec: JobSpec) -> RebuildReport:
    """Rebuild manifest, indexes, heads, claims and sentinel of one model from its documents and their history."""
    return TableRebuild(spec.collection(), _SparkEngine(spark, spec)).run()


def rebuild_incrementally(spark: SparkSession, spec: JobSpec, source: Source | None = None) -> RebuildReport:
    """Rebuild manifest, indexes, heads and sentinel of one model: rows that a listing shows as unchanged are taken over
    from the table. `source`: an inventory in place of the listing. A table that cannot be used is rebuilt in full."""
    return TableRebuild(spec.collection(), _SparkEngine(spark, spec, source)).run_incrementally()


class _SparkEngine:
    """`source`: an inventory in place of listings."""

    def __init__(self, spark: SparkSession, spec: JobSpec, source: Source | None = None) -> None:
        self._spark = spark
        self._spec = spec
        self._source = source
        self._ranges: list[IdRange] = []
        self.most = parallelism(spark)

    def run(self, work: Callable[[Collection, T], R], items: Sequence[T], about: str) -> list[R]:
        return run(self._spark, partial(_on_collection, work, self._spec), items, f"{self._spec.model}: {about}")

    def stage(self) -> list[StagedFile]:
        spark, spec = self._spark, self._spec
        staged = run_rounds(spark, partial(stage, spec), planned_ranges(spark, spec), f"{spec.model}: stage")
        return [file for one in staged for file in one.files]

    def compare(self, deltas: Sequence[DeltaFile]) -> list[ComparedRange]:
        self._ranges = compared_ranges(self._spark, self._spec)
        hints = self._delta_hints(deltas)
        if self._source is not None:
            shown = shown_by_range(self._spark, self._spec, self._source, self._ranges).map(_shown_hint)
            hints = shown if hints is None else hints.union(shown)
        work = partial(_compare, self._spec, self._source is not None, bool(deltas))
        return self._by_range(work, [(one, ()) for one in self._ranges], hints, "compare")

    def stage_whole(self, deltas: Sequence[DeltaFile], fresh: Sequence[StagedFile]) -> list[list[StagedFile] | None]:
        items = [(one, Staging.within(fresh, one)) for one in self._ranges]
        work = partial(_stage_compared, self._spec, bool(deltas))
        return self._by_range(work, items, self._delta_hints(deltas), "stage")

    def indexes(self, files: Sequence[StagedFile]) -> dict[str, IndexPieces]:
        return build_indexes(self._spark, self._spec, files)

    def restore_claims(self, files: Sequence[StagedFile]) -> tuple[int, int]:
        return restore_claims(self._spark, self._spec, files)

    def _delta_hints(self, deltas: Sequence[DeltaFile]) -> RDD[Hinted] | None:
        if not deltas:
            return None
        starts = [one.start for one in self._ranges]
        files = self._spark.sparkContext.parallelize(deltas, len(deltas))
        return files.flatMap(partial(_divided, self._spec, starts))

    def _by_range(
        self, work: Callable[[Item, Iterable[Hint]], R], items: Sequence[Item], hints: RDD[Hinted] | None, about: str
    ) -> list[R]:
        """One task per range, with the hints of the range."""
        spark, about = self._spark, f"{self._spec.model}: {about}"
        if hints is None:
            return run(spark, partial(_without_hints, work), items, about)
        spark.sparkContext.setJobDescription(about)
        every = spark.sparkContext.broadcast(items)
        try:
            parted = hints.partitionBy(len(items), _itself)
            return parted.mapPartitionsWithIndex(
                lambda number, found: [work(every.value[number], (hint for _, hint in found))]
            ).collect()
        finally:
            every.destroy()


# What tasks do


def stage(spec: JobSpec, within: IdRange) -> StagedRange:
    return RangeTasks(spec.collection()).stage(within)


def _on_collection(work: Callable[[Collection, T], R], spec: JobSpec, item: T) -> R:
    return work(spec.collection(), item)


def _without_hints(work: Callable[[Item, Iterable[Hint]], R], item: Item) -> R:
    return work(item, ())


def _divided(spec: JobSpec, starts: Sequence[str], delta: DeltaFile) -> Iterator[Hinted]:
    return RangeTasks(spec.collection()).delta_hints(delta, starts)


def _compare(spec: JobSpec, is_listed: bool, is_sliced: bool, item: Item, hints: Iterable[Hint]) -> ComparedRange:
    return RangeTasks(spec.collection()).compare(item[0], hints, is_listed=is_listed, is_sliced=is_sliced)


def _stage_compared(spec: JobSpec, is_sliced: bool, item: Item, hints: Iterable[Hint]) -> list[StagedFile] | None:
    return RangeTasks(spec.collection()).stage_compared(*item, hints, is_sliced=is_sliced)


def _shown_hint(found: ShownIn) -> Hinted:
    return found[0], ("shown", *found[1])


def _itself(number: int) -> int:
    return number
