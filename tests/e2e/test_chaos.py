"""The whole path on the embedded AWS under what S3, EventBridge, SQS and Lambda are allowed to do.

`WORM_DOCUMENTS=n` loads so many documents, 1,000 of them in a night.
"""

from __future__ import annotations

import os
import random
import threading
import time

import pytest

from tests.e2e.conftest import Deployment
from worm.dev.faults import FaultPolicy

pytestmark = [pytest.mark.slow, pytest.mark.timeout(420)]

DOCUMENTS = int(os.environ.get("WORM_DOCUMENTS", "200"))
OVERWRITES, DELETES = DOCUMENTS * 3 // 10, DOCUMENTS // 10
VERSIONS = DOCUMENTS + OVERWRITES + DELETES
PATIENCE_SECONDS = 300


def settle(deployment: Deployment) -> None:
    environment = deployment.environment
    environment.wait_quiet(PATIENCE_SECONDS)
    environment.set_faults(FaultPolicy())
    while environment.redrive("capture") + environment.redrive("tables"):
        environment.wait_quiet(PATIENCE_SECONDS)
    environment.invoke("sweep", {})
    environment.wait_quiet(PATIENCE_SECONDS)


def assert_nothing_is_lost(deployment: Deployment) -> None:
    report = deployment.verify()
    assert report.differences == []
    assert report.rejected == {}
    assert (report.documents, report.entries) == (DOCUMENTS - DELETES, VERSIONS)
    assert len(deployment.trashed()) == DELETES, "every raw delete was rescued"
    assert deployment.environment.dlq_messages("capture") == []
    assert deployment.environment.dlq_messages("tables") == []


def test_events_three_times_shuffled_and_a_tenth_lost_leave_one_entry_per_version(deployment: Deployment) -> None:
    environment = deployment.environment
    environment.set_faults(FaultPolicy(copies=3, drop=0.1, delay_seconds=3.0, seed=7))
    before = environment.counts
    deployment.load(random.Random(7), documents=DOCUMENTS, overwrites=OVERWRITES, deletes=DELETES)
    environment.wait_quiet(PATIENCE_SECONDS)
    counts = environment.counts
    dropped = counts.events["dropped"] - before.events["dropped"]
    assert dropped > VERSIONS * 0.05

    # No worker triggered itself: capture saw document events and nothing else, tables saw change sets and nothing else.
    change_sets = sum(1 for _ in deployment.store.list(".worm.changes/"))
    assert counts.functions["capture"].records <= VERSIONS * 3
    assert counts.functions["tables"].records <= change_sets * 3
    assert counts.functions["capture"].invocations <= counts.functions["capture"].records

    settle(deployment)
    assert_nothing_is_lost(deployment)
    quiet = environment.counts.functions
    time.sleep(2)
    assert environment.counts.functions == quiet, "a quiet bucket stays quiet"


def test_killing_workers_fifty_times_only_causes_redelivery(deployment: Deployment) -> None:
    environment = deployment.environment
    environment.set_faults(FaultPolicy(copies=3, drop=0.1, delay_seconds=3.0, seed=11))
    chance = random.Random(11)
    kills = 0
    stop = threading.Event()

    def kill() -> None:
        nonlocal kills
        while kills < 50 and not stop.wait(chance.uniform(0.05, 0.4)):
            if environment.kill_worker(chance.choice(["capture", "capture", "tables"])) is not None:
                kills += 1

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        deployment.load(random.Random(11), documents=DOCUMENTS, overwrites=OVERWRITES, deletes=DELETES)
        while killer.is_alive():
            deployment.upload([chance.randrange(DOCUMENTS, DOCUMENTS + 20)], {"status": "active"})
            time.sleep(0.1)
    finally:
        stop.set()
        killer.join()
    assert kills == 50
    deployment.remove(list(range(DOCUMENTS, DOCUMENTS + 20)))
    settle(deployment)
    report = deployment.verify()
    assert report.differences == []
    assert report.documents == DOCUMENTS - DELETES
    extra_ids = {f"c{number:04}" for number in range(DOCUMENTS, DOCUMENTS + 20)}
    assert len(deployment.trashed() - extra_ids) == DELETES, "every raw delete was rescued"
    deaths = environment.counts.functions["capture"].deaths + environment.counts.functions["tables"].deaths
    assert deaths > 0, "some of the kills met a worker at work"
