"""Restores and audits claims of unique values in many tasks: each gets one slice of their names
(`collections/claim_slices.py`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.functions import broadcast, col, shiftright

from worm.collections import Collection, claim_slices
from worm.spark.cluster import JobSpec
from worm.spark.frames import Values, batches_of, rows_of, slots
from worm.spark.rebuild_tasks import staged_frame
from worm.tables import StagedFile, Staging

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WANTED = pa.schema([("name", pa.int64()), ("id", pa.string()), ("field", pa.string()), ("value", pa.string())])
WANTED_DDL = "name bigint, id string, field string, value string"
"""`name`: the first digits of the claim's name, as a number."""
SLICED_DDL = f"slice int, slot int, {WANTED_DDL}"
FOUND = pa.schema([("kind", pa.string()), ("key", pa.string()), ("detail", pa.string())])
FOUND_DDL = "kind string, key string, detail string"
Compare = Callable[[Collection, Iterable[tuple[str, str, str]], int, int], Iterable[tuple[str, str, str]]]
"""`audit_slice` or `restore_slice`."""


def restore_claims(spark: SparkSession, spec: JobSpec, files: Sequence[StagedFile]) -> tuple[int, int]:
    """Bring the claims in line with the staged rows, while saves continue. The number of claims written, corrected or
    removed, and of values that several documents have."""
    if not spec.collection().definition.unique_indexes:
        return 0, 0
    spark.sparkContext.setJobDescription(f"{spec.model}: claims")
    wanted = staged_frame(spark, files).mapInArrow(partial(_staged, spec), WANTED_DDL)
    values = sum(file.live for file in files) * len(spec.collection().definition.unique_indexes)
    compared = compared_claims(spark, spec, wanted, claim_slices.restore_slice, values)
    counts = {row["kind"]: row["count"] for row in compared.groupBy("kind").count().collect()}
    return counts.get(claim_slices.CHANGED, 0), counts.get("unique-conflict", 0)


def compared_claims(spark: SparkSession, spec: JobSpec, wanted: DataFrame, compare: Compare, values: int) -> DataFrame:
    """What `compare` finds in each slice, including slices without wanted values. There are about so many
    values."""
    slices = claim_slices.slices_needed(spec.collection(), values)
    numbers = slots(slices)
    every = [(number, slot, None, None, None, None) for number, slot in enumerate(numbers)]
    by_slice = spark.createDataFrame(list(enumerate(numbers)), "slice int, slot int")
    sliced = wanted.withColumn("slice", shiftright(col("name") * slices, claim_slices.NAME_BITS).cast("int"))
    together = (
        sliced.join(broadcast(by_slice), "slice")
        .unionByName(spark.createDataFrame(every, SLICED_DDL).coalesce(1))
        .repartition(slices, "slot")
        .sortWithinPartitions("slice", "id")
    )
    found = together.select("slice", "id", "field", "value")
    return found.mapInArrow(partial(_compare, spec, compare, slices), FOUND_DDL)


def _staged(spec: JobSpec, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    staging = Staging(spec.collection())
    rows = ((row.id, row.row) for (file,) in rows_of(batches) for row in staging.rows(file))
    return batches_of(claim_slices.claim_rows(spec.collection(), rows), WANTED)


def _compare(
    spec: JobSpec, compare: Compare, slices: int, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    def found() -> Iterator[Values]:
        for number, rows in groupby(rows_of(batches), key=lambda row: int(row[0])):
            wanted = ((entity_id, field, text) for _, entity_id, field, text in rows if entity_id is not None)
            yield from compare(spec.collection(), wanted, number, slices)

    return batches_of(found(), FOUND)
