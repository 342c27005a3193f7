"""What a push would mean, and what becomes of documents that do not fit the new schema."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from worm.collections.id_ranges import IdRange
from worm.errors import Invalid
from worm.formats import Schema, load_schema
from worm.formats.strict_json import JsonValue
from worm.sdk.database import DocumentDict, Model, Worm, push
from worm.spark.source.entities import documents
from worm.store.base import Store
from worm.store.memory import MemoryStore
from worm.tables.tasks.verify_range import verify_range
from worm.tables.verify import verify_collection
from worm.upkeep.push_plan import Examined, ModelPlan, PushPlan, UnfitDocument, schema_differences
from worm.upkeep.repair import repair_model

NAME = {"name": {"type": "string"}}


def schema(
    fields: Mapping[str, object] = NAME, *, oplog: bool = True, table: bool = True, **settings: object
) -> Schema:
    model = {"path": "#org/@customers/(id:slug)", "fields": fields, "oplog": oplog, "manifest": {"enabled": table}}
    return load_schema({"models": {"Customer": model | settings}})


def filled(definition: Schema, documents: Mapping[str, dict[str, JsonValue]]) -> MemoryStore:
    store = MemoryStore()
    push(store, definition)
    model = customers(store, definition)
    for entity_id, document in documents.items():
        model.save(model.create(document, id=entity_id))
    return store


def customers(store: Store, definition: Schema) -> Model[DocumentDict]:
    return Worm(store, definition).model("Customer")


DOCUMENTS: dict[str, dict[str, JsonValue]] = {"acme": {"name": "Acme"}, "kobe": {"extra": 5}, "zeta": {"name": "Zeta"}}
REQUIRED = {"name": {"type": "string", "required": True}}


@pytest.mark.parametrize("table", [True, False])
@pytest.mark.parametrize("oplog", [True, False])
def test_documents_that_would_not_fit_are_counted_and_named(oplog: bool, table: bool) -> None:
    store = filled(schema(oplog=oplog, table=table), DOCUMENTS)
    with store.requests.measure() as spent:
        plan = PushPlan.of(store, schema(REQUIRED, oplog=oplog, table=table))
    examined = Examined("table" if table else "documents", 3, 3, 1, (UnfitDocument("kobe", "name: is required"),))
    assert plan.models == (
        ModelPlan("Customer", "changed", path="#org/@customers/(id:slug)", fields_changed=("name",), examined=examined),
    )
    assert "PUT" not in spent
    if table:
        assert spent["GET"] <= 2  # schema and manifest: no document is read


def test_a_push_that_would_leave_documents_unfit_is_refused_unless_forced() -> None:
    store = filled(schema(), DOCUMENTS)
    with pytest.raises(Invalid) as refused:
        push(store, schema(REQUIRED))
    assert refused.value.message == (
        "Customer: 1 of 3 documents would not fit the new schema: 'kobe' (name: is required)"
    )
    assert "force=True" in str(refused.value.hint)
    assert refused.value.exit_code == 2
    assert push(store, schema(REQUIRED), force=True).changed == ("Customer",)
    assert PushPlan.of(store, schema(REQUIRED)).is_nothing


def test_a_document_that_is_unfit_already_does_not_hold_the_next_push_up() -> None:
    store = filled(schema(), DOCUMENTS)
    push(store, schema(REQUIRED), force=True)
    again = REQUIRED | {"status": {"type": "string"}}
    assert PushPlan.of(store, schema(again)).misfits == 0
    push(store, schema(again))


def test_a_field_that_the_table_does_not_have_is_looked_up_in_the_documents() -> None:
    store = filled(schema(), DOCUMENTS)
    plan = PushPlan.of(store, schema(NAME | {"extra": {"type": "string"}}))
    [model] = plan.models
    assert (model.fields_added, model.examined.source) == (("extra",), "documents")
    assert model.examined.examples == (UnfitDocument("kobe", "extra: must be a string, not integer"),)


def test_a_strict_schema_counts_documents_with_other_fields() -> None:
    store = filled(schema(), DOCUMENTS)
    [model] = PushPlan.of(store, schema(strict=True)).models
    assert model.settings == ("strict false to true",)
    assert model.examined.examples == (UnfitDocument("kobe", "extra: unknown field"),)
    strict = schema(NAME | {"extra": {"type": "integer"}}, strict=True)
    other = filled(strict, DOCUMENTS)
    [model] = PushPlan.of(other, schema(strict=True)).models
    assert (model.fields_removed, model.examined.source) == (("extra",), "table")
    assert model.examined.examples == (UnfitDocument("kobe", "extra: unknown field"),)


def test_the_mistakes_of_a_document_are_listed_in_the_order_of_the_schema() -> None:
    names = [f"field{number}" for number in (5, 2, 7, 0, 3, 6, 1, 4)]
    dropped = [f"old{number}" for number in (5, 2, 7, 0, 3, 6, 1, 4)]
    texts: dict[str, object] = {name: {"type": "string"} for name in (*names, *dropped)}
    store = filled(schema(texts, strict=True), {"acme": dict.fromkeys((*dropped, *names), "x")})
    plan = PushPlan.of(store, schema({name: {"type": "integer"} for name in names}, strict=True))
    told = [
        *(f"{name}: must be an integer, not string" for name in names),
        *(f"{name}: unknown field" for name in dropped),
    ]
    assert [one.reason.split("; ") for one in plan.models[0].examined.examples] == [told]


def test_a_sample_looks_at_so_many_documents_and_says_so() -> None:
    many: dict[str, dict[str, JsonValue]] = {
        f"c{number:03d}": {"name": "x"} if number % 10 else {} for number in range(60)
    }
    store = filled(schema(), many)
    [model] = PushPlan.of(store, schema(REQUIRED), sample=6).models
    assert (model.examined.documents, model.examined.checked, model.examined.misfits) == (60, 6, 6)
    assert "6 of 6 documents that were checked would not fit" in model.told_misfits()
    assert PushPlan.of(store, schema(REQUIRED), sample=0).misfits == 0


def test_models_indexes_and_settings_that_come_or_go_are_named() -> None:
    store = filled(schema(), {"acme": {"name": "A"}, "kobe": {"name": "A"}})
    store.put("org/new/one/data.json", b'{"size": "large"}')
    changed = schema(indexes={"byName": {"field": "name", "unique": True}}, softDelete=True)
    new = {"path": "#org/@new/(id:slug)", "fields": {"size": {"type": "integer"}}}
    wanted = load_schema(
        {"models": {**json.loads(changed.to_json())["models"], "New": new}, "storage": {"layout": "root"}}
    )
    plan = PushPlan.of(store, wanted)
    customer, added = plan.models
    assert (customer.indexes_built, customer.settings) == (("name",), ("softDelete false to true",))
    assert customer.examined.conflicts == ("name='A' is on 2 documents: acme, kobe",)
    assert (added.change, added.examined.misfits, plan.misfits) == ("added", 1, 0)
    push(store, wanted)
    removed = PushPlan.of(store, load_schema({"models": {"New": new}}))
    assert [(one.model, one.change) for one in removed.models] == [("New", "same"), ("Customer", "removed")]
    assert removed.stranded == ("Customer has documents, but the new schema leaves it out (#org/@customers/(id:slug))",)


def test_a_renamed_model_is_compared_with_the_one_that_had_its_place() -> None:
    store = filled(schema(), DOCUMENTS)
    model = json.loads(schema(REQUIRED).to_json())["models"]["Customer"]
    [plan] = PushPlan.of(store, load_schema({"models": {"Client": model}})).models
    assert (plan.model, plan.change, plan.was, plan.examined.misfits) == ("Client", "renamed", "Customer", 1)


def test_differences_of_two_schemas_are_told_in_lines() -> None:
    assert schema_differences(schema(), schema()) == []
    lines = schema_differences(schema(), schema({"name": {"type": "integer"}, "age": {"type": "integer"}}, oplog=False))
    assert lines == ["Customer: fields added age; fields changed name; oplog true to false"]


# Documents that do not fit any more


@pytest.mark.parametrize("table", [True, False])
@pytest.mark.parametrize("oplog", [True, False])
def test_a_document_that_was_valid_when_it_was_written_stays_readable_and_can_be_mended(
    oplog: bool, table: bool
) -> None:
    store = filled(schema(oplog=oplog, table=table), DOCUMENTS)
    wanted = schema(REQUIRED, oplog=oplog, table=table)
    push(store, wanted, force=True)
    model = customers(store, wanted)
    found = model.find_by_id("kobe")
    assert found is not None
    assert found["extra"] == 5
    assert {str(row["id"]) for row in model.find_all()} == {"acme", "kobe", "zeta"}
    assert model.patch("kobe", {"extra": 6})["extra"] == 6  # it breaks no rule more than before
    with pytest.raises(Invalid):
        model.patch("kobe", {"name": 5})
    model.patch("kobe", {"name": "Kobe"})
    again = customers(store, wanted).find_by_id("kobe")
    assert again is not None
    assert (again["name"], again["extra"]) == ("Kobe", 6)


@pytest.mark.parametrize("oplog", [True, False])
def test_verify_mentions_it_and_repair_keeps_its_row(oplog: bool) -> None:
    store = filled(schema(oplog=oplog), DOCUMENTS)
    wanted = schema(REQUIRED, oplog=oplog)
    push(store, wanted, force=True)
    session = Worm(store, wanted)
    for _ in range(2):
        report = verify_collection(session.collection("Customer"))
        assert (report.differences, report.rejected) == ([], {})
        assert report.outgrown == {"org/customers/kobe/data.json": "name: is required"}
        assert repair_model(session, "Customer").rows == 3


@pytest.mark.parametrize("oplog", [True, False])
def test_a_raw_upload_that_breaks_the_schema_is_refused_as_before(oplog: bool) -> None:
    store = filled(schema(oplog=oplog), DOCUMENTS)
    wanted = schema(REQUIRED, oplog=oplog)
    push(store, wanted, force=True)
    store.put("org/customers/kobe/data.json", b'{"extra": 7}')
    with pytest.raises(Invalid, match="name: is required"):
        customers(store, wanted).find_by_id("kobe")
    report = verify_collection(Worm(store, wanted).collection("Customer"))
    assert (report.outgrown, report.rejected) == ({}, {"org/customers/kobe/data.json": "name: is required"})


@pytest.mark.parametrize("oplog", [True, False])
def test_a_document_that_does_not_fit_any_more_can_be_deleted_and_restored(oplog: bool) -> None:
    """A restore that nobody recorded would leave a document that no query finds."""
    store = filled(schema(oplog=oplog, softDelete=True), DOCUMENTS)
    wanted = schema(REQUIRED, oplog=oplog, softDelete=True)
    push(store, wanted, force=True)
    model = customers(store, wanted)
    assert model.delete("kobe")
    assert model.count() == 2
    model.restore("kobe")
    again = customers(store, wanted)
    assert again.count() == 3
    assert again.get("kobe")["extra"] == 5
    report = verify_collection(Worm(store, wanted).collection("Customer"))
    assert (report.differences, list(report.outgrown)) == ([], ["org/customers/kobe/data.json"])


@pytest.mark.parametrize("oplog", [True, False])
def test_spark_reads_and_verifies_it_as_the_document_that_it_is(oplog: bool) -> None:
    store = filled(schema(oplog=oplog), DOCUMENTS)
    wanted = schema(REQUIRED, oplog=oplog)
    push(store, wanted, force=True)
    collection = Worm(store, wanted).collection("Customer")
    read = {one.id: (one.document or {}).get("extra") for chunk in documents(collection, IdRange()) for one in chunk}
    assert read == {"acme": None, "kobe": 5, "zeta": None}
    assert not [one.reason for chunk in documents(collection, IdRange()) for one in chunk if one.reason]
    found = verify_range(collection, IdRange())
    assert (found.report.differences, found.report.rejected, len(found.rows)) == ([], {}, 3)
    assert list(found.report.outgrown) == ["org/customers/kobe/data.json"]


def test_a_value_that_is_too_large_for_the_table_is_not_missing() -> None:
    """The push would be refused, or accepted, for what rows of the table do not have."""
    store = filled(schema(), {"acme": {"name": "x" * 40_000}})
    (model,) = PushPlan.of(store, schema(REQUIRED)).models
    assert (model.examined.source, model.examined.misfits) == ("documents", 0)
