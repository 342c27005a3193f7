"""The indexes of a new base: pairs of a value and an id from the staged rows, sorted by Spark, written part by part
(`tables/tasks/index_parts.py`). Spark orders text by its UTF-8 bytes."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, groupby
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql.functions import broadcast, col, count, lit, pmod, when, xxhash64
from pyspark.sql.functions import max as largest
from pyspark.sql.functions import sum as total

from worm.collections import division
from worm.spark.cluster import JobSpec, parallelism
from worm.spark.frames import Values, batches_of, rows_of, slots
from worm.spark.rebuild_tasks import staged_frame
from worm.tables import (
    COMMON_IDS,
    IndexPieces,
    IndexTasks,
    SeveralParts,
    StagedFile,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Starts = Mapping[int, Sequence[str]]
"""For each index, by its number: the first entry keys of ranges; the first range starts at ""."""
Common = Mapping[int, Mapping[str, int]]
"""For each index, by its number: the entry keys of common values, with the number of their documents."""
POSTINGS = pa.schema([("field", pa.int32()), ("key", pa.string()), ("id", pa.string())])
NUMBERED = pa.schema([*POSTINGS, ("part", pa.int32()), ("slot", pa.int32())])
BUCKETS = pa.schema(
    [
        ("field", pa.int32()),
        ("bucket", pa.int32()),
        ("key", pa.string()),
        ("weight", pa.int64()),
        ("slot", pa.int32()),
    ]
)
KEYS = pa.schema([("field", pa.int32()), ("key", pa.string())])
WEIGHTS = pa.schema([("field", pa.int32()), ("part", pa.int32()), ("weight", pa.int64())])
PARTS = pa.schema(
    [("field", pa.int32()), ("part", pa.int32()), ("file", pa.string()), ("n", pa.int64()), ("size", pa.int64())]
)
POSTINGS_DDL = "field int, key string, id string"
NUMBERED_DDL = f"{POSTINGS_DDL}, part int, slot int"
BUCKETS_DDL = "field int, bucket int, key string, weight bigint, slot int"
KEYS_DDL = "field int, key string"
WEIGHTS_DDL = "field int, part int, weight bigint"
SHUFFLE_PARTITIONS = 200
"""By default."""
PARTS_DDL = "field int, part int, file string, n bigint, size bigint"


def build_indexes(spark: SparkSession, spec: JobSpec, files: Sequence[StagedFile]) -> dict[str, IndexPieces]:
    """The parts of every index, written."""
    definition = spec.collection().definition
    if not definition.indexes:
        return {}
    postings = (
        staged_frame(spark, files).mapInArrow(partial(_postings, spec), POSTINGS_DDL).persist(StorageLevel.DISK_ONLY)
    )
    try:
        spark.sparkContext.setJobDescription(f"{spec.model}: indexes")
        pairs = sum(file.live for file in files) * len(definition.indexes)
        found = divided(spark, postings, definition.manifest.max_partitions, pairs)
        written = _written(postings, spec, found, parallelism(spark))
    finally:
        postings.unpersist()
    return IndexTasks(spec.collection()).pieces(written)


def _postings(spec: JobSpec, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    files = (file for (file,) in rows_of(batches))
    return batches_of(IndexTasks(spec.collection()).staged_pairs(files), POSTINGS)


# Where parts begin


@dataclass(frozen=True, slots=True)
class Division:
    """How indexes are divided. `common`: the common values of each, with the number of their documents. `pairs`: how
    many pairs all indexes have, without those of common values."""

    starts: Starts
    common: Common
    pairs: int


def divided(spark: SparkSession, postings: DataFrame, parts_max: int, pairs: int) -> Division:
    """As `index.new_index` divides them. `pairs`: about how many there are."""
    with _shuffled_by(spark, IndexTasks.counting(pairs)):
        values = _values(postings)
        weights = values.groupBy("field").agg(
            total("weight").alias("pairs"), count("*").alias("keys"), largest("n").alias("n")
        )
        counted = {row["field"]: row for row in weights.collect()}
        is_common = any(row["n"] > COMMON_IDS for row in counted.values())
        common = _common(values) if is_common else {}
        several = {
            field: one
            for field, row in counted.items()
            if (one := SeveralParts.of(row["keys"], row["pairs"], row["n"], parts_max)) is not None
        }
        starts = {field: [""] for field in counted}
        if several:
            keys = values.filter(col("field").isin(list(several))).select("field", "key", "weight")
            keys = keys.coalesce(division.tasks_for(sum(one.keys for one in several.values()), parallelism(spark)))
            starts |= _first_keys(keys, several)  # what is persisted there keeps the number of tasks
    return Division(starts, common, sum(row["pairs"] for row in counted.values()))


def _values(postings: DataFrame) -> DataFrame:
    """Each value, on how many documents it is, and its weight: a common one is one entry."""
    values = postings.groupBy("field", "key").agg(count("*").alias("n"))
    return values.withColumn("weight", when(col("n") > COMMON_IDS, 1).otherwise(col("n")))


def common_values(spark: SparkSession, postings: DataFrame, pairs: int) -> Common:
    with _shuffled_by(spark, IndexTasks.counting(pairs)):
        return _common(_values(postings))


def _common(values: DataFrame) -> Common:
    """Few: each is on more than `COMMON_IDS` documents."""
    found: dict[int, dict[str, int]] = defaultdict(dict)
    for row in values.filter(col("n") > COMMON_IDS).collect():
        found[row["field"]][row["key"]] = row["n"]
    return found


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


def _first_keys(keys: DataFrame, several: Mapping[int, SeveralParts]) -> dict[int, list[str]]:
    """The first keys of the parts of these indexes."""
    borders = _borders(keys, several)
    places = _numbers(borders)
    tasks = slots(len(places))
    bucketed = keys.mapInArrow(partial(_bucketed, borders, places, tasks), BUCKETS_DDL).persist(StorageLevel.DISK_ONLY)
    try:
        sums = bucketed.groupBy("field", "bucket").agg(count("*").alias("keys"), total("weight").alias("weight"))
        sizes = {(row["field"], row["bucket"]): row for row in sums.collect()}
        ordered = bucketed.repartition(len(tasks), "slot").sortWithinPartitions("field", "bucket", "key")

        def before(field: int, what: str) -> list[int]:
            """What all buckets of an index before each one have together."""
            every = (sizes.get((field, at)) for at in range(len(borders[field])))
            return list(accumulate((0 if one is None else one[what] for one in every), initial=0))

        wanted: dict[tuple[int, int], list[int]] = defaultdict(list)
        for field, one in several.items():
            sofar = before(field, "keys")
            for position in one.positions:
                bucket = bisect_right(sofar, position) - 1
                wanted[field, bucket].append(position - sofar[bucket])
        starts = _collected(ordered.mapInArrow(partial(_picked, dict(wanted)), KEYS_DDL), several)
        doubtful = {field: one for field, one in several.items() if one.may_be_uneven}
        uneven = {field: doubtful[field] for field in _uneven(bucketed, starts, doubtful)}
        if uneven:
            passed = {(field, at): weight for field in uneven for at, weight in enumerate(before(field, "weight"))}
            heavy = _collected(ordered.mapInArrow(partial(_heavy, passed, uneven), KEYS_DDL), uneven)
            starts |= {field: ["", *found[2:]] for field, found in heavy.items()}  # the first key of all is in ""
        return starts
    finally:
        bucketed.unpersist()


def _collected(found: DataFrame, fields: Iterable[int]) -> dict[int, list[str]]:
    """The first keys of parts; the first part starts at ""."""
    starts: dict[int, list[str]] = {field: [""] for field in fields}
    for field, key in sorted((row["field"], row["key"]) for row in found.collect()):
        starts[field].append(key)
    return starts


def _uneven(bucketed: DataFrame, starts: Starts, several: Mapping[int, SeveralParts]) -> list[int]:
    """The indexes of which a part would have too many pairs."""
    if not several:
        return []
    weigh = partial(_weighed, {field: starts[field] for field in several})
    parts = bucketed.mapInArrow(weigh, WEIGHTS_DDL).groupBy("field", "part")
    most = max(one.most for one in several.values())
    heavy = parts.agg(total("weight").alias("weight")).filter(col("weight") > most)
    return sorted(row["field"] for row in heavy.select("field").distinct().collect())


def _weighed(starts: Starts, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The weights of keys, added up by part."""
    sums: dict[tuple[int, int], int] = defaultdict(int)
    for field, _, key, weight, _ in rows_of(batches):
        if field in starts:
            sums[field, bisect_right(starts[field], key) - 1] += weight
    yield from batches_of(((field, part, weight) for (field, part), weight in sums.items()), WEIGHTS)


def _borders(keys: DataFrame, several: Mapping[int, SeveralParts]) -> dict[int, list[str]]:
    """The first keys of the buckets of each index, from a sample of its keys, chosen by their hashes."""
    borders: dict[int, list[str]] = {field: [""] for field in several}
    for field, one in several.items():
        buckets = one.buckets
        if buckets > 1:
            chosen = pmod(xxhash64(col("key")), lit(one.sample_step)) == 0
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
        for field, key, weight in rows_of(batches):
            bucket = bisect_right(borders[field], key) - 1
            yield field, bucket, key, weight, tasks[places[field, bucket]]

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


def _heavy(
    passed: Mapping[tuple[int, int], int], uneven: Mapping[int, SeveralParts], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """The keys of sorted buckets that start parts with about equal numbers of pairs. `passed`: the weight before each
    bucket."""

    def found() -> Iterator[Values]:
        for place, rows in groupby(rows_of(batches), key=lambda row: (row[0], row[1])):
            if place in passed:
                keys, weights = zip(*((row[2], row[3]) for row in rows), strict=True)
                yield from ((place[0], key) for key in uneven[place[0]].even_starts(keys, weights, passed[place]))

    return batches_of(found(), KEYS)


# Parts


def sorted_postings(postings: DataFrame, starts: Starts, common: Common, pairs: int, most: int) -> DataFrame:
    """All pairs of a part in one task, in order; small neighboring parts share a task. A common value has one row
    without an id instead of its pairs. `pairs`: about how many there are; `most`: how many tasks few of them get."""
    places = _numbers(starts)
    tasks = IndexTasks.writing(len(places), pairs, most)
    numbers = slots(tasks)
    to_slot = [numbers[at * tasks // len(places)] for at in range(len(places))]
    marks = [(field, key, None) for field, found in common.items() for key in found]
    if marks:
        marked = postings.sparkSession.createDataFrame(marks, POSTINGS_DDL)
        others = postings.join(broadcast(marked.select("field", "key")), ["field", "key"], "left_anti")
        postings = others.select("field", "key", "id").unionByName(marked)
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


def _written(
    postings: DataFrame, spec: JobSpec, division: Division, most: int
) -> dict[int, list[tuple[str, int, int, str]]]:
    starts, common = division.starts, division.common
    if not starts:
        return {}
    write = partial(_write, spec, starts, common)
    pieces: dict[int, list[tuple[str, int, int, str]]] = defaultdict(list)
    parts = sorted_postings(postings, starts, common, division.pairs, most).mapInArrow(write, PARTS_DDL)
    for row in sorted(parts.collect()):
        start = starts[row["field"]][row["part"]]
        pieces[row["field"]].append((row["file"], row["n"], row["size"], start))
    return pieces


def _write(
    spec: JobSpec, starts: Starts, common: Common, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    indexes = IndexTasks(spec.collection())

    def written() -> Iterator[Values]:
        for (field, number), rows in groupby(rows_of(batches), key=lambda row: (row[0], row[3])):
            pairs = ((key, entity_id) for _, key, entity_id, *_ in rows)
            piece = indexes.write(field, (number, starts[field][number]), pairs, common.get(field, {}))
            yield field, number, piece.file, piece.count, piece.size

    return batches_of(written(), PARTS)
