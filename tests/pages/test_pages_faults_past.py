"""Rows F22 to F25 of RELIABILITY.md §4: who needs the past while it is collected. Rings S and U."""

from __future__ import annotations

import pytest

from tests.pages.page_room import DB, MIN_AGE, Oracle, PausingStore, Room
from tests.pages.page_witness import PageWitness
from worm.errors import Invalid, NotFound, SnapshotExpired
from worm.pages.branches import Branches
from worm.pages.collect import PageCollector
from worm.pages.layer_file import PageVersion
from worm.store.faulty_store import SimulatedCrash

PAGES = ["a", "b", "c"]


def witnessed(room: Room) -> None:
    PageWitness(room.memory, DB).check()


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("first", ["branch", "collection"])
def test_f22_a_branch_of_an_old_lsn_is_readable_or_refused(first: str, moment: str) -> None:
    room = Room(pitr_window_seconds=20, compaction_cadence_layers=2)
    db = room.db()
    oracle = Oracle.empty()
    for lsn, pages in room.grow(db, PAGES, 6).items():
        oracle.write("main", lsn, pages)
    old = min(lsn for lsn, _ in oracle.versions["main"]["a"])
    room.compact(force=True)
    room.clock.advance(100)
    store = PausingStore(room)

    def sweep() -> None:
        for _ in range(3):
            room.collect()
            room.clock.advance(2 * MIN_AGE)

    def create() -> None:
        room.branches.create("b", at=old)

    is_there = True
    try:
        if first == "branch":
            store.when(moment, "put", "d/manifest.json", sweep)
            Branches(store, DB, **room.time).create("b", at=old)
        else:
            store.when(moment, "put", "d/manifest.json", create)
            PageCollector(store, DB, **room.time).run()
            sweep()
    except SnapshotExpired:
        is_there = False
    assert store.is_done
    assert ("b" in room.pages().branches) is is_there
    if is_there:
        assert room.reader("b").get_pages(PAGES) == oracle.state("main", old, PAGES)
    assert is_there is ((first, moment) in {("branch", "after"), ("collection", "before")})
    witnessed(room)


@pytest.mark.slow
def test_f23_a_collection_that_dies_at_any_request_is_taken_up_by_the_next() -> None:
    for number in range(1, 60):
        room = Room(pitr_window_seconds=10, compaction_cadence_layers=2)
        db = room.db()
        room.grow(db, PAGES, 5)
        room.branches.create("gone")
        with room.db("gone") as other:
            other.write({"a": b"a"})
            other.flush()
        room.branches.delete("gone")
        room.compact(force=True)
        room.clock.advance(100)
        room.store.crash_at_write(room.store.writes + (number + 1) // 2, "before" if number % 2 else "after")
        try:
            room.collect()
            room.clock.advance(100)
            room.collect()
        except SimulatedCrash:
            room.store.revive()
        else:
            assert number > 20
            return
        room.collect()
        room.clock.advance(100)
        twice = PausingStore(room)
        twice.when("before", "delete", "", room.collect)
        PageCollector(twice, DB, **room.time).run()
        room.clock.advance(100)
        room.collect()
        assert room.reader().get_pages(PAGES) == db.get_pages(PAGES)
        assert len(room.keys("/delta/")) + len(room.keys("/image/")) == len(room.layers())
        assert not [key for key in room.keys("branches/") if not key.endswith("main.json")]
        witnessed(room)
    raise AssertionError("it never ended")


@pytest.mark.parametrize("is_warm", [True, False])
def test_f24_a_slow_reader_is_right_or_told_that_it_is_too_late(is_warm: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worm.pages.layers.RUN_BYTES", 600)  # a scan comes in many requests
    many = [f"p{number:02d}" for number in range(12)]
    room = Room(pitr_window_seconds=5, compaction_cadence_layers=2)
    db = room.db()
    oracle = Oracle.empty()
    for lsn, pages in room.grow(db, many, 6).items():
        oracle.write("main", lsn, pages)
    slow, idle, head = room.reader(), room.reader(), db.head_lsn
    lsns = sorted(lsn for lsn, _ in oracle.versions["main"]["p00"])
    if is_warm:
        slow.get_pages(many, lsns[0])
    scan = slow.scan()
    first = next(scan)
    for _ in range(3):
        for lsn, pages in room.grow(db, many, 3, seed=9).items():
            oracle.write("main", lsn, pages)
        room.compact(force=True)
        room.clock.advance(100)
        room.collect()
    assert not [key for key in room.keys("/delta/") if f"L{lsns[0]:020d}" in key]
    if is_warm:
        assert slow.get_pages(many, lsns[0]) == oracle.state("main", lsns[0], many)
    else:
        with pytest.raises(SnapshotExpired):
            slow.get_pages(many, lsns[0])
    rest: list[PageVersion] = []
    with pytest.raises(SnapshotExpired):
        rest.extend(scan)
    given = [first.data, *(one.data for one in rest)]
    assert given == [oracle.page("main", page, head) for page in many[: len(given)]]
    assert slow.get_pages(many) == oracle.state("main", slow.head_lsn, many)
    assert slow.head_lsn == db.head_lsn
    assert idle.get_pages(many) == oracle.state("main", db.head_lsn, many), "the newest, who asks for no LSN"


def test_f24_a_slow_reader_inside_the_window_reads_on_from_the_new_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worm.pages.layers.RUN_BYTES", 600)
    many = [f"p{number:02d}" for number in range(12)]
    room = Room(pitr_window_seconds=10_000, compaction_cadence_layers=2)
    db = room.db()
    written = room.grow(db, many, 6)
    slow = room.reader()
    scan = slow.scan()
    seen = [next(scan) for _ in range(4)]
    room.compact(force=True)
    room.clock.advance(100)
    room.collect()
    for lsn, pages in written.items():
        assert slow.get_pages(many, lsn) == pages
    seen.extend(scan)
    assert [one.page for one in seen] == many
    assert {one.page: one.data for one in seen} == written[max(written)]


def test_f25_every_lsn_of_the_window_is_exact_and_none_beside_it() -> None:
    room = Room(pitr_window_seconds=100, compaction_cadence_layers=2, delta_layer_target_bytes=1024)
    oracle = Oracle.empty()
    db = room.db()
    moments = {}
    for number in range(30):
        pages = {PAGES[number % 3]: b"%d" % number * 100, PAGES[(number + 1) % 3]: None if number % 4 == 0 else b"x"}
        oracle.write("main", db.write(pages), pages)
        moments[db.head_lsn] = room.clock.now()
        if number % 3 == 0:
            db.flush()
        if number % 7 == 0:
            room.compact(force=number % 2 == 0)
        room.clock.advance(3)
    db.flush()
    room.compact(force=True)
    for _ in range(2):
        room.collect()
        room.clock.advance(2 * MIN_AGE)
    head, horizon = db.head_lsn, room.branch().horizon
    assert 0 < horizon < head
    for lsn in range(horizon, head + 1):
        reader = room.reader()
        assert reader.get_pages(PAGES, lsn) == oracle.state("main", lsn, PAGES)
        want = {page: data for page, data in oracle.state("main", lsn, PAGES).items() if data is not None}
        assert {one.page: one.data for one in reader.scan(at=lsn)} == want
    with pytest.raises(SnapshotExpired, match=f"kept; the oldest is {horizon}"):
        room.reader().get_page("a", horizon - 1)
    with pytest.raises(SnapshotExpired):
        list(room.reader().scan(at=horizon - 1))
    for wrong, error in ((head + 1, NotFound), (-1, Invalid)):
        with pytest.raises(error):
            room.reader().get_page("a", wrong)
    for lsn, moment in moments.items():
        if lsn > horizon:
            assert room.past.lsn_at(moment) == lsn
    with pytest.raises(SnapshotExpired):
        room.past.lsn_at(moments[min(moments)])
    for lsn in (horizon, (horizon + head) // 2):
        want_all = oracle.state("main", lsn, PAGES)
        room.past.restore(db, lsn)
        assert room.reader().get_pages(PAGES) == want_all
    with pytest.raises(SnapshotExpired):
        room.past.restore(db, horizon - 1)
    with pytest.raises(NotFound):
        room.past.restore(db, db.head_lsn + 1)
