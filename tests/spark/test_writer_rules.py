"""Tasks of a write, run in this process, keep the rules of the model, and say what they refuse."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal

import pytest
from pyspark.sql.types import StringType, StructField, StructType

from tests.spark.source_room import SourceRoom, memory_url, shown
from worm.errors import Conflict, Invalid
from worm.spark.source.options import WriteOptions
from worm.spark.source.writer import WormWriter

Row = Mapping[str, object]
IDS = StructType([StructField("id", StringType())])


@pytest.fixture
def room() -> SourceRoom:
    return SourceRoom(memory_url())


def rows(count: int, **more: object) -> list[Row]:
    return [{"id": f"t{number}", "name": f"n{number}", "count": number, **more} for number in range(count)]


def test_a_unique_value_that_is_taken_is_refused() -> None:
    room = SourceRoom(memory_url(), indexes={"byName": {"field": "name", "unique": True}})
    room.write(rows(2))
    written = room.write([{"id": "x", "name": "n1"}, {"id": "y", "name": "free"}])

    assert written.counts == {"created": 1, "refused": 1}
    assert "Unique constraint violation: name" in written.refused["x"]


REFUSED: list[tuple[Row, str]] = [
    ({"id": None, "name": "x"}, "no id"),
    ({"id": "a\x7fb", "name": "x"}, "control character"),
    ({"id": "x", "count": 1.5}, "must be an integer"),
    ({"id": "x", "score": float("nan")}, "nan is not JSON"),
    ({"id": "x", "name": b"bytes"}, "cast the column"),
    ({"id": "x", "anything": "{"}, "must be the JSON of an object"),
    ({"id": "x", "score": Decimal("12345678901234567890.12")}, "more digits than a number"),
    ({"id": "x", "address": {"floor": Decimal("1E-400")}}, "address.floor: .* more digits"),
]


@pytest.mark.parametrize(("row", "problem"), REFUSED, ids=[problem for _, problem in REFUSED])
def test_a_row_that_is_no_document_is_refused_and_the_others_saved(room: SourceRoom, row: Row, problem: str) -> None:
    written = room.write([row, *rows(2)])

    assert written.counts == {"created": 2, "refused": 1}
    with pytest.raises(Conflict, match=problem):
        WormWriter(room.writing(), IDS).commit([written])


def test_decimals_that_a_double_keeps_are_numbers(room: SourceRoom) -> None:
    given = ["0.1", "-2.50", "1E+3", "1234567890123456789", "0.30000000000000004"]
    room.write([{"id": f"d{at}", "score": Decimal(one)} for at, one in enumerate(given)])

    found = [room.things.get(f"d{at}") for at in range(len(given))]
    assert [one["score"] for one in found] == [0.1, -2.5, 1000, 1234567890123456789, 0.30000000000000004]


def test_an_id_twice_is_no_error_where_the_content_is_equal(room: SourceRoom) -> None:
    assert room.write([*rows(1), *rows(1), *rows(1, name="other")]).counts == {
        "created": 1,
        "unchanged": 1,
        "refused": 1,
    }


def test_what_cannot_be_written_is_told_before_any_task(room: SourceRoom) -> None:
    with pytest.raises(Invalid, match="no column id"):
        WormWriter(room.writing(), StructType([StructField("name", StringType())]))
    for mode, what in (("readonly", "read-only"), ("append", "append-only")):
        other = SourceRoom(memory_url(), mode=mode)
        with pytest.raises(Invalid, match=what):
            WormWriter(other.writing(overwrite=True), IDS)
    with pytest.raises(Invalid, match="unknown option 'filter'"):
        WriteOptions.of({"url": "file:///x", "model": "Thing", "filter": "{}"})
    with pytest.raises(Invalid, match="inline or events"):
        WriteOptions.of({"url": "file:///x", "model": "Thing", "maintenance": "later"})


def test_an_append_only_model_takes_new_documents() -> None:
    room = SourceRoom(memory_url(), mode="append")

    assert room.write(rows(2)).counts == {"created": 2}
    assert room.write(rows(2)).counts == {"unchanged": 2}
    assert room.write(rows(2, name="other")).counts == {"refused": 2}


def test_a_singleton_is_written_without_an_id() -> None:
    room = SourceRoom(memory_url(), path="#org/@things")
    room.write([{"name": "only"}], room.writing())
    room.write([{"name": "changed"}], room.writing(overwrite=True))

    found = room.things.find_by_id()
    assert found is not None
    assert shown(found)["name"] == "changed"
    assert room.histories() == {"_": ["create", "update"]}
    assert [row["name"] for row in room.rows()] == ["changed"]


def test_numbers_as_ids_stay_as_they_are_written() -> None:
    room = SourceRoom(memory_url(), path="#org/@things/(id:int)")
    room.things.save(room.things.create({"id": 7, "name": "old"}))

    assert room.write([{"id": 7, "name": "new"}, {"id": "8"}], room.writing(overwrite=True)).counts == {
        "updated": 1,
        "created": 1,
    }
    assert room.things.get("7")["id"] == 7


def test_events_leave_the_history_to_the_workers() -> None:
    room = SourceRoom(memory_url(), maintenance="events")
    written = room.write(rows(2), room.writing(maintenance="events"))

    assert written.counts == {"created": 2}
    assert room.histories() == {}
