"""Many requests: one way to do several at once, one way to take items in chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
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


def chunked(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """The items in order, `size` at a time; the last list may be shorter. Takes no more of them than it hands out."""
    rest = iter(items)
    while chunk := list(islice(rest, size)):
        yield chunk
