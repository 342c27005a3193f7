"""How jobs divide a collection: by its size, in portions that a task takes one after the other."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.functions import spark_partition_id

from tests.spark.collection_room import Room, customer_id
from tests.spark.seeded_room import seeded_spec
from worm.collections import division as dividing
from worm.collections.id_ranges import IdRange
from worm.errors import Corrupt
from worm.formats import IndexDef
from worm.formats.strict_json import JsonValue
from worm.spark.frames import rows_of, slots
from worm.spark.rebuild_index import (
    POSTINGS_DDL,
    _first_keys,
    divided,
    sorted_postings,
)
from worm.spark.shares import compared_ranges, planned_ranges, planned_shares
from worm.spark.verify_tasks import _checked, slice_deltas
from worm.tables.index import Index, entry_keys, new_index
from worm.tables.manifest import Manifest
from worm.tables.tasks.index_parts import SeveralParts, gathered
from worm.tables.tasks.verify_range import RangeReport, StoredTables, verify_range


def _is_whole(found: Sequence[IdRange]) -> bool:
    joined = all(one.end == other.start for one, other in itertools.pairwise(found))
    return joined and (found[0].start, found[-1].end) == ("", None)


@pytest.mark.usefixtures("small_portions")
@pytest.mark.parametrize("forgotten", [True, False], ids=["no table", "table"])
def test_shares_are_bounded_with_and_without_a_table(spark: SparkSession, file_url: str, forgotten: bool) -> None:
    room = Room(file_url, threshold=20)
    room.fill(100)
    if forgotten:
        room.forget()
    found = planned_shares(spark, room.spec)
    every = [one for share in found for one in share.portions]
    assert _is_whole(every)
    assert _is_whole(planned_ranges(spark, room.spec))
    assert _is_whole(compared_ranges(spark, room.spec))
    ids = Counter({within: sum(customer_id(n) in within for n in range(100)) for within in every})
    assert max(ids.values()) <= 2 * 3 * dividing.PORTION_IDS
    assert 2 <= len(found) <= 8


@pytest.mark.usefixtures("small_portions")
@pytest.mark.parametrize("known", [[*range(20)], [0, 1, 2, 3, 196, 197, 198, 199]], ids=["at the end", "in the middle"])
def test_documents_that_a_table_does_not_know_are_divided(spark: SparkSession, file_url: str, known: list[int]) -> None:
    """An import while the workers stood still. By the table alone, one task would get all of it."""
    room = Room(file_url)
    room.put(known)
    room.sweep()
    room.put([number for number in range(200) if number not in known])
    every = [one for share in planned_shares(spark, room.spec) for one in share.portions]
    assert _is_whole(every)
    assert max(sum(customer_id(n) in within for n in range(200)) for within in every) <= 2 * dividing.PORTION_IDS


@pytest.mark.usefixtures("small_portions")
def test_a_table_whose_ends_are_far_behind_does_not_divide_an_incremental_rebuild(
    spark: SparkSession, file_url: str
) -> None:
    """Its tasks hand nothing back, so one of them would get the whole import."""
    room = Room(file_url)
    room.fill(20)
    room.put(range(22, 400, 4))  # all in the last part of the table
    known, found = planned_ranges(spark, room.spec), compared_ranges(spark, room.spec)
    assert _largest(known) > 100
    assert _largest(found) < 70


def _largest(ranges: Sequence[IdRange]) -> int:
    return max(sum(customer_id(n) in within for n in [*range(20), *range(22, 400, 4)]) for within in ranges)


@pytest.mark.usefixtures("small_portions")
def test_rows_without_documents_are_divided(spark: SparkSession, file_url: str) -> None:
    """A table that nobody folded after a mass deletion. By the listing alone, one task would hold all of its rows."""
    room = Room(file_url, oplog=False, threshold=20)
    room.fill(100)
    for number in range(100):
        room.store.delete(room.key(customer_id(number)))
    every = [one for share in planned_shares(spark, room.spec) for one in share.portions]
    assert _is_whole(every)
    stored = StoredTables(room.spec.collection(), IdRange())
    rows = [len(part.entities) for part in map(stored.manifest.part, every) if part is not None]
    assert (sum(rows), max(rows) <= 100 // 4) == (94, True)


@pytest.mark.usefixtures("small_portions")
def test_tasks_count_what_no_table_knows_in_rounds(
    spark: SparkSession, file_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = Room(file_url)
    room.put(range(120))
    monkeypatch.setattr(dividing, "INLINE_IDS", 10)
    by_spark = planned_shares(spark, room.spec)
    rounds = list[int]()

    def run(session: object, work: Callable[[IdRange], object], ranges: Sequence[IdRange], about: str) -> list[object]:
        rounds.append(len(ranges))
        return [work(one) for one in ranges]

    monkeypatch.setattr("worm.spark.rebuild_tasks.run", run)
    counted = dividing.counted
    monkeypatch.setattr(dividing, "counted", lambda collection, within, most=8: counted(collection, within, 8))
    here = planned_shares(spark, room.spec)
    for found in (by_spark, here):
        assert _is_whole([one for share in found for one in share.portions])
    assert len(rounds) > 1, "what a task does not list is left to the next round"


def test_a_slot_leads_to_one_task(spark: SparkSession) -> None:
    """Otherwise two slices of claims, or two parts of an index, are in one task, which then has twice the rows."""
    for tasks in (1, 2, 7, 300):
        rows = [(number, slot) for number, slot in enumerate(slots(tasks)) for _ in range(3)]
        frame = spark.createDataFrame(rows, "number int, slot int").repartition(tasks, "slot")
        seen = frame.withColumn("task", spark_partition_id()).select("number", "task").distinct().collect()
        assert sorted((row["number"], row["task"]) for row in seen) == [(task, task) for task in range(tasks)]


def test_parts_begin_at_the_same_keys_as_in_one_process(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worm.tables.tasks.index_parts.KEYS_PER_BUCKET", 10)
    monkeypatch.setattr("worm.tables.tasks.index_parts.SAMPLES_PER_BUCKET", 3)
    keys = sorted(
        {f"k{number * 7919 % 1000:03d}" for number in range(300)} | {"", "ü", "\U0001f600", "=null", "\uffff"}
    )
    other = [f"z{number}" for number in range(4)]
    rows = [*((0, one, 1) for one in keys), *((1, one, 1) for one in other)]
    frame = spark.createDataFrame(rows, "field int, key string, weight bigint")
    several = {
        0: SeveralParts(len(keys), 1, [1, 2, 50, 51, 52, len(keys) - 1], 100_000, 100_000),
        1: SeveralParts(len(other), 1, [3], 100_000, 100_000),
    }
    found = _first_keys(frame.repartition(3), several)
    assert found == {0: ["", *(keys[at] for at in several[0].positions)], 1: ["", "z3"]}


@pytest.mark.parametrize("seed", range(4))
def test_uneven_parts_begin_at_the_same_keys_as_in_one_process(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Values on very different numbers of documents: neither a part nor a task may get too many pairs."""
    for room in ("worm.tables.index", "worm.tables.tasks.index_parts"):
        monkeypatch.setattr(f"{room}.COMMON_IDS", 20)
        monkeypatch.setattr(f"{room}.PART_POSTINGS_MAX", 60)
    monkeypatch.setattr("worm.spark.rebuild_index.COMMON_IDS", 20)
    monkeypatch.setattr("worm.tables.index.POSTINGS_PER_PART", 40)
    monkeypatch.setattr("worm.tables.tasks.index_parts.KEYS_PER_BUCKET", 10)
    monkeypatch.setattr("worm.tables.tasks.index_parts.SAMPLES_PER_BUCKET", 3)
    rng = random.Random(seed)
    counts = [rng.choice((1, 1, 1, 2, 18, 20, 21, 50)) if at % 90 < 30 else 1 for at in range(180)]
    rows: dict[str, dict[str, JsonValue]] = {
        f"i{value:03d}-{at:02d}": {"a": f"k{value:03d}", "b": at % 2 == 0, "c": at}
        for value, count in enumerate(counts)
        for at in range(count)
    }
    definitions = [IndexDef(field="a"), IndexDef(field="b"), IndexDef(field="c"), IndexDef(field="a", unique=True)]
    pairs = [
        (number, key, one)
        for number, definition in enumerate(definitions)
        for one, row in rows.items()
        for key in entry_keys(definition, row)
    ]
    frame = spark.createDataFrame(pairs, POSTINGS_DDL).repartition(3)
    division = divided(spark, frame, 16, len(pairs))
    sorted_rows = sorted_postings(frame, division.starts, division.common, len(pairs), 5).collect()
    assert max(Counter((row["field"], row["part"]) for row in sorted_rows).values()) <= 60
    for number, definition in enumerate(definitions):
        wanted = new_index(Index.of(Manifest("Customer", rows), definition), 16, is_split=True).parts
        assert division.starts[number] == [part.piece.start for part in wanted]
        for at, part in enumerate(wanted):
            of_part = ((row["key"], row["id"]) for row in sorted_rows if (row["field"], row["part"]) == (number, at))
            made = gathered("Customer", definition, of_part, division.common.get(number, {}))
            assert made.encode() == part.body


def test_few_tasks_find_the_parts_of_a_small_index(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """What Spark keeps after a shuffle has 200 partitions, and every one goes through Python."""
    monkeypatch.setattr("worm.tables.tasks.index_parts.parts_wanted", lambda pairs, most: 3)
    before = spark.conf.get("spark.sql.shuffle.partitions") or ""
    frame = spark.createDataFrame([(0, f"k{number % 90}", f"i{number}") for number in range(300)], POSTINGS_DDL)
    context = spark.sparkContext
    spark.conf.set("spark.sql.shuffle.partitions", "200")
    context.setJobGroup("parts", "the parts of an index")
    try:
        division = divided(spark, frame, 16, 0)
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]  # None removes it
        spark.conf.set("spark.sql.shuffle.partitions", before)
    assert (len(division.starts[0]), division.pairs) == (3, 300)
    tracker = context.statusTracker()
    jobs = [tracker.getJobInfo(one) for one in tracker.getJobIdsForGroup("parts")]
    stages = {tracker.getStageInfo(one) for job in jobs if job is not None for one in job.stageIds}
    assert 3 < sum(one.numCompletedTasks for one in stages if one is not None) < 50


def test_a_part_of_an_index_is_sorted_by_one_task(spark: SparkSession) -> None:
    """With hundreds of parts, their number is looked up, not compared with each."""
    starts = {0: ["", *(f"{number:03d}" for number in range(1, 300))], 1: ["", "m"]}
    pairs = [(0, f"{number % 300:03d}", f"i{number}") for number in range(900)] + [(1, "m", "a"), (1, "l", "b")]
    frame = spark.createDataFrame(pairs, "field int, key string, id string").repartition(4)
    rows = sorted_postings(frame, starts, {}, 90_000, 7).withColumn("task", spark_partition_id()).collect()
    tasks: dict[tuple[int, int], set[int]] = {}
    for row in rows:
        tasks.setdefault((row["field"], row["part"]), set()).add(row["task"])
    assert len(tasks) == 302
    assert {len(one) for one in tasks.values()} == {1}
    assert [row["part"] for row in rows if row["field"] == 1] == [0, 1]
    assert all(int(row["key"]) == row["part"] for row in rows if row["field"] == 0)
    sizes = Counter(row["task"] for row in rows)
    assert len(sizes) == 7
    assert max(sizes.values()) <= 2 * min(sizes.values())


@pytest.mark.parametrize("count", [40, 400])
def test_verify_holds_one_portion_of_its_share(tmp_path: Path, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows in memory do not depend on how many ids the task has."""
    spec, held = seeded_spec(tmp_path / "bucket", count), list[int]()

    def watched(collection: object, within: IdRange, stored: StoredTables) -> RangeReport:
        found = verify_range(spec.collection(), within, stored)
        held.append(len(found.rows))
        return found

    monkeypatch.setattr("worm.tables.tasks.verify_range.verify_range", watched)
    starts = ["", *(f"c{at:08d}" for at in range(10, count, 10))]
    ranges = zip(starts, [*starts[1:], None], strict=True)
    rows = list(_checked(spec, dividing.Share(tuple(IdRange(start, end) for start, end in ranges))))
    assert (sum(held), max(held)) == (count, 10)
    assert sum(row[4] for row in rows if row[:2] == ("counted", "")) == count


@pytest.mark.parametrize("oplog", [True, False], ids=["oplog", "plain"])
def test_slices_of_deltas_are_all_that_a_task_needs_of_them(file_url: str, oplog: bool) -> None:
    """Otherwise every task of a large table reads every delta: thousands of times the same bytes."""
    room = Room(file_url, oplog=oplog, threshold=20)
    room.fill(60)
    room.put([3, 4, 50], score=9)
    if oplog:
        room.sweep()
    else:
        room.table.fold_documents(map(customer_id, (3, 4, 50)))
    collection, table = room.spec.collection(), room.table
    root = table.manifest.root()
    assert root is not None
    assert root.deltas
    ranges = [IdRange("", "d"), IdRange("d", None)]
    wanted = [StoredTables(collection, one).manifest.part(one) for one in ranges]
    names = [("manifest", piece.file) for piece in root.deltas]
    batch = pa.RecordBatch.from_pylist([{"kind": kind, "file": file} for kind, file in names])
    rows = list(rows_of(slice_deltas(room.spec, ["", "d"], [0, 1], [batch])))
    assert sorted((row[0], row[4]) for row in rows) == sorted((at, file) for at in (0, 1) for _, file in names)
    for _, file in names:
        room.store.delete(table.manifest.pieces.key(file))
    for at, one in enumerate(ranges):
        with pytest.raises(Corrupt):
            StoredTables(collection, one).manifest.part(one)
        slices = {row[4]: row[5] for row in rows if row[0] == at}
        assert StoredTables(collection, one, slices).manifest.part(one) == wanted[at]
