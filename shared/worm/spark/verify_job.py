"""The verification of one collection, as the driver sees it: it plans ranges and adds up what the tasks found."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import StorageLevel, TaskContext
from pyspark.sql.functions import col, lit
from pyspark.sql.functions import max as newest
from pyspark.sql.functions import sum as total

from worm.collections import claim_slices, division
from worm.formats import JsonValue
from worm.spark.cluster import JobSpec, parallelism, store_at
from worm.spark.frames import BATCH_ROWS, batches_of, rows_of, slots
from worm.spark.rebuild_claims import compared_claims
from worm.spark.rebuild_index import POSTINGS_DDL, Common, common_values, sorted_postings
from worm.spark.rebuild_job import rebuild
from worm.spark.rebuild_tasks import for_spec, run
from worm.spark.shares import planned_shares
from worm.spark.verify_tasks import (
    CHECKED_DDL,
    CLAIM,
    COUNTED,
    DIFFERENCE,
    FOUND_DDL,
    REJECTED,
    SHARE_DDL,
    Mended,
    base_postings,
    check,
    compare_parts,
    mend,
    share_row,
    slice_deltas,
)
from worm.tables import COMMON_IDS, StoredIndexes, VerifyTasks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SHOWN_MAX = 1_000
DELTA_BYTES_MAX = 16 << 20
"""Larger deltas are divided among the tasks instead of being read by each."""
_PARTS = "differences/"
REPORT = pa.schema([(name, pa.string()) for name in ("model", "kind", "key", "detail")])


@dataclass
class JobReport:
    """The result of verifying one model. `shown` are the first differences."""

    model: str
    documents: int = 0
    entries: int = 0
    rejected: int = 0
    kinds: dict[str, int] = field(default_factory=dict)
    shown: list[tuple[str, str, str]] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        return not self.kinds

    def shape(self) -> dict[str, JsonValue]:
        return {
            "model": self.model,
            "documents": self.documents,
            "entries": self.entries,
            "rejected": self.rejected,
            "kinds": dict(self.kinds),
            "differences": [{"kind": kind, "key": key, "detail": detail} for kind, key, detail in self.shown],
        }

    def summary(self) -> str:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(self.kinds.items())) or "no differences"
        return f"{self.model}: {self.documents} documents, {self.entries} entries, {self.rejected} rejected: {kinds}"


def verify(spark: SparkSession, spec: JobSpec, out: str | None = None) -> JobReport:
    """Check everything that is derived from the documents. It only reads. `out`: where to write the differences, as
    Parquet."""
    spark.sparkContext.setJobDescription(f"{spec.model}: verify")
    checked = _shares(spark, spec).mapInArrow(partial(check, spec), CHECKED_DDL).persist(StorageLevel.DISK_ONLY)
    kept = [checked]
    try:
        report = JobReport(spec.model)
        updated, revision, damaged = _count(checked, report)
        # In one union: `union` of a persisted union would compute all of its frames again.
        found = [checked.filter(col("tag").isin(DIFFERENCE, REJECTED)).select("kind", "key", "detail")]
        found += _claims(spark, spec, checked, report.documents)
        found += _tables(spark, spec, updated, revision, damaged, kept)
        told = reduce(lambda one, other: one.unionByName(other), found).persist(StorageLevel.DISK_ONLY)
        counts = {row["kind"]: row["count"] for row in told.groupBy("kind").count().collect()}
        report.rejected = counts.pop(REJECTED, 0)
        report.kinds = counts
        report.shown = sorted(tuple(row) for row in told.filter(col("kind") != REJECTED).limit(SHOWN_MAX).collect())
        if out is not None:
            tasks = division.tasks_for(sum(counts.values()) + report.rejected, parallelism(spark))
            _write(spec, told.coalesce(tasks), out)
        told.unpersist()
    finally:
        for frame in kept:
            frame.unpersist()
    return report


def fix(spark: SparkSession, spec: JobSpec) -> Mended:
    """Record changes that no event reported, then rebuild tables and claims."""
    definition, total = spec.collection().definition, Mended()
    if definition.oplog:
        for one in run(spark, for_spec(mend, spec), planned_shares(spark, spec), f"{spec.model}: record"):
            total.add(one, SHOWN_MAX)
    if definition.oplog or definition.keeps_manifest:
        report = rebuild(spark, spec)
        keys = {spec.collection().documents.key(entity_id): reason for entity_id, reason in report.damaged}
        total.add(Mended(0, keys, report.damages), 2 * SHOWN_MAX)
    return total


def _shares(spark: SparkSession, spec: JobSpec) -> DataFrame:
    """One task for each share. If the deltas are large, they are divided first: otherwise every task reads them all."""
    shares = planned_shares(spark, spec)
    numbers = slots(len(shares))
    rows = [share_row(number, slot, one) for (number, slot), one in zip(enumerate(numbers), shares, strict=True)]
    planned = spark.createDataFrame(spark.sparkContext.parallelize(rows, len(rows)), SHARE_DDL)
    deltas = VerifyTasks(spec.collection()).large_deltas(DELTA_BYTES_MAX)
    if not deltas:
        return planned
    names = spark.createDataFrame(spark.sparkContext.parallelize(deltas, len(deltas)), "kind string, file string")
    starts = [one.within.start for one in shares]
    slices = names.mapInArrow(partial(slice_deltas, spec, starts, numbers), SHARE_DDL)
    together = planned.unionByName(slices).repartition(len(numbers), "slot")
    return together.sortWithinPartitions("number", "file")  # the share has no file, and comes first


def _count(checked: DataFrame, report: JobReport) -> tuple[str, int, int]:
    """The newest time and the sum of seqs of the source, and the number of damaged entities."""
    counted = checked.filter(col("tag") == COUNTED).groupBy("kind")
    rows = counted.agg(total("n").alias("n"), total("m").alias("m"), newest("detail").alias("updated")).collect()
    by_kind = {row["kind"]: row for row in rows}
    plain, revision = by_kind[""], by_kind["revision"]
    report.documents, report.entries = plain["n"], plain["m"]
    return plain["updated"], revision["n"], revision["m"]


def _claims(spark: SparkSession, spec: JobSpec, checked: DataFrame, documents: int) -> list[DataFrame]:
    unique = len(spec.collection().definition.unique_indexes)
    if not unique:
        return []
    rows = checked.filter(col("tag") == CLAIM)
    wanted = rows.select(
        col("n").alias("name"),
        col("kind").alias("id"),
        col("key").alias("field"),
        col("detail").alias("value"),
    )
    return [compared_claims(spark, spec, wanted, claim_slices.audit_slice, documents * unique)]


# Tables


def _tables(
    spark: SparkSession, spec: JobSpec, updated: str, revision: int, damaged: int, kept: list[DataFrame]
) -> Iterator[DataFrame]:
    """Check what belongs to the table as a whole. `kept` gets what is persisted until the end."""
    report, indexes = VerifyTasks(spec.collection()).root(updated, revision, damaged)
    if indexes is not None:
        yield _parts(spark, spec, indexes, kept)
    rows = [(one.kind, one.key, one.detail) for one in report.differences]
    yield spark.createDataFrame(rows, FOUND_DDL)


def _parts(spark: SparkSession, spec: JobSpec, indexes: StoredIndexes, kept: list[DataFrame]) -> DataFrame:
    """Check the parts of every index against their partitions."""
    starts, files = indexes.starts, [(file,) for file in indexes.partitions]
    most, pairs = parallelism(spark), indexes.count * len(starts)
    names = spark.sparkContext.parallelize(files, division.tasks_for(indexes.count, most))
    postings = spark.createDataFrame(names, "file string").mapInArrow(partial(base_postings, spec), POSTINGS_DDL)
    postings = postings.filter(col("field").isin(list(starts)))
    common: Common = {}
    if indexes.count > COMMON_IDS:
        postings = postings.persist(StorageLevel.DISK_ONLY)
        kept.append(postings)
        common = common_values(spark, postings, pairs)
    every = [(number, start, None) for number, keys in starts.items() for start in keys]
    together = postings.unionByName(spark.createDataFrame(every, POSTINGS_DDL).coalesce(1))
    compare = partial(compare_parts, spec, indexes.files, common)
    return sorted_postings(together, starts, common, pairs, most).mapInArrow(compare, FOUND_DDL)


# Reports


def _write(spec: JobSpec, found: DataFrame, out: str) -> None:
    """One file per task, named by its number: a repeated task rewrites the same file. Files of an earlier, larger
    report are removed."""
    rows = found.select(lit(spec.model).alias("model"), "kind", "key", "detail")
    write = partial(_write_part, out, spec.endpoint_url, spec.model)
    written = {row["file"] for row in rows.mapInArrow(write, "file string").collect()}
    store, ours = store_at(out, spec.endpoint_url), re.compile(rf"{_PARTS}{spec.model}-\d+\.parquet")
    for listed in list(store.list(f"{_PARTS}{spec.model}-")):
        if listed.key not in written and ours.fullmatch(listed.key):
            store.delete(listed.key)


def _write_part(
    out: str, endpoint_url: str | None, model: str, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    context = TaskContext.get()
    number = 0 if context is None else context.partitionId()
    table = pa.Table.from_batches(list(batches_of(rows_of(batches), REPORT)), schema=REPORT)
    body = io.BytesIO()
    pq.write_table(table, body, row_group_size=BATCH_ROWS)
    file = f"{_PARTS}{model}-{number:05d}.parquet"
    store_at(out, endpoint_url).put(file, body.getvalue())
    yield from batches_of([(file,)], pa.schema([("file", pa.string())]))
