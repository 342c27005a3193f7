"""How fast a process may send requests to a bucket that throttles it.

S3 serves about 5,500 reads and 3,500 writes a second for one range of keys, and answers more with 503 (`SlowDown`)
until it has split the range. It does not say what the limit is, and all processes share it. So each process finds its
share as TCP does: after a refusal it cuts its rate by a factor, and while its requests succeed it raises the rate by
the same amount every second (additive increase, multiplicative decrease).

- *rate*: requests a second that this process may send. There is none until the first refusal; requests are then only
  counted. After a minute without a refusal there is none again.
- *cut*: requests that were sent before the last cut do not cause another one. They were sent at the old rate, and a
  hundred refusals of a hundred threads say the same thing.
- *pace*: the rates of one bucket, one for reads and one for writes. All stores that a process has opened on the bucket
  share it.

A rate only delays requests. Whether a refused request is tried again is the store's decision. A store that was opened
*patiently* goes on until that request, or every request of the process, has been refused for `PATIENCE_SECONDS`. One
request alone is refused for so long only if its 503 has another cause than the rate.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from threading import Lock

from worm import forks
from worm.clock import Clock, Ids, SystemClock

CUT = 0.8
CUT_AGAIN = 0.5
"""The factor of a cut that follows another one within a second: the rate is still far too high."""
CUT_SECONDS = 0.2
"""The least time between two cuts. The limit of S3 applies to about a second, so its answers lag behind."""
AGAIN_SECONDS = 1.0
RAISE = 0.05
"""How much of the rate before a cut is added every second after it."""
RAISE_MIN = 0.5
RATE_MIN = 5.0
"""A thousand processes at this rate stay below the limit of one range of keys."""
FORGET_SECONDS = 60.0
TELL_SECONDS = 10.0
"""A process that is refused for so long says so. A single refusal is of no interest to anybody."""
PATIENCE_SECONDS = 900.0
PAUSE_SECONDS = 300.0
"""A process that sends nothing for so long has not been refused all the time."""
COUNTED_MIN = 50.0
"""The least rate that a first refusal assumes: it may be the answer to the first request before a thousand others, and
then a count says nothing. Cuts follow each other fast if it is too high."""
_COUNT_SECONDS = 1.0
_COUNT_SECONDS_MIN = 0.1

_log = logging.getLogger("worm")


class Rate:
    """The rate of one kind of requests. It does not sleep: `slot` says how long to wait."""

    def __init__(self, kind: str, place: str, ids: Ids) -> None:
        self.kind, self.place = kind, place
        self.per_second: float | None = None
        self._ids = ids
        self._lock = forks.new_lock()
        self._counted, self._count_began, self._count_before = 0, 0.0, 0.0
        self._next = self._cut_at = self._raised_at = self._began = 0.0
        self._raise = 0.0
        self._has_told = False

    def slot(self, now: float) -> float:
        """Seconds until the next request may be sent."""
        rate = self.per_second
        if rate is None:
            self._count(now)
            return 0.0
        with self._lock:
            if now - self._cut_at > FORGET_SECONDS:
                self._forget()
                return 0.0
            start = max(now, self._next)
            self._next = start + (0.5 + self._ids.jitter(1.0)) / rate  # processes that began together drift apart
            return start - now

    def refused(self, sent: float, now: float) -> None:
        """The store throttled a request that was sent at this time."""
        with self._lock:
            is_first = self.per_second is None
            if not is_first and (sent <= self._cut_at or now - self._cut_at < CUT_SECONDS):
                return
            before = self._counted_rate(now) if self.per_second is None else self.per_second
            factor = CUT if is_first or now - self._cut_at > AGAIN_SECONDS else CUT_AGAIN
            self.per_second = max(RATE_MIN, before * factor)
            self._raise = max(RAISE_MIN, before * RAISE)
            self._cut_at = self._raised_at = now
            self._next = max(self._next, now)
            if is_first:
                self._began, self._has_told = now, False
            tells = not self._has_told and now - self._began >= TELL_SECONDS
            self._has_told = self._has_told or tells
        if tells:
            what = "%s throttles this process, which slows down to about %.0f %s a second"
            _log.warning(what, self.place, self.per_second, self.kind)

    def succeeded(self, now: float) -> None:
        """The store answered a request."""
        with self._lock:
            if self.per_second is None:
                return
            seconds = max(0.0, now - self._raised_at)
            self._raised_at = now
            self.per_second += self._raise * min(1.0, seconds)  # a pause is not a success

    def _count(self, now: float) -> None:
        """Without a lock: threads that come between each other only make the estimate worse."""
        seconds = now - self._count_began
        if seconds >= _COUNT_SECONDS:
            self._count_before, self._counted, self._count_began = self._counted / seconds, 0, now
        self._counted += 1

    def _counted_rate(self, now: float) -> float:
        """The rate at which requests were sent, rather too high than too low: more cuts follow at once."""
        counted = self._counted / max(_COUNT_SECONDS_MIN, now - self._count_began)
        return max(COUNTED_MIN, self._count_before, counted)

    def _forget(self) -> None:
        self.per_second, self._counted, self._count_before = None, 0, 0.0


class Pace:
    """The rates of one bucket, and since when it has refused everything."""

    def __init__(self, place: str, clock: Clock, ids: Ids) -> None:
        self._clock = clock
        self.reads, self.writes = Rate("reads", place, ids), Rate("writes", place, ids)
        self._refused_since: float | None = None
        self._refused_at = 0.0

    def wait(self, rate: Rate) -> float:
        """Wait until a request may be sent. The time when it is."""
        now = self._clock.monotonic()
        seconds = rate.slot(now)
        if seconds <= 0.0:
            return now
        self._clock.sleep(seconds)
        return self._clock.monotonic()

    def succeeded(self, rate: Rate) -> None:
        self._refused_since = None
        if rate.per_second is not None:
            rate.succeeded(self._clock.monotonic())

    def refused(self, rate: Rate, sent: float) -> None:
        now = self._clock.monotonic()
        if self._refused_since is None or now - self._refused_at > PAUSE_SECONDS:
            self._refused_since = now
        self._refused_at = now
        rate.refused(sent, now)

    def has_hope(self) -> bool:
        """Whether the store refused everything for less than `PATIENCE_SECONDS`, so that it makes sense to go on."""
        since = self._refused_since
        return since is None or self._clock.monotonic() - since < PATIENCE_SECONDS


@dataclass
class _Shared:
    """The paces of this process. A forked child goes on with what its parent knew."""

    lock: Lock = field(default_factory=forks.new_lock)
    paces: dict[tuple[str, str | None], Pace] = field(default_factory=dict)


_shared = _Shared()


def pace_of(bucket: str, endpoint_url: str | None, clock: Clock, ids: Ids) -> Pace:
    """The pace that this process shares for the bucket. A store with a clock of its own has a pace of its own."""
    if type(clock) is not SystemClock:
        return Pace(f"s3://{bucket}", clock, ids)
    with _shared.lock:
        if (bucket, endpoint_url) not in _shared.paces:
            _shared.paces[bucket, endpoint_url] = Pace(f"s3://{bucket}", clock, Ids.system(clock))
        return _shared.paces[bucket, endpoint_url]
