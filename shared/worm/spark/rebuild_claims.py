"""Restores claims of unique values in many tasks: each has the stored and wanted claims of one range of names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING

import pyarrow as pa

from worm.codec.strict_json import JsonValue, dumps, loads
from worm.collections.claims import (
    Claims,
    Digests,
    Finding,
    UniqueValue,
    Wanted,
    audit_wanted,
    restore_wanted,
    unique_indexes,
)
from worm.spark.cluster import JobSpec
from worm.spark.frames import Values, batches_of, rows_of
from worm.spark.rebuild_tasks import staged_frame, tasks_for
from worm.spark.staging import StagedFile, Staging

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SLICES = 16
WANTED = pa.schema([("slice", pa.int32()), ("id", pa.string()), ("field", pa.string()), ("value", pa.string())])
WANTED_DDL = "slice int, id string, field string, value string"
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
    if not unique_indexes(spec.collection().definition):
        return ClaimCounts(0, 0)
    spark.sparkContext.setJobDescription(f"{spec.model}: claims")
    wanted = staged_frame(spark, files).mapInArrow(partial(_staged, spec), WANTED_DDL)
    tasks = tasks_for(sum(file.live for file in files), SLICES)
    compared = compared_claims(spark, spec, wanted, restored, tasks)
    counts = {row["kind"]: row["count"] for row in compared.groupBy("kind").count().collect()}
    return ClaimCounts(counts.get(CHANGED, 0), counts.get("unique-conflict", 0))


def compared_claims(spark: SparkSession, spec: JobSpec, wanted: DataFrame, compare: Compare, tasks: int) -> DataFrame:
    """What `compare` finds in each range, including ranges without wanted values."""
    every = spark.createDataFrame([(number, None, None, None) for number in range(SLICES)], WANTED_DDL).coalesce(1)
    together = wanted.unionByName(every).repartition(tasks, "slice").sortWithinPartitions("slice", "id")
    return together.mapInArrow(partial(_compare, spec, compare), FOUND_DDL)


def wanted_rows(claims: Claims, rows: Iterable[tuple[str, Mapping[str, JsonValue] | None]]) -> Iterator[Values]:
    """The unique values of rows, as rows of `WANTED`."""
    for entity_id, row in rows:
        for value in claims.values_of(entity_id, row):
            yield int(value.digest[0], 16), entity_id, value.field, dumps(value.value).decode()


def audited(claims: Claims, wanted: Mapping[str, Wanted], within: Digests) -> Iterable[Found]:
    return map(_found, audit_wanted(claims, wanted, within))


def restored(claims: Claims, wanted: Mapping[str, Wanted], within: Digests) -> Iterable[Found]:
    report = restore_wanted(claims, wanted, within)
    yield from map(_found, report.conflicts)
    for key in (*report.written, *report.corrected, *report.removed):
        yield CHANGED, key, ""


def _found(finding: Finding) -> Found:
    return finding.kind, finding.key, finding.detail


def _staged(spec: JobSpec, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    staging, claims = Staging(spec.collection()), spec.collection().claims
    rows = ((row.id, row.row) for (file,) in rows_of(batches) for row in staging.rows(file))
    return batches_of(wanted_rows(claims, rows), WANTED)


def _compare(spec: JobSpec, compare: Compare, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    claims = spec.collection().claims

    def found() -> Iterator[Values]:
        for number, rows in groupby(rows_of(batches), key=lambda row: int(row[0])):
            wanted: dict[str, Wanted] = {}
            for _, entity_id, field, text in rows:
                if entity_id is not None:
                    value = UniqueValue(field, loads(text.encode()))
                    wanted.setdefault(claims.key(value), Wanted(value, [])).ids.append(entity_id)
            yield from compare(claims, wanted, _slice(number))

    return batches_of(found(), FOUND)


def _slice(number: int) -> Digests:
    return Digests(f"{number:x}" if number else "", f"{number + 1:x}" if number + 1 < SLICES else None)
