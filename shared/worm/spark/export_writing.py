"""Writing an export: the formats, and what each needs so that it reads back unchanged."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from worm.errors import Conflict, Invalid

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, DataFrameWriter, SparkSession

    from worm.spark.export_request import ExportRequest

TIMES = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX", "timeZone": "UTC"}
FORMULA = "^'*[=+\\-@\\t\\r\\n\uff1d\uff0b\uff0d\uff20]"
"""Text that a spreadsheet would run. It is the same rule as in `worm table export`; a test compares both."""
CSV = {
    "header": "true",
    "escape": '"',  # RFC 4180: a quote inside is doubled
    "ignoreLeadingWhiteSpace": "false",
    "ignoreTrailingWhiteSpace": "false",
    **TIMES,
}
PACKAGES = {
    "delta": ("org.apache.spark.sql.delta.sources.DeltaDataSource", "io.delta:delta-spark_2.13"),
    "iceberg": ("org.apache.iceberg.spark.source.IcebergSource", "org.apache.iceberg:iceberg-spark-runtime-4.0_2.13"),
}


def write_frame(spark: SparkSession, frame: DataFrame, request: ExportRequest) -> int:
    """Write it and count the rows on the way."""
    from pyspark.errors import AnalysisException
    from pyspark.sql import Observation
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    if request.format in PACKAGES:
        require_package(spark, request.format)
    counted = Observation()
    observed = frame.observe(counted, F.count(F.lit(1)).alias("rows"))
    try:
        _write(observed if request.files is None else observed.coalesce(request.files), request)
    except AnalysisException as error:
        if _condition(error) == "PATH_ALREADY_EXISTS":
            raise Conflict(f"{request.out} already exists", hint="choose another --out, or pass --overwrite") from error
        raise
    except Exception as error:
        if "UnsupportedFileSystemException" in str(error) or "No FileSystem for scheme" in str(error):
            hint = "s3:// only works on EMR; elsewhere, write s3a:// and add the package org.apache.hadoop:hadoop-aws"
            raise Invalid(f"Spark cannot write to {request.out}", hint=hint) from error
        raise
    return int(counted.get["rows"])


def require_package(spark: SparkSession, format: str) -> None:
    """Raise `Invalid` if the format's classes are not on Spark's class path."""
    name, package = PACKAGES[format]
    machine = spark.sparkContext._jvm
    assert machine is not None
    if not machine.org.apache.spark.util.Utils.classIsLoadable(name):
        hint = f"run spark-submit with --packages {package}:<version>, in the version for this Spark"
        raise Invalid(f"--format {format} needs a package that this Spark does not have", hint=hint)


def csv_frame(frame: DataFrame, *, raw: bool, directories: Sequence[str] = ()) -> DataFrame:
    """Every column as CSV can hold it: arrays and structs as JSON, and no text that a spreadsheet would run. Columns
    that name `directories` are not in the files, so they stay unchanged."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
    from pyspark.sql.types import ArrayType, StringType, StructType

    from worm.spark.export_frames import quoted

    columns = []
    for field in frame.schema.fields:
        column = F.col(quoted(field.name))
        if isinstance(field.dataType, ArrayType | StructType):
            column = F.to_json(column, TIMES)
        elif isinstance(field.dataType, StringType) and not raw and field.name not in directories:
            column = F.when(column.rlike(FORMULA), F.concat(F.lit("'"), column)).otherwise(column)
        columns.append(column.alias(field.name))
    return frame.select(*columns)


def json_lines(frame: DataFrame) -> DataFrame:
    """The lines of files that hold one JSON array each: a row on every line."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    from worm.spark.export_frames import quoted

    row = F.struct(*(F.col(quoted(name)).alias(name) for name in frame.columns))
    return frame.select(F.to_json(row, TIMES).alias("value")).mapInArrow(bracketed, "value string")


def bracketed(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """`[`, the rows with commas between them, `]`."""
    import pyarrow as pa

    opening, last = "[", None
    for batch in batches:
        lines: list[str] = []
        for row in batch.column(0).to_pylist():
            lines += [opening] if last is None else [f"{last},"]
            last = row
        if lines:
            yield pa.RecordBatch.from_pydict({"value": lines})
    ending = [opening, "]"] if last is None else [last, "]"]
    yield pa.RecordBatch.from_pydict({"value": ending})


def _write(frame: DataFrame, request: ExportRequest) -> None:
    if request.format == "iceberg":
        _write_table(frame, request)
        return
    shaped = {
        "csv": lambda: csv_frame(frame, raw=request.csv_raw, directories=request.partition_by),
        "json": lambda: json_lines(frame),
    }
    writer = _partitioned(shaped.get(request.format, lambda: frame)().write, request)
    writer = writer.mode("overwrite" if request.overwrite else "errorifexists")
    if request.format == "csv":
        writer.options(**CSV).csv(request.out)
    elif request.format == "ndjson":
        writer.options(**TIMES).json(request.out)
    elif request.format == "json":
        writer.text(request.out)
    else:
        writer.format(request.format).save(request.out)


def _partitioned(writer: DataFrameWriter, request: ExportRequest) -> DataFrameWriter:
    return writer.partitionBy(*request.partition_by) if request.partition_by else writer


def _write_table(frame: DataFrame, request: ExportRequest) -> None:
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    table = frame.writeTo(request.out).using("iceberg")
    if request.partition_by:
        table = table.partitionedBy(*(F.col(name) for name in request.partition_by))
    if request.overwrite:
        table.createOrReplace()
    else:
        table.create()


def _condition(error: Exception) -> str | None:
    """Spark 4.0 calls it a condition; before, it was an error class."""
    tell = getattr(error, "getCondition", None) or getattr(error, "getErrorClass", None)
    return None if tell is None else tell()
