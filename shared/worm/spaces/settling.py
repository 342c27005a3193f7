"""Doing it again until it is known what became of it.

Others may take the turn away (`Fenced`), and answers get lost (`CommitStateUnknown`); whoever writes has a name, so
doing it again counts once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from worm.clock import Clock, Ids, backoff
from worm.errors import CommitStateUnknown, Fenced

TRIES = 30
HOLD_SECONDS = 0.1
"""Whoever took over gets so long to work. Coming back at once would only make that one fail, and so on."""
R = TypeVar("R")


def settled(work: Callable[[], R], clock: Clock, ids: Ids) -> R:
    for attempt in range(TRIES - 1):
        try:
            return work()
        except (Fenced, CommitStateUnknown):
            clock.sleep(HOLD_SECONDS + backoff(ids, attempt, base_seconds=HOLD_SECONDS, cap_seconds=2.0))
    return work()
