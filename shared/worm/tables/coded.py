"""A column with few different values: each of them once, and a byte for every row that says which.

A condition is then tested once per value and not once per row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import TypeAlias, TypeGuard

from worm.codec.field_path import Missing
from worm.codec.strict_json import JsonValue

Scalar: TypeAlias = "str | int | bool | Missing | None"

VALUES_MAX = 256
_SCALARS = frozenset({str, int, bool, type(None), Missing})


@dataclass(frozen=True, slots=True)
class Coded:
    """`values` are scalars, `codes` their positions, one byte per row."""

    values: Sequence[Scalar]
    codes: bytes

    @classmethod
    def of(cls, cells: Sequence[JsonValue | Missing], share: int) -> Coded | None:
        """None for cells that are no scalars, or that have more values than one for every `share` of them."""
        most = min(VALUES_MAX, len(cells) // share)
        if not most or not are_scalars(cells) or len(set(cells[: 2 * most])) > most:  # most columns have more at once
            return None
        numbers = _numbered(cells)
        return cls(list(numbers), bytes(map(numbers.__getitem__, cells))) if len(numbers) <= most else None

    @classmethod
    def joined(cls, parts: Sequence[Coded]) -> Coded | None:
        """One column of several; None where they have too many values together."""
        values = [value for part in parts for value in part.values]
        numbers = _numbered(values)
        if len(numbers) > VALUES_MAX or not are_scalars(values):
            return None
        tables = (_table(map(numbers.__getitem__, part.values)) for part in parts)
        codes = [part.codes.translate(table) for part, table in zip(parts, tables, strict=True)]
        return cls(list(numbers), b"".join(codes))

    def cells(self, start: int = 0, end: int | None = None) -> list[Scalar]:
        """The values of the rows."""
        return list(map(self.values.__getitem__, self.codes[start:end]))

    def where(self, holds: Callable[[Scalar], bool], candidates: Sequence[int]) -> list[int]:
        """Those of the candidates whose values hold. They are ascending; a range stands for all rows."""
        marks = self.codes.translate(_table(map(holds, self.values)))
        is_whole = isinstance(candidates, range)
        return list(compress(candidates, marks if is_whole else map(marks.__getitem__, candidates)))


def are_scalars(cells: Iterable[object]) -> TypeGuard[Sequence[Scalar]]:
    """Are they equal in Python exactly where they are as JSON? So no floats (0.0 and -0.0), and not both booleans and
    integers (true and 1)."""
    kinds = set(map(type, cells))
    return kinds <= _SCALARS and not kinds >= {bool, int}


def _numbered(values: Iterable[Scalar]) -> dict[Scalar, int]:
    """Different values in the order in which they come."""
    return {value: number for number, value in enumerate(dict.fromkeys(values))}


def _table(numbers: Iterable[int]) -> bytes:
    return bytes(numbers).ljust(VALUES_MAX, b"\0")
