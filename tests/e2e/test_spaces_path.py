"""Models in a space on the embedded AWS: a client only commits, and the functions do the rest."""

from __future__ import annotations

import json
import random

import pytest

from tests.e2e.conftest import Deployment
from tests.sdk.bank_room import ACCOUNT, TRANSFER
from tests.sdk.sessions import must
from worm.dev.faults import FaultPolicy
from worm.dev.worker import OutcomeKind
from worm.formats import load_schema
from worm.sdk.database import Worm, connect, push
from worm.store.base import PUT_ID, Object
from worm.tables.verify import verify_collection
from worm.upkeep.session import Session

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

ACCOUNTS = [f"a{number}" for number in range(6)]
SCHEMA = {"version": "1.0", "storage": {"layout": "root"}, "models": {"Account": ACCOUNT, "Transfer": TRANSFER}}


def bank(deployment: Deployment) -> Worm:
    push(deployment.store, load_schema(SCHEMA))
    deployment.environment.wait_quiet(30)
    db = connect(f"s3://{deployment.environment.bucket}", actor="ann", maintenance="events")
    with db.transaction() as tx:
        for number, one in enumerate(ACCOUNTS):
            tx.save("Account", {"id": one, "email": f"{number}@x", "balance": 100})
    return db


def move(db: Worm, chance: random.Random, number: int) -> None:
    """Money from one account to another; sometimes the two change their addresses, too."""
    payer, payee = chance.sample(ACCOUNTS, 2)
    with db.transaction(actor=f"actor{number}") as tx:
        left, right = must(tx.get("Account", payer)), must(tx.get("Account", payee))
        first, second = ("email", "email") if chance.random() < 0.5 else ("", "")
        tx.save(
            "Account", {**left, "balance": int(str(left["balance"])) - 1, **({first: right["email"]} if first else {})}
        )
        tx.save(
            "Account",
            {**right, "balance": int(str(right["balance"])) + 1, **({second: left["email"]} if second else {})},
        )
        tx.save("Transfer", {"id": f"t{number}", "amount": 1, "account": payer})
        if number % 4 == 3:
            tx.delete("Transfer", f"t{number - 1}")


def check(deployment: Deployment, db: Worm, commits: int) -> None:
    """Documents, history and tables are what the log says, and each commit stands in the history once."""
    schema = load_schema(SCHEMA)
    space = db.space("main")
    assert space.seq == commits
    told: list[object] = []
    for model in ("Account", "Transfer"):
        collection = Session(deployment.store, schema=schema).collection(model)
        assert verify_collection(collection).differences == []
        ids = [one.partition("/")[2] for one in space.ids() if one.startswith(f"{model}/")]
        for one in ids:
            stored, entries = collection.documents.current(one), list(collection.oplog.entries(one))
            value = space.read(f"{model}/{one}").value
            assert (None if stored is None else json.loads(stored.body)) == value
            seqs = [entry.metadata["commitSeq"] for entry in entries]
            assert seqs == sorted(set(map(int, map(str, seqs))))
            told += seqs
    wanted = [entry.seq for entry in space.log() for _ in _operations(entry.original)]
    assert sorted(map(int, map(str, told))) == sorted(wanted)


def _operations(original: object) -> list[object]:
    assert isinstance(original, dict)
    operations = original["operations"]
    assert isinstance(operations, list)
    return operations


def test_commits_become_documents_history_and_tables_by_events(deployment: Deployment) -> None:
    environment, chance = deployment.environment, random.Random(1)
    db = bank(deployment)
    for number in range(12):
        move(db, chance, number)
    environment.wait_quiet(90)
    check(deployment, db, 13)
    rows = db.model("Account").find_all()
    assert (len(rows), sum(int(str(row["balance"])) for row in rows)) == (6, 600)
    counts = environment.counts
    assert {name: counts.functions[name].errors for name in ("apply", "capture", "tables")} == {
        "apply": 0,
        "capture": 0,
        "tables": 0,
    }
    assert [environment.dlq_messages(name) for name in ("apply", "capture", "tables")] == [[], [], []]


def test_events_that_are_lost_doubled_and_delayed_and_workers_that_die_lose_nothing(deployment: Deployment) -> None:
    environment, chance = deployment.environment, random.Random(2)
    db = bank(deployment)
    environment.set_faults(FaultPolicy(copies=2, drop=0.3, delay_seconds=0.5, seed=7))
    for number in range(24):
        move(db, chance, number)
        if number % 8 == 5:
            environment.kill_worker("apply")
            environment.kill_worker("capture")
    environment.set_faults(FaultPolicy())
    environment.wait_quiet(120)
    outcome = environment.invoke("sweep", {})
    assert outcome.kind is OutcomeKind.OK, outcome.error
    environment.wait_quiet(60)
    check(deployment, db, 25)


def test_a_create_that_the_store_carries_out_late_does_not_bring_a_document_back(deployment: Deployment) -> None:
    environment, store = deployment.environment, deployment.store
    db = bank(deployment)
    environment.wait_quiet(60)
    key = "bank/accounts/a0/data.json"
    found = store.get(key)
    assert isinstance(found, Object)
    db.model("Account").delete("a0")
    environment.wait_quiet(60)
    assert store.get(key) is None
    store.put(key, found.body, metadata={**found.metadata, PUT_ID: "01ANOTHERATTEMPT"})
    environment.wait_quiet(60)
    outcome = environment.invoke("sweep", {})
    assert outcome.kind is OutcomeKind.OK, outcome.error
    environment.wait_quiet(60)
    assert store.get(key) is None
    check(deployment, db, 2)


def test_what_an_s3_client_copies_back_or_undeletes_stays_and_is_recorded(deployment: Deployment) -> None:
    """By events alone; then a sweep comes by, and changes nothing."""
    environment, s3, bucket = deployment.environment, deployment.s3, deployment.environment.bucket
    db = bank(deployment)
    environment.wait_quiet(60)
    keys = [f"bank/accounts/a{number}/data.json" for number in range(4)]
    s3.create_bucket(Bucket="backup")
    for number in (1, 3):
        s3.copy_object(Bucket="backup", Key=f"a{number}", CopySource={"Bucket": bucket, "Key": keys[number]})
    version = s3.head_object(Bucket=bucket, Key=keys[0])["VersionId"]
    for number in range(4):
        db.model("Account").delete(f"a{number}")
    environment.wait_quiet(60)
    s3.copy_object(Bucket=bucket, Key=keys[0], CopySource={"Bucket": bucket, "Key": keys[0], "VersionId": version})
    s3.copy_object(Bucket=bucket, Key=keys[1], CopySource={"Bucket": "backup", "Key": "a1"})
    marker = s3.list_object_versions(Bucket=bucket, Prefix=keys[2])["DeleteMarkers"][0]["VersionId"]
    s3.delete_object(Bucket=bucket, Key=keys[2], VersionId=marker)
    s3.copy_object(
        Bucket=bucket,
        Key=keys[3],
        CopySource={"Bucket": "backup", "Key": "a3"},
        MetadataDirective="REPLACE",
        Metadata={},
    )
    environment.wait_quiet(60)
    wanted = {"a0", "a1", "a2", "a3", "a4", "a5"}
    for _ in range(2):
        with connect(f"s3://{bucket}", maintenance="events") as other:  # it has not deleted anything itself
            assert {str(row["id"]) for row in other.model("Account").find_all()} == wanted
        collection = Session(deployment.store, schema=load_schema(SCHEMA)).collection("Account")
        report = verify_collection(collection)
        assert (report.differences, sorted(report.kept)) == ([], keys[:3])
        ops = [[entry.op for entry in collection.oplog.entries(f"a{number}")] for number in range(4)]
        assert ops == [["create", "delete", "restore" if number == 2 else "create"] for number in range(4)]
        outcome = environment.invoke("sweep", {})
        assert outcome.kind is OutcomeKind.OK, outcome.error
        environment.wait_quiet(60)
