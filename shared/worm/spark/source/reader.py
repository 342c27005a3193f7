"""Reading a collection as a DataFrame: one task per range of ids, which lists and reads its own range."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from worm.codec.strict_json import JsonValue, loads_own
from worm.collections.id_ranges import IdRange, plan_ranges
from worm.errors import Invalid
from worm.query.filters import Filter
from worm.spark.cluster import JobSpec
from worm.spark.source.cells import Batches, Row
from worm.spark.source.entities import Found, Source, documents, documents_at, history, trash
from worm.spark.source.options import ReadOptions
from worm.spark.source.pushing import JsonFilter, pushed

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import Filter as SparkFilter


class IdPartition(InputPartition):
    """The ids of one task."""

    def __init__(self, within: IdRange) -> None:
        super().__init__(within)
        self.within = within


@dataclass(frozen=True)
class Reading:
    """The settings of all tasks of a read. `now` is one moment for all of them."""

    spec: JobSpec
    options: ReadOptions
    schema: StructType
    now: datetime
    filters: tuple[JsonFilter, ...] = ()

    def source(self) -> Source:
        if self.options.kind == "history":
            return history(self.options.at)
        if self.options.kind == "trash":
            return trash(self.now)
        return documents if self.options.at is None else documents_at(self.options.at)

    def wanted(self) -> Filter:
        """The option's filter and the pushed ones."""
        given = [] if self.options.filter is None else [loads_own(self.options.filter, "filter")]
        parts: list[JsonValue] = [*map(dict, given), *self.filters]
        return Filter.compile({"$and": parts} if parts else None)


class WormReader(DataSourceReader):
    """Everything in it can be sent to executors."""

    def __init__(self, reading: Reading) -> None:
        Batches(reading.schema)  # an unknown type is reported here, not by a task
        self.reading = reading

    def partitions(self) -> list[InputPartition]:
        ranges = plan_ranges(self.reading.spec.collection(), self.reading.options.partitions)
        return [IdPartition(one) for one in ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
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
                self.reading = Reading(
                    reading.spec, reading.options, reading.schema, reading.now, (*reading.filters, extra)
                )
        return filters


def read_range(reading: Reading, within: IdRange) -> Iterator[pa.RecordBatch]:
    """The rows of one range that match, in batches."""
    collection, rows = reading.spec.collection(), _Rows(reading)
    for found in reading.source()(collection, within):
        made = [cells for one in found if (cells := rows.cells(one)) is not None]
        if made:
            yield rows.batches.batch(made)


@dataclass
class _Rows:
    """Makes rows from what was found, according to the options."""

    reading: Reading
    batches: Batches = field(init=False)

    def __post_init__(self) -> None:
        self.batches = Batches(self.reading.schema)
        self._filter = self.reading.wanted()

    def cells(self, found: Found) -> Mapping[str, object] | None:
        """None if it does not match, or must not be shown."""
        if found.document is None:
            return self._undocumented(found)
        if not self._filter.matches(found.document):
            return None
        document = found.document if self.reading.options.kind == "documents" else {}
        return self._fitted(found, Row({**document, **found.extra, "id": found.id}, found.reason))

    def _undocumented(self, found: Found) -> Mapping[str, object] | None:
        """It is unknown whether it matches: it is shown if the reader asks for broken documents."""
        if self.reading.options.mode == "PERMISSIVE" and not self.batches.shows_corrupt:
            return None
        return self._fitted(found, Row({**found.extra, "id": found.id}, found.reason))

    def _fitted(self, found: Found, row: Row) -> Mapping[str, object] | None:
        cells, reason = self.batches.fit(row)
        if reason is None or self.reading.options.mode == "PERMISSIVE":
            return cells
        if self.reading.options.mode == "DROPMALFORMED":
            return None
        collection = self.reading.spec.collection()
        raise Invalid(
            f"{collection.name} '{found.id}': {reason}",
            key=collection.documents.key(found.id),
            hint="mode FAILFAST stops at the first one; PERMISSIVE and DROPMALFORMED continue",
        )
