"""Converts JSON values to Arrow columns of the requested Spark type.

A value that does not fit its column (an integer beyond 64 bits, a string where the reader's own schema says bigint) is
null there, and the row says why. Inside structs, arrays and maps, only that value is null.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from functools import cached_property
from typing import TypeAlias

import pyarrow as pa
import pyspark
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from worm.errors import Invalid
from worm.formats import JsonValue, Missing, dumps, field_value, type_name
from worm.spark.source.schema import CORRUPT

Convert = Callable[[JsonValue], object]
Cells: TypeAlias = "Sequence[JsonValue | Missing] | pa.Array"
"""The values of a column. An array has them as the frame shows them."""

COUNTS_WITHOUT_COLUMNS = (4, 3)
"""From this version, Spark counts the rows of batches without columns. Spark 4.0 says 0, others were not tested."""
_INTEGERS: dict[type[DataType], int] = {LongType: 63, IntegerType: 31, ShortType: 15, ByteType: 7}


class Unfit(ValueError):
    """A value that its column cannot hold. `kept` is what remains of a nested value."""

    def __init__(self, reason: str, kept: object = None) -> None:
        super().__init__(reason)
        self.kept = kept


@dataclass(frozen=True)
class Row:
    """The values of one row by column name. `reason`: what is wrong with its document."""

    values: Mapping[str, JsonValue]
    reason: str | None = None


def arrow_schema(schema: StructType) -> pa.Schema:
    """The schema of batches for Spark; times are in UTC."""
    if "timezone" in inspect.signature(to_arrow_schema).parameters:  # Spark 4.2 and later name the zone
        return to_arrow_schema(schema, timezone="UTC")
    return to_arrow_schema(schema)


class Batches:
    """Makes record batches of one schema. Checks the schema's types when it is made."""

    def __init__(self, schema: StructType) -> None:
        if not schema.fields and _spark_version() < COUNTS_WITHOUT_COLUMNS:
            raise Invalid("this Spark counts no rows in a frame without columns", hint='use .schema("id string")')
        self._schema = schema
        self._converts = {field.name: _converter(field.dataType, field.name) for field in schema.fields}

    @property
    def shows_corrupt(self) -> bool:
        return CORRUPT in self._converts

    @cached_property
    def _arrow(self) -> pa.Schema:
        return arrow_schema(self._schema)

    def fit(self, row: Row) -> tuple[dict[str, object], str | None]:
        """The cells of a row, and what is wrong with it: the first value that does not fit, or the row's own reason."""
        reason, cells = row.reason, dict[str, object]()
        for name, convert in self._converts.items():
            value = _inner(row.values, name)
            try:
                cells[name] = None if value is None else convert(value)
            except Unfit as mistake:
                cells[name] = mistake.kept
                reason = reason or f"{name}: {mistake}"
        if self.shows_corrupt:
            cells[CORRUPT] = reason
        return cells, reason

    def fit_all(self, count: int, cells: Callable[[str], Cells]) -> tuple[pa.RecordBatch, dict[int, str]]:
        """`fit` for many rows at once. `cells`: the values of a column. What is wrong with rows comes by position."""
        columns, reasons = dict[str, Sequence[object] | pa.Array](), dict[int, str]()
        for name, convert in self._converts.items():
            columns[name] = () if name == CORRUPT else _converted(name, convert, cells(name), reasons)
        if self.shows_corrupt:
            columns[CORRUPT] = [reasons.get(at) for at in range(count)]
        return self.made(count, columns), reasons

    def batch(self, rows: Sequence[Mapping[str, object]]) -> pa.RecordBatch:
        return self.made(len(rows), {name: [row[name] for row in rows] for name in self._converts})

    def made(self, count: int, columns: Mapping[str, Sequence[object] | pa.Array]) -> pa.RecordBatch:
        if not columns:
            return pa.RecordBatch.from_struct_array(pa.StructArray.from_buffers(pa.struct([]), count, [None]))
        arrays = [_array_of(columns[field.name], field.type) for field in self._arrow]
        return pa.RecordBatch.from_arrays(arrays, schema=self._arrow)


def _array_of(values: Sequence[object] | pa.Array, kind: pa.DataType) -> pa.Array:
    return values.cast(kind) if isinstance(values, pa.Array) else pa.array(values, type=kind)


def _spark_version() -> tuple[int, ...]:
    return tuple(map(int, pyspark.__version__.split(".")[:2]))


def _converted(name: str, convert: Convert, cells: Cells, reasons: dict[int, str]) -> Sequence[object] | pa.Array:
    """Adds the reasons of rows that have none yet."""
    if isinstance(cells, pa.Array):
        return cells
    made: list[object] = []
    for at, value in enumerate(cells):
        try:
            made.append(None if value is None or isinstance(value, Missing) else convert(value))
        except Unfit as mistake:
            made.append(mistake.kept)
            reasons.setdefault(at, f"{name}: {mistake}")
    return made


def _inner(values: Mapping[str, JsonValue], name: str) -> JsonValue:
    """The value of a column; a dotted name reaches into objects."""
    if "." not in name:
        return values.get(name)
    found = field_value(values, name)
    return None if isinstance(found, Missing) else found


def _converter(kind: DataType, path: str) -> Convert:
    if isinstance(kind, ArrayType):
        return _array(_converter(kind.elementType, f"{path}[]"))
    if isinstance(kind, StructType):
        return _struct({field.name: _converter(field.dataType, f"{path}.{field.name}") for field in kind.fields})
    if isinstance(kind, MapType) and isinstance(kind.keyType, StringType):
        return _map(_converter(kind.valueType, f"{path}{{}}"))
    if type(kind) in _INTEGERS:
        return _integer(_INTEGERS[type(kind)])
    if isinstance(kind, DecimalType):
        return _decimal(kind)
    found = _SIMPLE.get(type(kind))
    if found is None:
        raise Invalid(f"column {path}: documents cannot hold values of type {kind.simpleString()}")
    return found


def _unfit(value: JsonValue, wanted: str) -> Unfit:
    shown = dumps(value).decode()
    return Unfit(f"{shown if len(shown) <= 60 else type_name(value)} is not a valid {wanted}")


def _each(items: Iterable[tuple[str, Convert, JsonValue]], made: Callable[[list[object]], object]) -> object:
    """The converted items; `Unfit` with null for every item that does not fit."""
    cells, reason = list[object](), None
    for name, convert, item in items:
        try:
            cells.append(None if item is None else convert(item))
        except Unfit as mistake:
            cells.append(mistake.kept)
            reason = reason or f"{name}: {mistake}"
    if reason is not None:
        raise Unfit(reason, made(cells))
    return made(cells)


def _array(convert: Convert) -> Convert:
    def converted(value: JsonValue) -> object:
        if not isinstance(value, list):
            raise _unfit(value, "array")
        return _each(((f"[{at}]", convert, item) for at, item in enumerate(value)), list)

    return converted


def _struct(converts: Mapping[str, Convert]) -> Convert:
    def converted(value: JsonValue) -> object:
        if not isinstance(value, dict):
            raise _unfit(value, "object")
        members = ((name, convert, _inner(value, name)) for name, convert in converts.items())
        return _each(members, lambda cells: dict(zip(converts, cells, strict=True)))

    return converted


def _map(convert: Convert) -> Convert:
    def converted(value: JsonValue) -> object:
        if not isinstance(value, dict):
            raise _unfit(value, "object")
        items = ((name, convert, item) for name, item in value.items())
        return _each(items, lambda cells: list(zip(value, cells, strict=True)))

    return converted


def _integer(bits: int) -> Convert:
    def converted(value: JsonValue) -> object:
        if isinstance(value, bool) or not isinstance(value, int) or not -(1 << bits) <= value < 1 << bits:
            raise _unfit(value, f"integer of {bits + 1} bits")
        return value

    return converted


def _decimal(kind: DecimalType) -> Convert:
    def converted(value: JsonValue) -> object:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise _unfit(value, kind.simpleString())
        try:
            number = Decimal(repr(value)).quantize(Decimal(1).scaleb(-kind.scale))
        except InvalidOperation as mistake:
            raise _unfit(value, kind.simpleString()) from mistake
        if len(number.as_tuple().digits) > kind.precision:
            raise _unfit(value, kind.simpleString())
        return number

    return converted


def _text(value: JsonValue) -> object:
    return value if isinstance(value, str) else dumps(value).decode()


def _float(value: JsonValue) -> object:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _unfit(value, "number")
    try:
        return float(value)
    except OverflowError as mistake:
        raise _unfit(value, "double") from mistake


def _truth(value: JsonValue) -> object:
    if not isinstance(value, bool):
        raise _unfit(value, "boolean")
    return value


def _moment(value: JsonValue) -> datetime:
    """In UTC; Arrow counts in microseconds, and finer digits are truncated."""
    if not isinstance(value, str):
        raise _unfit(value, "time")
    try:
        moment = datetime.fromisoformat(value)
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError) as mistake:
        raise _unfit(value, "time") from mistake


_SIMPLE: dict[type[DataType], Convert] = {
    StringType: _text,
    DoubleType: _float,
    FloatType: _float,
    BooleanType: _truth,
    TimestampType: _moment,
    TimestampNTZType: lambda value: _moment(value).replace(tzinfo=None),
    DateType: lambda value: _moment(value).date(),
}
