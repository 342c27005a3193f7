"""Aggregates: count, sum, avg, min and max over the rows that match a filter, whole or by group.

Sums are exact: integers at any size, other numbers as the decimals that they are written as, so 0.1 + 0.2 is 0.3.
`sum` and `avg` leave out what is not a number, `min` and `max` what is neither a number nor a string (datetimes are
strings). A field on a path through an array counts as missing, as in sort."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, localcontext
from fractions import Fraction
from typing import TypeAlias

from worm.codec.strict_json import JsonValue, Missing
from worm.collections.entries import Row
from worm.errors import Invalid
from worm.query.filters import Filter, identity, normal
from worm.tables.columns import FALSE, TRUE, Columns, SortKey, sort_key
from worm.tables.index import entry_key

MISSING_GROUP = "=missing"
"""The group of rows without the field. No value has this name: after `=` a value's JSON follows."""

_DIGITS = 700  # from the last digit of the smallest float to the first one of 2^63 largest ones
_EXACT = Context(prec=_DIGITS, Emax=MAX_EMAX, Emin=MIN_EMIN)
_WHOLE_MAX = 2**53

Result: TypeAlias = dict[str, JsonValue]
Key: TypeAlias = "tuple[JsonValue | Missing, ...]"


@dataclass(frozen=True, slots=True)
class Aggregate:
    """A checked aggregate."""

    filter: Filter
    count: bool = False
    sum: str | None = None
    avg: str | None = None
    min: str | None = None
    max: str | None = None
    group_by: str | tuple[str, ...] | None = None

    @classmethod
    def of(
        cls,
        *,
        count: bool = False,
        sum: str | None = None,
        avg: str | None = None,
        min: str | None = None,
        max: str | None = None,
        group_by: str | Sequence[str] | None = None,
        filter: Mapping[str, object] | None = None,
    ) -> Aggregate:
        for name, field in (("sum", sum), ("avg", avg), ("min", min), ("max", max)):
            if field is not None and not isinstance(field, str):
                raise Invalid("takes the name of one field", path=name)
        if not (count or any(field is not None for field in (sum, avg, min, max))):
            raise Invalid("nothing to compute", hint="ask for count, sum, avg, min or max")
        return cls(Filter.compile(filter), bool(count), sum, avg, min, max, _groups(group_by))

    def fields(self) -> set[str]:
        """Every field that it reads."""
        grouped = (self.group_by,) if isinstance(self.group_by, str) else self.group_by or ()
        named = {field for field in (self.sum, self.avg, self.min, self.max) if field is not None}
        return {*self.filter.fields, *grouped, *named}

    def run(self, rows: Iterable[Row]) -> Result:
        """The result over rows that hold their id."""
        matching = [row for row in rows if self.filter.matches(row)]
        columns = Columns.of([str(row["id"]) for row in matching], matching)
        return self._result(columns, range(len(columns)))

    def run_columns(self, columns: Columns) -> Result:
        """The same result over columns, faster."""
        columns.prepare(self.fields())
        return self._result(columns, self.filter.positions(columns))

    def _result(self, columns: Columns, positions: Sequence[int]) -> Result:
        if self.group_by is None:
            return self._over(columns, positions)
        fields = (self.group_by,) if isinstance(self.group_by, str) else self.group_by
        found = _grouped(columns, positions, fields)
        if isinstance(self.group_by, str):
            named: Result = {_name(key[0]): self._over(columns, group) for key, group in found}
            return {"groups": named}
        listed: list[JsonValue] = [{"key": _key(fields, key), **self._over(columns, group)} for key, group in found]
        return {"groups": listed}

    def _over(self, columns: Columns, positions: Sequence[int]) -> Result:
        result: Result = {"count": len(positions)} if self.count else {}
        if self.sum is not None:
            result["sum"] = _sum(_numbers(columns, self.sum, positions))
        if self.avg is not None:
            result["avg"] = _average(_numbers(columns, self.avg, positions))
        if self.min is not None:
            result["min"] = _extreme(columns, self.min, positions, largest=False)
        if self.max is not None:
            result["max"] = _extreme(columns, self.max, positions, largest=True)
        return result


def _groups(group_by: str | Sequence[str] | None) -> str | tuple[str, ...] | None:
    if group_by is None or isinstance(group_by, str):
        return group_by
    fields = tuple(group_by)
    if not fields or len(set(fields)) != len(fields) or not all(isinstance(field, str) for field in fields):
        raise Invalid("takes a field or a list of different fields", path="group_by")
    return fields


def _grouped(columns: Columns, positions: Sequence[int], fields: Sequence[str]) -> list[tuple[Key, list[int]]]:
    """The groups in the order of their values, missing last."""
    names = [_group_names(columns, field) for field in fields]
    single = names[0] if len(names) == 1 else list(zip(*names, strict=True))
    groups: dict[object, list[int]] = {}
    for at in positions:
        name = single[at]
        if name in groups:
            groups[name].append(at)
        else:
            groups[name] = [at]
    values = [columns.values(field) for field in fields]
    keyed = [(tuple(_normal(column[group[0]]) for column in values), group) for group in groups.values()]
    return sorted(keyed, key=lambda pair: [_place(value) for value in pair[0]])


def _group_names(columns: Columns, field: str) -> Sequence[object]:
    """Something hashable per row that is equal where the values are; here missing is not null."""
    column = columns.column(field)
    if column.kinds <= {str, int, float, type(None)}:
        return column.cells
    return [_hashable(value) for value in column.values]


def _hashable(value: JsonValue | Missing) -> object:
    if isinstance(value, bool):
        return TRUE if value else FALSE
    return identity(value) if isinstance(value, list | dict) else value


def _normal(value: JsonValue | Missing) -> JsonValue | Missing:
    return value if isinstance(value, Missing) else normal(value)


def _place(value: JsonValue | Missing) -> tuple[bool, SortKey]:
    return (True, (0, 0)) if isinstance(value, Missing) else (False, sort_key(value))


def _name(value: JsonValue | Missing) -> str:
    return MISSING_GROUP if isinstance(value, Missing) else entry_key(value)


def _key(fields: Sequence[str], key: Key) -> JsonValue:
    return {field: value for field, value in zip(fields, key, strict=True) if not isinstance(value, Missing)}


def _numbers(columns: Columns, field: str, positions: Sequence[int]) -> list[int | float]:
    values = columns.values(field)
    found = values if len(positions) == len(values) else map(values.__getitem__, positions)
    return [value for value in found if type(value) is int or type(value) is float]


def _total(numbers: Sequence[int | float]) -> tuple[Decimal | int, bool]:
    """The exact sum, and whether there were only integers."""
    whole = sum(number for number in numbers if type(number) is int)
    others = [number for number in numbers if type(number) is float]
    if not others:
        return whole, True
    with localcontext(_EXACT):
        return sum(map(Decimal, map(repr, others)), Decimal(whole)), False


def _sum(numbers: Sequence[int | float]) -> JsonValue:
    total, only_integers = _total(numbers)
    return _shown(Fraction(total), only_integers)


def _average(numbers: Sequence[int | float]) -> JsonValue:
    if not numbers:
        return None
    total, only_integers = _total(numbers)
    return _shown(Fraction(total) / len(numbers), only_integers)


def _shown(value: Fraction, only_integers: bool) -> int | float:
    """An integer where it is whole; but a sum of floats beyond what they hold exactly is the nearest float again."""
    if value.denominator == 1 and (only_integers or abs(value) <= _WHOLE_MAX):
        return int(value)
    try:
        return float(value)
    except OverflowError:  # a sum of floats may leave their range
        return round(value)


def _extreme(columns: Columns, field: str, positions: Sequence[int], *, largest: bool) -> JsonValue:
    """Numbers come before strings, as in sort."""
    values = columns.values(field)
    strings = [value for value in map(values.__getitem__, positions) if isinstance(value, str)]
    numbers = _numbers(columns, field, positions)
    if largest:
        return max(strings) if strings else normal(max(numbers, default=None))
    return normal(min(numbers)) if numbers else min(strings, default=None)
