"""The tools on a commit log in a store: verify, repair, compact, cat, tail, beside a writer at work."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice

import pytest

from worm.clock import Ids, VirtualClock
from worm.codec.frames import Torn
from worm.codec.strict_json import JsonObject, JsonValue
from worm.errors import Conflict, Corrupt, Expired, Invalid, NotFound
from worm.journal.s3_base import Base, DocumentLog
from worm.journal.s3_tools import StoreTools
from worm.journal.state import State
from worm.journal.tools import LogLine
from worm.log.collect import LogCollector
from worm.log.config import LogConfig
from worm.log.keys import DbKeys
from worm.log.reader import LogReader
from worm.log.segment import Segment
from worm.log.writer import LogWriter
from worm.store.base import Lost, Store, Won
from worm.store.faulty import FaultyStore, SimulatedCrash
from worm.store.memory import MemoryStore

KEYS = DbKeys("main")
CONFIG = LogConfig(gc_min_age_seconds=100)


def insert(id: JsonValue, value: JsonValue = 1, ns: str = "c") -> JsonObject:
    return {"op": "insert", "ns": ns, "id": id, "doc": {"_id": id, "v": value}}


def replace(id: JsonValue, value: JsonValue) -> JsonObject:
    return {"op": "replace", "ns": "c", "id": id, "doc": {"_id": id, "v": value}}


def delete(id: JsonValue) -> JsonObject:
    return {"op": "delete", "ns": "c", "id": id}


class Room:
    """A log of documents: some changed, some deleted, an index and a spec."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.ids = Ids.seeded(3, self.clock)
        self.memory = MemoryStore(clock=self.clock, ids=self.ids)
        self.writer = self.opened()
        self.writer.append_wal([{"op": "define", "ns": "c", "spec": {"fields": {"v": {"type": "integer"}}}}])
        self.writer.append_wal([{"op": "create_index", "ns": "c", "field": "v"}])
        for number in range(10):
            self.writer.append_wal([insert(number), insert(f"s{number}", number)])
        self.writer.append_wal([replace(3, 33), delete(4)])
        self.writer.append_wal([insert(4, 44), delete("s4")])

    def opened(self, store: Store | None = None) -> LogWriter:
        return LogWriter.open(store or self.memory, "main", config=CONFIG, clock=self.clock, ids=self.ids)

    def tools(self, store: Store | None = None) -> StoreTools:
        return StoreTools(store or self.memory, "main", config=CONFIG, clock=self.clock, ids=self.ids)

    def documents(self, store: Store | None = None) -> DocumentLog:
        return DocumentLog(store or self.memory, "main", config=CONFIG, clock=self.clock, ids=self.ids)

    def state(self) -> State:
        return self.documents().load().fold.state

    def lines(self, after: int | None = None) -> list[LogLine]:
        return [line for line in self.tools().cat(after=after) if not isinstance(line, Torn)]

    def slots(self) -> list[int]:
        return [slot for listed in self.memory.list(KEYS.log) if (slot := KEYS.slot_of(listed.key))]

    def damage(self, slot: int, change: Callable[[bytes], bytes]) -> None:
        found = self.memory.get(KEYS.slot(slot))
        assert found is not None
        self.memory.put(KEYS.slot(slot), change(found.body))


@pytest.fixture
def room() -> Room:
    return Room()


def test_the_log_determines_the_state(room: Room) -> None:
    state = room.state()
    assert [len(state.scan("c")), state.documents] == [19, 19]
    assert state.find("c", "v", 33) == [b'{"_id":3,"v":33}']
    assert state.find("c", "v", 4) == []
    report = room.tools().verify()
    assert (report.is_clean, report.documents, report.records, report.committed) == (True, 19, 26, 14)


def test_compaction_keeps_the_state_and_beside_it_goes_on(room: Room) -> None:
    before = room.state()
    report = room.tools().compact()
    assert (report.records_before, report.records_after) == (26, 21)
    assert room.state().differences(before) == []
    assert room.slots() == list(range(1, 16))  # too young to be collected
    room.writer.append_wal([insert("new", 7)])
    assert room.state().documents == 20
    room.clock.advance(101)
    room.writer.append_wal([replace("new", 88)])
    again = room.tools().compact()
    assert again.records_after == 22
    assert again.size_after < report.size_before
    assert room.slots() == [17]
    assert room.state().find("c", "v", 88) == [b'{"_id":"new","v":88}']
    assert room.tools().verify().is_clean
    room.opened().append_wal([delete("new")])
    assert room.state().documents == 19


def test_a_base_is_minimal_and_says_nothing_but_the_state(room: Room) -> None:
    """Two logs that lead to the same state have the same base."""
    room.tools().compact()
    other = Room()
    other.writer.append_wal([delete("s9"), insert("s9", 9)])
    other.tools().compact()
    bases = [room.documents().base(), other.documents().base()]
    assert bases[0] is not None
    assert bases[1] is not None
    assert bases[0].digest == bases[1].digest
    ops = [line.value["op"] for line in room.lines()]
    assert ops == ["define", "create_index", *["insert"] * 19]
    room.tools().compact()
    assert room.documents().base() == bases[0]


def test_compaction_survives_a_crash_before_and_after_every_write() -> None:
    writes = 0
    for number in range(1, 40):
        for when in ("before", "after"):
            room = Room()
            room.clock.advance(101)
            room.writer.append_wal([insert("late")])
            before = room.state()
            store = FaultyStore(room.memory, clock=room.clock, ids=room.ids)
            store.crash_at_write(number, "before" if when == "before" else "after")
            try:
                room.tools(store).compact()
            except SimulatedCrash:
                writes = number
            assert room.state().differences(before) == []
            assert room.tools().verify().is_clean
            room.tools().compact()
            assert room.slots() == [16]
            assert room.state().differences(before) == []
    assert writes >= 17  # the base, the root twice, and a delete for each slot


def test_a_reader_that_a_compaction_overtakes_starts_again(room: Room) -> None:
    room.clock.advance(101)
    room.writer.append_wal([insert("late")])
    before = room.state()

    class Overtaken(DocumentLog):
        def base(self) -> Base | None:
            found = super().base()
            if room.slots()[0] == 1:
                room.tools().compact()
            return found

    slow = Overtaken(room.memory, "main", config=CONFIG, clock=room.clock, ids=room.ids)
    assert slow.load().fold.state.differences(before) == []


def test_a_log_of_other_records_is_verified_but_not_compacted(room: Room) -> None:
    room.writer.append_wal([{"op": "page", "n": 1}])
    assert room.tools().verify().is_clean
    with pytest.raises(Invalid, match="no change of documents"):
        room.tools().compact()
    room.writer.append_wal([{"op": "begin"}])
    assert room.documents().base() is None


def test_a_transaction_that_does_not_fit_is_a_problem(room: Room) -> None:
    room.writer.append_wal([insert("x"), insert("x")], txn="twice")
    (problem,) = room.tools().verify().problems
    assert "transaction twice does not fit" in problem.detail
    with pytest.raises(Corrupt):
        room.tools().compact()


def test_cat_and_tail_show_records_from_wherever_they_are(room: Room) -> None:
    whole = room.lines()
    assert [line.lsn for line in whole] == sorted(line.lsn for line in whole)
    assert len(whole) == 26
    assert whole[0].key == KEYS.slot(2)
    for after in (0, 5, whole[7].lsn, whole[-1].lsn):
        assert room.lines(after) == [line for line in whole if line.lsn > after]
    for count in (1, 3, 26, 100):
        assert list(room.tools().tail(count)) == whole[-count:]
    room.tools().compact()
    room.writer.append_wal([insert("new")])
    assert len(room.lines()) == 22
    assert [line.value["id"] for line in room.lines(whole[-1].lsn)] == ["new"]


def test_tail_follows(room: Room) -> None:
    seen: list[object] = []
    following = room.tools().tail(1, follow=True)
    seen += [next(following)]
    room.writer.append_wal([insert("one"), insert("two")])
    room.writer.append_wal([insert("three")])
    seen += list(islice(following, 3))
    ids = [line.value["id"] for line in seen if isinstance(line, LogLine)]
    assert ids == ["s4", "one", "two", "three"]


@pytest.mark.parametrize("slot", [1, 5, 15])
@pytest.mark.parametrize("kind", ["flipped", "cut", "empty", "missing", "other"])
def test_damage_is_found_and_repaired_only_on_request(room: Room, slot: int, kind: str) -> None:
    original = room.memory.get(KEYS.slot(slot))
    assert original is not None
    bad = {
        "flipped": original.body.replace(b'"', b"'", 1),
        "cut": original.body[:-3],
        "empty": b"",
        "other": Segment(slot + 1, 1, "x", 1, 0, "fence").encode(),
    }
    if kind == "missing":
        room.memory.delete(KEYS.slot(slot))
    else:
        room.memory.put(KEYS.slot(slot), bad[kind])
    if (slot, kind) == (15, "missing"):
        return  # the last one: nothing tells that it was there
    report = room.tools().verify()
    assert [problem.key for problem in report.problems] == [KEYS.slot(slot)]
    assert room.tools().repair(dry_run=True).side is None
    assert not room.tools().verify().is_clean
    repaired = room.tools().repair(dry_run=False)
    assert (repaired.reason or "").strip()
    if kind != "missing":
        side = room.memory.get(repaired.side or "")
        assert side is not None
        assert side.body == bad[kind]
    readable = list(LogReader(room.memory, "main", clock=room.clock).segments())
    assert [segment.slot for segment in readable if segment.kind == "void"] == [slot]
    writer = room.opened()
    writer.append_wal([{"op": "note", "n": 1}])
    assert room.tools().repair(dry_run=False).reason is None


def test_several_damaged_segments_in_a_row_are_repaired(room: Room) -> None:
    for slot in (4, 5, 6, 15):
        room.damage(slot, lambda body: body[:-3])
    assert len(room.tools().verify().problems) == 4
    room.tools().repair(dry_run=False)
    segments = list(LogReader(room.memory, "main", clock=room.clock).segments())
    assert [segment.slot for segment in segments if segment.kind == "void"] == [4, 5, 6, 15]
    lsns = [change.lsn for change in LogReader(room.memory, "main", clock=room.clock).feed()]
    assert lsns == sorted(set(lsns))


def test_a_repair_does_not_overwrite_what_changed_meanwhile(room: Room) -> None:
    room.damage(5, lambda body: body[:-3])

    class Meanwhile(FaultyStore):
        def put_if_absent(self, key: str, body: bytes, *, metadata: Mapping[str, str] | None = None) -> Won | Lost:
            room.damage(5, lambda found: found + b"!")
            return super().put_if_absent(key, body, metadata=metadata)

    with pytest.raises(Conflict, match="meanwhile"):
        room.tools(Meanwhile(room.memory, clock=room.clock, ids=room.ids)).repair(dry_run=False)


def test_a_lost_or_damaged_base_stops_and_is_told(room: Room) -> None:
    room.tools().compact()
    base = room.documents().base()
    assert base is not None
    key = KEYS.base(base.slot, base.digest[:16])
    found = room.memory.get(key)
    assert found is not None
    for change in (lambda: room.memory.delete(key), lambda: room.memory.put(key, found.body[:-1])):
        change()
        with pytest.raises(Corrupt, match="the base of the log is"):
            room.documents().load()
        assert [problem.key for problem in room.tools().verify().problems] == [key]


def test_no_log_is_not_found() -> None:
    with pytest.raises(NotFound, match="no log of a database 'main'"):
        StoreTools(MemoryStore(), "main")


def test_what_was_collected_without_a_base_is_expired(room: Room) -> None:
    room.clock.advance(101)
    room.writer.append_wal([insert("late")])
    LogCollector(room.memory, "main", config=CONFIG, clock=room.clock, ids=room.ids).run(5)
    with pytest.raises(Expired):
        room.state()
