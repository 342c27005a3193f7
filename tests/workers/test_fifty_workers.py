"""F32: fifty workers fold into one collection at once. Nothing is missing, nobody starves, attempts are counted."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.harness import BUCKET, DataPath, schema_of
from worm.clock import Ids, SystemClock
from worm.store.base import Attempt, Condition
from worm.store.memory import MemoryStore
from worm.upkeep.session import Session, Settings
from worm.upkeep.workers.batch import BatchOutcome, Message
from worm.upkeep.workers.tables import Fold

WORKERS = 50
ENTITIES = 200


@pytest.mark.slow
@pytest.mark.parametrize("threshold", [10_000, 40], ids=["whole", "spread"])
def test_fifty_workers_on_one_collection(threshold: int, monkeypatch: pytest.MonkeyPatch) -> None:
    path = DataPath(schema_of(manifest={"enabled": True, "partitionThreshold": threshold, "maxPartitions": 4}))
    for number in range(ENTITIES):
        path.put(f"c{number:03d}", {"status": "active" if number % 2 else "inactive"})
    for start in range(0, ENTITIES, ENTITIES // WORKERS):
        path.run_capture(path.events[start : start + ENTITIES // WORKERS])
    sets = path.change_sets()
    assert len(sets) == WORKERS

    attempt = MemoryStore.attempt_put

    def distant(
        store: MemoryStore, key: str, body: bytes, condition: Condition, metadata: Mapping[str, str]
    ) -> Attempt:
        time.sleep(0.005)  # a store that answers at once knows no races
        return attempt(store, key, body, condition, metadata)

    monkeypatch.setattr(MemoryStore, "attempt_put", distant)

    def work(body: str) -> BatchOutcome:
        clock = SystemClock()
        workspace = Session(path.store, Settings(BUCKET, threads=1), ids=Ids.system(clock), clock=clock)
        return Fold(workspace).run([Message("m", body)])

    with ThreadPoolExecutor(WORKERS) as pool:
        outcomes = list(pool.map(work, sets))
    assert [outcome.failed for outcome in outcomes] == [{}] * WORKERS
    assert len(path.rows()) == ENTITIES
    path.assert_true()
    attempts = [outcome.attempts for outcome in outcomes]
    print(f"compare-and-swap attempts per batch: mean {sum(attempts) / WORKERS:.1f}, most {max(attempts)}")
    assert min(attempts) >= 2, "manifest and heads"
    assert max(attempts) <= 150, "no worker waits for ever"
