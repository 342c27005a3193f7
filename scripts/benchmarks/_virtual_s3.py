"""S3's latencies and limits around a store in memory, for workers that run at the same time on virtual clocks.

- *timeline*: acts by time. A worker runs in its own thread, but only while all others pause: before each request, it
  waits until nothing earlier is left to do. So requests of several workers reach the store in the order of their times,
  and one seed gives one run.
- *lanes*: what the code does with threads. They replace its thread pools: work is done one piece after the other, each
  on the lane that is free first. The worker's clock then shows when the last lane is done, or when one processor is.
  Work on lanes is stored at once, so others could see it some milliseconds early. Nobody does: it is reading, entries
  of different documents, and files that no root names yet.
- A request takes effect when its latency is over. Beyond S3's limits, it is refused (503 SlowDown) and handled as in
  `store/s3.py`: requests without a condition are retried, and the outcome of a conditional write is unknown.
"""

from __future__ import annotations

import heapq
import random
import threading
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import ParamSpec, Self, TypeVar
from unittest.mock import patch

from worm.clock import Ids, attempts
from worm.errors import Unavailable, WormError
from worm.store.base import (
    Attempt,
    AttemptOutcome,
    Condition,
    Listed,
    NotModified,
    Object,
    ObjectInfo,
    Read,
    RequestCounter,
    Version,
    Won,
)
from worm.store.memory import MemoryStore
from worm.store.parallel import in_parallel
from worm.store.resolve import ResolvedWrites
from worm.store.s3 import TRIES

START = datetime(2026, 1, 1, tzinfo=UTC)
GETS = frozenset({"GET", "HEAD", "LIST", "VERSIONS"})
T = TypeVar("T")
R = TypeVar("R")
P = ParamSpec("P")


@dataclass(frozen=True, slots=True)
class Limits:
    """The behavior of S3: median latencies, bytes per second of one connection, and limits. S3 splits a busy prefix
    into several; `splits` says how many each one has become. `request_cpu_seconds` and `byte_cpu_seconds` are the
    processor time of our code and its client."""

    get_seconds: float = 0.015
    put_seconds: float = 0.025
    list_seconds: float = 0.040
    spread: float = 0.35
    bytes_per_second: float = 80e6
    conditional_per_second: int = 15
    puts_per_second: int = 3_500
    gets_per_second: int = 5_500
    splits: int = 1
    request_cpu_seconds: float = 0.0004
    byte_cpu_seconds: float = 40e-9


class TimedOut(BaseException):
    """The function was killed at its timeout. Not an `Exception`: nothing may catch it and continue."""


class WorkerClock:
    """The time of one worker, in seconds since the start."""

    def __init__(self) -> None:
        self.elapsed = 0.0
        self.cpu_seconds = 0.0
        self.lanes = 0

    def now(self) -> datetime:
        return START + timedelta(seconds=self.elapsed)

    def monotonic(self) -> float:
        return self.elapsed

    def sleep(self, seconds: float) -> None:
        self.elapsed += seconds

    def compute(self, seconds: float) -> None:
        self.elapsed += seconds
        self.cpu_seconds += seconds


class Timeline:
    """Acts by time; acts of the same time in the order they were added."""

    def __init__(self) -> None:
        self.now = 0.0
        self._acts: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def at(self, time: float, act: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._acts, (max(time, self.now), self._count, act))

    def is_next(self, time: float) -> bool:
        """Whether there is nothing to do before."""
        return not self._acts or time < self._acts[0][0]

    def run(self, until: float) -> None:
        while self._acts and self._acts[0][0] <= until:
            self.now, _, act = heapq.heappop(self._acts)
            act()


class Process:
    """One worker, in a thread that runs only while the timeline waits for it."""

    def __init__(self, timeline: Timeline) -> None:
        self.clock = WorkerClock()
        self.deadline = float("inf")
        self._timeline = timeline
        self._work: Callable[[], None] | None = None
        self._mistake: BaseException | None = None
        self._is_idle = True
        self._wake, self._rest = threading.Semaphore(0), threading.Semaphore(0)
        threading.Thread(target=self._loop, daemon=True).start()

    def run(self, work: Callable[[], None] | None) -> None:
        """Until it waits for its turn, or is done. None ends the thread."""
        self._work = work
        self._go_on()

    def turn(self) -> None:
        """In the worker's thread: wait until all others have reached our time."""
        clock = self.clock
        if clock.lanes:
            self._check_time()
        elif self._timeline.is_next(clock.elapsed):
            self._timeline.now = max(clock.elapsed, self._timeline.now)
            self._check_time()
        else:
            self._timeline.at(clock.elapsed, self._go_on)
            self._rest.release()
            self._wake.acquire()
            self._check_time()

    def end(self) -> None:
        """End it, whatever it waits for: the simulation is over."""
        self.deadline = -1.0
        self._work, is_idle = None, self._is_idle
        self._go_on()
        if not is_idle:
            self._go_on()

    def _check_time(self) -> None:
        if self.clock.elapsed > self.deadline:
            self.clock.elapsed = max(self.deadline, 0.0)
            raise TimedOut

    def _go_on(self) -> None:
        self._wake.release()
        self._rest.acquire()
        if self._mistake is not None:
            raise self._mistake

    def _loop(self) -> None:
        _running.clock = self.clock
        while True:
            self._wake.acquire()
            if self._work is None:
                self._rest.release()
                return
            try:
                self._is_idle = False
                self._work()
            except BaseException as mistake:  # noqa: BLE001 - raised again where the timeline runs
                self._mistake = mistake
            self._is_idle = True
            self._rest.release()


class _Running(threading.local):
    clock: WorkerClock | None = None


_running = _Running()


class Lanes:
    """Replaces a `ThreadPoolExecutor`; see the module header."""

    def __init__(self, threads: int, thread_name_prefix: str = "") -> None:
        self._threads = threads
        self._free: list[float] = []

    def __enter__(self) -> Self:
        self._clock = _running.clock or WorkerClock()
        self._started, self._computed = self._clock.elapsed, self._clock.cpu_seconds
        self._free = [self._started] * self._threads
        self._clock.lanes += 1
        return self

    def __exit__(self, *_: object) -> None:
        clock = self._clock
        clock.lanes -= 1
        clock.elapsed = max(*self._free, self._started + clock.cpu_seconds - self._computed)
        self._free = []

    def submit(self, work: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        at = min(range(len(self._free)), key=self._free.__getitem__)
        self._clock.elapsed = self._free[at]
        done: Future[R] = Future()
        try:
            done.set_result(work(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - raised when the result is asked for
            done.set_exception(error)
        self._free[at] = self._clock.elapsed
        return done

    def map(self, work: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        with self:
            done = [self.submit(work, one) for one in items]
        return (one.result() for one in done)


@contextmanager
def lanes_for_threads() -> Iterator[None]:
    """Inside the block, work that our code does in several threads is done on lanes."""
    with patch("concurrent.futures.ThreadPoolExecutor", Lanes):
        yield


@dataclass
class Bucket:
    """What all workers share: the objects, the limits, and the number of requests in each second. Starts with a copy of
    `stored`."""

    limits: Limits
    chance: random.Random
    stored: MemoryStore
    refused: int = 0
    _seconds: dict[int, Counter[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.clock = WorkerClock()
        self.objects = copy(self.stored)
        self.objects.clock, self.objects.ids = self.clock, Ids(self.clock, self.chance)
        self.objects._history = {key: list(versions) for key, versions in self.stored._history.items()}
        self.objects._keys = list(self.stored._keys)

    def latency(self, kind: str) -> float:
        limits = self.limits
        medians = {"PUT": limits.put_seconds, "DELETE": limits.put_seconds, "GET": limits.get_seconds}
        median = medians.get(kind, limits.list_seconds if kind != "HEAD" else limits.get_seconds)
        return median * self.chance.lognormvariate(0, limits.spread)

    def admits(self, time: float, kind: str, key: str, *, is_conditional: bool = False) -> bool:
        """False: 503. Refused requests do not count."""
        second = self._seconds.setdefault(int(time), Counter())
        is_get = kind in GETS
        prefix = f"{'GET' if is_get else 'PUT'} {self._prefix(key)}"
        most = self.limits.gets_per_second if is_get else self.limits.puts_per_second
        if second[prefix] >= most or (is_conditional and second[key] >= self.limits.conditional_per_second):
            self.refused += 1
            return False
        second[prefix] += 1
        if is_conditional:
            second[key] += 1
        if len(self._seconds) > 200:
            del self._seconds[min(self._seconds)]
        return True

    def _prefix(self, key: str) -> str:
        """A collection's documents, or its oplogs; if S3 has split it, one of the resulting ranges."""
        depth = 2 if key.startswith(".") else 1
        segments = key.split("/", depth + 1)
        name = "/".join(segments[:depth])
        return f"{name} {zlib.crc32(segments[depth].encode()) % self.limits.splits}" if len(segments) > depth else name


Seen = Callable[[str, str, float, bytes], None]
"""Called for every object that was read or stored: GET or PUT, key, time, and the bytes."""


class VirtualS3(ResolvedWrites):
    """The bucket as seen by one worker, which has a share of a processor."""

    clock: WorkerClock

    def __init__(
        self,
        bucket: Bucket,
        process: Process,
        ids: Ids,
        requests: RequestCounter,
        seen: Seen,
        *,
        processors: float = 1.0,
    ) -> None:
        self.bucket = bucket
        self.process = process
        self.clock = process.clock
        self.ids = ids
        self.requests = requests
        self._seen = seen
        self._processors = processors

    @property
    def url(self) -> str:
        return "virtual://bucket"

    @property
    def identity(self) -> str:
        return self.url

    # Reads, and unconditional writes

    def get(self, key: str, *, version_id: str | None = None, max_bytes: int | None = None) -> Object | None:
        objects = self.bucket.objects
        return self._got(
            key, self._asked("GET", key, lambda: objects.get(key, version_id=version_id, max_bytes=max_bytes))
        )

    def get_if_changed(self, key: str, etag: str | None) -> Object | NotModified | None:
        found = self._asked("GET", key, lambda: self.bucket.objects.get_if_changed(key, etag))
        return found if isinstance(found, NotModified) else self._got(key, found)

    def get_range(self, key: str, start: int, length: int) -> bytes | None:
        piece = self._asked("GET", key, lambda: self.bucket.objects.get_range(key, start, length))
        self._received(len(piece or b""))
        return piece

    def get_many(self, reads: Sequence[Read], *, max_bytes: int | None = None) -> list[Object | Exception | None]:
        def one(read: Read) -> Object | Exception | None:
            try:
                return self.get(read.key, version_id=read.version_id, max_bytes=max_bytes)
            except WormError as error:
                return error

        return in_parallel(one, reads)

    def head(self, key: str, *, version_id: str | None = None) -> ObjectInfo | None:
        return self._asked("HEAD", key, lambda: self.bucket.objects.head(key, version_id=version_id))

    def list(self, prefix: str, *, start_after: str | None = None, limit: int | None = None) -> Iterator[Listed]:
        return self._asked(
            "LIST", prefix, lambda: self.bucket.objects.list(prefix, start_after=start_after, limit=limit)
        )

    def versions(self, key: str) -> Iterator[Version]:
        return self._asked("VERSIONS", key, lambda: self.bucket.objects.versions(key))

    def list_versions(self, prefix: str, *, start_after: str | None = None) -> Iterator[Version]:
        objects = self.bucket.objects
        return self._asked("VERSIONS", prefix, lambda: objects.list_versions(prefix, start_after=start_after))

    def put(self, key: str, body: bytes, *, metadata: Mapping[str, str] | None = None) -> Won:
        self._moved(len(body))
        won = self._asked("PUT", key, lambda: self.bucket.objects.put(key, body, metadata=metadata))
        self._seen("PUT", key, self.clock.elapsed, body)
        return won

    def delete(self, key: str) -> None:
        self._asked("DELETE", key, lambda: self.bucket.objects.delete(key))

    # Conditional writes: one attempt each

    def attempt_put(self, key: str, body: bytes, condition: Condition, metadata: Mapping[str, str]) -> Attempt:
        self._moved(len(body))
        if not self._sent("PUT", key, is_conditional=True):
            return Attempt(AttemptOutcome.UNKNOWN, reason="503: slow down")
        attempt = self.bucket.objects.attempt_put(key, body, condition, metadata)
        if attempt.outcome is AttemptOutcome.LANDED:
            self._seen("PUT", key, self.clock.elapsed, body)
        return attempt

    def attempt_delete(self, key: str, etag: str) -> Attempt:
        if not self._sent("DELETE", key, is_conditional=True):
            return Attempt(AttemptOutcome.UNKNOWN, reason="503: slow down")
        return self.bucket.objects.attempt_delete(key, etag)

    # Time

    def _asked(self, kind: str, key: str, act: Callable[[], T]) -> T:
        for _ in attempts(TRIES, self.clock, self.ids):
            if self._sent(kind, key):
                return act()
        raise Unavailable(f"the store did not answer in {TRIES} tries: 503", key=key)

    def _sent(self, kind: str, key: str, *, is_conditional: bool = False) -> bool:
        """Let its time pass. Afterward, it is this worker's turn, and the bucket's clock shows its time."""
        limits = self.bucket.limits
        self.clock.compute(limits.request_cpu_seconds / self._processors)
        self.clock.elapsed += self.bucket.latency(kind)
        self.process.turn()
        self.bucket.clock.elapsed = self.clock.elapsed
        is_admitted = self.bucket.admits(self.clock.elapsed, kind, key, is_conditional=is_conditional)
        if is_admitted:
            self.requests.add(kind)
        return is_admitted

    def _got(self, key: str, found: Object | None) -> Object | None:
        if found is not None:
            self._received(len(found.body))
            self._seen("GET", key, self.clock.elapsed, found.body)
        return found

    def _received(self, size: int) -> None:
        self.requests.add_bytes_read(size)
        self._moved(size)

    def _moved(self, size: int) -> None:
        limits = self.bucket.limits
        self.clock.elapsed += size / limits.bytes_per_second
        self.clock.compute(size * limits.byte_cpu_seconds / self._processors)
