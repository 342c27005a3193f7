"""Restores claims of unique values in many tasks: each has the stored and wanted claims of one range of names.

The names of claims are hashes. A *slice* is a range of them, given by their first digits; the more values there are,
the more slices, so that a task never holds many claims.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.functions import broadcast, col, shiftright

from worm.collections import (
    Claims,
    Digests,
    Finding,
    UniqueValue,
    Wanted,
)
from worm.formats import JsonValue, dumps, loads
from worm.spark.cluster import JobSpec
from worm.spark.frames import Values, batches_of, rows_of, slots
from worm.spark.plan import claim_slices
from worm.spark.rebuild_tasks import staged_frame
from worm.spark.staging import StagedFile, Staging

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DIGITS = 6
WANTED = pa.schema([("name", pa.int64()), ("id", pa.string()), ("field", pa.string()), ("value", pa.string())])
WANTED_DDL = "name bigint, id string, field string, value string"
"""`name`: the first digits of the claim's name, as a number."""
SLICED_DDL = f"slice int, slot int, {WANTED_DDL}"
FOUND = pa.schema([("kind", pa.string()), ("key", pa.string()), ("detail", pa.string())])
FOUND_DDL = "kind string, key string, detail string"
Found = tuple[str, str, str]
"""A row of `FOUND`."""
Compare = Callable[[Claims, Mapping[str, Wanted], Digests], Iterable[Found]]
CHANGED = "changed"


@dataclass(frozen=True, slots=True)
class ClaimCounts:
    """The number of claims written, corrected or removed, and of values that several documents have."""

    changed: int
    conflicts: int


def restore_claims(spark: SparkSession, spec: JobSpec, files: Sequence[StagedFile]) -> ClaimCounts:
    """Bring the claims in line with the staged rows, while saves continue."""
    if not spec.collection().definition.unique_indexes:
        return ClaimCounts(0, 0)
    spark.sparkContext.setJobDescription(f"{spec.model}: claims")
    wanted = staged_frame(spark, files).mapInArrow(partial(_staged, spec), WANTED_DDL)
    values = sum(file.live for file in files) * len(spec.collection().definition.unique_indexes)
    compared = compared_claims(spark, spec, wanted, restored, values)
    counts = {row["kind"]: row["count"] for row in compared.groupBy("kind").count().collect()}
    return ClaimCounts(counts.get(CHANGED, 0), counts.get("unique-conflict", 0))


def compared_claims(spark: SparkSession, spec: JobSpec, wanted: DataFrame, compare: Compare, values: int) -> DataFrame:
    """What `compare` finds in each slice, including slices without wanted values; there are about so many values.
    Uploads and lifecycle rules leave claims behind, so there may be many more of them than values."""
    slices = claim_slices(max(values, spec.collection().claims.estimate_count()))
    numbers = slots(slices)
    every = [(number, slot, None, None, None, None) for number, slot in enumerate(numbers)]
    by_slice = spark.createDataFrame(list(enumerate(numbers)), "slice int, slot int")
    sliced = wanted.withColumn("slice", shiftright(col("name") * slices, 4 * DIGITS).cast("int"))
    together = (
        sliced.join(broadcast(by_slice), "slice")
        .unionByName(spark.createDataFrame(every, SLICED_DDL).coalesce(1))
        .repartition(slices, "slot")
        .sortWithinPartitions("slice", "id")
    )
    found = together.select("slice", "id", "field", "value")
    return found.mapInArrow(partial(_compare, spec, compare, slices), FOUND_DDL)


def wanted_rows(claims: Claims, rows: Iterable[tuple[str, Mapping[str, JsonValue] | None]]) -> Iterator[Values]:
    """The unique values of rows, as rows of `WANTED`."""
    for entity_id, row in rows:
        for value in claims.values_of(entity_id, row):
            yield int(value.digest[:DIGITS], 16), entity_id, value.field, dumps(value.value).decode()


def audited(claims: Claims, wanted: Mapping[str, Wanted], within: Digests) -> Iterable[Found]:
    return map(_found, claims.audit_wanted(wanted, within))


def restored(claims: Claims, wanted: Mapping[str, Wanted], within: Digests) -> Iterable[Found]:
    report = claims.restore_wanted(wanted, within)
    yield from map(_found, report.conflicts)
    for key in (*report.written, *report.corrected, *report.removed):
        yield CHANGED, key, ""


def _found(finding: Finding) -> Found:
    return finding.kind, finding.key, finding.detail


def _staged(spec: JobSpec, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    staging, claims = Staging(spec.collection()), spec.collection().claims
    rows = ((row.id, row.row) for (file,) in rows_of(batches) for row in staging.rows(file))
    return batches_of(wanted_rows(claims, rows), WANTED)


def _compare(
    spec: JobSpec, compare: Compare, slices: int, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    claims = spec.collection().claims

    def found() -> Iterator[Values]:
        for number, rows in groupby(rows_of(batches), key=lambda row: int(row[0])):
            wanted: dict[str, Wanted] = {}
            for _, entity_id, field, text in rows:
                if entity_id is not None:
                    value = UniqueValue(field, loads(text.encode()))
                    wanted.setdefault(claims.key(value), Wanted(value, [])).ids.append(entity_id)
            yield from compare(claims, wanted, slice_of(number, slices))

    return batches_of(found(), FOUND)


def slice_of(number: int, slices: int) -> Digests:
    """The names of the claims of a slice: those whose first digits, times `slices`, begin with its number."""
    starts = [f"{-(-one * 16**DIGITS // slices):0{DIGITS}x}" for one in (number, number + 1)]
    return Digests(starts[0] if number else "", starts[1] if number + 1 < slices else None)
