"""Parts that have the cells of their fields as arrays, as far as arrays hold them exactly."""

from __future__ import annotations

from collections.abc import Sequence

from worm.collections.entries import Row
from worm.tables.columns import Columns
from worm.tables.parts import ParsedPart
from worm.tables.typed import Typed, TypedKind

KINDS: tuple[TypedKind, ...] = ("int", "float", "number", "bool", "text")


class TypedPart(ParsedPart):
    """`kinds`: in the order in which they are tried."""

    kinds = KINDS

    def typed(self, field: str) -> Typed | None:
        cells: Sequence[object] = self.ids if field == "id" else self.cells(field)
        found = (Typed.of(kind, cells) for kind in self.kinds)
        return next((one for one in found if one is not None), None)


def typed_columns(rows: Sequence[Row], parts: int = 1) -> Columns:
    """The rows, which include their ids, in this many parts."""
    size = -(-len(rows) // parts) or 1
    slices = [rows[start : start + size] for start in range(0, len(rows), size)] or [rows]
    return Columns([_part(one) for one in slices])


def _part(rows: Sequence[Row]) -> TypedPart:
    ids = [str(row["id"]) for row in rows]
    return TypedPart(ids, [{name: row[name] for name in row if name != "id"} for row in rows])
