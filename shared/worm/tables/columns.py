"""Columns: the rows of one or several parts, transposed to one list per field. A list is made at its first use and
kept.

Vocabulary
- *cell*: what a field's path finds in one row (see `cells.py`).
- *facet*: a copy of a column that keeps only values of one type; all others are replaced by an object that never
  compares true. So `facet[i] > 5` needs no type check, and a scan is one pass without a Python function call per row.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate, chain, islice
from operator import lt
from typing import TYPE_CHECKING, cast, overload

from worm.collections import Row
from worm.formats import MISSING, JsonValue, Missing
from worm.tables.cells import (
    CONTAINERS,
    NEVER,
    NUMBER,
    STRING,
    Cell,
    Positions,
    Several,
    comparable,
    copied,
    listed,
    sort_key,
)
from worm.tables.parts import ParsedPart, Part, Stamp

if TYPE_CHECKING:
    from worm.tables.typed import Typed

_NAN = float("nan")
_NUMBERS = frozenset({int, float})
_FEW = 4  # below this share of the rows, it does not pay to look at all of them first
_FEW_IDS = 64  # below this share of the ids, it does not pay to load all of them


class Column:
    """The cells of one field, and their facets. `typed`: the same as arrays, if all parts have them."""

    def __init__(self, cells: list[Cell] | Typed) -> None:
        self.typed = None if isinstance(cells, list) else cells
        self.kinds = frozenset(map(type, cells)) if isinstance(cells, list) else cells.types
        self._given = cells

    @cached_property
    def cells(self) -> list[Cell]:
        given = self._given
        return given if isinstance(given, list) else cast("list[Cell]", given.cells())

    def value(self, at: int) -> JsonValue | Missing:
        """The value of one row; arrays are not converted for it."""
        return self.values[at] if self.typed is None else self.typed.cells([at])[0]

    @cached_property
    def values(self) -> list[JsonValue | Missing]:
        """One value per row. A path through an array has no single value, so it counts as missing there."""
        if Several not in self.kinds:
            return cast("list[JsonValue | Missing]", self.cells)
        return [MISSING if isinstance(cell, Several) else cell for cell in self.cells]

    @cached_property
    def nested(self) -> list[int]:
        """The positions of arrays, objects and multiple values, which no facet contains."""
        if self.kinds.isdisjoint(CONTAINERS):
            return []
        return [at for at, cell in enumerate(self.cells) if type(cell) in CONTAINERS]

    @cached_property
    def scalars(self) -> list[object]:
        if not self.nested:
            return cast("list[object]", self.cells)
        return [MISSING if type(cell) in CONTAINERS else cell for cell in self.cells]

    @property
    def nests_arrays_only(self) -> bool:
        return self.kinds.isdisjoint({dict, Several})

    @cached_property
    def equality(self) -> list[object]:
        """Hashable, and equal exactly if the JSON is equal: missing counts as null, and true is not 1."""
        if self.kinds <= {int, float, str, type(None)}:
            return cast("list[object]", self.cells)
        return [comparable(cell) for cell in self.cells]

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
        """The type's place in the order if all values have the same type, otherwise None."""
        kinds = self.kinds - {Missing, Several}
        if kinds <= _NUMBERS:
            return NUMBER
        return STRING if kinds == {str} else None

    @cached_property
    def sort_keys(self) -> list[object]:
        """What to compare: the values themselves if they have one `rank`, otherwise their keys. Not for missing
        values."""
        if self.rank is not None:
            return cast("list[object]", self.values)
        return [MISSING if value is MISSING else sort_key(value) for value in self.values]

    def present(self, positions: Positions) -> Positions:
        """The positions that have a value."""
        if self.typed is not None:
            return self.typed.held(positions)
        if self.kinds.isdisjoint({Missing, Several}):
            return positions
        values = self.values
        return [at for at in listed(positions) if values[at] is not MISSING]

    def without(self, candidates: Positions, removed: Positions) -> Positions:
        """The candidates without the removed ones."""
        return _without(candidates, removed, len(self.cells))


def _without(candidates: Positions, removed: Positions, size: int) -> Positions:
    """The candidates without the removed ones; `size` is above every position."""
    if not isinstance(candidates, list | range) or not isinstance(removed, list | range):
        from worm.tables.typed import without

        return without(candidates, removed, size)
    mask = bytearray(b"\1") * size
    for at in removed:
        mask[at] = 0
    return [at for at in candidates if mask[at]]


class _Rows(Sequence[Row]):
    """The rows of all parts. Each row is parsed on request. Once the number of requests reaches the number of rows, all
    rows are parsed again and kept."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts
        self._starts = [0, *accumulate(part.count for part in parts)]
        self._left = len(self)
        self._kept: list[Row] | None = None

    def __len__(self) -> int:
        return self._starts[-1]

    @overload
    def __getitem__(self, at: int) -> Row: ...
    @overload
    def __getitem__(self, at: slice) -> list[Row]: ...
    def __getitem__(self, at: int | slice) -> Row | list[Row]:
        if isinstance(at, slice):
            return [self[one] for one in range(len(self))[at]]
        at = range(len(self))[at]
        return self.parsed(at) if self.is_short_of(1) else self._all[at]

    def is_short_of(self, count: int) -> bool:
        """Whether this much more parsing is still less than parsing everything. If so, it is counted."""
        if count > self._left:
            return False
        self._left -= count
        return True

    def parsed(self, at: int) -> Row:
        """A row that the caller may change."""
        part = bisect_right(self._starts, at) - 1
        return self._parts[part].row(at - self._starts[part])

    def id(self, at: int) -> str:
        part = bisect_right(self._starts, at) - 1
        return self._parts[part].id(at - self._starts[part])

    def stamp(self, at: int) -> Stamp:
        part = bisect_right(self._starts, at) - 1
        return self._parts[part].stamp(at - self._starts[part])

    @property
    def _all(self) -> list[Row]:
        if self._kept is None:
            self._left, self._kept = 0, [part.row(at) for part in self._parts for at in range(part.count)]
        return self._kept


class Columns:
    """The rows of parts, one part after the other. Rows need not contain their id; the field `id` still returns it."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts
        self._columns: dict[str, Column] = {}
        self.rows: Sequence[Row]
        """The values belong to the parts: copy them before you change them."""
        if len(parts) == 1 and isinstance(parts[0], ParsedPart):
            self.rows = parts[0].rows
        else:
            self.rows = _Rows(parts)

    @classmethod
    def of(cls, ids: Sequence[str], rows: Sequence[Row]) -> Columns:
        """From rows in memory, in any order."""
        return cls([ParsedPart(ids, rows)])

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def is_in_memory(self) -> bool:
        """Whether the rows are in memory, with nothing left to decode."""
        return not isinstance(self.rows, _Rows)

    @cached_property
    def ids(self) -> Sequence[str]:
        """All ids. For the ids of some rows, use `ids_at`."""
        return self._parts[0].ids if len(self._parts) == 1 else list(chain(*(part.ids for part in self._parts)))

    def ids_at(self, positions: Positions) -> list[str]:
        if isinstance(self.rows, _Rows) and len(positions) * _FEW_IDS < len(self):
            return list(map(self.rows.id, positions))
        ids = self.ids
        return [ids[at] for at in positions]

    def stamp(self, at: int) -> Stamp:
        return self.rows.stamp(at) if isinstance(self.rows, _Rows) else self._parts[0].stamp(at)

    @cached_property
    def cut(self) -> Sequence[int]:
        """The positions of rows that lack values of their documents, ascending."""
        starts = accumulate((part.count for part in self._parts), initial=0)
        return [start + at for start, part in zip(starts, self._parts, strict=False) for at in part.cut]

    def column(self, field: str) -> Column:
        found = self._columns.get(field)
        if found is None:
            found = self._columns[field] = Column(self._found(field))
        return found

    def prepare(self, fields: Iterable[str]) -> None:
        """Announce that all these fields will be used, so that one pass decodes them all."""
        wanted = [field for field in fields if field != "id" and field not in self._columns]
        for part in self._parts if wanted else ():
            part.prepare(wanted)

    def without(self, candidates: Positions, removed: Positions) -> Positions:
        """The candidates without the removed ones."""
        return _without(candidates, removed, len(self))

    def group(self, fields: Sequence[str], positions: Positions) -> Sequence[Positions] | None:
        """The positions by the values of these fields; None unless all of them have arrays."""
        typed = [one for field in fields if (one := self.column(field).typed) is not None]
        if len(typed) < len(fields):
            return None
        from worm.tables.typed import grouped  # needs numpy

        return grouped(typed, positions)

    def names(self) -> set[str]:
        """The names in the rows, and perhaps some that no row has anymore."""
        return set[str]().union(*(part.names() for part in self._parts))

    def _found(self, field: str) -> list[Cell] | Typed:
        parts = [part for part in self._parts if part.count]
        typed = [one for part in parts if (one := part.typed(field)) is not None]
        joined = typed[0].joined(typed) if typed and len(typed) == len(parts) else None
        return self.cells(field) if joined is None else joined

    def cells(self, field: str) -> list[Cell]:
        if field == "id":
            return list(self.ids)
        if len(self._parts) == 1:
            return self._parts[0].cells(field)
        return list(chain(*(part.cells(field) for part in self._parts)))

    def values(self, field: str) -> list[JsonValue | Missing]:
        """The field's value in every row."""
        return self.column(field).values

    @cached_property
    def _is_in_id_order(self) -> bool:
        return not self.is_in_memory or all(map(lt, self.ids, islice(self.ids, 1, None)))

    def in_id_order(self, positions: Positions) -> Positions:
        """Ascending positions, reordered by their ids."""
        return positions if self._is_in_id_order else sorted(listed(positions), key=self.ids.__getitem__)

    @cached_property
    def nested_fields(self) -> frozenset[str]:
        """The keys under which a row holds an array or an object. A copy of a row must copy those, too."""
        return frozenset(name for row in self.rows for name, value in row.items() if type(value) in CONTAINERS)

    def copies(self, positions: Sequence[int]) -> list[Row]:
        """Copies of rows with their ids, which the caller may change. The rows themselves belong to the cache."""
        rows = self.rows
        if isinstance(rows, _Rows) and rows.is_short_of(len(positions)):  # parsed for the caller: already copies
            parsed = zip(self.ids_at(positions), map(rows.parsed, positions), strict=True)
            return [{"id": entity_id, **row} for entity_id, row in parsed]
        ids = self.ids
        found: list[Row] = [{"id": ids[at], **rows[at]} for at in positions]
        if len(found) * _FEW < len(self):
            return [{name: copied(value) for name, value in row.items()} for row in found]
        if self.nested_fields:
            for row in found:
                for name in self.nested_fields.intersection(row):
                    row[name] = copied(row[name])
        return found

    @cached_property
    def places(self) -> Mapping[str, int]:
        """The position of each id."""
        return {entity_id: at for at, entity_id in enumerate(self.ids)}


class RowsById(Mapping[str, Row]):
    """The rows of columns under their ids."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns

    def __len__(self) -> int:
        return len(self._columns)

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns.ids)

    def __getitem__(self, entity_id: str) -> Row:
        return self._columns.rows[self._columns.places[entity_id]]
