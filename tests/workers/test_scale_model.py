"""What `scripts/bench simulate` rests on: one seed is one run, time passes as it should, and S3's limits bite."""

from __future__ import annotations

import random
import threading
from dataclasses import replace

import pytest

from scripts.benchmarks._virtual_path import Load, Tuning, VirtualPath, spent
from scripts.benchmarks._virtual_s3 import (
    Bucket,
    Lanes,
    Limits,
    Process,
    TimedOut,
    Timeline,
    VirtualS3,
    lanes_for_threads,
)
from worm.clock import Ids
from worm.errors import Unavailable
from worm.store.base import AttemptOutcome, IfAbsent, Read, RequestCounter, Won
from worm.store.memory import MemoryStore

TUNING = Tuning(
    batch_size=20, window_seconds=2.0, concurrency=3, timeout_seconds=60, memory_mb=1024, hidden_seconds=400
)
LOAD = Load(per_second=40, seconds=3, collections=2, population=40)
EXACT = Limits(spread=0.0, request_cpu_seconds=0.0, byte_cpu_seconds=0.0)


def run(seed: int = 1, limits: Limits = Limits(), capture: Tuning = TUNING) -> VirtualPath:  # noqa: B008 - frozen
    path = VirtualPath(LOAD, capture, TUNING, limits, seed)
    path.run()
    return path


def figures(path: VirtualPath) -> object:
    return path.freshness.seconds, spent(path.requests), path.capture.durations, path.tables.durations


class Alone:
    """A store with one worker, whose requests are made by `do`."""

    def __init__(self, limits: Limits = EXACT) -> None:
        self.timeline = Timeline()
        self.bucket = Bucket(limits, random.Random(1), MemoryStore(versioned=True))
        self.process = Process(self.timeline)
        ids = Ids.seeded(1, self.process.clock)
        self.s3 = VirtualS3(self.bucket, self.process, ids, RequestCounter(), lambda *_: None)

    def admitted(self, kind: str, keys: list[str], *, is_conditional: bool = False) -> int:
        return sum(self.bucket.admits(0.5, kind, key, is_conditional=is_conditional) for key in keys)


def test_one_seed_is_one_run_and_every_change_becomes_visible() -> None:
    first, again, other = run(), run(), run(seed=2)
    assert figures(first) == figures(again)
    assert figures(first) != figures(other)
    assert (first.changes, first.freshness.unseen, len(first.freshness.seconds)) == (120, 0, 120)
    assert min(first.freshness.seconds) > 0.4  # two events of at least 0.2 s each


def test_workers_that_are_too_few_let_the_queue_grow() -> None:
    few, enough = run(capture=replace(TUNING, concurrency=1, batch_size=2)), run()
    assert (few.capture.peak, few.freshness.unseen) == (1, 0)
    assert few.backlog[0] > 2 * enough.backlog[0]
    assert max(few.freshness.seconds) > 1.4 * max(enough.freshness.seconds)


def test_more_than_the_rate_of_a_prefix_is_refused_until_the_next_second() -> None:
    alone = Alone(replace(EXACT, puts_per_second=30, gets_per_second=50))
    keys = [f"things/{number}/data.json" for number in range(60)]
    assert alone.admitted("PUT", keys) == 30
    assert alone.admitted("GET", keys[:30]) + alone.admitted("VERSIONS", keys[:30]) == 50
    assert alone.admitted("PUT", [f"others/{number}/data.json" for number in range(10)]) == 10
    assert alone.admitted("PUT", [f".oplog/things/{number}/0001.json" for number in range(10)]) == 10
    assert alone.bucket.refused == 40
    assert alone.bucket.admits(1.0, "PUT", keys[0])


def test_a_prefix_that_is_split_takes_as_much_more() -> None:
    alone = Alone(replace(EXACT, puts_per_second=30, splits=2))
    assert alone.admitted("PUT", [f"things/{number}/data.json" for number in range(200)]) == 60


def test_one_key_takes_15_conditional_writes_a_second() -> None:
    alone = Alone()
    assert alone.admitted("PUT", ["things/.worm.manifest.json"] * 40, is_conditional=True) == 15
    assert alone.admitted("PUT", ["things/.worm.manifest.json"] * 40) == 40


def test_what_is_refused_is_tried_again_or_unknown() -> None:
    alone = Alone(replace(EXACT, gets_per_second=0, puts_per_second=0))
    with pytest.raises(Unavailable, match="503"):
        alone.s3.get("things/a/data.json")
    assert alone.process.clock.elapsed > 6 * EXACT.get_seconds  # six tries, and pauses
    assert alone.s3.attempt_put("things/a/data.json", b"{}", IfAbsent(), {}).outcome is AttemptOutcome.UNKNOWN
    assert alone.s3.requests.total == 0


def test_limits_cost_freshness_and_lose_nothing() -> None:
    held_back = run(limits=Limits(puts_per_second=12))
    assert held_back.bucket.refused > 0
    assert max(held_back.freshness.seconds) > max(run().freshness.seconds)
    assert held_back.freshness.unseen + len(held_back.freshness.seconds) == held_back.changes


def test_requests_in_parallel_take_the_time_of_one_and_those_in_a_row_of_all() -> None:
    alone = Alone()
    with lanes_for_threads():
        _in_worker(alone.process, lambda: alone.s3.get_many([Read(f"k{number}") for number in range(32)]))
        assert alone.process.clock.elapsed == pytest.approx(2 * 0.015)
        _in_worker(alone.process, lambda: [alone.s3.get("k") for _ in range(4)])
        assert alone.process.clock.elapsed == pytest.approx(6 * 0.015)


def test_lanes_share_one_processor() -> None:
    alone = Alone(replace(EXACT, request_cpu_seconds=0.01))
    with lanes_for_threads():
        _in_worker(alone.process, lambda: alone.s3.get_many([Read(f"k{number}") for number in range(16)]))
    assert alone.process.clock.elapsed == pytest.approx(16 * 0.01)


def test_a_worker_is_killed_at_its_deadline() -> None:
    alone = Alone()
    alone.process.deadline = 0.05
    met: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(10):
                alone.s3.get("k")
        except TimedOut as over:
            met.append(over)

    _in_worker(alone.process, work)
    assert (len(met), alone.process.clock.elapsed) == (1, 0.05)


def test_of_two_workers_that_swap_one_root_the_later_loses() -> None:
    """Their requests meet in the order of their times, not in the order in which they were started."""
    alone = Alone()
    other = Process(alone.timeline)
    slow = VirtualS3(alone.bucket, other, Ids.seeded(2, other.clock), RequestCounter(), lambda *_: None)
    found: dict[str, object] = {}
    other.clock.elapsed = 0.01
    alone.timeline.at(0.0, lambda: other.run(lambda: found.update(slow=slow.put_if_absent("root", b"slow"))))
    alone.timeline.at(0.0, lambda: alone.process.run(lambda: found.update(first=alone.s3.put_if_absent("root", b"1"))))
    alone.timeline.run(10)
    assert isinstance(found["first"], Won)
    assert not isinstance(found["slow"], Won)


def test_no_thread_is_left() -> None:
    before = threading.active_count()
    run()
    assert threading.active_count() <= before


def test_a_mistake_of_a_worker_ends_the_run() -> None:
    with pytest.raises(ZeroDivisionError):
        _in_worker(Process(Timeline()), lambda: 1 // 0)


def test_lanes_raise_an_error_when_the_result_is_asked_for() -> None:
    with Lanes(2) as lanes, pytest.raises(ZeroDivisionError):
        lanes.submit(lambda: 1 // 0).result()


def _in_worker(process: Process, work: object) -> None:
    assert callable(work)
    process.run(work)
