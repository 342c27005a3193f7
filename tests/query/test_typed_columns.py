"""Queries on arrays give exactly the answers of queries on cells."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from random import Random
from typing import TypeAlias, cast

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from tests.examples import examples
from tests.query.filter_oracle import FILTERS, ROWS, SORTS
from tests.query.typed_parts import TypedPart, typed_columns
from worm.collections.entries import Row
from worm.errors import Invalid
from worm.formats.strict_json import MISSING, JsonValue, dumps
from worm.query.aggregate import Aggregate, Computed, Distinct
from worm.query.filters import Condition, Filter, condition
from worm.query.query import Query
from worm.tables.columns import Columns
from worm.tables.manifest import Manifest
from worm.tables.parquet import ColumnKind, LakeColumn, encode_parquet
from worm.tables.parquet_part import ParquetPart
from worm.tables.parts import MergedPart, ParsedPart
from worm.tables.typed import Typed

EDGES = (0, 1, -1, 2**53 - 1, 2**53, 2**53 + 1, -(2**53) - 1, 2**62, 2**63 - 1, -(2**63), 2**64 - 1)
FLOATS = (0.1, 0.2, -0.0, 0.0, 2.5, 1e300, 5e-324, 2.0**53, 2.0**63, -(2.0**63), 0.30000000000000004, 3.0)
FEW = ("", "a", "ab", "b", "é", "z\0")
Make: TypeAlias = Callable[[Random], JsonValue]


def _float(dice: Random) -> float:
    drawn: float = struct.unpack("<d", dice.randbytes(8))[0]
    return drawn if math.isfinite(drawn) and dice.random() < 0.3 else dice.choice(FLOATS)


def _cents(dice: Random) -> float:
    return dice.randrange(-(10**9), 10**9) / 100


def _many(dice: Random) -> str:
    letters = "".join(chr(dice.choice((0, 97, 98, 0xE9, 0x7FF, 0xFFFF, 0x1F600))) for _ in range(dice.randrange(12)))
    return dice.choice((letters, f"a common beginning {letters}"))


VALUES: dict[str, Make] = {
    "int": lambda dice: dice.choice((*(one for one in EDGES if one < 2**63), dice.randrange(-3, 3))),
    "big": lambda dice: dice.choice(EDGES),
    "small": lambda dice: dice.randrange(-3, 3),
    "float": _float,
    "cents": _cents,
    "number": lambda dice: dice.choice((dice.randrange(-5, 5), dice.randrange(-5, 5) + 0.25)),
    "mixed": lambda dice: dice.choice((dice.randrange(-3, 3), _float(dice))),
    "bool": lambda dice: dice.random() < 0.5,
    "few": lambda dice: dice.choice(FEW),
    "many": _many,
    "common": lambda dice: f"a common beginning {_many(dice)}",
    "any": lambda dice: dice.choice(cast("list[JsonValue]", [None, True, *EDGES[:4], _float(dice), *FEW[:2], [1], []])),
}
SEEDS = st.integers(0, 2**32)
NUMBERS = st.sampled_from((*EDGES, *FLOATS)) | st.floats(allow_nan=False, allow_infinity=False)
TEXTS = st.sampled_from(FEW) | SEEDS.map(lambda seed: _many(Random(seed)))
ANY = NUMBERS | TEXTS | st.booleans() | st.none() | st.just([1])
COMPARED = ("$eq", "$ne", "$gt", "$gte", "$lt", "$lte")
OTHERS = (
    *({"$exists": True}, {"$exists": False}, {"$startsWith": "a"}, {"$contains": "a"}, {"$contains": 1}, {"$size": 1}),
    *({"$regex": "^a|é$"}, *({"$type": name} for name in ("integer", "number", "string", "boolean", "null"))),
)


@st.composite
def leaves(draw: st.DrawFn) -> dict[str, object]:
    """A condition on a field, mostly with values that the field has."""
    field, seed = draw(st.sampled_from([*VALUES])), draw(SEEDS)
    dice = Random(seed)
    values = [VALUES[field](dice) if dice.random() < 0.8 else draw(ANY) for _ in range(dice.randrange(1, 4))]
    scalars = [value for value in values if isinstance(value, str | int | float)]
    kind = dice.randrange(10)
    if kind == 0 or not scalars:
        return {field: dice.choice(OTHERS)}
    if kind < 4:
        return {field: {dice.choice(("$in", "$nin")): values}}
    return {field: {dice.choice(COMPARED): scalars[0]}}


CONDITIONS = st.lists(leaves(), min_size=1, max_size=2).map(lambda parts: {"$and": parts})
WANTED = st.one_of(
    CONDITIONS,
    st.lists(CONDITIONS, min_size=1, max_size=3).map(lambda parts: {"$or": parts}),
    CONDITIONS.map(lambda inner: {"$not": inner}),
)


def made(seed: int) -> list[Row]:
    """Up to 60 rows in the order of their ids. Some lack a field that others have."""
    dice = Random(seed)
    lacking = {name: dice.choice((0, 0, 0.3, 0.9)) for name in VALUES}
    return [
        {"id": f"{at:03}", **{name: make(dice) for name, make in VALUES.items() if dice.random() >= lacking[name]}}
        for at in range(dice.choice((0, 1, 5, 60)))
    ]


TABLES = SEEDS.map(made)


def cells_of(rows: Sequence[Row]) -> Columns:
    return Columns.of(
        [str(row["id"]) for row in rows], [{name: row[name] for name in row if name != "id"} for row in rows]
    )


def exact(work: Callable[[], object]) -> object:
    """The answer with every number's type, or the error."""
    try:
        return repr(work())
    except Invalid as error:
        return repr(error)


@settings(max_examples=examples(150), deadline=None)
@given(TABLES, WANTED, st.integers(1, 3))
def test_a_filter_finds_the_same_rows(rows: list[Row], wanted: Mapping[str, object], parts: int) -> None:
    compiled = Filter.compile(wanted)
    expected = [at for at, row in enumerate(rows) if compiled.matches(row)]
    assert list(compiled.positions(cells_of(rows))) == expected
    assert list(compiled.positions(typed_columns(rows, parts))) == expected


@settings(max_examples=examples(60), deadline=None)
@given(ROWS, FILTERS, SORTS, st.integers(1, 3))
def test_rows_of_the_oracle_are_the_same(
    rows: list[Row], wanted: Mapping[str, JsonValue], sort: list[tuple[str, str]], parts: int
) -> None:
    rows = sorted({str(row["id"]): row for row in rows}.values(), key=lambda row: str(row["id"]))
    query = Query.of(filter=wanted, sort=[{"field": field, "order": order} for field, order in sort], limit=3)
    assert exact(lambda: query.page_columns(typed_columns(rows, parts))) == exact(
        lambda: query.page_columns(cells_of(rows))
    )


ORDERS = st.lists(st.tuples(st.sampled_from([*VALUES]), st.sampled_from([1, -1])), max_size=3)


@settings(max_examples=examples(150), deadline=None)
@given(TABLES, WANTED | st.just({}), ORDERS, st.integers(1, 7), st.integers(1, 3))
def test_pages_are_the_same(
    rows: list[Row], wanted: Mapping[str, object], sort: list[tuple[str, int]], limit: int, parts: int
) -> None:
    """Following the cursors to the end."""
    cells, arrays, cursor = cells_of(rows), typed_columns(rows, parts), None
    whole = Query.of(filter=wanted, sort=sort)
    assert exact(lambda: whole.run_columns(arrays)) == exact(lambda: whole.run_columns(cells))
    while True:
        query = Query.of(filter=wanted, sort=sort, limit=limit, cursor=cursor)
        expected, found = query.page_columns(cells), query.page_columns(arrays)
        assert (repr(found.rows), found.cursor, list(found.positions)) == (
            repr(expected.rows),
            expected.cursor,
            list(expected.positions),
        )
        assert {type(at) for at in found.positions} <= {int}
        if (cursor := found.cursor) is None:
            return


@settings(max_examples=examples(150), deadline=None)
@given(TABLES, WANTED | st.just({}), st.lists(st.sampled_from([*VALUES]), max_size=2, unique=True), st.integers(1, 3))
def test_totals_are_the_same(rows: list[Row], wanted: Mapping[str, object], groups: list[str], parts: int) -> None:
    cells, arrays = cells_of(rows), typed_columns(rows, parts)
    numbers = ["int", "big", "small", "float", "cents", "number", "mixed"]
    for field in VALUES:
        summed = [field] if field in numbers else None
        aggregate = Aggregate.of(
            count=True,
            sum=summed,
            avg=summed,
            min=[field],
            max=[field],
            percentiles={field: [0, 50, 99.5]} if summed else None,
            group_by=groups or None,
            filter=wanted,
        )
        computations: tuple[Computed[object], ...] = (aggregate, Distinct.of(field, wanted))
        for computed in computations:
            expected = exact(partial(computed.run_columns, cells))
            assert exact(partial(computed.run_columns, arrays)) == expected, field


@settings(max_examples=examples(60), deadline=None)
@given(TABLES, TABLES, st.sampled_from(["id", *VALUES]))
def test_newer_rows_are_merged_into_arrays(older: list[Row], newer: list[Row], field: str) -> None:
    """Of the newer rows, every third one is a deletion."""

    def manifest(rows: Sequence[Row], seq: int, gone: int) -> Manifest:
        kept = {str(row["id"]): {one: row[one] for one in row if one != "id"} for row in rows}
        seqs = dict.fromkeys(kept, seq)
        return Manifest("M", {one: kept[one] for at, one in enumerate(kept) if not gone or at % gone}, seqs=seqs)

    base, delta = manifest(older, 1, 0), manifest(newer, 2, 3)
    arrays = Columns([MergedPart.of(TypedPart.of(base), delta)])
    cells = Columns([MergedPart.of(ParsedPart.of(base), delta)])
    assert repr(arrays.column(field).cells) == repr(cells.column(field).cells)


@pytest.mark.parametrize("op", ["$gt", "$gte", "$lt", "$lte", "$eq", "$ne"])
@pytest.mark.parametrize("bound", [*EDGES, *(float(one) for one in EDGES), 0.5, -0.5, 1e308, -1e308, 2**53 + 0.0])
def test_large_numbers_are_compared_exactly(op: str, bound: float) -> None:
    for numbers in ([one for one in EDGES if one < 2**63], [float(one) for one in EDGES]):
        rows: list[Row] = [{"id": f"{at:02}", "n": number} for at, number in enumerate(numbers)]
        columns, compiled = typed_columns(rows), Filter.compile({"n": {op: bound}})
        assert columns.column("n").typed is not None
        assert list(compiled.positions(columns)) == [at for at, row in enumerate(rows) if compiled.matches(row)]


def test_sums_stay_exact_where_64_bits_end() -> None:
    def total(numbers: Sequence[float]) -> str:
        rows: list[Row] = [{"id": f"{at:02}", "n": number} for at, number in enumerate(numbers)]
        columns = typed_columns(rows)
        assert columns.column("n").typed is not None
        return dumps(Aggregate.of(sum="n").run_columns(columns)).decode()

    assert total([2**63 - 1, 2**63 - 1, 1]) == '{"sum":18446744073709551615}'
    assert total([0.1] * 10) == '{"sum":1}'
    assert total([0.1, 0.2]) == '{"sum":0.3}'
    assert total([1e16, 1.0, -1e16]) == '{"sum":1}'
    assert total([2**53, 2**53, 0.5, 0.5]) == '{"sum":1.8014398509481984e+16}'


def test_a_large_sum_of_integers_is_an_integer_beside_fractions() -> None:
    rows: list[Row] = [{"id": f"{at:04}", "n": 10**13} for at in range(1000)]
    aggregate = Aggregate.of(sum="n", filter={"n": {"$gt": 1}})
    assert repr(aggregate.run_columns(typed_columns([*rows, {"id": "x", "n": 0.5}]))) == "{'sum': 10000000000000000}"


def test_groups_by_many_fields_are_the_same() -> None:
    """The numbers of their groups do not fit into 64 bits."""
    names = [f"f{number}" for number in range(17)]
    rows: list[Row] = [
        {"id": f"{at:03}", **dict.fromkeys(names, at // 15 % 15), "f0": at % 15, "n": 1} for at in range(400)
    ]
    aggregate = Aggregate.of(sum="n", group_by=names)
    assert aggregate.run_columns(typed_columns(rows)) == aggregate.run_columns(cells_of(rows))


@pytest.mark.parametrize("count", [0, 1, 3, 40, 300])
def test_cells_are_taken_from_several_parts_in_any_order(count: int) -> None:
    cells = [MISSING if at % 7 == 3 else f"text {at}" for at in range(200)]
    parts = [Typed.of("text", cells[start:end]) for start, end in ((0, 0), (0, 90), (90, 91), (91, 91), (91, 200))]
    joined = Typed.joined([part for part in parts if part is not None])
    positions = Random(count).choices(range(200), k=count)
    assert joined is not None
    assert joined.cells(positions) == [cells[at] for at in positions]


def test_a_part_without_rows_changes_nothing() -> None:
    part = TypedPart(["a"], [{"n": 1}])
    assert Columns([part, ParsedPart([], [])]).column("n").typed is not None


def test_a_path_is_typed_only_if_no_object_may_have_its_values() -> None:
    def typed(rows: dict[str, Row], *fields: str) -> bool:
        columns = [
            LakeColumn(one.replace(".", "_"), one, ColumnKind("json" if one == "a" else "long")) for one in fields
        ]
        part = ParquetPart(encode_parquet(Manifest("M", rows), columns, "x"), "key", "x", columns)
        cells, plain = Columns([part]).column("a.b"), Columns.of(list(rows), list(rows.values())).column("a.b")
        assert list(map(Condition.holds, [condition("$eq", 1)] * 2, cells.cells)) == [
            condition("$eq", 1).holds(cell) for cell in plain.cells
        ]
        return cells.typed is not None

    assert typed({"x": {"a.b": 1}, "y": {"a.b": 2}}, "a.b")
    assert not typed({"x": {"a": [{"b": 1}]}, "y": {"a.b": 2}}, "a", "a.b")
    assert not typed({"x": {"a": [{"b": 1}]}, "y": {"a.b": 2}}, "a.b")


def test_the_first_texts_are_found_whatever_their_lengths() -> None:
    for seed in range(examples(200)):
        dice = Random(seed)
        texts = ["".join(dice.choice("\0ab") for _ in range(dice.randrange(10))) for _ in range(40)]
        rows: list[Row] = [{"id": f"{at:02}", "t": f"{dice.choice(('', 'x'))}{text}"} for at, text in enumerate(texts)]
        for order in ("t", "-t"):
            query = Query.of(sort=[order], limit=4)
            assert query.run_columns(typed_columns(rows)) == query.run_columns(cells_of(rows)), seed


def test_a_column_of_one_kind_is_typed_across_parts_and_others_are_not() -> None:
    def kind(*cells: JsonValue) -> str | None:
        typed = typed_columns([{"id": str(at), "n": one} for at, one in enumerate(cells)], 2).column("n").typed
        return None if typed is None else typed.kind

    assert (kind(1, 2), kind(1.5, 2.0), kind("a", "b"), kind(True, False)) == ("int", "float", "text", "bool")
    assert (kind(1.5, 2, 2.5, 3.5), kind(2.0, 2.5, 0.5, 1.5), kind(2.0, 2.5, 2, 2.5)) == ("number", "float", None)
    assert (kind(1, "a"), kind(1, None), kind(1, [1]), kind(True, 1), kind(2**63, 1)) == (None,) * 5


def test_one_page_of_many_rows_makes_no_list_of_them() -> None:
    """Cells are made only of the rows on the page."""
    rows: list[Row] = [{"id": f"{at:05}", "name": f"name {at * 7919 % 10_007}", "n": at % 10} for at in range(5_000)]
    columns = typed_columns(rows)
    query = Query.of(filter={"n": {"$lt": 5}}, sort=["-name"], limit=3)
    expected = sorted((row for row in rows if row["n"] in range(5)), key=lambda row: str(row["name"]), reverse=True)[:3]
    assert query.page_columns(columns).rows == expected
    assert not any("cells" in vars(columns.column(field)) for field in ("name", "n"))
