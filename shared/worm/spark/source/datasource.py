"""The data source `worm`: `spark.read.format("worm")`, `df.write.format("worm")`, and both as streams.

Spark finds it by the package `pyspark_worm`. `register(spark)` registers it in a session that looked before the package
could be imported (`addPyFile`). Filters are pushed down only if a read asks for it (the option `pushdown`,
Spark 4.1 and later): Spark refuses a reader that supports filters while its setting for that is off, and it reuses the
filters of one query for the next one of the same DataFrame (see docs/spark.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from worm.clock import SystemClock
from worm.errors import Invalid
from worm.spark.cluster import JobSpec, job_spec
from worm.spark.source.changes import ChangesReader
from worm.spark.source.options import STREAM_ONLY, ReadOptions, SinkOptions, StreamOptions, Target, WriteOptions
from worm.spark.source.reader import PushingReader, WormReader
from worm.spark.source.rows import Reading
from worm.spark.source.schema import check_names, schema_of
from worm.spark.source.sink import StreamSink
from worm.spark.source.stream import ChangeStream, RefusedStream
from worm.spark.source.table import table_schema
from worm.spark.source.writer import WormWriter, Writing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class WormDataSource(DataSource):
    """One model of one bucket as a table."""

    @classmethod
    def name(cls) -> str:
        return "worm"

    def schema(self) -> StructType:
        options = self._options()
        definition = _spec(options.target).collection().definition
        is_table = options.read_from == "table"
        schema = table_schema(definition) if is_table else schema_of(definition, options.kind)
        check_names(definition, schema)
        return schema

    def reader(self, schema: StructType) -> DataSourceReader:
        options = ReadOptions.of(self.options)
        spec = _spec(options.target)
        _check_kind(spec, options)
        takes_filters = options.pushdown and hasattr(DataSourceReader, "pushFilters")
        reading = Reading(spec, options, schema, SystemClock().now())
        if options.kind == "changes":
            return ChangesReader(reading)
        return PushingReader(reading) if takes_filters else WormReader(reading)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        try:
            return self._stream(schema)
        except Invalid as error:
            return RefusedStream(error)

    def _stream(self, schema: StructType) -> ChangeStream:
        options = StreamOptions.of(self.options)
        spec = _spec(options.read.target)
        _check_kind(spec, options.read)
        reading = Reading(spec, options.read, schema, SystemClock().now())
        if not hasattr(DataSourceStreamReader, "getDefaultReadLimit"):
            return ChangeStream(reading, options)
        from worm.spark.source.admission import LimitedChangeStream  # needs Spark 4.2

        return LimitedChangeStream(reading, options)

    def _options(self) -> ReadOptions:
        """Of a read or of a stream: Spark asks for the columns before it says which."""
        given = {name.lower() for name in self.options}
        is_stream = any(name.lower() in given for name in STREAM_ONLY)
        return StreamOptions.of(self.options).read if is_stream else ReadOptions.of(self.options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        options = WriteOptions.of(self.options)
        return WormWriter(Writing(_spec(options.target), options, overwrite, SystemClock().now()), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's name
        """`overwrite` only says that the query has the output mode complete."""
        options = SinkOptions.of(self.options)
        spec = _spec(options.write.target)
        return StreamSink(Writing(spec, options.write, options.overwrite, SystemClock().now()), schema)


def register(spark: SparkSession) -> None:
    """Register `worm` in this session. Only needed if Spark could not find it by itself; harmless otherwise."""
    try:
        spark.dataSource.register(WormDataSource)
    except AnalysisException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":  # Spark 4.0 found it by itself and keeps it
            raise


def _spec(target: Target) -> JobSpec:
    return job_spec(target.url, target.model, target.endpoint_url)


def _check_kind(spec: JobSpec, options: ReadOptions) -> None:
    definition = spec.collection().definition
    if (options.kind in ("history", "changes") or options.at is not None) and not definition.oplog:
        raise Invalid(f"{spec.model} has no oplog", hint='set "oplog": true in the schema and push it')
    if options.kind == "trash" and not definition.soft_delete:
        raise Invalid(f"{spec.model} has no trash", hint='set "softDelete": true in the schema and push it')
