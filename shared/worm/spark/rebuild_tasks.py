"""How the driver runs tasks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Protocol, TypeVar

from worm.collections import IdRange, division
from worm.spark.cluster import JobSpec, parallelism
from worm.tables import StagedFile

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

T = TypeVar("T")
R = TypeVar("R")


def far_apart(count: int) -> list[int]:
    """The numbers below `count` in an order in which neighbors are far apart, and the first ones are spread evenly over
    all (by reversed bits: 0 4 2 6 1 5 3 7). Tasks that run at the same time then read ranges of keys that S3 has split,
    or can split."""
    bits = max(1, (count - 1).bit_length())
    return sorted(range(count), key=lambda number: int(f"{number:0{bits}b}"[::-1], 2))


def run(spark: SparkSession, work: Callable[[T], R], items: Sequence[T], about: str) -> list[R]:
    """One task per item; results in the order of the items. Tasks that run at the same time work far apart."""
    if not items:
        return []
    context, order = spark.sparkContext, far_apart(len(items))
    context.setJobDescription(about)
    made = context.parallelize([items[at] for at in order], len(items)).map(work).collect()
    return [one for _, one in sorted(zip(order, made, strict=True), key=itemgetter(0))]


class HasRest(Protocol):
    @property
    def rest(self) -> tuple[IdRange, ...]: ...


W = TypeVar("W", bound=HasRest)


def run_rounds(spark: SparkSession, work: Callable[[IdRange], W], ranges: Sequence[IdRange], about: str) -> list[W]:
    """One task per range; what tasks leave of their ranges is for the tasks of the next round."""
    found, left = list[W](), list(ranges)
    while left:
        made = run(spark, work, left, about)
        found += made
        left = [one for each in made for one in each.rest]
    return found


def staged_frame(spark: SparkSession, files: Sequence[StagedFile]) -> DataFrame:
    """The names of staged files, for tasks that read them."""
    tasks = division.tasks_for(sum(file.count for file in files), parallelism(spark))
    names = spark.sparkContext.parallelize([(file.file,) for file in files], tasks)
    return spark.createDataFrame(names, "file string")


def for_spec(work: Callable[[JobSpec, T], R], spec: JobSpec) -> Callable[[T], R]:
    return partial(work, spec)
