"""Values that do not fit and entries that are gone: what tasks of a read show all the same, and what stops them."""

from __future__ import annotations

import pytest
from pyspark.sql.types import ArrayType, LongType, MapType, StringType, StructField, StructType

from tests.spark.source_room import FIELDS, SourceRoom, memory_url
from worm.errors import Corrupt, Invalid
from worm.spark.source.cells import Batches, Row
from worm.spark.source.schema import CORRUPT, schema_of


@pytest.fixture
def room() -> SourceRoom:
    return SourceRoom(memory_url(), snapshots={"every": 100})


# Values that do not fit


def test_an_old_state_keeps_what_fits_the_schema_of_today() -> None:
    url = memory_url()
    before = SourceRoom(url, fields={**FIELDS, "level": {"type": "string"}})
    before.things.save(before.things.create({"name": "Acme", "level": "high"}, id="a"))
    before.things.delete("a")
    room = SourceRoom(url, fields={**FIELDS, "level": {"type": "integer"}})
    room.things.save(room.things.create({"name": "Acme", "level": 3}, id="a"))
    kind = schema_of(room.spec.collection().definition, "history")

    rows = room.rows(history="true", schema=StructType([*kind.fields, StructField(CORRUPT, StringType())]))

    shown = [(row["document"]["name"], row["document"]["level"]) for row in rows if isinstance(row["document"], dict)]
    assert shown == [("Acme", None), ("Acme", 3)]
    assert [row[CORRUPT] for row in rows] == ['document: level: "high" is not a valid integer of 64 bits', None, None]
    assert [row["seq"] for row in room.rows(history="true", mode="DROPMALFORMED")] == [2, 3]
    with pytest.raises(Invalid, match="level"):
        room.rows(history="true", mode="FAILFAST")


def test_only_the_value_that_does_not_fit_is_null_at_every_depth() -> None:
    inner = StructType(
        [StructField("n", LongType()), StructField("deep.n", LongType()), StructField("t", StringType())]
    )
    schema = StructType(
        [
            StructField("one", inner),
            StructField("many", ArrayType(inner)),
            StructField("named", MapType(StringType(), LongType())),
            StructField("numbers", ArrayType(LongType())),
            StructField("scalar", inner),
        ]
    )
    batches = Batches(schema)
    cells, reason = batches.fit(
        Row(
            {
                "one": {"n": "x", "deep": {"n": 5}, "t": "kept"},
                "many": [{"n": 1, "t": "a"}, {"n": 2**63, "t": "b"}, None, 7],
                "named": {"a": 1, "b": "x", "c": None},
                "numbers": [1, "2", None, 3],
                "scalar": 5,
            }
        )
    )

    assert cells == {
        "one": {"n": None, "deep.n": 5, "t": "kept"},
        "many": [{"n": 1, "deep.n": None, "t": "a"}, {"n": None, "deep.n": None, "t": "b"}, None, None],
        "named": [("a", 1), ("b", None), ("c", None)],
        "numbers": [1, None, None, 3],
        "scalar": None,
    }
    assert reason == 'one: n: "x" is not a valid integer of 64 bits'
    assert batches.batch([cells]).num_rows == 1


# Entries that are gone


def changed(room: SourceRoom, times: int) -> None:
    """`a` with an entry for each change, and `b` with one."""
    room.things.save(room.things.create({"count": 1}, id="a"))
    room.things.save(room.things.create({"count": 1}, id="b"))
    for number in range(2, times + 1):
        room.things.patch("a", {"count": number})


@pytest.mark.parametrize("gone", [1, 2, 4])
@pytest.mark.parametrize("asked", ["history", "at a time", "at the missing one"])
def test_a_gap_in_an_oplog_stops_the_read(room: SourceRoom, gone: int, asked: str) -> None:
    changed(room, 5)
    key = room.spec.collection().oplog.key("a", gone)
    room.session.store.delete(key)
    at = "2999-01-01" if asked == "at a time" else str(gone)

    with pytest.raises(Corrupt, match="a gap in the oplog") as found:
        room.rows(history="true") if asked == "history" else room.rows(at=at)
    assert found.value.key == key


def test_an_entry_that_goes_after_it_was_listed_stops_the_read(
    room: SourceRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed(room, 5)
    collection = room.spec.collection()
    listed = collection.recorded_seqs()
    room.session.store.delete(collection.oplog.key("a", 3))
    monkeypatch.setattr(type(collection), "recorded_seqs", lambda self, within: listed)

    with pytest.raises(Corrupt, match="a gap in the oplog"):
        room.rows(history="true", partitions="1")


def test_a_gap_does_not_touch_what_was_asked_before_it(room: SourceRoom) -> None:
    changed(room, 5)
    room.session.store.delete(room.spec.collection().oplog.key("a", 4))

    assert [row["count"] for row in room.rows(at="3")] == [3]
    assert {row["id"]: row["count"] for row in room.rows(at="1")} == {"a": 1, "b": 1}
    assert room.rows(at="6") == []
