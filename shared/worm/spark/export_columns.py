"""Columns of a table and of a frame: which the table lacks, and how a frame gets exactly those of the table.

Names are compared as Spark does it by default: without regard to case. Whether a column may be null is not compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.types import ArrayType, DataType, StructField, StructType

from worm.spark.export_frames import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

ELEMENT = "element"
Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Lacks:
    """A column that a table lacks (`has` None), or has with another type. `path` leads through structs and arrays."""

    path: Path
    wants: DataType
    has: DataType | None = None

    @property
    def name(self) -> str:
        """As `ALTER TABLE` takes it."""
        return ".".join(map(quoted, self.path))

    @property
    def shown(self) -> str:
        return ".".join(self.path)


def lacking(table: StructType, frame: StructType, path: Path = ()) -> Iterator[Lacks]:
    """What must change in a table before rows of the frame can be written."""
    known = {field.name.lower(): field for field in table.fields}
    for field in frame.fields:
        found = known.get(field.name.lower())
        if found is None:
            yield Lacks((*path, field.name), field.dataType)
        else:
            yield from _differing((*path, found.name), found.dataType, field.dataType)


def _differing(path: Path, has: DataType, wants: DataType) -> Iterator[Lacks]:
    if isinstance(has, StructType) and isinstance(wants, StructType):
        yield from lacking(has, wants, path)
    elif isinstance(has, ArrayType) and isinstance(wants, ArrayType):
        yield from _differing((*path, ELEMENT), has.elementType, wants.elementType)
    elif has.simpleString() != wants.simpleString():
        yield Lacks(path, wants, has)


def aligned(frame: DataFrame, table: StructType, *others: str) -> DataFrame:
    """The columns of the table in its order, null where the frame has none, and these other ones of the frame. The
    table lacks nothing."""
    made = [_field(frame.schema, field, None) for field in table.fields]
    return frame.select(*made, *(F.col(quoted(name)) for name in others))


def _field(given: StructType, wanted: StructField, within: Column | None) -> Column:
    found = next((one for one in given.fields if one.name.lower() == wanted.name.lower()), None)
    if found is None:
        return F.lit(None).cast(wanted.dataType).alias(wanted.name)
    column = F.col(quoted(found.name)) if within is None else within.getField(found.name)
    return _fitted(column, found.dataType, wanted.dataType).alias(wanted.name)


def _fitted(column: Column, given: DataType, wanted: DataType) -> Column:
    if given.simpleString() == wanted.simpleString():
        return column
    if isinstance(given, StructType) and isinstance(wanted, StructType):
        inner = F.struct(*(_field(given, one, column) for one in wanted.fields))
        return F.when(column.isNotNull(), inner)
    assert isinstance(given, ArrayType)
    assert isinstance(wanted, ArrayType)
    of, to = given.elementType, wanted.elementType
    return F.transform(column, lambda one: _fitted(one, of, to))
