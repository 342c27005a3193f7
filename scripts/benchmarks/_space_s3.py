"""A space on the embedded S3: transactions against the floor of the commit log, and the requests of a read of the past.

The floor is `GroupCommit` alone: it commits the very records that the space's last commit had in the log, as many at
once, and knows nothing about their meaning. Both take turns on the same server. Our store counts the requests, and the
server must have seen the same number.
"""

from __future__ import annotations

import random
import statistics
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count

from scripts.benchmarks._turns import embedded_s3
from worm.clock import Ids, SystemClock
from worm.dev.aws import Aws
from worm.formats.strict_json import JsonObject, JsonValue
from worm.log.group import GroupCommit
from worm.log.reader import LogReader
from worm.log.writer import LogWriter
from worm.pages.db import PageDb
from worm.spaces.page_backend import PageBackend
from worm.spaces.space import Space
from worm.store.s3 import S3Store

BUCKET = "space"
ENTITIES = 64
TEXT = "The quick brown fox. " * 8
CASES = tuple((threads, ops) for threads in (1, 8) for ops in (1, 4))
DEPTHS = (1, 100, 10_000)
WRITERS = 32
MORE = 130
"""Revisions before the deepest one that is read: so it is not a whole document, and no snapshot is right there."""


@dataclass
class Tally:
    """The results of one contestant in all its turns."""

    per_second: list[float] = field(default_factory=list)
    transactions: int = 0
    requests: int = 0

    @property
    def rate(self) -> float:
        return statistics.median(self.per_second)

    def told(self) -> dict[str, float]:
        return {
            "transactions_per_second": round(self.rate, 1),
            "requests_per_transaction": round(self.requests / self.transactions, 3),
            "transactions_per_request": round(self.transactions / self.requests, 2),
        }


def _document(number: int) -> JsonObject:
    return {"value": {"count": number, "name": f"Acme {number}", "tags": ["a", "b"], "text": TEXT}}


def _sets(number: int, size: int) -> list[JsonObject]:
    first = number * size
    return [{"op": "set", "id": f"e{(first + at) % ENTITIES}", "value": _document(number)} for at in range(size)]


def _backend(store: S3Store, name: str, *, create: bool = True) -> PageBackend:
    clock = SystemClock()
    return PageBackend(store, name, create=create, clock=clock, ids=Ids.system(clock))


def _served(aws: Aws) -> int:
    return sum(sum(kinds.values()) for kinds in aws.requests_by_role().values())


def _turn(aws: Aws, store: S3Store, call: Callable[[], object], threads: int, each: int, tally: Tally) -> None:
    """`call` this many times in every thread; all of them start together."""
    barrier = threading.Barrier(threads + 1)

    def run() -> None:
        barrier.wait()
        for _ in range(each):
            call()

    before = _served(aws)
    with ThreadPoolExecutor(threads) as pool, store.requests.measure() as requests:
        waiting = [pool.submit(run) for _ in range(threads)]
        barrier.wait()
        start = time.perf_counter()
        for one in waiting:
            one.result()
        seconds = time.perf_counter() - start
    if _served(aws) - before != requests["total"]:
        raise RuntimeError(f"the server saw {_served(aws) - before} requests, but we counted {requests}")
    tally.per_second.append(threads * each / seconds)
    tally.transactions += threads * each
    tally.requests += requests["total"]


def _case(aws: Aws, threads: int, ops: int, rounds: int, each: int) -> dict[str, object]:
    """Turns of a space and of its floor, each in its own database."""
    name = f"{threads}-{ops}"
    store = S3Store(BUCKET, endpoint_url=aws.endpoint_url)
    space, numbers = Space(_backend(store, f"space-{name}")), count(1)
    space.transact(_sets(0, ENTITIES))
    floor = GroupCommit(LogWriter.open(store, f"floor-{name}"))
    records: list[JsonObject] = []
    calls: dict[str, Callable[[], object]] = {
        "space": lambda: space.transact(_sets(next(numbers), ops)),
        "floor": lambda: floor.append_wal(records),
    }
    tallies = {who: Tally() for who in calls}
    size = 0
    for turn in range(rounds + 1):
        space.transact(_sets(next(numbers), ops))
        segment = LogReader(store, f"space-{name}").tail()
        if segment is None:
            raise RuntimeError("the log is empty")
        records[:] = [*list(segment.transactions())[-1].records]
        size = len(segment.encode())
        for who in random.Random(turn).sample(list(calls), len(calls)):
            _turn(aws, store, calls[who], threads, each, tallies[who] if turn else Tally())  # the first is a warm-up
    space.close()
    floor.close()
    ratio = {
        "space / floor, transactions per second": round(tallies["space"].rate / tallies["floor"].rate, 2),
        "space / floor, requests per transaction": round(tallies["space"].requests / tallies["floor"].requests, 2),
    }
    told: dict[str, object] = {who: tally.told() for who, tally in tallies.items()}
    return told | {"bytes_of_a_commit": size, "records_of_a_commit": len(records), "ratio": ratio}


def transactions(aws: Aws, rounds: int, each: int) -> dict[str, object]:
    return {
        f"threads {threads}, ops {ops}": _case(aws, threads, ops, rounds, max(5, each // threads))
        for threads, ops in CASES
    }


def past(aws: Aws, deepest: int) -> dict[str, object]:
    """Requests of one read this many revisions back, of an entity with some more patches than that: by a process that
    has just opened the space, and by the same one again. Everything is in layers before: nothing has to be read from
    the log."""
    store = S3Store(BUCKET, endpoint_url=aws.endpoint_url)
    writer = Space(_backend(store, "space-past"))
    writer.transact([{"op": "set", "id": "e0", "value": _document(0)}])

    def patch(number: int) -> None:
        patches: list[JsonValue] = [{"op": "replace", "path": "/value/count", "value": number}]
        writer.transact([{"op": "patch", "id": "e0", "patches": patches}])

    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(patch, range(deepest + MORE)))
    newest = writer.seq
    writer.close()
    with PageDb.open(store, "space-past", kind="space") as database:
        database.flush()
        layers = len(database.pages.branch(database.name).layers)
    told: dict[str, object] = {"revisions": newest, "layers": layers}
    for depth in sorted({min(depth, deepest) for depth in DEPTHS}):
        with store.requests.measure() as opening:
            space = Space(_backend(store, "space-past", create=False))
        spent: dict[str, int] = {"opening": opening["total"]}
        for kind in ("cold", "warm"):
            with store.requests.measure() as requests:
                if not space.read("e0", at=newest - depth).exists:
                    raise RuntimeError(f"there is nothing {depth} revisions back")
            spent[kind] = requests["total"]
        told[f"depth {depth}"] = spent
        space.close()
    return told


def measured(*, quick: bool) -> dict[str, object]:
    with embedded_s3(BUCKET) as aws:
        return {
            "transactions": transactions(aws, 3 if quick else 9, 40 if quick else 120),
            "past": past(aws, 1_000 if quick else DEPTHS[-1]),
        }
