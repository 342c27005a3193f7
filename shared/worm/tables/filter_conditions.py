"""One condition on one field, compiled: a test of a cell, and a scan of a column that gives the same answer.

Equality is JSON's: `1` and `1.0` are equal, `1` and `true` are not, objects are equal in any order of their keys.
Every operator holds for an array if it holds for the array itself or for one of its elements. The negated operators
(`$ne`, `$nin`, `$exists: false`) hold exactly where the others do not.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import compress, repeat
from typing import TypeAlias, cast

from worm.codec.field_path import MISSING, Missing
from worm.codec.strict_json import INT_MAX, INT_MIN, JsonValue, dumps
from worm.tables.columns import FALSE, TRUE, Cell, Column, Several

One: TypeAlias = "Callable[[JsonValue | Missing], bool]"
Scan: TypeAlias = Callable[[Iterable[object]], Iterable[object]]

NEGATED = {"$ne": "$eq", "$nin": "$in"}
RANGES = {"$gt": operator.gt, "$gte": operator.ge, "$lt": operator.lt, "$lte": operator.le}


@dataclass(frozen=True, slots=True)
class Condition:
    """`one` tests a value that is not an array, `array` an array; `scan` tests the values of a facet."""

    one: One
    array: Callable[[list[JsonValue]], bool]
    facet: Callable[[Column], list[object]]
    scan: Scan
    negated: bool = False

    def holds(self, cell: Cell) -> bool:
        return self._plain(cell) is not self.negated

    def _plain(self, cell: Cell) -> bool:
        if isinstance(cell, list):
            return self.array(cell)
        if isinstance(cell, Several):
            return any(map(self._plain, cell.cells))
        return self.one(cell)

    def positions(self, column: Column, candidates: Sequence[int]) -> Sequence[int]:
        """Those of the candidates whose cells hold. Candidates are ascending; a range stands for all rows."""
        if column.coded is not None:
            return column.coded.where(self.holds, candidates)
        found = self._found(column, candidates)
        return without(candidates, found, len(column.cells)) if self.negated else found

    def _found(self, column: Column, candidates: Sequence[int]) -> list[int]:
        is_whole = isinstance(candidates, range)
        facet = self.facet(column)
        found = list(compress(candidates, self.scan(facet if is_whole else map(facet.__getitem__, candidates))))
        if not column.nested:
            return found
        cells = column.cells
        test = cast("Callable[[Cell], bool]", self.array) if column.nests_arrays_only else self._plain
        nested = column.nested if is_whole else sorted(set(column.nested).intersection(candidates))
        return sorted(found + [at for at in nested if test(cells[at])])


def without(candidates: Sequence[int], removed: Iterable[int], size: int) -> list[int]:
    """The candidates that are not among the removed; `size` is beyond every position."""
    mask = bytearray(b"\1") * size
    for at in removed:
        mask[at] = 0
    return [at for at in candidates if mask[at]]


def condition(op: str, value: JsonValue) -> Condition:
    """Compile a checked operator and operand."""
    if op in NEGATED:
        plain = condition(NEGATED[op], value)
        return Condition(plain.one, plain.array, plain.facet, plain.scan, negated=True)
    if op == "$eq":
        return _equal(value)
    if op == "$in":
        return _among(cast("list[JsonValue]", value))
    if op == "$exists":
        return _exists(bool(value))
    if op == "$contains":
        return _contains(value)
    if op == "$startsWith":
        return _starts_with(cast(str, value))
    return _range(op, cast("int | float | str | bool", value))


def identity(value: JsonValue) -> bytes:
    """Equal for equal JSON values and for no others."""
    return dumps(normal(value))


def normal(value: JsonValue) -> JsonValue:
    """The value with whole floats written as integers, all the way down."""
    if isinstance(value, float) and value.is_integer() and INT_MIN <= value <= INT_MAX:
        return int(value)
    if isinstance(value, list):
        return [normal(item) for item in value]
    if isinstance(value, dict):
        return {name: normal(item) for name, item in value.items()}
    return value


def _comparable(value: object) -> object:
    """A scalar as it stands in a column's `equality`."""
    if isinstance(value, bool):
        return TRUE if value else FALSE
    return None if value is MISSING else value


def _is_python_equality(value: JsonValue) -> bool:
    """Is `==` right for this scalar? It takes 0 and 1 for false and true, and null also stands for missing."""
    return isinstance(value, str) or (isinstance(value, int | float) and value not in (0, 1))


def _has_element(value: JsonValue) -> Callable[[list[JsonValue]], bool]:
    """Does an array have an element that is equal to the value?"""
    if _is_python_equality(value):
        return lambda items: value in items
    one = _equals(value)
    return lambda items: any(map(one, items))


def _equal(value: JsonValue) -> Condition:
    one, has_element = _equals(value), _has_element(value)
    wanted = object() if isinstance(value, list | dict) else _comparable(value)
    return Condition(
        one,
        (lambda items: one(items) or has_element(items)) if isinstance(value, list) else has_element,
        lambda column: column.equality,
        lambda values: map(operator.eq, values, repeat(wanted)),
    )


def _equals(value: JsonValue) -> One:
    """Equality with one value, arrays taken whole."""
    if value is None:
        return lambda found: found is None or found is MISSING
    if isinstance(value, bool):
        return lambda found: found is value
    if isinstance(value, list | dict):
        kind, wanted = type(value), identity(value)
        return lambda found: type(found) is kind and identity(cast(JsonValue, found)) == wanted
    if _is_python_equality(value):
        return lambda found: found == value
    return lambda found: found == value and type(found) is not bool


def _among(values: list[JsonValue]) -> Condition:
    scalars = {_comparable(value) for value in values if not isinstance(value, list | dict)}
    nested = {identity(value) for value in values if isinstance(value, list | dict)}

    def one(found: JsonValue | Missing) -> bool:
        if isinstance(found, list | dict):
            return bool(nested) and identity(found) in nested
        return _comparable(found) in scalars

    def array(items: list[JsonValue]) -> bool:
        return one(items) or any(map(one, items))

    return Condition(
        one,
        _has_one_of(scalars, array) if all(map(_is_python_equality, values)) else array,
        lambda column: column.equality,
        lambda found: map(scalars.__contains__, found),
    )


def _has_one_of(scalars: set[object], array: Callable[[list[JsonValue]], bool]) -> Callable[[list[JsonValue]], bool]:
    """The quick way for arrays of scalars; other elements cannot be hashed."""

    def has_one_of(items: list[JsonValue]) -> bool:
        try:
            return not scalars.isdisjoint(items)
        except TypeError:
            return array(items)

    return has_one_of


def _exists(wanted: bool) -> Condition:
    return Condition(
        lambda found: found is not MISSING,
        lambda _items: True,
        lambda column: column.scalars,
        lambda values: map(operator.is_not, values, repeat(MISSING)),
        negated=not wanted,
    )


def _contains(value: JsonValue) -> Condition:
    array = _has_element(value)
    if not isinstance(value, str):
        return Condition(lambda _found: False, array, lambda column: column.strings, lambda _values: ())
    return Condition(
        lambda found: isinstance(found, str) and value in found,
        array,
        lambda column: column.strings,
        lambda values: map(operator.contains, cast("Iterable[str]", values), repeat(value)),
    )


def _starts_with(prefix: str) -> Condition:
    def one(found: JsonValue | Missing) -> bool:
        return isinstance(found, str) and found.startswith(prefix)

    return Condition(
        one,
        lambda items: any(map(one, items)),
        lambda column: column.strings,
        lambda values: map(operator.methodcaller("startswith", prefix), values),
    )


def _range(op: str, bound: int | float | str | bool) -> Condition:
    compare = cast("Callable[[object, object], object]", RANGES[op])
    kinds, facet = _bracket(bound)

    def one(found: JsonValue | Missing) -> bool:
        return type(found) in kinds and bool(compare(found, bound))

    return Condition(
        one,
        lambda items: any(map(one, items)),
        facet,
        lambda values: map(compare, values, repeat(bound)),
    )


def _bracket(bound: float | str | bool) -> tuple[frozenset[type], Callable[[Column], list[object]]]:
    """The types that the bound can be compared with, and the facet that holds them."""
    if isinstance(bound, bool):
        return frozenset({bool}), lambda column: column.booleans
    if isinstance(bound, str):
        return frozenset({str}), lambda column: column.strings
    return frozenset({int, float}), lambda column: column.numbers
