"""Rows: the result of a query. A list with the cursor of the next page, its plan, and conversions to Arrow and pandas.

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
from datetime import datetime
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, TypeVar, cast

from worm.codec.strict_json import JsonValue, Missing, dumps, field_value
from worm.collections.entries import Row
from worm.errors import Invalid, shown
from worm.query.planner import Plan
from worm.schema import FieldDef, ModelDef
from worm.schema.definition import TIME_FIELDS, find_field
from worm.sdk.html import list_repr, rows_html
from worm.sdk.shapes import is_object

if TYPE_CHECKING:
    import pandas
    import pyarrow

R = TypeVar("R")
T = TypeVar("T")


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

    def to_arrow(self) -> pyarrow.Table:
        """A `pyarrow.Table`, one column per field, typed by the schema."""
        arrow = _package("pyarrow")
        records = [self._record(item) for item in self]
        columns = [(name, *_column(arrow, self._field(name))) for name in self._names(records)]
        arrays = []
        for name, kind, convert in columns:
            values = [field_value(record, name) for record in records]
            try:
                cells = [None if isinstance(value, Missing) or value is None else convert(value) for value in values]
                arrays.append(arrow.array(cells, type=kind))
            except (arrow.ArrowException, OverflowError, TypeError, ValueError) as mistake:
                hint = "leave the field out of select, or declare another type"
                raise Invalid(
                    f"does not fit into a column of type {kind}: {mistake}", path=name, hint=hint
                ) from mistake
        schema = arrow.schema([(name, kind) for name, kind, _ in columns])
        return arrow.Table.from_arrays(arrays, schema=schema)

    def to_pandas(self) -> pandas.DataFrame:
        """A `pandas.DataFrame` whose columns keep the Arrow types (so integers with gaps stay integers)."""
        frames = _package("pandas")
        return self.to_arrow().to_pandas(types_mapper=frames.ArrowDtype)

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

    def _field(self, name: str) -> FieldDef | None:
        if name == "id":
            return FieldDef(type="string")
        field = find_field(self._definition.fields, name)[1]
        return FieldDef(type="datetime") if field is None and name in TIME_FIELDS else field


Convert = Callable[[JsonValue], object]


def _column(arrow: ModuleType, field: FieldDef | None) -> tuple[pyarrow.DataType, Convert]:
    """The Arrow type of a field, and the function that converts a value that is not null."""
    kind = "text" if field is None or field.type == "object" else field.type
    if field is not None and kind == "array":
        item, convert = _column(arrow, field.items)
        return arrow.list_(item), lambda value: _items(value, convert)
    simple: dict[str, tuple[object, Convert]] = {
        "integer": (arrow.int64(), _whole),
        "number": (arrow.float64(), _float),
        "boolean": (arrow.bool_(), _truth),
        "datetime": (arrow.timestamp("us", tz="UTC"), _moment),
    }
    return cast("tuple[pyarrow.DataType, Convert]", simple.get(kind, (arrow.string(), _text)))


def _items(value: JsonValue, convert: Convert) -> list[object]:
    if not isinstance(value, list):
        raise TypeError(f"{shown(value)} is not an array")
    return [None if item is None else convert(item) for item in value]


def _whole(value: JsonValue) -> object:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{shown(value)} is not an integer")
    return value


def _float(value: JsonValue) -> object:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{shown(value)} is not a number")
    return float(value)


def _truth(value: JsonValue) -> object:
    if not isinstance(value, bool):
        raise TypeError(f"{shown(value)} is not a boolean")
    return value


def _moment(value: JsonValue) -> object:
    if not isinstance(value, str):
        raise TypeError(f"{shown(value)} is not a time")
    return datetime.fromisoformat(value)


def _text(value: JsonValue) -> object:
    return value if isinstance(value, str) else dumps(value).decode()


def _package(name: str) -> ModuleType:
    try:
        return import_module(name)
    except ImportError as mistake:
        raise Invalid(f"this needs the package {name}", hint="pip install 's3worm[arrow]'") from mistake
