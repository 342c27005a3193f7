"""The changes of a model as a stream: `spark.readStream.format("worm").option("changes", "true")`.

Vocabulary
- *offset*: everything that was reported. Usually a state of the heads (`tables/changed.py`): all entries up to it. In a
  *walk*, a second state and a place: all entries of the first state, and those of the difference up to the place.
- *walk*: a difference with more changes than `maxChangesPerTrigger` is reported over several batches.

An offset is a JSON value: a few kilobytes, or up to 130 KB in a walk of a table in one file. It names immutable files,
so the rows between two offsets are always the same: with a checkpoint, each change is reported exactly once, in the
order of each document's history. What Spark does with rows of a failed batch depends on the sink.

What a failure means: `Expired`: the stream was away for longer than replaced files are kept (`pieces.KEPT`). It stops
before it loses a change. `Corrupt`: an entry of a history is missing or damaged. The batch is repeated after a restart.

Which Spark calls what: Spark 4.0 and 4.1 call `latestOffset()` without a start, even before `initialOffset`. They call
`partitions` with the end of each batch, and after a restart with the newest offset as start and end; so the reader
remembers the last one. From 4.2 on, Spark passes the start and a limit (`admission.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from worm.collections import Collection
from worm.errors import Corrupt, Invalid
from worm.formats import JsonObject, JsonValue, shapes
from worm.spark.source.cells import Batches
from worm.spark.source.changes import Leg, Place, complete_state, explained, partitions_of, read_changes
from worm.spark.source.options import EARLIEST, LATEST, StreamOptions
from worm.spark.source.rows import Reading
from worm.tables import HeadsState, Table

if TYPE_CHECKING:
    import pyarrow as pa

LOG = logging.getLogger(__name__)
_OFFSET = shapes.record(
    "an offset of a stream of changes",
    {"version": shapes.one_of(1)},
    {
        "of": shapes.TEXT,
        "state": shapes.OBJECT,
        "since": shapes.TEXT,
        "target": shapes.OBJECT,
        "id": shapes.TEXT,
        "seq": shapes.whole_number(1),
    },
)


@dataclass(frozen=True, slots=True)
class Offset:
    """What was reported: `state`, and of the difference to `target` everything up to `place`. `state` None: nothing.
    The batches leave out what is older than `since`, until the heads have an entry from then on."""

    state: HeadsState | None = None
    since: str = ""
    target: HeadsState | None = None
    place: Place | None = None

    def shape(self) -> JsonObject:
        shape: JsonObject = {"version": 1}
        if self.state is not None:
            shape["state"] = self.state.shape()
        if self.since:
            shape["since"] = self.since
        if self.target is not None and self.place is not None:
            shape |= {"target": self.target.shape(), "id": self.place.id, "seq": self.place.seq}
        return shape

    @classmethod
    def of_shape(cls, given: Mapping[str, JsonValue]) -> Offset:
        shapes.check(given, _OFFSET, "the offset of a stream", hint="start again with a new checkpoint")
        state, target = (
            None if given.get(name) is None else HeadsState.of_shape(cast(JsonObject, given[name]))
            for name in ("state", "target")
        )
        if (target is None, target is None) != ("id" not in given, "seq" not in given):
            raise Corrupt("a part of the offset of a stream is missing", hint="start again with a new checkpoint")
        place = None if target is None else Place(cast(str, given["id"]), cast(int, given["seq"]))
        return cls(state, cast(str, given.get("since", "")), target, place)

    def _leg(self, after: HeadsState, last: Place | None = None) -> Leg:
        return Leg(self.state, after, self.since, first=self.place, last=last)

    def _since(self, reported: HeadsState) -> str:
        """What to leave out after this state: a stream may start at a time that has not come yet."""
        return self.since if reported.updated < self.since else ""

    def legs(self, end: Offset) -> list[Leg]:
        """What is between two offsets."""
        if self == end:
            return []
        if end.target is not None and (self.state, self.since) == (end.state, end.since):  # a part of a walk
            return [self._leg(end.target, end.place)]
        goal = end.target if end.target is not None else end.state
        if goal is None:
            return []
        if self.target is None:
            return [self._leg(goal, end.place)]
        rest, more = self._leg(self.target), Leg(self.target, goal, self._since(self.target), last=end.place)
        return [rest] if goal == self.target else [rest, more]

    def next(self, collection: Collection, newest: HeadsState | None, most: int | None) -> Offset:
        """The end of the batch that starts here, with at most `most` changes. A walk ends before the next one begins.
        `newest` None: the heads say nothing now."""
        goal = self.target if self.target is not None and (most is not None or newest is None) else newest
        if goal is None or goal == self.state:
            return self
        place = None if most is None else self._leg(goal).cut(collection, most)
        return Offset(goal, self._since(goal)) if place is None else Offset(self.state, self.since, goal, place)


class RefusedStream(DataSourceStreamReader):
    """Raises when Spark first asks for an offset: it hides an error of `streamReader` behind one of its own."""

    def __init__(self, error: Invalid) -> None:
        self._error = error

    def initialOffset(self) -> JsonObject:  # noqa: N802 - Spark's name
        raise self._error

    def latestOffset(self, *_: object) -> JsonObject:  # noqa: N802 - of any Spark
        raise self._error

    def partitions(self, start: object, end: object) -> list[InputPartition]:
        raise self._error

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        raise self._error


class ChangeStream(DataSourceStreamReader):
    """For Spark 4.0 and 4.1. In tasks, only `read` is used, which needs no state."""

    def __init__(self, reading: Reading, options: StreamOptions) -> None:
        Batches(reading.schema)
        self.reading, self.options = reading, options
        self._reached: Offset | None = None
        self._initial: Offset | None = None
        self._table: Table | None = None
        self._seen: tuple[str | None, HeadsState | None] = None, None

    def __getstate__(self) -> dict[str, object]:
        """For tasks: without what only the driver uses."""
        return {"reading": self.reading, "options": self.options}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.reading = cast(Reading, state["reading"])
        self.options = cast(StreamOptions, state["options"])

    def initialOffset(self) -> JsonObject:  # noqa: N802 - Spark's name
        return self.shape(self._start())

    def latestOffset(self) -> JsonObject:  # type: ignore[override]  # noqa: N802 - Spark's name, as 4.0 calls it
        start = self._start() if self._reached is None else self._reached
        return self.shape(self.following(start, self.options.most, self.newest()))

    def partitions(self, start: Mapping[str, JsonValue], end: Mapping[str, JsonValue]) -> list[InputPartition]:
        first, last = self.offset(start), self.offset(end)
        self._reached = last
        with explained(first.state):
            return partitions_of(self._collection, first.legs(last))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_changes(self.reading, partition)

    def commit(self, end: Mapping[str, JsonValue]) -> None:
        """Nothing to release: an offset names files that stay for a while anyway."""

    def shape(self, offset: Offset) -> JsonObject:
        """The offset with the name of what it belongs to."""
        return {**offset.shape(), "of": self._name}

    def offset(self, given: Mapping[str, JsonValue]) -> Offset:
        """`Invalid` for an offset of another collection: its seqs would hide changes of this one."""
        if given.get("of", self._name) != self._name:
            raise Invalid(
                f"the checkpoint belongs to {given['of']}, not to {self._name}",
                path="checkpointLocation",
                hint="every stream needs its own checkpoint; choose a new directory",
            )
        return Offset.of_shape(given)

    @property
    def _name(self) -> str:
        return f"{self._collection.name} at {self._collection.store.url}"

    @property
    def _collection(self) -> Collection:
        return self.reading.spec.collection()

    def _start(self) -> Offset:
        """Where a query without a checkpoint starts: the same place whenever Spark asks."""
        if self._initial is None:
            starting = self.options.starting
            if starting == LATEST:
                self._initial = Offset(complete_state(self._collection))
            else:
                self._initial = Offset(since="" if starting == EARLIEST else starting)
        return self._initial

    def following(self, start: Offset, most: int | None, newest: HeadsState | None) -> Offset:
        """The end of the batch after `start`. The first batch of a stream that starts with the latest changes is empty:
        otherwise a restart before its commit would find a later start, and lose what is between the two."""
        if self.options.starting == LATEST and self._reached is None and start == self._initial:
            return start
        with explained(start.state):
            return start.next(self._collection, newest, most)

    @property
    def has_heads(self) -> bool:
        """Whether there was a root of the heads at the last look."""
        return self._seen[0] is not None

    def newest(self) -> HeadsState | None:
        """One conditional GET if nothing changed."""
        if self._table is None:
            self._table = Table(self._collection)
        heads = self._table.heads
        heads.file.refresh()
        etag, seen = heads.file.etag, self._seen
        if etag is None or etag != seen[0] or seen[1] is None:  # a repair may store a lost file without a new root
            self._seen = etag, HeadsState.now(heads)
            if self._seen[1] is None and etag is not None and seen != self._seen:
                LOG.warning(
                    "%s: the heads are damaged or incomplete; waiting for the sweep or for `worm repair`",
                    self._collection.name,
                )
        return self._seen[1]
