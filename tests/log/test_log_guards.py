"""What went wrong once, or nearly: each test is a way in which a commit could be lost, told wrong or hidden."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.log.test_group_commit import Room as GroupRoom
from tests.log.test_group_commit import record as group_record
from tests.log.test_log_writer import KEYS, Room, record
from worm.clock import Ids, SystemClock
from worm.errors import CommitStateUnknown, Corrupt, Fenced, Invalid, Unavailable, WormError
from worm.log.collect import LogCollector
from worm.log.config import LogConfig
from worm.log.group import GroupCommit
from worm.log.segment import LogTransaction, Segment
from worm.log.writer import LogWriter
from worm.store.base import IfAbsent
from worm.store.faulty_store import Fault, FaultyStore
from worm.store.s3_errors import attempt_of, failure_of_status


def in_log(room: Room, txn: str) -> bool:
    return any(entry.txn == txn for segment in room.reader().segments() for entry in segment.entries)


def test_a_refused_look_at_the_boundary_is_an_unknown_outcome() -> None:
    room = Room(LogConfig(gc_min_age_seconds=100))
    writer = room.writer()
    room.clock.advance(60)
    room.store.fail_next("get", Fault.DENIED)
    with pytest.raises(WormError) as caught:
        writer.append_wal([record(1)], txn="t")
    assert in_log(room, "t")
    assert isinstance(caught.value, CommitStateUnknown), caught.value
    assert writer.stopped is not None


def test_a_damaged_root_after_the_commit_is_an_unknown_outcome() -> None:
    room = Room(LogConfig(gc_min_age_seconds=100))
    writer = room.writer()
    room.clock.advance(60)
    room.memory.put(KEYS.root, b"{}")
    with pytest.raises(WormError) as caught:
        writer.append_wal([record(1)], txn="t")
    assert isinstance(caught.value, CommitStateUnknown), caught.value


def test_an_error_of_a_second_attempt_says_nothing_of_the_first() -> None:
    """Attempt 1 timed out and lands later; attempt 2 gets HTTP 400 (IncompleteBody)."""
    room = Room()
    writer = room.writer()
    room.store.fail_next("attempt_put", Fault.DELAYED)
    calls: list[str] = []

    def second(key: str) -> None:
        calls.append(key)
        if len(calls) == 2:
            attempt_of(failure_of_status(400, "IncompleteBody"), key, IfAbsent())  # what S3Store does: raises Invalid

    room.store.before = second
    with pytest.raises(WormError) as caught:
        writer.append_wal([record(1)], txn="t")
    room.store.land_delayed()
    assert in_log(room, "t")
    assert isinstance(caught.value, CommitStateUnknown), repr(caught.value)
    assert writer.stopped is not None


def test_nothing_is_called_fenced_that_may_have_been_collected() -> None:
    """Ours landed but was answered 412; adopted, collected; a third who slept is in the slot; then we look."""
    room = Room(LogConfig(gc_min_age_seconds=100))
    old = room.writer()

    def slept(key: str) -> None:
        if key == KEYS.slot(2):
            room.store.after = None
            new = room.writer(FaultyStore(room.memory, clock=room.clock, ids=room.ids))
            assert in_log(room, "t")  # adopted
            new.append_wal([record(2)])
            room.clock.advance(200)
            room.collector().run(upto=2)
            room.memory.put(KEYS.slot(2), Segment(2, 9, "third", 2, 0, "fence").encode())

    room.store.after = slept
    room.store.fail_next("attempt_put", Fault.OWN_REFUSAL)
    with pytest.raises(WormError) as caught:
        old.append_wal([record(1)], txn="t")
    assert isinstance(caught.value, CommitStateUnknown), repr(caught.value)


def test_collectors_keep_to_the_age_that_writers_rely_on() -> None:
    """The writer is configured with 1 day, `worm log compact` runs with the default hour: nothing ties the two."""
    room = Room(LogConfig(gc_min_age_seconds=86_400))
    old = room.writer()
    old.append_wal([record(1)])
    new = room.writer()
    for number in range(2, 8):
        new.append_wal([record(number)])
    room.clock.advance(3601)
    new.append_wal([record(8)])
    LogCollector(room.memory, "main", clock=room.clock, ids=room.ids).run(upto=7)  # defaults, as the CLI has them
    try:
        old.append_wal([record(99)], txn="lost")
    except (CommitStateUnknown, Fenced):
        return
    assert in_log(room, "lost"), "acknowledged, and not in the log"


def test_whole_seconds_of_the_store_do_not_eat_the_age() -> None:
    """gc_min_age_seconds=1 is allowed; LastModified is whole seconds, so 0.1 s of age can look like 1 s."""
    room = Room(LogConfig(gc_min_age_seconds=1))
    room.clock.advance(0.9)
    old = room.writer()
    old.append_wal([record(1)])
    new = room.writer()
    new.append_wal([record(2)])
    new.append_wal([record(3)])
    room.clock.advance(0.12)
    room.collector().run(upto=4)
    try:
        old.append_wal([record(99)], txn="lost")
    except (CommitStateUnknown, Fenced):
        return
    assert in_log(room, "lost"), "acknowledged, and not in the log"


def test_a_lost_root_is_not_an_empty_log() -> None:
    """F26: a new writer would start at slot 1."""
    room = Room(LogConfig(gc_min_age_seconds=1))
    writer = room.writer()
    for number in range(1, 30):
        writer.append_wal([record(number)])
    room.clock.advance(10)
    writer.append_wal([record(30)])
    room.collector().run(upto=20)
    room.memory.delete(KEYS.root)
    with pytest.raises(Corrupt, match="the root is gone"):
        list(room.reader().segments())
    with pytest.raises(Corrupt, match="the root is gone"):
        room.writer()


def test_a_fence_never_goes_into_a_gap() -> None:
    """F26: slot 7 of 11 is lost; a fence there would hide it."""
    room = Room()
    writer = room.writer()
    for number in range(1, 11):
        writer.append_wal([record(number)])
    room.memory.delete(KEYS.slot(7))
    with pytest.raises(Corrupt, match="a segment is missing"):
        room.writer()


def test_records_may_come_from_a_generator() -> None:
    room = Room()
    writer = room.writer()
    writer.append_wal(one for one in [record(1)])
    room.writer()
    assert room.numbers() == [1]


# Group commit


def test_a_cancelled_commit_does_not_hold_up_its_batch() -> None:
    """As `asyncio.wait_for` does where a PUT takes long."""
    room = GroupRoom()
    with ThreadPoolExecutor(4) as pool:
        room.hold(pool)
        first = room.group.submit(group_record(1), txn="cancelled")
        second = room.group.submit(group_record(2), txn="second")
        room.until_queued(2)
        assert first.cancel()
        room.store.open.set()
        assert second.result(30) == room.lsns()["second"]
    assert "cancelled" not in room.committed()


def test_a_cancelled_task_of_asyncio_does_not_either() -> None:
    room = GroupRoom()

    async def several() -> int:
        slow = asyncio.wrap_future(room.group.submit(group_record(0)))
        assert await asyncio.to_thread(room.store.waiting.wait, 30)
        doomed = asyncio.create_task(asyncio.wait_for(asyncio.wrap_future(room.group.submit(group_record(1))), 0.05))
        other = asyncio.wrap_future(room.group.submit(group_record(2)))
        with pytest.raises(TimeoutError):
            await doomed
        room.store.open.set()
        await slow
        return await asyncio.wait_for(other, 30)

    room.store.open.clear()
    room.store.waiting.clear()
    asyncio.run(several())


def test_a_buffer_may_be_cleared_after_it_was_submitted() -> None:
    room = GroupRoom()
    with ThreadPoolExecutor(4) as pool:
        room.hold(pool)
        buffer = group_record(1)
        future = room.group.submit(buffer, txn="t")
        room.until_queued(1)
        buffer.clear()
        room.store.open.set()
        assert future.result(30) > 0
    assert room.committed() == {"first": [0], "t": [1]}


def test_what_is_submitted_beside_close_is_refused_and_not_written() -> None:
    room = GroupRoom()
    with ThreadPoolExecutor(4) as pool:
        room.hold(pool)
        closing = pool.submit(room.group.close)
        while not room.group._closed:
            SystemClock().sleep(0.001)
        with pytest.raises(Unavailable, match="closed"):
            room.group.submit(group_record(7), txn="late")
        room.store.open.set()
        closing.result(30)
    assert list(room.committed()) == ["first"]


def test_one_bad_id_is_refused_alone() -> None:
    room = GroupRoom()
    with ThreadPoolExecutor(4) as pool:
        room.hold(pool)
        good = pool.submit(room.group.append_wal, group_record(1), txn="good")
        room.until_queued(1)
        for txn in ("\ud800", "", "x" * 201, "a\nb"):
            with pytest.raises(Invalid, match="the id of a transaction"):
                room.group.append_wal(group_record(2), txn=txn)
        room.store.open.set()
        assert good.exception(30) is None


def test_an_interrupt_of_the_one_who_writes_is_an_unknown_outcome_for_the_others() -> None:
    room = GroupRoom()

    class Interrupted(LogWriter):
        def commit(self, transactions: Sequence[LogTransaction]) -> list[int]:
            super().commit(transactions)
            raise KeyboardInterrupt

    group = GroupCommit(Interrupted.open(room.memory, "main", ids=Ids.seeded(5)))
    with ThreadPoolExecutor(1) as pool, group._turn:
        other = pool.submit(group.append_wal, group_record(1), txn="other")
        while not group._queue:
            SystemClock().sleep(0.001)
        with pytest.raises(KeyboardInterrupt):
            group._write_batch()
    assert isinstance(other.exception(30), CommitStateUnknown)
    assert group.writer.stopped is not None


def test_a_closed_writer_takes_no_commit() -> None:
    """Its owner has given it up, and may have opened another one."""
    room = Room()
    writer = room.writer()
    writer.append_wal([record(1)])
    writer.close()
    with pytest.raises(Unavailable, match="closed"):
        writer.append_wal([record(2)])
    assert room.numbers() == [1]


def test_a_slot_that_is_taken_is_no_gap() -> None:
    """A new writer that comes to the end late would call a sound log damaged."""
    room = Room()
    writer = room.writer()
    for number in range(3):
        writer.append_wal([record(number)])
    writer._check_no_gap(2)
    room.memory.delete(KEYS.slot(2))
    with pytest.raises(Corrupt, match="a segment is missing"):
        writer._check_no_gap(2)


def test_a_log_without_the_segment_after_its_boundary_does_not_begin_at_one() -> None:
    """A reader would take what was collected, and the rest with it, for a log that has just begun."""
    room = Room(LogConfig(gc_min_age_seconds=1))
    writer = room.writer()
    for number in range(3):
        writer.append_wal([record(number)])
    room.clock.advance(100)
    assert room.collector().run(2).boundary == 2
    assert room.reader().earliest() > 1
    for listed in list(room.memory.list(KEYS.log)):
        room.memory.delete(listed.key)
    with pytest.raises(Corrupt, match="no segment after the boundary 2"):
        room.reader().earliest()
