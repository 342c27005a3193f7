"""Order and pages: sorting rows by column, and cursors that say where a page ended.

Rows are sorted by several fields, stably; rows without a field come last in either direction, and ties are broken by
id. A page needs only the first few rows, so `arrange` with a `count` finds the value of the last one and sorts what
comes before it; rows with exactly that value are compared by the next field. `after` returns the rows strictly after a
given one, found by its values and not by its position.

A cursor is text that a caller keeps and sends back. It names the place of the last row (its values of the sort fields,
and its id), not a number of rows: inserting or deleting other rows makes the next page neither skip nor repeat a row.
It is bound to the model, the filter and the sort that it came from, so it cannot silently continue another query. The
checksum finds damage; it is not a secret, and a cursor gives no access rights.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import TypeAlias, cast

from worm.errors import Invalid, show
from worm.formats import MISSING, JsonValue, Missing, dumps, loads
from worm.query.filters import Filter
from worm.tables import Column, Columns, cells
from worm.values import dataclass

Order: TypeAlias = tuple[str, bool]
"""A field, and whether the order is descending."""

_HEAP_SHARE = 8  # a heap pays while it holds at most this part of the rows
_SAMPLE = 64  # sample rows per wanted row


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a row in an order: its values of the sort fields, and its id."""

    values: tuple[JsonValue | Missing, ...]
    id: str


def place_of(columns: Columns, position: int, orders: Sequence[Order]) -> Place:
    (entity_id,) = columns.ids_at([position])
    return Place(tuple(columns.column(field).value(position) for field, _ in orders), entity_id)


def arrange(
    columns: Columns, positions: cells.Positions, orders: Sequence[Order], count: int | None = None
) -> cells.Positions:
    """The positions (given ascending) in order; with `count`, only the first ones."""
    by_id = columns.in_id_order(positions)
    if count is None:
        return _sorted(columns, by_id, orders)
    return _first(columns, by_id, orders, count)


def _sorted(columns: Columns, positions: cells.Positions, orders: Sequence[Order]) -> cells.Positions:
    for field, descending in reversed(orders):
        column = columns.column(field)
        if column.typed is not None:
            positions = column.typed.sorted(positions, descending)
            continue
        positions = cells.listed(positions)
        present = column.present(positions)
        keys = cast("list[int]", column.sort_keys)  # of any type: those of one column can be compared
        ordered = sorted(present, key=keys.__getitem__, reverse=descending)
        positions = ordered if len(ordered) == len(positions) else [*ordered, *_absent(column, positions)]
    return positions


def _absent(column: Column, positions: cells.Positions) -> cells.Positions:
    if column.typed is not None:
        return column.typed.lacking(positions)
    values = column.values
    return [at for at in cells.listed(positions) if values[at] is MISSING]


def _first(columns: Columns, positions: cells.Positions, orders: Sequence[Order], count: int) -> cells.Positions:
    if not orders or not 0 < count * _HEAP_SHARE < len(positions):
        return _sorted(columns, positions, orders)[:count]
    (field, descending), *rest = orders
    column = columns.column(field)
    present = column.present(positions)
    if len(present) <= count:
        missing = _first(columns, _absent(column, positions), rest, count - len(present))
        return [*cells.listed(_sorted(columns, present, orders)), *cells.listed(missing)]
    if column.typed is not None:
        before, equal = column.typed.first(present, descending, count)
    else:
        near = _near(column, cells.listed(present), descending, count)
        last = _last_key(column, near, descending, count)
        before, equal = _split(column, near, not descending, last)
    ordered = cells.listed(_sorted(columns, before, orders)[:count])
    return [*ordered, *cells.listed(_first(columns, equal, rest, count - len(ordered)))]


def _near(column: Column, present: Sequence[int], descending: bool, count: int) -> Sequence[int]:
    """The positions that may be among the first `count`: none comes after the last of the first ones in a sample. One
    fast pass, after which little is left."""
    keys = cast("list[int]", column.sort_keys)
    bound = _last_key(column, present[:: max(1, len(present) // (count * _SAMPLE))], descending, count)
    if descending:
        return [at for at in present if keys[at] >= cast(int, bound)]
    return [at for at in present if keys[at] <= cast(int, bound)]


def _last_key(column: Column, present: Sequence[int], descending: bool, count: int) -> object:
    """The key of the row at position `count`; the keys of one column can be compared with each other."""
    keys = cast("Iterator[int]", map(column.sort_keys.__getitem__, present))
    return (heapq.nlargest if descending else heapq.nsmallest)(count, keys)[-1]


def _split(column: Column, present: Sequence[int], descending: bool, key: object) -> tuple[list[int], list[int]]:
    """The positions that come strictly after the key in this direction, and those that are equal to it."""
    keys = cast("list[int]", column.sort_keys)
    bound = cast(int, key)
    if descending:
        not_before = [at for at in present if keys[at] <= bound]
    else:
        not_before = [at for at in present if keys[at] >= bound]
    return [at for at in not_before if keys[at] != bound], [at for at in not_before if keys[at] == bound]


def after(columns: Columns, positions: cells.Positions, orders: Sequence[Order], place: Place) -> cells.Positions:
    """The positions (ascending) that come after the place in this order, also ascending."""
    if not orders and not columns.is_in_memory:  # all ids are in order, and most of them need not be loaded
        start = bisect_right(range(len(columns)), place.id, key=lambda at: columns.ids_at([at])[0])
        return positions[bisect_left(positions, start) :]
    if not orders:
        ids = columns.ids
        return [at for at in cells.listed(positions) if ids[at] > place.id]
    (field, descending), *rest = orders
    column, value = columns.column(field), place.values[0]
    beyond = Place(place.values[1:], place.id)
    missing = _absent(column, positions)
    if isinstance(value, Missing):
        return after(columns, missing, rest, beyond)
    later, equal = _later(column, cells.listed(column.present(positions)), descending, value)
    return sorted([*later, *cells.listed(missing), *cells.listed(after(columns, equal, rest, beyond))])


def _later(
    column: Column, present: Sequence[int], descending: bool, value: JsonValue
) -> tuple[Sequence[int], Sequence[int]]:
    key = cells.sort_key(value)
    if column.rank is None:
        return _split(column, present, descending, key)
    if column.rank == key[0]:
        return _split(column, present, descending, key[1])
    return (present if (column.rank > key[0]) is not descending else []), []


# Cursors

VERSION = 1
_SUM_BYTES = 8
_HINT = "send the cursor of the previous page unchanged, or leave it out to start at the first page"


def encode_cursor(model: str, filter: Filter, orders: Sequence[Order], place: Place) -> str:
    values: list[JsonValue] = [[] if isinstance(value, Missing) else [value] for value in place.values]
    body = dumps([VERSION, _binding(model, filter, orders), values, place.id])
    return base64.urlsafe_b64encode(_sum(body) + body).decode().rstrip("=")


def decode_cursor(cursor: str, model: str, filter: Filter, orders: Sequence[Order]) -> Place:
    """The place that the cursor names; `Invalid` unless it is a cursor of this model, filter and sort."""
    version, binding, values, entity_id = _parts(cursor)
    if version != VERSION:
        raise Invalid(
            f"the cursor has version {show(version)}, but this code reads version {VERSION}", path="cursor", hint=_HINT
        )
    if binding != _binding(model, filter, orders):
        hint = "a cursor continues a query of the same model, filter, sort and moment; leave it out to start a new one"
        raise Invalid("the cursor belongs to another query", path="cursor", hint=hint)
    if not isinstance(values, list) or len(values) != len(orders) or not isinstance(entity_id, str):
        raise _damaged()
    return Place(tuple(map(_value, values)), entity_id)


def _value(kept: JsonValue) -> JsonValue | Missing:
    if not isinstance(kept, list) or len(kept) > 1:
        raise _damaged()
    return kept[0] if kept else MISSING


def _parts(cursor: object) -> list[JsonValue]:
    if not isinstance(cursor, str) or not cursor.isascii():
        raise _damaged()
    try:
        raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
    except binascii.Error as error:
        raise _damaged() from error
    body = raw[_SUM_BYTES:]
    if raw[:_SUM_BYTES] != _sum(body):
        raise _damaged()
    try:
        parts = loads(body)
    except Invalid as error:
        raise _damaged() from error
    if not isinstance(parts, list) or len(parts) != 4:
        raise _damaged()
    return parts


def _damaged() -> Invalid:
    return Invalid("this is not a cursor, or it is damaged", path="cursor", hint=_HINT)


def _binding(model: str, filter: Filter, orders: Sequence[Order]) -> str:
    ordered: list[JsonValue] = [[field, descending] for field, descending in orders]
    return hashlib.sha256(b"\n".join([model.encode(), filter.source, dumps(ordered)])).hexdigest()[:16]


def _sum(body: bytes) -> bytes:
    return hashlib.sha256(body).digest()[:_SUM_BYTES]
