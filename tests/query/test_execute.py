"""Reading no more documents than a page needs, and what happens when a table is behind its documents."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from tests.query.asking import query_table
from tests.query.test_plan import Room
from worm.collections.entries import Row
from worm.errors import Invalid
from worm.query.execute import CHUNK, Reader
from worm.query.needs import Request
from worm.query.query import Query
from worm.query.stream import Stream


@pytest.fixture(scope="module")
def room() -> Room:
    return Room(40)


def ids(rows: Sequence[Row]) -> list[str]:
    return [str(row["id"]) for row in rows]


def test_a_page_that_the_manifest_can_order_reads_only_its_documents(room: Room) -> None:
    order = [{"field": "name", "order": "desc"}]
    first = room.fresh().find_all(sort=order, limit=4, offset=1)
    assert first.plan.strategy == "manifest_targeted"
    assert room.spent(lambda: room.fresh().find_all(sort=order, limit=4, offset=1)) == 1 + 4
    assert first == room.fresh().find_all(sort=order, limit=4, offset=1, strategy="full_scan")
    second = room.fresh().find_all(sort=order, limit=4, cursor=first.cursor)
    assert ids([*first, *second]) == ids(room.fresh().find_all(sort=order)[1:9])


def test_an_unsorted_page_of_documents_reads_until_it_is_full(room: Room) -> None:
    listing = room.spent(lambda: room.fresh().find_all(strategy="full_scan")) - 40
    page = room.fresh().find_all(limit=3, strategy="full_scan")
    assert room.spent(lambda: room.fresh().find_all(limit=3, strategy="full_scan")) == listing + 4
    assert ids(page) == ["c000", "c001", "c002"]
    following: list[Sequence[Row]] = []

    def read_on() -> None:
        following.append(room.fresh().find_all(limit=3, cursor=page.cursor, strategy="full_scan"))

    assert room.spent(read_on) == listing + 4
    assert ids(following[0]) == ["c003", "c004", "c005"]
    assert room.spent(lambda: room.fresh().find_all(filter={"status": "active"}, limit=3)) == 1 + 4
    assert room.fresh().find_all(filter={"status": "active"}, limit=20).cursor is None


def test_a_document_that_changed_since_the_fold_is_judged_as_it_is_and_makes_room_for_the_next() -> None:
    room = Room(12)
    for at in (1, 3):
        room.store.put(f"org/customers/c{at:03}/data.json", json.dumps({"name": "Other", "status": "gone"}).encode())
    room.store.delete("org/customers/c005/data.json")
    wanted = {"status": {"$in": ["active"]}}
    for strategy in ("index_lookup", "manifest_targeted", "full_scan"):
        rows = room.fresh().find_all(filter=wanted, strategy=strategy)
        assert ids(rows) == ["c007", "c009", "c011"], strategy
        page = room.fresh().find_all(filter=wanted, limit=2, strategy=strategy)
        assert ids(page) == ["c007", "c009"], strategy
        last = room.fresh().find_all(filter=wanted, limit=2, cursor=page.cursor, strategy=strategy)
        assert (ids(last), last.cursor) == (["c011"], None), strategy


def test_an_invalid_upload_counts_as_its_last_valid_state_in_every_strategy() -> None:
    room = Room(4)
    room.store.put("org/customers/c001/data.json", b'{"status": 5}')
    room.store.put("org/customers/c003/data.json", b"not JSON")
    for strategy in ("index_lookup", "manifest_targeted", "full_scan"):
        rows = room.fresh().find_all(filter={"status": "active"}, select=["notes"], strategy=strategy)
        assert rows == [{"id": "c001", "notes": "note 1"}, {"id": "c003", "notes": "note 3"}], strategy


def test_a_document_that_is_too_large_counts_as_its_last_valid_state() -> None:
    room = Room(2)
    customers = room.fresh()
    customers.table.collection.max_bytes = 300
    room.store.put("org/customers/c001/data.json", b'{"notes": "' + b"x" * 400 + b'"}')
    rows = query_table(customers.table, Query.of(filter={"notes": {"$startsWith": "note"}}, select=["notes"]))
    assert rows == [{"id": "c000", "notes": "note 0"}, {"id": "c001", "notes": "note 1"}]


def test_a_row_has_the_id_of_its_key_whatever_the_document_says() -> None:
    numbered: dict[str, object] = {"path": "#org/@things/(id:int)", "fields": {"n": {"type": "number"}}}
    room = Room(0, **numbered, oplog=False, manifest={"enabled": True}, indexes={})
    room.store.put("org/things/5/data.json", b'{"id": 5, "n": 1}')
    room.fresh().build_manifest()
    for strategy in ("manifest_scan", "manifest_targeted", "full_scan"):
        assert room.fresh().find_all(strategy=strategy) == [{"id": "5", "n": 1}]
        assert room.fresh().find_all(filter={"id": "5"}, select=["n"], strategy=strategy) == [{"id": "5", "n": 1}]


def test_a_part_of_an_object_that_the_manifest_keeps_whole_needs_no_document() -> None:
    room = Room(6, manifest={"enabled": True})
    query = Query.of(filter={"address.city": "Bern"}, select=["address.city"], limit=1)
    outcome = Reader(room.fresh().table).run(Request(query))
    assert outcome.plan.strategy == "manifest_scan"
    assert outcome.page.rows == [{"id": "c000", "address.city": "Bern"}]


def test_rows_without_a_selection_hold_no_copy_of_a_part() -> None:
    room = Room(2, manifest={"enabled": True}, indexes={"byCity": {"field": "address.city"}})
    rows = room.fresh().find_all()
    assert rows.plan.strategy == "manifest_scan"
    assert all("address.city" not in row and row["address"] == {"city": "Bern"} for row in rows)
    assert rows == room.fresh().find_all(strategy="full_scan")


def flat(found: list[list[str]]) -> list[str]:
    return [one for batch in found for one in batch]


def batches(room: Room, size: int, **query: object) -> list[list[str]]:
    request = Request(Query.of(**query))  # type: ignore[arg-type]
    return [ids(batch.page.rows) for batch in Stream(room.fresh().table, request).batches(size)]


def test_batches_come_partition_by_partition_and_hold_everything_once() -> None:
    room = Room(60, manifest={"enabled": True, "partitionThreshold": 10, "maxPartitions": 6})
    table = room.fresh().table
    state = table.view()
    assert state is not None
    assert state.partitions == 6
    stream = Stream(table, Request(Query.of(filter={"status": "active"}))).batches(4)
    started = room.spent(lambda: next(stream))
    assert started < state.requests
    wanted = [f"c{at:03}" for at in range(1, 60, 2)]
    found = batches(room, 4, filter={"status": "active"})
    assert flat(found) == wanted
    assert [len(batch) for batch in found] == [4] * 7 + [2]
    assert flat(batches(room, 7, filter={"notes": "note 9"})) == ["c009"]
    with pytest.raises(Invalid, match="at least 1"):
        batches(room, 0)


def test_batches_go_on_with_documents_where_a_partition_is_lost() -> None:
    room = Room(60, manifest={"enabled": True, "partitionThreshold": 10, "maxPartitions": 6})
    for third in list(room.store.list("org/customers/.worm.manifest/partition-3-")):
        room.store.delete(third.key)
    assert flat(batches(room, 100)) == [f"c{at:03}" for at in range(60)]


def test_documents_are_read_in_chunks() -> None:
    room = Room(0, oplog=False, manifest={"enabled": False}, indexes={})
    for at in range(CHUNK + 3):
        room.store.put(f"org/customers/d{at:04}/data.json", b'{"name": "n"}')
    assert room.fresh().count({"name": "n"}) == CHUNK + 3
    assert len(room.fresh().find_all(sort={"field": "name"}, limit=5)) == 5
