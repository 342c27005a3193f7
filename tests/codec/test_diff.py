"""Diffs of documents replay exactly."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worm.collections.difference import Diff, apply, diff
from worm.errors import Corrupt
from worm.formats.strict_json import JsonObject, JsonValue, dumps, loads_document, same

TRICKY: list[JsonValue] = [None, "", 0, 0.0, -0.0, False, 1, 1.0, True, "1", [], {}, [1], [1.0], [True], {"a": None}]
NAMES = st.sampled_from(["a", "b", "c", "d", "é", ""])
INNER: st.SearchStrategy[JsonValue] = st.recursive(
    st.sampled_from(TRICKY), lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3)
)
DOCUMENTS: st.SearchStrategy[JsonObject] = st.dictionaries(NAMES, INNER, max_size=5)


def entry_fields(change: Diff) -> JsonObject:
    """What an oplog entry holds of a diff."""
    fields: JsonObject = {"diff": {name: list(pair) for name, pair in change.diff.items()}}
    absent = change.needed_absent()
    if absent is not None:
        fields["absent"] = {side: list[JsonValue](names) for side, names in absent.items()}
    return fields


@given(st.none() | DOCUMENTS, DOCUMENTS)
def test_applying_a_diff_gives_exactly_the_later_document(before: JsonObject | None, after: JsonObject) -> None:
    change = diff(before, after)
    assert dumps(apply(before, change.diff, change.absent)) == dumps(after)


@given(DOCUMENTS, DOCUMENTS)
def test_a_diff_survives_being_stored_in_an_entry(before: JsonObject, after: JsonObject) -> None:
    entry = loads_document(dumps(entry_fields(diff(before, after))))
    entry_diff, absent = entry["diff"], entry.get("absent")
    assert isinstance(entry_diff, dict)
    assert absent is None or isinstance(absent, dict)
    pairs = {name: pair for name, pair in entry_diff.items() if isinstance(pair, list)}
    sides = {side: [str(name) for name in names] for side, names in (absent or {}).items() if isinstance(names, list)}
    assert dumps(apply(before, pairs, sides)) == dumps(after)


@given(INNER, INNER)
def test_values_are_the_same_exactly_when_their_canonical_bytes_are(one: JsonValue, other: JsonValue) -> None:
    assert same(one, other) is (dumps(one) == dumps(other))


def test_missing_null_empty_and_the_faces_of_zero_and_one_are_all_different() -> None:
    alike = [(at, to) for at, one in enumerate(TRICKY) for to, other in enumerate(TRICKY) if same(one, other)]
    assert alike == [(at, at) for at in range(len(TRICKY))]
    for one in TRICKY:
        for other in TRICKY:
            change = diff({"a": one}, {"a": other})
            assert dumps(apply({"a": one}, change.diff, change.absent)) == dumps({"a": other})


def test_an_equal_document_has_an_empty_diff() -> None:
    change = diff({"a": {"x": 1, "y": 2}}, {"a": {"y": 2, "x": 1}})
    assert (change, bool(change), entry_fields(change)) == (Diff(), False, {"diff": {}})


def test_the_entry_shape_is_the_one_of_the_format() -> None:
    change = diff({"name": "Acme Corp", "status": "active"}, {"name": "Acme Inc", "status": "active"})
    assert entry_fields(change) == {"diff": {"name": ["Acme Corp", "Acme Inc"]}}


def test_a_missing_field_is_told_from_null() -> None:
    change = diff({"a": None, "b": 1}, {"c": None, "b": None})
    assert entry_fields(change) == {
        "diff": {"a": [None, None], "b": [1, None], "c": [None, None]},
        "absent": {"before": ["c"], "after": ["a"]},
    }


@pytest.mark.parametrize(
    ("before", "entry_diff", "absent"),
    [
        ({"a": 2}, {"a": [1, 3]}, None),
        ({"a": 1.0}, {"a": [1, 3]}, None),
        ({}, {"a": [None, 3]}, None),
        ({"a": None}, {"a": [None, 3]}, {"before": ["a"]}),
        ({"a": 1}, {"a": [1]}, None),
    ],
)
def test_a_diff_that_does_not_fit_is_corruption(
    before: JsonObject, entry_diff: dict[str, list[JsonValue]], absent: dict[str, list[str]] | None
) -> None:
    """Replay that goes on after a gap would invent a document that never existed."""
    with pytest.raises(Corrupt, match="diff of field 'a'"):
        apply(before, entry_diff, absent)
