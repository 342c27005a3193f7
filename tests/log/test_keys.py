"""Keys of databases: what formats them parses them, and nothing else passes for one."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from worm.log.keys import AFTER, DATABASES, DbKeys
from worm.pages.layer_name import Kind, LayerName

IDS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_-]{0,20}", fullmatch=True)
ULIDS = st.from_regex(r"[0-9A-Z]{26}", fullmatch=True)
NUMBERS = st.integers(0, 10**20 - 1)
KEYS = st.builds(DbKeys, IDS, st.just("") | IDS)


@st.composite
def layer_names(draw: st.DrawFn) -> LayerName:
    kinds: list[Kind] = ["flushed", "merged", "image"]
    kind = draw(st.sampled_from(kinds))
    high = draw(NUMBERS)
    low = high if kind == "image" else draw(NUMBERS)
    return LayerName(kind, low, high, draw(st.integers(0, 10**12)), draw(ULIDS))


@given(KEYS, NUMBERS)
def test_a_slot_is_told_by_its_key(keys: DbKeys, slot: int) -> None:
    key = keys.slot(slot)
    assert DbKeys.of_segment(key) == (keys, slot)
    assert keys.slot_of(key) == slot
    assert DbKeys.database_of(key) == keys.db_id


@given(KEYS, KEYS, NUMBERS)
def test_a_slot_of_another_log_is_none_of_this_one(keys: DbKeys, other: DbKeys, slot: int) -> None:
    assume(keys != other)
    assert keys.slot_of(other.slot(slot)) is None


@given(KEYS, NUMBERS, NUMBERS)
def test_the_order_of_keys_is_the_order_of_slots(keys: DbKeys, one: int, other: int) -> None:
    assert (keys.slot(one) < keys.slot(other)) == (one < other)


@given(layer_names())
def test_a_layer_is_told_by_its_name(name: LayerName) -> None:
    assert LayerName.parse(str(name)) == name


@given(KEYS, layer_names())
def test_a_path_in_the_directory_of_a_branch_names_the_branch(keys: DbKeys, name: LayerName) -> None:
    key = f"{keys.directory}{name}"
    path = key.removeprefix(DbKeys(keys.db_id).directory)
    assert DbKeys.split(path) == (keys.branch, str(name))
    assert any(key.startswith(prefix) for prefix in DbKeys(keys.db_id).swept)


@given(KEYS, IDS)
def test_no_key_of_a_database_comes_behind_its_end(keys: DbKeys, place: str) -> None:
    end = f"{DATABASES}{keys.db_id}{AFTER}"
    objects = (keys.root, keys.lease, keys.slot(1), keys.clock, keys.documents, keys.damaged(1, '"a-b"'))
    for key in (*objects, keys.pointer("side"), keys.blob(place, 7)):
        assert key.startswith(f"{DATABASES}{keys.db_id}/")
        assert key < end
        assert DbKeys.database_of(key) == keys.db_id
        assert DbKeys.of_segment(key) is None or key == keys.slot(1)


ULID = "0" * 26


@pytest.mark.parametrize(
    "name",
    [
        f"delta/L{1:020d}-L{2:020d}-e1-{ULID}.image",
        f"image/img-L{1:020d}-e1-{ULID}.image",
        f"image/img-L{1:020d}-c1-{ULID}.delta",
        f"delta/L1-L2-e1-{ULID}.delta",
        f"delta/L{1:020d}-L{2:020d}-e01-{ULID}.delta",
        f"delta/L{1:020d}-L{2:020d}-c-{ULID}.delta",
        f"x/delta/L{1:020d}-L{2:020d}-e1-{ULID}.delta",
        "branches/side.json",
        "",
    ],
)
def test_what_is_no_name_of_a_layer_is_none(name: str) -> None:
    assert LayerName.parse(name) is None


@pytest.mark.parametrize(
    "key", ["db/x/log/1", "db/log/00000000000000000001", "db//log/00000000000000000001", "db/x", "x"]
)
def test_what_is_no_key_of_a_segment_is_none(key: str) -> None:
    assert DbKeys.of_segment(key) is None
