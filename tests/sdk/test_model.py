from __future__ import annotations

from pathlib import Path

import pytest

import worm
from tests.harness import CUSTOMER, DataPath, created, schema_of
from worm.clock import Ids, VirtualClock
from worm.errors import Conflict, Invalid, NotFound
from worm.formats import load_schema
from worm.formats.strict_json import JsonValue
from worm.sdk.database import Worm, push
from worm.store.memory import MemoryStore
from worm.tables.verify import verify_collection


def session(store: MemoryStore | None = None, customer: dict[str, object] | None = None) -> Worm:
    clock = VirtualClock()
    ids = Ids.seeded(1, clock)
    schema = load_schema({"version": "1.0", "models": {"Customer": CUSTOMER | (customer or {})}})
    return Worm(store or MemoryStore(clock=clock, ids=ids), schema, actor="ann", probe=False, clock=clock, ids=ids)


def test_a_saved_document_is_read_back_listed_and_has_a_history() -> None:
    customers = session().model("Customer")
    acme = customers.create({"name": "Acme", "status": "active"}, id="acme")
    assert acme == {
        "name": "Acme",
        "status": "active",
        "id": "acme",
        "createdAt": "2026-01-01T00:00:00.000Z",
        "updatedAt": "2026-01-01T00:00:00.000Z",
    }
    assert customers.find_by_id("acme") is None
    customers.save(acme)
    assert customers.find_by_id("acme") == acme
    assert customers.exists("acme")
    assert not customers.exists("other")
    customers.save(acme | {"status": "inactive"})

    assert [(entry.op, entry.actor) for entry in customers.get_history("acme")] == [
        ("create", "ann"),
        ("update", "ann"),
    ]
    assert [row["id"] for row in customers.find_all(filter={"status": "inactive"})] == ["acme"]
    assert customers.count() == 1
    assert customers.count({"status": "active"}) == 0


def test_what_the_sdk_keeps_inline_equals_a_rebuild(tmp_path: Path) -> None:
    db = worm.connect(str(tmp_path / "data"), schema=schema_of(), actor="ann", maintenance="inline")
    customers = db.model("Customer")
    for number in range(5):
        customers.save(customers.create({"name": f"n{number}", "status": "active"}, id=f"c{number}"))
    changed = customers.find_by_id("c3")
    assert changed is not None
    customers.save(changed | {"status": "inactive"})
    report = verify_collection(customers.table.collection)
    assert report.differences == []
    assert report.entries == 6


def test_inline_maintenance_and_the_workers_give_the_same_bytes() -> None:
    inline, path = session(MemoryStore(versioned=True, clock=VirtualClock(), ids=Ids.seeded(9))), DataPath()
    by_events = Worm(
        path.store,
        load_schema(schema_of()),
        actor="ann",
        maintenance="events",
        probe=False,
        clock=path.clock,
        ids=path.ids,
    )
    for db in (inline, by_events):
        customers = db.model("Customer")
        document = customers.create({"name": "Acme", "status": "active"}, id="a")
        customers.save(document)
        customers.save(document | {"status": "inactive"})
    path.run_capture([created(path.key("a"))])
    path.run_fold()
    assert path.ops("a") == ["create", "update"]
    for key in ("org/customers/.worm.manifest.json", "org/customers/.worm.index/status.json"):
        one, other = inline.store.get(key), path.store.get(key)
        assert one is not None
        assert other is not None
        assert one.body == other.body
    path.assert_true()


def test_a_document_that_changed_since_it_was_read_is_a_conflict_with_both_etags() -> None:
    store = MemoryStore()
    mine, theirs = session(store).model("Customer"), session(store).model("Customer")
    mine.save(mine.create({"name": "Acme"}, id="a"))
    seen = theirs.find_by_id("a")
    assert seen is not None
    mine.save(seen | {"name": "mine"})
    with pytest.raises(Conflict, match="changed since") as conflict:
        theirs.save(seen | {"name": "theirs"})
    stored = store.get("org/customers/a/profile.json")
    assert stored is not None
    assert conflict.value.found == stored.etag
    assert conflict.value.expected not in (None, stored.etag)

    again = theirs.find_by_id("a")
    assert again is not None
    theirs.save(again | {"name": "theirs"})


def test_creating_an_id_that_exists_is_a_conflict() -> None:
    store = MemoryStore()
    session(store).model("Customer").save({"id": "a", "name": "one"})
    with pytest.raises(Conflict, match="exists already"):
        session(store).model("Customer").save({"id": "a", "name": "two"})


def test_access_modes_are_enforced_with_their_texts() -> None:
    with pytest.raises(Invalid, match=r"^Customer is read-only$"):
        session(customer={"mode": "readonly"}).model("Customer").save({"id": "a"})
    append = session(customer={"mode": "append"}).model("Customer")
    saved = append.save({"id": "a", "name": "one"})
    with pytest.raises(Invalid, match="append-only"):
        append.save(saved | {"name": "two"})
    with pytest.raises(Conflict, match="exists already"):
        append.save({"id": "a", "name": "two"})


def test_a_document_that_breaks_the_schema_is_refused_before_any_request() -> None:
    db = session()
    with db.store.requests.measure() as spent, pytest.raises(Invalid, match="name"):
        db.model("Customer").save({"id": "a", "name": 5})
    assert spent["total"] == 0
    with pytest.raises(Invalid, match="no id"):
        db.model("Customer").save({"name": "x"})
    with pytest.raises(Invalid):
        db.model("Customer").create({"name": "x"}, id="x\x7f")


def test_a_session_sees_its_own_writes_before_the_workers_do() -> None:
    path = DataPath()
    db = Worm(path.store, load_schema(schema_of()), maintenance="events", probe=False, clock=path.clock, ids=path.ids)
    customers = db.model("Customer")
    path.put("raw", {"name": "Raw", "status": "active"})
    path.settle()
    customers.save(customers.create({"name": "Mine", "status": "active"}, id="mine"))
    assert [row["id"] for row in customers.find_all(filter={"status": "active"})] == ["mine", "raw"]
    other = Worm(path.store, load_schema(schema_of()), maintenance="events", probe=False)
    assert [row["id"] for row in other.model("Customer").find_all()] == ["raw"]


def test_find_all_sorts_selects_pages_and_answers_alike_with_and_without_a_manifest() -> None:
    documents: list[dict[str, JsonValue]] = [
        {"id": "a", "name": "Cee", "status": "active", "score": 2},
        {"id": "b", "name": "Bee", "status": "active"},
        {"id": "c", "name": "Ay", "status": "inactive", "score": 1.0},
    ]
    answers = []
    for manifest in (True, False):
        kept: dict[str, object] = {} if manifest else {"manifest": {"enabled": False}, "indexes": {}}
        customers = session(customer=kept).model("Customer")
        for document in documents:
            customers.save(document)
        answers.append(
            [
                customers.find_all(sort={"field": "name"}, select=["name"]),
                customers.find_all(sort=[{"field": "score", "order": "desc"}], select=["score"]),
                customers.find_all(filter={"score": 1}, select=["name"]),
                customers.find_all(sort={"field": "name"}, limit=1, offset=1, select=["name"]),
                customers.find_all(filter={"status": None}, select=["name"]),
            ]
        )
    assert answers[0] == answers[1]
    assert answers[0] == [
        [{"id": "c", "name": "Ay"}, {"id": "b", "name": "Bee"}, {"id": "a", "name": "Cee"}],
        [{"id": "a", "score": 2}, {"id": "c", "score": 1.0}, {"id": "b"}],
        [{"id": "c", "name": "Ay"}],
        [{"id": "b", "name": "Bee"}],
        [],
    ]


def test_a_repeated_query_is_one_conditional_get() -> None:
    customers = session().model("Customer")
    customers.save({"id": "a", "name": "Acme"})
    customers.find_all()
    with customers.table.collection.store.requests.measure() as spent:
        customers.find_all(filter={"name": "Acme"})
    assert spent == {"GET": 1, "total": 1}


def test_a_query_with_a_field_outside_the_manifest_reads_the_documents() -> None:
    customers = session(customer={"manifest": {"enabled": True, "fields": ["name"]}}).model("Customer")
    customers.save({"id": "a", "name": "Acme", "score": 7})
    assert customers.find_all(filter={"score": 7}, select=["score"]) == [{"id": "a", "score": 7}]


def test_operators_are_understood_and_unknown_ones_are_refused() -> None:
    customers = session().model("Customer")
    customers.save({"id": "a", "name": "Acme", "score": 7})
    assert customers.find_all(filter={"score": {"$gt": 5}}, select=["score"]) == [{"id": "a", "score": 7}]
    with pytest.raises(Invalid, match=r"score.\$near: unknown operator"):
        customers.find_all(filter={"score": {"$near": 5}})


def test_an_unknown_model_names_the_known_ones_and_a_missing_history_says_so() -> None:
    with pytest.raises(NotFound, match="Customer"):
        session().model("Costumer")
    with pytest.raises(Invalid, match="must be the name of a model or its class, not None"):
        session().model(None)  # type: ignore[call-overload]
    with pytest.raises(NotFound, match="no history"):
        session().model("Customer").get_history("nobody")


def test_connect_reads_the_pushed_schema(tmp_path: Path) -> None:
    url = str(tmp_path / "bucket")
    with pytest.raises(NotFound, match=r"push it with db\.push\(\)"):
        worm.connect(url)
    first = worm.connect(url, schema=schema_of())
    push(first.store, first.schema)
    again = worm.connect(url)
    assert again.schema == first.schema
    assert first.store.get("org/customers/.worm.manifest.json") is not None
    with pytest.raises(Invalid, match="maintenance"):
        worm.connect(url, maintenance="sometimes")  # type: ignore[arg-type]


def test_a_singleton_has_one_document_without_an_id_in_its_key() -> None:
    clock = VirtualClock()
    schema = load_schema(
        {
            "version": "1.0",
            "models": {
                "OrgSettings": {"path": "#org/@settings", "oplog": True, "fields": {"plan": {"type": "string"}}}
            },
        }
    )
    db = Worm(MemoryStore(clock=clock), schema, probe=False, clock=clock)
    settings = db.model("OrgSettings")
    settings.save(settings.create({"plan": "free"}))
    found = settings.find_by_id()
    assert found is not None
    assert found["plan"] == "free"
    settings.save(found | {"plan": "pro"})
    assert [entry.op for entry in settings.get_history()] == ["create", "update"]
    assert db.store.get("org/settings/data.json") is not None


def test_a_raw_document_without_an_id_gets_it_on_reading_and_its_history_stays_exact() -> None:
    """The id that reading adds is not part of what was stored, so the next diff must show it as new."""
    path = DataPath()
    path.put("raw", {"name": "Raw"})
    path.settle()
    customers = Worm(path.store, load_schema(schema_of()), probe=False, clock=path.clock, ids=path.ids).model(
        "Customer"
    )
    document = customers.find_by_id("raw")
    assert document == {"id": "raw", "name": "Raw"}
    customers.save(document | {"name": "Read"})
    update = customers.get_history("raw")[1]
    assert update.diff is not None
    assert update.diff["id"] == [None, "raw"]
    path.assert_true()
