"""Time, chance and names: the only module that may read the clock or the random generator.

Everything else gets a `Clock` and an `Ids` handed in, so that a whole run replays from one seed. Times order nothing;
they are shown to people.
"""

from __future__ import annotations

import random
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Protocol

CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


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
    """A clock for simulations: sleeping moves it, nothing else does."""

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


@dataclass
class Ids:
    """Source of random names and jitter. `Ids.seeded(n)` replays; the default draws from the operating system."""

    clock: Clock
    rng: random.Random

    @classmethod
    def system(cls, clock: Clock | None = None) -> Ids:
        return cls(clock or SystemClock(), secrets.SystemRandom())

    @classmethod
    def seeded(cls, seed: int, clock: Clock | None = None) -> Ids:
        return cls(clock or VirtualClock(), random.Random(seed))

    def ulid(self) -> str:
        """26 characters that sort by the millisecond they were made in."""
        milliseconds = int(self.clock.now().timestamp() * 1000)
        return _crockford(milliseconds, 10) + _crockford(self.rng.getrandbits(80), 16)

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


def _crockford(value: int, length: int) -> str:
    digits = []
    for _ in range(length):
        value, remainder = divmod(value, 32)
        digits.append(CROCKFORD[remainder])
    return "".join(reversed(digits))


def iso_seconds(moment: datetime) -> str:
    """`2026-02-24T12:00:00Z`: S3 keeps whole seconds, so this is what two readers of one object agree on."""
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="seconds") + "Z"


def iso_millis(moment: datetime) -> str:
    """`2026-02-24T12:00:00.000Z`."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"


def moment_of(text: str) -> datetime | None:
    """The time of an ISO 8601 text, in UTC where it names no zone; None for anything else."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def backoff(ids: Ids, attempt: int, *, base_seconds: float = 0.05, cap_seconds: float = 2.0) -> float:
    """Full-jitter exponential backoff for the given attempt (0 is the first retry)."""
    return ids.jitter(min(cap_seconds, base_seconds * 2.0**attempt))


def attempts(
    most: int, clock: Clock, ids: Ids, *, base_seconds: float = 0.05, cap_seconds: float = 2.0
) -> Iterator[int]:
    """The one bounded retry loop: numbers from 0, with a pause of full-jitter backoff before every one but the first.

    for _ in attempts(5, clock, ids):
        ...return where it worked, go on where it is worth another try
    raise Unavailable(...)
    """
    for attempt in range(most):
        if attempt > 0:
            clock.sleep(backoff(ids, attempt - 1, base_seconds=base_seconds, cap_seconds=cap_seconds))
        yield attempt


Deadline = Callable[[], float]
"""Seconds left; zero or less means: stop starting new work."""
