"""On random rows and random filters, every way to an answer gives the one of the plain oracle."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cmp_to_key, partial

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from tests.examples import examples
from tests.query.filter_oracle import DOCUMENTS, FILTERS, ROWS, SORTS, Dice, compare_rows, oracle, value_of
from worm.collections.entries import project
from worm.formats.strict_json import JsonValue
from worm.query.filters import Filter
from worm.query.query import Query, Row
from worm.tables.columns import Columns


def columns_of(rows: list[Row]) -> Columns:
    without_id = [{name: value for name, value in row.items() if name != "id"} for row in rows]
    return Columns.of([str(row["id"]) for row in rows], without_id)


@settings(max_examples=examples(100), deadline=None)
@given(ROWS, FILTERS)
def test_a_filter_matches_as_the_oracle_says_by_row_and_by_column(
    rows: list[Row], filter: Mapping[str, JsonValue]
) -> None:
    compiled = Filter.compile(filter)
    expected = [oracle(filter, row) for row in rows]
    assert [compiled.matches(row) for row in rows] == expected
    assert list(compiled.positions(columns_of(rows))) == [at for at, good in enumerate(expected) if good]


@settings(max_examples=examples(40), deadline=None)
@given(DOCUMENTS, FILTERS)
def test_a_row_of_whole_fields_matches_as_its_document_does(document: Row, filter: Mapping[str, JsonValue]) -> None:
    row = {"id": "x", **project(document, ("a", "b", "c", "a.b", "b.a"))}
    assert Filter.compile(filter).matches(row) is oracle(filter, {"id": "x", **document})


@settings(max_examples=examples(60), deadline=None)
@given(ROWS, FILTERS, SORTS, st.integers(0, 14), st.integers(0, 5))
def test_a_query_sorts_and_pages_as_the_oracle_says_over_rows_and_columns(
    rows: list[Row], filter: Mapping[str, JsonValue], sort: list[tuple[str, str]], limit: int, offset: int
) -> None:
    _compare(rows, filter, sort, limit, offset)


def _compare(
    rows: list[Row], filter: Mapping[str, JsonValue], sort: list[tuple[str, str]], limit: int, offset: int
) -> None:
    matching = [row for row in rows if oracle(filter, row)]
    ordered = sorted(matching, key=cmp_to_key(partial(compare_rows, sort=sort)))
    orders = [{"field": field, "order": direction} for field, direction in sort]
    whole = Query.of(filter=filter, sort=orders)
    assert whole.run(rows) == ordered
    assert whole.run_columns(columns_of(rows)) == ordered
    part = Query.of(filter=filter, sort=orders, limit=limit, offset=offset, select=["b", "a.b"])
    expected = [_selected(row, ("b", "a.b")) for row in ordered[offset : offset + limit]]
    assert part.run(rows) == expected
    assert part.run_columns(columns_of(rows)) == expected


@pytest.mark.parametrize("batch", [0, *(pytest.param(batch, marks=pytest.mark.slow) for batch in range(1, 5))])
def test_seeded_filters_sorts_and_pages_are_as_the_oracle_says(batch: int) -> None:
    for seed in range(batch * 50, batch * 50 + 50):
        dice = Dice(seed)
        rows, sort = dice.rows(), dice.sort()
        for _ in range(3):
            wanted = dice.filter()
            expected = [at for at, row in enumerate(rows) if oracle(wanted, row)]
            assert list(Filter.compile(wanted).positions(columns_of(rows))) == expected, f"seed {seed}"
            _compare(rows, wanted, sort, dice.number(6), dice.number(6))
        _compare(rows, {}, sort, dice.number(3), 0)


@settings(max_examples=examples(50), deadline=None)
@given(ROWS, FILTERS, SORTS, st.integers(1, 4))
def test_pages_by_cursor_make_up_the_whole_answer(
    rows: list[Row], filter: Mapping[str, JsonValue], sort: list[tuple[str, str]], limit: int
) -> None:
    orders = [{"field": field, "order": direction} for field, direction in sort]
    columns = columns_of(rows)
    paged: list[Row] = []
    cursor: str | None = None
    for _ in range(len(rows) + 1):
        query = Query.of(filter=filter, sort=orders, limit=limit, cursor=cursor)
        page = query.page_columns(columns)
        assert query.page(rows) == page
        paged += page.rows
        cursor = page.cursor
        if cursor is None:
            break
    assert cursor is None
    assert paged == Query.of(filter=filter, sort=orders).run(rows)


@settings(max_examples=examples(50), deadline=None)
@given(ROWS, DOCUMENTS, SORTS, st.integers(1, 4), st.integers(0, 11))
def test_rows_that_come_and_go_between_pages_make_no_other_row_appear_twice_or_never(
    rows: list[Row], new: Row, sort: list[tuple[str, str]], limit: int, removed: int
) -> None:
    orders = [{"field": field, "order": direction} for field, direction in sort]
    first = Query.of(sort=orders, limit=limit).page(rows)
    gone = {f"r{removed:02}"}
    later = [row for row in rows if row["id"] not in gone] + [{"id": "new", **new}]
    rest = [] if first.cursor is None else Query.of(sort=orders, cursor=first.cursor).run(later)
    seen = [row for row in [*first.rows, *rest] if row["id"] not in gone | {"new"}]
    assert seen == [row for row in Query.of(sort=orders).run(rows) if row["id"] not in gone]


def _selected(row: Row, fields: tuple[str, ...]) -> Row:
    found = {field: value_of(row, field) for field in fields}
    return {"id": row["id"], **{field: value[0] for field, value in found.items() if value}}
