"""Guards of the work behind a page store, each with the schedule or state that needs it."""

from __future__ import annotations

from random import Random

import pytest

from tests.pages.page_room import DB, MIN_AGE, PausingStore, Room
from tests.pages.page_witness import PageWitness
from worm.clock import Ids
from worm.errors import CommitStateUnknown, Corrupt, Expired, Fenced, NotFound
from worm.log.collect import LogCollector
from worm.log.segment import LogTransaction
from worm.pages.apply import Applier, Flush, Flusher
from worm.pages.layer_name import LayerName
from worm.pages.manifest import Mark, PageBranch
from worm.pages.records import page_record
from worm.pages.root import PagesRoot
from worm.store.faulty_store import Fault

PAGES = ["a", "b", "c"]


def test_a_flush_of_fences_makes_no_layer() -> None:
    room = Room()
    db = room.db()
    assert db.flush() == db.head_lsn == 1
    assert not room.layers()
    assert not room.keys("/delta/")


def test_a_flush_that_was_overtaken_and_whose_slot_is_collected_is_done() -> None:
    room = Room(pitr_window_seconds=0)
    store = PausingStore(room)
    db = room.db(store=store)
    db.write({"a": b"1"})

    def overtake() -> None:
        for number in range(2):
            db.write({"b": b"%d" % number})
            room.apply()
        room.clock.advance(2 * MIN_AGE)
        room.collect()

    store.when("after", "put", "/delta/", overtake)
    assert db.flush() == db.head_lsn
    assert len(room.keys("/log/")) == 1
    assert db.get_pages(["a", "b"]) == room.reader().get_pages(["a", "b"]) == {"a": b"1", "b": b"1"}
    PageWitness(room.memory, DB).check()


def test_a_writer_that_was_shut_out_reads_on_what_others_write() -> None:
    room = Room()
    old = room.db()
    old.write({"a": b"1"})
    new = room.db()
    new.write({"a": b"2"})
    with pytest.raises(Fenced):
        old.write({"a": b"lost"})
    assert old.refresh() == new.head_lsn
    assert old.get_page("a") == b"2"


def test_a_commit_of_unknown_outcome_that_landed_is_read() -> None:
    room = Room()
    db = room.db()
    room.store.fail_next("attempt_put", Fault.LOST_RESPONSE)
    room.store.fail_next("get", Fault.UNAVAILABLE, times=20)
    with pytest.raises(CommitStateUnknown):
        db.write({"a": b"1"}, txn="t")
    room.store._scripted.clear()
    head = db.refresh()
    assert db.get_page("a") == b"1"
    assert room.db().write({"a": b"1"}, txn="t") == head


def test_transactions_of_one_segment_are_seen_one_after_the_other_and_each_whole() -> None:
    room = Room()
    db = room.db()
    wanted: dict[str, list[tuple[str, bytes | None]]] = {
        "t1": [("a", b"1"), ("b", b"1"), ("a", b"2")],
        "t2": [("b", None)],
        "t3": [("c", b"3"), ("b", b"3")],
    }
    made = [
        LogTransaction(txn, [page_record(page, data, max_bytes=100) for page, data in writes])
        for txn, writes in wanted.items()
    ]
    first, second, third = db._group.writer.commit(made)
    states = {
        first - 1: (None, None, None),
        first: (b"2", b"1", None),
        second: (b"2", None, None),
        third - 1: (b"2", None, None),
        third: (b"2", b"3", b"3"),
    }
    for is_flushed in (False, True):
        for lsn, state in states.items():
            assert tuple(room.reader().get_pages(PAGES, lsn).values()) == state
            assert tuple(db.get_pages(PAGES, lsn).values()) == state
        found = room.reader().find(PAGES)
        assert [version.lsn for version in found.values() if version is not None] == [first, third, third]
        if not is_flushed:
            db.flush()
    assert sum(layer.versions for layer in room.layers()) == 5
    PageWitness(room.memory, DB).check()


def test_times_of_marks_never_go_back() -> None:
    branch = PageBranch(marks=(Mark(ms=50, lsn=1, slot=1),))
    assert [mark.ms for mark in branch.marked(Mark(ms=20, lsn=2, slot=2))] == [50, 50]


def test_applying_what_is_applied_and_collected_meanwhile_goes_on() -> None:
    room = Room(pitr_window_seconds=0)
    db = room.db()
    db.write({"a": b"1"})
    store = PausingStore(room)

    def overtake() -> None:
        for number in range(2):
            db.write({"b": b"%d" % number})
            room.apply()
        room.clock.advance(2 * MIN_AGE)
        room.collect()
        db.write({"c": b"last"})

    store.when("before", "get", "/log/", overtake)
    applied = room.apply(store=store)
    assert store.is_done
    assert (applied.is_done, applied.lsn) == (True, db.head_lsn)
    reader_store = PausingStore(room)
    reader_store.when("before", "get", "/log/", overtake)
    assert room.reader(store=reader_store).get_page("c") == b"last"


def test_a_log_that_was_collected_before_it_was_applied_is_told() -> None:
    room = Room()
    with room.db() as db:
        for _ in range(3):
            db.write({"a": b"1"})
    room.clock.advance(10 * MIN_AGE)
    LogCollector(room.memory, DB, config=room.pages().config.log, **room.time).run(2)
    with pytest.raises(Expired):
        room.apply()


def test_an_applier_that_was_overtaken_halfway_applies_the_rest() -> None:
    room = Room()
    with room.db() as db:
        for number in range(3):
            db.write({"a": b"%d" % number})
    store = PausingStore(room)

    def half() -> None:
        root = PagesRoot(room.store, DB, **room.time)
        Flusher(room.store, root, room.ids).run(root.read(), Flush("main", "", 0, 1, 1, 1, []))

    store.when("after", "put", "/delta/", half)
    applied = room.apply(store=store)
    assert (applied.is_done, applied.lsn) == (True, db.head_lsn)
    assert room.branch().lsn == db.head_lsn
    assert room.reader().get_page("a") == b"2"


def test_an_applier_works_in_bounds() -> None:
    room = Room(flush_threshold_bytes=1024)
    with room.db() as db:
        for number in range(3):
            db.write({f"p{number}": b"x" * 200})
    stopped = Applier(room.store, DB, **room.time).run(left=lambda: 0)
    assert (stopped.is_done, stopped.segments) == (False, 0)
    with room.db() as db:
        for number in range(3):
            db.submit({f"q{number}": b"x" * 1000}).result()
    applied = room.apply()
    assert applied.is_done
    assert applied.flushes > 1
    assert room.reader().get_page("q2") == b"x" * 1000


def test_a_name_of_a_layer_that_is_taken_is_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    room = Room()
    db = room.db()
    db.write({"a": b"1"})
    monkeypatch.setattr(Ids, "ulid", lambda self: "0" * 26)
    key = f"db/{DB}/{LayerName('flushed', 1, db.head_lsn, 1, '0' * 26)}"
    room.memory.put(key, b"something else")
    with pytest.raises(Corrupt) as caught:
        db.flush()
    assert caught.value.key == key


@pytest.mark.parametrize("room_for", [0, 70, 1 << 20])
def test_filters_take_the_room_that_they_have_and_only_where_they_help(room_for: int) -> None:
    room = Room(manifest_filter_bytes=room_for, compaction_cadence_layers=2)
    db = room.db()
    room.grow(db, PAGES, 3)
    filters = [layer.filter for layer in room.layers() if layer.filter]
    assert sum(map(len, filters)) <= room_for
    assert len(filters) == {0: 0, 70: 2, 1 << 20: 3}[room_for]
    room.compact(force=True)
    assert not [layer for layer in room.layers() if layer.filter], "all of it is the past of an image"


def test_an_image_of_a_branch_that_was_replaced_is_not_published() -> None:
    room = Room(compaction_cadence_layers=2)
    with room.db() as db:
        db.write({"a": b"main"})
    room.branches.create("b")
    with room.db("b") as branch:
        room.grow(branch, PAGES, 3)
    store = PausingStore(room)
    store.when("after", "put", "/image/", lambda: room.branches.reset("b"))
    with pytest.raises(Fenced):
        room.compact("b", force=True, store=store)
    assert room.reader("b").get_pages(PAGES) == {"a": b"main", "b": None, "c": None}


def test_a_flush_of_a_branch_that_was_replaced_is_not_published() -> None:
    room = Room()
    room.branches.create("b")
    store = PausingStore(room)
    db = room.db("b", store=store)
    db.write({"a": b"old"})
    store.when("after", "put", "/delta/", lambda: room.branches.reset("b"))
    with pytest.raises((Fenced, NotFound)):
        db.flush()
    assert store.is_done
    assert (room.layers("b"), room.branch("b").slot) == ((), 0)
    assert room.reader("b").get_page("a") is None


def test_deltas_below_an_image_are_not_merged_with_those_above() -> None:
    """Some between them are collected; a merged layer would hide what the image has of them."""
    room = Room(compaction_cadence_layers=1, pitr_window_seconds=0)
    chance, db = Random(4), room.db()

    def layer(size: int, **pages: bytes) -> None:
        db.write({"filler": chance.randbytes(size), **pages})
        db.flush()
        room.compact()

    layer(4000, p=b"first")
    layer(1500, p=b"second")
    room.branches.create("fork")
    layer(500, p=b"third")
    assert [one.level for one in room.layers()] == [1, 1, 1]
    room.compact(force=True)
    room.clock.advance(2 * MIN_AGE)
    room.collect()
    assert [one.level for one in room.layers()] == [1, 1, 2], "what the fork needs, and the image"
    layer(5000)
    assert room.reader().get_page("p") == b"third"
    assert room.reader("fork").get_page("p") == b"second"
    PageWitness(room.memory, DB).check()


def test_a_branch_makes_images_of_what_it_wrote_and_no_more() -> None:
    room = Room(image_layer_target_bytes=1024, compaction_cadence_layers=2)
    pages = [f"p{number}" for number in range(6)]
    with room.db() as db:
        room.grow(db, pages, 1, size=1100)
        room.compact(force=True)
        room.grow(db, pages, 1, size=1100)
    room.branches.create("b")
    with room.db("b") as branch:
        branch.write({"p3": b"own"})
        branch.flush()
    room.compact("b", force=True)
    images = [layer for layer in room.layers("b") if layer.is_image]
    assert [(layer.low, layer.pages) for layer in images] == [("p3", 1)]
    assert room.reader("b").get_pages(pages) == {**db.get_pages(pages), "p3": b"own"}


def test_an_image_has_no_deleted_pages() -> None:
    room = Room(compaction_cadence_layers=2)
    with room.db() as db:
        db.write({"a": b"1", "b": b"2"})
        db.write({"a": None})
        db.flush()
    room.compact(force=True)
    assert [layer.versions for layer in room.layers() if layer.is_image] == [1]
    with room.db() as db:
        db.write({"b": None})
        db.flush()
    room.compact(force=True)
    newest = max(room.layers(), key=lambda layer: (layer.high_lsn, layer.level))
    assert (newest.is_image, newest.versions) == (True, 0)
    assert list(room.reader().scan()) == []


@pytest.mark.parametrize("fences", [0, 20])
def test_fences_of_writers_that_committed_nothing_do_not_hide_a_transaction(fences: int) -> None:
    room = Room()
    lsn = room.db().write({"a": b"1"}, txn="t")
    for _ in range(fences):
        room.db()
    assert room.db().write({"a": b"1"}, txn="t") == lsn
