"""Spark schemas of a model: of its documents, its history, its changes and its trash.

| field | Spark |
|---|---|
| `string`, `ref`, the id | string |
| `integer`, `number`, `boolean` | bigint, double, boolean |
| `datetime`, `createdAt`, `updatedAt` | timestamp; a time without offset counts as UTC |
| `array` | array of the type of its items |
| `object` with `properties` | struct of them |
| any other `object`, items without a type | string: JSON (of items a text as it is) |

Missing and null are both null.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from worm.errors import Invalid
from worm.formats import TIME_FIELDS, FieldDef, ModelDef
from worm.spark.source.options import Kind

CORRUPT = "_corrupt"
"""The column that says what is wrong with a row; in the result only if the reader's own schema names it."""
DOCUMENT = "document"
BEFORE, AFTER = "before", "after"

_SCALARS: dict[str, DataType] = {
    "string": StringType(),
    "ref": StringType(),
    "integer": LongType(),
    "number": DoubleType(),
    "boolean": BooleanType(),
    "datetime": TimestampType(),
}


def schema_of(definition: ModelDef, kind: Kind) -> StructType:
    """The schema of `load()`, unless the reader gives its own."""
    if kind == "documents":
        return documents_schema(definition)
    if kind == "changes":
        return changes_schema(definition)
    inner = StructField(DOCUMENT, _document_struct(definition))
    return _history_schema(inner) if kind == "history" else _trash_schema(inner)


def documents_schema(definition: ModelDef) -> StructType:
    """The id, the declared fields in their order, the two times."""
    declared = _document_struct(definition).fields
    return StructType([StructField("id", StringType()), *(one for one in declared if one.name != "id")])


def field_type(field: FieldDef | None) -> DataType:
    """The Spark type of a field; string if it has no type of its own."""
    if field is not None and field.type == "array":
        return ArrayType(field_type(field.items))
    if field is not None and field.properties:
        return _struct(field.properties)
    return StringType() if field is None else _SCALARS.get(field.type, StringType())


def check_names(definition: ModelDef, schema: StructType) -> None:
    """Spark compares column names case-insensitively, unless configured otherwise; two of our fields must not become
    one column."""
    seen: dict[str, str] = {}
    for name in schema.fieldNames():
        if seen.setdefault(name.lower(), name) != name:
            raise Invalid(
                f"{definition.name} has the fields {seen[name.lower()]!r} and {name!r}, which are one column for Spark",
                hint="name the columns that you want with .schema(…), or set spark.sql.caseSensitive=true",
            )


def _document_struct(definition: ModelDef) -> StructType:
    times = {name: FieldDef(type="datetime") for name in TIME_FIELDS if name not in definition.fields}
    return _struct({**definition.fields, **times})


def _struct(fields: Mapping[str, FieldDef]) -> StructType:
    return StructType([StructField(name, field_type(field)) for name, field in fields.items()])


def _history_schema(document: StructField) -> StructType:
    """`ts` is the time of the entry, `until` the time of the next one; `document` is null if it was deleted."""
    return StructType(
        [
            StructField("id", StringType()),
            StructField("seq", LongType()),
            StructField("op", StringType()),
            StructField("ts", TimestampType()),
            StructField("until", TimestampType()),
            StructField("actor", StringType()),
            document,
            StructField("diff", StringType()),
            StructField("metadata", StringType()),
        ]
    )


def changes_schema(definition: ModelDef) -> StructType:
    """`before` and `after` are the document before and after the change, null if there was none."""
    document = _document_struct(definition)
    return StructType(
        [
            StructField("id", StringType()),
            StructField("seq", LongType()),
            StructField("op", StringType()),
            StructField("ts", TimestampType()),
            StructField("actor", StringType()),
            StructField(BEFORE, document),
            StructField(AFTER, document),
            StructField("diff", StringType()),
            StructField("metadata", StringType()),
        ]
    )


def _trash_schema(document: StructField) -> StructType:
    return StructType(
        [
            StructField("id", StringType()),
            StructField("deletedAt", TimestampType()),
            StructField("deletedBy", StringType()),
            StructField("ttl", LongType()),
            StructField("restorePath", StringType()),
            document,
        ]
    )
