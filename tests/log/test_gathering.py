"""How long the leader of a group waits, without threads: a policy over numbers."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from worm.log.group import Gathering

WRITE = 0.04
PAUSE = WRITE / 64


def after(committed: int, queued: int, seconds: float = WRITE) -> Gathering:
    """A segment was written, and so many came meanwhile."""
    gathering = Gathering()
    gathering.wrote(committed, queued, seconds)
    return gathering


def waited(gathering: Gathering, queue: Iterable[int], idle_seconds: float = 0.0) -> float:
    """Seconds that a leader waits who sees these lengths of the queue, the last one for ever."""
    seen = iter(queue)
    length = 0

    def queued() -> int:
        nonlocal length
        length = next(seen, length)
        return length

    return sum(gathering.pauses(queued, idle_seconds))


def test_one_alone_never_waits() -> None:
    assert waited(Gathering(), [1]) == 0
    assert waited(after(1, 0), [1]) == 0


def test_all_that_were_on_their_way_are_waited_for() -> None:
    assert waited(after(1, 1), [1, 2]) == pytest.approx(PAUSE)
    assert waited(after(3, 5), [1, 4, 7, 8]) == pytest.approx(3 * PAUSE)
    assert waited(after(3, 5), [8]) == 0
    assert waited(after(3, 5), [1, 1, 1, 1, 1, 1, 7, 7, 7, 7, 8]) == pytest.approx(10 * PAUSE)


def test_one_that_stopped_is_waited_for_once_and_not_longer_than_an_eighth_of_a_write() -> None:
    gathering = after(8, 0)
    assert waited(gathering, [1, 7]) == pytest.approx(9 * PAUSE)
    gathering.wrote(7, 0, WRITE)
    assert waited(gathering, [1, 7]) == pytest.approx(PAUSE)


def test_a_leader_waits_for_half_of_a_write_at_most() -> None:
    assert waited(after(1000, 0), range(1, 1000)) == pytest.approx(WRITE / 2)


def test_what_comes_too_slowly_is_not_waited_for_the_next_time() -> None:
    gathering = after(1000, 0)
    waited(gathering, [1, *range(900, 1000)])
    gathering.wrote(1000, 0, WRITE)
    assert waited(gathering, [1, 1000]) == 0


def test_after_a_silence_nobody_is_expected_back() -> None:
    assert waited(after(2, 0), [1, 2], idle_seconds=WRITE / 8) == 0
    assert waited(after(2, 0), [1, 2], idle_seconds=WRITE / 9) > 0


def test_a_write_that_hung_makes_nobody_wait_longer() -> None:
    gathering = after(2, 0)
    for _ in range(5):
        gathering.wrote(2, 0, 60.0)
    assert waited(gathering, [1]) == pytest.approx(WRITE / 8)


def test_a_store_that_became_slower_is_believed_after_some_writes() -> None:
    gathering = after(2, 0)
    for _ in range(8):
        gathering.wrote(2, 0, 1.0)
    assert waited(gathering, [1]) == pytest.approx(1 / 8)


def test_waiting_in_vain_is_tried_less_and_less_often() -> None:
    gathering = Gathering()
    rounds = []
    for number in range(200):
        gathering.wrote(10, 10, WRITE)
        if waited(gathering, [10]) > 0:
            rounds.append(number)
    assert rounds == [0, 2, 5, 10, 19, 36, 69, 134, 199]


def test_once_they_come_back_every_round_waits_again() -> None:
    gathering = Gathering()
    for _ in range(12):
        gathering.wrote(10, 10, WRITE)
        waited(gathering, [10])
    waits = []
    for _ in range(10):
        gathering.wrote(1, 1, WRITE)
        waits.append(waited(gathering, [1, 2]) > 0)
    assert waits == [False] * 7 + [True] * 3


def test_callers_that_do_not_wait_for_their_acks_lose_nothing() -> None:
    """Ten arrive per write, whatever is acknowledged: of 1,000 rounds, the waits are under 0.5 % of the time."""
    gathering, queue, lost = Gathering(), 1, 0.0
    for _ in range(1000):
        took = waited(gathering, [queue])
        lost += took
        gathering.wrote(queue, 10, WRITE)
        queue = 10
    assert lost < 0.005 * 1000 * WRITE


def in_a_closed_loop(starts: list[float], delays: list[float], rounds: int, dies_after: int = 10**9) -> list[int]:
    """Sizes of the groups of committers that come back some time after each ack; the last one dies after some."""
    gathering, sizes, now, ended = Gathering(), list[int](), 0.0, 0.0
    due = dict(enumerate(starts))
    queue: list[int] = []

    def queued() -> int:
        for one in [one for one, time in due.items() if time <= now]:
            del due[one]
            queue.append(one)
        return len(queue)

    for number in range(rounds):
        if not queued():
            now = min(due.values())
        for pause in gathering.pauses(queued, now - ended):
            now += pause
        batch, queue = queue, []
        now += WRITE
        ended = now
        gathering.wrote(len(batch), queued(), WRITE)
        due |= {one: now + delays[one] for one in batch if one < len(starts) - 1 or number < dies_after}
        sizes.append(len(batch))
    return sizes


committers = st.integers(2, 40).flatmap(
    lambda count: st.tuples(
        st.lists(st.floats(0, 3 * WRITE), min_size=count, max_size=count),
        st.lists(st.floats(0, WRITE / 9), min_size=count, max_size=count),
    )
)


@settings(max_examples=examples(200))
@given(committers)
def test_committers_in_a_closed_loop_end_in_one_group(drawn: tuple[list[float], list[float]]) -> None:
    starts, delays = drawn
    sizes = in_a_closed_loop(starts, delays, 20)
    assert sizes[8:] == [len(starts)] * 12


@settings(max_examples=examples(200))
@given(committers)
def test_when_one_dies_the_others_are_one_group_from_the_next_round_on(drawn: tuple[list[float], list[float]]) -> None:
    starts, delays = drawn
    sizes = in_a_closed_loop(starts, delays, 20, dies_after=10)
    assert sizes[8:11] == [len(starts)] * 3
    assert sizes[11:] == [len(starts) - 1] * 9
