"""The data source `worm`: `spark.read.format("worm")`, `df.write.format("worm")`.

`register(spark)` registers it in a session. Filters are pushed down only if a read asks for it (the option `pushdown`,
Spark 4.1 and later): Spark refuses a reader that supports filters while its setting for that is off, and it reuses the
filters of one query for the next one of the same DataFrame (see docs/spark.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceWriter
from pyspark.sql.types import StructType

from worm.clock import SystemClock
from worm.errors import Invalid
from worm.spark.cluster import JobSpec, job_spec
from worm.spark.source.options import ReadOptions, Target, WriteOptions
from worm.spark.source.reader import PushingReader, WormReader
from worm.spark.source.rows import Reading
from worm.spark.source.schema import check_names, schema_of
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
        options = ReadOptions.of(self.options)
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
        return PushingReader(reading) if takes_filters else WormReader(reading)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        options = WriteOptions.of(self.options)
        return WormWriter(Writing(_spec(options.target), options, overwrite, SystemClock().now()), schema)


def register(spark: SparkSession) -> None:
    """Register `worm` in this session."""
    spark.dataSource.register(WormDataSource)


def _spec(target: Target) -> JobSpec:
    return job_spec(target.url, target.model, target.endpoint_url)


def _check_kind(spec: JobSpec, options: ReadOptions) -> None:
    definition = spec.collection().definition
    if (options.kind == "history" or options.at is not None) and not definition.oplog:
        raise Invalid(f"{spec.model} has no oplog", hint='set "oplog": true in the schema and push it')
    if options.kind == "trash" and not definition.soft_delete:
        raise Invalid(f"{spec.model} has no trash", hint='set "softDelete": true in the schema and push it')
