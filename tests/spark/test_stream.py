"""A stream of changes: each one once and in order, whenever the query dies, and whatever is folded late or twice."""

from __future__ import annotations

import json
import os
import random
import zlib
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import cast

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import LongType, StringType, StructField, StructType

from tests.emulators import ROOT
from tests.harness import DataPath
from tests.spark.source_room import SourceRoom
from tests.spark.stream_room import Query, documents, each_once, histories, reading_of, roundtrip, session_of
from tests.tables.test_changed import Life, tiny_files
from tests.tables.test_spread_tables import fill, spread_path
from worm.clock import iso_seconds
from worm.collections.id_ranges import IdRange
from worm.collections.oplog_archives import Archiver
from worm.errors import Corrupt, Expired, Invalid, Unavailable
from worm.sdk.database import Worm
from worm.spark.source.admission import LimitedChangeStream
from worm.spark.source.changes import ChangesPartition, ChangesReader, Leg, Place
from worm.spark.source.datasource import WormDataSource
from worm.spark.source.options import READING, SINKING, STREAMING, ReadOptions, StreamOptions, Target
from worm.spark.source.stream import Offset
from worm.store.base import metered
from worm.tables.changed import HeadsState
from worm.tables.pieces import KEPT
from worm.tables.tree import HeadsTree

__all__ = ["tiny_files"]
SEEDS = int(os.environ.get("WORM_STREAM_SEEDS", "25"))
BOTH = pytest.mark.parametrize("is_new", [False, True], ids=["4.0", "4.2"])


class MixedLife(Life):
    """Raw uploads with workers, and a program that folds by itself, all of them on the same documents."""

    session: Worm | None = None

    def write(self) -> None:
        if self.rng.random() < 0.5:
            super().write()
            return
        if self.session is None:
            self.session = session_of(self.path)
        one, customers = f"c{self.rng.randrange(25):02d}", self.session.model("Customer")
        self.path.clock.advance(1)
        if customers.find_by_id(one) is None:
            customers.save({"id": one, "name": f"s{self.rng.randrange(1000)}"})
        elif self.rng.random() < 0.2:
            customers.delete(one)
        else:
            customers.patch(one, {"name": f"s{self.rng.randrange(1000)}"})


@pytest.mark.usefixtures("tiny_files")
@BOTH
@pytest.mark.parametrize("seed", range(SEEDS))
def test_every_change_comes_once_and_in_order_whenever_the_query_dies(seed: int, is_new: bool) -> None:
    rng = random.Random(seed)
    path = spread_path(threshold=rng.choice([4, 12, 1000]))
    life = MixedLife(path, rng)
    query = Query(path, rng, is_new, most=rng.choice([None, 1, 3, 10]), mortality=0.15)
    for _ in range(12):
        for _ in range(rng.randrange(8)):
            life.step()
        query.trigger()
    life.capture()
    for one in life.waiting:
        path.run_fold([one])
    path.sweep()
    query.drain()
    each_once(query, path)
    if query.most is not None:
        assert all(sum(map(len, tasks)) <= query.most for tasks in query.batches.values())
    for column, seq in (("before", -1), ("after", 0)):
        shown = {(row["id"], row["seq"]): row[column] for row in query.rows()}
        names = {key: None if one is None else cast("Mapping[str, object]", one)["name"] for key, one in shown.items()}
        assert names == documents(path, lambda at, seq=seq: at + seq)  # type: ignore[misc]  # mypy and the default


def test_the_simulation_kills_many_queries() -> None:
    """Otherwise it would prove nothing."""
    deaths = 0
    for seed in range(20):
        rng = random.Random(seed)
        path = spread_path(threshold=1000)
        query = Query(path, rng, is_new=True, mortality=0.15)
        for number in range(12):
            path.put(f"c{number}", {"name": "n"})
            path.settle()
            query.trigger()
        deaths += query.deaths
    assert deaths > 60


@BOTH
@pytest.mark.parametrize("seed", range(10))
def test_a_stream_of_the_latest_loses_nothing_after_its_first_offset(seed: int, is_new: bool) -> None:
    rng = random.Random(seed)
    path = spread_path(threshold=1000)
    fill(path, 5)
    query = Query(path, rng, is_new, starting="latest", mortality=0.3)
    written: dict[str, list[int]] = {}
    for number in range(30):
        query.trigger()
        had_offset = bool(query.offsets)
        path.put(f"d{number:02d}", {"name": "n"})
        path.settle()
        if had_offset:
            written[f"d{number:02d}"] = [1]
    query.drain()
    told = query.told()
    assert {one: seqs for one, seqs in told.items() if one in written} == written
    assert not any(one.startswith("c") for one in told)
    assert max(map(len, told.values())) == 1


def test_a_first_batch_that_is_repeated_after_a_crash_loses_nothing() -> None:
    """Spark writes down the end of the first batch, but not its start, which a new process computes again."""
    path = spread_path(threshold=1000)
    fill(path, 5)
    reader = _limited(path, starting="latest")
    start = reader.initialOffset()
    path.put("d", {"name": "n"})
    path.settle()
    end = reader.latestOffset(start, ReadAllAvailable())
    again = _limited(path, starting="latest")
    first = again.partitions(again.initialOffset(), end)
    second = again.partitions(end, again.latestOffset(end, ReadAllAvailable()))
    rows = [
        [row["id"] for one in tasks for batch in again.read(one) for row in batch.to_pylist()]
        for tasks in (first, second)
    ]
    assert rows == [[], ["d"]]


@BOTH
def test_a_stream_can_start_at_a_time(is_new: bool) -> None:
    path = spread_path(threshold=4)
    fill(path, 8)
    path.put("c001", {"status": "before"})
    path.settle()
    path.clock.advance(3600)
    since = iso_seconds(path.clock.now())
    path.put("c001", {"status": "after"})
    path.put("c002", {"status": "after"})
    path.put("e", {"status": "new"})
    path.settle()
    queries = [Query(path, random.Random(1), is_new, starting=since, most=most) for most in (None, 2)]
    for query in queries:
        query.drain()
        assert query.told() == {"c001": [3], "c002": [2], "e": [1]}
    path.put("e", {"status": "newer"})
    path.settle()
    for query in queries:
        query.drain()
        assert query.told() == {"c001": [3], "c002": [2], "e": [1, 2]}


@BOTH
@pytest.mark.parametrize("threshold", [4, 1000])
def test_a_stream_can_start_at_a_time_that_has_not_come(threshold: int, is_new: bool) -> None:
    path = spread_path(threshold=threshold)
    fill(path, 8)
    since = iso_seconds(path.clock.now() + timedelta(hours=1))
    queries = [Query(path, random.Random(1), is_new, starting=since, most=most) for most in (None, 2)]
    for number in range(6):
        path.put(f"c00{number}", {"status": "before"})
        path.settle()
        for query in queries:
            query.trigger()
            query._reader = None
    path.clock.advance(3600)
    path.put("c001", {"status": "after"})
    path.put("e", {"status": "new"})
    path.settle()
    for query in queries:
        query.drain()
        assert query.told() == {"c001": [3], "e": [1]}


def test_an_idle_trigger_costs_one_conditional_request() -> None:
    path = spread_path(threshold=4)
    fill(path, 40)
    for is_new in (False, True):
        query = Query(path, random.Random(1), is_new)
        query.drain()
        with metered() as meter:
            assert not query.trigger()
        assert meter.total == 1


def test_a_trigger_reads_what_changed() -> None:
    path = spread_path(threshold=4)
    fill(path, 40)
    path.table.heads.reform()
    query = Query(path, random.Random(1), is_new=True)
    query.drain()
    path.put("c007", {"status": "changed"})
    path.settle()
    with metered() as meter:
        assert query.trigger()
    # The root twice; for the plan and for the task the new delta, for the task one partition; the entry, and the one
    # before it.
    assert meter.requests["GET"] <= 10
    assert set(meter.requests) <= {"GET"}
    assert [row["id"] for task in query.batches[query.commits - 1] for row in task] == ["c007"]


@pytest.mark.usefixtures("tiny_files")
def test_a_part_of_a_walk_does_not_read_what_comes_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worm.tables.changed.RANGE_IDS", 1000)
    path = spread_path(threshold=4)
    fill(path, 90)
    path.table.heads.reform()
    query = Query(path, random.Random(1), is_new=True, most=2)
    for _ in range(5):
        with metered() as meter:
            assert query.trigger()
        # Root and directory, and one or two partitions of 30 for the plan and for the task; two entries.
        assert meter.requests["GET"] <= 14
    query.drain()
    each_once(query, path)


def test_offsets_are_small() -> None:
    path = spread_path(threshold=100)
    fill(path, 99)
    query = Query(path, random.Random(1), is_new=True, most=50)
    query.drain()
    assert max(map(len, query.offsets)) < 2500


# Running out of time


@pytest.mark.usefixtures("tiny_files")
@BOTH
def test_a_stream_that_comes_back_too_late_says_so_before_it_loses_anything(is_new: bool) -> None:
    path = spread_path(threshold=4)
    fill(path, 20)
    query = Query(path, random.Random(1), is_new)
    query.drain()
    before = query.told()
    reported = iso_seconds(path.clock.now())
    fill(path, 20, first=10)
    path.table.heads.reform()
    path.table.heads.collect(dry_run=False)
    path.clock.advance(KEPT.total_seconds() + 1)
    path.table.heads.collect(dry_run=False)
    query._reader = None
    with pytest.raises(Expired, match="again with a new checkpoint") as found:
        query.drain()
    assert reported[:13] in str(found.value)
    assert query.told() == before


@pytest.mark.usefixtures("tiny_files")
def test_a_stream_that_comes_back_within_the_week_goes_on() -> None:
    path = spread_path(threshold=4)
    fill(path, 20)
    query = Query(path, random.Random(1), is_new=True)
    query.drain()
    for _ in range(6):
        fill(path, 20)
        path.table.heads.reform()
        path.clock.advance(86_400)
        path.table.heads.collect(dry_run=False)
    query._reader = None
    query.drain()
    each_once(query, path)


def test_a_stream_waits_while_heads_are_lost() -> None:
    path = spread_path(threshold=1000)
    fill(path, 9)
    query = Query(path, random.Random(1), is_new=True)
    query.drain()
    path.store.delete("org/customers/.worm.heads.json")
    assert not query.trigger()
    path.put("c001", {"status": "changed"})
    path.settle()
    assert not query.trigger()
    path.sweep()
    query.drain()
    each_once(query, path)


@pytest.mark.usefixtures("tiny_files")
def test_a_stream_goes_on_when_a_lost_file_of_the_heads_is_back(caplog: pytest.LogCaptureFixture) -> None:
    """A repair stores the same file again, and the root stays the same."""
    path = spread_path(threshold=4)
    fill(path, 20)
    query = Query(path, random.Random(1), is_new=True)
    query.drain()
    fill(path, 3)
    path.table.heads.reform()
    root = path.table.heads.root()
    assert root is not None
    path.store.delete(f"org/customers/.worm.heads/{path.table.heads.partitions(root)[0].file}")
    query._reader = None
    for _ in range(3):
        assert not query.trigger()
    assert [one.message.partition(": ")[0] for one in caplog.records] == ["Customer"]
    path.table.rebuild()
    query.drain()
    each_once(query, path)


def test_a_missing_entry_stops_the_stream() -> None:
    path = spread_path(threshold=1000)
    fill(path, 3)
    path.put("c001", {"status": "changed"})
    path.settle()
    path.store.delete(path.collection.oplog.key("c001", 2))
    with pytest.raises(Corrupt, match="gap"):
        Query(path, random.Random(1), is_new=True).drain()


# Limits and ends of newer versions


def _limited(path: DataPath, most: int | None = None, starting: str = "earliest") -> LimitedChangeStream:
    options = StreamOptions(ReadOptions(Target("memory://", "Customer"), "changes"), starting, most)
    return LimitedChangeStream(reading_of(path), options)


def test_available_now_ends_with_what_there_was() -> None:
    path = spread_path(threshold=1000)
    fill(path, 9)
    reader = _limited(path, most=4)
    reader.prepareForTriggerAvailableNow()
    fill(path, 9, first=9)
    offset, counts = reader.initialOffset(), []
    while (end := reader.latestOffset(offset, ReadMaxRows(4))) != offset:
        tasks = reader.partitions(offset, end)
        counts.append(sum(batch.num_rows for task in tasks for batch in reader.read(task)))
        offset = end
    assert counts == [4, 4, 1]


def test_a_limit_that_spark_lifts_ends_a_walk_and_goes_on() -> None:
    """Both in one batch, and a document that changed in both parts in one task."""
    path = spread_path(threshold=1000)
    fill(path, 9)
    reader = _limited(path, most=4)
    first = reader.initialOffset()
    second = reader.latestOffset(first, ReadMaxRows(4))
    path.put("c001", {"status": "again"})
    path.put("c008", {"status": "again"})
    path.settle()
    third = reader.latestOffset(second, ReadAllAvailable())
    tasks = [
        [(row["id"], row["seq"]) for batch in reader.read(task) for row in batch.to_pylist()]
        for task in reader.partitions(second, third)
    ]
    assert tasks == [
        [("c001", 2)],
        [("c004", 1), ("c005", 1), ("c006", 1), ("c007", 1), ("c008", 1), ("c008", 2)],
    ]
    assert reader.latestOffset(third, ReadAllAvailable()) == third


def test_a_limit_that_spark_lifts_does_not_lift_the_start() -> None:
    path = spread_path(threshold=1000)
    fill(path, 9)
    start, now = (
        HeadsState(updated="2026-01-01T00:00:00Z", embedded=_seqs({})),
        HeadsState.now(HeadsTree(path.collection)),
    )
    assert now is not None
    future = Offset(start, "2030-01-01T00:00:00Z", replace(now, embedded=_seqs({"c003": 1})), Place("c001", 1))
    assert [leg.since for leg in future.legs(Offset(now, future.since))] == [future.since] * 2


@pytest.mark.parametrize(
    "wrong", [{}, {"version": 2}, {"version": 1, "state": {}}, {"version": 1, "target": {"updated": ""}}]
)
def test_a_foreign_offset_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(Corrupt):
        Offset.of_shape(cast("dict[str, int]", wrong))


def test_a_checkpoint_of_another_collection_is_refused() -> None:
    """Its seqs would hide the changes of this one."""
    path, other = spread_path(threshold=1000), spread_path(threshold=1000)
    fill(path, 9)
    reader = _limited(path)
    offset = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    foreign = {**offset, "of": "Customer at s3://another"}
    with pytest.raises(Invalid, match="the checkpoint belongs to Customer at s3://another, not to Customer at"):
        reader.latestOffset(foreign, ReadAllAvailable())
    with pytest.raises(Invalid, match="the checkpoint belongs to"):
        _limited(other).partitions(foreign, foreign)


@pytest.mark.parametrize("is_new", [True, False])
def test_a_stream_of_the_latest_does_not_start_while_heads_are_incomplete(is_new: bool) -> None:
    """It would begin with the whole history."""
    path = spread_path(threshold=1000)
    fill(path, 9)
    path.store.delete("org/customers/.worm.heads.json")
    path.put("c001", {"status": "changed"})
    path.settle()
    query = Query(path, random.Random(1), is_new=is_new, starting="latest")
    with pytest.raises(Corrupt, match="the heads of Customer are not complete"):
        query.trigger()


# The changes between two moments


def _batch(path: DataPath, since: str = "", until: str | None = None) -> list[tuple[object, object]]:
    options = ReadOptions(Target("memory://", "Customer"), "changes", since=since, until=until)
    reader = ChangesReader(reading_of(path, options))
    return [
        (row["id"], row["seq"])
        for task in reader.partitions()
        for batch in reader.read(task)
        for row in batch.to_pylist()
    ]


@pytest.mark.usefixtures("tiny_files")
@pytest.mark.parametrize("threshold", [4, 1000])
def test_the_changes_between_two_times_are_those_of_the_histories(threshold: int) -> None:
    path = spread_path(threshold=threshold)
    rng, moments = random.Random(threshold), list[str]()
    for _ in range(15):
        for _ in range(3):
            path.put(f"c{rng.randrange(12):02d}", {"name": f"n{rng.randrange(1000)}"})
        path.clock.advance(rng.choice([0, 50]))
        moments.append(iso_seconds(path.clock.now()))
        path.settle()
    entries = [(one, entry.seq, entry.ts) for one in histories(path) for entry in path.history(one)]
    for since, until in [("", None), *((rng.choice(["", *moments]), rng.choice([None, *moments])) for _ in range(40))]:
        wanted = [(one, seq) for one, seq, ts in entries if since <= ts and (until is None or ts < until)]
        assert sorted(_batch(path, since, until)) == wanted


@pytest.mark.parametrize("threshold", [4, 1000])
def test_the_first_moment_of_all_is_a_time(threshold: int) -> None:
    path = spread_path(threshold=threshold)
    fill(path, 5)
    assert len(_batch(path, since="0001-01-01T00:00:00Z")) == 5
    assert _batch(path, until="0001-01-01T00:00:00Z") == []


def test_a_long_archived_history_is_read_to_its_end() -> None:
    path = spread_path(threshold=1000, archiveAfter="90d")
    for number in range(35):
        path.put("c", {"name": f"n{number}"})
        path.settle()
    path.clock.advance(timedelta(days=400).total_seconds())
    Archiver(path.collection, now=path.clock.now(), dry_run=False).run(threads=1)
    assert path.store.get(path.collection.oplog.key("c", 2)) is None
    assert _batch(path) == [("c", seq) for seq in range(1, 36)]


def test_there_are_no_changes_before_the_first_one_and_lost_heads_are_an_error() -> None:
    path = spread_path(threshold=1000)
    assert _batch(path) == []
    fill(path, 3)
    path.store.delete("org/customers/.worm.heads.json")
    with pytest.raises(Corrupt, match="not complete"):
        _batch(path)
    path.store.put("org/customers/.worm.heads.json", b"broken")
    with pytest.raises(Corrupt):
        _batch(path)


@pytest.mark.usefixtures("tiny_files")
def test_a_lost_file_of_the_newest_heads_needs_a_repair() -> None:
    """It did not expire, so to start again at another time does not help."""
    path = spread_path(threshold=4)
    fill(path, 20)
    root = path.table.heads.root()
    assert root is not None
    path.store.delete(f"org/customers/.worm.heads/{path.table.heads.partitions(root)[2].file}")
    query = Query(path, random.Random(1), is_new=True)
    for read in (lambda: _batch(path), query.drain):
        with pytest.raises(Expired, match="a file of the heads is lost: run `worm repair`"):
            read()
    path.table.rebuild()
    query.drain()
    assert len(query.told()) == len(_batch(path)) == 20


def test_states_are_only_made_where_somebody_needs_them() -> None:
    path = spread_path(threshold=1000)
    for number in range(6):
        path.put("c", {"name": f"n{number}"})
        path.settle()
    after = HeadsState.now(HeadsTree(path.collection))
    assert after is not None
    task = ChangesPartition([Leg(HeadsState(embedded=_seqs({"c": 5})), after)], IdRange())
    counts = []
    for schema in (StructType([StructField("id", StringType()), StructField("seq", LongType())]), None):
        reading = reading_of(path)
        reader = ChangesReader(reading if schema is None else replace(reading, schema=schema))
        with metered() as meter:
            assert [row["seq"] for batch in reader.read(task) for row in batch.to_pylist()] == [6]
        counts.append(meter.total)
    assert counts[0] == 1 < counts[1]


def _seqs(seqs: dict[str, int]) -> str:
    return b64encode(zlib.compress(json.dumps(seqs).encode())).decode()


# Options


@pytest.mark.parametrize(
    ("options", "mistake"),
    [
        ({}, "a stream has the changes"),
        ({"changes": "true", "startingOffset": "soon"}, "startingOffset: 'soon' is not a time"),
        ({"changes": "true", "maxChangesPerTrigger": "0"}, "maxChangesPerTrigger: must be a whole number"),
        ({"changes": "true", "partitions": "3"}, "unknown option 'partitions'"),
        ({"changes": "true", "since": "2026-01-01"}, "since: only a batch read has it .*startingOffset"),
        ({"changes": "true", "startingofset": "latest"}, "unknown option 'startingofset'"),
    ],
)
def test_wrong_options_of_a_stream_are_refused(options: dict[str, str], mistake: str) -> None:
    with pytest.raises(Invalid, match=mistake):
        StreamOptions.of({"url": "file:///x", "model": "Customer", **options})


@pytest.mark.parametrize("kind", [ReadOptions, StreamOptions])
def test_a_misspelled_option_leads_to_the_right_one(kind: type[ReadOptions] | type[StreamOptions]) -> None:
    """Spark checks the options of a stream as those of a read first, and passes names in small letters."""
    with pytest.raises(Invalid) as caught:
        kind.of({"url": "file:///x", "model": "Customer", "changes": "true", "maxchangepertrigger": "9"})
    assert caught.value.hint == "did you mean maxChangesPerTrigger?"
    with pytest.raises(Invalid) as caught:
        kind.of({"url": "file:///x", "model": "Customer", "quark": "9"})
    assert "startingOffset" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("options", "mistake"),
    [
        ({"since": "2026-01-01"}, "since: only changes have it"),
        ({"changes": "true", "at": "3"}, "at: changes cannot be combined with it"),
        ({"changes": "true", "until": "x"}, "until: 'x' is not a time"),
        ({"changes": "perhaps"}, "must be true or false"),
        ({"changes": "true", "filter": "{"}, "filter: must be JSON: byte offset 1 .*status"),
        ({"changes": "true", "filter": "[]"}, "filter: a filter must be a JSON object"),
        ({"changes": "true", "startingoffset": "latest"}, "startingOffset: only a stream has it .*since and until"),
        ({"changes": "true", "maxchangespertrigger": "9"}, "maxChangesPerTrigger: only a stream has it"),
        ({"partitions": "9" * 5000}, "partitions: must be a whole number from 1 to 100000"),
    ],
)
def test_wrong_options_of_changes_are_refused(options: dict[str, str], mistake: str) -> None:
    with pytest.raises(Invalid, match=mistake):
        ReadOptions.of({"url": "file:///x", "model": "Customer", **options})


def test_times_of_options_are_rounded_up_to_whole_seconds() -> None:
    given = {"url": "file:///x", "model": "Customer", "changes": "true", "since": "2026-01-01T00:00:00.5+01:00"}
    assert ReadOptions.of(given).since == "2025-12-31T23:00:01Z"


def test_a_model_without_an_oplog_has_no_changes(tmp_path: object) -> None:
    room = SourceRoom(f"file://{tmp_path}/bucket", oplog=False)
    source = WormDataSource(room.options(changes="true"))
    with pytest.raises(Invalid, match="no oplog"):
        source.streamReader(source.schema()).initialOffset()


def test_a_mistake_in_the_options_of_a_stream_is_raised_when_spark_asks_for_an_offset(tmp_path: object) -> None:
    """PySpark hides an error of `streamReader` behind an UnboundLocalError of its own."""
    source = WormDataSource({"url": f"file://{tmp_path}/bucket", "model": "Customer"})
    reader = source.streamReader(StructType([StructField("id", StringType())]))
    latest = partial(reader.latestOffset, {}, ReadAllAvailable())
    for ask in (reader.initialOffset, latest, lambda: reader.partitions({}, {})):
        with pytest.raises(Invalid, match="a stream has the changes of a model"):
            ask()


@pytest.mark.parametrize("lost", ["file", "root"])
def test_a_stream_that_ends_with_what_is_available_says_that_heads_are_lost(lost: str) -> None:
    """It ended well, without rows, every day until somebody looked."""
    path = _heads_in_partitions() if lost == "file" else _small()
    reader, limit = _limited(path), ReadAllAvailable()
    start = roundtrip(reader.latestOffset(roundtrip(reader.initialOffset()), limit))
    tree = HeadsTree(path.collection)
    if lost == "file":
        root = tree.root()
        assert root is not None
        path.store.delete(tree.pieces.key(root.partitions[0].file))
    else:
        path.store.delete(tree.file.key)
    path.put("c001", {"name": "later"})
    again = _limited(path)
    assert again.offset(again.latestOffset(start, limit)) == again.offset(start), "without an end, the stream waits"
    ending = _limited(path)
    ending.prepareForTriggerAvailableNow()
    with pytest.raises(Unavailable, match=r"heads are lost or incomplete.*worm repair"):
        ending.latestOffset(start, limit)


def _small() -> DataPath:
    path = spread_path(threshold=1000)
    fill(path, 6)
    return path


def _heads_in_partitions() -> DataPath:
    path = spread_path()
    fill(path, 40)
    return path


def test_an_empty_collection_has_nothing_available() -> None:
    reader = _limited(spread_path())
    reader.prepareForTriggerAvailableNow()
    start = roundtrip(reader.initialOffset())
    tasks = reader.partitions(start, roundtrip(reader.latestOffset(start, ReadAllAvailable())))
    assert [row for task in tasks for batch in reader.read(task) for row in batch.to_pylist()] == []


@pytest.mark.parametrize("name", sorted({*READING, *STREAMING, *SINKING} - {"path"}))
def test_the_docs_name_every_option(name: str) -> None:
    assert f"`{name}`" in (ROOT / "docs" / "spark.md").read_text()
