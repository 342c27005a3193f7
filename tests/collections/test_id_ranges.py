"""Ranges of ids: together they list every id exactly once, whatever the ids are, with few requests."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.harness import schema_of
from worm.clock import Ids
from worm.collections.collection import Collection
from worm.collections.id_ranges import IdRange, plan_ranges, ranges_between
from worm.collections.layout import StorageResolver
from worm.schema import load_schema
from worm.schema.fields import needs_escape
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


@settings(max_examples=150, deadline=None)
@given(st.lists(IDS, unique=True, max_size=12), st.lists(IDS, max_size=4), st.sampled_from(LAYOUTS))
def test_ranges_list_every_id_once(ids: list[str], starts: list[str], layout: str) -> None:
    collection = _collection(layout)
    _fill(collection, ids)
    documents, versions, seqs = Counter[str](), Counter[str](), Counter[str]()
    for within in ranges_between(starts):
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


@settings(max_examples=100, deadline=None)
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
