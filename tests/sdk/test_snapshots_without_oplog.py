"""Snapshots are independent of the oplog: on demand, inline, by capture and by the sweep."""

from __future__ import annotations

import pytest

from tests.harness import DataPath, schema_of
from worm.clock import VirtualClock
from worm.errors import NotFound
from worm.formats import load_schema
from worm.sdk.database import DocumentDict, Model, Worm
from worm.store.memory import MemoryStore

MODEL = {"path": "#org/@customers/(id:slug)", "manifest": {"enabled": True}}


def opened(clock: VirtualClock, *, table: bool = True, **snapshots: object) -> tuple[Worm, Model[DocumentDict]]:
    rules = {"snapshots": {"enabled": True, **snapshots}} if snapshots else {}
    definition = load_schema({"models": {"Customer": {**MODEL, "manifest": {"enabled": table}, **rules}}})
    db = Worm(MemoryStore(versioned=True, clock=clock), definition, clock=clock)
    db.push()
    return db, db.model("Customer")


def names(model: Model[DocumentDict]) -> list[object]:
    return [one["ts"] for one in model.list_snapshots("acme")]


def test_a_snapshot_on_demand_can_be_listed_and_restored() -> None:
    clock = VirtualClock()
    _, model = opened(clock)
    with pytest.raises(NotFound):
        model.snapshot("acme")
    with pytest.raises(NotFound):
        model.list_snapshots("acme")
    model.insert({"id": "acme", "name": "Acme"})
    assert names(model) == []
    taken = model.snapshot("acme")
    assert (taken["ts"], taken["seq"]) == ("2026-01-01T00:00:00Z", None)
    assert model.snapshot("acme") == taken
    model.patch("acme", {"name": "Same second"})
    assert model.snapshot("acme")["ts"] == "2026-01-01T00:00:00.001Z"
    assert model.restore_snapshot("acme", "2026-01-01T00:00:00Z")["name"] == "Acme"
    assert model.get("acme")["name"] == "Acme"


@pytest.mark.parametrize("table", [True, False])
def test_every_version_gets_one_inline_and_prune_keeps_the_newest_ones(table: bool) -> None:
    clock = VirtualClock()
    db, model = opened(clock, table=table, maxCount=2)
    model.insert({"id": "acme", "name": "0"})
    for number in range(1, 4):
        clock.advance(1)
        model.patch("acme", {"name": str(number)})
    assert names(model) == [f"2026-01-01T00:00:0{second}Z" for second in range(4)]
    assert [len(one.pruned) for one in db.prune()] == [2]
    assert names(model) == ["2026-01-01T00:00:02Z", "2026-01-01T00:00:03Z"]


def test_the_sweep_takes_those_of_raw_uploads_that_no_event_reported() -> None:
    db, model = opened(VirtualClock(), maxCount=9)
    db.store.put("org/customers/acme/data.json", b'{"name": "Raw"}')
    db.store.put("org/customers/bad/data.json", b"not json")
    db.sweep()
    assert names(model) == ["2026-01-01T00:00:00Z"]
    assert [one.key for one in db.store.list(".snapshots/")] == [".snapshots/customers/acme/2026-01-01T00:00:00Z.json"]


@pytest.mark.parametrize("table", [True, False])
def test_capture_takes_those_of_raw_uploads_once(table: bool) -> None:
    path = DataPath(schema=schema_of(oplog=False, snapshots={"enabled": True}, manifest={"enabled": table}, indexes={}))
    path.put("acme", {"name": "Acme"})
    bodies = list(path.events)
    outcome = path.run_capture(bodies)
    again = path.run_capture(bodies, deliveries=2)
    assert (outcome.failed, again.failed) == ({}, {})
    assert len(path.collection.snapshots.list("acme")) == 1
    assert bool(path.change_sets()) is table
