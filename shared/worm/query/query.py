"""A query: filtered, sorted, projected and paged rows; over rows or over columns, with the same answer.

Filters look through arrays on a dotted path; sort and select use the single value of a field, so a path through an
array counts as missing there."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from worm.collections import Row
from worm.errors import Invalid
from worm.formats import JsonValue, Missing, field_value, type_name
from worm.query.filters import Filter
from worm.query.sort import Order, Place, after, arrange, decode_cursor, encode_cursor, place_of
from worm.tables import Columns, cells
from worm.values import dataclass

__all__ = ["Page", "Query", "Row", "Sort"]

SortField: TypeAlias = str | Mapping[str, str | int] | tuple[str, str | int]
Sort: TypeAlias = SortField | Sequence[SortField]
"""What callers write: `"name"`, `"-name"`, `{"name": "desc"}`, `{"name": -1}`, `("name", -1)`,
`{"field": "name", "order": "desc"}`, or a list of such."""

SORT_FIELDS_MAX = 32
_DESCENDING: dict[object, bool] = {"asc": False, "desc": True, 1: False, -1: True}
_FEW = 4  # below this share of the rows, building columns of all of them does not pay off


@dataclass(frozen=True, slots=True)
class Page:
    """Rows, and the cursor of the next page; None if these were the last. `positions`: where the rows are in the
    columns that they were taken from."""

    rows: list[Row]
    cursor: str | None = None
    positions: Sequence[int] = dataclasses.field(default=(), compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Query:
    """A checked query. `select` empty: only ids. `model`: the owner of its cursors."""

    filter: Filter
    sort: tuple[Order, ...] = ()
    select: tuple[str, ...] | None = None
    limit: int | None = None
    offset: int = 0
    place: Place | None = None
    model: str = ""

    @classmethod
    def of(
        cls,
        *,
        filter: Mapping[str, object] | None = None,
        sort: Sort | None = None,
        select: Sequence[str] | None = None,
        limit: int | None = None,
        offset: int = 0,
        cursor: str | None = None,
        model: str = "",
    ) -> Query:
        compiled, orders = Filter.compile(filter), orders_of(sort)
        _check_page(limit, offset, cursor)
        place = None if cursor is None else decode_cursor(cursor, model, compiled, orders)
        return cls(compiled, orders, _names(select), limit, offset, place, model)

    def fields(self) -> set[str]:
        """Every field of the query, to decide where to read."""
        return {*self._scanned, *(self.select or ())}

    @property
    def _scanned(self) -> set[str]:
        """The fields that decide which rows are on the page."""
        return {*self.filter.fields, *(field for field, _ in self.sort)}

    def run(self, rows: Iterable[Row]) -> list[Row]:
        """The answer over rows that include their id."""
        return self.page(rows).rows

    def run_columns(self, columns: Columns) -> list[Row]:
        """The same answer over columns, faster."""
        return self.page_columns(columns).rows

    def page(self, rows: Iterable[Row]) -> Page:
        matching = [row for row in rows if self.filter.matches(row)]
        columns = Columns.of([str(row["id"]) for row in matching], matching)
        return self._page(columns, range(len(columns)))

    def page_columns(self, columns: Columns) -> Page:
        columns.prepare(self._scanned)
        return self._page(columns, self.filter.positions(columns))

    def picked(self, columns: Columns) -> tuple[Sequence[int], str | None]:
        """The positions of the page's rows in order, and the next cursor: for callers that read the rows elsewhere."""
        columns.prepare(self._scanned)
        return self._picked(columns, self.filter.positions(columns))

    def project(self, row: Row) -> Row:
        """A copy of a row (which includes its id) with the selected fields; all of them without a selection."""
        if self.select is None:
            return {name: cells.copied(value) for name, value in row.items()}
        return _selected(row["id"], row, self.select)

    def _page(self, columns: Columns, matching: cells.Positions) -> Page:
        positions, cursor = self._picked(columns, matching)
        return Page(self.copies(columns, positions), cursor, positions)

    def _picked(self, columns: Columns, matching: cells.Positions) -> tuple[Sequence[int], str | None]:
        if self.place is not None:
            matching = after(columns, matching, self.sort, self.place)
        end = None if self.limit is None else self.offset + self.limit
        ordered = arrange(columns, matching, self.sort, end) if self.sort else columns.in_id_order(matching)
        chosen = cells.listed(ordered[self.offset : end])
        if end is None or len(matching) <= end or not chosen:
            return chosen, None
        return chosen, encode_cursor(self.model, self.filter, self.sort, place_of(columns, chosen[-1], self.sort))

    def copies(self, columns: Columns, positions: Sequence[int]) -> list[Row]:
        """Copies for the caller, who may change them: the rows themselves belong to the cached manifest."""
        if self.select is None:
            return columns.copies(positions)
        if len(positions) * _FEW < len(columns):
            rows = map(columns.rows.__getitem__, positions)
            return [_selected(*pair, self.select) for pair in zip(columns.ids_at(positions), rows, strict=True)]
        columns.prepare(self.select)
        found: list[Row] = [{"id": entity_id} for entity_id in columns.ids_at(positions)]
        for field in self.select:
            values = columns.values(field)
            for row, at in zip(found, positions, strict=True):
                if not isinstance(value := values[at], Missing):
                    row[field] = cells.copied(value)
        return found


def _selected(entity_id: JsonValue, row: Row, fields: Sequence[str]) -> Row:
    selected: Row = {"id": entity_id}
    for field in fields:
        value = row[field] if field in row else field_value(row, field)
        if not isinstance(value, Missing):
            selected[field] = cells.copied(value)
    return selected


def _check_page(limit: int | None, offset: int, cursor: str | None) -> None:
    for name, number in (("limit", limit), ("offset", offset)):
        if number is not None and (isinstance(number, bool) or not isinstance(number, int)):
            raise Invalid(f"must be a whole number, not {type_name(number)}", path=name)
    if offset is None:
        raise Invalid("must be a whole number, not null", path="offset")
    if offset < 0 or (limit is not None and limit < 0):
        raise Invalid("limit and offset must not be negative")
    if cursor is not None and offset:
        raise Invalid("cursor and offset exclude each other", hint="a cursor already says where the page starts")


def _names(select: Sequence[str] | None) -> tuple[str, ...] | None:
    names: list[object] = list(select or ())
    if isinstance(select, str) or not all(isinstance(name, str) for name in names):
        raise Invalid("must be a list of field names", path="select")
    return None if select is None else tuple(select)


# Sort, as callers write it


def orders_of(sort: Sort | None) -> tuple[Order, ...]:
    """The checked sort orders; `Invalid` says what to write instead."""
    orders = _orders([] if sort is None else sort)
    if len(orders) > SORT_FIELDS_MAX:
        raise Invalid(f"must have at most {SORT_FIELDS_MAX} fields", path="sort")
    return orders


def _orders(sort: object) -> tuple[Order, ...]:
    if isinstance(sort, str):
        return (_named(sort),)
    if isinstance(sort, Mapping):
        return _mapped(sort)
    if not isinstance(sort, list | tuple):
        raise _no_order(sort)
    if _is_pair(sort):
        return (_pair(*sort),)
    if len(sort) == 2 and sort[1] in ("asc", "desc"):  # write a field of this name as `{"desc": 1}`
        raise _no_order(sort)
    return tuple(order for one in sort for order in _orders_of_one(one))


def _orders_of_one(given: object) -> tuple[Order, ...]:
    if isinstance(given, list | tuple):
        if len(given) != 2 or not isinstance(given[0], str):
            raise _no_order(given)
        return (_pair(*given),)
    if isinstance(given, str | Mapping):
        return _orders(given)
    raise _no_order(given)


def _named(text: str) -> Order:
    """`name`, `+name` or `-name`."""
    field = text[1:] if text.startswith(("-", "+")) else text
    if not field or text.endswith((":asc", ":desc", " asc", " desc")):
        raise _no_order(text)
    return field, text.startswith("-")


def _mapped(given: Mapping[object, object]) -> tuple[Order, ...]:
    """`{"field": "name", "order": "desc"}`, or `{"name": "desc"}` with one member or more."""
    if isinstance(given.get("field"), str):
        if not given.keys() <= {"field", "order"}:
            raise _no_order(given)
        return (_pair(given["field"], given.get("order", "asc"), given),)
    if not given:
        raise _no_order(given)
    return tuple(_pair(field, direction, given) for field, direction in given.items())


def _is_pair(given: Sequence[object]) -> bool:
    return len(given) == 2 and isinstance(given[0], str) and not isinstance(given[1], str | Mapping | list | tuple)


def _pair(field: object, direction: object, given: object = None) -> Order:
    is_known = isinstance(direction, str | int) and not isinstance(direction, bool) and direction in _DESCENDING
    if not isinstance(field, str) or not field or not is_known:
        raise _no_order((field, direction) if given is None else given)
    return field, _DESCENDING[direction]


def _no_order(given: object) -> Invalid:
    """The error, with what the caller may have meant."""
    field, is_descending = _meant(given)
    name = f"-{field}" if is_descending else field
    hint = f'write "{name}", or {{"{field}": "{"desc" if is_descending else "asc"}"}}, or a list of these'
    return Invalid("a sort needs a field, and an order of 'asc' or 'desc'", path="sort", hint=hint)


def _meant(given: object) -> tuple[str, bool]:
    """The first text in it that can be a field; descending if something in it suggests that."""
    pairs = [part for pair in given.items() for part in pair] if isinstance(given, Mapping) else [given]
    parts = list(given) if isinstance(given, list | tuple) else pairs
    texts = [word for part in parts if isinstance(part, str) for word in part.replace(":", " ").split()]
    fields = [text for text in texts if text.lower() not in ("field", "order", "asc", "desc", "-")]
    is_descending = any(text.lower().startswith("desc") for text in texts if text not in fields[:1])
    return (fields[0].removeprefix("-") if fields else "name"), is_descending or -1 in parts
