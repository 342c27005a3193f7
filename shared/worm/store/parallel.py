"""Many requests: one way to do several at once, one way to take items in chunks, one bound on what is held at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from contextvars import copy_context
from itertools import accumulate, islice
from typing import TYPE_CHECKING, TypeVar

from worm.forks import new_lock
from worm.store.base import at_work

if TYPE_CHECKING:
    from concurrent.futures import Future

T = TypeVar("T")
R = TypeVar("R")
THREADS = 16


def carried(work: Callable[..., R]) -> Callable[..., R]:
    """The same work for another thread, which counts its requests with those of this one (`base.metered`). Several
    threads may call it at once: each call has a context of its own."""
    context = copy_context()
    return lambda *given: context.copy().run(work, *given)


def in_parallel(work: Callable[[T], R], items: Iterable[T], threads: int = THREADS) -> list[R]:
    """Results in order."""
    listed = list(items)
    if len(listed) < 2:
        return [work(one) for one in listed]
    from concurrent.futures import ThreadPoolExecutor  # brings logging along

    with ThreadPoolExecutor(min(threads, len(listed)), thread_name_prefix="worm") as pool:
        futures: list[Future[R]] = []
        taken = carried(work)
        with suppress(RuntimeError):  # the interpreter ends, and starts no more threads
            futures.extend(pool.submit(taken, one) for one in listed)
        return [*(future.result() for future in futures), *map(work, listed[len(futures) :])]


TURN_BYTES = 16 << 20
"""About how much is read before it is worked on. What it becomes in memory may be several times larger."""
_FIRST = 8
_GROWTH = 4


class Portions:
    """Work on many items in turns, so that one turn reads about `TURN_BYTES`, whatever the items turn out to have. How
    many the next turn takes follows from what was read so far; the first are few. `enough`: so many may do, so a turn
    ends there."""

    def __init__(self, *, most: int, enough: int = 0) -> None:
        self._most = most
        self._enough = enough
        self._size = min(most, _FIRST)
        self._read = self._done = 0

    def took(self, size: int) -> None:
        """So many bytes were read for one item."""
        self._read += size

    def of(self, items: Sequence[T], said: Callable[[T], int] = lambda item: 0) -> Iterator[Sequence[T]]:
        """The items in order, a turn at a time. `said`: how many bytes an item is said to have."""
        start = 0
        while start < len(items):
            end = start + self._size
            turn = items[start : min(end, self._enough) if start < self._enough else end]
            sums = accumulate(map(said, turn))
            turn = turn[: max(1, sum(size <= TURN_BYTES for size in sums))]
            start += len(turn)
            yield turn
            self._done += len(turn)
            each = max(1, self._read // self._done)
            self._size = max(1, min(self._most, self._size * _GROWTH, TURN_BYTES // each))


class Postponed(BaseException):
    """What an item is about to read does not fit beside what others hold. `need`: its bytes so far and these. Not an
    `Exception`: nobody between the read and `Room.within` is to take it for an answer of the store."""

    def __init__(self, need: int) -> None:
        super().__init__(need)
        self.need = need


class Room:
    """Bounds the bytes that items which are worked on at the same time have read. What an item is said to have may be
    wrong; here counts what the store says before it sends a body. An item that does not fit is stopped, not made to
    wait, since it may hold locks that others need; the caller works on it again when there is room. One item alone may
    read anything."""

    def __init__(self, limit: int = TURN_BYTES) -> None:
        self._limit = limit
        self._lock = new_lock()
        self._held = 0
        self.peak = 0

    def within(self, work: Callable[[T], R], item: T) -> R | Postponed:
        """Work on the item in this thread; `Postponed` where it did not fit. It holds what it read until it ends."""
        at_work.room, at_work.held = self, 0
        try:
            return work(item)
        except Postponed as postponed:
            return postponed.with_traceback(None)  # which keeps alive all that the item has read
        finally:
            with self._lock:
                self._held -= at_work.held
            del at_work.room

    def take(self, size: int) -> None:
        with self._lock:
            held = at_work.held
            if self._held > held and self._held + size > self._limit:
                raise Postponed(held + size)
            self._held += size
            self.peak = max(self.peak, self._held)
        at_work.held = held + size


def chunked(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """The items in order, `size` at a time; the last list may be shorter. Takes no more of them than it hands out."""
    rest = iter(items)
    while chunk := list(islice(rest, size)):
        yield chunk
