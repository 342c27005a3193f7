"""`db.restore(at=…)`: models back to a moment, by new saves with history, one document's error failing no other."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.examples import examples, some
from tests.sdk.bank_room import SpaceBench
from tests.sdk.sessions import KINDS, Bench, spent
from tests.sdk.unique_room import FIELDS, Room
from worm.errors import Conflict, Corrupt, Invalid, UniqueViolation
from worm.formats import load_schema
from worm.sdk.database import Model, Worm
from worm.spaces.bridge.commits import KnownDocument
from worm.store.base import Object
from worm.store.faulty_store import FaultyStore, SimulatedCrash
from worm.store.memory import MemoryStore

IDS = [f"d{number}" for number in range(8)]


def contents(customers: Model) -> dict[str, dict[str, Any]]:
    """All documents without the times of their last change, from the documents and from the table, which agree."""
    rows = {
        str(row["id"]): {name: row[name] for name in row if name != "updatedAt"} for row in customers.find_all(limit=99)
    }
    read = {one: found for one in IDS if (found := customers.find_by_id(one)) is not None}
    assert {one: {name: of[name] for name in of if name != "updatedAt"} for one, of in read.items()} == rows
    return rows


def change(customers: Model, random: Random) -> None:
    one = random.choice(IDS)
    if random.random() < 0.3:
        customers.delete(one)
    else:
        customers.upsert({"id": one, "name": random.choice("ab"), "status": random.choice("xy")})


@pytest.mark.parametrize("kind", KINDS)
def test_a_restore_brings_back_what_was_there(kind: str, tmp_path: Path) -> None:
    for seed in range(examples(8)):
        bench, random = Bench(kind, tmp_path / str(seed)), Random(seed)
        customers, then = bench.customers(), dict[datetime, dict[str, dict[str, Any]]]()
        customers.table.complete()
        for _ in range(random.choice([2, 10, 25])):
            change(customers, random)
            then[bench.clock.now()] = contents(customers)
            bench.tick(random.choice([1, 3]))
        db = bench.session()
        for moment in [min(then) - timedelta(seconds=1), *random.sample(sorted(then), min(3, len(then)))]:
            wanted, now = then.get(moment, {}), contents(db.model("Customer"))
            told = db.restore(at=moment, dry_run=True)
            assert contents(db.model("Customer")) == now
            assert {one.id for one in told.changes} == {one for one in IDS if wanted.get(one) != now.get(one)}
            done = db.restore(at=moment, reason="mistake")
            assert (done.failed, done.changes) == ((), told.changes)
            assert contents(db.model("Customer")) == wanted
            assert db.restore(at=moment).changes == ()
            bench.tick()
        bench.assert_clean()


def test_a_restore_is_a_new_entry_that_says_where_it_came_from(tmp_path: Path) -> None:
    bench = Bench("memory", tmp_path)
    db = bench.session()
    customers = db.model("Customer")
    customers.insert({"id": "kept", "name": "Kept"})
    customers.insert({"id": "gone", "name": "Gone"})
    customers.insert({"id": "same", "name": "Same"})
    moment = bench.clock.now()
    bench.tick()
    customers.patch("kept", {"name": "Changed", "score": 1})
    customers.delete("gone")
    customers.insert({"id": "new", "name": "New"})
    bench.tick()
    told = db.restore(at=moment, models="Customer", dry_run=True)
    assert [(one.id, one.what, one.fields) for one in told.changes] == [
        ("gone", "created", ()),
        ("kept", "changed", ("name", "score")),
        ("new", "deleted", ()),
    ]
    assert repr(told) == "<RestoreReport at 2026-01-01T00:00:00Z, dry run: 1 changed, 1 created, 1 deleted, 0 failed>"
    db.restore(at=moment, actor="eve", reason="mistake", metadata={"ticket": 7})
    for one, ops in {"kept": ["create", "update", "update"], "gone": ["create", "delete", "restore"]}.items():
        entries = customers.get_history(one)
        assert [entry.op for entry in entries] == ops
        assert (entries[-1].actor, entries[-1].reason) == ("eve", "mistake")
        assert entries[-1].metadata["restoredFrom"] == "2026-01-01T00:00:00Z"
        assert entries[-1].metadata["ticket"] == 7
    removed = customers.get_history("new")[-1]
    assert (removed.op, removed.actor, removed.metadata["restoredFrom"]) == ("delete", "eve", "2026-01-01T00:00:00Z")
    assert [one["id"] for one in customers.list_trashed()] == ["new"]
    assert len(customers.get_history("same")) == 1
    with pytest.raises(Invalid, match="reserves"):
        customers.patch("same", {"name": "x"}, metadata={"restoredFrom": 1})


def test_unique_values_that_passed_on_come_back(tmp_path: Path) -> None:
    room = Room("memory", tmp_path)
    db = room.session()
    customers = db.model("Customer")
    for number in range(4):
        customers.insert({"id": f"c{number}", "email": f"{number}@x"})
    moment = room.clock.now()
    room.tick()
    customers.patch("c0", {"email": "free@x"})
    for number in (1, 2, 3):  # each takes the value of the one before
        customers.patch(f"c{number}", {"email": f"{number - 1}@x"})
    customers.insert({"id": "late", "email": "3@x"})
    room.tick()
    done = db.restore(at=moment)
    assert done.failed == ()
    assert {row["id"]: row["email"] for row in customers.find_all()} == {f"c{one}": f"{one}@x" for one in range(4)}
    assert room.claims() == {f"{one}@x": f"c{one}" for one in range(4)}
    room.assert_clean()


def test_a_swap_of_unique_values_is_reported_outside_of_a_space(tmp_path: Path) -> None:
    room = Room("memory", tmp_path)
    db = room.session()
    customers = db.model("Customer")
    customers.insert_many([{"id": "a", "email": "a@x"}, {"id": "b", "email": "b@x"}, {"id": "c", "email": "c@x"}])
    moment = room.clock.now()
    room.tick()
    customers.patch("a", {"email": "t@x"})
    customers.patch("b", {"email": "a@x"})
    customers.patch("a", {"email": "b@x"})
    customers.patch("c", {"email": "new@x"})
    done = db.restore(at=moment)
    assert [(one.id, type(one.error)) for one in done.changes] == [
        ("a", UniqueViolation),
        ("b", UniqueViolation),
        ("c", type(None)),
    ]
    assert {row["id"]: row["email"] for row in customers.find_all()} == {"a": "b@x", "b": "a@x", "c": "c@x"}
    room.assert_clean()


def test_what_the_schema_of_today_refuses_is_reported_and_the_rest_is_restored(tmp_path: Path) -> None:
    bench = Bench("memory", tmp_path)
    customers = bench.customers()
    customers.insert({"id": "odd", "name": "x", "status": "old"})
    customers.insert({"id": "good", "name": "x", "status": "new"})
    moment = bench.clock.now()
    bench.tick()
    customers.patch("odd", {"status": "new", "name": "y"})
    customers.patch("good", {"name": "y"})
    fields = {"name": {"type": "string"}, "status": {"type": "string", "enum": ["new"]}}
    bench.schema = load_schema({"version": "1.0", "models": {"Customer": {**_definition(bench), "fields": fields}}})
    done = bench.session().restore(at=moment)
    assert [(one.id, type(one.error)) for one in done.changes] == [("good", type(None)), ("odd", Invalid)]
    assert [bench.customers().get(one)["name"] for one in ("good", "odd")] == ["x", "y"]


def _definition(bench: Bench) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(bench.schema.to_json())["models"]["Customer"]
    return found


def test_a_damaged_history_is_an_error_of_its_document(tmp_path: Path) -> None:
    bench = Bench("memory", tmp_path)
    db = bench.session()
    customers = db.model("Customer")
    customers.insert_many([{"id": "a", "name": "1"}, {"id": "b", "name": "1"}])
    moment = bench.clock.now()
    bench.tick()
    customers.patch("a", {"name": "2"})
    customers.patch("b", {"name": "2"})
    bench.store.put(".oplog/customers/a/0001.json", b"damaged")
    for dry_run in (True, False):
        done = db.restore(at=moment, dry_run=dry_run)
        assert [(one.id, type(one.error)) for one in done.changes] == [("a", Corrupt), ("b", type(None))]
    assert {row["id"]: row["name"] for row in customers.find_all()} == {"a": "2", "b": "1"}


def test_what_a_session_has_not_recorded_yet_is_restored_too(tmp_path: Path) -> None:
    bench = Bench("memory-versioned", tmp_path)
    bench.customers().insert({"id": "a", "name": "1"})
    moment = bench.clock.now()
    bench.tick()
    db = bench.session(maintenance="events")
    db.model("Customer").patch("a", {"name": "2"})
    assert [one.id for one in db.restore(at=moment).changes] == ["a"]
    assert bench.customers().get("a")["name"] == "1"


def test_a_concurrent_save_is_a_conflict_of_that_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench("memory", tmp_path)
    db, other = bench.session(), bench.customers()
    customers = db.model("Customer")
    customers.insert_many([{"id": "a", "name": "1"}, {"id": "b", "name": "1"}])
    moment = bench.clock.now()
    bench.tick()
    customers.patch("a", {"name": "2"})
    customers.patch("b", {"name": "2"})
    usual, looks = customers._stored_now, list[str]()

    def meanwhile(entity_id: str) -> Object | None:
        found = usual(entity_id)
        looks.append(entity_id)
        if looks.count("a") == 2 and entity_id == "a":
            other.patch("a", {"name": "3"})
        return found

    monkeypatch.setattr(customers, "_stored_now", meanwhile)
    done = db.restore(at=moment)
    assert [(one.id, type(one.error)) for one in done.changes] == [("a", Conflict), ("b", type(None))]
    assert {row["id"]: row["name"] for row in other.find_all()} == {"a": "3", "b": "1"}
    assert [one.ok for one in db.restore(at=moment).changes] == [True]
    assert other.get("a")["name"] == "1"


def test_a_restore_that_was_interrupted_goes_on(tmp_path: Path) -> None:
    bench = Bench("memory-versioned", tmp_path)
    customers = bench.customers()
    customers.insert_many([{"id": one, "name": "1"} for one in IDS])
    moment = bench.clock.now()
    bench.tick()
    for one in IDS[:6]:
        customers.patch(one, {"name": "2"})
    customers.delete(IDS[6])
    for crash in some(range(1, 30)):
        forked = bench.fork()
        faulty = FaultyStore(forked.store, clock=forked.clock, ids=forked.ids)
        faulty.crash_at_write(crash, "after")
        try:
            forked.session(faulty).restore(at=moment)
        except SimulatedCrash:
            forked.repair()
        db = forked.session()
        assert db.restore(at=moment).failed == ()
        assert {row["id"]: row["name"] for row in db.model("Customer").find_all()} == dict.fromkeys(IDS, "1")
        forked.assert_clean()


@pytest.mark.parametrize("mode", ["readonly", "append"])
def test_modes_that_forbid_it_refuse_a_restore_and_allow_the_dry_run(mode: str, tmp_path: Path) -> None:
    bench = Bench("memory", tmp_path, mode=mode)
    moment = bench.clock.now()
    if mode == "append":
        bench.customers().insert({"id": "a", "name": "1"})
    assert bench.session().restore(at=moment - timedelta(days=1), dry_run=True).failed == ()
    with pytest.raises(Invalid, match=mode.replace("only", ".only") if mode == "readonly" else "append-only"):
        bench.session().restore(at=moment)


def test_a_database_with_a_model_without_past_is_refused_as_a_whole() -> None:
    models = {
        "Note": {"path": "@notes/(id:string)", "fields": FIELDS},
        "Kept": {"path": "@kept/(id:string)", "fields": FIELDS, "oplog": True},
    }
    db = Worm(MemoryStore(), load_schema({"version": "1.0", "models": models}), probe=False)
    with pytest.raises(Invalid, match="Note keeps no past") as refused:
        db.restore(at="2026-01-01")
    assert "models=['Kept']" in str(refused.value.hint)
    with pytest.raises(Invalid, match="Note keeps no past"):
        db.restore(at="2026-01-01", models=["Note"])
    assert db.restore(at="2026-01-01", models=["Kept"]).changes == ()
    with pytest.raises(Invalid, match="counts its own seqs"):
        db.restore(at=3, models=["Kept"])


def test_more_changes_than_allowed_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    bench = Bench("memory", tmp_path)
    db = bench.session()
    customers = db.model("Customer")
    moment = bench.clock.now()
    bench.tick()
    customers.insert_many([{"id": one, "name": "1"} for one in IDS])
    with pytest.raises(Invalid, match="8 documents of Customer changed after") as refused:
        db.restore(at=moment, max_changed=7)
    assert refused.value.path == "max_changed"
    assert customers.count() == 8
    seen: list[tuple[int, int | None]] = []
    db.restore(at=moment, max_changed=None, progress=lambda done, total: seen.append((done, total)))
    assert (customers.count(), seen[-1]) == (0, (8, 8))


def test_a_restore_costs_what_changed_not_what_is_there(tmp_path: Path) -> None:
    bench = Bench("memory", tmp_path)
    customers = bench.customers()
    customers.insert_many([{"id": f"e{number}", "name": "1"} for number in range(300)])
    moment = bench.clock.now()
    bench.tick()
    customers.patch("e1", {"name": "2"})
    customers.patch("e2", {"name": "2"})
    db = bench.session()
    assert spent(bench.store, lambda: db.restore(at=moment, dry_run=True)) <= 8
    assert spent(bench.store, lambda: db.restore(at=moment)) <= 30


# In a space


def accounts(db: Worm) -> dict[str, tuple[object, object]]:
    return {str(row["id"]): (row["email"], row["balance"]) for row in db.model("Account").find_all()}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("by", ["commit", "time"])
def test_models_of_a_space_are_restored_by_transactions(kind: str, by: str, tmp_path: Path) -> None:
    bench = SpaceBench(kind, tmp_path)
    db = bench.session()
    with db.transaction() as tx:
        tx.save("Account", {"id": "a", "email": "a@x", "balance": 1})
        tx.save("Account", {"id": "b", "email": "b@x", "balance": 2})
        tx.save("Account", {"id": "c", "email": "c@x", "balance": 3})
    first, moment, then = tx.seq, bench.clock.now(), accounts(db)
    bench.clock.advance(2)
    with db.transaction() as tx:  # values are swapped
        tx.save("Account", {"id": "a", "email": "b@x", "balance": 1})
        tx.save("Account", {"id": "b", "email": "a@x", "balance": 5})
        tx.save("Transfer", {"amount": 3, "account": "a"}, id="t")
        tx.delete("Account", "c")
    bench.clock.advance(2)
    at = first if by == "commit" else moment
    assert at is not None
    names = ["Account", "Transfer"]
    told = db.restore(at=at, models=names, dry_run=True)
    assert [(one.model, one.id, one.what) for one in told.changes] == [
        ("Account", "a", "changed"),
        ("Account", "b", "changed"),
        ("Account", "c", "created"),
        ("Transfer", "t", "deleted"),
    ]
    done = db.restore(at=at, models=names, actor="eve")
    assert (done.failed, done.changes) == ((), told.changes)
    assert accounts(db) == then == accounts(bench.session())
    assert db.model("Transfer").count() == 0
    assert db.restore(at=at, models=names).changes == ()
    entry = db.model("Account").get_history("a")[-1]
    assert (entry.actor, entry.metadata["restoredFrom"]) == (
        "eve",
        first if by == "commit" else "2026-01-01T00:00:00.000Z",
    )
    assert db.space("main").seq == 4  # one commit for each model


def test_a_commit_of_another_in_between_makes_a_restore_go_on_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = SpaceBench("memory-versioned", tmp_path)
    db, other = bench.session(), bench.session()
    for one in "ab":
        db.model("Account").insert({"id": one, "email": f"{one}@x", "balance": 1})
    at = db.space("main").seq
    for one in "ab":
        db.model("Account").patch(one, {"balance": 2})
    logged = db.model("Account").logged
    assert logged is not None
    usual, looks = logged.known, list[str]()

    def meanwhile(entity_id: str, at: int | None = None) -> KnownDocument:
        found = usual(entity_id, at)
        looks.append(entity_id)
        if len(looks) == 1:
            other.model("Account").patch("a", {"balance": 3})
        return found

    monkeypatch.setattr(logged, "known", meanwhile)
    assert db.restore(at=at, models=["Account"]).failed == ()
    assert accounts(db) == {"a": ("a@x", 1), "b": ("b@x", 1)}


def test_a_number_is_a_commit_of_one_space(tmp_path: Path) -> None:
    db = SpaceBench("memory", tmp_path).session()
    db.model("Account").insert({"id": "a", "email": "a@x", "balance": 1})
    with pytest.raises(Invalid, match="a commit of one space"):
        db.restore(at=1, models=["Account", "Note"])
