"""A simulation of many processes that read one prefix of S3, which serves so many requests a second and refuses others
with 503. Events in a heap instead of threads: a run of minutes takes a second, and a seed replays it."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from random import Random

from worm.clock import Ids, backoff
from worm.store.pace import Rate

THREADS = 16
BURST_SECONDS = 0.2


@dataclass
class Prefix:
    """Serves `limit` requests a second, as a bucket of tokens. `limit` may change with the time."""

    limit: Callable[[float], float]
    tokens: float = 0.0
    filled_at: float = -1.0

    def serves(self, now: float) -> bool:
        limit = self.limit(now)
        self.tokens = min(limit * BURST_SECONDS, self.tokens + (now - self.filled_at) * limit)
        self.filled_at = now
        if self.tokens < 1.0:
            return False
        self.tokens -= 1.0
        return True


@dataclass
class Process:
    """Threads that send one request after another, and repeat refused ones."""

    rate: Rate
    ids: Ids
    served: list[float] = field(default_factory=list)
    refused: list[float] = field(default_factory=list)


@dataclass
class Simulation:
    """`trip`: seconds from a request to its answer."""

    prefix: Prefix
    processes: list[Process]
    seed: int
    trip: float = 0.02

    @classmethod
    def of(cls, processes: int, limit: Callable[[float], float], seed: int) -> Simulation:
        made = [Ids.seeded(seed * 1000 + number) for number in range(processes)]
        return cls(Prefix(limit), [Process(Rate("reads", "s3://sim", ids), ids) for ids in made], seed)

    def run(self, seconds: float, *, starts: Callable[[int], float] = lambda number: 0.0) -> Simulation:
        """`starts`: when the process of this number begins."""
        numbers, chance, now = count(), Random(self.seed), 0.0
        heap: list[tuple[float, int, Callable[[], None]]] = []

        def later(after: float, what: Callable[[], None]) -> None:
            heapq.heappush(heap, (now + after, next(numbers), what))

        def begin(process: Process, tried: int = 0) -> None:
            later(process.rate.slot(now), lambda: send(process, tried))

        def send(process: Process, tried: int) -> None:
            sent, trip = now, self.trip * chance.uniform(0.7, 1.3)
            is_served = self.prefix.serves(now)
            later(trip, lambda: answered(process, tried, sent, is_served))

        def answered(process: Process, tried: int, sent: float, is_served: bool) -> None:
            if is_served:
                process.served.append(now)
                process.rate.succeeded(now)
                begin(process)
                return
            process.refused.append(now)
            process.rate.refused(sent, now)
            later(backoff(process.ids, tried), lambda: begin(process, tried + 1))

        for number, process in enumerate(self.processes):
            for _ in range(THREADS):
                later(starts(number), lambda process=process: begin(process))  # type: ignore[misc] # of the loop
        while heap and heap[0][0] < seconds:
            now, _, what = heapq.heappop(heap)
            what()
        return self

    def goodput(self, start: float, end: float) -> float:
        """Served requests a second in this time."""
        return sum(_between(one.served, start, end) for one in self.processes) / (end - start)

    def refusals(self, start: float, end: float) -> float:
        """The share of requests that were refused in this time."""
        refused = sum(_between(one.refused, start, end) for one in self.processes)
        return refused / (refused + self.goodput(start, end) * (end - start))

    def shares(self, start: float, end: float) -> list[float]:
        """What each process got, as a part of an equal share."""
        served = [_between(one.served, start, end) for one in self.processes]
        return [one * len(served) / sum(served) for one in served]


def _between(times: list[float], start: float, end: float) -> int:
    return sum(start <= one < end for one in times)
