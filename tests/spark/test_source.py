"""What the tasks of a read give, against what the SDK gives. They run in this process: Spark only carries them."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from pyspark.sql.types import (
    DateType,
    DecimalType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from tests.spark.source_room import (
    FIELDS,
    FILTERS,
    SourceRoom,
    by_id,
    memory_url,
    moment,
    random_document,
    random_id,
    shown,
)
from worm.errors import Corrupt, Invalid, NotFound
from worm.formats import load_schema
from worm.formats.strict_json import JsonObject, dumps
from worm.spark.source.options import ReadOptions
from worm.spark.source.schema import CORRUPT, check_names, schema_of

PLACE = StructField("id", StringType())


@pytest.fixture(scope="module", params=["root", "collection", "inline"])
def room(request: pytest.FixtureRequest) -> SourceRoom:
    """Random documents, changed, deleted and restored, in each layout."""
    made = SourceRoom(memory_url(), layout=request.param)
    rng = random.Random(7)
    ids = sorted({random_id(rng, number) for number in range(60)})
    for one in ids:
        made.things.save(made.things.create(random_document(rng), id=one))
    for one in rng.choices(ids, k=60):
        made.things.save(made.things.get(one) | random_document(rng))
    for one in ids[::5]:
        made.things.delete(one, actor="user:ann")
    for one in ids[::15]:
        made.things.restore(one)
    return made


def entity_ids(room: SourceRoom) -> list[str]:
    return sorted(room.histories())


@pytest.mark.parametrize("filter", FILTERS, ids=lambda one: json.dumps(one))
def test_documents_are_those_of_find_all(room: SourceRoom, filter: JsonObject) -> None:
    expected = by_id(shown(row) for row in room.things.find_all(filter=filter))

    assert by_id(room.rows(filter=dumps(filter).decode())) == expected
    assert not filter or len(expected) < len(entity_ids(room))


@pytest.mark.parametrize("ranges", [1, 2, 7, 50])
def test_every_document_is_in_one_range(room: SourceRoom, ranges: int) -> None:
    assert by_id(room.rows(partitions=str(ranges))) == by_id(shown(row) for row in room.things.find_all())


def test_history_is_that_of_get_history(room: SourceRoom) -> None:
    expected = []
    for one in entity_ids(room):
        entries = room.things.get_history(one)
        for entry, after in zip(entries, [*entries[1:], None], strict=True):
            document = room.things.get_at(one, seq=entry.seq)
            cells = None if document is None else shown(document)
            expected.append(
                {
                    "id": one,
                    "seq": entry.seq,
                    "op": entry.op,
                    "ts": moment(entry.ts),
                    "until": None if after is None else moment(after.ts),
                    "actor": entry.actor,
                    "document": None if cells is None else {name: cells[name] for name in cells if name != "id"},
                    "diff": None if entry.diff is None else dumps(dict(entry.diff)).decode(),
                    "metadata": dumps(dict(entry.metadata)).decode() if entry.metadata else None,
                }
            )

    assert by_id(room.rows(history="true")) == by_id(expected)
    assert {row["op"] for row in expected} == {"create", "update", "delete", "restore"}


@pytest.mark.parametrize("seq", [1, 2, 4, 9])
def test_documents_at_a_seq_are_those_of_get_at(room: SourceRoom, seq: int) -> None:
    expected = []
    for one in entity_ids(room):
        try:
            document = room.things.get_at(one, seq=seq)
        except NotFound:
            continue
        expected += [] if document is None else [shown(document)]

    assert by_id(room.rows(at=str(seq))) == by_id(expected)


def test_documents_at_a_time_are_those_of_get_at() -> None:
    room = SourceRoom(memory_url())
    things = room.things
    for number in range(8):
        things.save(things.create({"count": number}, id=f"t{number}"))
    times = [entry.ts for one in room.histories() for entry in things.get_history(one)]
    room.session.clock.sleep(1.1)
    things.patch("t1", {"count": 100})
    things.delete("t2")
    later = things.get_history("t1")[-1].ts

    for time in (max(times), later, "2020-01-01T00:00:00Z"):
        expected = []
        for one in room.histories():
            try:
                document = things.get_at(one, time=time)
            except NotFound:
                continue
            expected += [] if document is None else [shown(document)]
        assert by_id(room.rows(at=time)) == by_id(expected)
    assert len(room.rows(history="true", at=max(times))) == 8
    assert [row["until"] for row in room.rows(history="true", at=max(times))] == [None] * 8


def test_trash_is_that_of_list_trashed(room: SourceRoom) -> None:
    rows = by_id(room.rows(trash="true"))
    listed = sorted(room.things.list_trashed(), key=lambda one: str(one["id"]))
    before = {one: room.things.get_history(one)[-1].snapshot for one in (str(row["id"]) for row in listed)}

    assert [row["id"] for row in rows] == [one["id"] for one in listed]
    assert [row["deletedBy"] for row in rows] == ["user:ann"] * len(listed)
    assert [row["restorePath"] for row in rows] == [one["restorePath"] for one in listed]
    for row in rows:
        expected = shown({"id": "", **(before[str(row["id"])] or {})})
        assert row["document"] == {name: expected[name] for name in expected if name != "id"}


def test_filters_of_history_and_trash_look_at_the_document(room: SourceRoom) -> None:
    rows = room.rows(history="true", filter='{"name": "n1"}')

    assert rows
    for row in rows:
        before = room.things.get_history(str(row["id"]))[int(str(row["seq"])) - 1].snapshot
        document = row["document"] or before
        assert isinstance(document, dict)
        assert document["name"] == "n1"
    for row in room.rows(trash="true", filter='{"name": "n1"}'):
        assert isinstance(row["document"], dict)
        assert row["document"]["name"] == "n1"


# Broken documents

MODES = {"PERMISSIVE": ["good", "was"], "DROPMALFORMED": ["good"]}


def broken_room() -> SourceRoom:
    """`good`; `was`, which was valid once; `never`, which never was."""
    room = SourceRoom(memory_url())
    for one in ("good", "was"):
        room.things.save(room.things.create({"count": 1}, id=one))
    room.session.store.put("org/things/was/data.json", b'{"count": "many"}')
    room.session.store.put("org/things/never/data.json", b"not JSON")
    return room


@pytest.mark.parametrize("mode", MODES)
def test_a_broken_document_does_not_stop_a_read(mode: str) -> None:
    rows = broken_room().rows(mode=mode)

    assert [(row["id"], row["count"]) for row in by_id(rows)] == [(one, 1) for one in MODES[mode]]


def test_failfast_names_the_broken_document() -> None:
    with pytest.raises(Invalid, match=r"never|was"):
        broken_room().rows(mode="failfast")


def test_a_reader_may_ask_what_is_broken() -> None:
    schema = StructType([PLACE, StructField("count", LongType()), StructField(CORRUPT, StringType())])
    rows = {row["id"]: row for row in broken_room().rows(schema=schema, filter='{"count": 1}')}

    assert rows["good"] == {"id": "good", "count": 1, CORRUPT: None}
    assert (rows["was"]["count"], rows["never"]["count"]) == (1, None)
    assert "count" in str(rows["was"][CORRUPT])
    assert rows["never"][CORRUPT]


def test_damage_of_the_history_stops_the_read() -> None:
    room = broken_room()
    room.session.store.put(".oplog/things/good/0001.json", b"{}")

    with pytest.raises(Corrupt):
        room.rows(history="true")


# Schemas of the reader's own


def test_a_schema_chooses_columns_and_types() -> None:
    room = SourceRoom(memory_url())
    document: JsonObject = {
        "count": 70_000,
        "score": 1.25,
        "since": "2026-02-03T23:30:00-01:00",
        "address": {"city": "Bonn", "floor": 2},
        "anything": {"a": "x", "b": None},
        "extra": {"k": [1]},
    }
    room.things.save(room.things.create(document, id="one"))
    schema = StructType(
        [
            StructField("extra", StringType()),
            StructField("score", DecimalType(5, 1)),
            StructField("since", DateType()),
            StructField("address.city", StringType()),
            StructField("anything", MapType(StringType(), StringType())),
            StructField("count", IntegerType()),
            StructField("nowhere", StringType()),
        ]
    )

    (row,) = room.rows(schema=schema)

    assert list(row) == schema.fieldNames()
    assert row["extra"] == '{"k":[1]}'
    assert str(row["score"]) == "1.2"
    assert str(row["since"]) == "2026-02-04"
    assert row["address.city"] == "Bonn"
    assert row["anything"] == [("a", "x"), ("b", None)]
    assert (row["count"], row["nowhere"]) == (70_000, None)


def test_a_value_that_does_not_fit_is_null_and_told() -> None:
    room = SourceRoom(memory_url())
    room.things.save(room.things.create({"count": 2**63, "name": "big"}, id="one"))
    fields = [PLACE, StructField("count", LongType()), StructField("name", StringType())]

    (row,) = room.rows(schema=StructType([*fields, StructField(CORRUPT, StringType())]))
    assert (row["count"], row["name"]) == (None, "big")
    assert str(2**63) in str(row[CORRUPT])
    assert room.rows(schema=StructType(fields), mode="DROPMALFORMED") == []
    with pytest.raises(Invalid, match=str(2**63)):
        room.rows(mode="FAILFAST")


def test_the_types_of_a_model() -> None:
    definition = SourceRoom(memory_url()).spec.collection().definition

    assert schema_of(definition, "documents").simpleString() == (
        "struct<id:string,name:string,count:bigint,score:double,active:boolean,since:timestamp,tags:array<string>,"
        "visits:array<timestamp>,address:struct<city:string,floor:bigint>,anything:string,mixed:array<string>,"
        "createdAt:timestamp,updatedAt:timestamp>"
    )
    assert schema_of(definition, "history").fieldNames()[:7] == ["id", "seq", "op", "ts", "until", "actor", "document"]


def test_two_fields_that_spark_takes_for_one_are_refused() -> None:
    fields = {"Name": FIELDS["name"], "name": FIELDS["name"]}
    model = load_schema({"models": {"Thing": {"path": "#org/@things/(id:string)", "fields": fields}}}).model("Thing")

    with pytest.raises(Invalid, match="which are one column for Spark"):
        check_names(model, schema_of(model, "documents"))


# Options

WRONG = [
    ({"fitler": "{}"}, "unknown option"),
    ({"filter": "[]"}, "JSON object"),
    ({"filter": '{"a": {"$what": 1}}'}, "unknown operator"),
    ({"at": "soon"}, "neither a seq nor a time"),
    ({"history": "yes"}, "true or false"),
    ({"trash": "true", "at": "1"}, "trash cannot be combined with history or at"),
    ({"partitions": "0"}, "whole number"),
    ({"mode": "LOUD"}, "must be one of"),
    ({"url": "memory://x"}, "one process"),
    ({"url": ""}, "url is missing"),
    ({"model": ""}, "model is missing"),
]


@pytest.mark.parametrize(("options", "problem"), WRONG, ids=[problem for _, problem in WRONG])
def test_mistakes_in_options_are_told(options: dict[str, str], problem: str) -> None:
    with pytest.raises(Invalid, match=problem):
        ReadOptions.of({"url": "file:///x", "model": "Thing", **options})


def test_a_relative_path_is_the_same_in_every_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    assert ReadOptions.of({"path": "./data", "model": "Thing"}).target.url == str(tmp_path / "data")
