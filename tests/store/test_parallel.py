"""Chunks, parallel work and bounded retries."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from worm.clock import Ids, VirtualClock, attempts
from worm.store.parallel import chunked, in_parallel


@pytest.mark.parametrize(
    ("count", "size", "chunks"),
    [(0, 3, []), (1, 3, [[0]]), (3, 3, [[0, 1, 2]]), (7, 3, [[0, 1, 2], [3, 4, 5], [6]]), (2, 1, [[0], [1]])],
)
def test_chunks_hold_all_items_in_order(count: int, size: int, chunks: list[list[int]]) -> None:
    assert list(chunked(range(count), size)) == chunks


def test_a_chunk_is_handed_out_before_the_next_items_are_taken() -> None:
    """A caller with a deadline stops between chunks; items behind it may cost requests."""
    taken: list[int] = []

    def items() -> Iterator[int]:
        for one in range(9):
            taken.append(one)
            yield one

    assert next(chunked(items(), 2)) == [0, 1]
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
