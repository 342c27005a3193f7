"""Aggregates: count, sum, avg, min, max and percentiles over the rows that match a filter, overall or by group; and the
distinct values of a field.

Sums are exact: integers of any size, other numbers as the decimals that are written, so 0.1 + 0.2 is 0.3.
`sum`, `avg` and percentiles skip null and missing values, and refuse anything that is not a number: a sum that silently
skips an amount written as text is wrong. `min` and `max` skip values that are neither numbers nor strings (datetimes
are strings). A field on a path through an array counts as missing, as in sort; for `Distinct` it has all the values on
its path, as in filters.

Memory: the named fields of all rows that match are held at once, plus the groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, localcontext
from fractions import Fraction
from math import floor
from typing import Protocol, TypeAlias, TypeVar, cast

from worm.collections import Row
from worm.errors import Invalid, show
from worm.formats import JsonValue, Missing, dumps, normal, type_name
from worm.query.filters import Filter, identity
from worm.tables import Columns, cells, exact_key
from worm.values import dataclass

MISSING_GROUP = "=missing"
"""The group of rows without the field. No value has this name, because the names of values continue with JSON after
`=`."""

PERCENTILES_MAX = 100
_DIGITS = 700  # from the last digit of the smallest float to the first digit of 2^63 times the largest one
_EXACT = Context(prec=_DIGITS, Emax=MAX_EMAX, Emin=MIN_EMIN)
_WHOLE_MAX = 2**53
_NUMBERS_OR_NOTHING = frozenset({int, float, type(None), Missing, cells.Several})
_PLAIN = frozenset({int, float, str, type(None), Missing})

Result: TypeAlias = dict[str, JsonValue]
Key: TypeAlias = "tuple[JsonValue | Missing, ...]"
Fields: TypeAlias = str | Sequence[str]
Percentiles: TypeAlias = Mapping[str, float | Sequence[float]]
R_co = TypeVar("R_co", covariant=True)


class Computed(Protocol[R_co]):
    """A computation over all rows that match: by rows, or by columns with the same result."""

    @property
    def filter(self) -> Filter: ...
    def fields(self) -> set[str]:
        """Every field that it reads."""
        ...

    def run(self, rows: Iterable[Row]) -> R_co:
        """The result over rows that include their id."""
        ...

    def run_columns(self, columns: Columns) -> R_co:
        """The same result over columns, faster."""
        ...


@dataclass(frozen=True, slots=True)
class Measure:
    """`sum`, `avg`, `min` or `max` of fields. `is_listed`: the caller passed a list, so the result is by field."""

    name: str
    fields: tuple[str, ...]
    is_listed: bool

    def over(self, columns: Columns, positions: cells.Positions) -> JsonValue:
        found = {field: self._of(columns, field, positions) for field in self.fields}
        return found if self.is_listed else found[self.fields[0]]

    def _of(self, columns: Columns, field: str, positions: cells.Positions) -> JsonValue:
        typed = columns.column(field).typed
        if self.name in ("min", "max"):
            largest = self.name == "max"
            if typed is not None:
                return normal(typed.extreme(positions, largest))
            return _extreme(columns, field, cells.listed(positions), largest=largest)
        found = None if typed is None else typed.total(positions)
        total, are_integers, count = found or _total(_only_numbers(columns, field, positions, self.name))
        if self.name == "sum":
            return _shown(total, are_integers)
        return _shown(total / count, are_integers) if count else None


@dataclass(frozen=True, slots=True)
class Aggregate:
    """A checked aggregate."""

    filter: Filter
    count: bool = False
    measures: tuple[Measure, ...] = ()
    percentiles: tuple[tuple[str, tuple[float, ...]], ...] = ()
    group_by: str | tuple[str, ...] | None = None
    having: Filter | None = None

    @classmethod
    def of(
        cls,
        *,
        count: bool = False,
        sum: Fields | None = None,
        avg: Fields | None = None,
        min: Fields | None = None,
        max: Fields | None = None,
        percentiles: Percentiles | None = None,
        group_by: Fields | None = None,
        having: Mapping[str, object] | None = None,
        filter: Mapping[str, object] | None = None,
    ) -> Aggregate:
        asked = (("sum", sum), ("avg", avg), ("min", min), ("max", max))
        measures = tuple(
            Measure(name, (fields,) if isinstance(fields, str) else fields, not isinstance(fields, str))
            for name, given in asked
            if (fields := _different(given, name)) is not None
        )
        ranks = _ranks(percentiles)
        if not (count or measures or ranks):
            raise Invalid("nothing to compute", hint="ask for count, sum, avg, min, max or percentiles")
        groups = _different(group_by, "group_by")
        made = cls(Filter.compile(filter), bool(count), measures, ranks, groups)
        return made if having is None else made._with_having(Filter.compile(having))

    def _with_having(self, having: Filter) -> Aggregate:
        if self.group_by is None:
            hint = "pass group_by; to choose documents, use a filter"
            raise Invalid("having needs groups", path="having", hint=hint)
        known = self._named({}, 0)
        unknown = sorted(having.fields - known.keys())
        if unknown:
            raise Invalid(
                f"{show(unknown[0])} is not part of the result",
                path="having",
                hint=f"the result has: {', '.join(known)}",
            )
        return Aggregate(self.filter, self.count, self.measures, self.percentiles, self.group_by, having)

    def fields(self) -> set[str]:
        """Every field that it reads."""
        grouped = (self.group_by,) if isinstance(self.group_by, str) else self.group_by or ()
        measured = {field for measure in self.measures for field in measure.fields}
        return {*self.filter.fields, *grouped, *measured, *(field for field, _ in self.percentiles)}

    def run(self, rows: Iterable[Row]) -> Result:
        """The result over rows that include their id."""
        columns = _kept(self, rows)
        return self._result(columns, range(len(columns)))

    def run_columns(self, columns: Columns) -> Result:
        """The same result over columns, faster."""
        columns.prepare(self.fields())
        return self._result(columns, self.filter.positions(columns))

    def _result(self, columns: Columns, positions: cells.Positions) -> Result:
        if self.group_by is None:
            return self._over(columns, positions)
        fields = (self.group_by,) if isinstance(self.group_by, str) else self.group_by
        found = [(key, self._over(columns, group), len(group)) for key, group in _grouped(columns, positions, fields)]
        if self.having is not None:
            found = [one for one in found if self.having.matches(self._named(one[1], one[2]))]
        if isinstance(self.group_by, str):
            named: Result = {_name(key[0]): totals for key, totals, _ in found}
            return {"groups": named}
        listed: list[JsonValue] = [{"key": _key(fields, key), **totals} for key, totals, _ in found]
        return {"groups": listed}

    def _over(self, columns: Columns, positions: cells.Positions) -> Result:
        result: Result = {"count": len(positions)} if self.count else {}
        for measure in self.measures:
            result[measure.name] = measure.over(columns, positions)
        if self.percentiles:
            result["percentiles"] = {
                field: _percentiles(_in_order(columns, field, positions), ranks) for field, ranks in self.percentiles
            }
        return result

    def _named(self, totals: Result, count: int) -> Result:
        """A group's totals, with the names that `having` uses: `count`, `sum`, `sum.total`, `percentiles.total.95`."""
        named: Result = {"count": count}
        for measure in self.measures:
            found = totals.get(measure.name)
            if not measure.is_listed:
                named[measure.name] = named[f"{measure.name}.{measure.fields[0]}"] = found
                continue
            for field in measure.fields:
                named[f"{measure.name}.{field}"] = found.get(field) if isinstance(found, dict) else None
        ranked = totals.get("percentiles")
        for field, ranks in self.percentiles:
            values = ranked.get(field) if isinstance(ranked, dict) else None
            for rank in ranks:
                place = _rank_name(rank)
                named[f"percentiles.{field}.{place}"] = values.get(place) if isinstance(values, dict) else None
        return named


@dataclass(frozen=True, slots=True)
class Distinct:
    """The distinct values of a field in sort order; for arrays their elements. Null is included, missing is not."""

    filter: Filter
    field: str

    @classmethod
    def of(cls, field: str, filter: Mapping[str, object] | None = None) -> Distinct:
        given: object = field
        if not isinstance(given, str) or not given:
            raise Invalid("must be the name of one field", path="distinct", hint='such as "status"')
        return cls(Filter.compile(filter), field)

    def fields(self) -> set[str]:
        """Every field that it reads."""
        return {*self.filter.fields, self.field}

    def run(self, rows: Iterable[Row]) -> list[JsonValue]:
        """The values over rows that include their id."""
        columns = _kept(self, rows)
        return self._values(columns, range(len(columns)))

    def run_columns(self, columns: Columns) -> list[JsonValue]:
        """The same values over columns, faster."""
        columns.prepare(self.fields())
        return self._values(columns, self.filter.positions(columns))

    def _values(self, columns: Columns, positions: cells.Positions) -> list[JsonValue]:
        column = columns.column(self.field)
        if column.typed is not None:
            return sorted(map(normal, column.typed.distinct(positions)), key=cells.sort_key)
        held: Iterable[cells.Cell] = map(column.cells.__getitem__, cells.listed(positions))
        if column.kinds <= _PLAIN:
            held = set(held)  # they have no arrays or objects
        found: dict[object, JsonValue] = {}
        for cell in held:
            for value in _flat(cell):
                found.setdefault(_hashable(value), normal(value))
        return sorted(found.values(), key=cells.sort_key)


def _flat(cell: cells.Cell) -> Iterable[JsonValue]:
    if isinstance(cell, cells.Several):
        return [value for inner in cell.cells for value in _flat(inner)]
    if isinstance(cell, Missing):
        return ()
    return cell if isinstance(cell, list) else (cell,)


def _kept(computed: Computed[object], rows: Iterable[Row]) -> Columns:
    """The rows that match, as columns. Only the named fields are held, not whole documents."""
    wanted = {name for field in computed.fields() for name in (field, field.partition(".")[0])}
    ids, kept = list[str](), list[Row]()
    for row in rows:
        if computed.filter.matches(row):
            ids.append(str(row["id"]))
            kept.append({name: row[name] for name in wanted.intersection(row)})
    return Columns.of(ids, kept)


def _different(fields: Fields | None, name: str) -> str | tuple[str, ...] | None:
    if fields is None or isinstance(fields, str):
        return fields
    given: object = fields
    listed = tuple(given) if isinstance(given, list | tuple) else ()
    if not listed or not all(isinstance(field, str) for field in listed) or len(set(listed)) != len(listed):
        raise Invalid("must be a field or a list of different fields", path=name)
    return listed


def _ranks(percentiles: Percentiles | None) -> tuple[tuple[str, tuple[float, ...]], ...]:
    given: object = {} if percentiles is None else percentiles
    if not isinstance(given, Mapping) or not all(isinstance(field, str) for field in given):
        raise _no_percentiles()
    found = []
    for field, ranks in given.items():
        listed = tuple(ranks) if isinstance(ranks, list | tuple) else (ranks,)
        if not 0 < len(listed) <= PERCENTILES_MAX or not all(map(_is_rank, listed)):
            raise _no_percentiles()
        found.append((field, tuple(dict.fromkeys(listed))))
    return tuple(found)


def _is_rank(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 100


def _no_percentiles() -> Invalid:
    problem = f"must have fields, each with up to {PERCENTILES_MAX} numbers from 0 to 100"
    return Invalid(problem, path="percentiles", hint='write {"total": [50, 95]}')


def _rank_name(rank: float) -> str:
    return dumps(normal(rank)).decode()


def _grouped(columns: Columns, positions: cells.Positions, fields: Sequence[str]) -> list[tuple[Key, cells.Positions]]:
    """The groups in the order of their values, missing last."""
    of_fields = [columns.column(field) for field in fields]
    found: Iterable[cells.Positions] | None = columns.group(fields, positions)
    if found is None:
        found = _grouped_cells(columns, cells.listed(positions), fields)
    keyed = [(tuple(_normal(column.value(group[0])) for column in of_fields), group) for group in found]
    return sorted(keyed, key=lambda pair: [_place(value) for value in pair[0]])


def _grouped_cells(columns: Columns, positions: Sequence[int], fields: Sequence[str]) -> Iterable[list[int]]:
    names = [_group_names(columns, field) for field in fields]
    single = names[0] if len(names) == 1 else list(zip(*names, strict=True))
    groups: dict[object, list[int]] = {}
    for at in positions:
        name = single[at]
        if name in groups:
            groups[name].append(at)
        else:
            groups[name] = [at]
    return groups.values()


def _group_names(columns: Columns, field: str) -> Sequence[object]:
    """A hashable key per row, equal if the values are equal; here missing is not null."""
    column = columns.column(field)
    if column.kinds <= {str, int, float, type(None)}:
        return column.cells
    return [_hashable(value) for value in column.values]


def _hashable(value: JsonValue | Missing) -> object:
    if isinstance(value, bool):
        return cells.TRUE if value else cells.FALSE
    return identity(value) if isinstance(value, list | dict) else value


def _normal(value: JsonValue | Missing) -> JsonValue | Missing:
    return value if isinstance(value, Missing) else normal(value)


def _place(value: JsonValue | Missing) -> tuple[bool, cells.SortKey]:
    return (True, (0, 0)) if isinstance(value, Missing) else (False, cells.sort_key(value))


def _name(value: JsonValue | Missing) -> str:
    return MISSING_GROUP if isinstance(value, Missing) else exact_key(value)


def _key(fields: Sequence[str], key: Key) -> JsonValue:
    return {field: value for field, value in zip(fields, key, strict=True) if not isinstance(value, Missing)}


def _numbers(columns: Columns, field: str, positions: Sequence[int]) -> list[int | float]:
    values = columns.values(field)
    found = values if len(positions) == len(values) else map(values.__getitem__, positions)
    return [value for value in found if type(value) is int or type(value) is float]


def _only_numbers(columns: Columns, field: str, positions: cells.Positions, name: str) -> list[int | float]:
    """The numbers; `Invalid`, with the document, if a value is neither a number nor missing or null."""
    positions = cells.listed(positions)
    if not columns.column(field).kinds <= _NUMBERS_OR_NOTHING:
        values = columns.values(field)
        wrong = next((at for at in positions if type(values[at]) not in _NUMBERS_OR_NOTHING), None)
        if wrong is not None:
            (entity_id,) = columns.ids_at([wrong])
            raise Invalid(
                f"{show(field)} of document {show(entity_id)} is not a number, but of type {type_name(values[wrong])}",
                path=name,
                hint=f'correct it, or exclude such documents with the filter {{"{field}": {{"$type": "number"}}}}',
            )
    return _numbers(columns, field, positions)


def _in_order(columns: Columns, field: str, positions: cells.Positions) -> Sequence[int | float]:
    typed = columns.column(field).typed
    found = None if typed is None else typed.in_order(positions)
    if found is None:
        return sorted(_only_numbers(columns, field, positions, "percentiles"))
    return cast("Sequence[int | float]", found.tolist())


def _percentiles(ordered: Sequence[int | float], ranks: Sequence[float]) -> Result:
    return {_rank_name(rank): _percentile(ordered, rank) for rank in ranks}


def _percentile(ordered: Sequence[int | float], rank: float) -> JsonValue:
    """Interpolates between two values: the 50th of 1 and 2 is 1.5."""
    if not ordered:
        return None
    place = Fraction(Decimal(repr(rank))) / 100 * (len(ordered) - 1)
    lower, upper = ordered[floor(place)], ordered[min(floor(place) + 1, len(ordered) - 1)]
    low, high = Fraction(Decimal(repr(lower))), Fraction(Decimal(repr(upper)))
    return _shown(low + (high - low) * (place - floor(place)), type(lower) is int and type(upper) is int)


def _total(numbers: Sequence[int | float]) -> tuple[Fraction, bool, int]:
    """The exact sum, whether all values are integers, and their number."""
    whole = sum(number for number in numbers if type(number) is int)
    others = [number for number in numbers if type(number) is float]
    if not others:
        return Fraction(whole), True, len(numbers)
    with localcontext(_EXACT):
        return Fraction(sum(map(Decimal, map(repr, others)), Decimal(whole))), False, len(numbers)


def _shown(value: Fraction, only_integers: bool) -> int | float:
    """An integer if it is whole; but a sum of floats beyond their exact range is the nearest float."""
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
