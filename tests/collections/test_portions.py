"""Portions of a collection that no table knows: bounded, complete, and found in rounds that list little."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.collections.listed_room import IDS, listed_collection
from tests.examples import examples
from worm.clock import Ids
from worm.collections import division
from worm.collections.collection import Collection
from worm.collections.division import ListedPortions, counted, is_behind
from worm.collections.id_ranges import IdRange, KnownIds, known_ids
from worm.store.memory import MemoryStore

SEEDED = Ids.seeded(1)


@pytest.fixture(autouse=True)
def small() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(division, "STEP", 2)
        patch.setattr(division, "MARKS_PER_PORTION", 2)
        yield


def _all(collection: Collection, most: int) -> tuple[list[IdRange], int]:
    """Every portion, and the number of rounds."""
    found, rest, rounds = list[IdRange](), [IdRange()], 0
    while rest:
        answers: list[ListedPortions] = [counted(collection, one, most) for one in rest]
        found += [one for answer in answers for one in answer.portions]
        rest = [one for answer in answers for one in answer.rest]
        rounds += 1
        assert rounds < 200
    return sorted(found, key=lambda one: one.start), rounds


@settings(max_examples=examples(100), deadline=None)
@given(st.sets(IDS, max_size=25), st.dictionaries(IDS, st.integers(1, 3), max_size=25), st.integers(2, 12))
def test_portions_are_all_ids_once(documents: set[str], entries: dict[str, int], most: int) -> None:
    collection = listed_collection(sorted(documents), entries)
    found, _ = _all(collection, most)
    assert (found[0].start, found[-1].end) == ("", None)
    assert all(one.end == other.start for one, other in itertools.pairwise(found))
    seen = Counter(one for within in found for one in collection.current_ids(within))
    assert seen == Counter(documents)


@pytest.mark.parametrize("kind", ["documents", "entries", "both"])
@pytest.mark.parametrize(
    "ids",
    [
        [f"customer-{number:06d}" for number in range(600)],
        [f"{'x' * 40}{number:06d}" for number in range(600)],
        [str(number) for number in range(600)],
        [f"a%{number}" for number in range(600)],
        [f"https://example.com/ü/{number}" for number in range(600)],
        sorted(SEEDED.ulid() for _ in range(600)),
        sorted(SEEDED.uuid() for _ in range(600)),
    ],
    ids=["sequential", "long prefix", "numbers", "escaped", "addresses", "ulid", "uuid"],
)
def test_portions_are_bounded_however_ids_are_distributed(ids: list[str], kind: str) -> None:
    """Deleted documents have entries only, and uploads that no worker saw have none."""
    documents, entries = ids if kind != "entries" else [], dict.fromkeys(ids if kind != "documents" else [], 1)
    found, rounds = _all(listed_collection(documents, entries), 40)
    sizes = [sum(one in within for one in ids) for within in found]
    assert sum(sizes) == 600
    assert max(sizes) <= 2 * 3 * division.STEP, "marks of two listings, each a step late"
    assert len(found) < 600 / division.STEP
    assert rounds <= 5


def test_a_round_lists_only_a_part() -> None:
    collection = listed_collection([f"c{number:05d}" for number in range(5_000)], {})
    found = counted(collection, IdRange(), 100)
    assert len(found.rest) > 5
    assert found.rest[0].start == found.portions[-1].end == "c00100"


def test_long_histories_count_as_several_ids() -> None:
    ids = [f"c{number:02d}" for number in range(12)]
    short, _ = _all(listed_collection(ids, dict.fromkeys(ids, 1)), 1_000)
    long, _ = _all(listed_collection(ids, dict.fromkeys(ids, 40)), 1_000)
    assert len(long) > len(short)


def test_many_versions_count_as_several_ids() -> None:
    """Their entries may be in an archive, or nobody recorded them. `verify` holds all versions of a portion."""
    ids = [f"c{number:02d}" for number in range(12)]
    collection = listed_collection([], {})
    collection.store = MemoryStore(versioned=True)
    for number in range(12 * 40):
        collection.store.put(collection.documents.key(ids[number % 12]), str(number).encode())
    found, _ = _all(collection, 1_000)
    assert max(sum(map(len, collection.all_versions(one).values())) for one in found) <= 2 * 40


@pytest.mark.parametrize("new", ["later", "between"])
def test_a_table_that_is_far_behind_is_noticed(new: str) -> None:
    """Its counts would make two tasks for a hundred million documents."""
    known = [f"c{number:04d}" for number in range(0, 200, 10)]
    collection = listed_collection(known, {})
    body = b'{"entities":{' + b",".join(f'"{one}":{{}}'.encode() for one in known) + b"}}"
    collection.store.put(collection.resolver.manifest_key("Customer"), body)
    table = known_ids(collection)
    assert table == KnownIds(20, known)
    assert not is_behind(collection, table)
    numbers = range(200, 300) if new == "later" else range(200)
    for number in numbers:
        collection.store.put(collection.documents.key(f"c{number:04d}"), b"{}")
    assert is_behind(collection, table)


def test_a_spread_table_knows_how_many_ids_it_has() -> None:
    collection = listed_collection([], {})
    shape = b'{"partitioned":true,"count":7,"deltas":[{"count":2}],"partitions":[{"file":"x"},{"file":"y","from":"k"}]}'
    collection.store.put(collection.resolver.heads_key("Customer"), shape)
    assert known_ids(collection) == KnownIds(9, ["", "k"])


@pytest.mark.parametrize("start", ["https://example.com/", "/a/", "a\x01", "..", "%"])
def test_the_rest_of_a_range_is_divided_whatever_its_ids_begin_with(start: str) -> None:
    """What the ends of a range have in common is no key. A table that is behind gives ranges between such ids."""
    ids = [f"{start}{number:02d}" for number in range(20)]
    collection, within = listed_collection(ids, {}), IdRange(ids[2], ids[18])
    found = counted(collection, within, 4)
    assert found.rest
    every = [*found.portions, *found.rest]
    assert (every[0].start, every[-1].end) == (within.start, within.end)
    assert all(one.end == other.start for one, other in itertools.pairwise(every))
