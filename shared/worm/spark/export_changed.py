"""What the tasks of an incremental export do: rows of the documents, or of the oplog entries, that changed between two
states of the heads, one range of ids at a time.

A document is read as it is now, which may be newer than the second state. That is no loss: the next export starts at
that state, so it has the document again. Entries are read exactly up to the second state: each is in one difference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, cast

from pyspark.sql.types import BooleanType, StructField, StructType

from worm.collections import Collection, Document, IdRange
from worm.spark.export_request import ExportKind
from worm.spark.frames import rows_of
from worm.spark.source.cells import Batches
from worm.spark.source.entities import CHUNK, Found, Span, changes_of, documents_of
from worm.spark.source.rows import Reading, Rows
from worm.spark.source.schema import AFTER, BEFORE, DOCUMENT
from worm.store import in_chunks
from worm.tables import Changed, HeadsState

if TYPE_CHECKING:
    import pyarrow as pa

GONE = "_worm_gone"
"""A row that must not be in the target anymore."""

Task = Callable[[Reading, "Between", "Iterable[pa.RecordBatch]"], "Iterator[pa.RecordBatch]"]


@dataclass(frozen=True, slots=True)
class Between:
    """Two states of the heads. `before` None: from the beginning."""

    before: HeadsState | None
    after: HeadsState

    def changed(
        self, collection: Collection, places: Iterable[pa.RecordBatch], *, lost: bool = False
    ) -> Iterator[Changed]:
        difference = self.after.since(self.before, collection)
        for start, end in rows_of(places):
            yield from difference.within(IdRange(start, end), lost=lost)


def changed_documents(reading: Reading, between: Between, places: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The documents as they are now. Those that are deleted, or that the filter does not want, are `GONE`. So are those
    that somebody removed together with their history."""
    collection, rows, batches = reading.spec.collection(), Rows(reading), _marked(reading)
    for some in in_chunks(between.changed(collection, places, lost=True), CHUNK):
        live = [one.id for one in some if one.is_live]
        shown = {found.id: rows.cells(found) for found in documents_of(collection, live)}
        yield batches.batch([_cells(reading, one.id, shown.get(one.id)) for one in some])


def changed_history(reading: Reading, between: Between, places: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """New entries, and the previous entry of each, whose `until` is set now."""
    collection = reading.spec.collection()
    spans = (Span(one.id, max(1, one.before), one.seq) for one in between.changed(collection, places))
    steps = chain.from_iterable(changes_of(collection, spans, with_documents=True))
    yield from _batches(reading, _with_ends(steps))


def changes(reading: Reading, between: Between, places: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """New entries. The filter wants a change if it wants the document before or after it."""
    collection, wanted = reading.spec.collection(), reading.wanted()

    def either(found: Found) -> Found:
        before = cast("Document | None", found.extra[BEFORE])
        if before is None or wanted.matches(found.document or {}):
            return found
        return replace(found, document=collection.as_row(found.id, before))

    spans = (Span(one.id, one.before + 1, one.seq) for one in between.changed(collection, places))
    yield from _batches(reading, map(either, chain.from_iterable(changes_of(collection, spans, with_documents=True))))


KINDS: Mapping[ExportKind, Task] = {
    "documents": changed_documents,
    "history": changed_history,
    "changes": changes,
}


def _with_ends(steps: Iterable[Found]) -> Iterator[Found]:
    """Changes as entries of a history: each was valid until the next one of the same document."""
    last: Found | None = None
    for step in chain(steps, [None]):
        if last is not None:
            until = step.extra["ts"] if step is not None and step.id == last.id else None
            yield replace(last, extra={**last.extra, "until": until, DOCUMENT: last.extra[AFTER]})
        last = step


def _batches(reading: Reading, found: Iterable[Found]) -> Iterator[pa.RecordBatch]:
    rows, batches = Rows(reading), _marked(reading)
    shown = (cells for one in found if (cells := rows.cells(one)) is not None)
    for some in in_chunks(shown, CHUNK):
        yield batches.batch([{**cells, GONE: False} for cells in some])


def _marked(reading: Reading) -> Batches:
    return Batches(StructType([*reading.schema.fields, StructField(GONE, BooleanType())]))


def _cells(reading: Reading, entity_id: str, shown: Mapping[str, object] | None) -> Mapping[str, object]:
    if shown is not None:
        return {**shown, GONE: False}
    return {**dict.fromkeys(reading.schema.fieldNames()), "id": entity_id, GONE: True}
