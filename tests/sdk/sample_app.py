"""A small CRM that uses every verb with typed models. A test runs it, and lets mypy and pyright check it: `assert_type`
says what each verb gives."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from enum import StrEnum
from typing import Annotated, assert_type
from uuid import UUID

from pydantic import BaseModel, Field

import worm
from worm.sdk.document import DocumentDict
from worm.sdk.rows import Rows


class Status(StrEnum):
    LEAD = "lead"
    ACTIVE = "active"
    LOST = "lost"


class Address(BaseModel):
    street: str = ""
    city: str


class Customer(worm.Document):
    worm_settings = worm.ModelSettings(soft_delete=True, snapshots=worm.SnapshotSettings(every=5), lake=True)

    name: str
    email: Annotated[str, worm.Index(unique=True)]
    status: Annotated[Status, worm.Index()] = Status.LEAD
    score: float = 0
    tags: set[str] = Field(default_factory=set)
    address: Address | None = None
    since: date | None = None


class Order(worm.Document[int]):
    customer: Annotated[str, worm.Ref(Customer), worm.Index()]
    total: Decimal
    placed: datetime


class Visit(worm.Document[UUID]):
    customer: Annotated[str, worm.Ref("Customer")]


def write(customers: worm.Model[Customer]) -> None:
    acme = customers.insert(Customer(id="acme", name="Acme", email="a@acme.com", tags={"b", "a"}), reason="a call")
    assert_type(acme, Customer)
    assert_type(acme.id, str)
    assert_type(acme.version, str | None)
    acme.status = Status.ACTIVE
    acme.address = Address(city="Rome")
    assert_type(customers.save(acme, actor="user:ann"), Customer)
    assert_type(customers.replace(acme.model_copy(update={"score": 2.5}), if_version=acme.version), Customer)
    assert_type(customers.upsert(Customer(id="bolt", name="Bolt", email="b@bolt.com")), Customer)
    assert_type(customers.patch("bolt", {"address": {"city": "Oslo"}, "since": date(2026, 1, 1)}), Customer)
    assert_type(customers.update("bolt", {"$inc": {"score": 1}, "$addToSet": {"tags": "vip"}}), Customer)
    made = customers.create(Customer(name="Made", email="m@made.com"))
    assert_type(customers.save(made).name, str)

    def raised(customer: Customer) -> None:
        customer.score += 10

    assert_type(customers.modify("bolt", raised), Customer)
    assert_type(customers.refresh(acme).score, float)
    results = customers.insert_many([Customer(id="cord", name="Cord", email="c@cord.com")])
    assert_type(results[0].document, Customer | None)
    customers.upsert_many([Customer(id="dune", name="Dune", email="d@dune.com")])
    customers.save_many(customers.find_all(filter={"id": "dune"}))


def read(customers: worm.Model[Customer]) -> list[str]:
    assert_type(customers.get("acme"), Customer)
    assert_type(customers.find_by_id("nobody"), Customer | None)
    assert_type(customers.find_one({"status": Status.LEAD}), Customer | None)
    found = customers.find_all(filter={"status": {"$in": {Status.LEAD, Status.ACTIVE}}}, limit=10)
    assert_type(found, Rows[Customer])
    names = sorted(one.name for one in found)
    rows = customers.find_all(select=["name"])
    assert_type(rows, Rows[DocumentDict])
    assert_type(customers.find_many(["acme", "nobody"])[1].document, Customer | None)
    for batch in customers.find_batches(batch_size=2):
        assert len(batch) <= 2
    assert_type(customers.exists("acme"), bool)
    assert_type(customers.count({"status": Status.ACTIVE}), int)
    customers.distinct("status")
    customers.aggregate(count=True, group_by="status")
    assert customers.explain(filter={"status": "lead"}).strategy != "full_scan"
    return names


def change_many(customers: worm.Model[Customer]) -> None:
    changes = {"$set": {"status": Status.LOST}}
    tried = customers.update_many({"status": Status.LEAD}, changes, dry_run=True)
    assert_type(tried[0].document, Customer | None)
    done = customers.update_many({"status": Status.LEAD}, changes)
    assert len(done) == len(tried)
    assert_type(customers.delete_many({"id": "dune"})[0].ok, bool)
    customers.delete_many(["cord"])


def go_back(customers: worm.Model[Customer]) -> None:
    entries = customers.get_history("acme")
    assert_type(entries[0].actor, str | None)
    assert_type(customers.get_at("acme", seq=1), Customer | None)
    customers.diff("acme", 1, 2)
    customers.diff_between("acme", 1, 2)
    assert_type(customers.rollback("acme", to_seq=1, if_version=customers.get("acme").version), Customer)
    taken = customers.snapshot("acme")
    customers.list_snapshots("acme")
    assert_type(customers.restore_snapshot("acme", str(taken["ts"])), Customer)
    assert_type(customers.delete("acme", if_version=customers.get("acme").version), bool)
    customers.list_trashed()
    assert_type(customers.restore("acme"), Customer)
    assert_type(customers.purge("dune"), bool)
    customers.purge_expired()


def keep_tables(customers: worm.Model[Customer]) -> None:
    customers.get_manifest_status()
    assert customers.publish().version == customers.get_lake_status().version
    assert customers.vacuum() == []
    assert customers.to_duckdb().columns[0] == "id"
    customers.get_index_status()
    customers.invalidate_manifest()
    customers.build_manifest()
    customers.build_indexes()
    customers.build_index("byStatus")


def trade(orders: worm.Model[Order], visits: worm.Model[Visit]) -> Decimal:
    placed = datetime(2026, 2, 24, 12, tzinfo=UTC)
    order = orders.insert(Order(id=1, customer="acme", total=Decimal("19.90"), placed=placed))
    assert_type(order.id, int)
    orders.insert(Order(customer="acme", total=Decimal("0.10"), placed=placed))
    visit = visits.insert(Visit(customer="acme"))
    assert_type(visit.id, UUID)
    assert_type(visits.get(visit.id), Visit)
    populated = orders.find_all(filter={"customer": "acme", "placed": {"$lte": placed}}, populate=["customer"])
    assert_type(populated, Rows[DocumentDict])
    return sum((one.total for one in orders.find_all(filter={"customer": "acme"})), Decimal(0))


def untyped(db: worm.Worm) -> None:
    customers = db.model("Customer")
    assert_type(customers, worm.Model[DocumentDict])
    echo = customers.insert({"name": "Echo", "email": "e@echo.com", "since": date(2026, 1, 1), "tags": {"b", "a"}})
    assert_type(echo, DocumentDict)
    customers.save(echo | {"status": Status.LOST.value})


def main(url: str) -> tuple[list[str], Decimal]:
    with worm.connect(url, models=[Customer, Order, Visit], actor="user:bob") as db:
        customers = db.model(Customer)
        assert_type(customers, worm.Model[Customer])
        write(customers)
        names = read(customers)
        change_many(customers)
        go_back(customers)
        keep_tables(customers)
        untyped(db)
        return names, trade(db.model(Order), db.model(Visit))
