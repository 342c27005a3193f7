"""Writing an export to files: the formats, and what each needs so that it reads back unchanged. What tables need as
well: the packages, and how rows are divided into files."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from worm.errors import Conflict, Invalid
from worm.spark.cluster import failure_in

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
BUNDLED = {
    "delta": ("/usr/share/aws/delta/lib/delta-spark.jar", "/usr/share/aws/delta/lib/delta-storage.jar"),
    "iceberg": ("/usr/share/aws/iceberg/lib/iceberg-spark3-runtime.jar",),
}
"""Where EMR has the packages, as of emr-spark-8.0.0."""
_OTHER_SPARK = re.compile(
    r"java\.lang\.(ClassNotFoundException|NoClassDefFoundError|NoSuchMethodError|AbstractMethodError): "
    r".*(org.apache.spark|io.delta|org.apache.iceberg)|DeltaTable does not exist in the JVM"
)
_WRONG_TABLE = re.compile(r"\[(?:DELTA_|FAILED_READ_FILE)[A-Z_.]*\] .*")
"""What Spark and Delta say of a table that cannot be read or written as it is. Only targets are files for Spark."""
_NO_FILE_SYSTEM = ("UnsupportedFileSystemException", "No FileSystem for scheme", "S3AFileSystem not found")
DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
"""What Delta needs in a session."""


def write_frame(frame: DataFrame, request: ExportRequest) -> int:
    """Write it and count the rows on the way."""
    from pyspark.errors import AnalysisException

    observed, count = counted(frame)
    try:
        _write(laid_out(observed, request), request)
    except AnalysisException as error:
        if _condition(error) == "PATH_ALREADY_EXISTS":
            hint = "choose another --out, or pass --mode overwrite"
            raise Conflict(f"{request.out} already exists", hint=hint) from error
        raise
    return count()


def explain(error: Exception, request: ExportRequest) -> None:
    """Raise the error of this library that a task of Spark had, or `Invalid` for what Spark or the format refuses
    before anything runs: names, types, places."""
    from pyspark.errors import AnalysisException, IllegalArgumentException

    if any(sign in str(error) for sign in _NO_FILE_SYSTEM):
        hint = "s3:// only works on EMR; elsewhere, write s3a:// and add the package org.apache.hadoop:hadoop-aws"
        raise Invalid(f"Spark cannot write to {request.out}", hint=hint) from error
    if _OTHER_SPARK.search(str(error)):
        from pyspark import __version__ as version

        package = PACKAGES.get(request.format, ("", "the package"))[1]
        hint = f"use the version of {package} for this Spark, or install the Spark that it is for (pyspark==4.0.*)"
        raise Invalid(f"a package is for another version of Spark than {version}", hint=hint) from error
    found = failure_in(str(error))
    if found is not None:
        raise found from error
    wrong = _WRONG_TABLE.search(str(error))
    if wrong is not None:
        raise Invalid(f"Spark cannot export {request.model} to {request.out}: {wrong[0].strip()}") from error
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    of_iceberg = [line for line in lines if "iceberg.exceptions.ValidationException: " in line]
    if isinstance(error, AnalysisException | IllegalArgumentException) or of_iceberg:
        what = [*of_iceberg, *lines, type(error).__name__][0].rpartition("ValidationException: ")[2]
        raise Invalid(f"Spark cannot export {request.model} to {request.out}: {what}") from error


def counted(frame: DataFrame) -> tuple[DataFrame, Callable[[], int]]:
    """A frame whose rows are counted while they are written, and their number afterward."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    observation = Observation()
    observed = frame.observe(observation, F.count(F.lit(1)).alias("rows"))
    return observed, lambda: int(observation.get["rows"])


def laid_out(frame: DataFrame, request: ExportRequest) -> DataFrame:
    """Divided into files as the request says: at most so many, or of about such a size. Otherwise, each task writes its
    own."""
    from worm.spark.export_frames import quoted

    if request.files is not None:
        return frame.coalesce(request.files)
    return frame if request.target_mb is None else frame.hint("rebalance", *map(quoted, request.partition_by))


@contextmanager
def sized_files(spark: SparkSession, request: ExportRequest) -> Iterator[None]:
    """Spark divides rebalanced rows by their size, and splits what is too large for one file."""
    if request.target_mb is None:
        yield
        return
    sizes = {"spark.sql.adaptive.advisoryPartitionSizeInBytes": f"{request.target_mb}m"}
    with settings(spark, {"spark.sql.adaptive.enabled": "true", **sizes}):
        yield


@contextmanager
def settings(spark: SparkSession, values: Mapping[str, str]) -> Iterator[None]:
    """Settings of the session, for a while."""
    before: dict[str, str | None] = {name: spark.conf.get(name, None) for name in values}
    for name, value in values.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, earlier in before.items():
            if earlier is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, earlier)


def require_package(spark: SparkSession, format: str) -> None:
    """Raise `Invalid` if the format's classes are not on Spark's class path."""
    name, package = PACKAGES[format]
    machine = spark.sparkContext._jvm
    assert machine is not None
    if not machine.org.apache.spark.util.Utils.classIsLoadable(name):
        jars = ",".join(BUNDLED[format])
        hint = (
            f"on EMR, whose applications have no way to Maven, run spark-submit with --jars {jars}; elsewhere with "
            f"--packages {package}:<version>, in the version for this Spark"
        )
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
    shaped = {
        "csv": lambda: csv_frame(frame, raw=request.csv_raw, directories=request.partition_by),
        "json": lambda: json_lines(frame),
    }
    writer = _partitioned(shaped.get(request.format, lambda: frame)().write, request)
    writer = writer.mode("overwrite" if request.mode == "overwrite" else "errorifexists")
    if request.format == "csv":
        writer.options(**CSV).csv(request.out)
    elif request.format == "ndjson":
        writer.options(**TIMES).json(request.out)
    elif request.format == "json":
        writer.text(request.out)
    else:
        writer.parquet(request.out)


def _partitioned(writer: DataFrameWriter, request: ExportRequest) -> DataFrameWriter:
    return writer.partitionBy(*request.partition_by) if request.partition_by else writer


def _condition(error: Exception) -> str | None:
    """Spark 4.0 calls it a condition; before, it was an error class."""
    tell = getattr(error, "getCondition", None) or getattr(error, "getErrorClass", None)
    return None if tell is None else tell()
