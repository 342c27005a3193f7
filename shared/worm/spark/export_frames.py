"""The frames of an export: rows of documents, of states as a slowly changing table, or of changes.

`export_frame` has all rows, read through the data source. `changed_frame` has the rows of what changed between two
states of the heads (`tables/changed.py`); both have the same columns in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.types import ArrayType, BooleanType, DataType, StringType, StructField, StructType

from worm.clock import SystemClock
from worm.collections import division
from worm.errors import Invalid
from worm.formats import ModelDef, dumps
from worm.spark.cluster import JobSpec, parallelism
from worm.spark.export_changed import GONE, KINDS, Between
from worm.spark.export_request import ExportKind, ExportRequest
from worm.spark.source import register
from worm.spark.source.changes import complete_state
from worm.spark.source.options import ReadOptions
from worm.spark.source.rows import Reading
from worm.spark.source.schema import AFTER, BEFORE, DOCUMENT, documents_schema, schema_of
from worm.tables import HeadsState, Table

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

VALIDITY = {"valid_from": "ts", "valid_to": "until", "op": "op", "actor": "actor", "seq": "seq"}
"""Columns of a slowly changing table, and their names in a history."""
CHANGE = ("id", "seq", "op", "ts", "actor")
"""Columns of a change besides the document before and after it."""
PREFIX = "document_"


def export_frame(spark: SparkSession, request: ExportRequest) -> DataFrame:
    """The requested rows, as of now."""
    if request.kind == "changes":
        return changed_frame(spark, request, None, complete_heads(request)).drop(GONE)
    register(spark)
    options = read_options(request, export_tasks(spark, request.spec))
    ReadOptions.of(options)  # here, where a mistake is not yet an error of another process
    return shaped(request, spark.read.format("worm").options(**options).schema(read_schema_of(request)).load())


def export_schema(spark: SparkSession, request: ExportRequest) -> StructType:
    """The columns of the export, without a request."""
    return shaped(request, spark.createDataFrame([], read_schema_of(request))).schema


def complete_heads(request: ExportRequest, *, embedded_max: int = HeadsState.embedded_max) -> HeadsState:
    """The state of the heads now, which changes are counted from. `Corrupt` if it is unknown."""
    return complete_state(request.spec.collection(), embedded_max=embedded_max) or HeadsState.nothing()


def changed_frame(
    spark: SparkSession, request: ExportRequest, before: HeadsState | None, after: HeadsState
) -> DataFrame:
    """The rows of what changed between two states; before None, everything did. `GONE` is true for rows that must not
    be there anymore, which have only their id. `Expired` if files of the first state are gone."""
    schema = read_schema_of(request)
    options = ReadOptions.of(read_options(request, 1))
    reading = Reading(request.spec, options, schema, SystemClock().now())
    ranges = after.since(before, request.spec.collection()).ranges()
    places = spark.sparkContext.parallelize([(one.start, one.end) for one in ranges], max(1, len(ranges)))
    work = partial(KINDS[request.kind], reading, Between(before, after))
    made = StructType([*schema.fields, StructField(GONE, BooleanType())])
    return shaped(request, spark.createDataFrame(places, "start string, end string").mapInArrow(work, made))


def export_tasks(spark: SparkSession, spec: JobSpec) -> int:
    """How many tasks read: some for each processor, and as many as all jobs have for a collection of this size, as far
    as a table knows how many ids there are."""
    collection = spec.collection()
    table, most = Table(collection), parallelism(spark)
    root = table.manifest.root() if collection.definition.keeps_manifest else table.heads.root()
    return max(most, division.tasks_for(0 if root is None else root.count, most))


def shaped(request: ExportRequest, loaded: DataFrame) -> DataFrame:
    """The columns of the export, made from those that are read."""
    names = names_of(request)
    _check_names(request, names)
    shapes = {"documents": flat, "history": states, "changes": changes}
    frame = shapes[request.kind](loaded, names)
    _check_partitions(request, frame.drop(GONE).schema)
    if request.format in ("ndjson", "json"):
        frame = with_json(frame, request.definition, history=request.kind == "history")
    return frame


def _check_names(request: ExportRequest, names: Sequence[str]) -> None:
    """Raise `Invalid` if two fields would be one column: neither Spark nor the formats tell upper from lower case."""
    is_history = request.kind == "history"
    others = [state_column(name) if is_history else name for name in names if name != "id"]
    seen = {GONE: GONE}
    for column in ("id", *(VALIDITY if is_history else ()), *others):
        other = seen.get(column.lower())
        if other is not None:
            what = f"the fields {other!r} and {column!r}, which are one column for Spark"
            what = f"the field {column!r}, a name that exports need themselves" if other == GONE else what
            raise Invalid(f"{request.model} has {what}", hint="name the fields that you want with --select")
        seen[column.lower()] = column


def _check_partitions(request: ExportRequest, schema: StructType) -> None:
    for name in request.partition_by:
        if name not in schema.fieldNames():
            hint = f"the columns are: {', '.join(schema.fieldNames())}"
            raise Invalid(f"--partition-by {name}: there is no such column", hint=hint)
        if isinstance(schema[name].dataType, ArrayType | StructType):
            kind = "an array" if isinstance(schema[name].dataType, ArrayType) else "an object"
            raise Invalid(f"--partition-by {name}: it is {kind}", hint="choose a field with single values")
    if len(request.partition_by) == len(schema.fields):
        raise Invalid("--partition-by names all columns, so the files would be empty", hint="leave one out")


def names_of(request: ExportRequest) -> list[str]:
    others = request.partition_by if request.kind == "documents" else ()
    return columns_of(request.definition, request.select, others)


def columns_of(definition: ModelDef, select: Sequence[str] | None, others: Sequence[str] = ()) -> list[str]:
    """The fields of a row, the id first."""
    known = documents_schema(definition).fieldNames()
    return list(dict.fromkeys(("id", *(known if select is None else select), *others)))


def read_schema_of(request: ExportRequest) -> StructType:
    return read_schema(request.definition, names_of(request), request.kind)


def read_schema(definition: ModelDef, names: Sequence[str], kind: ExportKind) -> StructType:
    """Only the needed columns. A field that the schema does not declare is text or JSON; inside an object without
    declared properties, it is its own column, with the dotted name."""
    documents = documents_schema(definition)
    declared = {field.name: field for field in documents.fields}
    needed = dict.fromkeys(name.split(".")[0] if _is_declared(documents, name) else name for name in names)
    fields = [declared.get(name, StructField(name, StringType())) for name in needed]
    if kind == "documents":
        return StructType(fields)
    inner = StructType([field for field in fields if field.name != "id"])
    wanted = CHANGE if kind == "changes" else ("id", *VALIDITY.values())
    outer = [field for field in schema_of(definition, "history").fields if field.name in wanted]
    documents_of = (BEFORE, AFTER) if kind == "changes" else (DOCUMENT,)
    return StructType([*outer, *(StructField(name, inner) for name in documents_of)])


def flat(frame: DataFrame, names: Sequence[str]) -> DataFrame:
    """One column per field; a dotted name reaches into a struct and stays the column's name."""
    return frame.select(*(_reached(frame.schema, name).alias(name) for name in names), *_mark(frame))


def states(frame: DataFrame, names: Sequence[str]) -> DataFrame:
    """A slowly changing table: each row was valid from `valid_from` to `valid_to` (null: still valid). A deletion is a
    row without a document. A field with the name of one of these columns gets the prefix `document_`."""
    fields = [
        _reached(_inner(frame, DOCUMENT), name, DOCUMENT).alias(state_column(name)) for name in names if name != "id"
    ]
    own = [F.col("id"), *(F.col(source).alias(name) for name, source in VALIDITY.items())]
    return frame.select(*own, *fields, *_mark(frame))


def changes(frame: DataFrame, names: Sequence[str]) -> DataFrame:
    """One row per change, with the fields before and after it; null: there was no document."""

    def document(which: str) -> Column:
        fields = [_reached(_inner(frame, which), name, which).alias(name) for name in names if name != "id"]
        return F.when(F.col(which).isNotNull(), F.struct(*fields)).alias(which)

    return frame.select(*map(F.col, CHANGE), document(BEFORE), document(AFTER), *_mark(frame))


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


def read_options(request: ExportRequest, tasks: int) -> dict[str, str]:
    """The options of the data source."""
    spec = request.spec
    options = {
        "url": spec.url,
        "model": spec.model,
        "mode": request.broken,
        "from": request.read_from,
        "history": str(request.kind != "documents").lower(),
        "partitions": str(tasks),
    }
    optional = {
        "endpoint_url": spec.endpoint_url,
        "at": request.at,
        "filter": None if request.filter is None else dumps(request.filter).decode(),
    }
    return options | {name: value for name, value in optional.items() if value is not None}


def _mark(frame: DataFrame) -> list[Column]:
    return [F.col(GONE)] if GONE in frame.columns else []


def _inner(frame: DataFrame, name: str) -> StructType:
    inner = frame.schema[name].dataType
    assert isinstance(inner, StructType)
    return inner


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
