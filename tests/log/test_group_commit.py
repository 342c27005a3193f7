"""Group commit: transactions of many threads in few segments, and nobody is told what is not so."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import cast

import pytest

from worm.clock import Ids, SystemClock, VirtualClock
from worm.errors import CommitStateUnknown, Fenced, Invalid, Unavailable, WormError
from worm.formats.strict_json import JsonObject
from worm.log.config import LogConfig
from worm.log.group import GroupCommit, _Blocked, _end
from worm.log.reader import LogReader
from worm.log.segment import LogTransaction
from worm.log.writer import LogWriter
from worm.store.base import Attempt, Condition
from worm.store.faulty_store import Fault, FaultyStore
from worm.store.memory import MemoryStore


class SlowStore(FaultyStore):
    """Every conditional write waits until it is let through; `waiting` tells that one does."""

    def __init__(self, inner: MemoryStore) -> None:
        super().__init__(inner, ids=Ids.seeded(2))
        self.open = threading.Event()
        self.waiting = threading.Event()
        self.open.set()

    def attempt_put(self, key: str, body: bytes, condition: Condition, metadata: Mapping[str, str]) -> Attempt:
        self.waiting.set()
        assert self.open.wait(30)
        return super().attempt_put(key, body, condition, metadata)


class Room:
    def __init__(self, config: LogConfig | None = None) -> None:
        self.memory = MemoryStore(ids=Ids.seeded(1))
        self.store = SlowStore(self.memory)
        self.writer = LogWriter.open(self.store, "main", config=config, ids=Ids.seeded(3))
        self.group = GroupCommit(self.writer, ids=Ids.seeded(4))

    def committed(self) -> dict[str, list[object]]:
        found: dict[str, list[object]] = {}
        for change in LogReader(self.memory, "main").feed():
            found.setdefault(change.txn, []).append(change.record["n"])
        return found

    def lsns(self) -> dict[str, int]:
        return {change.txn: change.lsn for change in LogReader(self.memory, "main").feed() if change.is_last}

    def hold(self, pool: ThreadPoolExecutor) -> Future[int]:
        """One commit is on its way to the store and does not arrive."""
        self.store.open.clear()
        self.store.waiting.clear()
        first = pool.submit(self.group.append_wal, record(0), txn="first")
        assert self.store.waiting.wait(30)
        return first

    def until_queued(self, count: int) -> None:
        for _ in range(2000):
            if len(self.group._queue) == count:
                return
            SystemClock().sleep(0.005)
        raise AssertionError(f"{len(self.group._queue)} wait, not {count}")


def record(number: int) -> list[JsonObject]:
    return [{"op": "put", "n": number}]


def test_those_who_come_while_a_segment_is_on_its_way_share_the_next_one() -> None:
    room = Room()
    with ThreadPoolExecutor(64) as pool:
        room.hold(pool)
        futures = {f"t{n}": pool.submit(room.group.append_wal, record(n), txn=f"t{n}") for n in range(50)}
        room.until_queued(50)
        with room.memory.requests.measure() as requests:
            room.store.open.set()
            lsns = {txn: future.result(30) for txn, future in futures.items()}
    assert requests == {"PUT": 2, "total": 2}
    assert (room.group.segments, room.group.committed) == (2, 51)
    assert lsns.items() <= room.lsns().items()
    assert room.committed() == {"first": [0], **{f"t{n}": [n] for n in range(50)}}


def test_a_lonely_commit_does_not_wait() -> None:
    room = Room()
    with room.memory.requests.measure() as requests:
        assert room.group.append_wal(record(1)) == 3
    assert requests["total"] == 1


def test_a_segment_takes_so_many_transactions_and_so_many_bytes() -> None:
    for config in (LogConfig(group_commit_max_txns=10), LogConfig(log_segment_max_bytes=2048)):
        room = Room(config)
        with ThreadPoolExecutor(64) as pool:
            room.hold(pool)
            futures = [pool.submit(room.group.append_wal, record(n)) for n in range(40)]
            room.until_queued(40)
            room.store.open.set()
            assert len({future.result(30) for future in futures}) == 40
        assert room.group.segments >= 4
        for segment in LogReader(room.memory, "main").segments():
            assert len(list(segment.transactions())) <= config.group_commit_max_txns
            assert len(segment.encode()) <= config.log_segment_max_bytes


def test_a_transaction_that_never_fits_is_refused_alone() -> None:
    room = Room(LogConfig(log_segment_max_bytes=2048))
    with pytest.raises(Invalid, match="split it"):
        room.group.append_wal([{"op": "put", "n": "x" * 3000}])
    room.group.append_wal(record(1))
    assert list(room.committed().values()) == [[1]]


@pytest.mark.parametrize("kind", ["fenced", "unknown"])
def test_mid_batch_nobody_is_told_success_of_what_is_not_in_the_log(kind: str) -> None:
    """F15: the batch on its way lands; those that wait for the next one meet the end of this writer."""
    room = Room()
    error: type[WormError] = Fenced if kind == "fenced" else Unavailable
    with ThreadPoolExecutor(64) as pool:
        first = room.hold(pool)
        futures = {f"t{n}": pool.submit(room.group.append_wal, record(n), txn=f"t{n}") for n in range(30)}
        room.until_queued(30)
        if kind == "fenced":
            LogWriter.open(room.memory, "main", ids=Ids.seeded(9))
        else:
            room.store.fail_next("attempt_put", Fault.UNAVAILABLE, times=99)
        room.store.open.set()
        outcomes = {txn: future.exception(30) for txn, future in futures.items()}
    assert type(first.exception()) is (Fenced if kind == "fenced" else CommitStateUnknown)
    assert {type(outcome) for outcome in outcomes.values()} == {error}
    assert room.committed() == {}
    with room.memory.requests.measure() as requests, pytest.raises(error):
        room.group.append_wal(record(99))
    assert requests["total"] == 0


def test_a_window_waits_for_others() -> None:
    clock = VirtualClock()
    room = Room(LogConfig.classic())
    group = GroupCommit(room.writer, clock=clock)
    group.append_wal(record(1))
    assert clock.monotonic() == pytest.approx(0.002)
    assert LogConfig.classic().group_commit_max_txns == 256


def test_commits_without_waiting_and_from_asyncio() -> None:
    room = Room()
    futures = [room.group.submit(record(n), txn=f"t{n}") for n in range(20)]
    assert {future.result(30) for future in futures} == set(room.lsns().values())

    async def several() -> list[int]:
        return list(await asyncio.gather(*(asyncio.wrap_future(room.group.submit(record(n))) for n in range(20))))

    assert len(set(asyncio.run(several()))) == 20
    room.group.close()
    with pytest.raises(WormError, match="closed"):
        room.group.append_wal(record(1))
    assert len(room.committed()) == 40


def test_many_threads_and_many_commits() -> None:
    room = Room()
    told: dict[str, int] = {}

    def work(number: int) -> None:
        for count in range(20):
            txn = f"{number}-{count}"
            told[txn] = room.group.append_wal([*record(count), *record(count)], txn=txn)

    with ThreadPoolExecutor(32) as pool:
        list(pool.map(work, range(32)))
    assert told == room.lsns()
    for number in range(32):
        mine = [told[f"{number}-{count}"] for count in range(20)]
        assert mine == sorted(mine)


class UnhurriedStore(MemoryStore):
    """A conditional write takes 40 ms of the clock, which is virtual."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(ids=Ids.seeded(1))
        self.virtual = clock

    def attempt_put(self, key: str, body: bytes, condition: Condition, metadata: Mapping[str, str]) -> Attempt:
        self.virtual.advance(0.04)
        return super().attempt_put(key, body, condition, metadata)


class Visited(VirtualClock):
    """Calls `on_sleep` at the next sleep, once."""

    def __init__(self) -> None:
        super().__init__()
        self.on_sleep: Callable[[], object] | None = None
        self.slept = 0.0

    def sleep(self, seconds: float) -> None:
        visit, self.on_sleep = self.on_sleep, None
        if visit is not None:
            visit()
        self.slept += seconds
        super().sleep(seconds)


def a_pair(clock: Visited, config: LogConfig | None = None) -> GroupCommit:
    """Two committers shared the last segment."""
    writer = LogWriter.open(UnhurriedStore(clock), "main", config=config, clock=clock, ids=Ids.seeded(3))
    group = GroupCommit(writer, clock=clock, ids=Ids.seeded(4))
    group._enqueue(_Blocked(LogTransaction("a", record(1))))
    group.append_wal(record(2))
    assert (group.segments, group.committed) == (1, 2)
    return group


def test_a_leader_waits_for_the_one_that_shared_the_last_segment() -> None:
    clock = Visited()
    group = a_pair(clock)
    clock.on_sleep = lambda: group.submit(record(3))
    group.append_wal(record(4))
    assert (group.segments, group.committed) == (2, 4)
    assert clock.slept == pytest.approx(0.04 / 64)


def test_who_does_not_come_back_is_waited_for_once_and_for_an_eighth_of_a_write() -> None:
    clock = Visited()
    group = a_pair(clock)
    began = clock.monotonic()
    group.append_wal(record(3))
    assert clock.slept == pytest.approx(0.04 / 8)
    for number in range(10):
        group.append_wal(record(number))
    assert clock.slept == pytest.approx(0.04 / 8)
    assert clock.monotonic() - began == pytest.approx(0.04 * 11 + 0.04 / 8)


def test_after_a_silence_nobody_is_waited_for() -> None:
    clock = Visited()
    group = a_pair(clock)
    clock.advance(0.04 / 8)
    group.append_wal(record(3))
    assert clock.slept == 0


def test_with_a_window_a_leader_waits_for_the_window_alone() -> None:
    clock = Visited()
    group = a_pair(clock, LogConfig(group_commit_window_ms=2))
    group.append_wal(record(3))
    assert clock.slept == pytest.approx(2 * 0.002)


@pytest.mark.parametrize("config", [LogConfig(group_commit_max_txns=2), LogConfig(log_segment_max_bytes=1024)])
def test_a_full_segment_waits_for_nobody(config: LogConfig) -> None:
    clock = Visited()
    group = a_pair(clock, config)
    group._gathering.wrote(1, 9, 0.04)
    for txn in ("b", "c"):
        group._enqueue(_Blocked(LogTransaction(txn, [{"op": "put", "n": "x" * 400}])))
    group._gather()
    assert clock.slept == 0


def test_a_segment_that_fills_up_is_not_waited_for_any_longer() -> None:
    clock = Visited()
    group = a_pair(clock, LogConfig(group_commit_max_txns=2))
    group._gathering.wrote(1, 9, 0.04)
    clock.on_sleep = lambda: group._enqueue(_Blocked(LogTransaction("b", record(1))))
    group.append_wal(record(3))
    assert clock.slept == pytest.approx(0.04 / 64)


def test_the_bytes_of_the_queue_are_those_that_wait() -> None:
    room = Room()
    with ThreadPoolExecutor(8) as pool:
        room.hold(pool)
        futures = [room.group.submit(record(n)) for n in range(5)]
        assert room.group._queued_bytes > 0
        futures[0].cancel()
        room.store.open.set()
        for future in futures[1:]:
            future.result(30)
    assert room.group._queued_bytes == 0


class Awaiting(VirtualClock):
    """A pause lasts until everybody who commits again has come: a busy machine takes its time to run their threads."""

    def __init__(self) -> None:
        super().__init__()
        self.are_all_there: Callable[[], bool] = lambda: True

    def sleep(self, seconds: float) -> None:
        while not self.are_all_there():
            SystemClock().sleep(0.001)
        super().sleep(seconds)


@pytest.mark.parametrize("count", [2, 8])
def test_threads_that_commit_again_after_every_ack_share_every_segment(count: int) -> None:
    clock, ended = Awaiting(), list[int]()
    group = GroupCommit(LogWriter.open(UnhurriedStore(clock), "main", ids=Ids.seeded(3)), clock=clock)
    clock.are_all_there = lambda: len(group._queue) + len(ended) >= count

    def work(number: int) -> None:
        for one in range(30):
            group.append_wal(record(one), txn=f"{number}-{one}")
        ended.append(number)

    with ThreadPoolExecutor(count) as pool:
        with group._turn:
            running = [pool.submit(work, number) for number in range(count)]
            clock.sleep(0)  # until all of them wait for the first segment
            group._wake()
        for one in running:
            one.result(60)
    assert group.committed == 30 * count
    assert group.segments == 30  # two alternating groups would make 60


class Interrupted:
    """A gate at which the one who waits is interrupted, before or after it is let through."""

    def __init__(self, *, is_open: bool) -> None:
        self._gate = threading.Lock()
        self._gate.acquire()
        self._is_open = is_open

    def acquire(self, blocking: bool = True) -> bool:
        if blocking:
            if self._is_open:
                self._gate.release()
            raise KeyboardInterrupt
        return self._gate.acquire(blocking=False)

    def release(self) -> None:
        self._gate.release()


def test_one_that_was_interrupted_while_it_waited_keeps_nobody_asleep() -> None:
    """Threads are woken by each other: the next must not wait for one who is gone."""
    batch = [_Blocked(LogTransaction(f"t{n}", record(n))) for n in range(6)]
    for gone in batch[:4]:
        gone._gate = cast(threading.Lock, Interrupted(is_open=False))
        with pytest.raises(KeyboardInterrupt):
            gone.result()
    _end([*batch], range(6), None)
    with ThreadPoolExecutor(2) as pool:
        assert [pool.submit(one.result).result(30) for one in batch[4:]] == [4, 5]


def test_one_that_was_interrupted_when_it_was_woken_wakes_the_next() -> None:
    batch = [_Blocked(LogTransaction(f"t{n}", record(n))) for n in range(3)]
    rest = deque(batch[1:])
    batch[0].rest = batch[1].rest = batch[2].rest = rest
    batch[0]._gate = cast(threading.Lock, Interrupted(is_open=True))
    with pytest.raises(KeyboardInterrupt):
        batch[0].result()
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(one.result) for one in batch[1:]]
        assert [one.result(30) for one in waiting] == [0, 0]


def test_a_signal_ends_the_wait_of_one_thread_and_of_no_other() -> None:
    room = Room()

    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    def send_when_queued() -> None:
        room.until_queued(11)
        os.kill(os.getpid(), signal.SIGUSR1)

    with ThreadPoolExecutor(32) as pool:
        room.hold(pool)
        futures = [pool.submit(room.group.append_wal, record(n), txn=f"t{n}") for n in range(10)]
        room.until_queued(10)
        before = signal.signal(signal.SIGUSR1, interrupt)
        pool.submit(send_when_queued)
        try:
            with pytest.raises(KeyboardInterrupt):
                room.group.append_wal(record(99), txn="interrupted")
        finally:
            signal.signal(signal.SIGUSR1, before)
        futures += [pool.submit(room.group.append_wal, record(n), txn=f"t{n}") for n in range(10, 20)]
        room.until_queued(21)
        room.store.open.set()
        lsns = {f"t{n}": future.result(30) for n, future in enumerate(futures)}
    assert lsns.items() <= room.lsns().items()
    assert "interrupted" in room.committed()
