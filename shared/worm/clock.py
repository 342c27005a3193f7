"""Time, randomness and names. This is the only module that may read the clock or the random generator.

Everything else receives a `Clock` and an `Ids`, so that a whole run replays from one seed. Nothing is ordered by wall
time; times are for people to read.
"""

from __future__ import annotations

import math
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Protocol

from worm import forks

CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS = [high + low for high in CROCKFORD for low in CROCKFORD]
_PAIR_SHIFTS = tuple(range(120, -1, -10))


class Clock(Protocol):
    """Wall time for people, monotonic time for deadlines, and sleeping."""

    def now(self) -> datetime: ...
    def monotonic(self) -> float: ...
    def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """The machine's clock."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class VirtualClock:
    """A clock for simulations. Only sleeping moves it."""

    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self._now = start
        self._elapsed = 0.0
        self._lock = threading.Lock()

    def now(self) -> datetime:
        return self._now

    def monotonic(self) -> float:
        return self._elapsed

    def sleep(self, seconds: float) -> None:
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        with self._lock:
            self._now += timedelta(seconds=seconds)
            self._elapsed += seconds


class _SystemRandom(random.SystemRandom):
    """Random bits of the operating system, fetched many at a time. Each system call lets another thread run, and with
    many threads that costs more than the bits."""

    def __init__(self) -> None:
        super().__init__()
        self._begin()
        forks.in_child(self._begin)

    def _begin(self) -> None:
        """Start with an empty buffer: after a fork, the buffered bits belong to the parent."""
        self._words: list[int] = []

    def getrandbits(self, k: int) -> int:
        if k > 128:
            return super().getrandbits(k)
        try:
            word = self._words.pop()
        except IndexError:
            drawn = os.urandom(64 * 16)
            word, *self._words = [int.from_bytes(drawn[at : at + 16]) for at in range(0, len(drawn), 16)]
        return word >> 128 - k


@dataclass
class Ids:
    """Source of random names and jitter. `Ids.seeded(n)` replays; the default draws from the operating system."""

    clock: Clock
    rng: random.Random

    @classmethod
    def system(cls, clock: Clock | None = None) -> Ids:
        return cls(clock or SystemClock(), _SystemRandom())

    @classmethod
    def seeded(cls, seed: int, clock: Clock | None = None) -> Ids:
        return cls(clock or VirtualClock(), random.Random(seed))

    def ulid(self) -> str:
        """26 characters that sort by the millisecond they were made in."""
        milliseconds = int(self.clock.now().timestamp() * 1000)
        value = milliseconds << 80 | self.rng.getrandbits(80)
        return "".join([_PAIRS[value >> shift & 1023] for shift in _PAIR_SHIFTS])

    @staticmethod
    def ulid_start(moment: datetime) -> str:
        """The first characters of the ULIDs of this millisecond."""
        milliseconds = int(moment.timestamp() * 1000)
        return "".join(CROCKFORD[milliseconds >> shift & 31] for shift in range(45, -1, -5))

    def uuid(self) -> str:
        """A random (version 4) UUID."""
        bits = self.rng.getrandbits(128)
        bits = bits & ~(0xF << 76) | (0x4 << 76)
        bits = bits & ~(0x3 << 62) | (0x2 << 62)
        text = f"{bits:032x}"
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"

    def jitter(self, upper_seconds: float) -> float:
        """Full jitter: uniform in [0, upper)."""
        return self.rng.random() * upper_seconds


def iso_seconds(moment: datetime) -> str:
    """`2026-02-24T12:00:00Z`: S3 keeps whole seconds, so two readers of one object get the same text."""
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="seconds") + "Z"


def iso_millis(moment: datetime) -> str:
    """`2026-02-24T12:00:00.000Z`."""
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"


def moment_of(text: str) -> datetime | None:
    """The time of an ISO 8601 text, in UTC if it names no zone. None for anything else."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def backoff(ids: Ids, attempt: int, *, base_seconds: float = 0.05, cap_seconds: float = 2.0) -> float:
    """Full-jitter exponential backoff for the given attempt (0 is the first retry)."""
    return ids.jitter(min(cap_seconds, base_seconds * 2.0 ** min(attempt, 64)))


def attempts(
    most: int, clock: Clock, ids: Ids, *, base_seconds: float = 0.05, cap_seconds: float = 2.0
) -> Iterator[int]:
    """The only retry loop: yields numbers from 0, and pauses with full-jitter backoff before each attempt except the
    first.

    for _ in attempts(5, clock, ids):
        ...return on success, continue to try again
    raise Unavailable(...)
    """
    for attempt in range(most):
        if attempt > 0:
            clock.sleep(backoff(ids, attempt - 1, base_seconds=base_seconds, cap_seconds=cap_seconds))
        yield attempt


Deadline = Callable[[], float]
"""Seconds left; zero or less means: stop starting new work."""


def forever() -> float:
    """A deadline that never expires."""
    return math.inf
