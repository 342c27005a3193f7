"""The indexes of a new base: pairs of a value and an id from the staged rows, sorted by Spark, written part by part.

Spark orders text by its UTF-8 bytes, which is the order of Python's strings, so the parts are cut at the same values as
in `index.new_index`: at certain positions among all distinct entry keys, in order. No task sees all of them. The keys
are divided into *buckets*, whose borders are keys from a sample; each bucket is counted, so that the position of its
first key is known; then each finds the keys at the positions that fall into it. The sample decides only how large the
buckets are, not where the parts begin.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import accumulate, groupby
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql.functions import col, count, count_distinct, lit, pmod, xxhash64

from worm.spark.cluster import JobSpec, parallelism
from worm.spark.frames import Values, batches_of, rows_of, slots
from worm.spark.plan import SHUFFLE_PARTITIONS, index_tasks, key_buckets, sample_step, tasks_for
from worm.spark.rebuild_tasks import staged_frame
from worm.spark.staging import StagedFile, Staging
from worm.tables.index import Index, IndexEntries, entry_keys, new_part, parts_wanted
from worm.tables.root import IndexPieces, Piece, cuts
from worm.tables.table import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Starts = Mapping[int, Sequence[str]]
"""For each index, by its number: the first entry keys of ranges; the first range starts at ""."""
POSTINGS = pa.schema([("field", pa.int32()), ("key", pa.string()), ("id", pa.string())])
NUMBERED = pa.schema([*POSTINGS, ("part", pa.int32()), ("slot", pa.int32())])
BUCKETS = pa.schema([("field", pa.int32()), ("bucket", pa.int32()), ("key", pa.string()), ("slot", pa.int32())])
KEYS = pa.schema([("field", pa.int32()), ("key", pa.string())])
PARTS = pa.schema(
    [("field", pa.int32()), ("part", pa.int32()), ("file", pa.string()), ("n", pa.int64()), ("size", pa.int64())]
)
POSTINGS_DDL = "field int, key string, id string"
NUMBERED_DDL = f"{POSTINGS_DDL}, part int, slot int"
BUCKETS_DDL = "field int, bucket int, key string, slot int"
KEYS_DDL = "field int, key string"
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
        starts, pairs = _starts(spark, postings, spec.collection().definition.manifest.max_partitions, files)
        written = _written(postings, spec, starts, tasks_for(pairs, parallelism(spark)))
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


# Where parts begin


def _starts(
    spark: SparkSession, postings: DataFrame, parts_max: int, files: Sequence[StagedFile]
) -> tuple[Starts, int]:
    """Per index the first entry keys of its parts; and the number of all pairs."""
    with _shuffled_by(spark, tasks_for(sum(file.live for file in files), SHUFFLE_PARTITIONS)):
        counted = postings.groupBy("field").agg(count("*").alias("n"), count_distinct("key").alias("keys")).collect()
        starts: dict[int, list[str]] = {row["field"]: [""] for row in counted}
        positions = {row["field"]: cuts(row["keys"], parts_wanted(row["n"], parts_max)) for row in counted}
        several = {row["field"]: int(row["keys"]) for row in counted if positions[row["field"]]}
        if several:
            keys = postings.filter(col("field").isin(list(several))).select("field", "key").distinct()
            keys = keys.coalesce(tasks_for(sum(several.values()), parallelism(spark)))  # what is persisted keeps them
            for field, key in _at_positions(keys, several, positions):
                starts[field].append(key)
    return starts, sum(row["n"] for row in counted)


@contextmanager
def _shuffled_by(spark: SparkSession, tasks: int) -> Iterator[None]:
    """Spark's own operations (groupBy, distinct) in at least this many tasks; small ones are joined while they run."""
    name = "spark.sql.shuffle.partitions"
    before = spark.conf.get(name) or str(SHUFFLE_PARTITIONS)
    spark.conf.set(name, str(max(tasks, int(before))))
    try:
        yield
    finally:
        spark.conf.set(name, before)


def _at_positions(
    keys: DataFrame, counts: Mapping[int, int], positions: Mapping[int, Sequence[int]]
) -> list[tuple[int, str]]:
    """The keys at these positions in the order of all keys of their index; in order."""
    borders = _borders(keys, counts)
    places = _numbers(borders)
    tasks = slots(len(places))
    bucketed = keys.mapInArrow(partial(_bucketed, borders, places, tasks), BUCKETS_DDL).persist(StorageLevel.DISK_ONLY)
    try:
        sizes = {
            (one["field"], one["bucket"]): one["count"] for one in bucketed.groupBy("field", "bucket").count().collect()
        }
        wanted: dict[tuple[int, int], list[int]] = defaultdict(list)
        for field, starts in borders.items():
            before = list(accumulate((sizes.get((field, at), 0) for at in range(len(starts))), initial=0))
            for position in positions[field]:
                bucket = bisect_right(before, position) - 1
                wanted[field, bucket].append(position - before[bucket])
        ordered = bucketed.repartition(len(tasks), "slot").sortWithinPartitions("field", "bucket", "key")
        picked = ordered.mapInArrow(partial(_picked, dict(wanted)), KEYS_DDL).collect()
        return sorted((one["field"], one["key"]) for one in picked)
    finally:
        bucketed.unpersist()


def _borders(keys: DataFrame, counts: Mapping[int, int]) -> dict[int, list[str]]:
    """The first keys of the buckets of each index, from a sample of its keys, chosen by their hashes."""
    borders: dict[int, list[str]] = {field: [""] for field in counts}
    for field, number in counts.items():
        buckets = key_buckets(number)
        if buckets > 1:
            chosen = pmod(xxhash64(col("key")), lit(sample_step(number))) == 0
            sample = sorted(row["key"] for row in keys.filter((col("field") == field) & chosen).collect())
            borders[field] += sorted({sample[at * len(sample) // buckets] for at in range(1, buckets)} - {""})
    return borders


def _numbers(starts: Starts) -> dict[tuple[int, int], int]:
    """All ranges of all indexes, numbered in order."""
    every = ((field, at) for field in sorted(starts) for at in range(len(starts[field])))
    return {place: number for number, place in enumerate(every)}


def _bucketed(
    borders: Starts, places: Mapping[tuple[int, int], int], tasks: Sequence[int], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    def found() -> Iterator[Values]:
        for field, key in rows_of(batches):
            bucket = bisect_right(borders[field], key) - 1
            yield field, bucket, key, tasks[places[field, bucket]]

    return batches_of(found(), BUCKETS)


def _picked(
    wanted: Mapping[tuple[int, int], Sequence[int]], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """The keys at certain positions of sorted buckets."""

    def found() -> Iterator[Values]:
        for place, rows in groupby(rows_of(batches), key=lambda row: (row[0], row[1])):
            chosen = set(wanted.get(place, ()))
            yield from ((row[0], row[2]) for at, row in enumerate(rows) if at in chosen)

    return batches_of(found(), KEYS)


# Parts


def sorted_postings(postings: DataFrame, starts: Starts, tasks: int) -> DataFrame:
    """All pairs of a part in one task, in order; neighboring parts share a task if there are more of them."""
    places = _numbers(starts)
    tasks = index_tasks(len(places), tasks)
    numbers = slots(tasks)
    to_slot = [numbers[at * tasks // len(places)] for at in range(len(places))]
    numbered = postings.mapInArrow(partial(_numbered, starts, places, to_slot), NUMBERED_DDL)
    return numbered.repartition(tasks, "slot").sortWithinPartitions("field", "part", "key", "id")


def _numbered(
    starts: Starts, places: Mapping[tuple[int, int], int], to_slot: Sequence[int], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Pairs with the number of the part that their key belongs to, and its task."""
    for batch in batches:
        fields, keys = batch.column(0).to_pylist(), batch.column(1).to_pylist()
        parts = [bisect_right(starts[field], key) - 1 for field, key in zip(fields, keys, strict=True)]
        found = [to_slot[places[place]] for place in zip(fields, parts, strict=True)]
        columns = [*batch.columns, pa.array(parts, pa.int32()), pa.array(found, pa.int32())]
        yield pa.RecordBatch.from_arrays(
            [column.cast(one.type) for column, one in zip(columns, NUMBERED, strict=True)], schema=NUMBERED
        )


def _written(postings: DataFrame, spec: JobSpec, starts: Starts, tasks: int) -> dict[int, list[Piece]]:
    if not starts:
        return {}
    write = partial(_write, spec, starts)
    pieces: dict[int, list[Piece]] = defaultdict(list)
    for row in sorted(sorted_postings(postings, starts, tasks).mapInArrow(write, PARTS_DDL).collect()):
        start = starts[row["field"]][row["part"]]
        pieces[row["field"]].append(Piece(row["file"], row["n"], row["size"], start))
    return pieces


def _write(spec: JobSpec, starts: Starts, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    indexes = Table(spec.collection()).indexes

    def written() -> Iterator[Values]:
        for (field, number), rows in groupby(rows_of(batches), key=lambda row: (row[0], row[3])):
            gathered = IndexEntries(indexes[field].definition)
            for _, key, entity_id, *_ in rows:
                gathered.put(key, entity_id)
            part = gathered.index(spec.model, "", 0)
            piece = indexes[field].pieces.put(new_part(number, starts[field][number], part))
            indexes[field].pieces.keep(set())
            yield field, number, piece.file, piece.count, piece.size

    return batches_of(written(), PARTS)
