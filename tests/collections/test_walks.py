"""Walks hand out every id of a range once, in bounded parts and rounds, however ids are distributed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.collections.listed_room import IDS, listed_collection
from tests.examples import examples
from tests.harness import schema_of
from worm.collections import walks
from worm.collections.id_ranges import IdRange, split_range
from worm.collections.layout import mark_name
from worm.collections.oplog import Seqs
from worm.collections.walks import IdSource, IdWalk, documents_of, histories_of, keys_of

T = TypeVar("T")
PART, MOST, PARTS_MAX = 3, 7, 100


@pytest.fixture(autouse=True)
def small() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(walks.IdWalk, "PART_IDS", PART)
        patch.setattr(walks.IdWalk, "TASK_IDS_MAX", MOST)
        patch.setattr(walks, "SPLIT", 4)
        yield


def _walked(source: IdSource[T], ranges: list[IdRange]) -> tuple[list[list[dict[str, T]]], int]:
    """The parts that each task got, and the number of rounds."""
    tasks, rest, rounds = list[list[dict[str, T]]](), ranges, 0
    while rest:
        every = [IdWalk(source, one) for one in rest]
        found = [list(itertools.islice(walk, PARTS_MAX)) for walk in every]
        assert max(map(len, found)) < PARTS_MAX, "a walk that does not get further"
        tasks += found
        for within, walk in zip(rest, every, strict=True):
            assert all(one.end == other.start for one, other in itertools.pairwise(walk.rest))
            assert not walk.rest or (walk.rest[0].start > within.start and walk.rest[-1].end == within.end)
        rest = [one for walk in every for one in walk.rest]
        rounds += 1
        assert rounds < 200
    return tasks, rounds


@settings(max_examples=examples(150), deadline=None)
@given(
    st.sets(IDS, max_size=30),
    st.dictionaries(IDS, st.integers(1, 3), max_size=30),
    st.lists(IDS, max_size=4),
)
def test_a_walk_hands_out_every_id_once(documents: set[str], entries: dict[str, int], starts: list[str]) -> None:
    collection = listed_collection(sorted(documents), entries)
    ranges = IdRange.between(starts)
    sources: list[tuple[IdSource[Any], dict[str, Any]]] = [
        (documents_of(collection), dict.fromkeys(documents)),
        (histories_of(collection), collection.recorded_seqs()),
        (keys_of(collection), dict.fromkeys(entries)),
    ]
    for source, expected in sources:
        tasks, _ = _walked(source, ranges)
        parts = [part for task in tasks for part in task]
        found = [item for part in parts for item in part.items()]
        assert len(found) == len(expected)
        assert dict(found) == expected
        assert all([*part] == sorted(part) for part in parts)
        for task in tasks:
            ids = [one for part in task for one in part]
            assert ids == sorted(ids)
            assert len(ids) <= 2 * MOST


@pytest.mark.parametrize(
    "ids",
    [
        [f"customer-{number:04d}" for number in range(300)],
        [f"a%{number}" for number in range(300)],
        [f"https://example.com/ü/{number}" for number in range(300)],
        [str(number) for number in range(300)],
        ["a", *(f"a-{number:03d}" for number in range(299))],
        [f"{'' if number % 2 else '/'}{number:03d}" for number in range(300)],
    ],
    ids=["plain", "escaped", "addresses", "numbers", "one late", "mixed"],
)
def test_no_task_handles_more_than_its_share(ids: list[str]) -> None:
    """An import that no table knows of: whoever divided the collection gave all of it to one task."""
    tasks, rounds = _walked(histories_of(listed_collection([], dict.fromkeys(ids, 1))), [IdRange()])
    assert sorted(one for task in tasks for part in task for one in part) == sorted(ids)
    assert max(len(part) for task in tasks for part in task) <= PART + 2
    assert max(sum(map(len, task)) for task in tasks) <= MOST + 4
    assert 2 < rounds < 12


@pytest.mark.parametrize(
    "ids",
    [
        [f"{chr(0x4E00 + number)}x" for number in range(600)],
        [f"/{chr(0x4E00 + number)}x" for number in range(600)],
        [*("a" * number for number in range(1, 20)), *(f"{'a' * 20}{number:03d}" for number in range(600))],
    ],
    ids=["many characters", "many characters, escaped", "prefixes of one another"],
)
def test_what_a_task_hands_back_is_divided(ids: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise every round has one task, and there are as many rounds as tasks."""
    monkeypatch.setattr("worm.collections.id_ranges.PROBES_MAX", 150)
    tasks, rounds = _walked(histories_of(listed_collection([], dict.fromkeys(ids, 1))), [IdRange()])
    assert sorted(one for task in tasks for part in task for one in part) == sorted(ids)
    assert rounds < 12


@pytest.mark.parametrize("character", [0, 150, 299])
def test_probes_stay_in_the_range_that_they_divide(character: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worm.collections.id_ranges.PROBES_MAX", 40)
    starts = [chr(0x4E00 + number) for number in range(301)]
    within = IdRange(starts[character], starts[character + 1])
    collection = listed_collection([*starts, *(f"{within.start}{number:02d}" for number in range(100))], {})
    assert len(split_range(collection.store, collection.path, within, 8)) == 8


def test_ids_that_are_prefixes_of_one_another_count_once() -> None:
    collection = listed_collection(["a" * length for length in range(1, 40)], {})
    assert len(split_range(collection.store, collection.path, IdRange(), 16)) == 16


def test_a_range_that_starts_at_an_id_with_a_late_key_ends() -> None:
    """The keys of a whole part come before its key."""
    ids = ["a", *(f"a-{number}" for number in range(PART))]
    (first, *others), _ = _walked(documents_of(listed_collection(ids, {})), IdRange.between(["a"])[1:])
    assert [one for part in first for one in part][:2] == ["a", "a-0"]
    assert sorted(one for task in [first, *others] for part in task for one in part) == ids


def test_long_histories_count_as_several_ids() -> None:
    ids = [f"c{number}" for number in range(8)]
    short = IdWalk(histories_of(listed_collection([], dict.fromkeys(ids, 1))), IdRange(), 8)
    assert [len(part) for part in short] == [3, 3, 2]
    long = IdWalk(histories_of(listed_collection([], dict.fromkeys(ids, 40))), IdRange(), 8)
    assert [len(part) for part in long] == [1, 1]
    assert long.rest[0].start == "c2"


def test_an_id_with_time_marks_only_has_no_history() -> None:
    collection = listed_collection([], {"a": 1})
    name = mark_name("2026-01-01T00:00:00Z", 32)
    assert name is not None
    collection.store.put(collection.resolver.time_mark_key("Customer", "b", name), b"{}")
    assert list(IdWalk(histories_of(collection), IdRange())) == [{"a": Seqs({1}), "b": None}]
    assert [*collection.recorded_seqs()] == ["a"]


@pytest.mark.parametrize("count", [0, 20])
def test_a_singleton_is_one_part(count: int) -> None:
    schema = schema_of(path="#org/@settings")
    entries = {"_": count} if count else {}
    collection = listed_collection([], entries, schema)
    (part,) = IdWalk(histories_of(collection), IdRange(), 2)
    assert {one: 0 if seqs is None else len(seqs.single) for one, seqs in part.items()} == entries
