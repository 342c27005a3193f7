"""What the executors do for a rebuild. Every task only writes files named by their content, and returns their names. A
task that is repeated, or runs twice at the same time, writes the same files or others; only the result of a finished
task counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from worm.collections.id_ranges import IdRange
from worm.spark.cluster import JobSpec, parallelism
from worm.spark.staging import (
    Answer,
    BuiltPart,
    CatchUp,
    Kind,
    PartPlan,
    Question,
    StagedFile,
    Staging,
    build_part,
    catch_up,
    survey,
)
from worm.store.parallel import chunked
from worm.tables.root import Piece
from worm.tables.table import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

T = TypeVar("T")
R = TypeVar("R")
ROWS_PER_TASK = 5_000
IDS_PER_RANGE_MAX = 100_000


def run(spark: SparkSession, work: Callable[[T], R], items: Sequence[T], about: str) -> list[R]:
    """One task per item; results in the order of the items."""
    if not items:
        return []
    context = spark.sparkContext
    context.setJobDescription(about)
    return context.parallelize(list(items), len(items)).map(work).collect()


@dataclass(frozen=True, slots=True)
class Comparison:
    """A partition of the table to compare with the staged files of its range."""

    kind: Kind
    piece: Piece
    within: IdRange
    files: tuple[str, ...]


def stage(spec: JobSpec, within: IdRange) -> list[StagedFile]:
    return Staging(spec.collection()).stage(within)


def ask(spec: JobSpec, questions: Sequence[Question]) -> list[Answer]:
    staging = Staging(spec.collection())
    return [survey(staging, question) for question in questions]


def build(spec: JobSpec, plans: Sequence[PartPlan]) -> list[BuiltPart]:
    """Build neighboring parts together, so that a staged file is read once for many of them."""
    staging, table = Staging(spec.collection()), Table(spec.collection())
    return [build_part(staging, table, plan) for plan in plans]


def compare(spec: JobSpec, comparison: Comparison) -> CatchUp:
    staging, table = Staging(spec.collection()), Table(spec.collection())
    tree = table.manifest if comparison.kind == "manifest" else table.heads
    (part,) = tree.pieces.get([comparison.piece.file])
    return catch_up(staging, table, part, comparison.files, comparison.within)


def tasks_for(rows: int, most: int) -> int:
    """How many tasks this much work justifies: starting one costs as much as some thousand rows."""
    return max(2, min(most, -(-rows // ROWS_PER_TASK)))


def ranges_for(known: int, most: int) -> int:
    """How many ranges to read, given the approximate number of ids from a table (0 if unknown). Few ids get few ranges,
    because the listing of each reads up to a page too far; many ids get many, however few executors there are yet."""
    return max(tasks_for(known, most), known // IDS_PER_RANGE_MAX) if known else most


def grouped(items: Sequence[T], groups: int) -> list[list[T]]:
    """Neighbors together, in at most this many groups."""
    size = max(1, -(-len(items) // max(1, groups)))
    return list(chunked(items, size))


def staged_frame(spark: SparkSession, files: Sequence[StagedFile]) -> DataFrame:
    """The names of staged files, for tasks that read them."""
    tasks = tasks_for(sum(file.count for file in files), parallelism(spark))
    names = spark.sparkContext.parallelize([(file.file,) for file in files], tasks)
    return spark.createDataFrame(names, "file string")


def for_spec(work: Callable[[JobSpec, T], R], spec: JobSpec) -> Callable[[T], R]:
    return partial(work, spec)
