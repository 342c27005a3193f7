"""Compaction that dies, runs twice or runs beside writers and readers: the history reads the same at every step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import pytest

from tests.collections.archive_room import Room, rebuilt, told
from tests.examples import some
from tests.sdk.sessions import must
from worm.cli.relayout import Relayout
from worm.collections.entries import Head
from worm.collections.layout import SCHEMA_KEY
from worm.collections.reconcile import Reconciled
from worm.errors import Corrupt
from worm.formats.definition import StorageDef
from worm.sdk.database import Model
from worm.store.base import Attempt, Condition, Listed, Object, Store
from worm.store.faulty_store import Fault, FaultyStore, Operation, SimulatedCrash
from worm.tables.verify import verify_collection

pytestmark = pytest.mark.slow

LENGTH = 14


class Meanwhile(FaultyStore):
    """Does something else just before one of its requests."""

    def __init__(self, room: Room, number: int, act: Callable[[], object]) -> None:
        super().__init__(room.memory, clock=room.clock, ids=room.ids)
        self.room, self.number, self._act = room, number, act

    def _next_fault(self, operation: Operation) -> Fault | None:
        self.number -= 1
        if self.number == 0:
            self._act()
        return super()._next_fault(operation)


def cold_room(length: int = LENGTH, *, versioned: bool = True) -> Room:
    room = Room(versioned=versioned)
    room.history(length)
    room.grow_cold()
    return room


def at_every_request(run: Callable[[int], Meanwhile]) -> int:
    """Run with the other thing before the first request, the second, …; how many there were."""
    number = 1
    while run(number).number <= 0:
        number += 1
        assert number < 500
    assert number > 3
    return number


# Crashes


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("versioned", [True, False])
def test_a_crash_at_any_write_leaves_the_same_history_and_the_next_run_finishes(
    when: Literal["before", "after"], versioned: bool
) -> None:
    wanted = cold_room(versioned=versioned)
    before = told(wanted)
    wanted.compact()
    for number in some(range(1, 40)):
        room = cold_room(versioned=versioned)
        store = FaultyStore(room.memory, clock=room.clock, ids=room.ids)
        store.crash_at_write(number, when)
        try:
            room.compact(store)
        except SimulatedCrash:
            assert told(room) == before
            assert room.collection().unmarked() == []
            room.assert_clean()
            assert room.compact().problems == {}
            assert told(room) == before
            room.assert_clean()
            assert room.single() == wanted.single()
            assert room.listing().archives == wanted.listing().archives
            assert not room.listing().marks.keys() & set(range(1, 8))
            continue
        assert number > 8
        return
    raise AssertionError("it never ended")


def test_a_dry_run_after_a_crash_deletes_nothing() -> None:
    room = cold_room()
    room.archiver().pack("a", range(1, 8))
    keys = [listed.key for listed in room.store.list("")]
    assert room.compact(dry_run=True).removed == 7  # entries 2 to 7, and the mark of 4
    assert [listed.key for listed in room.store.list("")] == keys
    assert room.compact().removed == 7
    assert room.single() == [1, *range(8, LENGTH + 1)]


def test_a_failing_store_is_a_problem_of_the_entity_and_nothing_is_lost() -> None:
    operations: tuple[Operation, ...] = ("get", "delete", "attempt_put", "attempt_delete")
    for operation in operations:
        room = cold_room()
        before = told(room)
        store = FaultyStore(room.memory, clock=room.clock, ids=room.ids)
        store.fail_next(operation, Fault.DENIED, times=1)
        assert "injected" in room.compact(store).problems["a"]
        assert told(room) == before
        assert room.compact().problems == {}
        assert told(room) == before


def test_an_archive_that_does_not_hold_what_was_written_costs_no_entry() -> None:
    """The store acknowledges the archive and keeps something else."""

    class Lossy(FaultyStore):
        def get(self, key: str, *, version_id: str | None = None, max_bytes: int | None = None) -> Object | None:
            found = super().get(key, version_id=version_id, max_bytes=max_bytes)
            if "/.archive/" in key and found is not None:
                self.inner.put(key, found.body[:-30])
                return super().get(key)
            return found

    room = cold_room()
    report = room.compact(Lossy(room.memory, clock=room.clock, ids=room.ids))
    assert "/.archive/" in report.problems["a"]
    assert room.single() == list(range(1, LENGTH + 1))
    assert len(room.session().get_history("a")) == LENGTH


# Two at once


def test_two_compactors_at_once_do_the_work_of_one() -> None:
    wanted = cold_room()
    before = told(wanted)
    wanted.compact()

    def run(number: int) -> Meanwhile:
        room = cold_room()
        store = Meanwhile(room, number, room.compact)
        room.compact(store)
        assert room.compact().problems == {}
        assert room.single() == wanted.single()
        assert told(room) == before
        room.assert_clean()
        return store

    at_every_request(run)


def test_a_reader_beside_compaction_sees_the_whole_history() -> None:
    room = cold_room()
    before = told(room)
    asked: list[Callable[[Model], object]] = [
        lambda customers: [entry.to_bytes() for entry in customers.get_history("a")] == before["history"],
        lambda customers: [entry.seq for entry in customers.get_history("a", limit=9)] == list(range(6, 15)),
        lambda customers: must(customers.get_at("a", seq=6))["score"] == 6,
        lambda customers: must(customers.get_at("a", time="2026-01-01T00:00:03Z"))["score"] == 6,
        lambda customers: customers.diff("a", 2, 6)["score"] == [2, 6],
    ]
    for ask in asked:

        def run(number: int, ask: Callable[[Model], object] = ask) -> Meanwhile:
            room = cold_room()
            store = Meanwhile(room, number, room.compact)
            assert ask(room.session(store))
            return store

        number = 1
        while run(number).number <= 0:
            number += 1
        assert number > 2


def test_a_reader_that_knows_archives_asks_again_for_those_of_a_second_compaction() -> None:
    def run(number: int) -> Meanwhile:
        room = cold_room(12)
        room.compact()
        customers = room.session()
        for score in range(100, 110):
            customers.save(customers.get("a") | {"score": score})
        room.grow_cold()
        store = Meanwhile(room, number, room.compact)
        entries = room.session(store).get_history("a")
        assert [entry.seq for entry in entries] == list(range(1, 23))
        return store

    at_every_request(run)


@pytest.mark.parametrize("versioned", [True, False])
def test_a_writer_beside_compaction_appends_at_the_end(versioned: bool) -> None:
    def run(number: int) -> Meanwhile:
        room = cold_room(versioned=versioned)
        customers = room.session()
        document = customers.get("a")
        store = Meanwhile(room, number, lambda: customers.save(document | {"score": 100}))
        assert room.compact(store).problems == {}
        if store.number <= 0:
            entries = room.session().get_history("a")
            assert [entry.seq for entry in entries] == list(range(1, LENGTH + 2))
            room.assert_clean()
        return store

    at_every_request(run)


@pytest.mark.parametrize("versioned", [True, False])
def test_compaction_beside_a_writer_takes_nothing_from_it(versioned: bool) -> None:
    def run(number: int) -> Meanwhile:
        room = cold_room(versioned=versioned)
        store = Meanwhile(room, number, room.compact)
        customers = room.session(store)
        customers.save(customers.get("a") | {"score": 100})
        assert [entry.seq for entry in room.session().get_history("a")] == list(range(1, LENGTH + 2))
        room.assert_clean()
        return store

    at_every_request(run)


# Writers that know only the past


@dataclass
class Late:
    """A worker with a head that was true long ago."""

    room: Room
    hint: Head | None

    def reconcile(self, store: Store | None = None) -> Reconciled:
        return self.room.collection(store).reconciler().reconcile("a", self.hint, recheck=True)


def late(seq: int, *, versioned: bool) -> Late:
    room = cold_room(versioned=versioned)
    entry = room.collection().oplog.read("a", seq) if seq else None
    room.compact()
    return Late(room, None if entry is None else Head.of(entry))


@pytest.mark.parametrize("versioned", [True, False])
@pytest.mark.parametrize("seq", [0, 1, 2, 5, 7, 8, 13])
def test_a_late_worker_writes_into_no_archived_place(seq: int, versioned: bool) -> None:
    worker = late(seq, versioned=versioned)
    room, before = worker.room, told(worker.room)
    result = worker.reconcile()
    assert result.appended == 0
    assert result.head is not None
    assert result.head.seq == LENGTH
    assert told(room) == before
    assert room.single() == [1, *range(8, LENGTH + 1)]
    room.assert_clean()


@pytest.mark.parametrize("versioned", [True, False])
@pytest.mark.parametrize("seq", [0, 1, 2, 5, 7])
def test_a_late_worker_records_a_new_version_at_the_end(seq: int, versioned: bool) -> None:
    worker = late(seq, versioned=versioned)
    room = worker.room
    room.store.put("org/customers/a/profile.json", b'{"name":"Acme","score":100}')
    result = worker.reconcile()
    assert result.head is not None
    assert (result.appended, result.head.seq) == (1, LENGTH + 1)
    assert room.single() == [1, *range(8, LENGTH + 2)]
    rebuilt(room)
    room.assert_clean()


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_late_worker_that_dies_in_an_archived_place_is_made_good_by_the_next(
    when: Literal["before", "after"],
) -> None:
    number = 0
    while True:
        number += 1
        worker = late(5, versioned=True)
        room, before = worker.room, told(worker.room)
        store = FaultyStore(room.memory, clock=room.clock, ids=room.ids)
        store.crash_at_write(number, when)
        try:
            worker.reconcile(store)
        except SimulatedCrash:
            worker.reconcile()
            assert told(room) == before
            room.assert_clean()
            assert room.compact().problems == {}  # what is left is equal to what is archived
            assert room.single() == [1, *range(8, LENGTH + 1)]
            continue
        assert number > 1
        return


def test_without_versions_a_late_worker_does_not_take_the_past_for_the_present() -> None:
    """The document has the bytes again that it had at the late head."""
    room = Room(versioned=False)
    room.history(5)
    customers, key = room.session(), "org/customers/a/profile.json"
    past, entry = room.store.get(key), room.collection().oplog.read("a", 5)
    assert past is not None
    assert entry is not None
    for score in range(100, 109):
        customers.save(customers.get("a") | {"score": score})
    room.grow_cold()
    room.compact()
    room.store.put(key, past.body)
    result = room.collection().reconciler().reconcile("a", Head.of(entry))
    assert result.head is not None
    assert (result.appended, result.head.seq) == (1, LENGTH + 1)
    rebuilt(room)
    room.assert_clean()


def wrong_entry(room: Room, seq: int) -> str:
    """What a late worker that died left in an archived place; its key."""
    key = room.collection().oplog.key("a", seq)
    entry = room.collection().oplog.read("a", seq)
    assert entry is not None
    room.store.put(key, replace(entry, actor="late", metadata={}).to_bytes())
    return key


def test_a_wrong_entry_in_an_archived_place_is_withdrawn_by_whoever_comes_next() -> None:
    worker = late(5, versioned=True)
    room, before = worker.room, told(worker.room)
    wrong_entry(room, 6)
    assert worker.reconcile().appended == 0
    assert room.single() == [1, *range(8, LENGTH + 1)]
    assert told(room) == before
    room.assert_clean()


def test_a_late_worker_that_may_not_delete_goes_on_at_the_end() -> None:
    worker = late(5, versioned=True)
    room = worker.room
    key = wrong_entry(room, 6)
    store = FaultyStore(room.memory, clock=room.clock, ids=room.ids)
    store.fail_next("attempt_delete", Fault.DENIED)
    result = worker.reconcile(store)
    assert result.head is not None
    assert (result.appended, result.head.seq) == (0, LENGTH)
    assert ("archive-differs", key) in {(one.kind, one.key) for one in verify_collection(room.collection()).differences}


def test_what_a_dead_late_worker_left_is_found_by_verify() -> None:
    worker = late(5, versioned=True)
    room = worker.room
    key = wrong_entry(room, 6)
    kinds = {(found.kind, found.key) for found in verify_collection(room.collection()).differences}
    assert ("archive-differs", key) in kinds


class Switched(Meanwhile):
    """Looks at the history under the new layout the moment that the schema names it."""

    seen: list[bytes] | None = None

    def attempt_put(self, key: str, body: bytes, condition: Condition, metadata: Mapping[str, str]) -> Attempt:
        outcome = super().attempt_put(key, body, condition, metadata)
        if key == SCHEMA_KEY and self.seen is None:
            room = Room("inline")
            room.store, room.clock = self.inner, self.room.clock
            self.seen = [entry.to_bytes() for entry in room.session().get_history("a")]
        return outcome


def test_compaction_during_a_relayout_loses_nothing() -> None:
    def run(number: int) -> Meanwhile:
        room = cold_room(12)
        assert room.compact(dry_run=True).archives == 1
        entries = [entry.to_bytes() for entry in room.session().get_history("a")]
        store = Switched(room, number, room.compact)
        relayout = Relayout(store, StorageDef(layout="inline"), threads=1)
        try:
            relayout.run()
        except Corrupt as unmoved:
            again = unmoved.hint
        else:
            again = None
        if again is not None:
            assert again == "run the relayout again"
            relayout.run()
        assert store.seen == entries
        room.schema = room.schema.changed(storage=StorageDef(layout="inline"))
        assert [entry.to_bytes() for entry in room.session().get_history("a")] == entries
        return store

    at_every_request(run)


def test_a_second_compactor_with_an_older_listing_has_no_problem() -> None:
    room = cold_room(40)
    older = room.listing()
    assert room.compact().problems == {}
    report = room.archiver().entity(older)
    assert (report.problems, report.archives, report.cold) == ({}, 0, 1)
    room.assert_clean()


class Paged(FaultyStore):
    """The oplog is packed between two pages of its listing."""

    def __init__(self, room: Room) -> None:
        super().__init__(room.memory, clock=room.clock, ids=room.ids)
        self._room = room
        self._is_packed = False

    def list(self, prefix: str, *, start_after: str | None = None, limit: int | None = None) -> Iterator[Listed]:
        for row in super().list(prefix, start_after=start_after, limit=limit):
            yield row
            if not self._is_packed and row.key.endswith("/0002.json"):
                self._is_packed = True
                self._room.compact()
                yield from super().list(prefix, start_after=row.key, limit=limit)
                return


def test_verify_sees_no_gap_where_entries_are_packed_while_it_lists() -> None:
    room = cold_room(40)
    assert verify_collection(room.collection(Paged(room))).differences == []


def test_an_entry_in_an_archived_place_does_not_count_in_a_history() -> None:
    """A writer that was late and may not delete left it there."""
    room = cold_room(40)
    before = [entry.to_bytes() for entry in room.session().get_history("a")]
    room.compact()
    oplog = room.collection().oplog
    entry = oplog.read("a", 2)
    assert entry is not None
    room.store.put(oplog.key("a", 2), replace(entry, actor="late").to_bytes())
    assert [entry.to_bytes() for entry in room.session().get_history("a")] == before
