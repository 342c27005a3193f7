"""The frame of an export: rows of documents, or of states as a slowly-changing table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.types import ArrayType, DataType, StringType, StructField, StructType

from worm.codec.strict_json import dumps
from worm.errors import Invalid
from worm.schema import ModelDef
from worm.spark.cluster import parallelism
from worm.spark.export_request import ExportRequest
from worm.spark.source import register
from worm.spark.source.schema import DOCUMENT, documents_schema, schema_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

VALIDITY = {"valid_from": "ts", "valid_to": "until", "op": "op", "actor": "actor", "seq": "seq"}
"""Columns of a slowly changing table, and their names in a history."""
PREFIX = "document_"


def export_frame(spark: SparkSession, request: ExportRequest) -> DataFrame:
    """The requested rows, read through the data source."""
    register(spark)
    definition = request.definition
    names = columns_of(definition, request.select, () if request.history else request.partition_by)
    loaded = _load(spark, request, read_schema(definition, names, history=request.history))
    frame = states(loaded, names) if request.history else flat(loaded, names)
    missing = [name for name in request.partition_by if name not in frame.columns]
    if missing:
        raise Invalid(
            f"--partition-by {missing[0]}: there is no such column", hint=f"the columns are: {', '.join(frame.columns)}"
        )
    if request.format in ("ndjson", "json"):
        frame = with_json(frame, definition, history=request.history)
    return frame


def columns_of(definition: ModelDef, select: Sequence[str] | None, others: Sequence[str] = ()) -> list[str]:
    """The fields of a row, the id first."""
    known = documents_schema(definition).fieldNames()
    return list(dict.fromkeys(("id", *(known if select is None else select), *others)))


def read_schema(definition: ModelDef, names: Sequence[str], *, history: bool) -> StructType:
    """Only the needed columns. A field that the schema does not declare is text or JSON; inside an object without
    declared properties, it is its own column, with the dotted name."""
    documents = documents_schema(definition)
    declared = {field.name: field for field in documents.fields}
    needed = dict.fromkeys(name.split(".")[0] if _is_declared(documents, name) else name for name in names)
    fields = [declared.get(name, StructField(name, StringType())) for name in needed]
    if not history:
        return StructType(fields)
    inner = StructField(DOCUMENT, StructType([field for field in fields if field.name != "id"]))
    outer = [field for field in schema_of(definition, "history").fields if field.name in ("id", *VALIDITY.values())]
    return StructType([*outer, inner])


def flat(frame: DataFrame, names: Sequence[str]) -> DataFrame:
    """One column per field; a dotted name reaches into a struct and stays the column's name."""
    return frame.select(*(_reached(frame.schema, name).alias(name) for name in names))


def states(frame: DataFrame, names: Sequence[str]) -> DataFrame:
    """A slowly changing table: each row was valid from `valid_from` to `valid_to` (null: still valid). A deletion is a
    row without a document. A field with the name of one of these columns gets the prefix `document_`."""
    inner = frame.schema[DOCUMENT].dataType
    assert isinstance(inner, StructType)
    fields = [_reached(inner, name, DOCUMENT).alias(state_column(name)) for name in names if name != "id"]
    own = [F.col("id"), *(F.col(source).alias(name) for name, source in VALIDITY.items())]
    return frame.select(*own, *fields)


def state_column(name: str) -> str:
    """The name of a field in a slowly changing table."""
    return PREFIX + name if name.lower() in ("id", *VALIDITY) else name


def with_json(frame: DataFrame, definition: ModelDef, *, history: bool = False) -> DataFrame:
    """Objects without declared properties as objects, if the format supports them."""
    objects = [one for one, field in definition.fields.items() if field.type == "object" and not field.properties]
    names = {state_column(one) if history else one for one in objects} & set(frame.columns)
    return frame.withColumns({name: F.parse_json(F.col(quoted(name))) for name in names}) if names else frame


def quoted(name: str) -> str:
    """A name in quotes, so that Spark's expressions take it literally."""
    return "`" + name.replace("`", "``") + "`"


def _is_declared(schema: StructType, name: str) -> bool:
    """Whether the (dotted) name leads to a column with its own type, through structs and arrays of structs."""
    kind: DataType = schema
    for part in name.split("."):
        inner = kind.elementType if isinstance(kind, ArrayType) else kind
        if not isinstance(inner, StructType) or part not in inner.fieldNames():
            return False
        kind = inner[part].dataType
    return True


def _reached(schema: StructType, name: str, within: str | None = None) -> Column:
    parts = [name] if name in schema.fieldNames() else name.split(".")
    return F.col(".".join(quoted(part) for part in ([within] if within else []) + parts))


def _load(spark: SparkSession, request: ExportRequest, schema: StructType) -> DataFrame:
    spec = request.spec
    options = {
        "url": spec.url,
        "model": spec.model,
        "mode": request.mode,
        "from": request.read_from,
        "history": str(request.history).lower(),
        "partitions": str(parallelism(spark)),
    }
    optional = {
        "endpoint_url": spec.endpoint_url,
        "at": request.at,
        "filter": None if request.filter is None else dumps(request.filter).decode(),
    }
    given = {name: value for name, value in optional.items() if value is not None}
    return spark.read.format("worm").options(**options, **given).schema(schema).load()
