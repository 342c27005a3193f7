"""Page stores on the embedded AWS: a writer only commits, and the functions do the rest."""

from __future__ import annotations

import json

import pytest

from tests.e2e.conftest import Deployment
from worm.dev.faults import FaultPolicy
from worm.dev.worker import OutcomeKind
from worm.pages.branches import Branches
from worm.pages.db import PageDb, create_database
from worm.pages.manifest import PageBranch, PageConfig
from worm.pages.reader import PageReader

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

NEVER = 80_000.0
BY_WORKERS_ONLY = PageConfig(flush_interval_seconds=NEVER, compaction_cadence_layers=2)


def branch_of(deployment: Deployment, name: str = "main") -> PageBranch:
    return PageReader.open(deployment.store, "shop", branch=name).pages.branch(name)


def contents(deployment: Deployment, name: str = "main") -> dict[str, bytes | None]:
    return {version.page: version.data for version in PageReader.open(deployment.store, "shop", branch=name).scan()}


def test_commits_become_layers_by_events_and_layers_become_few_by_schedule(deployment: Deployment) -> None:
    environment, store = deployment.environment, deployment.store
    create_database(store, "shop", BY_WORKERS_ONLY)
    written: dict[str, bytes | None] = {}
    with PageDb.open(store, "shop") as db:
        for turn in range(3):
            for number in range(5):
                page, data = f"p{turn}/{number}", b"%d" % number
                db.write({page: data})
                written[page] = data
            environment.wait_quiet(60)
        head = db.head_lsn
    main = branch_of(deployment)
    assert (main.lsn, main.slot) == (head, 16), "everything is in layers, and the writer did nothing for it"
    assert len([layer for layer in main.layers if layer.level == 0]) >= 2
    assert contents(deployment) == written

    Branches(store, "shop").create("trial")
    with PageDb.open(store, "shop", branch="trial") as trial:
        trial.write({"p0/0": b"other", "p0/1": None})
        environment.wait_quiet(60)
    assert len(branch_of(deployment, "trial").layers) == 1
    other = {page: data for page, data in written.items() if page != "p0/1"} | {"p0/0": b"other"}
    assert (contents(deployment, "trial"), contents(deployment)) == (other, written)

    outcome = environment.fire("compact")
    assert outcome.kind is OutcomeKind.OK, outcome.error
    (report,) = json.loads(json.dumps(outcome.value))
    assert (report["database"], report["branches"], report["finished"]) == ("shop", 2, True)
    assert (report["merged"] >= 2, report["applied"]) == (True, 0)
    assert [layer.level for layer in branch_of(deployment).layers if layer.level == 0] == []
    assert (contents(deployment, "trial"), contents(deployment)) == (other, written)

    environment.wait_quiet(60)
    counts = environment.counts
    assert {name: counts.functions[name].errors for name in ("apply", "compact")} == {"apply": 0, "compact": 0}
    assert environment.dlq_messages("apply") == []
    assert counts.functions["capture"].invocations <= 1, "nothing under db/ is a document; at most the schema's push"


def test_events_that_are_lost_doubled_and_shuffled_and_workers_that_die_lose_nothing(deployment: Deployment) -> None:
    environment, store = deployment.environment, deployment.store
    environment.set_faults(FaultPolicy(copies=2, drop=0.3, delay_seconds=0.5, seed=7))
    create_database(store, "shop", BY_WORKERS_ONLY)
    written: dict[str, bytes | None] = {}
    with PageDb.open(store, "shop") as db:
        for number in range(40):
            page, data = f"p{number % 25}", b"%d" % number
            db.write({page: data})
            written[page] = data
            if number % 10 == 5:
                environment.kill_worker("apply")
        head = db.head_lsn
    environment.set_faults(FaultPolicy())
    environment.wait_quiet(120)
    outcome = environment.fire("compact")
    assert outcome.kind is OutcomeKind.OK, outcome.error
    assert branch_of(deployment).lsn == head
    assert contents(deployment) == written
