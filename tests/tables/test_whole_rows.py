"""Rows of the manifest hold whole documents, whoever makes them and however the table is kept."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from tests.harness import DataPath, schema_of
from worm.collections.entries import Document, table_row
from worm.formats import load_schema
from worm.formats.strict_json import JsonValue
from worm.sdk.database import Model, Worm
from worm.tables.manifest import Manifest
from worm.tables.parquet import ColumnKind, LakeColumn, encode_parquet
from worm.tables.parquet_part import ParquetPart
from worm.tables.verify import verify_collection

ODD: dict[str, Document] = {
    "a": {"name": "A", "vat": "X1", "more": {"x": [1, {"y": None}]}},
    "b": {
        "id": "b",
        "a.b": 1,
        "a": {"b": 2},
        ".": [3],
        "address.city": "Basel",
        "address": {"city": "Bern"},
    },
    "c": {"": 0, "ids": 1, "seqs": [], "name ü\n": False, "etags": None, "-": -0.0, "big": 2**63},
    "d": {},
}
KINDS: dict[str, dict[str, object]] = {
    "whole": {},
    "spread": {"manifest": {"enabled": True, "partitionThreshold": 2, "maxPartitions": 2}},
    "without oplog": {"oplog": False},
    "spread, without oplog": {
        "oplog": False,
        "manifest": {"enabled": True, "partitionThreshold": 2, "maxPartitions": 2},
    },
}
FIELDS = {"name": {"type": "string"}, "status": {"type": "string"}, "address": {"type": "object"}}
INDEXES = {"byStatus": {"field": "status"}, "byCity": {"field": "address.city"}}


def data_path(**customer: object) -> DataPath:
    return DataPath(schema_of(storage=None, **{"fields": FIELDS, "indexes": INDEXES, **customer}))


def uploaded(**customer: object) -> DataPath:
    path = data_path(**customer)
    for entity_id, document in ODD.items():
        path.put(entity_id, document)
    path.settle()
    return path


def session(path: DataPath) -> Model:
    schema = load_schema(dict(path.schema))
    return Worm(path.store, schema, maintenance="events", probe=False, clock=path.clock).model("Customer")


def as_dumped(rows: Mapping[str, JsonValue] | list[Document]) -> str:
    """Also -0.0 is not 0, and 1 is not true."""
    return json.dumps(rows, sort_keys=True)


EXPECTED: list[Document] = [{"id": one, **document} for one, document in ODD.items()]


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_the_documents_and_every_producer_agrees(kind: str) -> None:
    path = uploaded(**KINDS[kind])
    path.sweep()  # merges what is due
    collection = path.collection
    assert verify_collection(collection).differences == []
    assert {one: collection.row(document) for one, document in ODD.items()} == path.rebuilt().entities


@pytest.mark.parametrize("kind", KINDS)
def test_find_all_gives_whole_documents_from_the_manifest_alone(kind: str) -> None:
    path = uploaded(**KINDS[kind])
    path.sweep()
    model = session(path)
    found = model.find_all()
    assert found.plan.strategy == "manifest_scan"
    assert as_dumped(list(found)) == as_dumped(EXPECTED)
    for strategy in ("manifest_targeted", "full_scan"):
        assert as_dumped(list(model.find_all(strategy=strategy))) == as_dumped(EXPECTED)
    assert as_dumped([row for batch in model.find_batches(batch_size=3) for row in batch]) == as_dumped(EXPECTED)


@pytest.mark.parametrize("kind", KINDS)
def test_what_the_session_wrote_is_whole_too(kind: str) -> None:
    model = session(data_path(**KINDS[kind]))
    for entity_id, document in ODD.items():
        model.save({"id": entity_id, **document})
    found = model.find_all()
    assert found.plan.strategy == "manifest_scan"
    shown = [{name: row[name] for name in row if name not in ("createdAt", "updatedAt")} for row in found]
    assert as_dumped(shown) == as_dumped(EXPECTED)


def test_a_dotted_name_is_a_path_whatever_names_the_document_has() -> None:
    """As in documents: only an indexed path finds the field that has this very name."""
    model = session(uploaded())
    for strategy in ("manifest_scan", "manifest_targeted", "full_scan"):
        assert [row["id"] for row in model.find_all(filter={"a.b": 2}, strategy=strategy)] == ["b"]
        assert model.find_all(filter={"a.b": 1}, strategy=strategy) == []
        assert [row["id"] for row in model.find_all(filter={"address.city": "Basel"}, strategy=strategy)] == ["b"]
        assert model.find_all(filter={"id": "b"}, select=["a.b"], strategy=strategy) == [{"id": "b", "a.b": 2}]


def test_undeclared_fields_are_filtered_and_sorted_in_the_manifest() -> None:
    model = session(uploaded())
    found = model.find_all(filter={"more.x.y": None, "vat": {"$exists": True}}, sort={"field": "vat", "order": "asc"})
    assert ([row["id"] for row in found], found.plan.strategy) == (["a"], "manifest_scan")


@pytest.mark.parametrize(
    ("manifest", "why"),
    [
        ({"enabled": True, "fields": ["name"]}, "manifest.fields is set"),
        ({"enabled": True, "extra": False}, "manifest.extra is false"),
    ],
)
def test_a_table_of_parts_names_the_documents_to_read(manifest: dict[str, object], why: str) -> None:
    path = uploaded(manifest=manifest)
    row = path.table.manifest.read()
    assert row is not None
    assert row.entities["a"] == {"name": "A"}
    model = session(path)
    plan = model.explain(limit=2)
    assert (plan.strategy, why in plan.reason) == ("manifest_targeted", True)
    with path.store.requests.measure() as spent:
        found = model.find_all(limit=2, sort={"field": "name", "order": "desc"})
    assert spent["total"] <= 1 + 1 + 2  # the schema's share, the manifest, and the documents of the page only
    assert as_dumped(list(found)) == as_dumped([EXPECTED[0], EXPECTED[1]])
    assert model.find_all(select=["name"]).plan.strategy == "manifest_scan"
    assert as_dumped([one for batch in model.find_batches() for one in batch]) == as_dumped(EXPECTED)


@pytest.mark.parametrize("oplog", [True, False])
def test_a_schema_that_asks_for_other_rows_leads_to_a_rebuild(oplog: bool) -> None:
    path = uploaded(oplog=oplog, manifest={"enabled": True, "extra": False})
    path.schema = schema_of(fields=FIELDS, indexes=INDEXES, oplog=oplog)
    model = session(path)
    found = model.find_all()
    assert found.plan.misses_manifest
    assert as_dumped(list(found)) == as_dumped(EXPECTED)
    model.table.complete()
    found = model.find_all()
    assert found.plan.strategy == "manifest_scan"
    assert as_dumped(list(found)) == as_dumped(EXPECTED)


def test_a_parquet_file_has_every_name() -> None:
    rows = {one: table_row(document, ("address.city",)) for one, document in ODD.items()}
    part = Manifest("Customer", rows, dict.fromkeys(rows, 1))
    columns = [LakeColumn("address_city", "address.city", ColumnKind("string"))]
    again = ParquetPart(encode_parquet(part, columns, "0"), "k", "0", columns)
    assert again.manifest("Customer").encode() == part.encode()
    assert as_dumped([again.row(at) for at in range(4)]) == as_dumped([rows[one] for one in ODD])


def test_a_name_with_a_dot_of_its_own_is_only_apart() -> None:
    """Beside the others it would look like a path, and the row like that of another document."""
    document: Document = {"a.b": 1, "a": {"b": 2}, "id": "x", "c": 3}
    assert table_row(document, ("c",)) == {"a": {"b": 2}, "c": 3, ".": {"a.b": 1}}
