from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest
from pydantic import BaseModel, ConfigDict, Field

import worm
from tests.sdk.sessions import KEY, Bench, must
from worm.codec.strict_json import loads
from worm.errors import Invalid


class Customer(BaseModel):
    id: str | None = None
    name: str
    status: str = "active"
    score: float | None = None


class Client(BaseModel):
    worm_model: ClassVar[str] = "Customer"
    model_config = ConfigDict(extra="allow")
    id: str
    title: str = Field(alias="name")


class Closed(BaseModel):
    worm_model: ClassVar[str] = "Customer"
    model_config = ConfigDict(extra="forbid")
    id: str
    name: str


class Nameless(BaseModel):
    worm_model: ClassVar[str] = "Customer"
    name: str


def test_objects_go_in_and_come_out(bench: Bench) -> None:
    customers = bench.session().model(Customer)
    made = customers.create(Customer(name="Acme"))
    assert made.id
    saved = customers.save(Customer(id="a", name="Acme"))
    assert saved == Customer(id="a", name="Acme", status="active")
    assert customers.find_by_id("a") == saved
    assert customers.find_by_id("b") is None
    bench.tick()
    assert customers.patch("a", {"score": 2, "status": "inactive"}).score == 2
    assert customers.get_at("a", seq=1) == saved
    assert customers.rollback("a", to_seq=1) == saved
    assert customers.snapshot("a")["seq"] == 3
    name = str(customers.list_snapshots("a")[0]["ts"])
    assert customers.delete("a")
    assert customers.get_at("a", seq=4) is None
    assert [one["id"] for one in customers.list_trashed()] == ["a"]
    assert customers.restore("a") == saved
    bench.tick()
    assert customers.restore_snapshot("a", name) == saved
    assert customers.diff("a", 1, 3).keys() == {"updatedAt"}
    assert [entry.op for entry in customers.get_history("a", limit=2)] == ["restore", "update"]
    assert (customers.name, customers.mode, customers.count(), customers.exists("a")) == (
        "Customer",
        "readwrite",
        1,
        True,
    )
    many = customers.save_many([Customer(id="b", name="Bee"), Customer(id="c", name="Cee")])
    assert [result.document for result in many] == [Customer(id="b", name="Bee"), Customer(id="c", name="Cee")]
    assert [result.document for result in customers.find_many(["c", "x"])] == [Customer(id="c", name="Cee"), None]
    assert [result.ok for result in customers.delete_many(["b"])] == [True]
    assert customers.purge("b") is True
    assert customers.purge_expired() == []
    bench.assert_clean()


def test_saving_an_object_loses_nothing_that_its_class_does_not_know(bench: Bench) -> None:
    bench.customers().save({"id": "a", "name": "Acme", "vat": "X1", "tags": ["t"]})
    customers = bench.session().model(Customer)
    found = must(customers.find_by_id("a"))
    found.name = "Acme Inc"
    customers.save(found)
    document = must(bench.customers().find_by_id("a"))
    assert (document["name"], document["vat"], document["tags"], document["status"]) == (
        "Acme Inc",
        "X1",
        ["t"],
        "active",
    )
    assert document["createdAt"] == "2026-01-01T00:00:00.000Z"
    assert "score" not in document  # a field that the document lacks stays lacking

    found.score = None
    customers.save(found)
    assert must(bench.customers().find_by_id("a"))["score"] is None  # set to null is null


def test_a_class_that_allows_extra_fields_holds_them(bench: Bench) -> None:
    bench.customers().save({"id": "a", "name": "Acme", "vat": "X1", "old": 1})
    clients = bench.session().model(Client)
    found = must(clients.find_by_id("a"))
    assert found.title == "Acme"
    assert must(found.model_extra)["vat"] == "X1"
    del must(found.model_extra)["old"]
    clients.save(found)
    stored = loads(must(bench.store.get(KEY)).body)
    assert isinstance(stored, dict)
    assert stored.keys() == {"id", "name", "vat", "createdAt", "updatedAt"}


def test_a_class_that_forbids_extra_fields_reads_documents_without_them(bench: Bench) -> None:
    customers = bench.session().model(Closed)
    saved = customers.save(customers.create({"name": "Acme"}, id="a"))
    assert saved == Closed(id="a", name="Acme")
    bench.session().model("Customer").patch("a", {"vat": "X1"})
    with pytest.raises(Invalid, match="vat"):
        customers.find_by_id("a")
    assert isinstance(customers.find_many(["a"])[0].error, Invalid)


def test_a_class_without_an_id_is_refused(bench: Bench) -> None:
    with pytest.raises(Invalid, match="no field id"):
        bench.session().model(Nameless)


def test_rows_are_objects_only_where_they_are_whole_documents(tmp_path: Path) -> None:
    loose = Bench("memory", tmp_path).session().model(Customer)
    loose.save(Customer(id="a", name="Acme"))
    assert [type(row) for row in loose.find_all()] == [dict]
    strict = Bench("memory", tmp_path, strict=True).session().model(Customer)
    strict.save(Customer(id="a", name="Acme"))
    assert strict.find_all(filter={"name": "Acme"}) == [Customer(id="a", name="Acme")]
    assert strict.find_all(select=["name"]) == [{"id": "a", "name": "Acme"}]


def test_the_package_names_missing() -> None:
    assert repr(worm.MISSING) == "<Missing.MISSING: 'missing'>"
    assert "MISSING" in dir(worm)
