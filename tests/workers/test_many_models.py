"""Batches of capture and tables that are of several models: they take their steps together, and fail apart."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from scripts.benchmarks._virtual_path import BUCKET as VIRTUAL_BUCKET
from scripts.benchmarks._virtual_path import message_of, schema_of
from scripts.benchmarks._virtual_s3 import Bucket, Limits, Process, Timeline, VirtualS3, lanes_for_threads
from tests.harness import BUCKET, created
from worm.clock import Ids
from worm.collections.collection import Collection
from worm.collections.layout import SCHEMA_KEY
from worm.errors import Unavailable
from worm.formats import load_schema
from worm.store.base import Lost, NotModified, Object, RequestCounter, Won
from worm.store.memory import MemoryStore
from worm.tables.table import Table
from worm.upkeep.session import Session, Settings
from worm.upkeep.workers.batch import BatchOutcome, Message
from worm.upkeep.workers.capture import Capture
from worm.upkeep.workers.tables import Fold

FIELDS: Mapping[str, object] = {"fields": {"n": {"type": "number"}}, "manifest": {"enabled": True}}
MODELS: Mapping[str, object] = {
    "A": {"path": "@as/(id:string)", "oplog": True, **FIELDS},
    "B": {"path": "@bs/(id:string)", "oplog": True, **FIELDS},
    "C": {"path": "@cs/(id:string)", "snapshots": {"enabled": True}, **FIELDS},
}
KEYS = {"a": "as/1/data.json", "b": "bs/1/data.json", "c": "cs/1/data.json"}


class Picky(MemoryStore):
    """Refuses to read or to create below one prefix."""

    refused = "none/"

    def get_if_changed(self, key: str, etag: str | None) -> Object | NotModified | None:
        if key.startswith(self.refused):
            raise Unavailable("not now", key=key)
        return super().get_if_changed(key, etag)

    def put_if_absent(self, key: str, body: bytes, *, metadata: Mapping[str, str] | None = None) -> Won | Lost:
        if key.startswith(self.refused):
            raise Unavailable("not now", key=key)
        return super().put_if_absent(key, body, metadata=metadata)


def captured(refused: str = "none/") -> tuple[BatchOutcome, MemoryStore]:
    store = Picky(versioned=True)
    store.put(SCHEMA_KEY, load_schema({"version": "1.0", "models": dict(MODELS)}).to_json())
    for key in KEYS.values():
        store.put(key, json.dumps({"n": 1}).encode())
    session = Session(store, Settings(BUCKET))
    session.refresh()
    for name in MODELS:
        session.table(name).complete()
    store.refused = refused
    return Capture(session).run([Message(name, created(key)) for name, key in KEYS.items()]), store


def change_sets(store: MemoryStore) -> list[str]:
    return sorted(one.key.split("/")[1] for one in store.list(".worm.changes/"))


def test_every_model_of_a_batch_gets_its_change_set() -> None:
    outcome, store = captured()
    assert (outcome.failed, outcome.recorded, change_sets(store)) == ({}, 2, ["as", "bs", "cs"])


@pytest.mark.parametrize("refused", ["as/.worm.heads.json", ".worm.changes/as/"])
def test_a_model_whose_heads_or_change_set_fail_fails_alone(refused: str, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[str] = []
    monkeypatch.setattr(Collection, "keep_snapshot", lambda self, entity_id: looked_at.append(self.name))
    outcome, store = captured(refused)
    assert looked_at == ["C"]  # without its heads, nothing is done for a model
    assert list(outcome.failed) == ["a"]
    assert change_sets(store) == ["bs", "cs"]


def test_an_unforeseen_error_of_one_document_fails_it_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Collection, entity_id: str) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Collection, "keep_snapshot", broken)
    outcome, store = captured()
    assert {name: type(error) for name, error in outcome.failed.items()} == {"c": ZeroDivisionError}
    assert change_sets(store) == ["as", "bs"]


@pytest.mark.parametrize("refused", ["as/.worm.manifest.json", "as/.worm.heads.json", "cs/.worm.manifest.json"])
def test_a_table_that_cannot_be_folded_fails_alone(refused: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tidied: list[str] = []
    monkeypatch.setattr(Table, "tidy_folded", lambda self, bytes_max: tidied.append(self.collection.name))
    _, store = captured()
    assert isinstance(store, Picky)
    sets = {one.key.split("/")[1]: Message(one.key.split("/")[1], created(one.key)) for one in store.list(".worm.ch")}
    store.refused = refused
    outcome = Fold(Session(store, Settings(BUCKET))).run(list(sets.values()))
    assert (list(outcome.failed), outcome.recorded) == ([refused[:2]], 2)
    assert tidied == (["B"] if refused.startswith("as/") else ["A", "B"])
    store.refused = "none/"
    session = Session(store, Settings(BUCKET))
    assert Fold(session).run([sets[refused[:2]]]).failed == {}
    for name in MODELS:
        manifest = session.table(name).manifest.read()
        assert manifest is not None
        assert manifest.entities == {"1": {"n": 1}}


def test_a_batch_of_many_models_takes_hardly_longer_than_one_of_a_single_model() -> None:
    """One after the other they took a request's time for each step and model: 10 s for 100 documents of 63 models."""
    (capture, fold), (capture_of_many, fold_of_many) = seconds_of(models=1), seconds_of(models=16)
    assert capture_of_many < 2 * capture
    assert fold_of_many < 4 * fold  # two rounds of eight


def seconds_of(models: int) -> tuple[float, float]:
    """Virtual time of a batch of 16 documents, and of their change sets, where GETs take 15 ms and PUTs 25."""
    stored = MemoryStore(versioned=True)
    stored.put(SCHEMA_KEY, load_schema(schema_of(models)).to_json())
    pushed = Session(stored, Settings(VIRTUAL_BUCKET))
    pushed.refresh()
    for at in range(models):
        pushed.table(f"Thing{at:03d}").complete()
    bucket = Bucket(Limits(spread=0.0), Ids.seeded(1).rng, stored)
    process = Process(Timeline())
    ids = Ids.seeded(1, process.clock)
    store = VirtualS3(bucket, process, ids, RequestCounter(), lambda *_: None)
    messages = []
    for number in range(16):
        key = f"things{number % models:03d}/e{number}/data.json"
        version_id = bucket.objects.put(key, b'{"name": "x"}').version_id
        messages.append(message_of(number, key, version_id, 13))
    session = Session(store, Settings(VIRTUAL_BUCKET), probe=False, ids=ids, clock=process.clock)
    outcomes: list[BatchOutcome] = []
    with lanes_for_threads():
        process.run(lambda: outcomes.append(Capture(session).run(messages)))
        taken = process.clock.elapsed
        sets = [message_of(at, one.key, None, 1) for at, one in enumerate(bucket.objects.list(".worm.changes/"))]
        process.run(lambda: outcomes.append(Fold(session).run(sets)))
    assert [(one.recorded, one.failed) for one in outcomes] == [(16, {}), (16, {})]
    return taken, process.clock.elapsed - taken
