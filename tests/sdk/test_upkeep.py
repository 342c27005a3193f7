"""`db.push`, `verify`, `repair`, `sweep`, `prune`, `flush`; and the warning of a schema that is not the pushed one."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from worm.clock import Ids, VirtualClock
from worm.errors import Invalid, NotFound, SchemaDiffers
from worm.formats import Schema, load_schema
from worm.sdk.database import Worm, connect
from worm.store.base import Listed
from worm.store.faulty_store import FaultyStore
from worm.store.file import FileStore
from worm.store.memory import MemoryStore
from worm.store.open import open_store
from worm.upkeep.purge import Purge

CUSTOMER = {
    "path": "#org/@customers/(id:slug)",
    "fields": {"name": {"type": "string"}},
    "oplog": True,
    "softDelete": True,
    "trashTtlDays": 1,
    "snapshots": {"enabled": True, "every": 1, "maxCount": 2},
    "manifest": {"enabled": True},
}
SCHEMA: dict[str, object] = {"models": {"Customer": CUSTOMER}}


def opened(schema: Schema | None = None) -> tuple[Worm, VirtualClock]:
    clock = VirtualClock()
    return Worm(MemoryStore(versioned=True, clock=clock), schema or load_schema(SCHEMA), clock=clock), clock


def test_a_session_pushes_its_schema_and_adopts() -> None:
    db, _ = opened()
    db.store.put("org/customers/acme/data.json", b'{"name": "Acme"}')
    assert db.plan_push().is_first
    assert [one.rows for one in db.push().adopted] == [1]
    assert db.plan_push().is_nothing
    assert db.model("Customer").count() == 1


def test_verify_sweep_and_repair_are_the_commands() -> None:
    db, _ = opened()
    db.push()
    db.store.put("org/customers/acme/data.json", b'{"name": "Acme"}')
    assert "document-unrecorded" in [found.kind for report in db.verify() for found in report.differences]
    assert [report.recorded for report in db.sweep("Customer")] == [1]
    assert all(report.is_clean for report in db.verify(["Customer"]))
    assert [report.rows for report in db.repair()] == [1]
    with pytest.raises(NotFound, match="no model 'Nothing'"):
        db.verify("Nothing")


def test_flush_records_what_a_session_wrote_with_events() -> None:
    store = MemoryStore(versioned=True)
    db = Worm(store, load_schema(SCHEMA), maintenance="events")
    db.push()
    model = db.model("Customer")
    model.save(model.create({"name": "Acme"}, id="acme"))
    assert Worm(store, db.schema).model("Customer").count() == 0
    assert [report.recorded for report in db.flush()] == [1]
    assert Worm(store, db.schema).model("Customer").count() == 1
    assert len(model.get_history("acme")) == 1


def test_prune_removes_expired_trash_and_superfluous_snapshots_on_any_store() -> None:
    """Both rules were kept only by the deployed function."""
    db, clock = opened()
    db.push()
    model = db.model("Customer")
    model.save(model.create({"name": "A0"}, id="acme"))
    for number in range(1, 5):
        clock.advance(1)
        model.patch("acme", {"name": f"A{number}"})
    model.save(model.create({"name": "Kobe"}, id="kobe"))
    model.delete("kobe")
    clock.advance(2 * 86_400)
    [dry] = db.prune(dry_run=True)
    assert (dry.purged, len(dry.pruned)) == (["kobe"], 3)
    assert len(model.list_snapshots("acme")) == 5
    [done] = db.prune()
    assert (done.purged, done.pruned, done.problems) == (dry.purged, dry.pruned, {})
    assert len(model.list_snapshots("acme")) == 2
    assert db.store.get("org/.trash/customers/kobe/data.json") is None
    assert [(one.purged, one.pruned) for one in db.prune()] == [([], [])]


def test_a_schema_that_is_not_the_pushed_one_is_a_warning_that_says_how_they_differ(tmp_path: Path) -> None:
    url = str(tmp_path / "data")
    other = {"models": {"Customer": CUSTOMER | {"fields": {"name": {"type": "string"}, "age": {"type": "integer"}}}}}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        connect(url, schema=other).push()  # nothing is pushed yet: nothing is said
        connect(url, schema=other)
        connect(url)
    with pytest.warns(SchemaDiffers, match="Customer: fields removed age") as found:
        connect(url, schema=SCHEMA)
    assert found[0].filename == __file__
    assert "db.push()" in str(found[0].message)


def test_the_warning_costs_one_request_and_none_without_a_schema() -> None:
    store = open_store("memory://warning-of-a-schema")
    connect("memory://warning-of-a-schema", schema=SCHEMA).push()
    with store.requests.measure() as spent:
        connect("memory://warning-of-a-schema", schema=SCHEMA)
    assert spent["total"] == 1


def test_a_session_says_what_became_of_an_upload() -> None:
    db, _ = opened()
    db.push()
    db.model("Customer").insert({"id": "acme", "name": "Acme"})
    assert db.why("org/customers/acme/data.json").verdict.value == "recorded"
    assert db.why("org/customers/acme/profile.json").model == "Customer"
    with pytest.raises(Invalid, match="the key of an object"):
        db.why(5)  # type: ignore[arg-type]  # wrong on purpose


def test_prune_removes_answers_that_no_repeated_call_gets_any_more(tmp_path: Path) -> None:
    """A directory has no lifecycle rules: records of the HTTP API would stay for ever."""
    clock = VirtualClock()
    store = FileStore(tmp_path, clock=clock, ids=Ids.seeded(1, clock))
    db = Worm(store, load_schema(SCHEMA), clock=clock)
    db.push()
    store.put(".worm.api/idempotency/old.json", b"{}")
    store.put(".worm.api/tokens/a.json", b"{}")
    clock.advance(3600)
    store.put(".worm.api/idempotency/young.json", b"{}")
    clock.advance(24.5 * 3600)
    [_, dry] = db.prune(dry_run=True)
    assert (dry.model, dry.purged) == (".worm.api", [".worm.api/idempotency/old.json"])
    assert len(db.prune("Customer")) == 1
    assert db.prune()[-1] == dry
    assert [one.key for one in store.list(".worm.api/")] == [
        ".worm.api/idempotency/young.json",
        ".worm.api/tokens/a.json",
    ]
    assert [one.model for one in db.prune()] == ["Customer"]


def test_an_answer_that_a_new_call_takes_over_stays() -> None:
    """The same key after a day is a new call, which must not happen twice."""
    db, clock = opened()
    db.push()
    key = ".worm.api/idempotency/old.json"
    db.store.put(key, b"{}")
    clock.advance(26 * 3600)
    before = list(db.store.list(key))
    db.store.put(key, b'{"new": true}')

    class ListedBefore(FaultyStore):
        def list(self, prefix: str, *, start_after: str | None = None, limit: int | None = None) -> Iterator[Listed]:
            return iter(before)

    assert Purge(Worm(ListedBefore(db.store), db.schema, clock=clock)).purge_answers().purged == []
    assert db.store.get(key) is not None
