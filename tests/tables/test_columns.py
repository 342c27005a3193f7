from __future__ import annotations

from worm.collections.entries import Row
from worm.formats.strict_json import MISSING, JsonValue
from worm.tables.cells import Several
from worm.tables.columns import Columns

ROWS: list[Row] = [
    {"a": 1, "a.b": "own", "c": {"d": 2}},
    {"c": [{"d": 3}, {}, 4, {"d": [5]}]},
    {"a": True, "c": None},
]


def test_values_are_in_parallel_with_ids_and_missing_is_not_null() -> None:
    columns = Columns.of(["x", "y", "z"], ROWS)
    assert len(columns) == 3
    assert columns.values("id") == ["x", "y", "z"]
    assert columns.values("a") == [1, MISSING, True]
    assert columns.values("a.b") == ["own", MISSING, MISSING]
    assert columns.values("c") == [{"d": 2}, [{"d": 3}, {}, 4, {"d": [5]}], None]


def test_a_path_through_an_array_has_several_cells_and_no_single_value() -> None:
    column = Columns.of(["x", "y", "z"], ROWS).column("c.d")
    several = column.cells[1]
    assert isinstance(several, Several)
    assert several.cells == [3, MISSING, [5]]
    assert column.values == [2, MISSING, MISSING]


def test_a_column_is_made_once() -> None:
    columns = Columns.of(["x", "y", "z"], ROWS)
    assert columns.column("a") is columns.column("a")
    assert columns.column("a").equality is columns.column("a").equality


def test_a_column_of_one_type_is_its_own_facet() -> None:
    rows: list[Row] = [{"n": 1, "s": "x"}, {"n": 2.5, "s": "y"}]
    columns = Columns.of(["x", "y"], rows)
    assert columns.column("n").numbers is columns.column("n").cells
    assert columns.column("n").equality is columns.column("n").cells
    assert columns.column("s").strings is columns.column("s").cells


def test_facets_hold_one_type_and_nothing_else_that_compares() -> None:
    values: list[JsonValue] = [1, 0.5, "x", True, False, None, [1], {"a": 1}]
    column = Columns.of([str(at) for at in range(8)], [{"v": value} for value in values]).column("v")
    below, above = [-1] * 8, [9] * 8
    assert [number > low for number, low in zip(column.numbers, below, strict=True)] == [True, True] + [False] * 6  # type: ignore[operator]
    assert [number < high for number, high in zip(column.numbers, above, strict=True)] == [True, True] + [False] * 6  # type: ignore[operator]
    assert [at for at, text in enumerate(column.strings) if text >= ""] == [2]  # type: ignore[operator]
    assert [at for at, text in enumerate(column.strings) if text <= "z"] == [2]  # type: ignore[operator]
    assert [at for at, flag in enumerate(column.booleans) if flag >= False] == [3, 4]  # type: ignore[operator]
    assert column.equality.count(1) == 1
    assert column.nested == [6, 7]


def test_positions_are_put_in_the_order_of_ids_where_the_rows_are_not() -> None:
    assert list(Columns.of(["b", "c", "a"], [{}, {}, {}]).in_id_order(range(3))) == [2, 0, 1]
    ordered = range(3)
    assert Columns.of(["a", "b", "c"], [{}, {}, {}]).in_id_order(ordered) is ordered


def test_only_fields_that_hold_arrays_or_objects_are_told_as_nested() -> None:
    assert Columns.of(["x", "y", "z"], ROWS).nested_fields == {"c"}
