from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import ClassVar, Literal

import pytest
from pydantic import AliasChoices, AliasGenerator, AliasPath, BaseModel, ConfigDict, Field, computed_field
from pydantic.alias_generators import to_camel

import worm
from tests.sdk.sessions import KEY, Bench, must
from worm.errors import Conflict, Invalid
from worm.formats.strict_json import JsonValue, loads
from worm.sdk.document import provenance_of
from worm.sdk.model import Model


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
    for given in ({"name": "Bee"}, {"id": None, "name": "Bee"}):
        assert customers.create(given).id != customers.insert(given).id  # a dict gets the id that the class needs
    assert customers.upsert({"name": "Cee"}).id


def test_a_class_without_an_id_is_refused(bench: Bench) -> None:
    with pytest.raises(Invalid, match="no field id"):
        bench.session().model(Nameless)


class Named(BaseModel):
    worm_model: ClassVar[str] = "Customer"
    id: str
    full_name: str


class Aliased(Named):
    full_name: str = Field(validation_alias="fullName", serialization_alias="fullName")


class Generated(Named):
    model_config = ConfigDict(
        alias_generator=AliasGenerator(validation_alias=to_camel, serialization_alias=to_camel),
    )


class Chosen(Named):
    full_name: str = Field(validation_alias=AliasChoices("fullName", "full_name"))


class ChosenWithAll(Chosen):
    model_config = ConfigDict(extra="allow")


class ByName(Named):
    model_config = ConfigDict(populate_by_name=True)
    full_name: str = Field(validation_alias="fullName")


class Deep(Named):
    full_name: str = Field(
        validation_alias=AliasChoices("fullName", AliasPath("names", 0)), serialization_alias="fullName"
    )


@pytest.mark.parametrize(
    ("cls", "stored", "expected"),
    [
        (Aliased, {"fullName": "old", "full_name": "other"}, {"fullName": "new", "full_name": "other"}),
        (Generated, {"fullName": "old"}, {"fullName": "new"}),
        (Chosen, {"fullName": "old"}, {"full_name": "new"}),
        (Chosen, {"fullName": "old", "full_name": "older"}, {"full_name": "new"}),
        (ChosenWithAll, {"fullName": "old", "full_name": "older"}, {"full_name": "new"}),
        (ByName, {"fullName": "old"}, {"full_name": "new"}),
        (Deep, {"names": ["old", "x"]}, {"fullName": "new", "names": ["old", "x"]}),
    ],
)
def test_a_change_is_stored_whatever_the_names_of_the_field(
    tmp_path: Path,
    cls: type[Named],
    stored: dict[str, JsonValue],
    expected: dict[str, JsonValue],
) -> None:
    bench = Bench("memory", tmp_path)
    bench.customers().save({"id": "a", "vat": "X1", **stored})
    customers = bench.session().model(cls)
    found = must(customers.find_by_id("a"))
    assert customers.find_all() == [found]
    found.full_name = "new"
    assert customers.save(found).full_name == "new"
    assert must(customers.find_by_id("a")).full_name == "new"
    document = must(bench.customers().find_by_id("a"))
    times = {"createdAt", "updatedAt"}
    assert {name: value for name, value in document.items() if name not in times} == {
        "id": "a",
        "vat": "X1",
        **expected,
    }


@pytest.mark.parametrize("extra", ["ignore", "allow", "forbid"])
def test_a_computed_field_is_stored_as_it_is_now(tmp_path: Path, extra: Literal["ignore", "allow", "forbid"]) -> None:
    class Doubled(BaseModel):
        worm_model: ClassVar[str] = "Customer"
        model_config = ConfigDict(extra=extra)
        id: str
        score: int

        @computed_field
        def twice(self) -> int:
            return self.score * 2

    bench = Bench("memory", tmp_path)
    bench.customers().save({"id": "a", "score": 2, "twice": 4})
    customers = bench.session().model(Doubled)
    found = must(customers.find_by_id("a"))
    found.score = 5
    customers.save(found)
    document = must(bench.customers().find_by_id("a"))
    assert (document["score"], document["twice"]) == (5, 10)


def test_a_class_that_could_not_read_what_it_writes_is_refused(tmp_path: Path) -> None:
    class Reads(BaseModel):
        worm_model: ClassVar[str] = "Customer"
        id: str
        name: str = Field(validation_alias="fullName")

    class Writes(BaseModel):
        worm_model: ClassVar[str] = "Customer"
        id: str
        name: str = Field(serialization_alias="fullName")

    class Path(BaseModel):
        worm_model: ClassVar[str] = "Customer"
        id: str
        name: str = Field(validation_alias=AliasChoices(AliasPath("names", 0), "name"))

    db = Bench("memory", tmp_path).session()
    with pytest.raises(Invalid, match=r"Reads.name is written as 'name', but read from 'fullName'.*alias='name'"):
        db.model(Reads)
    with pytest.raises(Invalid, match=r"Writes.name is written as 'fullName', but read from 'name'"):
        db.model(Writes)
    with pytest.raises(Invalid, match=r"read from 'names.0' or 'name'.*before any AliasPath"):
        db.model(Path)


class Extended(BaseModel):
    """Knows a field that the schema does not."""

    worm_model: ClassVar[str] = "Customer"
    id: str
    name: str
    vat: str | None = None


def test_rows_are_objects_unless_a_part_is_selected(tmp_path: Path) -> None:
    bench = Bench("memory", tmp_path)
    bench.customers().save({"id": "a", "name": "Acme", "vat": "X1"})
    customers = bench.session().model(Customer)
    with bench.store.requests.measure() as spent:
        assert customers.find_all(filter={"name": "Acme"}) == [Customer(id="a", name="Acme")]
    assert spent["total"] == 1  # the manifest has all that the class knows
    assert [list(batch) for batch in customers.find_batches()] == [[Customer(id="a", name="Acme")]]
    assert customers.find_all(select=["name"]) == [{"id": "a", "name": "Acme"}]
    assert [list(batch) for batch in customers.find_batches(select=["name"])] == [[{"id": "a", "name": "Acme"}]]
    assert customers.explain().strategy == "manifest_scan"


def test_an_object_of_a_query_has_what_the_document_has(tmp_path: Path) -> None:
    """Also what the manifest may lack: a field of the class alone, or anything where the class holds all."""
    bench = Bench("memory", tmp_path, manifest={"enabled": True, "extra": False})
    bench.customers().save({"id": "a", "name": "Acme", "vat": "X1", "more": {"x": 1}})
    extended = bench.session().model(Extended)
    assert extended.find_all() == [extended.find_by_id("a")] == [Extended(id="a", name="Acme", vat="X1")]
    assert [list(batch) for batch in extended.find_batches()] == [[Extended(id="a", name="Acme", vat="X1")]]
    clients = bench.session().model(Client)
    found = clients.find_all(sort={"field": "name"})
    assert list(found) == [must(clients.find_by_id("a"))]
    assert isinstance(found[0], Client)
    assert must(found[0].model_extra)["more"] == {"x": 1}
    assert [list(batch) for batch in clients.find_batches()] == [list(found)]
    assert (
        clients.explain().strategy == clients.explain(analyze=True).strategy == found.plan.strategy != "manifest_scan"
    )
    assert clients.find_all(select=["name"]).plan.strategy == "manifest_scan"


def test_a_strict_model_has_whole_rows_for_every_class(tmp_path: Path) -> None:
    strict = Bench("memory", tmp_path, strict=True)
    strict.customers().save({"id": "a", "name": "Acme"})
    clients = strict.session().model(Client)
    assert [type(one) for one in clients.find_all()] == [Client]
    assert clients.explain().strategy == "manifest_scan"


class Slim(BaseModel):
    worm_model: ClassVar[str] = "Customer"
    id: str


class Price(BaseModel):
    worm_model: ClassVar[str] = "Customer"
    model_config = ConfigDict(extra="allow")
    id: str
    score: Decimal | None = None
    name: Decimal | None = None  # the schema says string
    parts: dict[str, Decimal | list[Decimal] | tuple[Decimal, str]] = {}
    several: frozenset[Decimal] = frozenset()


def test_a_decimal_is_stored_as_a_number_and_reads_back_the_same(bench: Bench) -> None:
    bench.customers().save({"id": "a", "score": 10.0, "name": "1.50", "parts": {"x": 3, "y": [0.1]}})
    before = loads(must(bench.store.get(KEY)).body)
    prices = bench.session().model(Price)
    found = must(prices.find_by_id("a"))
    assert (found.score, found.parts["y"]) == (Decimal("10.0"), [Decimal("0.1")])
    prices.save(found)
    after = loads(must(bench.store.get(KEY)).body)
    assert isinstance(after, dict)
    assert isinstance(before, dict)
    assert {**after, "updatedAt": 0} == {**before, "updatedAt": 0, "several": []}
    assert repr(after["score"]) == "10.0"  # not 10, which is another value in history
    found.score, found.parts = Decimal("12.34"), {"t": (Decimal(7), "7")}
    found.several = frozenset({Decimal("0.25"), Decimal(4)})
    saved = prices.save(found)
    stored = must(bench.customers().find_by_id("a"))
    assert (stored["score"], stored["parts"], sorted(stored["several"])) == (12.34, {"t": [7, "7"]}, [0.25, 4])  # type: ignore[arg-type,type-var]
    assert (saved.score, saved.several) == (Decimal("12.34"), frozenset({Decimal("0.25"), Decimal(4)}))
    bench.assert_clean()


@pytest.mark.parametrize("digits", ["0.12345678901234567890", "NaN", "Infinity", "1e400"])
def test_a_decimal_that_no_number_holds_is_refused(bench: Bench, digits: str) -> None:
    with pytest.raises(Invalid, match="score") as caught:
        bench.session().model(Price).save(Price.model_construct(id="a", score=Decimal(digits)))
    assert "as text" in str(caught.value.hint)
    assert bench.store.get(KEY) is None


def test_decimals_in_arrow_and_pandas_are_the_numbers_of_the_documents(bench: Bench) -> None:
    prices = bench.session().model(Price)
    prices.save(Price(id="a", score=Decimal("12.34"), name=Decimal(1)))
    rows = prices.find_all()
    assert rows.to_arrow().column("score").to_pylist() == [12.34]
    assert rows.to_pandas()["score"].tolist() == [12.34]
    rows.append(Price(id="b", score=Decimal("0.5")))
    assert rows.to_arrow().column("score").to_pylist() == [12.34, 0.5]
    assert bench.session().model(Slim).find_all().to_arrow().column("score").to_pylist() == [12.34]  # not of the class
    del rows[0]
    assert rows.to_arrow().column("id").to_pylist() == ["b"]


def test_a_class_gives_the_same_model_with_objects_of_it(bench: Bench) -> None:
    customers: Model[Customer] = bench.session().model(Customer)
    assert isinstance(customers, Model)
    assert isinstance(customers.save(Customer(id="a", name="Acme")), Customer)


def test_an_object_is_saved_over_the_version_that_it_came_from(bench: Bench) -> None:
    customers = bench.session().model(Customer)
    customers.save(Customer(id="a", name="Acme"))
    mine, theirs = customers.get("a"), customers.get("a")
    mine.name, theirs.name = "mine", "theirs"
    customers.save(mine)
    with pytest.raises(Conflict, match="changed since it was read"):
        customers.save(theirs)
    with pytest.raises(Conflict, match="exists already"):
        customers.save(Customer(id="a", name="new"))
    mine.name = "mine again"  # the object itself has the new version
    customers.save(mine)
    customers.refresh(theirs)
    assert (theirs.name, must(provenance_of(theirs)).version) == ("mine again", must(provenance_of(mine)).version)
    copied = theirs.model_copy(update={"name": "copied"})
    assert customers.save(copied).name == "copied"
    assert bench.ops() == ["create", "update", "update", "update"]


def test_an_object_saved_as_a_dict_and_a_dict_saved_as_an_object_lose_no_field(bench: Bench) -> None:
    """One program may use both; neither side may delete the fields that only the other one knows."""
    dicts, customers = bench.session().model("Customer"), bench.session().model(Customer)
    dicts.insert({"id": "a", "name": "Acme", "note": "kept"})
    read = must(customers.find_by_id("a"))
    for name in ("first", "second"):  # the object itself has the new version
        read.name = name
        bench.tick()
        dicts.save(read)  # type: ignore[arg-type]
    assert (dicts.get("a")["name"], dicts.get("a")["note"]) == ("second", "kept")
    assert "score" not in dicts.get("a")
    bench.tick()
    assert customers.save(dicts.get("a") | {"name": "third"}).name == "third"
    assert (dicts.get("a")["name"], dicts.get("a")["note"]) == ("third", "kept")


def test_the_table_of_a_typed_model(bench: Bench) -> None:
    customers = bench.session().model(Customer)
    customers.save(Customer(id="a", name="Acme"))
    assert customers.get_manifest_status().count == 1
    assert [one.name for one in customers.get_index_status()] == ["byStatus"]
    customers.invalidate_manifest()
    assert not customers.get_manifest_status().exists
    steps: list[int] = []
    assert customers.build_manifest(progress=lambda done, _: steps.append(done)).fresh
    assert steps
    assert [one.values for one in customers.build_indexes()] == [1]
    assert customers.build_index("byStatus").values == 1


def test_the_package_names_missing() -> None:
    assert repr(worm.MISSING) == "<Missing.MISSING: 'missing'>"
    assert "MISSING" in dir(worm)
