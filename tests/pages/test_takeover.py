"""Becoming the writer of a page store from where a reader stands: nothing is read twice, and nothing is believed that
the log does not say."""

from __future__ import annotations

import pytest

from tests.pages.page_room import DB, PausingStore, Room
from worm.errors import Corrupt, Fenced, Unavailable
from worm.log.collect import LogCollector
from worm.log.config import LogConfig
from worm.log.keys import DbKeys
from worm.log.root import Lease
from worm.log.segment import LogTransaction, Segment
from worm.log.writer import FENCE_TRIES
from worm.pages.db import BEHIND_MAX, PageDb
from worm.pages.records import page_record

KEYS = DbKeys(DB)


def taken_over(room: Room, known: object = None, **more: object) -> PageDb:
    return PageDb.open(room.store, DB, known=known, recalls=False, **room.time, **more)  # type: ignore[arg-type]  # tests


@pytest.mark.parametrize("is_flushed", [True, False])
def test_it_goes_on_where_the_reader_stands(is_flushed: bool) -> None:
    room = Room()
    writer = room.db()
    writer.write({"a": b"1"})
    reader = room.reader()
    writer.write({"b": b"2"})
    if is_flushed:
        writer.flush()
        writer.write({"c": b"3"})
    with room.memory.requests.measure() as spent:
        db = taken_over(room, reader)
    assert spent["total"] <= 6 + (3 if is_flushed else 1), dict(spent)
    assert db.get_pages(list("abc")) == {"a": b"1", "b": b"2", "c": b"3" if is_flushed else None}
    lsn = db.write({"d": b"4"})
    assert room.reader().get_page("d") == b"4"
    assert lsn == room.reader().head_lsn
    with pytest.raises(Fenced):
        writer.write({"e": b"5"})
    assert reader.get_page("b") is None, "the reader that it began with goes its own way"
    reader.refresh()
    assert reader.get_pages(list("abd")) == {"a": b"1", "b": b"2", "d": b"4"}


def test_one_that_is_far_behind_asks_the_root_first() -> None:
    room = Room()
    reader, writer = room.reader(), room.db()
    for number in range(3 * BEHIND_MAX):
        writer.write({"a": b"%d" % number})
    writer.flush()
    with room.memory.requests.measure() as spent:
        db = taken_over(room, reader)
    assert spent["total"] <= 8, dict(spent)
    assert db.get_page("a") == b"%d" % (3 * BEHIND_MAX - 1)


def test_slots_that_were_collected_are_in_layers() -> None:
    room = Room()
    writer = room.db()
    writer.write({"a": b"1"})
    reader = room.reader()
    for number in range(5):
        writer.write({"b": b"%d" % number})
    writer.flush()
    room.clock.advance(100_000)
    writer.write({"c": b"3"})
    LogCollector(room.memory, DB, config=LogConfig(gc_min_age_seconds=1), **room.time).run(upto=6)
    assert room.memory.get(KEYS.slot(2)) is None
    db = taken_over(room, reader)
    assert db.get_pages(list("abc")) == {"a": b"1", "b": b"4", "c": b"3"}


@pytest.mark.parametrize("lost", [3, 5])
def test_no_fence_goes_behind_a_segment_that_is_missing(lost: int) -> None:
    """The last one that the reader knows, or one after it."""
    room = Room()
    writer = room.db()
    for number in range(2):
        writer.write({"a": b"%d" % number})
    reader = room.reader()
    for number in range(3):
        writer.write({"b": b"%d" % number})
    room.memory.delete(KEYS.slot(lost))
    with pytest.raises(Corrupt, match="a segment is missing"):
        taken_over(room, reader)
    assert room.memory.get(KEYS.slot(7)) is None


def test_a_lost_lease_brings_no_old_epoch_back_where_layers_have_all() -> None:
    """Who has read no segment does not know the epoch of the last one."""
    room = Room()
    for _ in range(2):
        room.db()
    writer = room.db()
    writer.write({"a": b"1"})
    writer.flush()
    reader = room.reader()
    room.memory.delete(KEYS.lease)
    assert taken_over(room, reader).epoch == 4


def test_what_lies_below_the_boundary_is_not_believed() -> None:
    """A slot that was collected before it was applied, and taken by a writer that slept."""
    room = Room()
    writer = room.db()
    writer.write({"a": b"1"})
    reader = room.reader()
    for number in range(2, 4):
        writer.write({"a": b"%d" % number})
    found = room.memory.get(KEYS.slot(3))
    assert found is not None
    real = Segment.decode(found.body, 3, found.key)
    room.clock.advance(80_000)
    writer.write({"b": b"1"})
    LogCollector(room.memory, DB, config=LogConfig(gc_min_age_seconds=1), **room.time).run(upto=3)
    stale = [LogTransaction("x", [page_record("a", b"stale", max_bytes=100)])]
    room.memory.put(KEYS.slot(3), Segment.of(real, stale).encode())
    with pytest.raises(Unavailable):
        taken_over(room, reader)


@pytest.mark.parametrize("count", [3, FENCE_TRIES + 3])
def test_commits_where_the_fence_was_to_go_are_taken_in(count: int) -> None:
    room = Room()
    writer = room.db()
    writer.write({"a": b"1"})
    reader, store = room.reader(), PausingStore(room)
    store.when("before", "put", KEYS.slot(3), lambda: [writer.write({f"b{n}": b"2"}) for n in range(count)])
    with room.memory.requests.measure() as spent:
        db = PageDb.open(store, DB, known=reader, recalls=False, **room.time)
    assert store.is_done
    assert ("HEAD" in spent) == (count > FENCE_TRIES), "it goes right behind them"
    pages = ["a", *(f"b{n}" for n in range(count))]
    assert db.get_pages(pages) == {"a": b"1", **dict.fromkeys(pages[1:], b"2")}
    assert db.head_lsn == room.reader().head_lsn


def test_nothing_is_written_where_it_is_told_not_to() -> None:
    room = Room()
    writer = room.db()
    writer.write({"a": b"1"})
    asked: list[tuple[bool, int | None]] = []

    def unless(lease: Lease | None, end: Segment | None) -> None:
        asked.append((lease is not None, None if end is None else end.slot))
        if end is not None:
            raise Fenced("leave it")

    with room.memory.requests.measure() as spent, pytest.raises(Fenced, match="leave it"):
        taken_over(room, unless=unless)
    assert asked == [(True, None), (True, 2)]
    assert "PUT" not in spent
    writer.write({"a": b"2"})
