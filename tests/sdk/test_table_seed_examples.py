"""The documented examples of tables, in Python names: manifests, indexes, uniqueness, aggregates, filters, explain."""

from __future__ import annotations

import json
from typing import cast

import pytest

from worm.clock import Ids, VirtualClock
from worm.collections.layout import SCHEMA_KEY
from worm.errors import WormError
from worm.formats import load_schema
from worm.formats.strict_json import JsonValue
from worm.sdk.database import Model, Worm
from worm.store.memory import MemoryStore

SCHEMA = {
    "version": "1.0",
    "models": {
        "Customer": {
            "path": "#org/@customers/(id:string)",
            "file": "profile.json",
            "oplog": True,
            "fields": {
                "name": {"type": "string"},
                "email": {"type": "string"},
                "status": {"type": "string"},
                "tags": {"type": "array", "items": "string"},
                "score": {"type": "number"},
                "notes": {"type": "string"},
            },
            "manifest": {
                "enabled": True,
                "fields": ["name", "email", "status", "tags"],
                "autoUpdate": True,
                "partitionThreshold": 10000,
                "maxPartitions": 16,
            },
            "indexes": {
                "byStatus": {"field": "status"},
                "byEmail": {"field": "email", "unique": True},
                "byTags": {"field": "tags", "type": "multiValue"},
            },
        },
        "Invoice": {
            "path": "#org/@invoices/(id:string)",
            "fields": {
                "status": {"type": "string"},
                "amount": {"type": "number"},
                "currency": {"type": "string"},
            },
            "manifest": {"enabled": True},
        },
    },
}

ACME: dict[str, JsonValue] = {
    "name": "Acme Corp",
    "email": "hi@acme.com",
    "status": "active",
    "tags": ["vip", "enterprise"],
    "score": 90,
}
WIDGETS: dict[str, JsonValue] = {
    "name": "Widgets Inc",
    "email": "hello@widgets.com",
    "status": "inactive",
    "tags": ["enterprise"],
    "score": 10,
}
OTHERS: list[dict[str, JsonValue]] = [
    {"name": "Startup", "email": "s@up.com", "status": "active", "tags": ["startup"], "score": 85},
    {"name": "Gone", "email": "g@one.com", "status": "churned", "tags": [], "score": 1},
]


@pytest.fixture
def db() -> Worm:
    clock = VirtualClock()
    ids = Ids.seeded(3, clock)
    store = MemoryStore(versioned=True, clock=clock, ids=ids)
    store.put(SCHEMA_KEY, load_schema(SCHEMA).to_json())
    return Worm(store, load_schema(SCHEMA), probe=False, clock=clock, ids=ids)


@pytest.fixture
def customers(db: Worm) -> Model:
    model = db.model("Customer")
    for number, data in enumerate([ACME, WIDGETS, *OTHERS]):
        model.save(model.create(data, id=f"id-{number + 1}"))
    return model


@pytest.fixture
def invoices(db: Worm) -> Model:
    model = db.model("Invoice")
    rows: list[tuple[str, int, str]] = [
        ("paid", 50, "USD"),
        ("paid", 2950, "USD"),
        ("draft", 800, "USD"),
        ("paid", 25000, "EUR"),
    ]
    for number, (status, amount, currency) in enumerate(rows):
        model.save(model.create({"status": status, "amount": amount, "currency": currency}, id=f"i{number}"))
    return model


def stored(db: Worm, key: str) -> dict[str, JsonValue]:
    found = db.store.get(key)
    assert found is not None
    return cast("dict[str, JsonValue]", json.loads(found.body))


def names(rows: object) -> list[str]:
    return [row["name"] for row in cast("list[dict[str, str]]", rows)]


def test_the_shape_of_a_manifest(db: Worm, customers: Model) -> None:
    manifest = stored(db, "org/customers/.worm.manifest.json")
    assert (manifest["version"], manifest["model"], manifest["count"]) == (1, "Customer", 4)
    assert str(manifest["checksum"]).startswith("sha256:")
    row = cast("dict[str, dict[str, JsonValue]]", manifest["entities"])["id-1"]
    assert set(row) == {"name", "email", "status", "tags", "createdAt", "updatedAt"}
    assert (row["name"], row["tags"]) == ("Acme Corp", ["vip", "enterprise"])


def test_a_query_on_the_manifest_is_one_request(customers: Model) -> None:
    with customers.table.collection.store.requests.measure() as spent:
        rows = customers.find_all(
            filter={"status": "active"}, sort={"field": "name", "order": "asc"}, select=["name", "email"], limit=20
        )
    assert spent["total"] == 1
    assert rows == [
        {"id": "id-1", "name": "Acme Corp", "email": "hi@acme.com"},
        {"id": "id-3", "name": "Startup", "email": "s@up.com"},
    ]


def test_status_rebuild_and_invalidation(db: Worm, customers: Model) -> None:
    before = db.store.get("org/customers/.worm.manifest.json")
    assert before is not None
    customers.invalidate_manifest()
    status = customers.build_manifest()
    assert (status.exists, status.fresh, status.count, status.partitioned) == (True, True, 4, False)
    assert (status.size_bytes, status.fields[:4]) == (len(before.body), ("name", "email", "status", "tags"))


def test_the_shapes_of_the_three_kinds_of_index(db: Worm, customers: Model) -> None:
    by_status = stored(db, "org/customers/.worm.index/status.json")
    shape = {name: by_status[name] for name in ("version", "model", "field", "type", "unique", "entries")}
    assert shape == {
        "version": 1,
        "model": "Customer",
        "field": "status",
        "type": "standard",
        "unique": False,
        "entries": {"active": ["id-1", "id-3"], "inactive": ["id-2"], "churned": ["id-4"]},
    }
    by_email = stored(db, "org/customers/.worm.index/email.json")
    assert (by_email["type"], by_email["unique"]) == ("standard", True)
    assert cast("dict[str, str]", by_email["entries"])["hi@acme.com"] == "id-1"
    by_tags = stored(db, "org/customers/.worm.index/tags.json")
    assert (by_tags["type"], by_tags["unique"]) == ("multiValue", False)
    assert by_tags["entries"] == {"vip": ["id-1"], "enterprise": ["id-1", "id-2"], "startup": ["id-3"]}


def test_the_error_of_a_unique_value(customers: Model) -> None:
    with pytest.raises(WormError) as raised:
        customers.save(customers.create({"email": "hi@acme.com"}, id="other"))
    assert raised.value.message == ("Unique constraint violation: email='hi@acme.com' already exists on entity 'id-1'")
    assert not customers.exists("other")


def test_rebuilding_indexes(customers: Model) -> None:
    assert [one.name for one in customers.build_indexes()] == ["byStatus", "byEmail", "byTags"]
    assert customers.build_index("byStatus").values == 3


def test_aggregates(customers: Model, invoices: Model) -> None:
    assert customers.aggregate(count=True) == {"count": 4}
    assert customers.aggregate(group_by="status", count=True) == {
        "groups": {"active": {"count": 2}, "inactive": {"count": 1}, "churned": {"count": 1}}
    }
    assert invoices.aggregate(group_by="status", sum="amount", avg="amount", filter={"currency": "USD"}) == {
        "groups": {"paid": {"sum": 3000, "avg": 1500}, "draft": {"sum": 800, "avg": 800}}
    }
    assert invoices.aggregate(min="amount", max="amount") == {"min": 50, "max": 25000}


@pytest.mark.parametrize(
    ("filter", "wanted"),
    [
        ({"status": "active"}, ["Acme Corp", "Startup"]),
        ({"status": {"$eq": "active"}}, ["Acme Corp", "Startup"]),
        ({"status": {"$ne": "churned"}}, ["Acme Corp", "Widgets Inc", "Startup"]),
        ({"score": {"$gt": 85}}, ["Acme Corp"]),
        ({"score": {"$gte": 85}}, ["Acme Corp", "Startup"]),
        ({"score": {"$lt": 10}}, ["Gone"]),
        ({"score": {"$lte": 10}}, ["Widgets Inc", "Gone"]),
        ({"status": {"$in": ["active", "inactive"]}}, ["Acme Corp", "Widgets Inc", "Startup"]),
        ({"status": {"$nin": ["churned"]}}, ["Acme Corp", "Widgets Inc", "Startup"]),
        ({"notes": {"$exists": True}}, []),
        ({"email": {"$exists": True}}, ["Acme Corp", "Widgets Inc", "Startup", "Gone"]),
        ({"tags": {"$contains": "vip"}}, ["Acme Corp"]),
        ({"name": {"$startsWith": "Acme"}}, ["Acme Corp"]),
        ({"$and": [{"status": "active"}, {"score": {"$gte": 90}}]}, ["Acme Corp"]),
        ({"$or": [{"status": "active"}, {"tags": {"$contains": "vip"}}]}, ["Acme Corp", "Startup"]),
        ({"$not": {"status": "churned"}}, ["Acme Corp", "Widgets Inc", "Startup"]),
        ({"status": "active", "tags": {"$in": ["vip"]}}, ["Acme Corp"]),
        (
            {
                "$or": [
                    {"status": "active", "tags": {"$contains": "vip"}},
                    {"status": "inactive", "tags": {"$contains": "enterprise"}},
                ]
            },
            ["Acme Corp", "Widgets Inc"],
        ),
        (
            {"$or": [{"$and": [{"status": "active"}, {"score": {"$gte": 80}}]}, {"tags": {"$contains": "vip"}}]},
            ["Acme Corp", "Startup"],
        ),
    ],
)
def test_filters(customers: Model, filter: dict[str, JsonValue], wanted: list[str]) -> None:
    assert names(customers.find_all(filter=filter)) == wanted
    assert names(customers.find_all(filter=filter, _strategy="full_scan")) == wanted


def test_explain(customers: Model) -> None:
    plan = customers.explain(filter={"status": "active"}, select=["name", "email"]).shape()
    assert plan["strategy"] == "manifest_scan"
    assert plan["reason"] == "the manifest has all needed fields"
    assert plan["estimatedRequests"] == 1
    assert cast("list[str]", plan["manifestFields"])[:4] == ["name", "email", "status", "tags"]


def test_the_four_strategies_and_their_requests(customers: Model) -> None:
    by_email = customers.explain(filter={"email": "hi@acme.com"}, analyze=True).shape()
    assert (by_email["strategy"], by_email["actualRequests"]) == ("index_lookup", 2)
    scan = customers.explain(filter={"status": "active"}, select=["name"], analyze=True).shape()
    assert (scan["strategy"], scan["actualRequests"]) == ("manifest_scan", 1)
    targeted = customers.explain(filter={"name": {"$startsWith": "A"}}, analyze=True).shape()
    assert (targeted["strategy"], targeted["actualRequests"]) == ("manifest_targeted", 2)
    full = customers.explain(filter={"score": {"$gt": 85}}, analyze=True).shape()
    assert full["strategy"] == "full_scan"
    assert cast(int, full["actualRequests"]) >= 1 + 4
