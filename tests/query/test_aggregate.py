from __future__ import annotations

import sys
from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction
from functools import cmp_to_key
from typing import cast

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from tests.examples import examples
from tests.query.filter_oracle import FILTERS, ROWS, compare, ends_in, is_equal, oracle, value_of
from worm.errors import Invalid
from worm.formats.strict_json import JsonValue
from worm.query.aggregate import Aggregate, Distinct
from worm.query.query import Row
from worm.tables.columns import Columns

INVOICES: list[Row] = [
    {"id": "1", "status": "paid", "currency": "USD", "amount": 1000, "at": "2026-01-02T00:00:00Z"},
    {"id": "2", "status": "paid", "currency": "USD", "amount": 2000, "at": "2026-01-01T00:00:00Z"},
    {"id": "3", "status": "draft", "currency": "USD", "amount": 800, "at": "2026-03-01T00:00:00Z"},
    {"id": "4", "status": "draft", "currency": "EUR", "amount": 50},
]


def result(rows: list[Row], **aggregate: object) -> dict[str, JsonValue]:
    """Over rows and over columns, which must give the same, types included."""
    checked = Aggregate.of(**aggregate)  # type: ignore[arg-type]  # arguments of a table of cases
    found = checked.run(rows)
    assert repr(checked.run_columns(columns_of(rows))) == repr(found)
    return found


def columns_of(rows: list[Row]) -> Columns:
    return Columns.of([str(row["id"]) for row in rows], [{key: row[key] for key in row if key != "id"} for row in rows])


def over(*values: JsonValue, **aggregate: object) -> dict[str, JsonValue]:
    return result([{"id": str(at), "v": value} for at, value in enumerate(values)], **aggregate)


def refusal(**aggregate: object) -> str:
    with pytest.raises(Invalid) as caught:
        Aggregate.of(**aggregate)  # type: ignore[arg-type]  # arguments of a table of cases
    return str(caught.value)


def test_the_documented_examples() -> None:
    assert result(INVOICES, count=True) == {"count": 4}
    assert result(INVOICES, group_by="status", count=True) == {
        "groups": {"draft": {"count": 2}, "paid": {"count": 2}},
    }
    assert result(INVOICES, group_by="status", sum="amount", avg="amount", filter={"currency": "USD"}) == {
        "groups": {"paid": {"sum": 3000, "avg": 1500}, "draft": {"sum": 800, "avg": 800}},
    }
    assert result(INVOICES, min="amount", max="amount") == {"min": 50, "max": 2000}
    assert result(INVOICES, min="at", max="at") == {"min": "2026-01-01T00:00:00Z", "max": "2026-03-01T00:00:00Z"}


def test_nothing_matches() -> None:
    everything = {"count": True, "sum": "v", "avg": "v", "min": "v", "max": "v"}
    assert result([], **everything) == {"count": 0, "sum": 0, "avg": None, "min": None, "max": None}
    assert over(1, filter={"v": 2}, **everything) == {"count": 0, "sum": 0, "avg": None, "min": None, "max": None}
    assert result([], group_by="v", count=True) == {"groups": {}}
    assert result([], group_by=["v"], count=True) == {"groups": []}


def test_sums_are_those_of_the_decimals_that_are_written() -> None:
    assert over(0.1, 0.2, sum="v", avg="v") == {"sum": 0.3, "avg": 0.15}
    assert over(*[0.1] * 10, sum="v") == {"sum": 1}
    assert over(1e308, 1e-308, -1e308, sum="v") == {"sum": 1e-308}
    assert over(2**53, 0.5, 0.5, sum="v") == {"sum": float(2**53 + 1)}


def test_sums_of_integers_are_exact_at_any_size() -> None:
    assert over(2**63, 2**63, 2**63, sum="v", avg="v") == {"sum": 3 * 2**63, "avg": 2**63}
    assert over(2**60 + 1, 2**60, sum="v") == {"sum": 2**61 + 1}


def test_a_sum_beyond_the_floats_is_given_as_an_integer_and_not_as_infinity() -> None:
    assert over(1.5e308, 1.5e308, sum="v", avg="v") == {"sum": 3 * 10**308, "avg": 1.5e308}


@pytest.mark.parametrize(("values", "shown"), [((1.0, 1), "2"), ((1.5, 1.5), "3"), ((1, 2), "3"), ((1.5, 1), "2.5")])
def test_a_whole_result_is_an_integer(values: tuple[float, ...], shown: str) -> None:
    assert repr(over(*values, sum="v")["sum"]) == shown


def test_sum_and_avg_leave_out_null_missing_and_paths_through_arrays() -> None:
    rows: list[Row] = [
        {"id": "1", "v": 1, "a": {"b": 5}},
        {"id": "2", "v": None, "a": [{"b": 7}]},
        {"id": "3", "a": None},
        {"id": "4", "v": 2},
    ]
    assert result(rows, sum=["v", "a.b"], avg="v", count=True) == {"count": 4, "sum": {"v": 3, "a.b": 5}, "avg": 1.5}
    assert over(None, sum="v", avg="v", percentiles={"v": 50}) == {
        "sum": 0,
        "avg": None,
        "percentiles": {"v": {"50": None}},
    }


@pytest.mark.parametrize("value", [True, "5", [7], {"x": 1}])
@pytest.mark.parametrize("asked", [{"sum": "v"}, {"avg": ["v"]}, {"percentiles": {"v": 50}}])
def test_a_sum_over_something_else_than_numbers_names_field_and_document(
    value: JsonValue, asked: dict[str, object]
) -> None:
    """An amount that somebody wrote as text would otherwise be left out of a total in silence."""
    rows: list[Row] = [{"id": "a", "v": 1}, {"id": "b", "v": value, "w": 1}]
    checked = Aggregate.of(**asked)  # type: ignore[arg-type]  # arguments of a table of cases
    with pytest.raises(Invalid, match="'v' of document 'b' is not a number, but of type") as caught:
        checked.run(rows)
    assert caught.value.path == next(iter(asked))
    with pytest.raises(Invalid, match="'v' of document 'b' is not a number, but of type"):
        checked.run_columns(columns_of(rows))
    assert result(rows, filter={"w": {"$exists": False}}, **asked)


def test_several_of_a_kind_are_by_field_and_one_that_is_not_listed_stays_as_it_was() -> None:
    rows: list[Row] = [{"id": "1", "total": 10, "tax": 2}, {"id": "2", "total": 30, "tax": 4}]
    assert result(rows, sum=["total", "tax"], avg="total", min=["tax"], max="tax", count=True) == {
        "count": 2,
        "sum": {"total": 40, "tax": 6},
        "avg": 20,
        "min": {"tax": 2},
        "max": 4,
    }
    assert result(rows, group_by=["tax"], sum=["total"]) == {
        "groups": [{"key": {"tax": 2}, "sum": {"total": 10}}, {"key": {"tax": 4}, "sum": {"total": 30}}]
    }


def test_percentiles_lie_between_the_values_next_to_them() -> None:
    asked = {"percentiles": {"v": [0, 25, 50, 99.9, 100]}}
    assert over(1, 2, 3, 4, **asked) == {"percentiles": {"v": {"0": 1, "25": 1.75, "50": 2.5, "99.9": 3.997, "100": 4}}}
    assert over(7, percentiles={"v": [50.0, 50]}) == {"percentiles": {"v": {"50": 7}}}
    assert over(0.1, 0.2, None, percentiles={"v": 50}) == {"percentiles": {"v": {"50": 0.15}}}
    assert over(2**60 + 1, 2**60 + 3, percentiles={"v": 50}) == {"percentiles": {"v": {"50": 2**60 + 2}}}


SALES: list[Row] = [
    {"id": "1", "city": "Rome", "n": 1, "m": 5},
    {"id": "2", "city": "Rome", "n": 3, "m": 5},
    {"id": "3", "city": "Oslo", "n": 10, "m": 5},
    {"id": "4", "city": "Bern", "m": 5},
]


@pytest.mark.parametrize(
    ("having", "groups"),
    [
        ({"count": {"$gt": 1}}, ["Rome"]),
        ({"sum": {"$gte": 4}}, ["Oslo", "Rome"]),
        ({"sum.n": {"$gte": 4}, "count": 1}, ["Oslo"]),
        ({"max.n": None}, ["Bern"]),
        ({"$or": [{"max.m": 6}, {"percentiles.n.50": 2}]}, ["Rome"]),
        ({}, ["Bern", "Oslo", "Rome"]),
    ],
)
def test_having_chooses_groups_by_their_totals(having: dict[str, object], groups: list[str]) -> None:
    asked: dict[str, object] = {"sum": "n", "max": ["n", "m"], "percentiles": {"n": 50}, "having": having}
    found = result(SALES, group_by="city", **asked)["groups"]
    assert isinstance(found, dict)
    assert list(found) == groups
    listed = result(SALES, group_by=["city"], **asked)["groups"]
    assert isinstance(listed, list)
    assert [cast("dict[str, dict[str, str]]", group)["key"]["city"] for group in listed] == groups


def distinct(rows: list[Row], field: str, filter: Mapping[str, object] | None = None) -> list[JsonValue]:
    """Over rows and over columns, which must give the same, types included."""
    checked = Distinct.of(field, filter)
    found = checked.run(rows)
    assert repr(checked.run_columns(columns_of(rows))) == repr(found)
    return found


def test_distinct_values_are_in_the_order_of_sort_and_arrays_give_their_elements() -> None:
    values: list[JsonValue] = [["b", "a"], "a", 1.0, 1, True, None, [], [[1]], {"x": 1.0}, {"x": 1}, "c"]
    rows: list[Row] = [{"id": str(at), "v": value} for at, value in enumerate(values)]
    assert repr(distinct([*rows, {"id": "x"}], "v")) == repr([None, 1, "a", "b", "c", [1], {"x": 1}, True])
    assert distinct(rows, "v", {"v": {"$type": "string"}}) == ["a", "b", "c"]
    assert distinct(rows, "id", {"v": "a"}) == ["0", "1"]
    assert distinct([], "v") == []


def test_distinct_values_of_a_path_through_arrays_are_those_of_all_its_objects() -> None:
    rows: list[Row] = [{"id": "1", "a": [{"b": 1}, {"b": [2, 3]}, {}, 9]}, {"id": "2", "a": {"b": 0}}, {"id": "3"}]
    assert distinct(rows, "a.b") == [0, 1, 2, 3]


def test_distinct_takes_one_field() -> None:
    for field in ("", ["a"], None):
        with pytest.raises(Invalid, match="distinct: must be the name of one field"):
            Distinct.of(field)  # type: ignore[arg-type]  # arguments of a table of cases


@settings(max_examples=examples(60), deadline=None)
@given(ROWS, st.sampled_from(["a", "b", "a.b", "a.b.c", "id"]), FILTERS)
def test_distinct_values_are_the_classes_of_equal_values(
    rows: list[Row], field: str, filter: dict[str, JsonValue]
) -> None:
    ends = [end[0] for row in rows if oracle(filter, row) for end in ends_in(row, field) if end]
    values = [value for end in ends for value in (end if isinstance(end, list) else [end])]
    classes: list[JsonValue] = []
    for value in values:
        if not any(is_equal(value, known) for known in classes):
            classes.append(value)
    found = distinct(rows, field, filter)
    assert len(found) == len(classes)
    assert all(any(is_equal(value, known) for known in classes) for value in found)
    assert found == sorted(found, key=cmp_to_key(compare))


def test_min_and_max_are_over_numbers_and_texts_in_the_order_of_types() -> None:
    rows: list[JsonValue] = ["b", 2, "a", 1.5, True, None, [0], {}]
    assert over(*rows, min="v", max="v") == {"min": 1.5, "max": "b"}
    assert over("b", "a", min="v", max="v") == {"min": "a", "max": "b"}
    assert over(2, 1.0, False, min="v", max="v") == {"min": 1, "max": 2}
    assert over(True, None, min="v", max="v") == {"min": None, "max": None}


def test_groups_of_different_values_never_fall_together() -> None:
    values: list[JsonValue] = [1, 1.0, "1", True, "true", None, "null", "=missing", "=1", [1], [1.0], {}]
    rows: list[Row] = [{"id": "absent"}, *({"id": str(at), "v": value} for at, value in enumerate(values))]
    assert result(rows, group_by="v", count=True) == {
        "groups": {
            "=null": {"count": 1},
            "=1": {"count": 2},
            "1": {"count": 1},
            '="=1"': {"count": 1},
            '="=missing"': {"count": 1},
            "null": {"count": 1},
            "true": {"count": 1},
            "=[1]": {"count": 2},
            "={}": {"count": 1},
            "=true": {"count": 1},
            "=missing": {"count": 1},
        }
    }


def test_groups_by_several_fields_are_listed_with_their_values_and_missing_is_left_out() -> None:
    rows: list[Row] = [
        {"id": "1", "a": {"b": "x"}, "c": True, "n": 1},
        {"id": "2", "a": {"b": "x"}, "c": 1, "n": 2},
        {"id": "3", "a": {"b": "x"}, "c": 1.0, "n": 3},
        {"id": "4", "c": None, "n": 4},
        {"id": "5", "a.b": "x", "n": 5},
    ]
    assert result(rows, group_by=["a.b", "c"], sum="n", count=True) == {
        "groups": [
            {"key": {"a.b": "x", "c": 1}, "count": 2, "sum": 5},
            {"key": {"a.b": "x", "c": True}, "count": 1, "sum": 1},
            {"key": {"a.b": "x"}, "count": 1, "sum": 5},
            {"key": {"c": None}, "count": 1, "sum": 4},
        ]
    }
    assert result(rows, group_by=["c"], count=True)["groups"] == [
        {"key": {"c": None}, "count": 1},
        {"key": {"c": 1}, "count": 2},
        {"key": {"c": True}, "count": 1},
        {"key": {}, "count": 1},
    ]


def test_fields_are_all_that_it_reads() -> None:
    aggregate = Aggregate.of(sum=["a", "i"], avg="b", min="c", max="d", group_by=["e", "f.g"], filter={"h": 1})
    assert aggregate.fields() == {"a", "b", "c", "d", "e", "f.g", "h", "i"}
    having = {"count": 1, "percentiles.p.9": 2}
    assert Aggregate.of(percentiles={"p": 9}, group_by="g", having=having).fields() == {"p", "g"}
    assert Aggregate.of(count=True, group_by="status").fields() == {"status"}


@pytest.mark.parametrize(
    ("aggregate", "part"),
    [
        ({}, "nothing to compute"),
        ({"group_by": "status"}, "ask for count, sum, avg, min, max or percentiles"),
        ({"sum": ["a", "a"]}, "sum: must be a field or a list of different fields"),
        ({"avg": []}, "avg: must be a field or a list of different fields"),
        ({"min": 1}, "min: must be a field or a list of different fields"),
        ({"max": [1]}, "max: must be a field or a list of different fields"),
        (
            {"percentiles": ["a"]},
            'percentiles: must have fields, each with up to 100 numbers from 0 to 100 (write {"total"',
        ),
        ({"percentiles": {"a": []}}, "percentiles: must have fields"),
        ({"percentiles": {"a": [101]}}, "percentiles: must have fields"),
        ({"percentiles": {"a": [True]}}, "percentiles: must have fields"),
        ({"percentiles": {"a": "50"}}, "percentiles: must have fields"),
        ({"percentiles": {"a": float("nan")}}, "percentiles: must have fields"),
        ({"count": True, "having": {"count": 1}}, "having: having needs groups (pass group_by"),
        (
            {"sum": "a", "group_by": "g", "having": {"avg": 1}},
            "'avg' is not part of the result (the result has: count, sum, sum.a)",
        ),
        (
            {"sum": ["a"], "group_by": "g", "having": {"sum": 1}},
            "'sum' is not part of the result (the result has: count, sum.a)",
        ),
        ({"count": True, "group_by": "g", "having": {"count": {"gt": 3}}}, "did you mean $gt"),
        ({"count": True, "group_by": []}, "group_by: must be a field or a list of different fields"),
        ({"count": True, "group_by": ["a", "a"]}, "group_by: must be a field or a list of different fields"),
        ({"count": True, "group_by": ["a", 1]}, "group_by: must be a field or a list of different fields"),
        ({"count": True, "filter": {"$where": "1"}}, "unknown operator '$where'"),
    ],
)
def test_what_is_not_an_aggregate_is_refused(aggregate: dict[str, object], part: str) -> None:
    assert part in refusal(**aggregate)


NUMBERS = st.lists(st.one_of(st.integers(-(2**63), 2**64 - 1), st.floats(allow_nan=False, allow_infinity=False)))


@settings(max_examples=examples(150), deadline=None)
@given(NUMBERS)
def test_sums_and_averages_are_the_exact_ones_rounded_once(numbers: list[int | float]) -> None:
    exact = sum((Fraction(Decimal(repr(number))) for number in numbers), Fraction(0))
    found = over(*numbers, sum="v", avg="v")
    total, average = found["sum"], found["avg"]
    assert isinstance(total, int | float)
    assert total in (exact, _nearest(exact))
    if all(isinstance(number, int) for number in numbers):
        assert total == exact
    if numbers:
        assert average in (exact / len(numbers), _nearest(exact / len(numbers)))


def _nearest(exact: Fraction) -> float:
    return float(exact) if abs(exact) < Fraction(sys.float_info.max) else round(exact)


@settings(max_examples=examples(60), deadline=None)
@given(ROWS, st.sampled_from(["a", "b", "a.b"]))
def test_groups_are_classes_of_equal_values(rows: list[Row], field: str) -> None:
    classes: list[list[tuple[JsonValue, ...]]] = []
    for row in rows:
        value = value_of(row, field)
        for known in classes:
            if bool(known[0]) is bool(value) and (not value or is_equal(known[0][0], value[0])):
                known.append(value)
                break
        else:
            classes.append([value])
    groups = result(rows, group_by=field, count=True)["groups"]
    assert isinstance(groups, dict)
    counts = [group["count"] for group in groups.values() if isinstance(group, dict)]
    assert sorted(map(repr, counts)) == sorted(repr(len(known)) for known in classes)
