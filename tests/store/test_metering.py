"""A meter counts the requests of one piece of work, in all its threads, and nobody else's."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from worm.store.base import metered
from worm.store.memory import MemoryStore
from worm.store.parallel import in_parallel
from worm.upkeep.session import Session

KEYS = [f"k{n}" for n in range(40)]


def test_work_in_other_threads_counts() -> None:
    store = MemoryStore()
    session = Session(store)
    with metered() as meter:
        in_parallel(store.get, KEYS)
        session.in_parallel(store.get, KEYS)
        session.in_parallel(store.get, KEYS, said=lambda key: 1)
        session.submit(lambda: store.head("k")).result()
    assert meter.requests == {"GET": 120, "HEAD": 1}
    store.get("k")
    assert meter.total == 121, "after the block nothing counts"


def test_two_at_the_same_time_count_apart() -> None:
    store, start = MemoryStore(), Barrier(2)
    store.put("k", b"12345")

    def work(times: int) -> tuple[int, int]:
        with metered() as meter:
            start.wait()
            in_parallel(store.get, ["k"] * times)
            start.wait()
            return meter.total, meter.bytes_read

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(work, [7, 40])) == [(7, 35), (40, 200)]


def test_an_outer_meter_counts_what_an_inner_one_does() -> None:
    store = MemoryStore()
    with metered() as outer:
        store.get("a")
        with metered() as inner:
            store.put("a", b"1")
            store.get("a")
    assert (outer.requests, inner.requests) == ({"GET": 2, "PUT": 1}, {"GET": 1, "PUT": 1})
    assert (outer.bytes_read, inner.bytes_read) == (1, 1)
