"""Choice and estimates on a table that is spread over files: no more GETs than a scan takes, and one scan is enough."""

from __future__ import annotations

from functools import partial

import pytest

from tests.query.test_plan import Room
from worm.formats.strict_json import JsonValue
from worm.query import planner
from worm.query.needs import STRATEGIES
from worm.tables.view import TableView

FIELDS = ["name", "email", "status", "tags"]
PARTS = {"enabled": True, "partitionThreshold": 20, "maxPartitions": 8, "fields": FIELDS}


def state_of(room: Room) -> TableView:
    state = room.fresh().table.view()
    assert state is not None
    return state


@pytest.fixture(scope="module")
def room() -> Room:
    """8 partitions and some deltas."""
    room = Room(160, manifest=PARTS)
    for at in range(5):
        room.clock.advance(1)
        room.fresh().patch(f"c{at:03}", {"name": f"other {at}"})
    state = state_of(room)
    assert (state.partitions, state.deltas) == (8, 5)
    return room


def test_a_look_up_that_finds_more_than_a_scan_has_to_read_is_left(room: Room) -> None:
    session = room.fresh()
    files = state_of(room).requests
    active = partial(session.find_all, {"status": "active"}, select=["name"])
    first = room.spent(active)
    assert first == 1 + files + 2  # the root, all files, and of the index: the root again and one part
    found = active()
    assert (found.plan.strategy, len(found)) == ("manifest_scan", 80)
    assert room.spent(active) == 1


def test_a_look_up_that_finds_fewer_is_taken_until_the_rows_are_in_memory(room: Room) -> None:
    few: dict[str, JsonValue] = {"status": "inactive", "tags": "vip", "name": "Name 2"}
    session = room.fresh()
    page = session.find_all(filter={"status": "active"}, select=["name"], limit=3)
    assert page.plan.strategy == "index_lookup"  # 4 documents, however many match
    sorted_page = room.fresh().find_all(filter={"status": "active"}, select=["name"], limit=3, sort={"field": "name"})
    assert sorted_page.plan.strategy == "manifest_scan"
    wider = room.fresh().find_all(filter=few, select=["name"], limit=3)
    assert wider.plan.strategy == "manifest_scan"  # the look-up does not tell which of its 16 match the name
    session.find_all(select=["name"])
    again = session.find_all(filter={"status": "active"}, select=["name"], limit=3)
    assert (again, again.plan.strategy) == (page, "manifest_scan")


def test_many_ids_that_the_filter_names_are_left_to_a_scan_too(room: Room) -> None:
    ids: list[JsonValue] = [f"c{at:03}" for at in range(11)]
    assert room.fresh().find_all(filter={"id": {"$in": ids}}, select=["name"]).plan.strategy == "index_lookup"
    many: list[JsonValue] = [f"c{at:03}" for at in range(40)]
    found = room.fresh().find_all(filter={"id": {"$in": many}}, select=["name"])
    assert (found.plan.strategy, len(found)) == ("manifest_scan", 40)


def test_two_partitions_are_scanned_at_once() -> None:
    room = Room(30, manifest=PARTS)
    assert state_of(room).partitions == 2
    session = room.fresh()
    vip = partial(session.find_all, {"tags": "vip"}, select=["name"])
    assert room.spent(vip) == 3
    assert room.spent(vip) == 1
    assert room.spent(lambda: room.fresh().find_all(filter={"email": "1@x.org"}, select=["name"])) == 4


def test_large_files_weigh_more_than_their_number(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "GET_BYTES", 10)
    found = room.fresh().find_all(filter={"status": "active"}, select=["name"])
    assert (found.plan.strategy, len(found)) == ("index_lookup", 80)


QUERIES: list[dict[str, object]] = [
    {"filter": {"email": "7@x.org"}},
    {"filter": {"email": {"$in": ["7@x.org", "9@x.org"]}}, "select": ["name"]},
    {"filter": {"id": "c001"}},
    {"filter": {"id": {"$in": ["c001", "c002"]}}, "limit": 1},
    {"filter": {"name": "Name 1"}, "select": ["name"]},
    {"sort": {"field": "name"}, "limit": 7, "offset": 2},
    {"strategy": "full_scan"},
    {"strategy": "full_scan", "limit": 10},
    {"strategy": "full_scan", "limit": 10, "offset": 3},
    {"strategy": "full_scan", "limit": 500},
    {"strategy": "full_scan", "limit": 10, "sort": {"field": "notes"}},
    {"filter": {"notes": "note 1"}},
    {"filter": {"notes": "note 1"}, "limit": 1},
    {"strategy": "index_lookup", "filter": {"status": "active"}, "limit": 4},
]


@pytest.mark.parametrize("is_partitioned", [True, False])
@pytest.mark.parametrize("at", range(len(QUERIES)))
def test_where_the_number_of_documents_is_known_the_estimate_is_what_a_fresh_session_takes(
    room: Room, whole: Room, at: int, is_partitioned: bool
) -> None:
    chosen = room if is_partitioned else whole
    plan = chosen.fresh().explain(**QUERIES[at], analyze=True)  # type: ignore[arg-type]
    assert plan.actual is not None
    assert plan.estimate.requests == {kind: count for kind, count in plan.actual.cost.requests.items() if count}


@pytest.fixture(scope="module")
def whole() -> Room:
    return Room(160, manifest={"enabled": True, "fields": FIELDS})


@pytest.mark.parametrize("query", [*QUERIES, {"filter": {"name": "Name 1"}}, {"filter": {"name": "x"}, "limit": 3}])
def test_an_estimate_is_the_same_before_and_after_and_with_everything_in_memory(
    room: Room, query: dict[str, object]
) -> None:
    session = room.fresh()
    before = session.explain(**query)  # type: ignore[arg-type]  # arguments of a table of cases
    analyzed = session.explain(**query, analyze=True)  # type: ignore[arg-type]  # arguments of a table of cases
    assert (analyzed.strategy, analyzed.estimate) == (before.strategy, before.estimate)
    session.find_all(select=["name"])
    after = session.explain(**query)  # type: ignore[arg-type]  # arguments of a table of cases
    if after.strategy == before.strategy:
        assert after.estimate == before.estimate
    warm = session.explain(**query, analyze=True)  # type: ignore[arg-type]  # arguments of a table of cases
    assert warm.actual is not None
    assert warm.actual.cost.total <= warm.estimate.total


def test_the_bytes_of_a_look_up_are_about_those_of_the_files_that_it_reads(room: Room) -> None:
    plan = room.fresh().explain(filter={"email": "7@x.org"}, analyze=True)
    assert plan.actual is not None
    assert plan.actual.cost.bytes / 2 < plan.estimate.bytes < plan.actual.cost.bytes * 2


def test_rows_tell_how_many_documents_were_really_read(room: Room) -> None:
    page = room.fresh().find_all(filter={"id": {"$in": [f"c{at:03}" for at in range(9)]}}, limit=2)
    assert (page.plan.strategy, page.plan.estimate.requests) == ("index_lookup", {"GET": 3})
    none = room.fresh().find_all(filter={"id": {"$in": ["x\x7f", "c001"]}})
    assert none.plan.estimate.requests == {"GET": 1}  # the other can be no id
    first = room.fresh().find_all(strategy="full_scan", limit=10)
    assert first.plan.estimate.requests["GET"] == 11


def test_every_strategy_gives_the_same_rows_cold_and_warm(room: Room) -> None:
    wanted = {"filter": {"status": "active", "tags": "all"}, "select": ["name", "tags"]}
    session = room.fresh()
    plain = session.find_all(**wanted)  # type: ignore[call-overload]  # arguments of a table of cases
    for strategy in STRATEGIES:
        for model in (session, room.fresh()):
            assert model.find_all(**wanted, strategy=strategy) == plain, strategy  # type: ignore[call-overload]
