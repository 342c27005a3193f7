"""Jobs on a bucket that serves so many requests a second and answers all others with 503, as a prefix of S3 does."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from pyspark import TaskContext
from pyspark.sql import SparkSession

from tests.emulators import new_bucket
from tests.fault_proxy import FaultProxy, answer, fault_proxy
from tests.spark.collection_room import Room, document
from worm.clock import SystemClock
from worm.collections.id_ranges import IdRange
from worm.errors import Unavailable
from worm.spark.cluster import job_spec
from worm.spark.rebuild_job import rebuild
from worm.spark.rebuild_tasks import run
from worm.store.pace import Rate
from worm.store.s3 import S3Store
from worm.tables.tasks.staging import SourceRows, Staging
from worm.tables.tasks.verify_range import RangeReport, verify_range
from worm.upkeep.session import Session

PER_SECOND = 40
NUMBERS = range(8, 87)
CLAIMED = [number for number in range(8, 107) if number % 40 != 7]
"""Of these, each has an e-mail address of its own. They are enough for the rate to count: what all threads of two
processes send before the first refusal is refused anyway."""
REFUSED_SHARE_MAX = 1.0
"""Refused requests for each that is served: 0.2 to 0.5 here, and 2.7 if nothing lowers the rate of a patient store. How
well the rate fits is shown by a simulation, whose clock is not that of a busy machine (tests/store/test_pace.py)."""


@dataclass
class Limit:
    """A bucket of tokens."""

    clock: SystemClock = field(default_factory=SystemClock)
    tokens: float = PER_SECOND / 4
    filled_at: float | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def is_exceeded(self) -> bool:
        with self.lock:
            now = self.clock.monotonic()
            passed = 0.0 if self.filled_at is None else now - self.filled_at
            self.tokens, self.filled_at = min(PER_SECOND / 4, self.tokens + passed * PER_SECOND), now
            is_exceeded = self.tokens < 1.0
            self.tokens -= 0.0 if is_exceeded else 1.0
            return is_exceeded


@dataclass
class Throttled:
    """A collection, and the same behind a proxy that throttles."""

    room: Room
    proxy: FaultProxy

    def store(self, *, patient: bool) -> S3Store:
        bucket = self.room.url.removeprefix("s3://")
        return S3Store(bucket, endpoint_url=self.proxy.url, patient=patient)

    def read_all(self, store: S3Store) -> RangeReport:
        """What the tasks of both jobs do with the documents of their range."""
        collection = Session(store, schema=self.room.spec.schema()).collection("Customer")
        staged = Staging(collection).put_all(SourceRows(collection, IdRange()))
        assert sum(one.count for one in staged) == len(NUMBERS)
        return verify_range(collection, IdRange())

    def told(self) -> tuple[int, int]:
        """How many requests were served, and how many refused."""
        refused = sum(one.told == 503 for one in self.proxy.seen)
        return len(self.proxy.seen) - refused, refused


@pytest.fixture
def throttled(moto: str) -> Iterator[Throttled]:
    limit = Limit()
    with fault_proxy(moto) as proxy:
        room = Room(f"s3://{new_bucket(moto, versioned=True)}", endpoint_url=moto, oplog=False)
        proxy.fail("*", "", answer(503), times=None, only=lambda seen: limit.is_exceeded())
        yield Throttled(room, proxy)


@pytest.mark.slow
def test_a_task_that_is_throttled_slows_down(throttled: Throttled) -> None:
    throttled.room.put(NUMBERS)
    report = throttled.read_all(throttled.store(patient=True))
    assert len(report.rows) == len(NUMBERS)
    served, refused = throttled.told()
    assert 2 * len(NUMBERS) <= served < 3 * len(NUMBERS)
    assert 0 < refused < REFUSED_SHARE_MAX * served


@pytest.mark.slow
def test_without_a_pace_the_same_task_fails(throttled: Throttled, monkeypatch: pytest.MonkeyPatch) -> None:
    throttled.room.put(NUMBERS)
    monkeypatch.setattr(Rate, "refused", lambda *_: None)
    with pytest.raises(Unavailable, match="in 6 tries: 503 SlowDown"):
        throttled.read_all(throttled.store(patient=False))
    served, refused = throttled.told()
    assert refused > served


def test_a_job_hands_out_ranges_that_are_far_apart_and_returns_results_in_order(spark: SparkSession) -> None:
    def task(item: str) -> tuple[str, int]:
        context = TaskContext.get()
        assert context is not None
        return item, context.partitionId()

    done = run(spark, task, "abcdefgh", "order")
    assert done == [("a", 0), ("b", 4), ("c", 2), ("d", 6), ("e", 1), ("f", 5), ("g", 3), ("h", 7)]


@pytest.mark.slow
def test_a_job_finishes_on_a_bucket_that_throttles_all_its_processes(throttled: Throttled, spark: SparkSession) -> None:
    room = throttled.room
    room.put(CLAIMED)
    rebuild(spark, job_spec(room.url, "Customer", throttled.proxy.url))
    served, refused = throttled.told()
    assert 0 < refused < REFUSED_SHARE_MAX * served
    assert room.verify().differences == []
    assert len(room.claimed()) == sum("email" in document(number) for number in CLAIMED)
