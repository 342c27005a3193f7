"""Histories that once stopped, looped or lost something: each test is one such way."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NoReturn

import pytest

from tests.harness import CUSTOMER, DataPath, created, schema_of
from worm.collections.layout import SCHEMA_KEY
from worm.collections.origins import write_metadata
from worm.errors import Denied
from worm.formats import load_schema
from worm.store.base import Lost, Won
from worm.store.faulty_store import FaultyStore, SimulatedCrash
from worm.store.memory import MemoryStore

KEEPING = schema_of(softDelete=True, snapshots={"enabled": True, "every": 2, "maxAge": "30d", "maxCount": 5})
FIELDS = {"name": {"type": "string"}, "status": {"type": "string", "enum": ["active"]}}


def push(path: DataPath, schema: dict[str, object]) -> None:
    path.store.put(SCHEMA_KEY, load_schema(schema).to_json())


def test_a_tightened_schema_does_not_stop_the_history_of_what_was_valid_before() -> None:
    """The recorded state was judged when it was recorded; judging it again would reject every later upload."""
    path = DataPath()
    path.put("a", {"name": "old", "status": "unheard of"})
    path.settle()
    push(path, schema_of(fields=FIELDS))
    path.put("a", {"name": "new", "status": "active"})
    path.settle()
    assert path.ops("a") == ["create", "update"]
    path.store.delete("org/customers/.worm.manifest.json")
    path.sweep()
    assert path.rows() == {"a": {"name": "new", "status": "active"}}
    path.assert_true()


class SnapshotsDenied(MemoryStore):
    """A role that may not write snapshots or trash."""

    is_denied = True

    def put_if_absent(self, key: str, body: bytes, *, metadata: Mapping[str, str] | None = None) -> Won | Lost:
        if self.is_denied and key.startswith((".snapshots/", ".worm.trash/")):
            raise Denied("no", key=key)
        return super().put_if_absent(key, body, metadata=metadata)


def test_a_snapshot_or_trash_that_cannot_be_written_stops_neither_history_nor_table() -> None:
    path = DataPath(KEEPING)
    denied = SnapshotsDenied(versioned=True, clock=path.clock, ids=path.ids)
    denied._history = path.store._history
    path.new_workers(denied)
    for score in range(5):
        path.put("a", {"score": score})
    path.remove("a")
    events = list(path.events)
    outcome = path.run_capture()
    path.run_fold()
    assert set(map(type, outcome.failed.values())) == {Denied}, "the message comes again, and tells why"
    assert len(path.history("a")) == 6
    assert path.rows() == {}
    path.assert_true()

    denied.is_denied = False
    assert path.run_capture(events, deliveries=2).failed == {}
    assert [item.id for item in path.collection.trash.list(path.clock.now())] == ["a"]


def test_a_long_backlog_of_one_entity_goes_on_where_the_last_attempt_stopped() -> None:
    """A worker that is cut off after some entries must not walk through them again, or it never ends."""
    path = DataPath()
    for score in range(120):
        path.put("a", {"score": score})
    last = path.events[-1]
    faulty = FaultyStore(path.store, clock=path.clock)
    path.new_workers(faulty)
    faulty.crash_at_write(60 + 6, "after")  # six time marks
    with pytest.raises(SimulatedCrash):
        path.run_capture([last])
    assert len(path.history("a")) == 60
    path.new_workers(path.store)
    with path.store.requests.measure() as spent:
        path.run_capture([last])
    assert len(path.history("a")) == 120
    assert spent["total"] < 60 * 2 + 6 + 40, (
        "a version and an entry each, and marks; the first 60 are found by galloping"
    )
    path.run_fold()
    path.assert_true()


def test_a_change_set_of_a_renamed_model_does_not_fail_its_batch() -> None:
    path = DataPath()
    path.put("a", {"name": "x"})
    path.run_capture()
    push(path, {"version": "1.0", "models": {"Client": CUSTOMER}})
    outcome = path.run_fold()
    assert (outcome.failed, outcome.ignored) == ({}, 1)


HOSTILE_CHANGES: list[object] = [
    {"version": 1, "model": "Customer", "changes": [{}]},
    {"version": 1, "model": "Customer", "changes": ["x"]},
    {"version": 1, "model": "Customer", "changes": 5},
    {"version": 1, "model": "Customer", "changes": [{"id": "a", "head": [1], "row": {}}]},
    {"version": 1, "model": "Customer", "changes": [{"id": "a", "head": ["1", None, None, True, ""], "row": {}}]},
    {"version": 1, "model": "Customer", "changes": [{"id": "a", "head": [True, None, None, True, ""], "row": {}}]},
    {"version": 1, "model": "Customer", "changes": [{"id": "a", "row": []}]},
]


@pytest.mark.parametrize("shape", HOSTILE_CHANGES)
def test_a_change_set_of_another_shape_fails_alone(shape: object) -> None:
    """It raised `KeyError` out of the worker: the whole batch failed with it, time after time."""
    path = DataPath()
    path.put("b", {"name": "x"})
    path.run_capture()
    (good,) = path.change_sets()
    bad = ".worm.changes/customers/01KDVDNA003DGBDWYGH920DN3Z.json"
    path.store.put(bad, json.dumps(shape).encode())
    outcome = path.run_fold([created(bad), good])
    assert [type(error).__name__ for error in outcome.failed.values()] == ["Corrupt"]
    assert list(path.rows()) == ["b"]


def test_one_model_that_cannot_be_swept_does_not_keep_the_others_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    other = {**CUSTOMER, "path": "#org/@zebras/(id:string)"}
    path = DataPath({"version": "1.0", "models": {"Customer": CUSTOMER, "Zebra": other}})
    path.store.put("org/zebras/z/profile.json", json.dumps({"name": "zoe"}).encode())
    path.store.put(".worm.sweep/Zebra.json", b"broken")
    path.workspace.refresh()
    denied = Denied("no", key="org/customers/")

    def refuse(**_: object) -> NoReturn:
        raise denied

    monkeypatch.setattr(path.workspace.table("Customer").collection, "newest_versions", refuse)
    reports = {report.model: report for report in path.sweeper.run(lambda: 1.0)}
    assert (reports["Customer"].error, reports["Customer"].finished) == (denied, False)
    assert (reports["Zebra"].recorded, reports["Zebra"].error) == (1, None)


def test_a_copy_of_an_older_version_does_not_pass_for_the_successor_of_the_head() -> None:
    """Copies keep the metadata of their source, and with it the word about the parent."""
    path = DataPath()
    path.put("a", {"name": "x"})
    path.settle()
    first = path.store.get(path.key("a"))
    assert first is not None
    metadata = write_metadata(actor=None, parent=first.etag, parent_version=first.version_id, written=path.clock.now())
    path.store.put(path.key("a"), b'{"name":"sdk"}', metadata=metadata)
    path.clock.advance(3600)
    path.put("a", {"name": "raw"})
    path.store.put(path.key("a"), b'{"name":"sdk"}', metadata=metadata)
    path.run_capture([created(path.key("a"))])
    path.run_fold()
    assert path.ops("a") == ["create", "update", "update", "update"]
    path.assert_true()


def test_a_raw_delete_of_an_invalid_document_puts_that_one_into_the_trash() -> None:
    path = DataPath(KEEPING)
    path.put("a", {"name": "valid"})
    path.settle()
    path.put("a", b'{"name": 5, "edits": "of a month"}')
    path.run_capture()
    path.remove("a")
    path.settle()
    trash = path.collection.trash
    assert trash.begin_restore("a", path.clock.now()) == b'{"name": 5, "edits": "of a month"}'
