"""What history costs: a save with oplog, and reading an old state, at short and at long histories.

Requests are counted on the store in memory, where a long history is built quickly; times are measured on the embedded
moto and reported as ratios to a floor in the same run, taking turns: a save against one raw conditional PUT, an old
state against as many concurrent raw GETs as lie between two checkpoints. Budgets: an old state, by seq or by time,
takes at most 2 + `snapshots.every` requests at any length, and appending takes as many at any length.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

from worm.clock import Ids, SystemClock, VirtualClock, iso_seconds
from worm.dev.aws import start_moto
from worm.formats import load_schema
from worm.sdk.database import Maintenance, Model, Worm, push
from worm.store.base import Read, Store, Won
from worm.store.memory import MemoryStore
from worm.store.s3 import S3Store

EVERY = 10
LENGTHS = (10, 1_000, 10_000)
TIMED_LENGTHS = (10, 1_000)
SCHEMA = load_schema(
    {
        "version": "1.0",
        "models": {
            "Customer": {
                "path": "#org/@customers/(id:slug)",
                "fields": {"name": {"type": "string"}, "score": {"type": "integer"}},
                "oplog": True,
                "snapshots": {"enabled": True, "every": EVERY},
                "manifest": {"enabled": True},
            }
        },
    }
)


def _model(store: Store, maintenance: Maintenance = "inline") -> Model:
    """A new session on the store's own clock: it caches only its own writes."""
    clock = store.clock if isinstance(store, MemoryStore) else SystemClock()
    ids = Ids.seeded(1, clock)
    return Worm(store, SCHEMA, probe=False, maintenance=maintenance, clock=clock, ids=ids).model("Customer")


class Writer:
    """Updates one document again and again, so that its history grows."""

    def __init__(
        self,
        store: Store,
        maintenance: Maintenance = "inline",
        id: str = "one",
        tick: Callable[[], None] = lambda: None,
    ) -> None:
        self._tick = tick
        self.model = _model(store, maintenance)
        self.length = 1
        self._document = self.model.save(self.model.create({"name": "Acme", "score": 0}, id=id))

    def save(self) -> None:
        self._tick()
        self._document = self.model.save(self._document | {"score": self.length})
        self.length += 1

    def grow(self, length: int) -> None:
        while self.length < length:
            self.save()


def request_counts() -> dict[str, object]:
    """At each length: the most requests of `get_at` over a window of seqs at both ends and in the middle, of the
    times of the oldest and the youngest entries, and of the next saves (a window of `every`, so that a checkpoint,
    a time mark and a snapshot are among them). Snapshot files do not count: they are pruned before."""
    clock = VirtualClock()
    store = MemoryStore(versioned=True, clock=clock)
    push(store, SCHEMA)
    writer = Writer(store, tick=lambda: clock.advance(1))
    get_at, page, append = dict[int, int](), dict[int, int](), dict[int, dict[str, int]]()
    old, young = dict[int, int](), dict[int, int]()
    for length in LENGTHS:
        writer.grow(length)
        starts = {1, max(1, length // 2 - EVERY), length - EVERY + 1}
        seqs = [seq for start in sorted(starts) for seq in range(start, start + EVERY)]
        get_at[length] = max(_spent(store, partial(_model(store).get_at, "one", seq=seq)) for seq in seqs)
        for listed in list(store.list(".snapshots/")):
            store.delete(listed.key)
        now = clock.now()  # each entry is a second older than the next
        old[length] = _most_by_time(store, now - timedelta(seconds=length - EVERY))
        young[length] = _most_by_time(store, now)
        page[length] = _spent(store, lambda: _model(store).get_history("one", limit=EVERY))
        costs = [_spent(store, writer.save) for _ in range(EVERY)]
        append[length] = {"least": min(costs), "most": max(costs)}
    within = max(get_at.values()) <= 2 + EVERY
    within_by_time = max(*old.values(), *young.values()) <= 2 + EVERY
    constant = len({tuple(costs.values()) for costs in append.values()}) == 1
    return {
        "snapshots_every": EVERY,
        "get_at_seq_requests_at_length": get_at,
        "get_at_seq_within_budget": within,
        "get_at_old_time_requests_at_length": old,
        "get_at_young_time_requests_at_length": young,
        "get_at_time_within_budget": within_by_time,
        "get_history_page_of_10_requests_at_length": page,
        "save_inline_requests_at_length": append,
        "save_inline_requests_constant": constant,
        "save_events_requests": _spent(store, Writer(store, "events", "two").save),
    }


def _most_by_time(store: Store, newest: datetime) -> int:
    """Of the times of `every` entries that end with the given one."""
    moments = [newest - timedelta(seconds=age) for age in range(EVERY)]
    return max(_spent(store, partial(_model(store).get_at, "one", time=moment)) for moment in moments)


def _spent(store: Store, call: Callable[[], object]) -> int:
    with store.requests.measure() as spent:
        call()
    return spent["total"]


def _milliseconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1000


def _medians(subjects: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Median milliseconds; the subjects take turns, so that a busy machine slows all of them equally."""
    taken: dict[str, list[float]] = {name: [] for name in subjects}
    for call in subjects.values():
        call()  # opens connections
    for _ in range(repeats):
        for name, call in subjects.items():
            taken[name].append(_milliseconds(call))
    return {name: statistics.median(values) for name, values in taken.items()}


def save_times(store: Store, repeats: int) -> dict[str, object]:
    inline, events = Writer(store, id="inline"), Writer(store, "events", "events")
    etags = [_won(store.put_if_absent("floor", b'{"score":0}'))]

    def raw() -> None:
        etags.append(_won(store.put_if_match("floor", b'{"score":%d}' % len(etags), etags[-1])))

    medians = _medians({"raw": raw, "events": events.save, "inline": inline.save}, repeats)
    return _against(medians, "raw", "raw_conditional_put_ms", "save")


def _won(outcome: object) -> str:
    if not isinstance(outcome, Won):
        raise RuntimeError(f"the floor's own write was lost: {outcome}")
    return outcome.etag


def get_at_times(store: Store, repeats: int) -> dict[str, object]:
    subjects: dict[str, Callable[[], object]] = {}
    keys: list[Read] = []
    for length in TIMED_LENGTHS:
        Writer(store, id=f"h{length}").grow(length)
        seq = length - 1  # the entry before a checkpoint is the farthest from one
        subjects[str(length)] = partial(_model(store).get_at, f"h{length}", seq=seq)
        first = _model(store).get_history(f"h{length}", limit=1, before_seq=2)[0].ts
        for name, moment in (("old", first), ("young", iso_seconds(SystemClock().now()))):
            subjects[f"{length} by {name} time"] = partial(_model(store).get_at, f"h{length}", time=moment)
        keys = [Read(f".oplog/customers/h{length}/{at:04d}.json") for at in range(length - EVERY + 1, length + 1)]
    subjects["raw"] = lambda: store.get_many(keys)
    return _against(_medians(subjects, repeats), "raw", f"raw_{EVERY}_gets_ms", "get_at")


def _against(medians: dict[str, float], floor: str, floor_name: str, what: str) -> dict[str, object]:
    others: Iterable[str] = [name for name in medians if name != floor]
    return {
        floor_name: round(medians[floor], 2),
        f"{what}_ms": {name: round(medians[name], 2) for name in others},
        f"{what}_ratio_to_floor": {name: round(medians[name] / medians[floor], 2) for name in others},
    }


def main(arguments: list[str]) -> dict[str, object]:
    parser = argparse.ArgumentParser(prog="scripts/bench history")
    parser.add_argument("--repeats", type=int, default=100)
    repeats = parser.parse_args(arguments).repeats
    measured: dict[str, object] = {"requests": request_counts()}
    with tempfile.TemporaryDirectory(prefix="worm-bench-") as scratch:
        aws = start_moto(Path(scratch), "us-east-1")
        try:
            os.environ.update({**aws.credentials, "AWS_REGION": aws.region})
            aws.s3().create_bucket(Bucket="history")
            aws.s3().put_bucket_versioning(Bucket="history", VersioningConfiguration={"Status": "Enabled"})
            store = S3Store("history", endpoint_url=aws.endpoint_url)
            push(store, SCHEMA)
            measured["save"] = save_times(store, repeats)
            measured["get_at"] = get_at_times(store, repeats)
        finally:
            aws.stop()
    return measured
