"""Columns of few values are stored by them, and say the same as any other column."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from unittest.mock import patch

import pytest
from hypothesis import given, settings

from tests.examples import examples
from tests.query.filter_oracle import FILTERS, ROWS
from tests.tables.test_column_format import OF, PARTITION, everything, opened, packed, relabelled
from tests.tables.test_parts import exact
from worm.codec.strict_json import INT_MAX, INT_MIN, MISSING, JsonObject, JsonValue, dumps
from worm.collections.entries import Row
from worm.errors import Corrupt
from worm.query.filters import Filter
from worm.tables import column_format
from worm.tables.column_format import ColumnPart, encode_columns
from worm.tables.columns import Columns
from worm.tables.manifest import Manifest


def by_values(cells: Sequence[JsonValue]) -> ColumnPart:
    """Rows with these cells, and with none where it is absent."""
    return opened(Manifest("M", {f"r{at:04d}": {} if one is ABSENT else {"v": one} for at, one in enumerate(cells)}))


ABSENT: JsonValue = "(absent)"
OTHERS: dict[str, list[JsonValue]] = {
    "floats": [0.0, -0.0, 1.5] * 10,
    "arrays": [["a"], ["b"]] * 10,
    "objects": [{}, None] * 10,
    "true and 1": [True, 1, 0, False] * 10,
    "many": [f"value {at % 257}" for at in range(257 * 8)],
    "many, but not at first": [*["a"] * 4096, *(f"value {at}" for at in range(300))],
    "nearly as many as rows": ["a", "b", "c"] * 7,
}


@pytest.mark.parametrize(
    "cells",
    [
        ["active", "inactive", None, ABSENT] * 10,
        [True, False, "true", None] * 10,
        [1, 0, "1", INT_MAX, INT_MIN] * 10,
        ["one"] * 8,
        [ABSENT] * 4 + ["x"] * 300,
        [f"välue {at % 256}" for at in range(256 * 8)],
    ],
)
def test_a_column_of_few_values_is_stored_by_them(cells: list[JsonValue]) -> None:
    found = by_values(cells)
    coded = found.coded("v")
    assert coded is not None
    assert len(coded.values) == len(set(map(str, map(exact, ([one] for one in cells)))))
    assert exact(found.cells("v")) == exact([MISSING if one is ABSENT else one for one in cells])
    assert [found.row(at).get("v", ABSENT) for at in range(len(cells))] == cells
    column = Columns([found]).column("v")
    assert column.coded is not None
    assert column.kinds == frozenset(map(type, column.cells))


@pytest.mark.parametrize("name", OTHERS)
def test_any_other_column_is_not(name: str) -> None:
    found = by_values(OTHERS[name])
    assert found.coded("v") is None
    assert exact(found.cells("v")) == [dumps(cell) for cell in OTHERS[name]]


def test_columns_by_values_are_joined_as_long_as_their_values_have_codes() -> None:
    def joined(*parts: list[JsonValue]) -> tuple[bool, list[object]]:
        column = Columns([by_values(part) for part in parts]).column("v")
        return column.coded is not None, exact(column.cells)

    few: list[JsonValue] = ["b", "a"] * 8
    assert joined(few, ["c", "a"] * 8, few) == (True, exact([*few, *["c", "a"] * 8, *few]))
    assert joined([1, 2] * 8, [True, False] * 8) == (False, exact([*[1, 2] * 8, *[True, False] * 8]))
    assert joined(few, [0.5, 1.5] * 8) == (False, exact([*few, *[0.5, 1.5] * 8]))
    many: list[JsonValue] = [str(at % 200) for at in range(1600)]
    others: list[JsonValue] = [f"x{at % 57}" for at in range(1600)]
    assert joined(many, others) == (False, exact([*many, *others]))
    assert joined(many, [f"x{at % 56}" for at in range(1600)])[0]


def test_a_path_finds_what_is_in_objects_where_a_column_of_its_name_is_stored_by_values() -> None:
    rows: dict[str, Row] = {f"r{at:02d}": {"a.b": "x"} if at % 2 else {"a": {"b": "y"}} for at in range(32)}
    found = opened(Manifest("M", rows))
    assert b'"values"' in encode_columns(Manifest("M", {one: row for one, row in rows.items() if "a.b" in row}), OF)
    assert list(Filter.compile({"a.b": "y"}).positions(Columns([found]))) == list(range(0, 32, 2))
    assert Columns([found]).values("a.b") == ["y", "x"] * 16


@pytest.mark.slow
@settings(max_examples=examples(100), deadline=None)
@given(ROWS, FILTERS)
def test_a_filter_finds_the_same_in_columns_by_values(found: list[Row], filter: Mapping[str, JsonValue]) -> None:
    rows = {f"{at:02d}": {name: one[name] for name in one if name != "id"} for at, one in enumerate([*found, *found])}
    plain = Columns.of(list(rows), list(rows.values()))
    with patch.object(column_format, "CODED_SHARE", 2):
        stored = Columns([opened(Manifest("M", rows))])
    positions = Filter.compile(filter).positions
    assert list(positions(stored)) == list(positions(plain))


def test_a_file_of_the_first_version_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(column_format, "VERSION", 1)
    monkeypatch.setattr(column_format, "CODED_SHARE", 10**6)
    body = encode_columns(PARTITION, OF)
    monkeypatch.undo()
    assert b'"version":1' in body
    assert body != encode_columns(PARTITION, OF)
    assert opened(PARTITION, body).coded("none") is None
    assert everything(opened(PARTITION, body)) == PARTITION.encode()


def test_ids_that_are_stored_by_values_are_told() -> None:
    part = Manifest("M", {f"r{at:03d}": {} for at in range(200)})
    with patch.object(column_format, "CODED_SHARE", 1):
        body = encode_columns(part, OF)
    with pytest.raises(Corrupt, match="one id for each row"):
        opened(part, body)


CODED_LIES = {
    b'["a"]\0\1': "code",
    b'["a","b"]\0': "code",
    b'["a","b"]\0\1\0': "code",
    b'["a",0.5]\0\1': "without a code",
    b'["a",[]]\0\1': "without a code",
    b"[true,1]\0\1": "without a code",
    b'{"a":1}\0\0': "array",
    dumps(list(map(str, range(257)))) + b"\0\0": "without a code",
}


@pytest.mark.parametrize("text", CODED_LIES)
def test_codes_that_are_not_one_of_a_value_for_each_row_are_told(text: bytes) -> None:
    column, added = packed(text, len(text))
    shape: JsonObject = {"name": "v", **column, "values": 1 + max(text.rfind(b"]"), text.rfind(b"}"))}
    plain = encode_columns(Manifest("M", {"a": {}, "b": {}}), OF)
    body = relabelled(lambda header: header.update(fields=[shape]), plain) + added
    asks: list[Callable[[ColumnPart], object]] = [
        lambda rows: rows.cells("v"),
        lambda rows: rows.coded("v"),
        lambda rows: rows.row(0),
    ]
    for ask in asks:
        with pytest.raises(Corrupt, match=CODED_LIES[text]):
            ask(ColumnPart(body, "key", OF, 10_000))
