"""What the executors do for a rebuild. Every task only writes files named by their content, and returns their names. A
task that is repeated, or runs twice at the same time, writes the same files or others; only the result of a finished
task counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from worm.collections import IdRange
from worm.spark.cluster import JobSpec, parallelism
from worm.spark.plan import far_apart, tasks_for
from worm.spark.staging import (
    Answer,
    BuiltPart,
    CatchUp,
    Kind,
    PartPlan,
    Question,
    SourceRows,
    StagedFile,
    Staging,
    build_part,
    catch_up,
    survey,
)
from worm.tables import Piece, Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

T = TypeVar("T")
R = TypeVar("R")


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


@dataclass(frozen=True, slots=True)
class Walked(Generic[R]):
    """What a task made of its range, and what it left of it."""

    what: R
    rest: tuple[IdRange, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """A partition of the table to compare with the staged files of its range."""

    kind: Kind
    piece: Piece
    within: IdRange
    files: tuple[str, ...]


def stage(spec: JobSpec, within: IdRange) -> Walked[list[StagedFile]]:
    rows = SourceRows(spec.collection(), within)
    return Walked(Staging(spec.collection()).put_all(rows), rows.rest)


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


def staged_frame(spark: SparkSession, files: Sequence[StagedFile]) -> DataFrame:
    """The names of staged files, for tasks that read them."""
    tasks = tasks_for(sum(file.count for file in files), parallelism(spark))
    names = spark.sparkContext.parallelize([(file.file,) for file in files], tasks)
    return spark.createDataFrame(names, "file string")


def for_spec(work: Callable[[JobSpec, T], R], spec: JobSpec) -> Callable[[T], R]:
    return partial(work, spec)
