"""Append mode (F49): the SDK refuses, the store arbitrates, and the audit finds what got past both."""

from __future__ import annotations

import fnmatch
import json
import re
import threading
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.emulators import CREDENTIALS, new_bucket, s3_client
from worm.clock import Ids, VirtualClock
from worm.collections.collection import Collection
from worm.collections.layout import StorageResolver
from worm.errors import Conflict, Denied, Invalid
from worm.formats import load_schema
from worm.sdk.database import Worm
from worm.store.base import Store, Won
from worm.store.memory import MemoryStore
from worm.store.s3 import S3Store
from worm.tables.verify import Difference, audit_append

PAGE = Path(__file__).resolve().parents[2] / "docs" / "append-only.md"
SCHEMA: dict[str, object] = {
    "version": "1.0",
    "models": {
        "Invoice": {
            "path": "#org/@invoices/(id:slug)",
            "mode": "append",
            "oplog": True,
            "manifest": {"enabled": True},
            "fields": {"total": {"type": "number"}},
        },
        "Note": {"path": "#org/@notes/(id:slug)"},
    },
}
KEY = "org/invoices/one/data.json"
LOCALSTACK = pytest.param("localstack", marks=pytest.mark.localstack)


@pytest.fixture(params=["memory", pytest.param("moto", marks=pytest.mark.slow), LOCALSTACK])
def store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store that keeps versions."""
    if request.param == "memory":
        return MemoryStore(versioned=True)
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    endpoint = str(request.getfixturevalue(f"{request.param}_endpoint"))
    return S3Store(new_bucket(endpoint, versioned=True), endpoint_url=endpoint)


def _session(store: Store) -> Worm:
    clock = VirtualClock()
    return Worm(store, load_schema(SCHEMA), probe=False, clock=clock, ids=Ids.seeded(1, clock))


def _collection(store: Store, model: str = "Invoice") -> Collection:
    schema = load_schema(SCHEMA)
    return Collection(store, StorageResolver(schema), model, schema.model(model))


def _save_one(store: Store) -> Worm:
    session = _session(store)
    invoices = session.model("Invoice")
    invoices.save(invoices.create({"total": 10}, id="one"))
    return session


def _found(store: Store) -> list[tuple[str, str]]:
    found = audit_append(_collection(store))
    assert {(one.model, one.key) for one in found} <= {("Invoice", KEY)}
    return [(one.kind, one.detail) for one in found]


def test_the_sdk_creates_and_refuses_every_change(store: Store) -> None:
    invoices = _save_one(store).model("Invoice")
    read = invoices.find_by_id("one")
    assert read is not None
    for change in (
        lambda: invoices.save(read | {"total": 11}),
        lambda: invoices.patch("one", {"total": 11}),
        lambda: invoices.delete("one"),
        lambda: invoices.rollback("one", to_seq=1),
    ):
        with pytest.raises(Invalid, match="Invoice is append-only"):
            change()
    assert invoices.find_by_id("one") == read
    assert [entry.op for entry in invoices.get_history("one")] == ["create"]
    assert _found(store) == []


def test_a_session_that_never_read_it_is_refused_by_the_store(store: Store) -> None:
    """It cannot know that the document exists: put-if-absent tells."""
    _save_one(store)
    other = _session(store).model("Invoice")
    with pytest.raises(Conflict, match="Invoice 'one' exists already"):
        other.save(other.create({"total": 11}, id="one"))
    assert _found(store) == []


def test_of_sixteen_creates_of_one_id_exactly_one_wins(store: Store) -> None:
    barrier, outcomes = threading.Barrier(16), list[str]()

    def create(number: int) -> None:
        invoices = Worm(store, load_schema(SCHEMA), probe=False, maintenance="events").model("Invoice")
        document = invoices.create({"total": number}, id="one")
        barrier.wait()
        try:
            invoices.save(document)
            outcomes.append("won")
        except Conflict:
            outcomes.append("lost")

    threads = [threading.Thread(target=create, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["lost"] * 15 + ["won"]
    assert _found(store) == []


def test_the_audit_finds_a_raw_overwrite(store: Store) -> None:
    _save_one(store)
    store.put(KEY, b'{"total": 99}')
    assert _found(store) == [("append-overwritten", "2 versions instead of one")]


def test_the_audit_finds_a_raw_delete(store: Store) -> None:
    _save_one(store)
    store.delete(KEY)
    assert _found(store) == [("append-deleted", "1 delete marker")]


def test_the_audit_finds_a_create_behind_a_delete_marker(store: Store) -> None:
    """The store accepts it: put-if-absent asks for the current version only."""
    _save_one(store)
    store.delete(KEY)
    assert isinstance(store.put_if_absent(KEY, b'{"total": 99}'), Won)
    assert _found(store) == [("append-overwritten", "2 versions instead of one"), ("append-deleted", "1 delete marker")]


def test_the_audit_finds_a_document_that_was_removed_with_its_versions() -> None:
    store = MemoryStore(versioned=True)
    _save_one(store)
    (version,) = store.versions(KEY)
    store.forget_version(KEY, version.version_id)
    assert _found(store) == [("append-removed", "no version is left")]


def test_the_audit_finds_a_replacement_whose_first_version_was_removed() -> None:
    """The oplog remembers what the store forgot."""
    store = MemoryStore(versioned=True)
    _save_one(store)
    (first,) = store.versions(KEY)
    store.put(KEY, b'{"total": 99}')
    _collection(store).reconciler().reconcile("one", None)
    store.forget_version(KEY, first.version_id)
    assert _found(store) == [("append-overwritten", "2 oplog entries instead of one")]


def test_the_audit_names_every_document_and_asks_other_modes_nothing() -> None:
    store = MemoryStore(versioned=True)
    for name in ("b", "a"):
        store.put(f"org/invoices/{name}/data.json", b"{}")
        store.delete(f"org/invoices/{name}/data.json")
        store.put(f"org/notes/{name}/data.json", b"{}")
        store.put(f"org/notes/{name}/data.json", b"{}")
    assert audit_append(_collection(store)) == [
        Difference("append-deleted", "Invoice", f"org/invoices/{name}/data.json", "1 delete marker")
        for name in ("a", "b")
    ]
    assert audit_append(_collection(store, "Note")) == []


def test_the_audit_costs_two_listings() -> None:
    store = MemoryStore(versioned=True)
    _save_one(store)
    with store.requests.measure() as spent:
        audit_append(_collection(store))
    assert spent == {"VERSIONS": 1, "LIST": 1, "total": 2}


# The bucket policy of docs/append-only.md


def _policy() -> dict[str, Any]:
    blocks = re.findall(r"```json\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    return next(shape for shape in map(json.loads, blocks) if "Statement" in shape)


def _denied(action: str, key: str, **headers: str) -> bool:
    """Whether a statement of the policy denies the request: actions, resources with wildcards, and `Null`."""
    for statement in _policy()["Statement"]:
        actions, resources = statement["Action"], statement["Resource"]
        conditions = statement.get("Condition", {})
        assert set(conditions) <= {"Null"}
        lacking = conditions.get("Null", {}).items()
        holds = all((name.removeprefix("s3:") not in headers) == (value == "true") for name, value in lacking)
        named = any(fnmatch.fnmatchcase(f"arn:aws:s3:::BUCKET/{key}", one) for one in _many(resources))
        if statement["Effect"] == "Deny" and action in _many(actions) and named and holds:
            return True
    return False


def _many(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


def test_the_policy_lets_only_creates_reach_documents() -> None:
    assert _denied("s3:PutObject", KEY)
    assert not _denied("s3:PutObject", KEY, **{"if-none-match": "*"})
    for action in ("s3:DeleteObject", "s3:DeleteObjectVersion", "s3:BypassGovernanceRetention"):
        assert _denied(action, KEY)


def test_the_policy_lets_the_workers_maintain_their_files() -> None:
    for key in (
        "org/invoices/.worm.manifest.json",
        "org/invoices/.worm.index/total.json",
        ".worm.changes/invoices/x.json",
    ):
        assert not _denied("s3:PutObject", key)
        assert not _denied("s3:DeleteObject", key)


def test_raw_clients_are_refused_where_the_policy_is_enforced(
    moto_endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The embedded AWS enforces statements without a condition; the others are judged above."""
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    bucket, client = new_bucket(moto_endpoint, versioned=True), s3_client(moto_endpoint)
    store = S3Store(bucket, endpoint_url=moto_endpoint)
    _save_one(store)
    client.put_bucket_policy(Bucket=bucket, Policy=json.dumps(_policy()).replace("BUCKET", bucket))
    with pytest.raises(ClientError, match="403"):
        client.delete_object(Bucket=bucket, Key=KEY)
    with pytest.raises(Denied):
        store.delete(KEY)
    assert _found(store) == []
    assert client.put_object(Bucket=bucket, Key="org/invoices/.worm.manifest.json", Body=b"{}")


# Object Lock


@pytest.fixture
def locked(localstack_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, str, S3Store]:
    """A bucket with Object Lock as docs/append-only.md sets it up, its raw client and the store."""
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    client = s3_client(localstack_endpoint)
    bucket = f"locked-{new_bucket(localstack_endpoint)[5:]}"
    client.create_bucket(Bucket=bucket, ObjectLockEnabledForBucket=True)
    client.put_object_lock_configuration(
        Bucket=bucket,
        ObjectLockConfiguration={
            "ObjectLockEnabled": "Enabled",
            "Rule": {"DefaultRetention": {"Mode": "GOVERNANCE", "Days": 1}},
        },
    )
    return client, bucket, S3Store(bucket, endpoint_url=localstack_endpoint)


@pytest.mark.localstack
def test_a_locked_version_cannot_be_deleted_without_the_bypass(locked: tuple[Any, str, S3Store]) -> None:
    client, bucket, store = locked
    _save_one(store)
    (version,) = store.versions(KEY)
    with pytest.raises(ClientError, match="AccessDenied"):
        client.delete_object(Bucket=bucket, Key=KEY, VersionId=version.version_id)
    assert _found(store) == []


@pytest.mark.localstack
def test_the_lock_alone_does_not_stop_overwrites_and_markers_but_keeps_the_first_version(
    locked: tuple[Any, str, S3Store],
) -> None:
    """Why the policy is needed too; the audit finds all of it, and the first version is still there."""
    client, bucket, store = locked
    _save_one(store)
    (first,) = store.versions(KEY)
    client.put_object(Bucket=bucket, Key=KEY, Body=b'{"total": 99}')
    client.delete_object(Bucket=bucket, Key=KEY)
    assert isinstance(store.put_if_absent(KEY, b'{"total": 98}'), Won)
    assert _found(store) == [("append-overwritten", "3 versions instead of one"), ("append-deleted", "1 delete marker")]
    kept = store.get(KEY, version_id=first.version_id)
    assert kept is not None
    assert json.loads(kept.body)["total"] == 10


@pytest.mark.localstack
def test_governance_gives_way_to_the_bypass_and_compliance_does_not(locked: tuple[Any, str, S3Store]) -> None:
    client, bucket, store = locked
    _save_one(store)
    until = client.get_object_retention(Bucket=bucket, Key=KEY)["Retention"]["RetainUntilDate"]
    (one,) = store.versions(KEY)
    two = client.put_object(
        Bucket=bucket, Key="two", Body=b"{}", ObjectLockMode="COMPLIANCE", ObjectLockRetainUntilDate=until
    )["VersionId"]
    client.delete_object(Bucket=bucket, Key=KEY, VersionId=one.version_id, BypassGovernanceRetention=True)
    with pytest.raises(ClientError, match="AccessDenied"):
        client.delete_object(Bucket=bucket, Key="two", VersionId=two, BypassGovernanceRetention=True)
    assert _found(store) == [("append-removed", "no version is left")]


@pytest.mark.localstack
def test_versioning_of_a_locked_bucket_cannot_be_suspended(locked: tuple[Any, str, S3Store]) -> None:
    client, bucket, _ = locked
    with pytest.raises(ClientError, match="InvalidBucketState"):
        client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Suspended"})
