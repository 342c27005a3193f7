"""Chunks, parallel work and bounded retries."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from worm.clock import Ids, VirtualClock, attempts
from worm.store.base import about_to_read
from worm.store.parallel import Portions, Postponed, Room, in_chunks, in_parallel


@pytest.mark.parametrize(
    ("count", "size", "chunks"),
    [(0, 3, []), (1, 3, [[0]]), (3, 3, [[0, 1, 2]]), (7, 3, [[0, 1, 2], [3, 4, 5], [6]]), (2, 1, [[0], [1]])],
)
def test_chunks_hold_all_items_in_order(count: int, size: int, chunks: list[list[int]]) -> None:
    assert list(in_chunks(range(count), size)) == chunks


def test_a_chunk_is_handed_out_before_the_next_items_are_taken() -> None:
    """A caller with a deadline stops between chunks; items behind it may cost requests."""
    taken: list[int] = []

    def items() -> Iterator[int]:
        for one in range(9):
            taken.append(one)
            yield one

    assert next(in_chunks(items(), 2)) == [0, 1]
    assert taken == [0, 1]


def test_parallel_work_gives_results_in_order_and_uses_several_threads() -> None:
    both = threading.Barrier(2, timeout=30)

    def work(item: int) -> int:
        both.wait()
        return item * 10

    assert in_parallel(work, [1, 2]) == [10, 20]


def test_parallel_work_passes_an_error_on() -> None:
    def work(item: int) -> int:
        return 1 // item

    with pytest.raises(ZeroDivisionError):
        in_parallel(work, [1, 0, 2])


def test_attempts_pause_before_every_try_but_the_first_and_end() -> None:
    clock = VirtualClock()
    ids = Ids.seeded(3, clock)
    pauses = []
    before = clock.monotonic()
    for _ in attempts(5, clock, ids, base_seconds=1.0, cap_seconds=4.0):
        pauses.append(clock.monotonic() - before)
        before = clock.monotonic()
    assert pauses[0] == 0
    assert len(pauses) == 5
    assert all(0 < pause <= limit for pause, limit in zip(pauses[1:], [1.0, 2.0, 4.0, 4.0], strict=True))


def test_a_success_needs_no_pause() -> None:
    clock = VirtualClock()
    before = clock.monotonic()
    for _ in attempts(3, clock, Ids.seeded(1, clock)):
        break
    assert clock.monotonic() == before


def _portions(sizes: list[int], *, enough: int = 0, most: int = 500, told: bool = False) -> list[int]:
    portions, taken = Portions(most=most, enough=enough), list[int]()
    for some in portions.of(sizes, (lambda size: size) if told else (lambda size: 0)):
        taken.append(len(some))
        for size in some:
            portions.took(size)
    assert sum(taken) == len(sizes)
    return taken


def test_large_items_are_worked_on_a_few_at_a_time() -> None:
    """A batch of a hundred documents of ten megabytes read at once is more than the memory of a function."""
    mb = 1 << 20
    assert _portions([5 * mb] * 40)[1:] == [3] * 10 + [2]
    assert _portions([10 * mb] * 5, told=True) == [1] * 5
    assert _portions([20 * mb] * 3, told=True) == [1] * 3
    assert max(_portions([1000] * 8 + [5 * mb] * 100)[3:]) <= 4


def test_small_items_are_soon_taken_in_large_portions_and_not_beyond_what_is_enough() -> None:
    assert _portions([1000] * 2000) == [8, 32, 128, 500, 500, 500, 332]
    assert _portions([1000] * 60, enough=21) == [8, 13, 39]


def test_one_item_alone_may_read_anything() -> None:
    room = Room(limit=10)

    def work(item: int) -> int:
        about_to_read(item)
        about_to_read(item)
        return item

    assert room.within(work, 50) == 50
    assert room.within(work, 51) == 51, "the first one let go of what it held"
    assert room.peak == 102


def test_an_item_that_does_not_fit_beside_others_is_stopped_and_fits_later() -> None:
    """It must not wait: it may hold a lock that the others need. And nobody may take the stop for an answer."""
    room, inner = Room(limit=10), list[int | Postponed]()

    def small(item: int) -> int:
        about_to_read(item)
        return item

    def caught(item: int) -> int:
        about_to_read(3)
        try:
            return small(item)
        except Exception:  # noqa: BLE001 - as code between a store and a worker does
            return -1

    def beside(work: Callable[[int], int]) -> None:
        other = threading.Thread(target=lambda: inner.append(room.within(work, 4)))
        other.start()
        other.join()

    def first(item: int) -> int:
        about_to_read(item)
        for work in (small, caught):
            beside(work)
        return item

    assert room.within(first, 6) == 6
    done, stopped = inner
    assert done == 4
    assert isinstance(stopped, Postponed)
    assert stopped.need == 7, "what it had read, and what it was about to"
    assert stopped.__traceback__ is None, "it would keep alive what was read"
    assert room.within(caught, 4) == 4
    assert room.peak == 10


def test_reads_outside_of_a_room_are_not_counted() -> None:
    about_to_read(1 << 40)
