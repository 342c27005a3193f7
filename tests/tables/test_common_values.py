"""Values that are on so many documents that an index of a partitioned table only counts them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.harness import DataPath, schema_of
from tests.tables.test_spread_tables import files_of, root_of, spread_path
from worm.errors import Invalid
from worm.formats import IndexDef, load_schema
from worm.formats.strict_json import JsonValue
from worm.sdk.database import Model, Worm
from worm.tables import index as indexes
from worm.tables.index import CUT_KEY, Index, new_index, new_part
from worm.tables.layout import Edit
from worm.tables.manifest import Manifest

STATUSES = ("active", "active", "active", "lead", "lead", "lead", "rare", None)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than five documents are many."""
    monkeypatch.setattr("worm.tables.index.COMMON_IDS", 5)
    monkeypatch.setattr("worm.tables.index.PART_POSTINGS_MAX", 12)
    monkeypatch.setattr("worm.tables.index.POSTINGS_PER_PART", 3)


def customers(count: int = 32) -> DataPath:
    path = spread_path(partitions=4)
    for number in range(count):
        path.put(f"c{number:03d}", document(number))
    path.settle()
    path.table.rebuild()
    return path


def document(number: int) -> dict[str, JsonValue]:
    return {"status": STATUSES[number % 8], "tags": [f"t{number % 10}"], "score": number}


def model(path: DataPath) -> Model:
    schema = load_schema(dict(path.schema))
    return Worm(path.store, schema, maintenance="events", probe=False, clock=path.clock).model("Customer")


def found(path: DataPath, filter: dict[str, JsonValue], strategy: str | None = None) -> list[JsonValue]:
    return [row["id"] for row in model(path).find_all(filter=filter, strategy=strategy)]


def index_of(path: DataPath, number: int = 0) -> Index:
    table = path.table
    index = table.indexes[number].joined(root_of(path))
    assert index is not None
    return index


@pytest.mark.usefixtures("few")
def test_the_index_counts_what_is_common_and_lists_the_rest() -> None:
    path = customers()
    index = index_of(path)
    assert index.common == {"active": 12, "lead": 12}
    assert index.entries == {"rare": ["c006", "c014", "c022", "c030"], "=null": ["c007", "c015", "c023", "c031"]}
    assert path.verify().differences == []


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize(
    "wanted",
    [
        {"status": "active"},
        {"status": "rare"},
        {"status": {"$in": ["rare", "lead"]}},
        {"status": "active", "tags": {"$contains": "t1"}},
        {"$or": [{"status": "lead"}, {"tags": {"$contains": "t3"}}]},
        {"status": "unknown"},
    ],
    ids=str,
)
def test_every_filter_finds_what_it_found_before(wanted: dict[str, JsonValue]) -> None:
    path = customers()
    for number, status in ((0, "rare"), (6, "active"), (40, "lead")):  # these are in deltas
        path.put(f"c{number:03d}", {**document(number), "status": status})
    path.remove("c001")
    path.settle()
    assert root_of(path).deltas
    assert found(path, wanted) == found(path, wanted, strategy="full_scan")


@pytest.mark.usefixtures("few")
def test_the_other_index_of_a_filter_is_still_used() -> None:
    plan = model(customers()).explain({"status": "active", "tags": {"$contains": "t1"}}, strategy="index_lookup")
    assert plan.strategy == "index_lookup"


@pytest.mark.usefixtures("few")
def test_a_lookup_that_is_asked_for_says_why_it_is_not_possible() -> None:
    with pytest.raises(Invalid, match="or a value is on more than 100,000 documents"):
        found(customers(), {"status": "active"}, strategy="index_lookup")


@pytest.mark.usefixtures("few")
def test_a_value_that_is_no_longer_common_is_listed_again() -> None:
    path = customers()
    for number in range(32):
        if STATUSES[number % 8] == "lead" and number > 8:
            path.put(f"c{number:03d}", {**document(number), "status": "former"})
    path.settle()
    path.table.tidy(bytes_max=1 << 30)
    path.table.rebuild()
    index = index_of(path)
    assert index.ids("lead") == ["c003", "c004", "c005"]
    assert index.common == {"active": 12, "former": 9}
    assert path.verify().differences == []


@pytest.mark.usefixtures("few")
def test_merges_give_the_bytes_of_a_rebuild() -> None:
    path = customers()
    for number in range(100, 160):
        path.put(f"c{number:03d}", document(number))
    path.settle()
    assert not root_of(path).deltas, "so much is merged at once"
    ours = files_of(path)
    path.table.rebuild()
    assert files_of(path) == ours


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("value", ["active", "rare"], ids=["count", "ids"])
def test_a_wrong_count_and_wrong_ids_are_differences(value: str) -> None:
    path = customers()
    tree, files = path.table.manifest, path.table.indexes[0]
    root, right = root_of(path), index_of(path)
    wrong = (
        replace(right, common={**right.common, value: 13})
        if value in right.common
        else replace(right, entries={**right.entries, value: ["c006"]})
    )
    piece = files.pieces.put(new_part(0, "", wrong))
    indexes = {**root.indexes, "status": replace(root.indexes["status"], parts=(piece,))}
    tree.publish(lambda _: Edit(replace(root, indexes=indexes), "source"))
    (found,) = path.verify().differences
    assert (found.kind, found.detail) == ("index-differs", f"1 value differs: {value}")


@pytest.mark.usefixtures("few")
def test_a_unique_value_on_many_documents_is_still_a_conflict() -> None:
    unique = {"byStatus": {"field": "status", "unique": True}}
    path = spread_path(partitions=4, indexes=unique)
    for number in range(32):
        path.put(f"c{number:03d}", document(number))
    path.settle()
    path.table.rebuild()
    index = index_of(path)
    assert index.common == {"active": 12, "lead": 12}
    assert index.conflicts == {"active": [], "lead": [], "rare": ["c006", "c014", "c022", "c030"]}
    assert found(path, {"status": "active"}) == found(path, {"status": "active"}, strategy="full_scan")


@pytest.mark.usefixtures("few")
def test_if_values_are_too_large_for_many_rows_all_of_them_are_candidates() -> None:
    limits = {"maxFieldBytes": 20, "enabled": True, "partitionThreshold": 4, "maxPartitions": 3}
    path = DataPath(schema_of(indexes={"byStatus": {"field": "status"}}, manifest=limits))
    for number in range(20):
        path.put(f"c{number:03d}", {"status": f"{number}" if number % 2 else "s" * 30})
    path.settle()
    path.table.rebuild()
    assert index_of(path).common == {CUT_KEY: 10}
    assert found(path, {"status": "3"}) == ["c003"]
    assert found(path, {"status": "s" * 30}) == [f"c{number:03d}" for number in range(0, 20, 2)]


@pytest.mark.usefixtures("few")
@given(counts=st.lists(st.integers(1, 20), min_size=1, max_size=40), parts_max=st.integers(1, 9))
@settings(max_examples=examples(200), deadline=None)
def test_no_part_has_too_many_pairs_and_all_have_every_entry_once(counts: list[int], parts_max: int) -> None:
    rows: dict[str, dict[str, JsonValue]] = {}
    for value, count in enumerate(counts):
        rows |= {f"{value:02d}-{number:02d}": {"status": f"s{value * 7 % 40:02d}"} for number in range(count)}
    index = Index.of(Manifest("Customer", rows), IndexDef(field="status"))
    parts = [file.value for file in new_index(index, parts_max, is_split=True).parts]
    weights = [sum(len(part.ids_under(key)) for key in part.entries) + len(part.common) for part in parts]
    assert max(weights) <= indexes.PART_POSTINGS_MAX
    together = {key: ids for part in parts for key, ids in part.entries.items()}
    assert together == {key: ids for key, ids in index.entries.items() if len(ids) <= indexes.COMMON_IDS}
    assert {key for part in parts for key in part.common} == index.entries.keys() - together.keys()
