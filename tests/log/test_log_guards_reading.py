"""What went wrong once, or nearly: readers, tools and repairs that show too little or too much, or make it worse."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.log.test_log_tools import CONFIG, insert
from tests.log.test_log_tools import KEYS as TOOLS_KEYS
from tests.log.test_log_tools import Room as ToolsRoom
from tests.log.test_log_writer import KEYS, Room, record
from worm.dev.faulty_store import FaultyStore
from worm.errors import Corrupt, Expired
from worm.log.common import LogLine
from worm.log.config import LogConfig
from worm.log.reader import LogReader
from worm.log.segment import Segment
from worm.log.tools import CommitLogTools
from worm.store.base import ObjectInfo


def test_a_feed_does_not_skip_what_is_collected_while_it_starts() -> None:
    room = Room(LogConfig(gc_min_age_seconds=1))
    writer = room.writer()
    for number in range(1, 11):
        writer.append_wal([record(number)])
    room.clock.advance(10)
    writer.append_wal([record(11)])

    class Overtaken(LogReader):
        def earliest(self) -> int:
            found = super().earliest()
            room.collector().run(upto=8)
            return found

    reader = Overtaken(room.memory, "main", clock=room.clock, ids=room.ids)
    with pytest.raises(Expired):
        list(reader.feed(after=0))


def test_the_end_of_a_log_that_is_collected_meanwhile_is_not_none() -> None:
    room = Room(LogConfig(gc_min_age_seconds=1))
    writer = room.writer()
    for number in range(1, 11):
        writer.append_wal([record(number)])
    room.clock.advance(10)
    writer.append_wal([record(11)])

    class Overtaken(FaultyStore):
        done = False

        def head(self, key: str, *, version_id: str | None = None) -> ObjectInfo | None:
            if not self.done:
                self.done = True
                room.collector().run(upto=8)
            return super().head(key, version_id=version_id)

    tail = LogReader(Overtaken(room.memory, clock=room.clock, ids=room.ids), "main", clock=room.clock).tail()
    assert tail is not None, "'nothing was ever written'"
    assert tail.slot == 12


def test_tail_shows_no_record_twice() -> None:
    room = ToolsRoom()

    class Late(CommitLogTools):
        done = False

        def _lines(self, slot: int, after: int) -> Iterator[LogLine]:
            if not self.done:
                self.done = True
                room.writer.append_wal([insert("late")])
            return super()._lines(slot, after)

    following = Late(room.memory, "main", config=CONFIG, clock=room.clock, ids=room.ids).tail(1, follow=True)
    seen = [next(following)]
    room.writer.append_wal([insert("next")])
    seen.append(next(following))
    assert [line.value["id"] for line in seen if isinstance(line, LogLine)] == ["late", "next"]


def test_verify_beside_a_collection_reports_no_damage() -> None:
    room = ToolsRoom()
    room.clock.advance(101)
    room.writer.append_wal([insert("late")])
    tools = room.tools()

    class Meanwhile(LogReader):
        done = False

        def boundary(self) -> int:
            found = super().boundary()
            if not self.done:
                self.done = True
                room.collect(upto=8)
            return found

    tools._reader = Meanwhile(room.memory, "main", clock=room.clock, ids=room.ids)
    report = tools.verify()
    assert report.is_clean, report.problems[0]


def test_two_missing_segments_are_not_the_end_of_the_log() -> None:
    room = Room()
    writer = room.writer()
    for number in range(1, 11):
        writer.append_wal([record(number)])
    room.memory.delete(KEYS.slot(5))
    room.memory.delete(KEYS.slot(6))
    with pytest.raises(Corrupt, match="a segment is missing"):
        room.numbers()


# Repair


def reader(room: ToolsRoom) -> LogReader:
    return LogReader(room.memory, "main", clock=room.clock, ids=room.ids)


def txns(room: ToolsRoom) -> list[str]:
    return [entry.txn for segment in reader(room).segments() for entry in segment.entries]


def test_a_writer_at_work_goes_on_behind_a_repaired_segment() -> None:
    room = ToolsRoom()
    room.writer.append_wal([insert("a"), insert("b"), insert("c")])
    room.damage(room.slots()[-1], lambda body: body[:-3])
    room.tools().repair(dry_run=False)
    room.writer.append_wal([insert("acked")], txn="acked")  # the writer at work knows nothing of it
    room.writer.append_wal([insert("acked2")], txn="acked2")
    assert {"acked", "acked2"} <= set(txns(room))
    assert room.tools().repair(dry_run=False).reason is None


def test_two_damaged_segments_at_the_end_are_repaired() -> None:
    room = ToolsRoom()
    for slot in room.slots()[-2:]:
        room.damage(slot, lambda body: body[:-3])
    room.tools().repair(dry_run=False)
    writer = room.opened()  # a writer opens behind the void and acknowledges
    writer.append_wal([insert("acked")], txn="acked")
    for _ in range(3):
        room.tools().repair(dry_run=False)
    assert "acked" in txns(room)


def test_lsns_do_not_go_back_after_a_repair_behind_the_boundary() -> None:
    room = ToolsRoom()
    room.clock.advance(101)
    last = room.writer.append_wal([insert("x")])
    room.collect(upto=room.slots()[-2])
    high = room.writer.append_wal([insert("y")])
    room.damage(room.slots()[-1], lambda body: body[:-3])
    room.tools().repair(dry_run=False)
    writer = room.opened()
    lsn = writer.append_wal([insert("acked")], txn="acked")
    assert lsn > last, f"LSN {lsn} after LSN {last}, which is in the log"
    assert lsn > high, f"LSN {lsn} is used again"


def test_lsns_of_a_damaged_segment_are_not_used_again() -> None:
    """A consumer that had read up to the damaged segment never sees what is committed after the repair."""
    room = ToolsRoom()
    high = room.writer.append_wal([insert("a"), insert("b"), insert("c"), insert("d"), insert("e")])
    assert [one.lsn for one in reader(room).feed()][-1] == high  # the consumer's cursor
    room.damage(room.slots()[-1], lambda body: body[:-3])
    room.tools().repair(dry_run=False)
    room.opened().append_wal([insert("acked")], txn="acked")
    assert "acked" in [one.txn for one in reader(room).feed(after=high)]


def test_damage_in_the_first_two_slots_is_repaired() -> None:
    room = ToolsRoom()
    room.writer.append_wal([insert("z")])
    for slot in (1, 2):
        room.damage(slot, lambda body: body[:-3])
    room.tools().repair(dry_run=False)
    assert room.tools().repair(dry_run=False).reason is None
    assert len(txns(room)) > 0


def test_a_gap_is_repaired_and_nothing_that_can_be_read_is_put_aside() -> None:
    room = ToolsRoom()
    before = txns(room)
    room.memory.delete(TOOLS_KEYS.slot(7))
    assert room.tools().repair(dry_run=False).side is None
    kept = txns(room)
    assert len(set(before) - set(kept)) == 1
    room.opened().append_wal([insert("acked")], txn="acked")
    assert txns(room) == [*kept, "acked"]


def test_a_segment_that_can_be_read_but_does_not_follow_is_told_and_left_alone() -> None:
    room = ToolsRoom()
    room.memory.put(TOOLS_KEYS.slot(7), Segment(7, 1, "x", 999, 0, "fence").encode())
    before = [listed.etag for listed in room.memory.list(TOOLS_KEYS.log)]
    assert room.tools().repair(dry_run=False).reason is not None
    assert [listed.etag for listed in room.memory.list(TOOLS_KEYS.log)] == before
