"""What archived history costs: a look at any moment stays within 2 + `every` requests; young entities pay nothing."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from tests.collections.archive_room import Room
from tests.sdk.sessions import must


def compacted(length: int, every: int) -> Room:
    room = Room(every=every)
    room.history(length)
    room.grow_cold()
    room.compact()
    return room


@pytest.mark.parametrize("every", [1, 2, 4, 10])
def test_every_moment_of_an_archived_history_is_within_the_budget(every: int) -> None:
    room = compacted(45, every)
    customers = room.session()
    archived = set(range(1, 46)) - set(room.single())
    assert len(archived) > 20
    for seq in range(1, 46):
        with room.store.requests.measure() as by_seq:
            assert must(customers.get_at("a", seq=seq))["score"] == seq
        assert by_seq["total"] <= 2 + every, seq
        if seq in archived:
            assert by_seq["total"] <= 3
    start = datetime.fromisoformat(customers.get_history("a")[0].ts)
    for second in range(24):
        with room.store.requests.measure() as by_time:
            found = must(customers.get_at("a", time=start + timedelta(seconds=second)))
        assert found["score"] == min(2 * second + 2, 45)
        at_the_end = found["score"] == 45  # nothing after it: the archives are asked
        assert by_time["total"] <= 2 + every + at_the_end, second
        if 2 * second + 3 in archived:
            assert by_time["total"] == 2


def test_a_long_archived_history_costs_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worm.collections.oplog_archives.ENTRIES_MAX", 15)
    room = compacted(150, 10)
    assert len(room.listing().archives) > 8
    customers = room.session()
    start = datetime.fromisoformat(customers.get_history("a")[0].ts)
    for seq in range(1, 151, 7):
        with room.store.requests.measure() as by_seq:
            assert must(customers.get_at("a", seq=seq))["score"] == seq
        with room.store.requests.measure() as by_time:
            customers.get_at("a", time=start + timedelta(seconds=seq // 2))
        assert by_seq["total"] <= 12
        assert by_time["total"] <= 12
    with room.store.requests.measure() as whole:
        assert len(customers.get_history("a")) == 150
    assert whole["total"] < 130


def test_the_end_of_an_archived_history_is_found_without_a_hint_and_with_an_old_one() -> None:
    room = compacted(200, 10)
    oplog = room.collection().oplog
    for known in (0, 1, 2, 50, 100, 188, 189, 190, 200):
        with room.store.requests.measure() as requests:
            tail = oplog.tail("a", at_least=known)
        assert tail is not None
        assert tail.seq == 200
        assert requests["total"] <= 16


@pytest.mark.parametrize(("archive_after", "expected"), [("90d", [0, 0, 1]), ("never", [0, 0, 1]), (None, [0, 0, 0])])
def test_a_write_looks_for_archives_only_after_half_a_day_and_where_there_may_be_any(
    archive_after: str | None, expected: list[int]
) -> None:
    listings = []
    for hours in (0, 11, 13):
        room = Room(every=10, archive_after=archive_after)
        room.history(5)
        customers = room.session()
        document = customers.get("a")
        room.clock.advance(hours * 3600)
        with room.store.requests.measure() as requests:
            customers.save(document | {"score": 9})
        listings.append(requests.get("LIST", 0))
    assert listings == expected


def test_models_without_archives_never_list_for_them() -> None:
    room = Room(every=10, archive_after=None)
    room.history(45)
    room.grow_cold()
    customers, oplog = room.session(), room.collection().oplog
    start = datetime.fromisoformat(customers.get_history("a")[0].ts)
    with room.store.requests.measure() as requests:
        for seq in range(1, 46):
            customers.get_at("a", seq=seq)
        assert len(customers.get_history("a")) == 45
        assert oplog.read("a", 46) is None
        for known in range(46):
            assert oplog.tail("a", at_least=known) is not None
        oplog.seq_at_time("a", "2999", at_least=0)
    assert requests.get("LIST", 0) == 1, "one, of the names behind the last entry: are any missing?"
    for second in range(24):
        with room.store.requests.measure() as by_time:
            customers.get_at("a", time=start + timedelta(seconds=second))
        assert by_time["total"] <= 12


@pytest.mark.slow
def test_an_archive_takes_the_place_of_its_entries_and_their_marks() -> None:
    room = Room(every=10)
    room.history(200)
    keys = [listed.key for listed in room.store.list(".oplog/")]
    assert len(keys) == 220
    room.grow_cold()
    room.compact()
    assert len(list(room.store.list(".oplog/"))) == 2 + 1 + 11 + 2
