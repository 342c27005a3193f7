"""Reads from the table: the same rows as from the documents, for as many requests as the table has files; and when the
documents are read instead."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from arro3.core import Array
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType

from tests.spark.source_room import (
    FIELDS,
    FILTERS,
    START,
    TIMES,
    SourceRoom,
    by_id,
    memory_url,
    random_document,
    random_id,
)
from tests.tables.test_parquet import COLUMNS, OF, PARTITION, SMALL, columns_of
from worm.clock import iso_seconds
from worm.collections.entries import Change, ChangeSet, Head, Row
from worm.errors import Corrupt, Invalid
from worm.formats.strict_json import JsonObject, dumps
from worm.spark.source import table
from worm.spark.source.reader import IdPartition, TablePartition
from worm.spark.source.schema import CORRUPT, schema_of
from worm.spark.source.table import NeededColumns, table_schema
from worm.tables.build import RecordedNews
from worm.tables.layout import Edit, EditStream, new_base
from worm.tables.manifest import Manifest
from worm.tables.parquet import encode_parquet
from worm.tables.parquet_part import ParquetPart, WholeFile
from worm.tables.root import Counted, Root
from worm.tables.tree import ManifestTree

LIMITS = {"enabled": True, "maxFieldBytes": 30}
KINDS: dict[str, dict[str, Any]] = {
    "whole": {"manifest": LIMITS},
    "spread": {"manifest": {**LIMITS, "partitionThreshold": 10}},
    "spread, without oplog": {"manifest": {**LIMITS, "partitionThreshold": 10}, "oplog": False, "softDelete": False},
}
IDS = StructType([StructField("id", StringType())])
NOTHING = StructType([])


def filled(kind: str, seed: int = 7) -> SourceRoom:
    """Random documents in a base and, if it is spread, changes and deletions in deltas."""
    made, rng = SourceRoom(memory_url(), snapshots={}, **KINDS[kind]), random.Random(seed)
    ids = sorted({random_id(rng, number) for number in range(60)})
    for one in ids:
        made.things.save(made.things.create(random_document(rng), id=one))
    made.things.build_manifest()
    for one in rng.sample(ids, 20):
        made.things.save(made.things.get(one) | random_document(rng))
    made.things.save(made.things.create({"name": "n1", "tags": ["a"]}, id="new"))
    for one in ids[::9]:
        made.things.delete(one)
    made.session.close()
    return made


@pytest.fixture(scope="module", params=KINDS)
def room(request: pytest.FixtureRequest) -> SourceRoom:
    return filled(request.param)


def root_of(room: SourceRoom) -> Root[Manifest]:
    root = ManifestTree(room.spec.collection()).root()
    assert root is not None
    return root


def repushed(room: SourceRoom, **model: Any) -> SourceRoom:
    """The bucket with another schema, and the table as it was before the push, which rebuilds it."""
    kept = ManifestTree(room.spec.collection()).read()
    other = SourceRoom(room.url, **model)
    ManifestTree(room.spec.collection()).update(lambda stored: kept)
    return other


def remove(room: SourceRoom, start: str, end: str = "") -> None:
    """Delete the files of the collection with such names."""
    store = room.spec.store()
    for listed in list(store.list(room.spec.collection().path)):
        if listed.key.rpartition("/")[2].startswith(start) and listed.key.endswith(end):
            store.delete(listed.key)


def is_of_table(room: SourceRoom, schema: StructType | None = None, **options: str) -> bool:
    """Whether `auto` reads the table."""
    kinds = set(map(type, room.reader(schema, "auto", **options).partitions()))
    assert kinds in ({TablePartition}, {IdPartition})
    return kinds == {TablePartition}


# The same rows


@pytest.mark.parametrize("filter", [*FILTERS, {"visits": {"$ne": None}}], ids=lambda one: dumps(one).decode())
def test_a_table_has_the_rows_of_the_documents(room: SourceRoom, filter: JsonObject) -> None:
    root, asked = root_of(room), dumps(filter).decode()
    assert not root.is_spread or (len(root.partitions) > 3 and root.deltas and 10 < root.cut < 30)

    expected = by_id(room.rows(filter=asked))
    for read_from in ("table", "auto"):
        assert by_id(room.rows(filter=asked, read_from=read_from)) == expected


def test_columns_of_your_own_have_the_values_of_documents(room: SourceRoom) -> None:
    names = {"id": StringType(), "address.city": StringType(), "since": StringType(), "extra": LongType()}
    schema = StructType([StructField(name, kind) for name, kind in names.items()])
    rows = by_id(room.rows(schema=schema, read_from="table"))

    assert rows == by_id(room.rows(schema=schema))
    assert {row["address.city"] for row in rows} == {None, "Bonn", "Köln"}


@pytest.mark.parametrize("mode", ["PERMISSIVE", "DROPMALFORMED"])
def test_values_that_do_not_fit_are_treated_alike(room: SourceRoom, mode: str) -> None:
    schema = StructType([IDS.fields[0], StructField("name", LongType()), StructField(CORRUPT, StringType())])
    rows = by_id(room.rows(schema=schema, mode=mode, read_from="table"))

    assert rows == by_id(room.rows(schema=schema, mode=mode))
    assert any(row[CORRUPT] for row in rows) is (mode == "PERMISSIVE")
    with pytest.raises(Invalid, match=r"Thing '.+': name: .+ is not a valid integer of 64 bits"):
        room.rows(schema=schema, mode="FAILFAST", read_from="table")


def test_odd_values_are_those_of_documents() -> None:
    """What a typed column of a Parquet file cannot hold, or holds in another way than a frame shows it."""
    room = SourceRoom(memory_url(), manifest={"enabled": True, "partitionThreshold": 2})
    odd: list[JsonObject] = [
        {"score": 2**60, "count": 2**63},
        {"since": "9999-12-31T23:59:59-05:00"},
        {"score": 0.5, "count": 1, "since": "2026-01-01T00:00:00Z", "anything": {"a": None}},
        {"score": None, "count": None, "since": "2026-01-01T00:00:00.123456789+02:00", "mixed": [None]},
    ]
    for at, document in enumerate(odd * 2):
        room.things.save(room.things.create(document, id=f"t{at}"))
    fields = schema_of(room.spec.collection().definition, "documents").fields
    schema = StructType([*fields, StructField(CORRUPT, StringType())])
    rows = by_id(room.rows(schema=schema, read_from="table"))

    assert root_of(room).is_spread
    assert rows == by_id(room.rows(schema=schema))
    assert [row["score"] for row in rows[:4]] == [2.0**60, None, 0.5, None]
    assert [str(row[CORRUPT]).partition(":")[0] for row in rows[:4]] == ["count", "since", "None", "None"]


def test_a_changed_row_that_lacks_the_value_of_a_filter_is_there_once() -> None:
    room = SourceRoom(memory_url(), **KINDS["spread"])
    for at in range(30):
        room.things.save(room.things.create({"visits": [*TIMES]}, id=f"t{at:02d}"))
    room.things.build_manifest()
    room.things.patch("t07", {"name": "changed"})
    assert len(root_of(room).deltas) == 1

    assert len(room.rows(filter='{"visits": {"$ne": null}}', read_from="table")) == 30


def test_a_delta_with_an_older_row_changes_nothing() -> None:
    room = filled("spread")
    expected, known = by_id(room.rows()), ManifestTree(room.spec.collection()).read()
    assert known is not None
    newest = next(one for one, seq in known.seqs.items() if seq > 1 and one in known.entities)
    older = Change(newest, Head(1, None, None, live=True, ts=iso_seconds(START)), {"name": "older"})
    news = RecordedNews(Manifest("Thing"), [older])
    tree = ManifestTree(room.spec.collection())
    tree.reform()
    tree.fold(lambda: news, lambda stored: known)

    assert len(root_of(room).deltas) == 1
    assert by_id(room.rows(read_from="table")) == expected


def test_tasks_read_deltas_that_are_too_large_for_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    room = filled("spread")
    monkeypatch.setattr("worm.tables.tasks.shares.DELTA_BYTES_MAX", 0)
    reader, root = room.reader(IDS, read_from="table", partitions="2"), root_of(room)
    tasks = reader.partitions()
    with room.spec.store().requests.measure() as requests:
        counts = [sum(batch.num_rows for batch in reader.read(one)) for one in tasks]

    assert len(counts) == 2
    assert requests["GET"] == len(root.partitions) + 2 * len(root.deltas), "each task reads them once"
    assert by_id(room.rows(read_from="table")) == by_id(room.rows())


# Requests


def seeded(count: int, threshold: int) -> SourceRoom:
    """A table without documents: a read of one of them would find nothing."""
    room = SourceRoom(memory_url(), manifest={"enabled": True, "partitionThreshold": threshold, "maxPartitions": 200})
    collection = room.spec.collection()
    rows: dict[str, Row] = {f"t{number:07d}": {"name": f"n{number % 7}", "count": number} for number in range(count)}
    fields = collection.definition.row_form
    made = Manifest("Thing", rows, dict.fromkeys(rows, 1), iso_seconds(START), count, fields=fields)
    ManifestTree(collection).update(lambda stored: made)
    return room


def test_counting_takes_as_many_requests_as_there_are_files() -> None:
    room = seeded(20_000, 1000)
    store = room.spec.store()
    assert len(root_of(room).partitions) == 20
    with store.requests.measure() as planning:
        reader = room.reader(schema=IDS, read_from="table")
        tasks = reader.partitions()
    with store.requests.measure() as reading:
        counts = [sum(batch.num_rows for batch in reader.read(one)) for one in tasks]

    assert (len(counts), sum(counts)) == (4, 20_000)
    assert (planning["total"], reading["total"], reading["GET"]) == (1, 20, 20)


@pytest.mark.slow
def test_a_million_entities_are_counted_with_a_request_per_partition(spark: SparkSession, file_url: str) -> None:
    """Written partition by partition, as a merge does; a directory lists that many."""
    room = SourceRoom(file_url, manifest={"enabled": True, "maxPartitions": 200})
    tree, size = ManifestTree(room.spec.collection()), 10_000
    names = [[f"t{number:07d}" for number in range(start, start + size)] for start in range(0, 1_000_000, size)]
    parts = (Manifest("Thing", {one: {"name": one} for one in ids}, dict.fromkeys(ids, 1)) for ids in names)
    starts = ["", *(ids[0] for ids in names[1:])]

    def change(root: Root[Manifest] | None) -> EditStream[Manifest]:
        moved = zip(starts, parts, strict=True)
        made = yield from new_base(tree.layout, moved, iso_seconds(START), is_split=True)
        return Edit(made, "source")

    tree.publish(change)
    with room.spec.store().requests.measure() as requests:
        reader = room.reader(IDS, read_from="table")
        counts = [sum(batch.num_rows for batch in reader.read(one)) for one in reader.partitions()]

    assert sum(counts) == 1_000_000
    assert requests["total"] == 102, "the root, the directory, 100 partitions"
    assert room.frame(spark, **{"from": "table"}).count() == 1_000_000


def test_a_frame_without_columns_is_counted_by_the_root_alone() -> None:
    room = seeded(2000, 100)
    with room.spec.store().requests.measure() as requests:
        reader = room.reader(schema=NOTHING, partitions="3", read_from="table")
        counts = [sum(batch.num_rows for batch in reader.read(one)) for one in reader.partitions()]

    assert (len(counts), sum(counts)) == (3, 2000)
    assert requests["total"] == 1
    some = room.reader(NOTHING, "table", filter='{"count": {"$lt": 150}}')
    assert sum(batch.num_rows for one in some.partitions() for batch in some.read(one)) == 150


def test_a_frame_without_columns_is_refused_where_spark_cannot_count_it(monkeypatch: pytest.MonkeyPatch) -> None:
    room = seeded(10, 100)
    monkeypatch.setattr("worm.spark.source.cells._spark_version", lambda: (4, 0))
    with pytest.raises(Invalid, match="counts no rows"):
        room.reader(NOTHING, "table")


def test_changed_rows_are_counted_once_and_deleted_ones_not_at_all(room: SourceRoom) -> None:
    reader = room.reader(schema=NOTHING, read_from="table")

    assert sum(batch.num_rows for one in reader.partitions() for batch in reader.read(one)) == len(room.rows())


# When the documents are read


@pytest.mark.parametrize(
    ("names", "filter", "decoded"),
    [
        (["id", "name"], {}, {"id", "name", "_rest"}),
        (["id", "count"], {"name": "n1"}, {"id", "count", "name", "_rest"}),
        (["id", "tags"], {}, {"id", "_exact_tags", "_rest"}),
    ],
)
def test_tasks_decode_only_the_columns_that_they_need(
    names: list[str], filter: JsonObject, decoded: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    room = SourceRoom(memory_url(), manifest={"enabled": True, "partitionThreshold": 10})
    for number in range(30):
        room.things.save(
            room.things.create({"name": f"n{number % 3}", "count": number, "tags": ["a"]}, id=f"i{number}")
        )
    room.things.build_manifest()
    seen: set[str] = set()
    column = NeededColumns.column

    def noted(self: NeededColumns, name: str) -> Array:
        seen.add(name)
        return column(self, name)

    monkeypatch.setattr(NeededColumns, "column", noted)
    schema = StructType([one for one in table_schema(room.spec.collection().definition).fields if one.name in names])
    rows = room.rows(schema=schema, read_from="table", filter=dumps(filter).decode())
    assert by_id(rows) == by_id(room.rows(schema=schema, filter=dumps(filter).decode()))
    assert seen == decoded


def test_a_column_decoded_alone_is_that_of_the_whole_file() -> None:
    made = ((PARTITION, COLUMNS), (Manifest("M"), COLUMNS), (SMALL, [*COLUMNS, *columns_of(s="timestamp", d="double")]))
    for part, columns in made:
        body = encode_parquet(part, columns, OF)
        alone, whole = NeededColumns(body), WholeFile(body)
        assert (sorted(alone.names), alone.count, alone.about) == (sorted(whole.names), whole.count, whole.about)
        assert ParquetPart(body, "key", OF, columns, NeededColumns).manifest("M").encode() == part.encode()
        for name in whole.names if whole.count else ():
            assert pa.array(alone.column(name)).equals(pa.array(whole.column(name)))


def test_auto_reads_documents_unless_the_table_must_have_the_same() -> None:
    room = filled("spread")
    schema = StructType([*IDS.fields, StructField(CORRUPT, StringType())])

    assert is_of_table(room)
    assert not is_of_table(room, schema=schema)
    assert not is_of_table(room, mode="DROPMALFORMED")
    assert not is_of_table(room, history="true")
    assert not is_of_table(room, at="1")
    other = repushed(room, manifest={"enabled": True, "fields": ["name"], "partitionThreshold": 10})
    assert not is_of_table(other, schema=IDS), "its rows were made with other fields"
    other.things.build_manifest()
    assert is_of_table(other, schema=IDS, filter='{"name": "n1"}')
    assert not is_of_table(other)
    assert not is_of_table(other, schema=IDS, filter='{"count": 1}')
    assert not is_of_table(SourceRoom(room.url, manifest={"enabled": True, "autoUpdate": False}))
    remove(other, ".worm.manifest.json")
    assert not is_of_table(other, schema=IDS)


def test_auto_notices_a_change_that_waits_for_the_table_for_a_minute() -> None:
    room = filled("spread")
    collection, folded = room.spec.collection(), root_of(room).last_updated
    later = room.session.clock.now() + timedelta(minutes=2)
    key = collection.resolver.change_set_key("Thing", room.session.ids.ulid())

    def waits(ts: str, now: datetime) -> bool:
        """Whether documents are read at this time, if a change of the time `ts` was captured just now. One name for all
        of them: names of the same millisecond have no order, and the last one decides."""
        change = Change("new", Head(9, None, None, live=False, ts=ts), None)
        collection.store.put(key, ChangeSet("Thing", [change]).encode())
        found = table.shares(replace(room.reader(read_from="auto").reading, now=now))
        return isinstance(found, Invalid) and "waiting for the table" in found.message

    assert not waits(folded, later), "the table has it"
    assert waits(iso_seconds(later), later)
    assert not waits(iso_seconds(later), later - timedelta(minutes=2)), "it came just now"
    assert isinstance(table.shares(replace(room.reader(read_from="table").reading, now=later)), list)


def test_a_read_that_the_table_cannot_answer_says_why() -> None:
    room = filled("spread")
    without = SourceRoom(memory_url(), manifest={"enabled": False})
    some = SourceRoom(memory_url(), manifest={"enabled": True, "fields": ["name"]})
    stale = repushed(room, fields={**FIELDS, "more": {"type": "string"}})

    for asked, message in (
        (lambda: without.rows(read_from="table"), "Thing has no table.*manifest.*or use"),
        (lambda: table_schema(without.spec.collection().definition), "Thing has no table"),
        (lambda: some.rows(read_from="table"), "the table of Thing lacks active, address, .*or use"),
        (lambda: some.rows(schema=IDS, filter='{"count": 1}', read_from="table"), "lacks count"),
        (lambda: stale.rows(read_from="table"), "made with other fields"),
        (lambda: room.rows(read_from="files"), "from: must be one of auto, table, documents, not 'files'"),
        (lambda: room.rows(at="1", read_from="table"), "no history and no trash"),
    ):
        with pytest.raises(Invalid, match=message):
            asked()
    remove(room, ".worm.manifest.json")
    with pytest.raises(Invalid, match=r"Thing has no table yet.*worm table rebuild"):
        room.rows(read_from="table")
    assert table_schema(some.spec.collection().definition).fieldNames() == ["id", "name", "createdAt", "updatedAt"]


# Files that are gone


@pytest.mark.parametrize("gone", [".json", ".parquet"])
def test_tasks_read_parquet_files_and_partitions_only_without_them(gone: str) -> None:
    room = filled("spread")
    expected, files = by_id(room.rows()), len(root_of(room).partitions)
    remove(room, "partition-", gone)
    assert by_id(room.rows(read_from="table")) == expected

    reader = room.reader(IDS, read_from="table")
    tasks = reader.partitions()
    with room.spec.store().requests.measure() as requests:
        assert sum(batch.num_rows for one in tasks for batch in reader.read(one)) == len(expected)
    assert requests["GET"] == (files if gone == ".json" else 2 * files)


def test_auto_reads_the_documents_of_a_partition_that_is_gone() -> None:
    room = filled("spread")
    expected, reader, strict = by_id(room.rows()), room.reader(read_from="auto"), room.reader(read_from="table")
    tasks = reader.partitions()
    remove(room, "partition-1-")

    assert by_id(row for one in tasks for batch in reader.read(one) for row in batch.to_pylist()) == expected
    with pytest.raises(Corrupt, match=r"gone.*load it again"):
        [batch for one in tasks for batch in strict.read(one)]


def test_planning_starts_again_if_the_root_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    room, read = filled("spread"), ManifestTree.delta
    expected, merges = by_id(room.rows()), list[int]()

    def merged(self: ManifestTree, root: Root[Counted]) -> Manifest:
        """Before the first read of deltas, they are merged into the base and deleted."""
        if not merges:
            merges.append(len(root.deltas))
            monkeypatch.undo()
            assert ManifestTree(self.collection).reform()
            remove(room, "delta-")
        return read(self, root)

    monkeypatch.setattr(ManifestTree, "delta", merged)
    assert by_id(room.rows(read_from="table")) == expected
    assert merges[0] > 0
    room = filled("spread")
    remove(room, "delta-")
    with pytest.raises(Corrupt, match="gone"):
        room.rows(read_from="table")
    assert not is_of_table(room)


def test_a_damaged_root_is_told() -> None:
    room = filled("whole")
    room.spec.store().put(ManifestTree(room.spec.collection()).key, b"{}")

    with pytest.raises(Corrupt):
        room.rows(read_from="table")
    assert not is_of_table(room)
