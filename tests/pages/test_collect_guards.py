"""What must not be collected, and what must be; and what is made of the past."""

from __future__ import annotations

import pytest

from tests.pages.page_room import DB, MIN_AGE, ROOT, PausingStore, Room
from tests.pages.page_witness import PageWitness
from worm.errors import CommitStateUnknown, Conflict, Corrupt, Fenced, NotFound, SnapshotExpired
from worm.pages.branches import Branches
from worm.pages.collect import PageCollector, covered_from
from worm.pages.manifest import Layer, PageBranch
from worm.pages.past import BranchPoint, PageDifference
from worm.store.faulty_store import SimulatedCrash

PAGES = ["a", "b", "c"]


def test_a_pin_keeps_its_state_until_it_ends() -> None:
    room = Room(pitr_window_seconds=0, compaction_cadence_layers=2)
    db = room.db()
    written = room.grow(db, PAGES, 5)
    lsn = sorted(written)[1]
    room.past.pin(lsn, seconds=500)
    for _ in range(3):
        room.compact(force=True)
        room.collect()
        room.clock.advance(2 * MIN_AGE)
        assert room.reader().get_pages(PAGES, lsn) == written[lsn]
        with pytest.raises(SnapshotExpired):
            room.past.pin(lsn + 1, seconds=1)
    room.clock.advance(500)
    garbage = room.collect()
    assert len(garbage.pins) == 1
    with pytest.raises(SnapshotExpired):
        room.reader().get_page("a", lsn)
    room.clock.advance(2 * MIN_AGE)
    room.collect()
    assert len(room.layers()) == len(room.keys("/delta/")) + len(room.keys("/image/")) == 1
    PageWitness(room.memory, DB).check()


def test_a_branch_that_is_made_while_garbage_is_collected_keeps_everything() -> None:
    room = Room()
    with room.db() as db:
        room.grow(db, PAGES, 2)
    room.clock.advance(10 * MIN_AGE)
    store = PausingStore(room)

    def create() -> None:
        room.branches.create("b")
        with room.db("b") as branch:
            branch.write({"a": b"mine"})
            branch.flush()
            branch.write({"b": b"too"})

    store.when("before", "list", "/delta/", create)
    PageCollector(store, DB, **room.time).run()
    assert room.db("b").get_pages(["a", "b"]) == {"a": b"mine", "b": b"too"}


def test_pointers_for_people_and_the_log_of_the_window_are_kept() -> None:
    room = Room(pitr_window_seconds=1000)
    room.branches.create("b")
    with room.db() as db:
        room.grow(db, PAGES, 4)
    slots = len(room.keys("/log/"))
    room.clock.advance(500)
    room.collect()
    assert len(room.keys("/log/")) == slots
    assert f"db/{DB}/branches/b.json" in room.keys("branches/")
    room.clock.advance(1000)
    dry = room.collect(dry_run=True)
    assert len(room.keys("/log/")) == slots
    garbage = room.collect()
    assert (dry.slots, dry.horizons) == (garbage.slots, garbage.horizons)
    assert garbage.slots == slots - 1
    assert len(room.keys("/log/")) == 1
    assert room.past.lsn_at(room.clock.now()) == db.head_lsn
    PageWitness(room.memory, DB).check()


def test_a_sweep_of_a_branch_that_dies_anywhere_frees_no_slot_for_a_commit() -> None:
    for number in range(1, 40):
        room = Room(pitr_window_seconds=0)
        room.branches.create("b")
        slow = room.db("b")
        slow.write({"a": b"1"})
        room.branches.delete("b")
        room.clock.advance(10 * MIN_AGE)
        room.store.crash_at_write(room.store.writes + number, "before")
        try:
            room.collect()
        except SimulatedCrash:
            room.store.revive()
        else:
            assert number > 4
            return
        with pytest.raises((Fenced, NotFound, Corrupt, CommitStateUnknown)):
            slow.write({"a": b"lost"})
    raise AssertionError("it never ended")


def test_of_two_who_delete_a_branch_none_deletes_the_next_one_of_its_name() -> None:
    room = Room()
    room.branches.create("b")
    store = PausingStore(room)

    def another() -> None:
        room.branches.delete("b")
        room.branches.create("b")

    store.when("before", "put", ROOT, lambda: None)
    store.when("before", "put", ROOT, another)
    Branches(store, DB, **room.time).delete("b")
    assert store.is_done
    assert "b" in room.pages().branches


def test_a_pin_on_a_branch_that_is_being_deleted_is_kept_or_refused() -> None:
    room = Room()
    room.branches.create("b")
    with room.db("b") as branch:
        lsn = branch.write({"a": b"1"})
    store = PausingStore(room)
    pins: list[str] = []
    store.when("before", "put", ROOT, lambda: None)
    store.when("before", "put", ROOT, lambda: pins.append(room.past.pin(lsn, branch="b", seconds=100)))
    with pytest.raises(Conflict):
        Branches(store, DB, **room.time).delete("b")
    assert room.reader("b").get_page("a", lsn) == b"1"
    room.past.unpin(pins[0])
    room.branches.delete("b")


def test_a_restore_of_more_than_a_segment_is_several_transactions() -> None:
    room = Room(log={"log_segment_max_bytes": 4096})
    db = room.db()
    first = [db.write({f"p{number}": b"\xff" * 900}) for number in range(8)][-1]
    for number in range(8):
        db.write({f"p{number}": None})
    assert room.past.restore(db, first) == 8
    assert all(data == b"\xff" * 900 for data in db.get_pages([f"p{number}" for number in range(8)]).values())
    assert room.past.restore(db, first) == 0


@pytest.mark.parametrize(
    ("images", "end"),
    [
        ([("", None, 20)], 20),
        ([("", None, 19)], None),  # the delta has a newer version
        ([("", "m", 30)], None),  # not its last page
        ([("", "m", 30), ("m", None, 25)], 30),
        ([("", "m", 30), ("n", None, 25)], None),
        ([("b", None, 30)], None),
        ([("", None, 40), ("", None, 30)], 30),
    ],
)
def test_a_delta_is_covered_where_images_that_are_newer_have_all_of_its_pages(
    images: list[tuple[str, str | None, int]], end: int | None
) -> None:
    of = {"low": "a", "high": "m", "size": 1, "index": 0, "sha256": "", "pages": 1, "versions": 1, "raw": 1}
    delta = Layer.model_validate({**of, "path": "delta/d", "level": 1, "low_lsn": 5, "high_lsn": 20})
    made = [
        Layer.model_validate(
            {**of, "path": f"image/{at}", "level": 2, "low_lsn": lsn, "high_lsn": lsn, "start": start, "end": upto}
        )
        for at, (start, upto, lsn) in enumerate(images)
    ]
    assert covered_from(delta, PageBranch(layers=(delta, *made))) == end


def test_a_delta_that_a_bounded_run_has_covered_in_part_is_kept() -> None:
    room = Room(
        image_layer_target_bytes=1024, delta_layer_target_bytes=4096, compaction_cadence_layers=4, pitr_window_seconds=0
    )
    db = room.db()
    pages = [f"p{number:02d}" for number in range(12)]
    room.grow(db, pages, 1, size=500)
    room.compact(force=True)
    written = room.grow(db, pages, 4, size=500)
    room.compact(max_bytes=1024)
    assert len({layer.high_lsn for layer in room.layers() if layer.is_image}) == 2
    for _ in range(2):
        room.clock.advance(2 * MIN_AGE)
        room.collect()
    assert room.reader().get_pages(pages) == written[max(written)]
    PageWitness(room.memory, DB).check()


def test_a_state_whose_deltas_are_collected_is_compared_page_by_page() -> None:
    room = Room(pitr_window_seconds=0, compaction_cadence_layers=2)
    db = room.db()
    first = db.write({"a": b"1", "b": b"1", "same": b"same"})
    room.past.pin(first, seconds=10_000)
    db.flush()
    room.compact(force=True)
    for pages in ({"a": b"2"}, {"b": None}, {"c": b"new"}):
        db.write(pages)
        db.flush()
    room.compact(force=True)
    for _ in range(2):
        room.clock.advance(2 * MIN_AGE)
        room.collect()
    assert not [layer for layer in room.layers() if layer.level == 1 and layer.low_lsn > first]
    for one, other, is_turned in ((first, db.head_lsn, False), (db.head_lsn, first, True)):
        found = {each.page: (each.before, each.after) for each in differences(room, one, other)}
        want: dict[str, tuple[bytes | None, bytes | None]] = {"a": (b"1", b"2"), "b": (b"1", None), "c": (None, b"new")}
        assert found == ({page: (new, old) for page, (old, new) in want.items()} if is_turned else want)
    assert room.past.restore(db, first) == 3
    assert db.get_pages(["a", "b", "c"]) == {"a": b"1", "b": b"1", "c": None}


def differences(room: Room, one: int, other: int) -> list[PageDifference]:
    return list(room.past.differences(BranchPoint("main", one), BranchPoint("main", other)))


@pytest.mark.parametrize("is_log_kept", [True, False])
def test_a_time_before_the_window_is_told(is_log_kept: bool) -> None:
    room = Room(pitr_window_seconds=20, gc_min_age_seconds=10_000 if is_log_kept else MIN_AGE)
    room.branches.create("zero", at=0)  # that state is kept, and not what was asked for
    db = room.db()
    db.write({"a": b"1"})
    early = room.clock.now()
    room.clock.advance(1)
    room.grow(db, ["a"], 4)
    room.clock.advance(100)
    room.collect()
    assert bool(room.memory.get(f"db/{DB}/log/{1:020d}")) is is_log_kept
    with pytest.raises(SnapshotExpired):
        room.past.lsn_at(early)
    assert room.past.lsn_at(room.clock.now()) == db.head_lsn
