"""Many requests: one way to run several at once, one way to take items in chunks, and one limit on the memory they
use."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from contextvars import copy_context
from functools import cached_property
from itertools import accumulate, islice
from typing import TYPE_CHECKING, ClassVar, TypeVar

from worm import forks
from worm.store.base import Store, at_work

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

T = TypeVar("T")
R = TypeVar("R")
THREADS = 16


def carried(work: Callable[..., R]) -> Callable[..., R]:
    """The same work for another thread, whose requests are counted with those of this one (`base.metered`). Several
    threads may call it at once: each call has its own context."""
    context = copy_context()
    return lambda *given: context.copy().run(work, *given)


def in_parallel(work: Callable[[T], R], items: Iterable[T], threads: int = THREADS) -> list[R]:
    """Results in order."""
    listed = list(items)
    if len(listed) < 2:
        return [work(one) for one in listed]
    from concurrent.futures import ThreadPoolExecutor  # imports logging

    with ThreadPoolExecutor(min(threads, len(listed)), thread_name_prefix="worm") as pool:
        futures: list[Future[R]] = []
        taken = carried(work)
        with suppress(RuntimeError):  # the interpreter is shutting down and starts no more threads
            futures.extend(pool.submit(taken, one) for one in listed)
        return [*(future.result() for future in futures), *map(work, listed[len(futures) :])]


TURN_BYTES = 16 << 20
"""About how many bytes are read before they are processed. In memory, they may become several times larger."""
_FIRST = 8
_GROWTH = 4


class Portions:
    """Process many items in turns, so that one turn reads about `TURN_BYTES`, whatever size the items turn out to have.
    The size of the next turn follows from the bytes read so far; the first turns are small. `enough`: this many items
    may suffice, so a turn ends there."""

    BYTES: ClassVar = TURN_BYTES

    def __init__(self, *, most: int, enough: int = 0) -> None:
        self._most = most
        self._enough = enough
        self._size = min(most, _FIRST)
        self._read = self._done = 0

    def took(self, size: int) -> None:
        """Record how many bytes were read for one item."""
        self._read += size

    def of(self, items: Sequence[T], said: Callable[[T], int] = lambda item: 0) -> Iterator[Sequence[T]]:
        """The items in order, a turn at a time. `said`: the expected bytes of an item."""
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
    """An item is about to read more than fits beside what other items hold. `need`: the bytes that it has read and
    wants to read. This is not an `Exception`, so that no code between the read and `Room.within` mistakes it for an
    answer of the store."""

    def __init__(self, need: int) -> None:
        super().__init__(need)
        self.need = need


class Room:
    """Limits the bytes that items in progress have read together. The expected size of an item may be wrong, so this
    counts what the store reports before it sends a body. An item that does not fit is stopped. It does not wait,
    because it may hold locks that others need; the caller processes it again when there is room. A single item may read
    any amount."""

    def __init__(self, limit: int = TURN_BYTES) -> None:
        self._limit = limit
        self._lock = forks.new_lock()
        self._held = 0
        self.peak = 0

    def within(self, work: Callable[[T], R], item: T) -> R | Postponed:
        """Process the item in this thread. Returns `Postponed` if it did not fit. The item holds its bytes until it
        ends."""
        at_work.room, at_work.held = self, 0
        try:
            return work(item)
        except Postponed as postponed:
            return postponed.with_traceback(None)  # the traceback would keep alive everything that the item has read
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


class Pool:
    """Threads that start with the first work and stay for the next. Requests of their work are counted with those of
    the caller."""

    def __init__(self, store: Store, threads: int) -> None:
        self._store = store
        self._threads = threads

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        from concurrent.futures import ThreadPoolExecutor  # imports logging

        return ThreadPoolExecutor(self._threads, thread_name_prefix="worm")

    def submit(self, work: Callable[[], R]) -> Future[R]:
        """Run it in the background."""
        return self._pool.submit(carried(work))

    def in_parallel(self, work: Callable[[T], R], items: Sequence[T], said: Callable[[T], int] | None) -> list[R]:
        """Results in order, worked in turns (`Portions`). With `said`, the expected size of an item in bytes, an item
        that is too large to hold with the others is stopped at a read, and done later (`Room`)."""
        if said is None:
            turns = self._turns(items, lambda one: 0)
            return [result for turn in turns for result in self._pool.map(carried(work), turn)]
        return self._bounded(work, items, said)

    def _bounded(self, work: Callable[[T], R], items: Sequence[T], said: Callable[[T], int]) -> list[R]:
        room, done = Room(), dict[int, R]()
        sizes = {at: said(one) for at, one in enumerate(items)}
        while left := [at for at in sizes if at not in done]:
            for turn in self._turns(left, sizes.__getitem__):
                found = self._pool.map(carried(lambda at: room.within(work, items[at])), turn)
                for at, result in zip(turn, found, strict=True):
                    if isinstance(result, Postponed):
                        sizes[at] = max(sizes[at], result.need)
                    else:
                        done[at] = result
        return [done[at] for at in sizes]

    def _turns(self, items: Sequence[T], said: Callable[[T], int]) -> Iterator[Sequence[T]]:
        turns, requests = Portions(most=len(items)), self._store.requests
        for turn in turns.of(items, said):
            before = requests.bytes_read
            yield turn
            turns.took(requests.bytes_read - before)


def in_chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """The items in order, `size` at a time; the last list may be shorter. Takes no more items than it yields."""
    rest = iter(items)
    while chunk := list(islice(rest, size)):
        yield chunk
