"""The rows of an inventory, by ranges of ids: an S3 Inventory (`spark/inventory.py`), or an inventory table of S3
Metadata.

The rows of one entity may be anywhere in an inventory. Tasks read its files, and keep what counts for the model: of
neighboring rows of one entity, they make one value (`listings.Shown`). Spark brings these together by range.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from worm.collections import IdRange
from worm.errors import Invalid
from worm.spark.cluster import JobSpec
from worm.spark.inventory import COLUMNS, Inventory, InventoryFile, place_of, version_of
from worm.store import Version
from worm.tables import Shown

if TYPE_CHECKING:
    from pyspark import RDD
    from pyspark.sql import Column, DataFrame, Row, SparkSession

ShownIn = tuple[int, tuple[str, Shown]]
"""The number of a range, and what the inventory shows of an entity in it."""
SEQUENCE, MODIFIED = "sequence_number", "last_modified_date"
TABLE_COLUMNS = ("bucket", "key", SEQUENCE, "version_id", "is_delete_marker", MODIFIED, "e_tag")
"""What is needed of an inventory table of S3 Metadata. It has no column that says which version is the latest."""
RECORD_TYPE = "record_type"
"""A column that only the journal of S3 Metadata has."""


@dataclass(frozen=True, slots=True)
class InventoryTable:
    """An inventory table of S3 Metadata, as a name that Spark's catalog knows."""

    name: str


Source = Inventory | InventoryTable


def shown_by_range(spark: SparkSession, spec: JobSpec, source: Source, ranges: Sequence[IdRange]) -> RDD[ShownIn]:
    """What the inventory shows of the model's entities, each with the number of its range."""
    starts = [one.start for one in ranges]
    if isinstance(source, InventoryTable):
        return _table_rows(spark, spec, source).mapPartitions(partial(_shown_rows, spec, source.name, starts))
    files = spark.sparkContext.parallelize(list(source.files), max(1, len(source.files)))
    return files.flatMap(partial(_shown_in_file, spec, source, starts))


def _shown_in_file(spec: JobSpec, source: Inventory, starts: Sequence[str], file: InventoryFile) -> Iterator[ShownIn]:
    return show(spec, source.versions(file), starts)


def show(spec: JobSpec, versions: Iterable[Version], starts: Sequence[str]) -> Iterator[ShownIn]:
    """One value for neighboring rows of an entity."""
    collection = spec.collection()
    current: tuple[str, Shown] | None = None
    for version in versions:
        info = collection.resolver.parse(version.key)
        entity_id = Shown.entity(collection, info)
        if entity_id is None:
            continue
        if current is None or current[0] != entity_id:
            if current is not None:
                yield bisect_right(starts, current[0]) - 1, current
            current = entity_id, Shown()
        current[1].add(info, version)
    if current is not None:
        yield bisect_right(starts, current[0]) - 1, current


# Inventory tables of S3 Metadata


def _table_rows(spark: SparkSession, spec: JobSpec, source: InventoryTable) -> RDD[Row]:
    """The versions of all keys under the prefix of the store, by the column names of CSV inventories. Of each key, the
    row with the largest sequence number is the latest."""
    from pyspark.sql.functions import col, row_number
    from pyspark.sql.window import Window

    frame = _opened(spark, source.name)
    missing = [name for name in TABLE_COLUMNS if name not in frame.columns]
    if missing or RECORD_TYPE in frame.columns:
        what = f"lacks the columns {', '.join(missing)}" if missing else "is a journal, which has only changes"
        hint = "name the live inventory table of S3 Metadata"
        raise Invalid(f"the table {source.name} {what}", path="inventory-table", hint=hint)
    bucket, prefix = place_of(spec.url)
    rows = frame.where(col("key").startswith(prefix))
    rows = rows if bucket is None else rows.where(col("bucket") == bucket)
    latest = row_number().over(Window.partitionBy("key").orderBy(col(SEQUENCE).desc())) == 1
    named = [col(name).alias(COLUMNS[name]) for name in TABLE_COLUMNS if name in COLUMNS and name != MODIFIED]
    return rows.select(*named, latest.alias("IsLatest"), _utc(frame).alias(COLUMNS[MODIFIED])).rdd


def _opened(spark: SparkSession, name: str) -> DataFrame:
    from pyspark.errors import AnalysisException

    try:
        return spark.table(name)
    except AnalysisException as error:
        what = f"Spark cannot open the table {name}: {_first_line(error)}"
        hint = "configure the catalog of S3 Tables with --conf, and name the table as `catalog.namespace.inventory`"
        raise Invalid(what, path="inventory-table", hint=hint) from error


def _first_line(error: Exception) -> str:
    """Spark adds a plan to its message."""
    return str(error).strip().partition("\n")[0]


def _utc(frame: DataFrame) -> Column:
    """The time of a row as text. S3 Metadata has times without a zone, in UTC; others are in the session's zone."""
    from pyspark.sql.functions import col, date_format, to_utc_timestamp
    from pyspark.sql.types import TimestampType

    moment: Column = col(MODIFIED)
    if isinstance(frame.schema[MODIFIED].dataType, TimestampType):
        moment = to_utc_timestamp(moment, frame.sparkSession.conf.get("spark.sql.session.timeZone") or "UTC")
    return date_format(moment, "yyyy-MM-dd'T'HH:mm:ss")


def _shown_rows(spec: JobSpec, name: str, starts: Sequence[str], rows: Iterable[Row]) -> Iterator[ShownIn]:
    prefix = place_of(spec.url)[1]
    versions = (version_of(row.asDict(), prefix, name) for row in rows)
    return show(spec, (version for version in versions if version is not None), starts)
