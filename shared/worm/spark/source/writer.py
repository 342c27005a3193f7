"""Writes a frame into a collection: every row is one document, saved by the rules of the collection.

Tasks save what can be saved and report the rest; when all are done, the driver fails the job with the refused ids.
There is no rollback: saved documents stay, and running the job again finds them.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from worm.errors import Conflict, Invalid
from worm.formats import SINGLETON_ID, JsonObject
from worm.sdk import About, JobModel, Worm
from worm.spark.cluster import JobSpec
from worm.spark.source.options import WriteOptions
from worm.spark.source.saving import Saver
from worm.spark.source.values import document_of

if TYPE_CHECKING:
    import pyarrow as pa

SHOWN_MAX = 20
VERBS = ("created", "updated", "deleted", "unchanged", "refused")
DELETED = "_deleted"
"""The column of a stream that says whether the document is to be deleted."""
LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Writing:
    """The settings of all tasks of a write. `start` is one moment for all of them and their attempts. `note` goes into
    the history. `is_rerun`: the job ran before. `deletes`: the column `_deleted` says which documents to delete."""

    spec: JobSpec
    options: WriteOptions
    overwrite: bool
    start: datetime
    note: JsonObject = field(default_factory=dict)
    is_rerun: bool = False
    deletes: bool = False

    def session(self) -> Worm:
        return _session(self.spec, self.options)

    def saver(self) -> Saver:
        session, name = self.session(), self.spec.model
        model = JobModel.of(session, name)
        task = TaskContext.get()
        is_rerun = self.is_rerun or (task is not None and task.attemptNumber() > 0)
        about: About = {"actor": self.options.actor, "metadata": self.note or None}
        return Saver(model, self.start, self.overwrite, self.options.replace, about, is_rerun)

    def check(self, schema: StructType) -> None:
        """`Invalid` if a frame with this schema cannot be written."""
        definition = self.spec.collection().definition
        if not definition.is_singleton and "id" not in schema.fieldNames():
            raise Invalid("the frame has no column id", hint=_ID_HINT)
        if definition.mode == "readonly":
            raise Invalid(f"{definition.name} is read-only")
        if definition.mode == "append" and self.overwrite:
            hint = 'use mode append; for a stream, the option existing with "refuse"'
            raise Invalid(f"{definition.name} is append-only", hint=hint)


@dataclass
class Written(WriterCommitMessage):
    """What one task did: how many documents were created, updated, unchanged and refused, and why some were refused."""

    counts: Mapping[str, int] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)


class WormWriter(DataSourceArrowWriter):
    """Everything in it can be sent to executors."""

    def __init__(self, writing: Writing, schema: StructType) -> None:
        self.writing = writing
        writing.check(schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return write_rows(self.writing, rows_of(iterator))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Report what was done, or raise with what failed."""
        report(self.writing.spec.model, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Nothing to roll back: saved documents already have a history."""
        LOG.warning("%s: the write was aborted; the documents saved so far remain", self.writing.spec.model)


def report(model: str, messages: Sequence[WriterCommitMessage | None], hint: str | None = None) -> None:
    """Log what the tasks did; `Conflict` if they refused documents."""
    counts: Counter[str] = Counter()
    refused: dict[str, str] = {}
    for one in messages:
        if isinstance(one, Written):
            counts.update(one.counts)
            refused.update(one.refused)
    verbs = [name for name in VERBS if name != "deleted" or counts[name]]
    told = ", ".join(f"{counts[name]} {name}" for name in verbs)
    LOG.info("%s: %s", model, told)
    if refused:
        shown = "; ".join(f"{one}: {refused[one]}" for one in sorted(refused)[:SHOWN_MAX])
        more = " …" if counts["refused"] > SHOWN_MAX else ""
        raise Conflict(f"{model}: {told}. {shown}{more}", hint=hint or _REFUSED_HINT)


_ID_HINT = "derive it from a key of your own; if ids are random, store the frame first: a retried task makes new ones"
_REFUSED_HINT = (
    "all others are saved; correct these and write them again, or use mode overwrite to change existing documents"
)


def rows_of(batches: Iterator[pa.RecordBatch]) -> Iterator[Mapping[str, object]]:
    for batch in batches:
        yield from batch.to_pylist(maps_as_pydicts="strict")


def write_rows(
    writing: Writing, rows: Iterator[Mapping[str, object]], check: Callable[[], object] = lambda: None
) -> Written:
    """Save the rows of one task. `check` is called before some are saved, and raises if they must not be."""
    saver, bulk = replace(writing.saver(), check=check), _Bulk(writing)
    for row in rows:
        problem = bulk.add(row, saver)
        if problem is not None:
            saver.saved.refuse(*problem)
        if len(bulk) >= writing.options.batch:
            saver.save(bulk.taken())
    saver.save(bulk.taken())
    return Written(dict(saver.saved.counts), saver.saved.refused)


class _Bulk:
    """Documents that wait to be saved together."""

    def __init__(self, writing: Writing) -> None:
        self._writing = writing
        self._definition = writing.spec.collection().definition
        self._waiting: dict[str, JsonObject | None] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, row: Mapping[str, object], saver: Saver) -> tuple[str, str] | None:
        """The id and the problem of a row that cannot be a document. If the id is already waiting, it is saved first,
        so that its second row is compared with the first."""
        named = str(row.get("id"))
        try:
            document = document_of(row, saver.fields)
            named = self._id(document)
        except Invalid as mistake:
            return named, str(mistake)
        if named in self._waiting:
            saver.save(self.taken())
        self._waiting[named] = None if self._writing.deletes and document.pop(DELETED, None) is True else document
        return None

    def taken(self) -> list[tuple[str, JsonObject | None]]:
        taken, self._waiting = list(self._waiting.items()), {}
        return taken

    def _id(self, document: JsonObject) -> str:
        if self._definition.is_singleton:
            document.pop("id", None)
            return SINGLETON_ID
        given = document.pop("id", None)
        if given is None:
            raise Invalid("the row has no id", path="id", hint=_ID_HINT)
        return self._definition.id_text(given)


@lru_cache(maxsize=16)
def _session(spec: JobSpec, options: WriteOptions) -> Worm:
    return Worm(spec.store(), spec.schema(), actor=options.actor, maintenance=options.maintenance)
