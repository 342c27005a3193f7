"""Injected faults of event delivery: what S3 and EventBridge are allowed to do, but more often.

`copies` delivers every event this many times, `drop` loses whole events with that probability, `delay_seconds` holds
each copy back for a random time up to it, which shuffles the order. One seed replays the same decisions for the same
sequence of events.
"""

from __future__ import annotations

import heapq
import itertools
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from worm.errors import Invalid


@dataclass(frozen=True, slots=True)
class FaultPolicy:
    copies: int = 1
    drop: float = 0.0
    delay_seconds: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.copies < 1 or not 0.0 <= self.drop <= 1.0 or self.delay_seconds < 0.0:
            raise Invalid(f"not a fault policy: {self}")


class Deliveries:
    """Sends events on as the policy says. Without faults delivery is immediate, in the caller's thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._delivering = 0
        self._events = 0
        self._dropped = 0
        self.set_policy(FaultPolicy())
        threading.Thread(target=self._loop, name="late-deliveries", daemon=True).start()

    def set_policy(self, policy: FaultPolicy) -> None:
        with self._changed:
            self._policy = policy
            self._random = random.Random(policy.seed)

    def counts(self) -> dict[str, int]:
        """`pending` counts copies that are not delivered yet."""
        with self._changed:
            pending = len(self._heap) + self._delivering
            return {"events": self._events, "dropped": self._dropped, "pending": pending}

    def submit(self, deliver: Callable[[], None]) -> None:
        with self._changed:
            policy = self._policy
            self._events += 1
            if policy.drop and self._random.random() < policy.drop:
                self._dropped += 1
                return
            if policy.delay_seconds:
                for _ in range(policy.copies):
                    due = time.monotonic() + self._random.random() * policy.delay_seconds
                    heapq.heappush(self._heap, (due, next(self._order), deliver))
                self._changed.notify()
                return
        for _ in range(policy.copies):
            deliver()

    def _loop(self) -> None:
        while True:
            with self._changed:
                while not self._heap or self._heap[0][0] > time.monotonic():
                    timeout = self._heap[0][0] - time.monotonic() if self._heap else None
                    self._changed.wait(timeout)
                _, _, deliver = heapq.heappop(self._heap)
                self._delivering += 1
            try:
                deliver()
            finally:
                with self._changed:
                    self._delivering -= 1
