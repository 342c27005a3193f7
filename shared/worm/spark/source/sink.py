"""Writes a stream into a collection: `frame.writeStream.format("worm")`.

Rows are saved as in a batch write (`writer.py`, `saving.py`), except that documents which exist are changed. A row with
true in the column `_deleted` deletes its document. Every change has the id of the query and the number of the batch in
its history.

Spark repeats a batch after a failure, and so must we change nothing the second time. A *note* for each query
(`.worm.streams/<query id>.json`, changed by compare-and-swap) has its newest batch, when that began, and which run of
the query began it. All attempts of a batch use the time of its first one, as all tasks of a batch write use the time of
the job. So they recognize in the history what an earlier attempt wrote, even if somebody has changed it since then.

If a batch has several rows for one document, the first attempt saves them one after the other. Later ones save only the
last row of a task, because an earlier attempt may have saved any of them. A first attempt that meets changes of another
one stops (`saving.py`).

What a failure means: `Conflict` on commit: documents were refused, the others are saved, and the query stops. `Fenced`:
a newer batch of the query has begun; this task belongs to an old run. It is checked after some documents were read and
before they are written. So what a newer batch does is either seen, or makes the write a conflict, unless it creates a
document and deletes it again while our write is on its way.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, cast

from pyspark import TaskContext
from pyspark.sql import datasource
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import BooleanType, StructType

from worm.clock import iso_millis, moment_of
from worm.errors import Fenced, Invalid
from worm.formats import JsonObject, dumps, loads_own, shapes
from worm.sdk import Worm
from worm.spark.source.writer import DELETED, Writing, report, rows_of, write_rows
from worm.store import CasFile

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import DataSourceStreamArrowWriter as ArrowSink
elif hasattr(datasource, "DataSourceStreamArrowWriter"):
    ArrowSink = datasource.DataSourceStreamArrowWriter
else:

    class ArrowSink(DataSourceStreamWriter, DataSourceArrowWriter):
        """Spark 4.0 has no class for it, but passes Arrow batches to any writer that is an arrow writer, too."""


QUERY, BATCH, RUN = "sql.streaming.queryId", "streaming.sql.batchId", "spark.jobGroup.id"
"""The properties of a task that say what it belongs to."""
_REFUSED_HINT = "all others are saved; change what is in their way, or the rows, and start the query again"
NOTE = shapes.record(
    "a note of a stream",
    {
        "version": shapes.one_of(1),
        "batch": shapes.WHOLE,
        "run": shapes.TEXT,
        "start": shapes.TIME,
        "model": shapes.TEXT,
    },
)


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch of a query, as one run of the query sees it."""

    query: str
    number: int
    run: str

    @classmethod
    def of_task(cls) -> Batch:
        task = TaskContext.get()
        found = [None if task is None else task.getLocalProperty(name) for name in (QUERY, BATCH, RUN)]
        query, number, run = found
        if query is None or number is None or run is None:
            hint = "start the query with writeStream; for a batch use write"
            raise Invalid("Spark does not say which batch of which query this task belongs to", hint=hint)
        return cls(query, int(number), run)


@dataclass(frozen=True, slots=True)
class Begun:
    """The newest batch of a query: its number, the run that began it, and when, as text."""

    number: int
    run: str
    start: str
    model: str

    def encode(self) -> bytes:
        return dumps({"version": 1, "batch": self.number, "run": self.run, "start": self.start, "model": self.model})

    @classmethod
    def decode(cls, body: bytes, key: str) -> Begun:
        shape = loads_own(body, key=key)
        shapes.check(shape, NOTE, key)
        return cls(cast(int, shape["batch"]), *(cast(str, shape[name]) for name in ("run", "start", "model")))


def begun(session: Worm, model: str, batch: Batch) -> Begun:
    """The batch as its first attempt began it: this one, if there was none. One GET, and a PUT for the first task."""
    key = f".worm.streams/{batch.query}.json"
    file = CasFile(session.store, key, Begun.decode, Begun.encode, ids=session.ids, clock=session.clock)

    def change(current: Begun | None) -> Begun | None:
        if current is not None and current.number > batch.number:
            message = f"batch {batch.number} of the stream is over: batch {current.number} has begun"
            raise Fenced(message, key=key, hint="if you went back to an old checkpoint, delete this note")
        if current is not None and current.number == batch.number:
            return None
        return Begun(batch.number, batch.run, iso_millis(session.clock.now()), model)

    found = file.update(change)
    assert found is not None
    return found


class StreamSink(ArrowSink):
    """Everything in it can be sent to executors."""

    def __init__(self, writing: Writing, schema: StructType) -> None:
        writing.check(schema)
        column = next((one for one in schema.fields if one.name == DELETED), None)
        if column is not None and not isinstance(column.dataType, BooleanType):
            raise Invalid("must be a boolean column", path=DELETED, hint=f"for example (op = 'delete') AS {DELETED}")
        self.writing = replace(writing, deletes=column is not None)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return write_batch(self.writing, Batch.of_task(), rows_of(iterator))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Report what was done, or raise with what failed: Spark then repeats the batch."""
        report(self.writing.spec.model, messages, _REFUSED_HINT)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Nothing to roll back: saved documents already have a history."""


def write_batch(writing: Writing, batch: Batch, rows: Iterator[Mapping[str, object]]) -> WriterCommitMessage:
    """Save the rows of one task of a batch, as long as no newer one has begun."""
    check = partial(begun, writing.session(), writing.spec.model, batch)
    first = check()
    start = moment_of(first.start)
    assert start is not None
    note: JsonObject = {"stream": batch.query, "batch": batch.number}
    task = TaskContext.get()
    is_rerun = first.run != batch.run or (task is not None and task.attemptNumber() > 0)
    chosen = replace(writing, start=start, note=note, is_rerun=is_rerun)
    return write_rows(chosen, iter(_last(rows)) if is_rerun else rows, check)


def _last(rows: Iterable[Mapping[str, object]]) -> list[Mapping[str, object]]:
    """The last row of each id."""
    found: dict[str, Mapping[str, object]] = {}
    for row in rows:
        found.pop(str(row.get("id")), None)
        found[str(row.get("id"))] = row
    return list(found.values())
