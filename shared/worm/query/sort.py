"""Putting rows in order, by column: several fields, stable, rows without a field last in either direction, ties by id.

A page needs only the first few rows, so `arrange` with a `count` looks for the value that the last of them has and
sorts what lies before it; rows that have exactly that value compete by the next field. `after` is the other half of
paging: the rows that come strictly later than a given one, found by its values and not by its position."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias, cast

from worm.codec.field_path import MISSING, Missing
from worm.codec.strict_json import JsonValue
from worm.tables.columns import Column, Columns, sort_key

Order: TypeAlias = tuple[str, bool]
"""A field, and whether the order is descending."""

_HEAP_SHARE = 8  # a heap pays while it holds at most this part of the rows
_SAMPLE = 64  # rows of a sample for each that is wanted


@dataclass(frozen=True, slots=True)
class Place:
    """Where a row stands in an order: its values of the sort fields, and its id."""

    values: tuple[JsonValue | Missing, ...]
    id: str


def place_of(columns: Columns, position: int, orders: Sequence[Order]) -> Place:
    (entity_id,) = columns.ids_at([position])
    return Place(tuple(columns.values(field)[position] for field, _ in orders), entity_id)


def arrange(
    columns: Columns, positions: Sequence[int], orders: Sequence[Order], count: int | None = None
) -> Sequence[int]:
    """The positions (given ascending) in order; with `count`, the first so many of them."""
    by_id = columns.in_id_order(positions)
    if count is None:
        return _sorted(columns, by_id, orders)
    return _first(columns, by_id, orders, count)


def _sorted(columns: Columns, positions: Sequence[int], orders: Sequence[Order]) -> Sequence[int]:
    for field, descending in reversed(orders):
        column = columns.column(field)
        present = column.present(positions)
        keys = cast("list[int]", column.sort_keys)  # of whatever type: one column's can be compared
        ordered = sorted(present, key=keys.__getitem__, reverse=descending)
        positions = ordered if len(ordered) == len(positions) else ordered + _absent(column, positions)
    return positions


def _absent(column: Column, positions: Sequence[int]) -> list[int]:
    values = column.values
    return [at for at in positions if values[at] is MISSING]


def _first(columns: Columns, positions: Sequence[int], orders: Sequence[Order], count: int) -> Sequence[int]:
    if not orders or not 0 < count * _HEAP_SHARE < len(positions):
        return _sorted(columns, positions, orders)[:count]
    (field, descending), *rest = orders
    column = columns.column(field)
    present = column.present(positions)
    if len(present) <= count:
        missing = _first(columns, _absent(column, positions), rest, count - len(present))
        return [*_sorted(columns, present, orders), *missing]
    near = _near(column, present, descending, count)
    last = _last_key(column, near, descending, count)
    before, equal = _split(column, near, not descending, last)
    return [*_sorted(columns, before, orders), *_first(columns, equal, rest, count - len(before))]


def _near(column: Column, present: Sequence[int], descending: bool, count: int) -> Sequence[int]:
    """Those of the positions that may be among the first `count`: none of them comes after the last of the first so
    many of a sample. One quick pass, after which there is little left to look at."""
    keys = cast("list[int]", column.sort_keys)
    bound = _last_key(column, present[:: max(1, len(present) // (count * _SAMPLE))], descending, count)
    if descending:
        return [at for at in present if keys[at] >= cast(int, bound)]
    return [at for at in present if keys[at] <= cast(int, bound)]


def _last_key(column: Column, present: Sequence[int], descending: bool, count: int) -> object:
    """The key of the row that comes at `count`; the keys of one column can be compared with each other."""
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


def after(columns: Columns, positions: Sequence[int], orders: Sequence[Order], place: Place) -> Sequence[int]:
    """Those of the positions (ascending) that come after the place in this order, ascending too."""
    if not orders:
        ids = columns.ids
        return [at for at in positions if ids[at] > place.id]
    (field, descending), *rest = orders
    column, value = columns.column(field), place.values[0]
    beyond = Place(place.values[1:], place.id)
    missing = _absent(column, positions)
    if isinstance(value, Missing):
        return after(columns, missing, rest, beyond)
    later, equal = _later(column, column.present(positions), descending, value)
    return sorted([*later, *missing, *after(columns, equal, rest, beyond)])


def _later(
    column: Column, present: Sequence[int], descending: bool, value: JsonValue
) -> tuple[Sequence[int], Sequence[int]]:
    key = sort_key(value)
    if column.rank is None:
        return _split(column, present, descending, key)
    if column.rank == key[0]:
        return _split(column, present, descending, key[1])
    return (present if (column.rank > key[0]) is not descending else []), []
