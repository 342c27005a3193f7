"""What all tasks of a read share: its settings, and how they make rows of what they find.

It is apart from the reader because documents (`entities.py`) and tables (`table.py`) both make their rows here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from pyspark.sql.types import StructType

from worm.collections import IdRange
from worm.errors import Invalid
from worm.formats import JsonValue, loads_own
from worm.query import Filter
from worm.spark.cluster import JobSpec
from worm.spark.source.cells import Batches, Cells, Row
from worm.spark.source.entities import Found, Source, documents, documents_at, history, trash
from worm.spark.source.options import ReadOptions
from worm.spark.source.pushing import JsonFilter

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Reading:
    """The settings of all tasks of a read. `now` is one moment for all of them."""

    spec: JobSpec
    options: ReadOptions
    schema: StructType
    now: datetime
    filters: tuple[JsonFilter, ...] = ()

    @property
    def may_use_table(self) -> bool:
        """A table has the current documents, no history."""
        options = self.options
        return options.read_from != "documents" and options.kind == "documents" and options.at is None

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


def read_range(reading: Reading, within: IdRange) -> Iterator[pa.RecordBatch]:
    """The rows of one range that match, in batches, from what was stored for each entity."""
    rows = Rows(reading)
    for found in reading.source()(reading.spec.collection(), within):
        yield from rows.found(found)


@dataclass
class Rows:
    """Makes rows from what was found, according to the options."""

    reading: Reading
    batches: Batches = field(init=False)

    def __post_init__(self) -> None:
        self.batches = Batches(self.reading.schema)
        self.filter = self.reading.wanted()

    def found(self, found: Sequence[Found]) -> Iterator[pa.RecordBatch]:
        made = [cells for one in found if (cells := self.cells(one)) is not None]
        if made:
            yield self.batches.batch(made)

    def cells(self, found: Found) -> Mapping[str, object] | None:
        """None if it does not match, or must not be shown."""
        if found.document is None:
            return self._undocumented(found)
        if not self.filter.matches(found.document):
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
        return cells if reason is None or self._is_shown(found.id, reason) else None

    def fitted(self, count: int, cells: Callable[[str], Cells], id_at: Callable[[int], str]) -> pa.RecordBatch:
        """The rows that may be shown, of this many. `cells`: the values of a column."""
        batch, reasons = self.batches.fit_all(count, cells)
        hidden = {at for at, reason in sorted(reasons.items()) if not self._is_shown(id_at(at), reason)}
        return batch.filter([at not in hidden for at in range(count)]) if hidden else batch

    def _is_shown(self, entity_id: str, reason: str) -> bool:
        """Whether the mode shows a row although something is wrong with it."""
        if self.reading.options.mode != "FAILFAST":
            return self.reading.options.mode == "PERMISSIVE"
        collection = self.reading.spec.collection()
        raise Invalid(
            f"{collection.name} '{entity_id}': {reason}",
            key=collection.documents.key(entity_id),
            hint="mode FAILFAST stops at the first one; PERMISSIVE and DROPMALFORMED continue",
        )
