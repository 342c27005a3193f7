"""The commit log on a store in memory: opening, committing, fencing, the boundary, and what each costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import partial

import pytest

from worm.clock import Ids, VirtualClock
from worm.errors import CommitStateUnknown, Corrupt, Denied, Expired, Fenced, Invalid, Unavailable
from worm.formats.strict_json import JsonObject
from worm.log.collect import LogCollector
from worm.log.config import LogConfig
from worm.log.fence import LogFiles, take_lease
from worm.log.keys import DbKeys
from worm.log.reader import LogReader, last_slot
from worm.log.root import LogRoot
from worm.log.segment import LogTransaction, Segment
from worm.log.writer import FENCE_TRIES, TAKEOVER_SECONDS, LogWriter
from worm.store.base import Attempt, Condition
from worm.store.faulty_store import Fault, FaultyStore
from worm.store.memory import MemoryStore

KEYS = DbKeys("main")


class HookedStore(FaultyStore):
    """Something else happens right before or after a conditional write."""

    before: Callable[[str], None] | None = None
    after: Callable[[str], None] | None = None

    def attempt_put(self, key: str, body: bytes, condition: Condition, metadata: Mapping[str, str]) -> Attempt:
        if self.before is not None:
            self.before(key)
        answer = super().attempt_put(key, body, condition, metadata)
        if self.after is not None:
            self.after(key)
        return answer


class Room:
    """A database, and writers on it."""

    def __init__(self, config: LogConfig | None = None) -> None:
        self.clock = VirtualClock()
        self.ids = Ids.seeded(3, self.clock)
        self.memory = MemoryStore(clock=self.clock, ids=self.ids)
        self.store = HookedStore(self.memory, clock=self.clock, ids=self.ids)
        self.config = config or LogConfig()

    def writer(self, store: FaultyStore | None = None) -> LogWriter:
        return LogWriter.open(store or self.store, "main", config=self.config, clock=self.clock, ids=self.ids)

    def reader(self) -> LogReader:
        return LogReader(self.memory, "main", clock=self.clock, ids=self.ids)

    def collector(self) -> LogCollector:
        return LogCollector(self.memory, "main", config=self.config, clock=self.clock, ids=self.ids)

    def feed(self, after: int = 0) -> list[tuple[int, str, object]]:
        return [(change.lsn, change.txn, change.record.get("n")) for change in self.reader().feed(after)]

    def numbers(self) -> list[object]:
        return [change.record["n"] for change in self.reader().feed()]

    def root(self) -> LogRoot:
        found = LogFiles(self.memory, KEYS, clock=self.clock, ids=self.ids).root.read()
        assert found is not None
        return found


@pytest.fixture
def room() -> Room:
    return Room()


def record(number: int) -> JsonObject:
    return {"op": "put", "n": number}


def test_commits_are_read_in_order_with_dense_lsns(room: Room) -> None:
    writer = room.writer()
    assert writer.append_wal([record(1)]) == 3  # the fence has LSN 1, the segment's header 2
    assert writer.append_wal([record(2), record(3)], txn="t") == 6
    assert writer.commit([LogTransaction("a", [record(4)]), LogTransaction("b", [record(5), record(6)])]) == [8, 10]
    assert [number for _, _, number in room.feed()] == [1, 2, 3, 4, 5, 6]
    assert room.feed(after=6) == [(8, "a", 4), (9, "b", 5), (10, "b", 6)]
    assert [change.is_last for change in room.reader().feed(after=6)] == [True, False, True]
    assert room.feed(after=9) == [(10, "b", 6)]
    assert room.feed(after=10) == []
    assert room.reader().earliest() == 1
    assert [segment.kind for segment in room.reader().segments()] == ["fence", "data", "data", "data"]


def test_a_single_commit_is_exactly_one_request(room: Room) -> None:
    writer = room.writer()
    for number in range(5):
        with room.memory.requests.measure() as requests:
            writer.append_wal([record(number)])
        assert requests == {"PUT": 1, "total": 1}


def test_opening_costs_log_n_requests(room: Room) -> None:
    writer = room.writer()
    spent = {}
    for number in range(1, 2001):
        writer.append_wal([record(number)])
        if number in (10, 100, 1000, 2000):
            room.memory.delete(KEYS.lease)  # without the hint
            with room.memory.requests.measure() as requests:
                writer = room.writer()
            spent[number] = requests["total"]
            assert requests["LIST"] == 1  # of one key: is there a gap?
    assert spent[2000] <= spent[10] + 2 * 9
    assert spent[2000] <= 40
    with room.memory.requests.measure() as requests:
        room.writer()
    assert requests["total"] <= 14  # with it


class Asked:
    """Slots up to a length are there."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.slots: list[int] = []

    def __call__(self, slot: int) -> bool:
        self.slots.append(slot)
        return slot <= self.length


@pytest.mark.parametrize("length", [*range(20), 63, 64, 65, 1000])
def test_the_end_is_found_whatever_is_known(length: int) -> None:
    for low in {0, length // 2, max(length - 1, 0), length}:
        asked = Asked(length)
        assert last_slot(low, asked) == length
        assert len(asked.slots) <= 2 * (length - low + 2).bit_length() + 1


def test_a_new_writer_fences_the_old_one(room: Room) -> None:
    old = room.writer()
    old.append_wal([record(1)])
    new = room.writer()
    assert new.epoch == old.epoch + 1
    with pytest.raises(Fenced, match="epoch 2 took over; this one has epoch 1"):
        old.append_wal([record(2)])
    with room.memory.requests.measure() as requests, pytest.raises(Fenced):
        old.append_wal([record(2)])
    assert requests["total"] == 0
    new.append_wal([record(3)])
    assert room.numbers() == [1, 3]
    assert [segment.epoch for segment in room.reader().segments()] == [1, 1, 2, 2]


def test_a_fence_that_meets_a_late_commit_goes_behind_it(room: Room) -> None:
    old = room.writer()
    late = Segment.of(Segment(2, old.epoch, "x", 2, 0), [LogTransaction("t", [record(1)])])

    def overtaken(key: str) -> None:
        if key == KEYS.slot(2) and room.memory.get(key) is None:
            room.memory.put(key, late.encode())

    room.store.before = overtaken
    new = room.writer()
    assert new.end.slot == 3
    assert new.last_lsn == 4
    assert room.numbers() == [1]


def test_a_writer_that_is_always_quicker_is_taken_over_when_it_looks_at_the_lease(room: Room) -> None:
    """On a fast disk all allowed tries were over before the old writer's next look."""
    old = room.writer(FaultyStore(room.memory, clock=room.clock, ids=room.ids))
    acked: list[int] = []

    def overtaken(key: str) -> None:
        if key.startswith(KEYS.log) and old.stopped is None:
            with suppress(Fenced):
                acked.append(old.append_wal([record(len(acked))]))

    room.store.before = overtaken
    new = room.writer()
    assert isinstance(old.stopped, Fenced)
    assert len(acked) > room.config.cas_max_retries * FENCE_TRIES
    assert room.numbers() == list(range(len(acked)))
    assert new.last_lsn > acked[-1]


def test_a_fence_that_never_gets_a_slot_gives_up(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    old = room.writer(FaultyStore(room.memory, clock=room.clock, ids=room.ids))
    monkeypatch.setattr(old, "_look", lambda: None)

    def overtaken(key: str) -> None:
        if key.startswith(KEYS.log):
            old.append_wal([record(1)])

    room.store.before = overtaken
    began = room.clock.monotonic()
    with pytest.raises(Unavailable, match="faster in every attempt"):
        room.writer()
    assert TAKEOVER_SECONDS <= room.clock.monotonic() - began < 2 * TAKEOVER_SECONDS


@pytest.mark.parametrize("fault", [Fault.LOST_RESPONSE, Fault.OWN_REFUSAL, Fault.CONFLICT, Fault.UNAVAILABLE])
def test_a_commit_whose_answer_is_unclear_is_in_the_log_once(room: Room, fault: Fault) -> None:
    writer = room.writer()
    room.store.fail_next("attempt_put", fault, times=3)
    writer.append_wal([record(1)])
    writer.append_wal([record(2)])
    assert room.numbers() == [1, 2]


def test_a_write_that_lands_after_we_looked_is_the_same_write(room: Room) -> None:
    writer = room.writer()
    room.store.fail_next("attempt_put", Fault.DELAYED)
    writer.append_wal([record(1)])
    room.store.land_delayed()
    assert room.numbers() == [1]


def test_an_unknown_outcome_poisons_the_writer(room: Room) -> None:
    writer = room.writer()
    room.store.fail_next("attempt_put", Fault.UNAVAILABLE, times=99)
    with pytest.raises(CommitStateUnknown):
        writer.append_wal([record(1)])
    room.store._scripted.clear()
    with room.memory.requests.measure() as requests, pytest.raises(Unavailable, match="has stopped") as caught:
        writer.append_wal([record(2)])
    assert requests["total"] == 0
    assert not isinstance(caught.value, CommitStateUnknown)  # of this one nothing was written
    assert isinstance(writer.stopped, CommitStateUnknown)
    again = room.writer()
    again.append_wal([record(3)])
    assert room.numbers() == [3]


def test_denied_is_not_unknown_and_stops_nothing(room: Room) -> None:
    writer = room.writer()
    room.store.fail_next("attempt_put", Fault.DENIED)
    with pytest.raises(Denied):
        writer.append_wal([record(1)])
    writer.append_wal([record(2)])
    assert room.numbers() == [2]


def test_what_does_not_fit_is_refused_before_anything_is_written() -> None:
    room = Room(LogConfig(log_segment_max_bytes=2048))
    writer = room.writer()
    with room.memory.requests.measure() as requests, pytest.raises(Invalid, match="log_segment_max_bytes"):
        writer.append_wal([{"op": "put", "n": "x" * 2048}])
    assert requests["total"] == 0
    with pytest.raises(Invalid, match="nothing to commit"):
        writer.commit([])
    writer.append_wal([{"op": "put", "n": "x" * 1500}])
    assert len(room.numbers()) == 1


@pytest.mark.parametrize("taken", [{"lsn": 1}, {"txn": "x"}, {"op": "segment"}])
def test_names_of_the_log_are_refused_in_records(taken: JsonObject) -> None:
    with pytest.raises(Invalid, match="must not have"):
        LogTransaction("t", [{"n": 1, **taken}])
    with pytest.raises(Invalid, match="at least one record"):
        LogTransaction("t", [])


def test_a_size_is_never_less_than_the_bytes(room: Room) -> None:
    one = LogTransaction('"é' * 60, [{"op": "put", "n": 10**18}, {"op": "é" * 40}])
    header = Segment(10**15, 10**9, "w" * 26, 10**15, 10**13)
    size = len(Segment.of(header, [one]).encode()) - len(replace(header, kind="fence").encode())
    assert size <= one.size


def test_a_writer_whose_lease_was_taken_while_it_opened_does_not_serve(room: Room) -> None:
    def meanwhile(key: str) -> None:
        if key == KEYS.slot(1):
            file = LogFiles(room.memory, KEYS, clock=room.clock, ids=room.ids).lease
            take_lease(file, "other", None, min_age=0, clock=room.clock, ids=room.ids)

    room.store.after = meanwhile
    with pytest.raises(Fenced, match="epoch 2 took over"):
        room.writer()


def test_a_lost_lease_does_not_bring_an_old_epoch_back(room: Room) -> None:
    for _ in range(3):
        room.writer()
    room.memory.delete(KEYS.lease)
    assert room.writer().epoch == 4


# The boundary


def sleeper() -> tuple[Room, LogWriter]:
    """A writer that slept while another took over and the slots that it aims at were collected."""
    room = Room(LogConfig(gc_min_age_seconds=100))
    old = room.writer()
    old.append_wal([record(1)])
    new = room.writer()
    for number in range(2, 8):
        new.append_wal([record(number)])
    room.clock.advance(101)
    new.append_wal([record(8)])
    done = room.collector().run(upto=7)
    assert (done.boundary_before, done.boundary, done.deleted) == (0, 7, 7)
    assert room.memory.get(KEYS.slot(3)) is None
    return room, old


def test_acceptance_one_a_writer_never_acknowledges_a_commit_into_a_collected_slot() -> None:
    room, old = sleeper()
    with pytest.raises(CommitStateUnknown, match="slot 3 was already collected"):
        old.append_wal([record(99)])
    assert room.memory.get(KEYS.slot(3)) is not None  # it was stored, and counts for nothing
    assert [number for _, _, number in room.feed(after=room.reader().earliest())] == [6, 7, 8]
    room.collector().run(upto=0)
    assert room.memory.get(KEYS.slot(3)) is None


def test_a_clock_that_stood_still_is_caught_by_the_other() -> None:
    class Suspended(VirtualClock):
        """The monotonic clock stops while the machine sleeps."""

        def monotonic(self) -> float:
            return 0.0

    class Reset(VirtualClock):
        """The wall clock was set back."""

        def now(self) -> datetime:
            return min(super().now(), VirtualClock().now())

    for kind in (Suspended, Reset):
        room, old = sleeper()
        clock = kind()
        clock.advance(room.clock.monotonic())
        old._clock = clock
        with pytest.raises(CommitStateUnknown, match="already collected"):
            old.append_wal([record(99)])


def test_an_idle_writer_asks_for_the_boundary_once() -> None:
    room = Room(LogConfig(gc_min_age_seconds=100))
    writer = room.writer()
    writer.append_wal([record(1)])
    room.clock.advance(51)
    with room.memory.requests.measure() as requests:
        writer.append_wal([record(2)])
    assert requests == {"PUT": 1, "GET": 1, "total": 2}
    with room.memory.requests.measure() as requests:
        writer.append_wal([record(3)])
    assert requests["total"] == 1


def test_the_age_of_a_commit_counts_from_before_its_request() -> None:
    """A PUT that took long: whatever took the next slot may be as old as its beginning."""
    room = Room(LogConfig(gc_min_age_seconds=100))
    writer = room.writer()
    room.store.before = lambda key: room.clock.advance(49)
    writer.append_wal([record(1)])
    with room.memory.requests.measure() as requests:
        writer.append_wal([record(2)])
    assert requests["total"] == 2


def test_a_slot_that_another_has_is_in_doubt_where_ours_may_have_been_collected() -> None:
    """Ours landed, was adopted, collected; a third who slept wrote there too; and only now we look."""
    room = Room(LogConfig(gc_min_age_seconds=100))
    old = room.writer()

    def slept(key: str) -> None:
        if key == KEYS.slot(2):
            room.store.after = None
            new = room.writer(FaultyStore(room.memory, clock=room.clock, ids=room.ids))
            new.append_wal([record(2)])
            room.clock.advance(200)
            room.collector().run(upto=2)
            room.memory.put(KEYS.slot(2), Segment(2, 9, "third", 2, 0, "fence").encode())

    room.store.after = slept
    room.store.fail_next("attempt_put", Fault.LOST_RESPONSE)
    with pytest.raises(CommitStateUnknown, match="already collected"):
        old.append_wal([record(1)])


def test_without_the_boundary_nothing_is_acknowledged() -> None:
    room = Room(LogConfig(gc_min_age_seconds=100))
    writer = room.writer()
    room.clock.advance(60)
    room.store.fail_next("get", Fault.UNAVAILABLE)
    with pytest.raises(CommitStateUnknown, match="boundary could not be read"):
        writer.append_wal([record(1)])


def test_a_fence_into_a_collected_slot_does_not_count() -> None:
    """The end was found, and then everything up to beyond it was written, collected and deleted."""
    room = Room(LogConfig(gc_min_age_seconds=1))
    busy = room.writer()
    busy.append_wal([record(1)])

    def meanwhile(key: str) -> None:
        if key == KEYS.slot(3):
            room.store.before = None
            for number in range(2, 6):
                busy.append_wal([record(number)])
            room.clock.advance(5)
            busy.append_wal([record(6)])
            room.collector().run(upto=6)

    room.store.before = meanwhile
    writer = room.writer()
    assert writer.end.slot == 8
    writer.append_wal([record(7)])
    assert [number for _, _, number in room.feed(after=room.reader().earliest())] == [6, 7]


# Collecting


def test_the_last_slot_and_what_is_young_are_kept() -> None:
    room = Room(LogConfig(gc_min_age_seconds=100))
    writer = room.writer()
    for number in range(1, 6):
        writer.append_wal([record(number)])
        room.clock.advance(30)
    # Slots 1 to 6 were written 150, 150, 120, 90, 60 and 30 seconds ago.
    assert room.collector().run(upto=99, dry_run=True).boundary == 3
    assert room.root().boundary == 0
    assert room.collector().run(upto=2).boundary == 2
    assert room.collector().run(upto=99).boundary == 3
    room.clock.advance(1000)
    assert room.collector().run(upto=99).boundary == 5
    assert room.collector().run(upto=99).deleted == 0
    assert room.root().boundary == 5
    assert room.memory.get(KEYS.slot(6)) is not None
    assert room.collector().run(upto=3).boundary == 5


def test_the_boundary_goes_up_before_anything_is_deleted() -> None:
    room = Room(LogConfig(gc_min_age_seconds=1))
    writer = room.writer()
    for number in range(1, 6):
        writer.append_wal([record(number)])
    room.clock.advance(10)
    collector = LogCollector(room.store, "main", config=room.config, clock=room.clock, ids=room.ids)
    room.store.fail_next("attempt_put", Fault.DENIED)
    with pytest.raises(Denied):
        collector.run(upto=4)
    assert [segment.slot for segment in room.reader().segments()] == [1, 2, 3, 4, 5, 6]
    room.store.fail_next("delete", Fault.UNAVAILABLE)
    with pytest.raises(Unavailable):
        collector.run(upto=4)
    assert room.root().boundary == 4
    assert room.collector().run(upto=0).deleted == 4


def test_ages_are_by_the_clock_of_the_store() -> None:
    room = Room(LogConfig(gc_min_age_seconds=100))
    writer = room.writer()
    for number in range(1, 4):
        writer.append_wal([record(number)])
    ahead = VirtualClock()
    ahead.advance(86_400)
    collector = LogCollector(room.memory, "main", config=room.config, clock=ahead, ids=room.ids)
    assert collector.run(upto=99).boundary == 0


# Reading


def test_what_is_not_kept_is_expired_never_a_shorter_answer() -> None:
    room, _ = sleeper()
    reader = room.reader()
    first = reader.earliest()
    with pytest.raises(Expired, match=f"kept; the oldest is {first}"):
        list(reader.feed(after=0))
    with pytest.raises(Expired, match="slot 3 is no longer kept"):
        reader.segment(3)
    with pytest.raises(Expired):
        list(reader.segments(after=2))
    assert [change.record["n"] for change in reader.feed(after=first - 1)] == [6, 7, 8]
    assert reader.segment(99) is None


def test_a_reader_does_not_believe_a_slot_that_was_collected() -> None:
    room, old = sleeper()
    with pytest.raises(CommitStateUnknown):
        old.append_wal([record(99)])
    with pytest.raises(Expired):
        list(room.reader().segments(after=2))
    with pytest.raises(Expired):
        room.reader().segment(3)


def test_a_feed_goes_on_where_it_stopped_at_every_lsn(room: Room) -> None:
    writer = room.writer()
    for number in range(0, 30, 3):
        writer.append_wal([record(number), record(number + 1), record(number + 2)])
    whole = room.feed()
    for lsn in range(writer.last_lsn + 1):
        assert room.feed(after=lsn) == [one for one in whole if one[0] > lsn]


def test_finding_an_lsn_takes_log_n_reads(room: Room) -> None:
    writer = room.writer()
    for number in range(500):
        writer.append_wal([record(number)])
    reader = room.reader()
    with room.memory.requests.measure() as requests:
        reader.slot_before(writer.last_lsn - 7)
    assert requests["total"] <= 50
    assert requests.get("LIST", 0) == 0


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda body: body[:10] + b"!" + body[11:], "line 1 (byte 0) has CRC"),
        (lambda body: body.replace(b'"n":2', b'"n":3'), "line 2"),
        (lambda body: body[:-1], "ends in the middle of a record"),
        (lambda body: b"", "not a segment"),
        (lambda body: b"\0" * len(body), "ends in the middle of a record"),
        (lambda body: Segment(9, 1, "x", 5, 0, "fence").encode(), "slot 9, but its name says 3"),
        (lambda body: Segment(3, 0, "x", 5, 0, "fence").encode(), "epoch 0 in slot 3 follows epoch 1"),
        (lambda body: Segment(3, 1, "x", 6, 0, "fence").encode(), "begins with lsn 6 instead of 4"),
        (
            lambda body: Segment(3, 1, "x", 4, 0, "fence").encode().replace(b'"fence"', b'"fance"'),
            "line 1 (byte 0) has CRC",
        ),
        (lambda body: body[: body.index(b"\n") + 1], "kind data with 0 records, but its header says 1"),
    ],
)
def test_damage_stops_with_the_object_and_the_place(room: Room, damage: Callable[[bytes], bytes], said: str) -> None:
    writer = room.writer()
    for number in range(1, 5):
        writer.append_wal([record(number)])
    found = room.memory.get(KEYS.slot(3))
    assert found is not None
    room.memory.put(KEYS.slot(3), damage(found.body))
    with pytest.raises(Corrupt) as caught:
        list(room.reader().segments())
    assert said in caught.value.message
    assert caught.value.key == KEYS.slot(3)
    assert [segment.slot for segment in room.reader().segments(after=3)] == [4, 5]


def test_a_missing_segment_is_corrupt_not_the_end(room: Room) -> None:
    writer = room.writer()
    for number in range(1, 5):
        writer.append_wal([record(number)])
    room.memory.delete(KEYS.slot(3))
    with pytest.raises(Corrupt, match="a segment is missing"):
        list(room.reader().segments())


def test_a_damaged_root_or_lease_stops_and_is_not_replaced(room: Room) -> None:
    room.writer().append_wal([record(1)])
    for key in (KEYS.root, KEYS.lease):
        before = room.memory.get(key)
        room.memory.put(key, b"{}")
        with pytest.raises(Corrupt, match="format None"):
            room.writer()
        found = room.memory.get(key)
        assert found is not None
        assert found.body == b"{}"
        if before is None:
            room.memory.delete(key)
        else:
            room.memory.put(key, before.body)
    room.writer()


def _with_member(value: int, root: LogRoot | None) -> LogRoot:
    return replace(root or LogRoot(), members={"value": value})


def test_bodies_under_compare_and_swap_never_repeat(room: Room) -> None:
    """F08: equal content would give an equal etag, and a stale If-Match would pass."""
    root = LogFiles(room.memory, KEYS, clock=room.clock, ids=room.ids).root
    etags = set()
    for value in (1, 2, 1, 2, 1):
        root.update(partial(_with_member, value))
        info = room.memory.head(KEYS.root)
        assert info is not None
        etags.add(info.etag)
    assert len(etags) == 5
    stored = [root.update(lambda current: current) for _ in range(3)]
    assert len({one.put_id for one in stored if one is not None}) == 3
    assert room.root().version == 8


def test_members_of_other_rooms_stay_in_the_root(room: Room) -> None:
    root = LogFiles(room.memory, KEYS, clock=room.clock, ids=room.ids).root
    root.update(lambda current: LogRoot(members={"layers": [1]}))
    room.writer()
    root.update(lambda current: replace(current or LogRoot(), boundary=0, put_id="x"))
    assert room.root().members == {"layers": [1]}


def test_a_lease_names_its_writer(room: Room) -> None:
    LogWriter.open(room.store, "main", name="worker-7", clock=room.clock, ids=room.ids)
    lease = LogFiles(room.memory, KEYS, clock=room.clock, ids=room.ids).lease.read()
    assert lease is not None
    assert (lease.writer, lease.epoch) == ("worker-7", 1)


@pytest.mark.parametrize("db_id", ["", "a/b", "..", ".x", "ä"])
def test_odd_database_ids_are_refused(db_id: str) -> None:
    with pytest.raises(Invalid, match="database id"):
        DbKeys(db_id)
