"""Merges that do not fit into one commit: chunks under one merge id, killed in between, resumed, repeated."""

from __future__ import annotations

import dataclasses
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.spaces.space_room import DyingBackend, Killed, Room, put, value
from worm.clock import Ids, VirtualClock
from worm.formats.strict_json import JsonObject
from worm.spaces.page_backend import PageBackend
from worm.spaces.results import BothChanged, LogEntry
from worm.spaces.space import Space
from worm.store.memory import MemoryStore

IDS = [f"e{number}" for number in range(7)]


def _forked(space: Space) -> None:
    """Seven changed on `dev`; two of them, `e1` and `e4`, on the main branch, too."""
    space.transact([put(entity, n=0) for entity in IDS])
    space.create_branch("dev")
    space.transact([put(entity, n=1) for entity in IDS], branch="dev")
    space.transact([put("e1", n=2), put("e4", n=2)])


def _merges(space: Space) -> list[LogEntry]:
    return [entry for entry in space.log() if "merge" in entry.original]


def _record(entry: LogEntry) -> JsonObject:
    record = entry.original["merge"]
    assert isinstance(record, dict)
    return record


def test_a_large_merge_is_several_commits_under_one_id(room: Room) -> None:
    space = room.open(merge_operations_max=3)
    _forked(space)
    first = space.merge("dev", policy="theirs", session_id="s", local_seq=1)
    assert first.changed == ("e0", "e2", "e3", "e5", "e6")
    assert [one.id for one in first.conflicts] == ["e1", "e4"]
    records = [_record(entry) for entry in _merges(space)]
    assert len({str(one["id"]) for one in records}) == 1
    assert [one["last"] for one in records] == [False, False, True]
    assert [one["previous"] for one in records] == [None, 5, 6]
    assert [one.get("decided") for one in records] == [["e1"], ["e4"], None]
    assert all(one["at"] == 4 for one in records)
    assert [value(space, entity) for entity in IDS] == [{"n": 1}] * 7
    again = space.merge("dev", policy="theirs", session_id="s", local_seq=1)
    assert first.committed is not None
    assert again.committed == dataclasses.replace(first.committed, is_repeat=True)
    assert (again.changed, space.seq) == (first.changed, 7)
    assert space.merge("dev").committed is None


def test_bytes_divide_a_merge_too(room: Room) -> None:
    space = room.open(commit_bytes_max=20_000)
    space.create_branch("dev")
    for entity in IDS:
        space.transact([put(entity, text="x" * 9_000)], branch="dev")
    space.merge("dev")
    operations = [entry.original["operations"] for entry in _merges(space)]
    assert [len(some) for some in operations if isinstance(some, list)] == [1] * 7


@pytest.mark.parametrize("is_written", [True, False])
@pytest.mark.parametrize("turn", [1, 2, 3])
def test_a_merge_that_was_killed_goes_on_where_it_ended(room: Room, turn: int, is_written: bool) -> None:
    space = room.open()
    _forked(space)
    asked: list[str] = []

    def decide(conflict: BothChanged) -> JsonObject | None:
        asked.append(conflict.id)
        return {"value": {"n": 10}}

    backend = DyingBackend.of(room.backend(), turn=turn, is_written=is_written)
    dying = room.space(backend, merge_operations_max=3)
    with pytest.raises(Killed):
        dying.merge("dev", policy=decide, session_id="s", local_seq=1)
    done = turn - 1 + is_written
    assert len(_merges(space)) == done
    asked.clear()
    merged = space.merge("dev", policy=decide, session_id="s", local_seq=1)
    assert asked == [entity for entity in ("e1", "e4") if entity not in IDS[: 3 * done]], "none is asked twice"
    assert merged.changed == ("e0", "e2", "e3", "e5", "e6"), "all of it, whatever was brought before"
    assert [value(space, entity)["n"] for entity in IDS] == [1, 10, 1, 1, 10, 1, 1]  # type: ignore[index,call-overload]  # these are objects
    records = [_record(entry) for entry in _merges(space)]
    assert len({str(one["id"]) for one in records}) == 1
    assert [one["last"] for one in records] == [*[False] * (len(records) - 1), True]
    written: list[Any] = [op["id"] for entry in _merges(space) for op in entry.original["operations"]]  # type: ignore[union-attr,index,call-overload]  # records of operations
    assert sorted(written) == IDS, "nothing is brought twice"
    assert space.merge("dev", policy=decide, session_id="s", local_seq=1).changed == merged.changed
    assert space.merge("dev").committed is None


def test_what_changed_between_two_chunks_counts(room: Room) -> None:
    space = room.open(merge_operations_max=3)
    _forked(space)
    plan = space.plan_merge("dev", policy="ours")
    chunks = plan.chunks(space.config)
    assert chunks == [("e0", "e1", "e2"), ("e3", "e4", "e5"), ("e6",)]
    space.commit_merge(plan, merge_id="m", only=chunks[0], is_last=False)
    space.transact([put("e0", n=0), put("e1", n=7)], branch="dev")  # back to the base, and a decided one changed
    space.transact([put("e2", n=8)])
    rest = space.plan_merge("dev", policy="ours")
    assert rest.merge_id == "m"
    assert [one.id for one in rest.conflicts] == ["e1", "e4"]
    changed = {one: document["value"] for one, document in rest.changes.items() if document}
    assert changed == {"e0": {"n": 0}, **{one: {"n": 1} for one in ("e3", "e5", "e6")}}
    assert space.merge("dev", policy="ours").committed is not None
    assert value(space, "e2") == {"n": 8}, "what main changed after the chunk stays"
    assert space.merge("dev").committed is None


def test_a_catch_up_that_was_killed_is_seen_as_far_as_it_came(room: Room) -> None:
    """Merging back must not bring what the branch had just got."""
    space = room.open(merge_operations_max=1)
    space.transact([put("a", n=0), put("b", n=0)])
    space.create_branch("dev")
    space.transact([put("a", n=1), put("b", n=1)])
    plan = space.plan_merge("main", "dev")
    space.commit_merge(plan, only=["a"], is_last=False)
    space.transact([put("a", n=0)])  # back to where both began
    assert space.plan_merge("dev").changes == {}
    assert space.plan_merge("dev").conflicts == ()


def test_two_that_merge_the_same_at_once_bring_it_once(room: Room) -> None:
    first, second = room.open(merge_operations_max=1), room.open(merge_operations_max=1)
    ids = [f"e{number:02}" for number in range(20)]
    first.create_branch("dev")
    first.transact([put(entity, n=1) for entity in ids], branch="dev")
    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(space.merge, "dev") for space in (first, second)]:
            done.result(timeout=60)
    written = [op["id"] for entry in _merges(first) for op in entry.original["operations"]]  # type: ignore[union-attr,index,call-overload]  # records of operations
    assert sorted(map(str, written)) == ids
    assert [value(first, entity) for entity in ids] == [{"n": 1}] * 20
    assert first.merge("dev").committed is None
    assert first.verify().is_sound


def test_a_merge_takes_three_requests_however_many_documents_it_brings() -> None:
    """A look at the log, and the commit; what the process wrote itself is in memory."""
    clock = VirtualClock()
    store, ids = MemoryStore(clock=clock), Ids.system(clock)
    space = Space(PageBackend(store, "space-main", create=True, clock=clock, ids=ids), clock=clock)
    space.transact([put(entity, n=0) for entity in IDS])
    space.create_branch("dev")
    for some in (1, 7):
        space.transact([put(entity, n=some) for entity in IDS[:some]], branch="dev")
        with store.requests.measure() as planned:
            plan = space.plan_merge("dev")
        with store.requests.measure() as committed:
            space.commit_merge(plan)
        assert (planned["total"], committed["total"]) == (2, 1)
        with store.requests.measure() as compared:
            assert space.diff("main", "dev") == []
        assert compared["total"] == 2
    space.close()


def test_a_thousand_and_one_entities_are_one_commit(space: Space) -> None:
    ids = [f"e{number:04}" for number in range(1_001)]
    space.create_branch("dev")
    space.transact([put(entity) for entity in ids[:1_000]], branch="dev")
    space.transact([put(ids[1_000])], branch="dev")
    assert space.merge("dev").changed == tuple(ids)
    assert space.seq == 4


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_thirty_thousand_entities_can_be_merged(room: Room) -> None:
    space = room.open(operations_max=10_000)
    space.create_branch("dev")
    for start in range(0, 30_000, 10_000):
        space.transact([put(f"e{number}", n=number) for number in range(start, start + 10_000)], branch="dev")
    assert len(space.merge("dev").changed) == 30_000
    assert len(_merges(space)) == 3
    assert value(space, "e29999") == {"n": 29_999}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_hundred_megabytes_can_be_merged(room: Room) -> None:
    space = room.open()
    space.create_branch("dev")
    text = "x" * 5_000_000
    for number in range(20):
        space.transact([put(f"e{number}", text=text, n=number)], branch="dev")
    assert len(space.merge("dev").changed) == 20
    assert len(_merges(space)) == 7
