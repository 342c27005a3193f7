"""Ranges of ids: together they list every id exactly once, whatever the ids are, with few requests."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.harness import DataPath, schema_of
from worm.clock import Ids
from worm.collections.collection import Collection
from worm.collections.id_ranges import IdRange, known_ids, plan_ranges
from worm.collections.layout import StorageResolver
from worm.formats import load_schema
from worm.formats.fields import needs_escape
from worm.store.memory import MemoryStore

SEEDED = Ids.seeded(1)
LAYOUTS = ("root", "collection", "inline")
IDS = st.text("ab-.~_0 %/&é\x01\U0010ffff", min_size=1, max_size=5).filter(lambda text: text != "_")


def _collection(layout: str = "root", **customer: object) -> Collection:
    schema = load_schema(schema_of(storage={"layout": layout}, **customer))
    return Collection(MemoryStore(), StorageResolver(schema), "Customer", schema.model("Customer"))


def _fill(collection: Collection, ids: list[str]) -> None:
    for entity_id in ids:
        collection.store.put(collection.documents.key(entity_id), b"{}")
        collection.store.put(collection.oplog.key(entity_id, 1), b"{}")
    collection.store.put(collection.resolver.manifest_key("Customer"), b"{}")


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(IDS, unique=True, max_size=12), st.lists(IDS, max_size=4), st.sampled_from(LAYOUTS))
def test_ranges_list_every_id_once(ids: list[str], starts: list[str], layout: str) -> None:
    collection = _collection(layout)
    _fill(collection, ids)
    documents, versions, seqs = Counter[str](), Counter[str](), Counter[str]()
    for within in IdRange.between(starts):
        assert all(one in within for one in collection.current_ids(within))
        documents.update(collection.current_ids(within))
        versions.update(entity_id for entity_id, _ in collection.latest_versions(within=within))
        seqs.update(collection.recorded_seqs(within).keys())
        assert set(collection.all_versions(within)) == {one for one in ids if one in within}
    assert documents == versions == seqs == Counter(ids)


def test_a_range_ends_where_ids_end_and_not_where_keys_do() -> None:
    collection = _collection()
    _fill(collection, ["a", "a-b", "a.c", "b"])
    assert sorted(collection.current_ids(IdRange("", "a-b"))) == ["a"]
    assert sorted(collection.current_ids(IdRange("a-b", "a.c"))) == ["a-b"]
    assert sorted(collection.current_ids(IdRange("a.c", None))) == ["a.c", "b"]


def test_a_range_does_not_list_what_is_beyond_it() -> None:
    collection = _collection()
    _fill(collection, [f"c{number:04d}" for number in range(50)])
    listed = list(collection.oplog_objects(IdRange("c0010", "c0020")))
    assert len(listed) == 10


@pytest.mark.parametrize(
    ("id_type", "ids"),
    [
        ("string", [f"customer-{number:05d}" for number in range(400)]),
        ("int", [str(number) for number in range(400)]),
        ("ulid", sorted(SEEDED.ulid() for _ in range(400))),
        ("uuid", sorted(SEEDED.uuid() for _ in range(400))),
    ],
)
def test_plans_are_about_even_and_cheap(id_type: str, ids: list[str]) -> None:
    collection = _collection(path=f"#org/@customers/(id:{id_type})")
    _fill(collection, ids)
    with collection.store.requests.measure() as spent:
        planned = plan_ranges(collection, 8)
    assert spent["total"] <= 60
    counts = [sum(one in within for one in ids) for within in planned]
    assert sum(counts) == 400
    assert 4 <= len(planned) <= 8
    assert max(counts) <= 200


def test_a_whole_table_tells_its_ids() -> None:
    collection = _collection()
    _fill(collection, ["a", "b"])
    ids = [f"customer-{number:05d}" for number in range(40)]
    body = b'{"entities":{' + b",".join(f'"{one}":{{}}'.encode() for one in reversed(ids)) + b"}}"
    collection.store.put(collection.resolver.manifest_key("Customer"), body)
    with collection.store.requests.measure() as spent:
        planned = plan_ranges(collection, 4)
    assert [within.start for within in planned] == ["", *ids[10::10]]
    assert spent == {"GET": 2, "total": 2}


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(IDS, unique=True, max_size=12), st.integers(2, 6))
def test_plans_are_of_all_ids(ids: list[str], wanted: int) -> None:
    collection = _collection()
    _fill(collection, ids)
    planned = plan_ranges(collection, wanted)
    assert Counter(one for within in planned for one in collection.current_ids(within)) == Counter(ids)
    assert len(planned) <= wanted
    assert len(planned) >= min(2, sum(not needs_escape(one) for one in ids))


def test_a_plan_of_nothing_is_one_range() -> None:
    assert plan_ranges(_collection(), 8) == [IdRange()]


def test_damaged_roots_are_no_obstacle() -> None:
    collection = _collection()
    _fill(collection, ["a", "b", "c", "d"])
    collection.store.put(collection.resolver.manifest_key("Customer"), b"not json")
    assert len(plan_ranges(collection, 2)) == 2


def test_starts_of_a_spread_table_are_taken() -> None:
    collection = _collection()
    shape = b'{"partitioned":true,"partitions":[{"file":"x"},{"file":"y","from":"k"},{"file":"z","from":"p"}]}'
    collection.store.put(collection.resolver.heads_key("Customer"), shape)
    assert plan_ranges(collection, 3) == [IdRange("", "k"), IdRange("k", "p"), IdRange("p", None)]
    assert len(plan_ranges(collection, 2)) == 2


def test_a_spread_table_also_tells_how_many_deleted_entities_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan by the number of documents would give all histories of a collection with much turnover to two tasks."""
    monkeypatch.setattr("worm.tables.layout.HEADS_PER_PART", 5)
    path = DataPath(schema_of(softDelete=False, manifest={"enabled": True, "partitionThreshold": 20}))
    for number in range(100):
        path.put(f"c{number:03d}", {"name": "Acme"})
    path.settle()
    for number in range(98):
        path.remove(f"c{number:03d}")
    path.settle()
    path.table.tidy(force=True)
    path.table.heads.tidy(force=True)
    known = known_ids(path.collection)
    assert 50 <= known.count <= 200
    assert len(known.starts) == 20


ODD = ["a", "a b", "a-b", "a.c", "aé", "aéb", "a%", "a/b", "b", "b\x01", "b\x01c", "é", "\U0010ffff"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_listing_of_a_range_shows_an_id_outside_of_it(layout: str) -> None:
    """Two processes that share a rebuild would both have it, or one would take the other's rows for lost."""
    collection = _collection(layout, softDelete=True)
    _fill(collection, ODD)
    for entity_id in ODD:
        collection.store.put(collection.trash.tombstone_key(entity_id), b"{}")
    for within in (IdRange(start, end) for start in ["", *ODD] for end in [*ODD, None]):
        wanted = sorted(one for one in ODD if one in within)
        assert sorted(collection.all_versions(within)) == wanted
        assert sorted(collection.recorded_seqs(within)) == wanted
        assert sorted(collection.trashed_ids(within)) == wanted


def test_a_listing_of_versions_goes_on_after_a_key() -> None:
    """A sweep that stopped would begin from the start each time, and never come to the end of a large collection."""
    collection = _collection()
    _fill(collection, ["a", "b", "c"])
    after = collection.documents.key("b")
    assert [entity_id for entity_id, _ in collection.latest_versions(after)] == ["c"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_model_inside_the_directory_of_another_is_listed_apart(layout: str) -> None:
    """Its documents, entries and snapshots would become those of the outer model, and be pruned by its rules."""
    rules = {"oplog": True, "softDelete": True, "snapshots": {"enabled": True, "every": 1, "maxCount": 1}}
    schema = load_schema(
        {
            "storage": {"layout": layout},
            "models": {
                "Outer": {"path": "#org/@customers/(id:uuid)", **rules},
                "Inner": {"path": "#org/#customers/@special/(id:uuid)", **rules},
            },
        }
    )
    store, one = MemoryStore(), "1b4e28ba-2fa1-4d2e-883f-0016d3cca427"
    outer, inner = (Collection(store, StorageResolver(schema), name, schema.model(name)) for name in ("Outer", "Inner"))
    _fill_all(inner, one)
    assert _listed(inner) == ([one], [one], [one], [one], 2)
    assert _listed(outer) == ([], [], [], [], 0)


def _fill_all(collection: Collection, entity_id: str) -> None:
    collection.store.put(collection.documents.key(entity_id), b"{}")
    collection.store.put(collection.oplog.key(entity_id, 1), b"{}")
    collection.store.put(collection.trash.tombstone_key(entity_id), b"{}")
    for second in (1, 2):
        collection.snapshots.take(entity_id, second, f"2026-01-01T00:00:0{second}Z", {})


def _listed(collection: Collection) -> tuple[list[str], list[str], list[str], list[str], int]:
    report = collection.snapshots.prune(SEEDED.clock.now(), dry_run=True)
    return (
        list(collection.current_ids()),
        list(collection.all_versions()),
        list(collection.recorded_seqs()),
        list(collection.trashed_ids()),
        report.listed,
    )


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_is_kept_about_a_singleton_is_listed_in_every_layout(layout: str) -> None:
    """Not listed, its history would be missing from every rebuild."""
    models = {"Settings": {"path": "#org/@settings", "oplog": True, "softDelete": True}}
    schema = load_schema({"storage": {"layout": layout}, "models": models})
    collection = Collection(MemoryStore(), StorageResolver(schema), "Settings", schema.model("Settings"))
    _fill_all(collection, "_")
    assert list(collection.recorded_seqs()) == ["_"]
    assert list(collection.trashed_ids()) == ["_"]
