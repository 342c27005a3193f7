"""Large values stay out of the rows of a table, which say so; answers, versions, indexes and claims are as exact as
without a limit. Tables with few ids and many bytes are spread."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.harness import DataPath, schema_of
from worm.collections.entries import CUT, Document, Row, cut_row, is_cut
from worm.errors import WormError
from worm.formats import load_schema
from worm.formats.strict_json import JsonValue, dumps
from worm.sdk.database import Model, Worm
from worm.tables.index import KEY_BYTES_MAX
from worm.tables.verify import verify_collection

FIELDS = {
    "name": {"type": "string"},
    "status": {"type": "string"},
    "email": {"type": "string"},
    "body": {"type": "string"},
    "address": {"type": "object"},
}
INDEXES = {"byStatus": {"field": "status"}, "byEmail": {"field": "email", "unique": True}}
LIMITS = {"enabled": True, "maxFieldBytes": 40, "maxRowBytes": 200}
SPREAD = {"partitionThreshold": 2, "maxPartitions": 2}
KINDS: dict[str, dict[str, object]] = {
    "whole": {"manifest": LIMITS},
    "spread": {"manifest": LIMITS | SPREAD},
    "without oplog": {"manifest": LIMITS, "oplog": False},
    "spread, without oplog": {"manifest": LIMITS | SPREAD, "oplog": False},
}
DOCUMENTS: dict[str, Document] = {
    "a": {"name": "A", "status": "s" * 60, "body": "x" * 100},
    "b": {"name": "B", "status": "new", "email": "e" * 70, ".cut": True, "": {"cut": 1}},
    "c": {"name": "C", "address": {"city": "Bern", "more": "y" * 50}, "a.b": "z" * 50},
    "d": {"name": "D", "status": "new", "email": "d@x.org", **{f"f{at}": at for at in range(60)}},
    "e": {"name": "E", "status": "old", "body": "short"},
}


def uploaded(**customer: object) -> DataPath:
    path = DataPath(schema_of(storage=None, **{"fields": FIELDS, "indexes": INDEXES, **customer}))
    for entity_id, document in DOCUMENTS.items():
        path.put(entity_id, document)
    path.settle()
    path.sweep()
    return path


def session(path: DataPath) -> Model:
    schema = load_schema(dict(path.schema))
    return Worm(path.store, schema, maintenance="events", probe=False, clock=path.clock).model("Customer")


EXPECTED = [{"id": one, **document} for one, document in DOCUMENTS.items()]
VALUES = st.recursive(
    st.none() | st.integers(0, 9**9) | st.text("aé", max_size=40),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("ab", max_size=20), inner, max_size=4),
    max_leaves=8,
)


@pytest.mark.slow
@settings(max_examples=examples(300), deadline=None)
@given(
    st.dictionaries(st.text("abcdefgh", max_size=12), VALUES, max_size=30),
    st.sets(st.text("abcdefgh", max_size=12), max_size=5),
    st.integers(1, 120),
    st.integers(1, 400),
)
def test_a_cut_row_is_within_its_limits_and_tells_what_it_lacks(
    row: Row, named: set[str], field_max: int, row_max: int
) -> None:
    """A value that is missing without a word would be taken for a document that has none."""
    found = cut_row(row, sorted(named), field_max, row_max)
    assert len(dumps(found)) <= max(row_max, len(dumps({CUT: True})))
    for name, value in row.items():
        told = found.get(name, CUT)
        assert is_cut(found, name) != (name in found)
        assert name not in found or (dumps(told) == dumps(value) and len(dumps(value)) <= field_max)
    assert found.keys() <= {*row, CUT}
    if len(dumps(row)) <= row_max and all(len(dumps(value)) <= field_max for value in row.values()):
        assert found == row


def test_ten_thousand_small_fields_do_not_make_a_large_row() -> None:
    row: Row = {f"field number {at}": at for at in range(10_000)}
    found = cut_row({**row, "status": "new", "big": "x" * 99}, ["status", "big"], 50, 4096)
    assert found == {CUT: True, "status": "new"}


@pytest.mark.parametrize("kind", KINDS)
def test_every_producer_cuts_the_same_rows(kind: str) -> None:
    path = uploaded(**KINDS[kind])
    assert verify_collection(path.collection).differences == []
    stored = path.rebuilt()
    assert stored.entities["a"] == {"name": "A", CUT: ["body", "status"]}
    assert stored.entities["d"] == {"name": "D", "status": "new", "email": "d@x.org", CUT: True}


@pytest.mark.parametrize("kind", KINDS)
def test_find_all_gives_whole_documents_and_reads_only_those_of_the_page(kind: str) -> None:
    path = uploaded(**KINDS[kind])
    model = session(path)
    found = model.find_all()
    assert found.plan.strategy == "manifest_scan"
    assert json.dumps(list(found), sort_keys=True) == json.dumps(EXPECTED, sort_keys=True)
    assert [row for batch in model.find_batches(batch_size=2) for row in batch] == EXPECTED
    with path.store.requests.measure() as spent:
        assert model.find_all(sort="-name", limit=2) == [EXPECTED[4], EXPECTED[3]]
    assert spent["GET"] == 2, "the root of the manifest, and the one document of the page that is cut"
    with path.store.requests.measure() as spent:
        assert model.find_all(filter={"name": {"$gte": "D"}}, select=["name"]) == [
            {"id": one, "name": one.upper()} for one in "de"
        ]
    assert spent["GET"] == 1


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_cut_is_filtered_sorted_and_counted_as_it_is_in_the_documents(kind: str) -> None:
    model = session(uploaded(**KINDS[kind]))
    assert [row["id"] for row in model.find_all(filter={"body": {"$startsWith": "x"}})] == ["a"]
    assert [row["id"] for row in model.find_all(filter={"body": {"$exists": False}, "name": {"$lte": "C"}})] == [
        "b",
        "c",
    ]
    assert [row["id"] for row in model.find_all(sort=["-status", "name"], select=[])] == ["a", "e", "b", "d", "c"]
    assert [row["id"] for row in model.find_all(filter={"address.city": "Bern"})] == ["c"]
    assert model.count({"status": {"$ne": "new"}}) == 3
    assert model.distinct("status") == ["new", "old", "s" * 60]
    assert model.aggregate(max="f59") == model.aggregate(max="f59", filter={"f1": 1})
    assert [row["id"] for row in model.find_all(filter={".cut": 1})] == ["b"], "a path into the document, as elsewhere"


@pytest.mark.parametrize("kind", KINDS)
def test_indexes_and_claims_of_huge_values_are_bounded_and_exact(kind: str) -> None:
    path = uploaded(**KINDS[kind])
    model = session(path)
    for strategy in (None, "index_lookup", "manifest_scan", "full_scan"):
        assert [row["id"] for row in model.find_all(filter={"status": "s" * 60}, strategy=strategy)] == ["a"]
        assert [row["id"] for row in model.find_all(filter={"email": "e" * 70}, strategy=strategy)] == ["b"]
        assert [row["id"] for row in model.find_all(filter={"status": "new"}, strategy=strategy)] == ["b", "d"]
    claims = path.collection.claims
    manifest = path.table.manifest.read()
    assert manifest is not None
    claims.restore(manifest.entities)
    assert claims.audit(manifest.entities) == []
    assert len(claims.restore(manifest.entities).written) == 0, "the value that is cut is claimed by its document"
    (held,) = [one.key for one in path.store.list(claims.directory("email")) if b"eeee" in _body(path, one.key)]
    path.store.delete(held)
    assert claims.restore(manifest.entities).written == [held]


def _body(path: DataPath, key: str) -> bytes:
    stored = path.store.get(key)
    assert stored is not None
    return stored.body


def test_a_long_value_that_a_row_keeps_has_a_short_name_in_its_index() -> None:
    path = DataPath(schema_of(fields=FIELDS, indexes=INDEXES))
    long = "s" * (KEY_BYTES_MAX + 1)
    path.put("a", {"status": long, "email": long})
    path.put("b", {"status": long + "t", "email": "=#" + "0" * 64})
    path.settle()
    assert len(_body(path, "org/customers/.worm.index/status.json")) < KEY_BYTES_MAX
    model = session(path)
    for strategy in ("index_lookup", "full_scan"):
        assert [row["id"] for row in model.find_all(filter={"status": long}, strategy=strategy)] == ["a"]
        assert [row["id"] for row in model.find_all(filter={"email": "=#" + "0" * 64}, strategy=strategy)] == ["b"]
    assert model.aggregate(group_by="status", count=True) is not None
    assert long in json.dumps(model.aggregate(group_by="status", count=True)), "groups are named by their values"
    assert path.verify().differences == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_cut_row_that_was_read_can_be_saved_and_a_part_cannot(kind: str) -> None:
    path = uploaded(**KINDS[kind])
    model = session(path)
    (whole,) = model.find_all(filter={"name": "A"})
    saved = model.save(whole | {"name": "A2"})
    assert (saved["name"], saved["body"]) == ("A2", "x" * 100)
    (part,) = model.find_all(filter={"name": "C"}, select=["name"])
    with pytest.raises(WormError, match="only the selected fields"):
        model.save(part)
    (stale,) = model.find_all(filter={"name": "B"})
    path.put("b", {"name": "B", "status": "changed meanwhile"})
    with pytest.raises(WormError):
        model.save(stale)


@pytest.mark.parametrize("kind", ["whole", "spread"])
def test_explain_says_that_documents_are_read_and_how_many(kind: str) -> None:
    model = session(uploaded(**KINDS[kind]))
    root = 1 if kind == "whole" else 3
    plan = model.explain()
    assert (plan.strategy, "too large for the manifest" in plan.reason) == ("manifest_scan", True)
    assert plan.estimate.total == root + 4
    assert model.explain(limit=1).estimate.total == root + 1
    narrow = model.explain(filter={"name": "A"}, select=["name"])
    assert kind == "spread" or narrow.estimate.total == root, "of a partitioned table the root tells how many at most"


# By bytes


def _bytes(path: DataPath) -> list[int]:
    root = path.table.manifest.root()
    assert root is not None
    return [piece.size for piece in path.table.manifest.partitions(root)]


@pytest.fixture
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("layout", "tree"):
        monkeypatch.setattr(f"worm.tables.{module}.SPREAD_BYTES", 20_000)
        monkeypatch.setattr(f"worm.tables.{module}.PARTITION_BYTES", 40_000)


@pytest.mark.usefixtures("small_files")
@pytest.mark.parametrize("oplog", [True, False])
def test_a_table_of_many_bytes_is_spread_however_few_ids_it_has(oplog: bool) -> None:
    """A fold into a table of one file holds all of it in memory."""
    path = DataPath(schema_of(oplog=oplog, fields=FIELDS, indexes={}, manifest={"enabled": True, "maxPartitions": 2}))
    for at in range(40):
        path.put(f"c{at:02}", {"name": f"n{at}", "body": "x" * 9000})
        path.settle()
    path.sweep()
    sizes = _bytes(path)
    assert len(sizes) > 2, "more than maxPartitions, where one would be too large"
    assert max(sizes) <= 40_000 + 9200
    assert path.verify().differences == []
    assert session(path).count({"body": {"$startsWith": "x"}}) == 40
    path.table.rebuild()
    assert path.verify().differences == []
    for at in range(1, 40):
        path.remove(f"c{at:02}")
    path.put("c00", {"name": "small"})
    path.settle()
    path.sweep()
    path.table.rebuild()
    root = path.table.manifest.root()
    assert root is not None
    assert not root.is_spread
    assert path.verify().differences == []


@pytest.mark.usefixtures("small_files")
def test_deltas_are_not_merged_into_one_that_is_too_large() -> None:
    path = DataPath(schema_of(fields=FIELDS, indexes={}, manifest={"enabled": True}))
    for at in range(60):
        path.put(f"c{at:02}", {"name": f"n{at}", "body": "x" * 6000})
    path.settle()
    path.sweep()
    tree = path.table.manifest
    for at in range(20):
        path.put(f"c{at:02}", {"name": "new", "body": "y" * 6000})
        path.settle()
        root = tree.root()
        assert root is not None
        assert max((piece.size for piece in root.deltas), default=0) <= 40_000
    assert path.verify().differences == []


def test_change_sets_are_bounded_and_large_ones_are_folded_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred messages that name a hundred large rows each would take all memory of the tables function."""
    monkeypatch.setattr("worm.collections.entries.CHANGE_SET_BYTES", 3000)
    monkeypatch.setattr("worm.upkeep.workers.tables.TURN_BYTES", 5000)
    path = DataPath(schema_of(fields=FIELDS, indexes={}))
    for at in range(20):
        path.put(f"c{at}", {"name": f"n{at}", "body": "x" * 1000})
    path.run_capture()
    sets = path.change_sets()
    assert len(sets) == 10
    folds = 0
    fold = type(path.table).fold

    def counted(*given: Any, **named: Any) -> None:
        nonlocal folds
        folds += 1
        fold(*given, **named)

    monkeypatch.setattr(type(path.table), "fold", counted)
    path.run_fold(sets)
    assert folds == 2
    assert path.verify().differences == []


def test_a_value_of_the_document_is_never_taken_for_the_mark() -> None:
    path = DataPath(schema_of(fields=FIELDS, indexes={}))
    document: dict[str, JsonValue] = {"name": "A", CUT: ["name"], "": {"cut": ["name"]}}
    path.put("a", document)
    path.settle()
    model = session(path)
    assert model.find_all() == [{"id": "a", **document}]
    assert model.find_all(filter={"name": "A"}, select=["name"]) == [{"id": "a", "name": "A"}]
    assert path.verify().differences == []


def test_a_row_that_may_match_is_a_candidate_where_documents_are_read_anyway() -> None:
    path = uploaded(manifest=LIMITS | {"fields": ["name", "status"]})
    wanted = {"status": "s" * 60, "body": {"$startsWith": "x"}}
    found = session(path).find_all(filter=wanted, strategy="manifest_targeted")
    assert [row["id"] for row in found] == ["a"]


def test_every_part_of_an_index_leads_to_rows_that_were_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worm.tables.index.POSTINGS_PER_PART", 1)
    path = uploaded(manifest=LIMITS | {"partitionThreshold": 2, "maxPartitions": 8})
    path.table.rebuild()
    for status in ("s" * 60, "new", "old"):
        found = session(path).find_all(filter={"status": status}, strategy="index_lookup", select=[])
        assert [row["id"] for row in found] == [one for one in DOCUMENTS if DOCUMENTS[one].get("status") == status]


def test_unique_values_that_are_cut_are_no_conflict() -> None:
    path = DataPath(schema_of(fields=FIELDS, indexes=INDEXES, manifest=LIMITS))
    path.put("a", {"email": "a" * 70})
    path.put("b", {"email": "b" * 70})
    path.settle()
    (index,) = [one.file.read() for one in path.table.indexes if one.definition.unique]
    assert index is not None
    assert (index.entries, index.conflicts) == ({"=cut": ["a", "b"]}, {})
    assert path.verify().differences == []
    model = session(path)
    for one in "ab":
        assert [row["id"] for row in model.find_all(filter={"email": one * 70}, strategy="index_lookup")] == [one]


def test_other_limits_make_a_table_stale() -> None:
    """Rows that were cut by other limits are not the ones that a rebuild gives."""
    path = uploaded(manifest=LIMITS)
    schema = schema_of(fields=FIELDS, indexes=INDEXES, manifest=LIMITS | {"maxFieldBytes": 30})
    model = Worm(path.store, load_schema(schema), maintenance="events", probe=False, clock=path.clock).model("Customer")
    assert model.explain().strategy == "full_scan"


@pytest.mark.usefixtures("small_files")
def test_a_fold_keeps_no_partitions_of_a_large_table_in_memory() -> None:
    path = DataPath(schema_of(fields=FIELDS, indexes={}, manifest={"enabled": True}))
    for at in range(40):
        path.put(f"c{at:02}", {"name": f"n{at}", "body": "x" * 9000})
    path.settle()
    path.put("c00", {"name": "new"})
    path.settle()
    tree = path.workspace.table("Customer").manifest
    root = tree.held_spread
    assert root is not None
    files = [piece.file for piece in tree.partitions(root)]
    assert tree.pieces.missing(files) == len(files)
