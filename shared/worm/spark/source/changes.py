"""Changes of a model as rows: which entries a batch has, and what its tasks read.

Vocabulary
- *leg*: the entries of the difference between two states of the heads (`tables/changed.py`), between two places and two
  times. A batch of a stream has one leg, or two if it ends a walk and goes on.
- *place*: a document and a seq inside a leg. Documents come in the order of their ids.

All entries of a document that are in one batch are read by one task, in the order of their seqs. Everything that a task
reads is immutable, so an attempt that Spark repeats gives the same rows.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from worm.clock import iso_seconds, moment_of
from worm.collections import Collection, IdRange
from worm.errors import Corrupt, Expired
from worm.spark.source.cells import Batches
from worm.spark.source.entities import AT_ONCE, Span, changes_of
from worm.spark.source.rows import Reading, Rows
from worm.spark.source.schema import AFTER, BEFORE
from worm.store import in_chunks, in_parallel
from worm.tables import Changed, HeadsState, Table

if TYPE_CHECKING:
    import pyarrow as pa

_FIRST = datetime.min.replace(tzinfo=UTC)
NEWEST_HINT = "the next sweep completes them; `worm repair` does so now"
_AGAIN_HINT = (
    "start again, a stream with a new checkpoint; if that does not help, a file of the heads is lost: run `worm repair`"
)


@dataclass(frozen=True, slots=True)
class Place:
    """Everything up to this seq of this document."""

    id: str
    seq: int


@dataclass(frozen=True, slots=True)
class Leg:
    """The entries between two states, after the place `first` up to the place `last`, and from the time `since` to
    before `until`. `before` None: from the start of each history."""

    before: HeadsState | None
    after: HeadsState
    since: str = ""
    until: str | None = None
    first: Place | None = None
    last: Place | None = None

    def ranges(self, collection: Collection) -> list[IdRange]:
        """The ranges of ids that tasks read, in order."""
        start = "" if self.first is None else self.first.id
        with_changes = self.after.since(self.before, collection).ranges(start)
        return [one for one in with_changes if self.last is None or one.start <= self.last.id]

    def spans(self, collection: Collection, within: IdRange) -> Iterator[Span]:
        """The entries of a range, ids ascending."""
        end = None if self.last is None else f"{self.last.id}\0"  # the next id after the last one
        changed = self.after.since(self.before, collection).within(within.up_to(end))
        if not self.since and self.until is None:
            found: Iterator[Span] = map(self._placed, changed)
        else:
            fresh = (one for one in changed if not one.head.ts or one.head.ts >= self.since)
            found = (
                span
                for some in in_chunks(fresh, AT_ONCE)
                for span in in_parallel(lambda one: self._timed(collection, one), some)
            )
        return (span for span in found if len(span) > 0)

    def cut(self, collection: Collection, most: int) -> Place | None:
        """The place after `most` entries; None if there are not more."""
        place: Place | None = None
        for within in self.ranges(collection):
            for span in self.spans(collection, within):
                if len(span) > most:
                    return Place(span.id, span.first + most - 1) if most else place
                most -= len(span)
                place = Place(span.id, span.last)
        return None

    def _placed(self, changed: Changed) -> Span:
        first, last = changed.before + 1, changed.seq
        if self.first is not None and changed.id <= self.first.id:
            first = max(first, self.first.seq + 1) if changed.id == self.first.id else last + 1
        if self.last is not None and changed.id >= self.last.id:
            last = min(last, self.last.seq) if changed.id == self.last.id else first - 1
        return Span(changed.id, first, max(last, first - 1))

    def _timed(self, collection: Collection, changed: Changed) -> Span:
        """Times never decrease within a history. A small table has no times of heads."""
        span, ts = self._placed(changed), changed.head.ts
        if len(span) == 0:
            return span
        first, last = span.first, span.last
        if self.until is not None and (not ts or ts >= self.until):
            last = min(last, self._newest(collection, changed, self.until))
        if self.since and first <= last:
            first = max(first, self._newest(collection, changed, self.since) + 1)
        return Span(span.id, first, max(last, first - 1))

    def _newest(self, collection: Collection, changed: Changed, moment: str) -> int:
        """The newest entry before a moment."""
        parsed = moment_of(moment)
        assert parsed is not None
        if parsed <= _FIRST:
            return 0
        before = changed.seq if changed.head.ts >= moment else changed.seq + 1
        return collection.oplog.seq_before(changed.id, iso_seconds(parsed - timedelta(seconds=1)), before=before)


class ChangesPartition(InputPartition):
    """What one task reads."""

    def __init__(self, legs: Sequence[Leg], within: IdRange) -> None:
        super().__init__(within)
        self.legs = tuple(legs)
        self.within = within


def partitions_of(collection: Collection, legs: Sequence[Leg]) -> list[InputPartition]:
    """The tasks of a batch. A document is in one of them."""
    found = [leg.ranges(collection) for leg in legs]
    if len(found) == 1:
        return [ChangesPartition(legs, within) for within in found[0]]
    starts = [within.start for ranges in found for within in ranges]
    return [ChangesPartition(legs, within) for within in IdRange.between(starts)] if starts else []


def read_changes(reading: Reading, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """The rows of one task."""
    assert isinstance(partition, ChangesPartition)
    collection, rows = reading.spec.collection(), Rows(reading)
    names = set(reading.schema.fieldNames())
    has_filter = reading.options.filter is not None or bool(reading.filters)
    with_documents = has_filter or any(name.split(".")[0] in (BEFORE, AFTER) for name in names)
    for leg in partition.legs:
        with explained(leg.before):
            spans = leg.spans(collection, partition.within)
            for found in changes_of(collection, spans, with_documents=with_documents):
                yield from rows.found(found)


@contextmanager
def explained(before: HeadsState | None) -> Iterator[None]:
    """Add to `Expired` how to go on. Nothing of the batch was reported, but maybe a part of its walk."""
    try:
        yield
    except Expired as expired:
        expired.hint = _AGAIN_HINT
        if before is not None:
            expired.hint = (
                f"the changes that the table had at {before.updated} were reported, and maybe some later ones; start "
                "again with a new checkpoint and startingOffset set to a time before that, and expect repeats"
            )
        raise


class ChangesReader(DataSourceReader):
    """The changes between two times. Everything in it can be sent to executors."""

    def __init__(self, reading: Reading) -> None:
        Batches(reading.schema)
        self.reading = reading

    def partitions(self) -> list[InputPartition]:
        options, collection = self.reading.options, self.reading.spec.collection()
        after = complete_state(collection, embedded_max=sys.maxsize)  # in a plan, any size: nothing is written
        if after is None:
            return []
        return partitions_of(collection, [Leg(None, after, options.since, options.until)])

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_changes(self.reading, partition)


def complete_state(collection: Collection, *, embedded_max: int = HeadsState.embedded_max) -> HeadsState | None:
    """None: nothing has happened yet. `Corrupt` if that is unknown."""
    tree = Table(collection).heads
    state = HeadsState.now(tree, embedded_max=embedded_max)
    if state is not None:
        return state
    if tree.damage is not None:
        raise tree.damage
    if tree.file.held.value is not None or next(iter(collection.oplog_objects()), None) is not None:
        raise Corrupt(f"the heads of {collection.name} are not complete", key=tree.key, hint=NEWEST_HINT)
    return None
