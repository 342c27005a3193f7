"""Cells: what a field's path finds in a row, how cells compare, and positions of rows. A vocabulary module: use its
names as `cells.sort_key(value)`.

A *cell* is a value, `MISSING`, or `Several` if the path goes through an array and so ends at several places, or at
none.

Here is the one order of JSON values, used by sort, cursors, and `min`/`max`. Values of different types sort by type:
null, numbers, strings, arrays and objects (by their canonical JSON), booleans. Numbers compare by value whatever their
type, and strings by code points.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias, cast

from worm.formats import MISSING, JsonValue, Missing, dumps

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Positions: TypeAlias = "Sequence[int] | NDArray[np.int64]"
"""Positions of rows: ascending, unless sorted; a range means all rows."""


class Several:
    """All values that a dotted path finds in the objects of an array on its way; empty if the array has no objects."""

    __slots__ = ("cells",)

    def __init__(self, cells: list[JsonValue | Missing]) -> None:
        self.cells = cells


Cell: TypeAlias = "JsonValue | Missing | Several"
CONTAINERS = frozenset({list, dict, Several})


def reader(field: str) -> Callable[[Mapping[str, JsonValue]], Cell]:
    """The function that finds a field's cell in a row or a document.

    A key with exactly this name takes precedence over descending at the dots, because rows keep dotted names.
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
    """Only descends into the objects of an array, as deep as the document is nested."""
    found: list[JsonValue | Missing] = []
    for item in array:
        if isinstance(item, dict):
            cell = descend(item, parts)
            if isinstance(cell, Several):
                found += cell.cells
            else:
                found.append(cell)
    return found


def with_descent(field: str, found: Mapping[str, list[JsonValue | Missing]]) -> list[Cell]:
    """The cells of a field, from the cells of its name and, if it is dotted, of the object that it may lead into."""
    first, *rest = field.split(".")
    if not rest:
        return cast("list[Cell]", found[field])
    return [
        descend(outer, rest) if cell is MISSING else cell
        for cell, outer in zip(found[field], found[first], strict=True)
    ]


def copied(value: JsonValue) -> JsonValue:
    """A deep copy of the value."""
    if isinstance(value, dict):
        return {name: copied(item) if type(item) in CONTAINERS else item for name, item in value.items()}
    return [copied(item) if type(item) in CONTAINERS else item for item in value] if isinstance(value, list) else value


# Order and equality

SortKey = tuple[int, float | int | str]

NULL, NUMBER, STRING, NESTED, BOOLEAN = range(5)


def sort_key(value: object) -> SortKey:
    """The sort key of a value; the keys of any two values can be compared."""
    if value is None:
        return NULL, 0
    if isinstance(value, bool):
        return BOOLEAN, int(value)
    if isinstance(value, int | float):
        return NUMBER, value
    if isinstance(value, str):
        return STRING, value
    return NESTED, dumps(cast(JsonValue, value)).decode()


class _Never:
    """Compares false with everything and contains nothing. A facet has it where a row has no value of its type."""

    __slots__ = ()

    def _no(self, _other: object) -> bool:
        return False

    __lt__ = __le__ = __gt__ = __ge__ = __contains__ = startswith = _no


NEVER = _Never()
TRUE, FALSE = object(), object()  # `True == 1` in Python, but not in JSON


def comparable(cell: Cell) -> object:
    """The cell as in a column's `equality`."""
    if cell is MISSING:
        return None
    if isinstance(cell, bool):
        return TRUE if cell else FALSE
    return NEVER if type(cell) in CONTAINERS else cell


# Positions of rows


def listed(positions: Positions) -> Sequence[int]:
    """Positions for loops in Python, which are slow over arrays."""
    return positions if isinstance(positions, list | tuple | range) else cast("NDArray[np.int64]", positions).tolist()
