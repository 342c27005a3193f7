"""A streaming query without Spark: it calls the reader in the order in which Spark does, keeps a checkpoint, and dies
between any two steps."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from pyspark.sql.streaming.datasource import ReadAllAvailable

from tests.harness import DataPath
from worm.clock import Ids
from worm.collections.collection import Collection
from worm.formats import load_schema
from worm.formats.strict_json import JsonObject, JsonValue
from worm.sdk.database import Worm
from worm.spark.cluster import JobSpec
from worm.spark.source.admission import LimitedChangeStream
from worm.spark.source.options import ReadOptions, StreamOptions, Target
from worm.spark.source.rows import Reading
from worm.spark.source.schema import changes_schema
from worm.spark.source.stream import ChangeStream

if TYPE_CHECKING:
    from pyspark.sql.datasource import InputPartition

Row = Mapping[str, object]


class Died(Exception):
    """The process of the query was killed."""


class PathSpec:
    """Stands for a `JobSpec` of a store that only this process has."""

    model = "Customer"

    def __init__(self, path: DataPath) -> None:
        self._collection = path.collection

    def collection(self) -> Collection:
        return self._collection


def reading_of(path: DataPath, options: ReadOptions | None = None) -> Reading:
    chosen = options or ReadOptions(Target("memory://", "Customer"), "changes")
    schema = changes_schema(path.collection.definition)
    return Reading(cast(JobSpec, PathSpec(path)), chosen, schema, path.clock.now())


def session_of(path: DataPath) -> Worm:
    """A program that folds by itself, without change sets."""
    ids = Ids(path.clock, path.ids.rng)
    return Worm(path.store, load_schema(dict(path.schema)), probe=False, clock=path.clock, ids=ids)


@dataclass
class Query:
    """`offsets` and `commits` are the checkpoint; `batches` is a sink that keeps what was written last for a batch.
    `is_new`: as Spark 4.2 and later call the reader."""

    path: DataPath
    rng: random.Random
    is_new: bool
    most: int | None = None
    starting: str = "earliest"
    mortality: float = 0.0
    offsets: list[str] = field(default_factory=list)
    commits: int = 0
    batches: dict[int, list[list[Row]]] = field(default_factory=dict)
    deaths: int = 0
    _reader: ChangeStream | None = None

    def may_die(self) -> None:
        if self.rng.random() < self.mortality:
            self.deaths += 1
            self._reader = None
            raise Died

    def trigger(self) -> bool:
        """One trigger, or as much of it as the process lives. False: there was nothing to do."""
        try:
            return self._trigger()
        except Died:
            return True

    def _trigger(self) -> bool:
        reader = self._started()
        self.may_die()
        if len(self.offsets) == self.commits:
            end = self._latest(reader)
            self.may_die()
            if self.offsets and end == json.loads(self.offsets[-1]):
                return False
            self.offsets.append(json.dumps(end))
            self.may_die()
        number = self.commits
        start = json.loads(self.offsets[number - 1]) if number else roundtrip(reader.initialOffset())
        tasks = reader.partitions(start, json.loads(self.offsets[number]))
        self.may_die()
        self.batches[number] = [self._task(reader, one) for one in tasks]
        self.may_die()
        self.commits += 1
        self.may_die()
        reader.commit(json.loads(self.offsets[number]))
        return True

    def _started(self) -> ChangeStream:
        if self._reader is None:
            options = StreamOptions(ReadOptions(Target("memory://", "Customer"), "changes"), self.starting, self.most)
            made = LimitedChangeStream if self.is_new else ChangeStream
            self._reader = made(reading_of(self.path, options.read), options)
            if not self.is_new and self.offsets:
                newest = json.loads(self.offsets[-1])
                assert self._reader.partitions(newest, newest) == []
        return self._reader

    def _latest(self, reader: ChangeStream) -> JsonObject:
        if not isinstance(reader, LimitedChangeStream):
            return roundtrip(reader.latestOffset())
        start = json.loads(self.offsets[-1]) if self.offsets else roundtrip(reader.initialOffset())
        limit = reader.getDefaultReadLimit()
        assert isinstance(limit, ReadAllAvailable) == (self.most is None)
        return roundtrip(reader.latestOffset(start, limit))

    def _task(self, reader: ChangeStream, partition: InputPartition) -> list[Row]:
        """Its first attempt may die; the second gives the same rows."""
        rows = [row for batch in reader.read(partition) for row in batch.to_pylist()]
        self.may_die()
        return rows

    # What came out

    def rows(self) -> list[Row]:
        return [row for number in sorted(self.batches) for task in self.batches[number] for row in task]

    def told(self) -> dict[str, list[int]]:
        """The seqs of each document in the order in which they came."""
        found: dict[str, list[int]] = {}
        for row in self.rows():
            found.setdefault(str(row["id"]), []).append(cast(int, row["seq"]))
        return found

    def drain(self) -> None:
        self.mortality = 0.0
        for _ in range(2000):
            if not self.trigger():
                return
        raise AssertionError("the stream does not come to an end")


def roundtrip(offset: JsonObject) -> JsonObject:
    found: JsonObject = json.loads(json.dumps(offset))
    return found


def histories(path: DataPath) -> dict[str, list[int]]:
    """The seqs of each document."""
    ids = path.collection.recorded_seqs()
    return {one: [entry.seq for entry in path.history(one)] for one in sorted(ids)}


def each_once(query: Query, path: DataPath) -> None:
    """Every change came once, in order, and all of a document's changes in a batch came from one task."""
    assert query.told() == histories(path)
    for tasks in query.batches.values():
        of_tasks: Sequence[set[object]] = [{row["id"] for row in task} for task in tasks]
        assert sum(map(len, of_tasks)) == len(set().union(*of_tasks))


def documents(path: DataPath, column: Callable[[int], int]) -> dict[tuple[str, int], JsonValue]:
    """The name in the state at a seq that follows from each entry's."""
    oplog = path.collection.oplog
    found: dict[tuple[str, int], JsonValue] = {}
    for one, seqs in histories(path).items():
        for seq in seqs:
            state = oplog.state_at(one, column(seq)) if column(seq) else None
            found[one, seq] = None if state is None else state.get("name")
    return found
