"""A query: rows by filter, sorted, projected, paged; over rows or over columns, with the same answer.

Filters look through arrays on a dotted path; sort and select take the one value that a field has, so a path through an
array counts as missing there."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from worm.codec.strict_json import JsonValue, Missing, field_value, type_name
from worm.collections.entries import Row
from worm.errors import Invalid
from worm.query.filters import Filter
from worm.query.sort import Order, Place, Sort, after, arrange, decode_cursor, encode_cursor, orders_of, place_of
from worm.tables.columns import Columns
from worm.tables.parts import copied

__all__ = ["Page", "Query", "Row", "Sort"]

_FEW = 4  # for less than this part of the rows it does not pay to make columns of all of them


@dataclass(frozen=True, slots=True)
class Page:
    """Rows, and the cursor of the next page; None when these were the last. `positions`: where the rows are in the
    columns that they were taken from."""

    rows: list[Row]
    cursor: str | None = None
    positions: Sequence[int] = dataclasses.field(default=(), compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Query:
    """A checked query. `select` empty: only ids. `model`: whose cursors it gives and takes."""

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
        """Every field that the query names, for whoever decides where to read."""
        return {*self._scanned, *(self.select or ())}

    @property
    def _scanned(self) -> set[str]:
        """The fields that decide which rows are on the page."""
        return {*self.filter.fields, *(field for field, _ in self.sort)}

    def run(self, rows: Iterable[Row]) -> list[Row]:
        """The answer over rows that hold their id."""
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
        """The positions of the page's rows in order, and the next cursor: for whoever reads the rows elsewhere."""
        columns.prepare(self._scanned)
        return self._picked(columns, self.filter.positions(columns))

    def project(self, row: Row) -> Row:
        """A copy of a row (which holds its id) with the selected fields; all of them without a selection."""
        if self.select is None:
            return {name: copied(value) for name, value in row.items()}
        return _selected(row["id"], row, self.select)

    def _page(self, columns: Columns, matching: Sequence[int]) -> Page:
        positions, cursor = self._picked(columns, matching)
        return Page(self._copies(columns, positions), cursor, positions)

    def _picked(self, columns: Columns, matching: Sequence[int]) -> tuple[Sequence[int], str | None]:
        if self.place is not None:
            matching = after(columns, matching, self.sort, self.place)
        end = None if self.limit is None else self.offset + self.limit
        ordered = arrange(columns, matching, self.sort, end) if self.sort else columns.in_id_order(matching)
        chosen = ordered[self.offset : end]
        if end is None or len(matching) <= end or not chosen:
            return chosen, None
        return chosen, encode_cursor(self.model, self.filter, self.sort, place_of(columns, chosen[-1], self.sort))

    def _copies(self, columns: Columns, positions: Sequence[int]) -> list[Row]:
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
                    row[field] = copied(value)
        return found


def _selected(entity_id: JsonValue, row: Row, fields: Sequence[str]) -> Row:
    selected: Row = {"id": entity_id}
    for field in fields:
        value = row[field] if field in row else field_value(row, field)
        if not isinstance(value, Missing):
            selected[field] = copied(value)
    return selected


def _check_page(limit: int | None, offset: int, cursor: str | None) -> None:
    for name, number in (("limit", limit), ("offset", offset)):
        if number is not None and (isinstance(number, bool) or not isinstance(number, int)):
            raise Invalid(f"must be a whole number, not {type_name(number)}", path=name)
    if offset < 0 or (limit is not None and limit < 0):
        raise Invalid("limit and offset must not be negative")
    if cursor is not None and offset:
        raise Invalid("cursor and offset exclude each other", hint="a cursor says itself where the page starts")


def _names(select: Sequence[str] | None) -> tuple[str, ...] | None:
    names: list[object] = list(select or ())
    if isinstance(select, str) or not all(isinstance(name, str) for name in names):
        raise Invalid("takes a list of field names", path="select")
    return None if select is None else tuple(select)
