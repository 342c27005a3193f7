"""What reading by id and saving in a directory ask of the store, kind by kind."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import worm
from worm.sdk.database import Worm
from worm.store.base import PUT_ID, Object, Read
from worm.store.open import open_store
from worm.store.s3 import S3Store

SCHEMA = {
    "models": {
        "Thing": {
            "path": "@things/(id:string)",
            "oplog": True,
            "fields": {"name": {"type": "string"}},
            "indexes": {"byName": {"field": "name"}},
        }
    }
}


@pytest.fixture
def db(tmp_path: Path) -> Worm:
    db = worm.connect(str(tmp_path / "data"), schema=SCHEMA)
    db.folder._window = 3600.0  # only `flush` folds
    db.push()
    things = db.model("Thing")
    for number in range(5):
        things.insert({"id": f"t{number}", "name": "a"})
    db.flush()
    return db


def test_reading_by_id_is_one_request_for_each_document(db: Worm) -> None:
    things = db.model("Thing")
    with db.store.requests.measure() as found:
        assert things.find_by_id("t1") is not None
    with db.store.requests.measure() as there:
        assert (things.exists("t1"), things.exists("none")) == (True, False)
    with db.store.requests.measure() as many:
        assert len(things.find_many([f"t{number}" for number in range(5)])) == 5
    assert (found, there, many) == ({"GET": 1, "total": 1}, {"HEAD": 2, "total": 2}, {"GET": 5, "total": 5})


def test_many_documents_are_read_from_s3_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each read waits until seven others are under way."""
    meeting = threading.Barrier(8)

    def get(store: S3Store, key: str, *, version_id: str | None = None, max_bytes: int | None = None) -> Object | None:
        meeting.wait(timeout=20)
        return None

    monkeypatch.setattr(S3Store, "get", get)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "nothing")
    store = open_store("s3://bucket", endpoint_url="http://127.0.0.1:9")
    assert store.get_many([Read(f"{number}") for number in range(16)]) == [None] * 16


def test_a_new_document_in_a_directory_is_read_once_and_its_history_looked_at_once(db: Worm) -> None:
    with db.store.requests.measure() as spent:
        db.model("Thing").insert({"id": "new", "name": "b"})
    assert spent == {"PUT": 3, "GET": 1, "LIST": 1, "total": 5}, "the first save after a fold leaves a pending note"
    with db.store.requests.measure() as spent:
        db.model("Thing").insert({"id": "newer", "name": "b"})
    assert spent == {"PUT": 2, "GET": 1, "LIST": 1, "total": 4}


def test_an_entry_in_a_directory_has_no_file_beside_it(db: Worm, tmp_path: Path) -> None:
    """A file is created, and synced by the checkpoint, for each."""
    meta = tmp_path / "data" / ".worm.store" / "meta"
    before = len(list(meta.iterdir()))
    db.model("Thing").insert({"id": "new", "name": "b"})
    document, entry = db.store.get("things/new/data.json"), db.store.get(".oplog/things/new/0001.json")
    assert document is not None
    assert entry is not None
    assert (PUT_ID in document.metadata, dict(entry.metadata)) == (True, {})
    assert len(list(meta.iterdir())) == before + 1


def test_a_document_that_is_made_again_goes_on_with_its_history(db: Worm, tmp_path: Path) -> None:
    """Of a new document nobody asks the heads; the entries themselves tell that it was there before."""
    db.model("Thing").delete("t1")
    db.close()
    with worm.connect(str(tmp_path / "data")) as other:
        things = other.model("Thing")
        things.insert({"id": "t1", "name": "again"})
        assert [(entry.seq, entry.op) for entry in things.get_history("t1")] == [
            (1, "create"),
            (2, "delete"),
            (3, "create"),
        ]
        other.flush()
        assert [one["name"] for one in things.find_all(filter={"name": "again"})] == ["again"]
