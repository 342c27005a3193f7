"""Documents whose ids are emails, names, URLs and worse, through every verb and on every kind of store."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.emulators import CREDENTIALS, new_bucket
from tests.sdk.sessions import schema
from worm.sdk.database import Worm, push
from worm.store.base import Store
from worm.store.file import FileStore
from worm.store.memory import MemoryStore
from worm.store.s3 import S3Store
from worm.tables.verify import verify_collection
from worm.upkeep.verdicts import Verdict
from worm.upkeep.why import explain_key

IDS = sorted(
    [
        "jane@acme.com",
        "Jane Doe",
        " a ",
        "Müller",
        "東京 😀",
        "a+b=c&d",
        "a:b;c,d",
        "x?y#z",
        "{[(*)]}",
        "'\"`$!",
        "DOMAIN\\user",
        "a/b",
        "https://acme.com/x-y?z=%20",
        ".env",
        "..",
        "100%",
        "a\nb",
        "-",
        "~",
        "Acme",
        "acme",
    ]
)


@pytest.fixture(params=["memory", "file", pytest.param("moto", marks=pytest.mark.slow)])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    if request.param == "memory":
        return MemoryStore(versioned=True)
    if request.param == "file":
        return FileStore(tmp_path / "data", durability="process")
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    endpoint = request.getfixturevalue("moto_endpoint")
    return S3Store(new_bucket(endpoint, versioned=True), "in", endpoint_url=endpoint)


def test_any_id_works_in_every_verb(store: Store) -> None:
    push(store, schema(manifest={"enabled": True, "partitionThreshold": 8}))
    customers = Worm(store, schema(), actor="ann", probe=False).model("Customer")
    assert all(result.ok for result in customers.insert_many([{"id": one, "name": one} for one in IDS]))
    db = Worm(store, schema(), actor="ann", probe=False)
    fresh = db.model("Customer")
    assert [row["id"] for row in fresh.find_all(sort="id")] == IDS
    if not isinstance(store, S3Store):  # bare moto leaves out the first version after a key marker
        assert [row["id"] for row in fresh.find_all(strategy="full_scan", sort="id")] == IDS
    for one in IDS:
        found = fresh.get(one)
        assert (found["id"], found["name"]) == (one, one)
        assert [row["name"] for row in fresh.find_all(filter={"id": one})] == [one]
    fresh.patch("a/b", {"status": "x"})
    assert len(fresh.get_history("a/b")) == 2
    assert fresh.delete("Jane Doe")
    assert fresh.restore("Jane Doe")["name"] == "Jane Doe"
    assert sorted(db.collection("Customer").current_ids()) == IDS
    report = verify_collection(db.collection("Customer"))
    assert (report.differences, report.rejected, report.documents) == ([], {}, len(IDS))
    key = db.resolver.document_key("Customer", "https://acme.com/x-y?z=%20")
    assert explain_key(db, f"{store.url}/{key}").verdict is Verdict.RECORDED
