"""The tools on a commit log in a store: verify, repair, cat, tail, beside a writer at work."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice

import pytest

from worm.clock import Ids, VirtualClock
from worm.dev.faulty_store import FaultyStore
from worm.errors import Conflict, Corrupt, Invalid, NotFound
from worm.formats.frames import Torn
from worm.formats.strict_json import JsonObject, JsonValue
from worm.log.collect import LogCollector
from worm.log.common import LogLine, LogVerifyReport
from worm.log.config import LogConfig
from worm.log.keys import DbKeys
from worm.log.reader import LogReader
from worm.log.segment import Segment
from worm.log.tools import CommitLogTools
from worm.log.writer import LogWriter
from worm.store.base import Lost, Store, Won
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

    def tools(self, store: Store | None = None) -> CommitLogTools:
        return CommitLogTools(store or self.memory, "main", config=CONFIG, clock=self.clock, ids=self.ids)

    def lines(self, after: int | None = None) -> list[LogLine]:
        return [line for line in self.tools().cat(after=after) if not isinstance(line, Torn)]

    def collect(self, upto: int) -> None:
        LogCollector(self.memory, "main", config=CONFIG, clock=self.clock, ids=self.ids).run(upto)

    def slots(self) -> list[int]:
        return [slot for listed in self.memory.list(KEYS.log) if (slot := KEYS.slot_of(listed.key))]

    def damage(self, slot: int, change: Callable[[bytes], bytes]) -> None:
        found = self.memory.get(KEYS.slot(slot))
        assert found is not None
        self.memory.put(KEYS.slot(slot), change(found.body))


@pytest.fixture
def room() -> Room:
    return Room()


def test_verify_counts_what_it_read(room: Room) -> None:
    report = room.tools().verify()
    size = sum(listed.size for listed in room.memory.list(KEYS.log))
    assert report == LogVerifyReport(room.memory.url, records=26, size=size, committed=14)


def test_compact_is_refused_and_the_hint_names_the_commands_for_pages(room: Room) -> None:
    before = [listed.etag for listed in room.memory.list("")]
    with pytest.raises(Invalid, match="cannot be compacted") as refused:
        room.tools().compact()
    assert "`worm db compact`" in str(refused.value)
    assert "`worm db gc`" in str(refused.value)
    assert [listed.etag for listed in room.memory.list("")] == before


def test_cat_and_tail_show_records_from_wherever_they_are(room: Room) -> None:
    whole = room.lines()
    assert [line.lsn for line in whole] == sorted(line.lsn for line in whole)
    assert len(whole) == 26
    assert whole[0].key == KEYS.slot(2)
    for after in (0, 5, whole[7].lsn, whole[-1].lsn):
        assert room.lines(after) == [line for line in whole if line.lsn > after]
    for count in (1, 3, 26, 100):
        assert list(room.tools().tail(count)) == whole[-count:]
    room.writer.append_wal([insert("new")])
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

    with pytest.raises(Conflict, match="in the meantime"):
        room.tools(Meanwhile(room.memory, clock=room.clock, ids=room.ids)).repair(dry_run=False)


def test_no_log_is_not_found() -> None:
    with pytest.raises(NotFound, match="no log of database 'main'"):
        CommitLogTools(MemoryStore(), "main")


def test_the_tools_begin_where_the_log_does_and_say_so(room: Room) -> None:
    whole = room.lines()
    room.clock.advance(101)
    room.writer.append_wal([insert("late")])
    room.collect(upto=5)
    assert room.slots()[0] == 6
    assert room.lines() == [*(line for line in whole if line.key >= KEYS.slot(6)), *room.lines(whole[-1].lsn)]
    assert room.lines(after=1) == room.lines()
    first = room.lines()[0].lsn - 1
    report = room.tools().verify()
    assert (report.is_clean, report.kept_from, room.tools().kept_from) == (True, first, first)


def test_a_number_in_a_name_costs_no_request_for_each_one_before_it() -> None:
    """An object named as the last slot there is made `verify` ask for every slot before it."""
    room = Room()
    room.memory.put(KEYS.slot(10**20 - 1), b"garbage")
    with room.memory.requests.measure() as spent:
        problems = room.tools().verify().problems
    assert [problem.key for problem in problems] == [KEYS.slot(16), KEYS.slot(10**20 - 1)]
    assert spent["total"] < 100
    for dry_run in (True, False):
        with pytest.raises(Corrupt, match="too many for a loss") as refused:
            room.tools().repair(dry_run=dry_run)
        assert refused.value.key == KEYS.slot(10**20 - 1)
    assert room.memory.get(KEYS.slot(16)) is None
