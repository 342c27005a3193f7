"""Tasks of a write, run in this process: what they store, and that running them again or at once changes nothing."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pytest
from pyspark.sql.types import StringType, StructField, StructType

from tests.spark.source_room import START, SourceRoom, by_id, memory_url, random_document, random_id
from worm.errors import Conflict, Unavailable, WormError
from worm.formats.strict_json import JsonObject
from worm.sdk.access import Touched
from worm.sdk.jobs import JobModel
from worm.spark.source import saving
from worm.spark.source.writer import WormWriter, Writing, Written
from worm.tables.verify import verify_collection

Row = Mapping[str, object]
STAMP = "2026-03-01T12:00:00.000Z"
IDS = StructType([StructField("id", StringType())])


@pytest.fixture
def room() -> SourceRoom:
    return SourceRoom(memory_url())


def rows(count: int, **more: object) -> list[Row]:
    return [{"id": f"t{number}", "name": f"n{number}", "count": number, **more} for number in range(count)]


def clean(room: SourceRoom) -> bool:
    return verify_collection(room.spec.collection()).is_clean


# What is stored


def test_rows_become_documents(room: SourceRoom) -> None:
    moment = datetime(2026, 2, 3, 4, 5, 6, 789_000, tzinfo=UTC)
    row: Row = {
        "id": "one",
        "name": None,
        "count": 2.0,
        "score": Decimal("1.50"),
        "since": moment,
        "tags": ["a"],
        "visits": [moment + timedelta(microseconds=1)],
        "address": {"city": "Bonn", "floor": None},
        "anything": '{"deep": [1, null]}',
        "extra": date(2026, 1, 2),
    }

    assert room.write([row]).counts == {"created": 1}
    assert room.things.find_by_id("one") == {
        "id": "one",
        "count": 2,
        "score": 1.5,
        "since": "2026-02-03T04:05:06.789Z",
        "tags": ["a"],
        "visits": ["2026-02-03T04:05:06.789001Z"],
        "address": {"city": "Bonn"},
        "anything": {"deep": [1, None]},
        "extra": "2026-01-02",
        "createdAt": STAMP,
        "updatedAt": STAMP,
    }
    assert room.histories() == {"one": ["create"]}
    assert clean(room)


def test_times_of_the_frame_are_kept_at_creation(room: SourceRoom) -> None:
    long_ago = datetime(2020, 1, 1, tzinfo=UTC)
    room.write([{"id": "one", "createdAt": long_ago, "updatedAt": None}])

    stored = room.things.get("one")
    assert (stored["createdAt"], stored["updatedAt"]) == ("2020-01-01T00:00:00.000Z", STAMP)


def test_defaults_and_the_actor_are_those_of_the_rules() -> None:
    room = SourceRoom(memory_url(), fields={"name": {"type": "string", "default": "none"}, "n": {"type": "integer"}})
    room.write([{"id": "one", "name": None}], room.writing(actor="job:import"))

    assert room.things.get("one")["name"] == "none"
    assert room.things.get_history("one")[0].actor == "job:import"
    assert room.write([{"id": "one", "name": None}]).counts == {"unchanged": 1}


def test_what_was_read_can_be_written_back_without_a_change(room: SourceRoom) -> None:
    rng = random.Random(3)
    for one in sorted({random_id(rng, number) for number in range(30)}):
        room.things.save(room.things.create(random_document(rng), id=one))
    before = room.histories()
    read = room.rows()

    for overwrite in (True, False):
        written = room.write(read, room.writing(overwrite=overwrite))
        if overwrite:
            assert written.counts == {"unchanged": len(before)}
    assert room.histories() == before


# Again, and at once


def test_a_task_that_runs_twice_stores_once(room: SourceRoom) -> None:
    writing = room.writing()
    first, second = room.write(rows(7), writing), room.write(rows(7), writing)

    assert (first.counts, second.counts) == ({"created": 7}, {"unchanged": 7})
    assert room.histories() == {f"t{number}": ["create"] for number in range(7)}


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_task_that_fails_halfway_is_finished_by_the_next(room: SourceRoom, overwrite: bool) -> None:
    if overwrite:
        room.write(rows(10))
    changed = rows(10, active=True)
    writing = room.writing(overwrite=overwrite, start=START + timedelta(hours=1), batch="3")

    def failing() -> Iterator[Row]:
        yield from changed[:8]
        raise ConnectionResetError("the executor died")

    with pytest.raises(ConnectionResetError):
        room.write(failing(), writing)
    assert sum(row["active"] is True for row in room.rows()) == 6
    written = room.write(changed, writing)

    assert written.counts == {"unchanged": 6, "updated" if overwrite else "created": 4}
    expected = ["create", "update"] if overwrite else ["create"]
    assert room.histories() == {f"t{number}": expected for number in range(10)}
    assert clean(room)


def test_an_attempt_that_dies_before_the_history_is_made_good(
    room: SourceRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dead(self: JobModel, touched: list[Touched], failed: dict[str, WormError]) -> None:
        raise Unavailable("the executor died")

    writing = room.writing()
    with monkeypatch.context() as patched:
        patched.setattr(JobModel, "_followed", dead)
        with pytest.raises(Unavailable):
            room.write(rows(4), writing)
    assert room.histories() == {}

    assert room.write(rows(4), writing).counts == {"unchanged": 4}
    assert room.histories() == {f"t{number}": ["create"] for number in range(4)}
    assert clean(room)


def test_a_model_without_oplog_is_made_good_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    room = SourceRoom(memory_url(), oplog=False, softDelete=False, snapshots={})
    with monkeypatch.context() as patched:
        patched.setattr(JobModel, "_followed", lambda self, touched, failed: {})
        room.write(rows(4))
    assert not clean(room)

    assert room.write(rows(4)).counts == {"unchanged": 4}
    assert clean(room)


@pytest.mark.parametrize("overwrite", [False, True])
def test_speculation_leaves_one_entry_for_each_change(room: SourceRoom, overwrite: bool) -> None:
    if overwrite:
        room.write(rows(40))
    changed, writing = rows(40, active=True), room.writing(overwrite=overwrite, start=START + timedelta(hours=1))
    with ThreadPoolExecutor(4) as pool:
        attempts = list(pool.map(lambda _: room.write(changed, writing), range(4)))

    won = sum(one.counts.get("updated" if overwrite else "created", 0) for one in attempts)
    assert (won, sum(one.counts.get("unchanged", 0) for one in attempts)) == (40, 120)
    expected = ["create", "update"] if overwrite else ["create"]
    assert room.histories() == {f"t{number}": expected for number in range(40)}
    assert clean(room)


def test_a_late_attempt_does_not_write_over_a_newer_change(room: SourceRoom) -> None:
    room.write(rows(3))
    changed = rows(3, active=True)
    now = room.session.clock.now()
    writing = room.writing(overwrite=True, start=now)
    room.write(changed, writing)
    room.things.patch("t1", {"active": False, "name": "newer"})

    assert room.write(changed, writing).counts == {"unchanged": 3}
    assert room.things.get("t1")["name"] == "newer"
    assert room.write(changed, room.writing(overwrite=True, start=now + timedelta(seconds=1))).counts == {
        "unchanged": 2,
        "updated": 1,
    }


def test_a_late_attempt_does_not_refuse_what_the_job_created(room: SourceRoom) -> None:
    writing = room.writing(start=room.session.clock.now())
    room.write(rows(2), writing)
    room.things.patch("t1", {"name": "newer"})

    assert room.write(rows(2), writing).counts == {"unchanged": 2}
    assert room.write(rows(2), room.writing()).counts == {"unchanged": 1, "refused": 1}
    assert room.things.get("t1")["name"] == "newer"


def test_a_late_attempt_does_not_bring_back_what_was_deleted(room: SourceRoom) -> None:
    writing = room.writing(start=room.session.clock.now())
    room.write(rows(2), writing)
    room.things.delete("t0")
    saver = writing.saver()
    saver.is_rerun = True

    saver.save([(str(row["id"]), {"name": str(row["name"]), "count": int(str(row["count"]))}) for row in rows(2)])

    assert saver.saved.counts == {"unchanged": 2}
    assert room.histories() == {"t0": ["create", "delete"], "t1": ["create"]}


# Append and overwrite


def test_append_refuses_other_content_and_names_the_ids(room: SourceRoom) -> None:
    room.write(rows(3))
    written = room.write([*rows(5)[3:], *rows(2, name="other")])

    assert written.counts == {"created": 2, "refused": 2}
    assert set(written.refused) == {"t0", "t1"}
    assert room.things.get("t0")["name"] == "n0"
    with pytest.raises(Conflict, match=r"2 created, 0 updated, 0 unchanged, 2 refused.*t0.*t1"):
        WormWriter(room.writing(), IDS).commit([written, None])


def test_a_task_remembers_only_some_of_the_refused_documents(room: SourceRoom, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task may have a million rows, and all of them may be refused."""
    monkeypatch.setattr(saving, "REFUSED_MAX", 3)
    room.write(rows(5))
    saver = room.writing().saver()
    monkeypatch.setattr(Writing, "saver", lambda writing: saver)
    wrong: list[Row] = [{"id": f"w{number}", "anything": "no JSON"} for number in range(2)]
    written = room.write([*rows(5, name="other"), *wrong])
    assert (written.counts, len(saver.saved.refused)) == ({"refused": 7}, 3)
    with pytest.raises(Conflict, match=r"0 unchanged, 7 refused\. "):
        WormWriter(room.writing(), IDS).commit([written])


def test_a_commit_without_refusals_is_quiet(room: SourceRoom) -> None:
    WormWriter(room.writing(), IDS).commit([Written({"created": 1}), Written({"unchanged": 2})])


def test_overwrite_sets_the_columns_and_keeps_the_rest(room: SourceRoom) -> None:
    document: JsonObject = {
        "name": "old",
        "count": 1,
        "since": "2026-01-01",
        "address": {"city": "Bonn", "floor": 1, "more": "kept"},
        "extra": {"kept": True},
    }
    room.things.save(room.things.create(document, id="one"))
    before = room.things.get("one")
    row: Row = {
        "id": "one",
        "name": "new",
        "count": None,
        "since": datetime(2026, 1, 1, tzinfo=UTC),
        "address": {"city": "Köln", "floor": 1},
    }
    room.write([row, {"id": "two", "name": "more"}], room.writing(overwrite=True))

    assert room.things.find_by_id("one") == {
        "id": "one",
        "name": "new",
        "since": "2026-01-01",
        "address": {"city": "Köln", "floor": 1, "more": "kept"},
        "extra": {"kept": True},
        "createdAt": before["createdAt"],
        "updatedAt": STAMP,
    }
    assert sorted(room.histories()) == ["one", "two"]


def test_replace_drops_what_the_frame_does_not_have(room: SourceRoom) -> None:
    room.things.save(room.things.create({"name": "old", "extra": 1}, id="one"))
    created = room.things.get("one")["createdAt"]
    writing = room.writing(overwrite=True, replace="true")
    room.write([{"id": "one", "name": "old"}], writing)

    expected = {"id": "one", "name": "old", "createdAt": created, "updatedAt": STAMP}
    assert room.things.find_by_id("one") == expected
    assert room.write([{"id": "one", "name": "old"}], writing).counts == {"unchanged": 1}


def test_documents_that_are_not_in_the_frame_stay(room: SourceRoom) -> None:
    room.write(rows(3))
    room.write(rows(1, name="new"), room.writing(overwrite=True))

    assert [row["name"] for row in by_id(room.rows())] == ["new", "n1", "n2"]


def test_a_broken_document_is_replaced_only_by_overwrite(room: SourceRoom) -> None:
    room.session.store.put("org/things/t0/data.json", b"not JSON")

    assert room.write(rows(1)).counts == {"refused": 1}
    assert room.write(rows(1), room.writing(overwrite=True)).counts == {"updated": 1}
    assert room.things.get("t0")["name"] == "n0"
