"""Reading a collection as a DataFrame: one task per range of ids, which lists and reads its own range, or, from the
table (`table.py`), one task per share of its files."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from worm.collections import IdRange
from worm.errors import WormError
from worm.spark.source.cells import Batches
from worm.spark.source.pushing import pushed
from worm.spark.source.rows import Reading, read_range
from worm.spark.source.table import read_share, shares
from worm.tables import TableShare

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import Filter as SparkFilter

LOG = logging.getLogger(__name__)


class IdPartition(InputPartition):
    """The ids of one task."""

    def __init__(self, within: IdRange) -> None:
        super().__init__(within)
        self.within = within


class TablePartition(InputPartition):
    """The files of one task."""

    def __init__(self, share: TableShare) -> None:
        super().__init__(share)
        self.share = share


class WormReader(DataSourceReader):
    """Everything in it can be sent to executors."""

    def __init__(self, reading: Reading) -> None:
        Batches(reading.schema)  # an unknown type is reported here, not by a task
        self.reading = reading

    def partitions(self) -> list[InputPartition]:
        """The root of the table is read here, once, so that all tasks see one state."""
        reading, name = self.reading, self.reading.spec.model
        if reading.may_use_table:
            planned = shares(reading)
            if not isinstance(planned, WormError):
                LOG.info("%s: reads the table, tasks: %d", name, len(planned))
                return [TablePartition(one) for one in planned]
            if reading.options.read_from == "table":
                raise planned
            LOG.info("%s: reads the documents: %s", name, planned.message)
        return [IdPartition(one) for one in reading.spec.collection().ranges(reading.options.partitions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, TablePartition):
            return read_share(self.reading, partition.share)
        within = partition.within if isinstance(partition, IdPartition) else IdRange()
        return read_range(self.reading, within)


class PushingReader(WormReader):
    """Accepts Spark's filters; it must not exist if `spark.sql.python.filterPushdown.enabled` is off."""

    def pushFilters(self, filters: list[SparkFilter]) -> Iterable[SparkFilter]:  # noqa: N802 - Spark's name
        """Ours only save work: Spark tests the remaining rows again."""
        reading = self.reading
        if reading.options.kind == "documents":
            extra = pushed(filters, reading.spec.collection().definition, reading.schema)
            if extra is not None:
                self.reading = replace(reading, filters=(*reading.filters, extra))
        return filters
