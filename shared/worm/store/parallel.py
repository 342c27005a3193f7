"""One way to do several requests at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")
THREADS = 16


def in_parallel(work: Callable[[T], R], items: Iterable[T], threads: int = THREADS) -> list[R]:
    """Results in order."""
    listed = list(items)
    if len(listed) < 2:
        return [work(one) for one in listed]
    with ThreadPoolExecutor(min(threads, len(listed)), thread_name_prefix="worm") as pool:
        return list(pool.map(work, listed))
