"""The one order of JSON values, used by sort, cursors, and `min`/`max`.

Values of different types sort by type: null, numbers, strings, arrays and objects (by their canonical JSON), booleans.
Numbers compare as numbers whatever their type, strings by code points.

Rows turned on their side: one list per field, made at the first use and kept as long as the rows are.

Vocabulary
- *cell*: what a field's path finds in one row: a value, `MISSING`, or `Several` where the path went through an array
  and so ended at several places, or at none.
- *facet*: a column with the same length and one meaning, in which everything else is replaced by something that never
  compares true. So `facet[i] > 5` needs no test of types, and a scan is one pass without a Python function per row.

Rows belong to whoever gave them; columns only refer to their values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import islice
from operator import itemgetter, lt
from typing import TypeAlias, cast

from worm.codec.field_path import MISSING, Missing
from worm.codec.strict_json import JsonValue, dumps
from worm.collections.changes import Row
from worm.tables.coded import Coded

SortKey = tuple[int, float | int | str]

NULL, NUMBER, STRING, NESTED, BOOLEAN = range(5)


def sort_key(value: object) -> SortKey:
    """The place of a value in the order; keys of any two values can be compared."""
    if value is None:
        return NULL, 0
    if isinstance(value, bool):
        return BOOLEAN, int(value)
    if isinstance(value, int | float):
        return NUMBER, value
    if isinstance(value, str):
        return STRING, value
    return NESTED, dumps(cast(JsonValue, value)).decode()


class Several:
    """All that a dotted path finds in the objects of an array on its way; nothing when the array has no objects."""

    __slots__ = ("cells",)

    def __init__(self, cells: list[JsonValue | Missing]) -> None:
        self.cells = cells


Cell: TypeAlias = "JsonValue | Missing | Several"


class _Never:
    """Compares false with everything, and has no part. Stands in a facet where a row has no value of its type."""

    __slots__ = ()

    def _no(self, _other: object) -> bool:
        return False

    __lt__ = __le__ = __gt__ = __ge__ = __contains__ = startswith = _no


NEVER = _Never()
TRUE, FALSE = object(), object()  # `True == 1` in Python, but not in JSON
_NAN = float("nan")
_NESTED = frozenset({list, dict, Several})
_NUMBERS = frozenset({int, float})
_FEW = 4  # for less than this part of the rows it does not pay to look at all of them first


def reader(field: str) -> Callable[[Mapping[str, JsonValue]], Cell]:
    """The function that finds a field's cell in a row or a document.

    A key with exactly this name wins over descending at the dots, because rows keep dotted names.
    """
    first, *rest = field.split(".")
    if not rest:
        return lambda row: row.get(field, MISSING)

    def read(row: Mapping[str, JsonValue]) -> Cell:
        if field in row:
            return row[field]
        return descend(row[first], rest) if first in row else MISSING

    return read


def descend(value: JsonValue | Missing, parts: Sequence[str]) -> Cell:
    """The cell at the end of a path that starts in the value."""
    for at, part in enumerate(parts):
        if isinstance(value, list):
            return Several(_found_in(value, parts[at:]))
        if not isinstance(value, dict):
            return MISSING
        value = value.get(part, MISSING)
    return value


def _found_in(array: list[JsonValue], parts: Sequence[str]) -> list[JsonValue | Missing]:
    """Only the objects of an array are looked into, as deep as the document is nested."""
    found: list[JsonValue | Missing] = []
    for item in array:
        if isinstance(item, dict):
            cell = descend(item, parts)
            if isinstance(cell, Several):
                found += cell.cells
            else:
                found.append(cell)
    return found


class Column:
    """The cells of one field, and their facets. `coded`: the same by their values, where there are few."""

    def __init__(self, cells: list[Cell] | Coded) -> None:
        self.coded = cells if isinstance(cells, Coded) else None
        self.kinds = frozenset(map(type, cells.values if isinstance(cells, Coded) else cells))
        self._given = cells

    @cached_property
    def cells(self) -> list[Cell]:
        given = self._given
        return cast("list[Cell]", given.cells()) if isinstance(given, Coded) else given

    @cached_property
    def values(self) -> list[JsonValue | Missing]:
        """One value per row; a path through an array has no single value, so it is missing there."""
        if Several not in self.kinds:
            return cast("list[JsonValue | Missing]", self.cells)
        return [MISSING if isinstance(cell, Several) else cell for cell in self.cells]

    @cached_property
    def nested(self) -> list[int]:
        """The positions of arrays, objects and several values, which no facet holds."""
        if self.kinds.isdisjoint(_NESTED):
            return []
        return [at for at, cell in enumerate(self.cells) if type(cell) in _NESTED]

    @cached_property
    def scalars(self) -> list[object]:
        if not self.nested:
            return cast("list[object]", self.cells)
        return [MISSING if type(cell) in _NESTED else cell for cell in self.cells]

    @property
    def nests_arrays_only(self) -> bool:
        return self.kinds.isdisjoint({dict, Several})

    @cached_property
    def equality(self) -> list[object]:
        """Hashable, and equal exactly where JSON is: missing counts as null, true is not 1."""
        if self.kinds <= {int, float, str, type(None)}:
            return cast("list[object]", self.cells)
        return [_comparable(cell) for cell in self.cells]

    @cached_property
    def numbers(self) -> list[object]:
        return self._only(_NUMBERS, _NAN)

    @cached_property
    def strings(self) -> list[object]:
        return self._only(frozenset({str}), NEVER)

    @cached_property
    def booleans(self) -> list[object]:
        return self._only(frozenset({bool}), _NAN)

    def _only(self, kinds: frozenset[type], other: object) -> list[object]:
        if self.kinds <= kinds:
            return cast("list[object]", self.cells)
        return [cell if type(cell) in kinds else other for cell in self.cells]

    @cached_property
    def rank(self) -> int | None:
        """The type's place in the order when all values there are have one type, else None."""
        kinds = self.kinds - {Missing, Several}
        if kinds <= _NUMBERS:
            return NUMBER
        return STRING if kinds == {str} else None

    @cached_property
    def sort_keys(self) -> list[object]:
        """What to compare: the values themselves when they have one `rank`, else their keys. Not where missing."""
        if self.rank is not None:
            return cast("list[object]", self.values)
        return [MISSING if value is MISSING else sort_key(value) for value in self.values]

    def present(self, positions: Sequence[int]) -> Sequence[int]:
        """Those of the positions where there is a value."""
        if self.kinds.isdisjoint({Missing, Several}):
            return positions
        values = self.values
        return [at for at in positions if values[at] is not MISSING]


def _comparable(cell: Cell) -> object:
    if cell is MISSING:
        return None
    if isinstance(cell, bool):
        return TRUE if cell else FALSE
    return NEVER if type(cell) in _NESTED else cell


def _cells(field: str, rows: Sequence[Row]) -> list[Cell]:
    if "." not in field:
        try:
            return list(map(itemgetter(field), rows))  # no Python function per row, as long as every row has the field
        except KeyError:
            return [row.get(field, MISSING) for row in rows]
    return list(map(reader(field), rows))


class Columns:
    """Ids and rows in parallel. The rows need not hold their id; it is the field `id` all the same."""

    def __init__(self, ids: Sequence[str], rows: Sequence[Row]) -> None:
        self._ids = ids
        self.rows = rows
        self._columns: dict[str, Column] = {}

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def ids(self) -> Sequence[str]:
        """All ids. Whoever needs those of some rows asks `ids_at`."""
        return self._ids

    def ids_at(self, positions: Sequence[int]) -> list[str]:
        ids = self.ids
        return [ids[at] for at in positions]

    def column(self, field: str) -> Column:
        found = self._columns.get(field)
        if found is None:
            found = self._columns[field] = Column(list(self.ids) if field == "id" else self.found(field))
        return found

    def prepare(self, fields: Iterable[str]) -> None:
        """All of these will be asked for: to be said once, before, where it helps to know."""

    def found(self, field: str) -> list[Cell] | Coded:
        """What the column of a field is made of."""
        return self.cells(field)

    def cells(self, field: str) -> list[Cell]:
        return _cells(field, self.rows)

    def values(self, field: str) -> list[JsonValue | Missing]:
        """The field's value in every row."""
        return self.column(field).values

    @cached_property
    def _is_in_id_order(self) -> bool:
        return all(map(lt, self.ids, islice(self.ids, 1, None)))

    def in_id_order(self, positions: Sequence[int]) -> Sequence[int]:
        """Ascending positions, ordered by their ids instead."""
        return positions if self._is_in_id_order else sorted(positions, key=self.ids.__getitem__)

    @cached_property
    def nested_fields(self) -> frozenset[str]:
        """The keys under which any row holds an array or an object: what a copy of a row must copy too."""
        return frozenset(name for row in self.rows for name, value in row.items() if type(value) in _NESTED)

    def copies(self, positions: Sequence[int]) -> list[Row]:
        """Rows with their ids for the caller, who may change them: the rows themselves belong to the cache."""
        found: list[Row] = [{"id": self.ids[at], **self.rows[at]} for at in positions]
        if len(found) * _FEW < len(self):
            return [{name: copied(value) for name, value in row.items()} for row in found]
        if self.nested_fields:
            for row in found:
                for name in self.nested_fields.intersection(row):
                    row[name] = copied(row[name])
        return found


def copied(value: JsonValue) -> JsonValue:
    """The value with arrays and objects of its own."""
    if isinstance(value, dict):
        return {name: copied(item) if type(item) in _NESTED else item for name, item in value.items()}
    return [copied(item) if type(item) in _NESTED else item for item in value] if isinstance(value, list) else value
