"""Work that is done again when others took its turn away."""

from __future__ import annotations

import pytest

from worm.clock import Ids, VirtualClock
from worm.errors import CommitStateUnknown, Fenced, Invalid, WormError
from worm.spaces.backend import HOLD_SECONDS, TRIES, until_decided


@pytest.mark.parametrize("error", [Fenced("taken"), CommitStateUnknown("who knows")])
def test_it_is_done_again_after_a_pause(error: WormError) -> None:
    clock, failures = VirtualClock(), [error] * 3

    def work() -> str:
        if failures:
            raise failures.pop()
        return "done"

    begun = clock.monotonic()
    assert until_decided(work, clock, Ids.seeded(1, clock)) == "done"
    assert clock.monotonic() - begun >= 3 * HOLD_SECONDS, "whoever took over has time to work"


def test_it_ends_at_last_and_other_errors_end_it_at_once() -> None:
    clock, calls = VirtualClock(), []

    def work(error: WormError) -> None:
        calls.append(error)
        raise error

    with pytest.raises(Fenced):
        until_decided(lambda: work(Fenced("taken")), clock, Ids.seeded(1, clock))
    assert len(calls) == TRIES
    with pytest.raises(Invalid):
        until_decided(lambda: work(Invalid("no")), clock, Ids.seeded(1, clock))
    assert len(calls) == TRIES + 1
