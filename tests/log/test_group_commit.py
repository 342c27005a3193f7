"""Group commit: transactions of many threads in few segments, and nobody is told what is not so."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from worm.clock import Ids, SystemClock, VirtualClock
from worm.codec.strict_json import JsonObject
from worm.errors import CommitStateUnknown, Fenced, Invalid, Unavailable, WormError
from worm.log.config import LogConfig
from worm.log.group import GroupCommit
from worm.log.reader import LogReader
from worm.log.writer import LogWriter
from worm.store.base import Attempt, Condition
from worm.store.memory import MemoryStore
from worm_dev.faulty_store import Fault, FaultyStore


class SlowStore(FaultyStore):
    """Every conditional write waits until it is let through; `waiting` tells that one does."""

    def __init__(self, inner: MemoryStore) -> None:
        super().__init__(inner, ids=Ids.seeded(2))
        self.open = threading.Event()
        self.waiting = threading.Event()
        self.open.set()

    def attempt_put(self, key: str, body: bytes, condition: Condition, metadata: Mapping[str, str]) -> Attempt:
        self.waiting.set()
        assert self.open.wait(10)
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
        assert self.store.waiting.wait(10)
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
            lsns = {txn: future.result(10) for txn, future in futures.items()}
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
            assert len({future.result(10) for future in futures}) == 40
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
    assert {future.result(10) for future in futures} == set(room.lsns().values())

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
