"""Rows F18 to F21 of RELIABILITY.md §4 as schedules that are told: ring S.

F22 to F25 are in `test_pages_faults_past.py`, F26 is in `test_pages_damage.py`.

Processes that are killed are in `test_pages_processes.py`; any order of anything is in `test_pages_simulation.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from tests.examples import some
from tests.pages.page_room import DB, MIN_AGE, PausingStore, Room
from tests.pages.page_witness import PageWitness
from worm.errors import Fenced
from worm.pages.apply import Applier
from worm.pages.collect import PageCollector
from worm.store.faulty_store import SimulatedCrash

PAGES = ["a", "b", "c"]
Work = Callable[[], object]


def witnessed(room: Room) -> None:
    PageWitness(room.memory, DB).check()


@pytest.mark.slow
@pytest.mark.parametrize("work", ["flush", "apply", "compact"])
def test_f18_a_crash_at_every_write_leaves_reads_as_they_were(work: str) -> None:
    """Every write of a flush, an application of the log or a compaction is the last one of its process once."""
    for number in some(range(1, 40)):
        room = Room(delta_layer_target_bytes=1024, image_layer_target_bytes=1024, compaction_cadence_layers=2)
        db = room.db()
        room.grow(db, PAGES, 2, size=700)
        db.write({"a": b"last", "d": b"d" * 900})
        works: dict[str, Work] = {"flush": db.flush, "apply": room.apply, "compact": partial(room.compact, force=True)}
        before = room.reader().get_pages([*PAGES, "d"])
        room.store.crash_at_write(room.store.writes + (number + 1) // 2, "before" if number % 2 else "after")
        try:
            works[work]()
        except SimulatedCrash:
            room.store.revive()
        else:
            assert number > 4
            return
        assert room.reader().get_pages([*PAGES, "d"]) == before
        room.apply()
        room.compact(force=True)
        room.compact(force=True)
        for _ in range(2):
            room.clock.advance(2 * MIN_AGE)
            room.collect()
        paths = {layer.path for layer in room.layers()} | {one.path for one in room.branch().dropped}
        assert {*room.keys("/delta/"), *room.keys("/image/")} == {f"db/{DB}/{path}" for path in paths}, "no orphans"
        assert room.reader().get_pages([*PAGES, "d"]) == before
        witnessed(room)
    raise AssertionError("it never ended")


def test_f19_a_span_that_is_flushed_by_two_has_two_names_and_is_named_once() -> None:
    room = Room()
    old = room.db()
    old.write({"a": b"1"})
    store = PausingStore(room)
    store.when("after", "put", "/delta/", lambda: room.db().flush())
    Applier(store, DB, **room.time).run()
    assert store.is_done
    assert old.flush() == room.branch().lsn
    assert len(room.keys("/delta/")) == 2
    assert len({key.rpartition("-")[0] for key in room.keys("/delta/")}) == 2, "another epoch, another span"
    assert [layer.versions for layer in room.layers()] == [1]
    assert room.reader().get_page("a") == b"1"
    witnessed(room)


@pytest.mark.slow
@pytest.mark.parametrize("part", ["/delta/", "/image/", "d/manifest.json"])
@pytest.mark.parametrize("moment", ["before", "after"])
def test_f20_a_flush_in_the_midst_of_a_compaction_is_kept(part: str, moment: str) -> None:
    room = Room(compaction_cadence_layers=2)
    db = room.db()
    room.grow(db, PAGES, 3)
    store = PausingStore(room)

    def flush() -> None:
        db.write({"a": b"new", "z": b"z"})
        db.flush()

    store.when(moment, "put", part, flush)
    room.compact(force=True, store=store)
    assert store.is_done
    assert room.reader().get_pages(["a", "z"]) == {"a": b"new", "z": b"z"}
    room.compact(force=True)
    assert room.reader().get_pages(["a", "z"]) == {"a": b"new", "z": b"z"}
    witnessed(room)


@pytest.mark.parametrize("part", ["/delta/", "d/manifest.json"])
def test_f20_a_compaction_in_the_midst_of_a_flush_is_kept(part: str) -> None:
    room = Room(compaction_cadence_layers=2)
    store = PausingStore(room)
    db = room.db(store=store)
    room.grow(db, PAGES, 3)
    db.write({"a": b"new"})
    store.when("before", "put", part, lambda: room.compact(force=True))
    db.flush()
    assert store.is_done
    assert {layer.level for layer in room.layers()} == {0, 1, 2}
    assert room.reader().get_page("a") == b"new"
    witnessed(room)


@pytest.mark.parametrize("part", ["/delta/", "/image/"])
def test_f20_of_two_compactions_at_once_the_later_one_wins(part: str) -> None:
    room = Room(compaction_cadence_layers=2)
    db = room.db()
    room.grow(db, PAGES, 4)
    before = db.get_pages(PAGES)
    store = PausingStore(room)
    store.when("after", "put", part, lambda: room.compact(force=True))
    with pytest.raises(Fenced):
        room.compact(force=True, store=store)
    assert room.reader().get_pages(PAGES) == before
    room.compact(force=True)
    for _ in range(2):
        room.clock.advance(2 * MIN_AGE)
        room.collect()
    assert room.reader().get_pages(PAGES) == before
    witnessed(room)


@pytest.mark.parametrize("work", ["flush", "compact"])
def test_f21_an_upload_that_waits_longer_than_the_minimum_age_is_kept(work: str) -> None:
    room = Room(compaction_cadence_layers=2, pitr_window_seconds=0)
    store = PausingStore(room)
    db = room.db(store=store)
    room.grow(db, PAGES, 3)
    db.write({"a": b"new"})

    def pause() -> None:
        room.clock.advance(100 * MIN_AGE)
        for _ in range(2):
            PageCollector(room.store, DB, **room.time).run()

    store.when("after", "put", "/delta/", pause)
    if work == "flush":
        db.flush()
    else:
        room.compact(force=True, store=store)
    assert store.is_done
    assert room.reader().get_page("a") == b"new"
    witnessed(room)
