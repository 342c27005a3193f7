"""A sketch tells exactly what differs, or that it cannot tell."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worm.sdk.sketch import Sketch

TABLES = st.dictionaries(st.text(max_size=5), st.integers(1, 1000), max_size=80)


@pytest.mark.slow
@settings(deadline=None)
@given(before=TABLES, after=TABLES)
def test_a_difference_tells_exactly_what_differs_or_nothing(before: dict[str, int], after: dict[str, int]) -> None:
    empty = Sketch.empty(60)
    told = empty.plus(after.items()).minus(empty.plus(before.items())).told([*before, *after])
    differs = {one: after.get(one, 0) - before.get(one, 0) for one in {*before, *after}}
    assert told in (None, {one: number for one, number in differs.items() if number})


@pytest.mark.slow
@settings(deadline=None)
@given(changed=st.dictionaries(st.integers(0, 1999), st.integers(1, 9), max_size=12))
def test_a_few_changes_among_many_documents_can_be_told(changed: dict[int, int]) -> None:
    wanted = {f"id-{number}": seq for number, seq in changed.items()}
    told = Sketch.empty(240).plus(wanted.items()).told(f"id-{number}" for number in range(2_000))
    assert told == wanted


def test_more_changes_than_cells_cannot_be_told() -> None:
    ids = [f"id-{number}" for number in range(500)]
    assert Sketch.empty(240).plus((one, 1) for one in ids).told(ids) is None


def test_an_id_that_nobody_names_cannot_be_told() -> None:
    assert Sketch.empty(24).plus([("gone", -3)]).told(["here"]) is None


def test_what_is_added_and_taken_away_leaves_nothing() -> None:
    assert Sketch.empty(24).plus([("a", 3), ("b", 1)]).plus([("b", -1), ("a", -3)]).is_empty
