from __future__ import annotations

import pytest

from tests.sdk.sessions import spent
from worm.clock import Ids, VirtualClock
from worm.errors import Invalid
from worm.formats import load_schema
from worm.sdk.database import Worm
from worm.store.memory import MemoryStore

SCHEMA = {
    "version": "1.0",
    "models": {
        "Customer": {
            "path": "#org/@customers/(id:slug)",
            "fields": {"name": {"type": "string"}, "parent": {"type": "ref", "model": "Customer"}},
        },
        "Invoice": {
            "path": "#org/@invoices/(id:string)",
            "fields": {
                "customer": {"type": "ref", "model": "Customer"},
                "payers": {"type": "array", "items": {"type": "ref", "model": "Customer"}},
                "amount": {"type": "number"},
                "notes": {"type": "array", "items": "string"},
            },
            "manifest": {"enabled": True},
        },
    },
}


@pytest.fixture
def db() -> Worm:
    clock = VirtualClock()
    db = Worm(MemoryStore(clock=clock), load_schema(SCHEMA), probe=False, clock=clock, ids=Ids.seeded(1, clock))
    db.model("Customer").save_many([{"id": "acme", "name": "Acme", "parent": "bee"}, {"id": "bee", "name": "Bee"}])
    saved = db.model("Invoice").save_many(
        [
            {"id": "i1", "customer": "acme", "payers": ["acme", "bee"], "amount": 1},
            {"id": "i2", "customer": "bee", "payers": ["gone", "acme"], "amount": 2},
            {"id": "i3", "customer": "gone", "payers": [], "amount": 3},
            {"id": "i4", "customer": None, "amount": 4},
            {"id": "i5", "customer": "No_Slug", "amount": 5},
        ]
    )
    assert all(one.ok for one in saved)
    return db


def test_references_become_documents(db: Worm) -> None:
    rows = db.model("Invoice").find_all(populate=["customer", "payers"])
    acme, bee = (db.model("Customer").find_by_id(one) for one in ("acme", "bee"))
    assert acme is not None
    assert acme["parent"] == "bee"  # one level only
    assert [row.get("customer") for row in rows] == [acme, bee, None, None, None]
    assert [row.get("payers", "none") for row in rows] == [[acme, bee], [None, acme], [], "none", "none"]
    assert rows.plan.strategy == "manifest_targeted"
    assert rows.plan.reason.endswith("populate needs documents")


def test_each_target_is_read_once(db: Worm) -> None:
    invoices = db.model("Invoice")
    plain = spent(db.store, lambda: invoices.find_all(strategy="manifest_targeted"))
    populated = spent(db.store, lambda: invoices.find_all(populate=["customer", "payers"]))
    assert populated == plain + 3  # acme, bee and gone; what is no id is not asked for


def test_rows_share_no_document(db: Worm) -> None:
    rows = db.model("Invoice").find_all(populate=["customer", "payers"])
    first = rows[0]["customer"]
    assert isinstance(first, dict)
    first["name"] = "changed"
    payers = rows[0]["payers"]
    assert isinstance(payers, list)
    assert isinstance(payers[0], dict)
    assert payers[0]["name"] == "Acme"


def test_a_populated_field_is_selected_and_filters_see_the_reference(db: Worm) -> None:
    rows = db.model("Invoice").find_all(filter={"customer": "bee"}, select=["amount"], populate="customer")
    assert [row.keys() for row in rows] == [{"id", "amount", "customer"}]
    assert rows[0]["customer"] == db.model("Customer").find_by_id("bee")
    plan = db.model("Invoice").explain(filter={"customer": "bee"}, populate="customer", analyze=True)
    assert plan.actual is not None
    assert plan.actual.cost.total == 1 + 1 + 1  # the manifest, the invoice, the customer


@pytest.mark.parametrize("name", ["amount", "notes", "customer.name", "nope"])
def test_only_references_can_be_populated(db: Worm, name: str) -> None:
    with pytest.raises(Invalid, match=rf"populate: '{name}' is not a reference field \(references: customer, payers\)"):
        db.model("Invoice").find_all(populate=[name])


def test_estimates_count_a_populated_document_for_every_row_and_field(db: Worm) -> None:
    invoices = db.model("Invoice")
    assert invoices.explain(populate=["customer", "payers"]).estimate.total == 1 + 5 + 5 * 2
    assert invoices.explain(populate="customer", limit=2).estimate.total == 1 + 2 + 2
    assert invoices.explain(populate="customer", strategy="full_scan").estimate.total == 2 + 5 + 5
