"""Branches that go while somebody works on them: nothing is taken for committed, and nothing for damaged."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.pages.page_room import DB, MIN_AGE, PausingStore, Room
from tests.pages.page_witness import PageWitness
from worm.errors import CommitStateUnknown, Conflict, Corrupt, Fenced, Invalid, NotFound, SnapshotExpired
from worm.log.collect import LogCollector
from worm.log.keys import DbKeys
from worm.pages.branches import Branches
from worm.pages.collect import PageCollector


def branch_keys(room: Room, name: str) -> DbKeys:
    return DbKeys(DB, room.branch(name).id)


def test_a_writer_that_slept_through_the_end_of_its_branch_is_told_nothing_is_committed() -> None:
    """Its slots are free again when the directory is swept up; while there is a root of that log, none may be."""
    room = Room(pitr_window_seconds=0)
    room.branches.create("b")
    slow = room.db("b")
    slow.write({"a": b"1"})
    slow.flush()
    keys = branch_keys(room, "b")
    room.branches.reset("b")
    room.clock.advance(10 * MIN_AGE)
    LogCollector(room.memory, keys, config=room.pages().config.log, **room.time).run(1)  # of a run that began before
    for _ in range(2):
        room.collect()
        with pytest.raises((Fenced, CommitStateUnknown, NotFound)):
            slow.write({"a": b"lost"})
        room.clock.advance(2 * MIN_AGE)
    room.collect()
    assert not room.keys(keys.directory), "and at last all of it is gone"


WORK: dict[str, Callable[[Room, PausingStore], object]] = {
    "read": lambda room, store: room.reader("b", store=store),
    "apply": lambda room, store: room.apply("b", store=store),
    "open": lambda room, store: room.db("b", store=store),
}


@pytest.mark.parametrize("what", WORK)
def test_a_branch_that_is_swept_up_is_gone_and_not_damaged(what: str) -> None:
    room = Room()
    room.branches.create("b")
    with room.db("b") as db:
        db.write({"a": b"1"})
    keys, store = branch_keys(room, "b"), PausingStore(room)

    def sweep() -> None:
        room.branches.delete("b")
        room.memory.delete(keys.root)  # what a sweep does first

    store.when("before", "get", f"{keys.branch}/log/", sweep)
    with pytest.raises((Fenced, NotFound)):
        WORK[what](room, store)
    assert store.is_done


def test_a_lost_root_of_a_branch_that_is_there_is_damage() -> None:
    room = Room()
    room.branches.create("b")
    with room.db("b") as db:
        db.write({"a": b"1"})
    room.memory.delete(branch_keys(room, "b").root)
    for work in WORK.values():
        with pytest.raises(Corrupt):
            work(room, PausingStore(room))


def test_a_collection_passes_over_a_branch_that_another_sweeps_up() -> None:
    room = Room(pitr_window_seconds=0)
    room.branches.create("b")
    with room.db("b") as db:
        room.grow(db, ["a"], 3)
    room.clock.advance(10 * MIN_AGE)
    keys, store = branch_keys(room, "b"), PausingStore(room)

    def sweep() -> None:
        room.branches.delete("b")
        room.memory.delete(keys.root)

    store.when("after", "list", "branches/", sweep)
    PageCollector(store, DB, **room.time).run()
    assert store.is_done


@pytest.mark.parametrize("what", ["delete", "reset"])
def test_a_branch_that_others_need_stays(what: str) -> None:
    room = Room()
    room.branches.create("b")
    with room.db("b") as db:
        lsn = db.write({"a": b"1"})
        room.branches.create("c", parent="b")
        with pytest.raises(Conflict, match="'c'"):
            getattr(room.branches, what)("b")
        room.branches.delete("c")
        pin = room.past.pin(lsn, branch="b", seconds=1000)
        with pytest.raises(Conflict, match=pin):
            getattr(room.branches, what)("b")
        db.write({"a": b"2"})
        room.past.unpin(pin)
    getattr(room.branches, what)("b")


def test_a_branch_that_was_forked_while_its_parent_goes_is_refused() -> None:
    room = Room()
    room.branches.create("b")
    with room.db("b") as db:
        db.write({"a": b"1"})
    store = PausingStore(room)
    store.when("before", "put", "d/manifest.json", lambda: None)  # `closing`
    store.when("before", "put", "d/manifest.json", lambda: forked.append(fork()))
    forked: list[str] = []

    def fork() -> str:
        with pytest.raises(NotFound):
            room.branches.create("c", parent="b")
        return "refused"

    Branches(store, DB, **room.time).delete("b")
    assert forked == ["refused"]
    assert set(room.pages().branches) == {"main"}


def test_names_and_lsns_of_branches_are_checked() -> None:
    room = Room()
    db = room.db()
    db.write({"a": b"1"})
    room.branches.create("b")
    for name in ("", "a/b", "..", "x" * 300):
        with pytest.raises(Invalid):
            room.branches.create(name)
    with pytest.raises(Conflict):
        room.branches.create("b")
    with pytest.raises(NotFound, match="does not exist yet"):
        room.branches.create("c", at=db.head_lsn + 1)
    with pytest.raises(Invalid):
        room.branches.create("c", at=-1)
    with pytest.raises(NotFound):
        room.branches.create("c", parent="none")
    with pytest.raises(Invalid):
        room.branches.delete("main")
    with pytest.raises(Invalid):
        room.branches.reset("main")
    with pytest.raises(NotFound):
        room.branches.delete("none")


def test_a_fork_below_its_parents_own_begins_is_one_of_the_parents_parent() -> None:
    """A branch of a branch, at, below and above the LSN where that one was forked."""
    room = Room(pitr_window_seconds=0, compaction_cadence_layers=2)
    db = room.db()
    written = sorted(room.grow(db, ["a"], 4))
    room.branches.create("b", at=written[2])
    with room.db("b") as branch:
        own = branch.write({"a": b"own"})
    for name, at, parent in (("at", written[2], "main"), ("below", written[1], "main"), ("above", own, "b")):
        made = room.branches.create(name, parent="b", at=at)
        assert (made.parent, made.base) == (parent, at)
    for _ in range(3):
        room.compact(force=True)
        room.clock.advance(10 * MIN_AGE)
        room.collect()
    assert room.reader("at").get_page("a") == room.reader("b").get_page("a", written[2])
    assert room.reader("above").get_page("a") == b"own"
    assert room.reader("below").get_page("a") is not None
    with pytest.raises(SnapshotExpired):
        room.reader("b").get_page("a", written[0])
    PageWitness(room.memory, DB).check()


def test_a_reader_and_a_writer_of_a_branch_that_was_replaced_are_told() -> None:
    room = Room()
    room.branches.create("b")
    db, reader = room.db("b"), room.reader("b")
    db.write({"a": b"1"})
    room.branches.reset("b")
    for work in (reader.refresh, db.flush, lambda: db.write({"a": b"2"})):
        with pytest.raises((Fenced, NotFound)):
            work()
    assert room.reader("b").get_page("a") is None


def test_a_fork_of_a_branch_that_is_reset_meanwhile_is_refused() -> None:
    """The LSN was chosen in a history that the name does not mean any more."""
    room = Room()
    room.grow(room.db(), ["a"], 1)
    room.branches.create("b")
    room.grow(room.db("b"), ["a"], 2)
    at = room.db("b").write({"a": b"of the old one"})

    def replaced() -> None:
        room.branches.reset("b")
        room.grow(room.db("b"), ["a"], 5)

    store = PausingStore(room)
    store.when("before", "put", "/manifest.json", replaced)
    with pytest.raises(Conflict, match="reset in the meantime"):
        Branches(store, DB, **room.time).create("c", parent="b", at=at)
    assert store.is_done
    assert set(room.pages().branches) == {"main", "b"}
