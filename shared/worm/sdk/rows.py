"""Rows: the result of a query. A list with the cursor of the next page, its plan, and conversions to Arrow and pandas.
An Arrow table needs no other package: pandas, Polars, DuckDB and PyArrow take it by the Arrow PyCapsule interface.

Columns of `to_arrow()` have the types of the schema, even without rows:

| field | Arrow |
|---|---|
| `string`, `ref`, the id | string |
| `integer`, `number`, `boolean` | int64, float64, bool |
| `datetime` | timestamp in microseconds, UTC; a time without an offset counts as UTC |
| `array` | list of the type of its items |
| `object`, a populated reference, anything that is not declared | string: text as it is, everything else as JSON |

Missing and null are both null.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import field
from datetime import UTC, datetime, timedelta
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, TypeVar, cast

from worm.collections import Row
from worm.errors import Invalid, show
from worm.formats import TIME_FIELDS, FieldDef, JsonValue, Missing, ModelDef, dumps, field_value
from worm.query import Filter, Plan
from worm.sdk.html import list_repr, rows_html
from worm.sdk.shapes import is_object
from worm.tables import Column, Columns
from worm.values import dataclass

if TYPE_CHECKING:
    import pandas
    from arro3.core import Array, DataType, Table

R = TypeVar("R")
T = TypeVar("T")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Rows(list[R]):
    """Rows of one answer. `cursor` continues after the last row; None if there are no more.

    Examples:
        >>> page = customers.find_all(limit=1)
        >>> [customer.id for customer in customers.find_all(limit=1, cursor=page.cursor)]
        ['globex']
    """

    def __init__(
        self,
        rows: Iterable[R] = (),
        *,
        definition: ModelDef,
        plan: Plan,
        cursor: str | None = None,
        select: Sequence[str] | None = None,
    ) -> None:
        super().__init__(rows)
        self.cursor = cursor
        self.plan = plan
        self._definition = definition
        self._select = select
        self._records: dict[int, tuple[object, Row]] = {}

    def with_items(self, items: Sequence[T]) -> Rows[T]:
        """Objects made from these rows, one for each. Arrow and pandas get the original rows."""
        made = Rows(items, definition=self._definition, plan=self.plan, cursor=self.cursor, select=self._select)
        rows = cast("list[Row]", self)
        made._records = {
            id(item): (item, row) for item, row in zip(items, rows, strict=True)
        }  # the item stays alive, so its id() stays unique
        return made

    def __repr__(self) -> str:
        return list_repr(type(self).__name__, self, self.cursor)

    def _repr_html_(self) -> str:
        records = [self._record(item) for item in self]
        return rows_html(self._names(records), records, self.cursor)

    def to_arrow(self) -> Table:
        """An Arrow table (`arro3.core.Table`), one column per field, typed by the schema. `pyarrow.table(…)`, Polars
        and DuckDB take it as it is.

        Examples:
            >>> customers.find_all(select=["name"]).to_arrow().column_names
            ['id', 'name']
        """
        records = [self._record(item) for item in self]
        return _table(
            self._definition, self._names(records), lambda name: [field_value(record, name) for record in records]
        )

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """The Arrow PyCapsule interface: the table for packages that take any Arrow data."""
        return self.to_arrow().__arrow_c_stream__(requested_schema)

    def to_pandas(self) -> pandas.DataFrame:
        """A `pandas.DataFrame` whose columns keep the Arrow types (so integers with gaps stay integers)."""
        frames, arrow = _package("pandas"), _package("pyarrow")
        return arrow.table(self.to_arrow()).to_pandas(types_mapper=frames.ArrowDtype)

    def _record(self, item: object) -> Row:
        if id(item) in self._records:
            return self._records[id(item)][1]
        if not is_object(item):
            return cast(Row, item)
        from worm.sdk.objects import dump

        return dump(item, self._definition.fields)

    def _names(self, records: Sequence[Row]) -> list[str]:
        """The selected fields; without a selection, the fields of the schema, then any others of the rows."""
        if self._select is not None:
            return list(dict.fromkeys(("id", *self._select)))
        declared = ("id", *self._definition.fields, *TIME_FIELDS)
        return list(dict.fromkeys((*declared, *(name for record in records for name in record))))


@dataclass(frozen=True, slots=True)
class ArrowRows:
    """All rows of a model with these fields as an Arrow table, computed from columns as totals are: no row is made.

    `is_whole`: with fields that the schema does not declare. The result is None if the table alone does not have them.
    """

    definition: ModelDef
    names: tuple[str, ...]
    is_whole: bool = False
    filter: Filter = field(default_factory=lambda: Filter.compile(None))

    def fields(self) -> set[str]:
        """Every field that documents are read for."""
        return set() if self.is_whole else {*self.names}

    def run(self, rows: Iterable[Row]) -> Table | None:
        """The table from rows that include their id."""
        if self.is_whole:
            return None
        kept = list(rows)
        return self._table((), lambda name: [field_value(row, name) for row in kept])

    def run_columns(self, columns: Columns) -> Table | None:
        """The same table from columns, faster."""
        others = sorted(columns.names().difference(self.names)) if self.is_whole else []
        if (self.is_whole and columns.cut) or any("." in name for name in others):  # a dot would be a path
            return None
        columns.prepare((*self.names, *others))
        others = [name for name in others if columns.column(name).kinds != {Missing}]
        return self._table(others, columns.column)

    def _table(self, others: Iterable[str], find: Callable[[str], Sequence[JsonValue | Missing] | Column]) -> Table:
        return _table(self.definition, dict.fromkeys(("id", *self.names, *others)), find)


def _table(
    definition: ModelDef, names: Iterable[str], find: Callable[[str], Sequence[JsonValue | Missing] | Column]
) -> Table:
    from arro3.core import Field, Schema, Table

    columns, arrays = {name: _column(_declared(definition, name)) for name in names}, []
    for name, column in columns.items():
        found = find(name)
        if isinstance(found, Column):
            if (array := column.taken(found)) is not None:
                arrays.append(array)
                continue
            found = found.values
        try:
            arrays.append(column.array([None if isinstance(value, Missing) else value for value in found]))
        except (OverflowError, TypeError, ValueError) as mistake:
            hint = "leave the field out of select, or declare another type"
            problem = f"does not fit into a column of type {column.name}: {mistake}"
            raise Invalid(problem, path=name, hint=hint) from mistake
    fields = [Field(name, column.type, nullable=True) for name, column in columns.items()]
    return Table.from_arrays(arrays, schema=Schema(fields))


def _declared(definition: ModelDef, name: str) -> FieldDef | None:
    if name == "id":
        return FieldDef(type="string")
    found = definition.field_at(name)
    return FieldDef(type="datetime") if found is None and name in TIME_FIELDS else found


@dataclass(frozen=True, slots=True)
class _Column:
    """How a field becomes an Arrow array. `convert`: checks and converts a value that is not null. `items`: of a
    list."""

    name: str
    type: DataType
    convert: Callable[[JsonValue], object]
    items: _Column | None = None

    def taken(self, column: Column) -> Array | None:
        """The array of a column that is one already; None if it has other values."""
        kinds = {"string": ("text",), "int64": ("int",), "double": ("float", "number"), "bool": ("bool",)}
        typed = column.typed
        return typed.array.cast(self.type) if typed is not None and typed.kind in kinds.get(self.name, ()) else None

    def array(self, values: Sequence[JsonValue]) -> Array:
        from arro3.core import Array, DataType, list_array

        cells = [None if value is None else self.convert(value) for value in values]
        if self.items is None:
            is_time = self.convert is _microseconds
            return Array(cells, type=DataType.int64()).cast(self.type) if is_time else Array(cells, type=self.type)
        items, offsets = list[JsonValue](), [0]
        for cell in cast("list[list[JsonValue] | None]", cells):
            items += cell or ()
            offsets.append(len(items))
        starts, absent = Array(offsets, type=DataType.int32()), [cell is None for cell in cells]
        mask = Array(absent, type=DataType.bool())
        return list_array(starts, self.items.array(items), type=self.type, mask=mask)


def _column(declared: FieldDef | None) -> _Column:
    """The Arrow type of a field."""
    from arro3.core import DataType, Field

    kind = "text" if declared is None or declared.type == "object" else declared.type
    if declared is not None and kind == "array":
        item = _column(declared.items)
        return _Column(f"list<{item.name}>", DataType.list(Field("item", item.type, nullable=True)), _items, item)
    simple = {
        "integer": _Column("int64", DataType.int64(), _whole),
        "number": _Column("double", DataType.float64(), _float),
        "boolean": _Column("bool", DataType.bool(), _truth),
        "datetime": _Column("timestamp", DataType.timestamp("us", tz="UTC"), _microseconds),
    }
    return simple.get(kind, _Column("string", DataType.string(), _text))


def _items(value: JsonValue) -> object:
    if not isinstance(value, list):
        raise TypeError(f"{show(value)} is not an array")
    return value


def _whole(value: JsonValue) -> object:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{show(value)} is not an integer")
    return value


def _float(value: JsonValue) -> object:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{show(value)} is not a number")
    return float(value)


def _truth(value: JsonValue) -> object:
    if not isinstance(value, bool):
        raise TypeError(f"{show(value)} is not a boolean")
    return value


def _microseconds(value: JsonValue) -> object:
    """Since 1970, in UTC."""
    if not isinstance(value, str):
        raise TypeError(f"{show(value)} is not a time")
    moment = datetime.fromisoformat(value)
    return (moment.replace(tzinfo=moment.tzinfo or UTC) - _EPOCH) // timedelta(microseconds=1)


def _text(value: JsonValue) -> object:
    return value if isinstance(value, str) else dumps(value).decode()


def _package(name: str) -> ModuleType:
    try:
        return import_module(name)
    except ImportError as mistake:
        raise Invalid(f"this needs the package {name}", hint="pip install 's3worm[arrow]'") from mistake
