"""What went wrong once, or nearly: each test is a way in which a page could be lost, read wrong or held up."""

from __future__ import annotations

from contextlib import suppress
from random import Random

import pytest

from tests.pages.page_room import DB, MIN_AGE, PausingStore, Room
from worm.errors import Fenced, Invalid, NotFound, SnapshotExpired
from worm.formats.strict_json import JsonObject
from worm.pages.collect import covered_from
from worm.pages.compact import Compactor
from worm.pages.db import PageDb
from worm.pages.past import BranchPoint
from worm.pages.records import page_of, page_record


def test_layers_of_one_flush_are_merged_together() -> None:
    """A merge of half a flush would leave versions of a page in an order that the layers' LSNs do not tell."""
    room = Room(delta_layer_target_bytes=1024, image_layer_target_bytes=1 << 20, compaction_cadence_layers=2)
    chance = Random(3)
    db = room.db()
    db.write({f"x{number}": chance.randbytes(1000) for number in range(20)})
    db.flush()
    room.compact(force=True)  # an image that is not due again soon
    db.write({"b": b"old"})
    db.flush()
    newest = chance.randbytes(1000)
    for batch in ({"b": newest}, {"c": chance.randbytes(600), "d": chance.randbytes(600)}, {"a": b"a" * 100}):
        db.write(batch)
    db.flush()
    room.compact(max_bytes=2000)
    assert room.reader().get_page("b") == newest
    db.write({"a": chance.randbytes(1200)})
    db.flush()
    room.compact()
    assert room.reader().get_page("b") == newest


def test_a_segment_that_was_applied_before_its_writer_knew_is_not_flushed_again() -> None:
    """The worker applies a commit before its answer is back, and another thread of the writer sees that root."""
    room = Room(compaction_cadence_layers=2)
    store = PausingStore(room)
    db = room.db(store=store)
    db.write({"a": b"1"})
    store.when("after", "put", "/log/", lambda: (room.apply(), db.refresh()))
    db.write({"b": b"2"})
    assert store.is_done
    db.write({"c": b"3"})
    db.flush()
    assert db.get_pages(["a", "b", "c"]) == {"a": b"1", "b": b"2", "c": b"3"}
    assert sum(layer.versions for layer in room.layers()) == 3
    room.compact(force=True)
    assert room.reader().get_pages(["a", "b", "c"]) == {"a": b"1", "b": b"2", "c": b"3"}


def test_a_known_transaction_is_not_submitted_again() -> None:
    room = Room()
    db = room.db()
    lsn = db.write({"a": b"1"}, txn="t")
    assert db.submit({"a": b"1"}, txn="t").result() == lsn
    again = room.db()
    head = again.head_lsn
    assert again.submit({"a": b"1"}, txn="t").result() == lsn
    assert again.head_lsn == head


@pytest.mark.parametrize("byte", [0, 255, *(pytest.param(byte, marks=pytest.mark.slow) for byte in (1, ord('"')))])
def test_a_page_of_the_largest_size_fits_into_a_segment_whatever_its_bytes(byte: int) -> None:
    room, data = Room(), bytes([byte]) * (1 << 20)
    db = room.db()
    lsn = db.write({"p": data})
    db.write({"p": b"small"})
    assert room.past.restore(db, lsn) == 1
    assert room.reader().get_page("p") == data


@pytest.mark.parametrize("data", [b"", b"text", b"\x00", b"\x00\x01", "é\n".encode(), b"\xff"])
def test_a_record_of_a_page_reads_back(data: bytes) -> None:
    assert page_of(page_record("p", data, max_bytes=100)) == ("p", data)


def test_what_a_bounded_run_left_is_made_by_the_next() -> None:
    """Images for all ranges are due; one run makes one, the next ones go on although nothing was flushed since."""
    room = Room(image_layer_target_bytes=1024, delta_layer_target_bytes=1 << 16, compaction_cadence_layers=4)
    db = room.db()
    pages = [f"p{number}" for number in range(20)]
    room.grow(db, pages, 1, size=400)
    room.compact(force=True)
    room.grow(db, pages, 8, size=400)
    assert not Compactor(room.store, DB, **room.time).run(left=lambda: 0).is_done
    runs = 1
    while not room.compact(max_bytes=20_000).is_done:
        runs += 1
        assert runs < 50
    assert runs > 2
    images = [layer for layer in room.layers() if layer.is_image]
    newest = max(layer.high_lsn for layer in images)
    flushed = max((one for one in room.layers() if not one.is_image), key=lambda one: one.high_lsn)
    assert newest == room.branch().lsn
    assert covered_from(flushed, room.branch()) == newest
    assert room.compact(max_bytes=20_000).bytes_written == 0


def test_a_compaction_whose_input_was_collected_is_overtaken() -> None:
    room = Room(compaction_cadence_layers=2)
    db = room.db()
    room.grow(db, ["a", "b"], 3)
    store = PausingStore(room)

    def another() -> None:
        room.compact()
        room.clock.advance(2 * MIN_AGE)
        room.collect()

    store.when("before", "range", "/delta/", another)
    with pytest.raises(Fenced):
        room.compact(store=store)
    assert room.reader().get_page("a") == db.get_page("a")


def test_a_comparison_whose_layer_was_collected_goes_on() -> None:
    room = Room(compaction_cadence_layers=2)
    db = room.db()
    written = room.grow(db, ["a", "b"], 3)
    first, last = min(written), max(written)
    store = PausingStore(room)

    def another() -> None:
        room.compact()
        room.clock.advance(2 * MIN_AGE)
        room.collect()

    store.when("before", "range", "/delta/", another)
    past = room.past.__class__(store, "d", **room.time)
    found = {
        one.page: (one.before, one.after)
        for one in past.differences(BranchPoint("main", first), BranchPoint("main", last))
    }
    assert store.is_done
    assert found == {page: (written[first][page], written[last][page]) for page in ("a", "b")}


@pytest.mark.parametrize("changes_before", [0, 1])
@pytest.mark.parametrize("what", ["delete", "reset"])
def test_a_writer_that_opens_while_its_branch_goes_is_not_told_that_anything_is_committed(
    what: str, changes_before: int
) -> None:
    room = Room()
    room.branches.create("b")
    store = PausingStore(room)
    opened: list[PageDb] = []

    def open_it() -> None:
        with suppress(NotFound):
            opened.append(room.db("b"))

    for _ in range(changes_before):
        store.when("before", "put", "d/manifest.json", lambda: None)
    store.when("before", "put", "d/manifest.json", open_it)
    branches = room.branches.__class__(store, "d", **room.time)
    getattr(branches, what)("b")
    assert store.is_done
    assert changes_before or opened
    for db in opened:
        with pytest.raises((Fenced, NotFound)):
            db.write({"a": b"lost"})


def test_a_reset_that_is_refused_leaves_the_branch_as_it_is() -> None:
    room = Room(pitr_window_seconds=10)
    room.grow(room.db(), ["a"], 3)
    room.branches.create("b")
    branch = room.db("b")
    branch.write({"a": b"mine"})
    room.compact(force=True)
    room.clock.advance(100)
    room.collect()
    with pytest.raises(SnapshotExpired):
        room.branches.reset("b", at=3)
    with pytest.raises(NotFound):
        room.branches.reset("b", at=10_000)
    branch.write({"b": b"still"})
    assert room.db("b").get_pages(["a", "b"]) == {"a": b"mine", "b": b"still"}


def test_the_time_of_grace_for_readers_begins_when_a_compaction_is_published() -> None:
    room = Room(compaction_cadence_layers=2)
    db = room.db()
    room.grow(db, ["a", "b"], 3)
    inputs = [layer.path for layer in room.layers()]
    store = PausingStore(room)
    store.when("before", "put", "/delta/", lambda: room.clock.advance(10 * MIN_AGE))
    room.compact(store=store)
    room.collect()
    assert all(room.memory.head(f"db/d/{path}") is not None for path in inputs)
    room.clock.advance(2 * MIN_AGE)
    room.collect()
    assert not any(room.memory.head(f"db/d/{path}") is not None for path in inputs)


@pytest.mark.parametrize(
    "record",
    [
        {"op": "page", "page": "a"},
        {"op": "page", "page": "", "text": "x"},
        {"op": "page", "page": "a", "text": "\ud800"},
        {"op": "page", "page": "\ud800", "text": "x"},
        {"op": "page", "page": "a" * 1025, "text": "x"},
        {"op": "page", "page": "a", "text": 1},
        {"op": "page", "page": 1, "text": "x"},
        {"op": "page", "page": "a", "data": "?"},
        {"op": "page", "page": "a", "delete": False},
        {"op": "page", "page": "a", "text": "x", "data": "eA=="},
        {"op": "page", "page": "a", "text": "x", "more": 1},
    ],
)
def test_a_record_that_is_none_is_refused_before_it_is_committed(record: JsonObject) -> None:
    room = Room()
    db = room.db()
    with pytest.raises(Invalid):
        db.append_wal([{"op": "page", "page": "b", "text": "x"}, record])
    db.append_wal([{"op": "other", "page": 1}])
    assert (db.get_page("b"), room.apply().is_done) == (None, True)


def test_times_of_a_branch_reach_into_the_one_that_it_was_forked_from() -> None:
    room = Room()
    db = room.db()
    lsns, moments = [], []
    for number in range(4):
        lsns.append(db.write({"a": b"%d" % number}))
        moments.append(room.clock.now())
        room.clock.advance(10)
    room.branches.create("b", at=lsns[1])
    assert room.past.lsn_at(room.clock.now(), "b") == lsns[1]
    branch = room.db("b")
    for is_flushed in (False, True):
        own = branch.write({"a": b"own"})
        written = room.clock.now()
        room.clock.advance(10)
        if is_flushed:
            branch.flush()
        assert [room.past.lsn_at(moment, "b") for moment in moments] == [lsns[0], *[lsns[1]] * 3]
        assert room.past.lsn_at(written, "b") == own
        assert room.past.lsn_at(room.clock.now(), "b") == own
