"""The indexes of a new base: pairs of a value and an id from the staged rows, sorted by Spark, written part by part.

Spark orders text by its UTF-8 bytes, which is the order of Python's strings, so the parts are cut at the same values as
in `index.new_index`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql.functions import col, count, count_distinct, lit, row_number, when
from pyspark.sql.window import Window

from worm.spark.cluster import JobSpec
from worm.spark.frames import Values, batches_of, rows_of
from worm.spark.rebuild_tasks import ROWS_PER_TASK, staged_frame
from worm.spark.staging import StagedFile, Staging
from worm.tables.index import Index, IndexEntries, entry_keys, new_part, parts_wanted
from worm.tables.root import IndexPieces, Piece, cuts
from worm.tables.table import Table

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

POSTINGS = pa.schema([("field", pa.int32()), ("key", pa.string()), ("id", pa.string())])
PARTS = pa.schema(
    [("field", pa.int32()), ("part", pa.int32()), ("file", pa.string()), ("n", pa.int64()), ("size", pa.int64())]
)
POSTINGS_DDL = "field int, key string, id string"
PARTS_DDL = "field int, part int, file string, n bigint, size bigint"


def build_indexes(spark: SparkSession, spec: JobSpec, files: Sequence[StagedFile]) -> dict[str, IndexPieces]:
    """The parts of every index, written."""
    table = Table(spec.collection())
    if not table.indexes:
        return {}
    postings = (
        staged_frame(spark, files).mapInArrow(partial(_postings, spec), POSTINGS_DDL).persist(StorageLevel.DISK_ONLY)
    )
    try:
        spark.sparkContext.setJobDescription(f"{spec.model}: indexes")
        starts = _starts(postings, spec.collection().definition.manifest.max_partitions)
        written = _written(postings, spec, starts, -(-sum(file.live for file in files) // ROWS_PER_TASK))
    finally:
        postings.unpersist()
    found: dict[str, IndexPieces] = {}
    for number, one in enumerate(table.indexes):
        definition = one.definition
        empty = Index(spec.model, definition.field, definition.type, definition.unique, "", 0, {})
        parts = written.get(number) or [one.pieces.put(new_part(0, "", empty))]
        found[definition.field] = IndexPieces(definition.type, definition.unique, tuple(parts))
    return found


def _postings(spec: JobSpec, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    staging, indexes = Staging(spec.collection()), Table(spec.collection()).indexes

    def found() -> Iterator[Values]:
        for (file,) in rows_of(batches):
            for row in staging.rows(file):
                for number, one in enumerate(indexes) if row.row is not None else ():
                    yield from ((number, key, row.id) for key in entry_keys(one.definition, row.row or {}))

    return batches_of(found(), POSTINGS)


def _starts(postings: DataFrame, parts_max: int) -> dict[int, list[str]]:
    """Per index the first entry keys of its parts."""
    counted = postings.groupBy("field").agg(count("*").alias("n"), count_distinct("key").alias("keys")).collect()
    starts: dict[int, list[str]] = {}
    positions: dict[int, list[int]] = {}
    for row in counted:
        starts[row["field"]] = [""]
        positions[row["field"]] = cuts(row["keys"], parts_wanted(row["n"], parts_max))
    chosen = [(col("field") == field) & col("at").isin(list(at)) for field, at in positions.items() if at]
    if not chosen:
        return starts
    is_chosen: Column = chosen[0]
    for one in chosen[1:]:
        is_chosen = is_chosen | one
    several = postings.filter(col("field").isin([field for field, at in positions.items() if at]))
    rank = row_number().over(Window.partitionBy("field").orderBy("key")) - 1
    ranked = several.select("field", "key").distinct().withColumn("at", rank)
    for row in ranked.filter(is_chosen).orderBy("field", "key").collect():
        starts[row["field"]].append(row["key"])
    return starts


def part_number(starts: dict[int, list[str]]) -> Column:
    """The number of the part that an entry key belongs to."""
    number: Column = lit(0)
    for field, keys in starts.items():
        of_field: Column = lit(0)
        for start in keys[1:]:
            of_field = of_field + (col("key") >= lit(start)).cast("int")
        number = when(col("field") == field, of_field).otherwise(number)
    return number


def sorted_postings(postings: DataFrame, starts: dict[int, list[str]], tasks: int) -> DataFrame:
    """All pairs of a part in one task, in order; at most this many tasks."""
    parts = max(1, min(tasks, sum(len(keys) for keys in starts.values())))
    numbered = postings.withColumn("part", part_number(starts))
    return numbered.repartition(parts, "field", "part").sortWithinPartitions("field", "part", "key", "id")


def _written(postings: DataFrame, spec: JobSpec, starts: dict[int, list[str]], tasks: int) -> dict[int, list[Piece]]:
    write = partial(_write, spec, starts)
    pieces: dict[int, list[Piece]] = defaultdict(list)
    for row in sorted(sorted_postings(postings, starts, tasks).mapInArrow(write, PARTS_DDL).collect()):
        start = starts[row["field"]][row["part"]]
        pieces[row["field"]].append(Piece(row["file"], row["n"], row["size"], start))
    return pieces


def _write(spec: JobSpec, starts: dict[int, list[str]], batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    indexes = Table(spec.collection()).indexes

    def written() -> Iterator[Values]:
        for (field, number), rows in groupby(rows_of(batches), key=lambda row: (row[0], row[3])):
            gathered = IndexEntries(indexes[field].definition)
            for _, key, entity_id, _ in rows:
                gathered.put(key, entity_id)
            part = gathered.index(spec.model, "", 0)
            piece = indexes[field].pieces.put(new_part(number, starts[field][number], part))
            indexes[field].pieces.keep(set())
            yield field, number, piece.file, piece.count, piece.size

    return batches_of(written(), PARTS)
