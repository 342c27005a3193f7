"""Reads the table of a collection instead of its documents.

The driver gives each task a share of the table as of one root (`tables/tasks/shares.py`).

`auto` uses the table only where it must give what the documents give, except for changes of the last minutes:
- it has every column and every field of the filter, was made with the fields of today's schema, and folds maintain it;
- the reader does not ask which documents are broken: a table has their last valid state and does not say so;
- no change set has been waiting for the table for more than a minute.
If a file turns out to be gone or damaged, `auto` reads the documents of its range.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from datetime import datetime, timedelta

import pyarrow as pa
from arro3.core import Array
from pyarrow.parquet import ParquetFile
from pyspark.sql.types import BooleanType, DataType, DoubleType, LongType, StringType, StructType, TimestampType

from worm.clock import Ids, moment_of
from worm.collections import ChangeSet, Collection, is_cut
from worm.errors import Corrupt, Invalid, WormError
from worm.formats import ModelDef
from worm.query import is_covered
from worm.spark.source.cells import Cells
from worm.spark.source.entities import CHUNK, documents_of
from worm.spark.source.rows import Reading, Rows, read_range
from worm.spark.source.schema import CORRUPT, documents_schema
from worm.store import in_chunks
from worm.tables import Columns, Part, SharedTable, TableShare, cells

LOG = logging.getLogger(__name__)
PATIENCE = timedelta(minutes=1)
"""How long a change set may wait before `auto` says that the table is behind."""
LISTED_MAX = 1000
_COLUMN_TYPES: dict[type[DataType], str] = {
    StringType: "string",
    LongType: "long",
    DoubleType: "double",
    BooleanType: "boolean",
    TimestampType: "timestamp",
}
"""Types of frames, and the types of columns in Parquet files that show the same."""
INSTEAD = 'or use .option("from", "documents")'
REBUILD = f"run `worm table rebuild` to rebuild it, {INSTEAD}"
GONE = "if the frame was made more than a day ago, load it again; otherwise run `worm repair`, or read from documents"


# Planning


def table_schema(definition: ModelDef) -> StructType:
    """The columns that the table has."""
    if not definition.keeps_manifest:
        raise _no_table(definition)
    return StructType([one for one in documents_schema(definition).fields if is_covered(definition, one.name)])


def shares(reading: Reading) -> list[TableShare] | WormError:
    """What the tasks read, as of one root; or why the table cannot be used."""
    collection, is_auto = reading.spec.collection(), reading.options.read_from == "auto"
    problem = _lacks(reading, collection.definition) or (_needs_documents(reading) if is_auto else None)
    if problem is not None:
        return problem
    table = SharedTable(collection)
    try:
        found = table.shares(reading.options.partitions)
    except Corrupt as damage:
        return damage
    if table.last_updated is None:
        return Invalid(f"{collection.name} has no table yet", hint=REBUILD)
    if table.is_stale:
        return Invalid(f"the table of {collection.name} was made with other fields", hint=REBUILD)
    if is_auto and _is_waiting(collection, table.last_updated, reading.now):
        return Invalid(f"changes have been waiting for the table of {collection.name} for more than a minute")
    return found


def _no_table(definition: ModelDef) -> Invalid:
    hint = 'set "manifest": {"enabled": true} in the schema and push it'
    return Invalid(f"{definition.name} has no table", hint=f"{hint}, {INSTEAD}")


def _lacks(reading: Reading, definition: ModelDef) -> Invalid | None:
    if not definition.keeps_manifest:
        return _no_table(definition)
    names = {*reading.schema.fieldNames(), *reading.wanted().fields} - {CORRUPT}
    lacking = sorted(name for name in names if not is_covered(definition, name))
    if not lacking:
        return None
    hint = f"name only columns that it has with .schema(…), {INSTEAD}"
    return Invalid(f"the table of {definition.name} lacks {', '.join(lacking)}", hint=hint)


def _needs_documents(reading: Reading) -> Invalid | None:
    """Why the table may say something else than the documents."""
    if not reading.spec.collection().definition.folds_manifest:
        return Invalid("the table is as of its last build (manifest.autoUpdate is false)")
    if reading.options.mode != "PERMISSIVE" or CORRUPT in reading.schema.fieldNames():
        return Invalid("only documents say which of them are broken")
    return None


def _is_waiting(collection: Collection, last_updated: str, now: datetime) -> bool:
    """Whether a change set from more than a minute ago has a change that is newer than the table. Takes a listing and
    one GET. Workers that stand still are noticed so; an upload that no worker has seen yet is not."""
    since, path = moment_of(last_updated), collection.resolver.change_set_path(collection.name)
    if since is None:
        return False
    found = collection.store.list(path, start_after=path + Ids.ulid_start(since - PATIENCE), limit=LISTED_MAX)
    waiting = [one.key for one in found if one.last_modified < now - PATIENCE]
    newest = collection.store.get(max(waiting)) if waiting else None
    if newest is None:
        return False
    changes = ChangeSet.decode(newest.body, newest.key).changes
    return any(change.head is not None and change.head.ts > last_updated for change in changes)


# Tasks


def read_share(reading: Reading, share: TableShare) -> Iterator[pa.RecordBatch]:
    """The rows of one task that match, a partition at a time."""
    collection, rows = reading.spec.collection(), _TableRows(reading)
    table = share.open(collection, NeededColumns)
    whole = table.whole()
    if whole is not None:
        yield from rows.of_part(whole)
        return
    for one in share.slices:
        try:
            count = None if rows.needs_cells else table.count(one)
            parts = table.parts(one) if count is None else ()
            made = [batch for part, elsewhere in parts for batch in rows.of_part(part, elsewhere)]
            if count is not None:
                made = [rows.bare(count)]
        except Corrupt as damage:
            if reading.options.read_from == "table":
                raise Corrupt(damage.message, key=damage.key, hint=GONE) from damage
            LOG.warning("%s: reads documents instead of %s: %s", collection.name, one.file, damage)
            yield from read_range(reading, one.within)
        else:
            yield from made


class NeededColumns:
    """Decodes a column of a Parquet file when it is first needed (arro3 decodes all). The whole file was read and its
    checksum compared before."""

    def __init__(self, body: bytes) -> None:
        self._file = ParquetFile(pa.BufferReader(body))
        schema = self._file.schema_arrow
        self.names = schema.names
        self.count = self._file.metadata.num_rows
        self.about = (schema.metadata or {}).get(b"worm", b"{}")

    def column(self, name: str) -> Array:
        found = self._file.read(columns=[name], use_threads=False)  # more than one, if another name begins with `name.`
        return Array.from_arrow(found.column(name).combine_chunks())


class _TableRows:
    """Makes batches of the rows of a table."""

    def __init__(self, reading: Reading) -> None:
        self._collection = reading.spec.collection()
        self._rows = Rows(reading)
        self._filter = self._rows.filter
        self._kinds = {field.name: field.dataType for field in reading.schema.fields if field.name != CORRUPT}
        self.needs_cells = bool(self._kinds or self._filter.fields)

    def bare(self, count: int) -> pa.RecordBatch:
        """So many rows without columns."""
        return self._rows.batches.made(count, {})

    def of_part(self, part: Part, changed: AbstractSet[str] = frozenset()) -> Iterator[pa.RecordBatch]:
        """`changed`: ids whose rows are elsewhere."""
        columns = Columns([part])
        matching = cells.listed(self._filter.positions(columns))
        if changed:
            matching = [at for at in matching if columns.ids[at] not in changed]
        short = self._short(part, matching, changed) if part.cut else ()
        positions = [at for at in matching if at not in short] if short else matching
        is_whole = len(positions) == part.count

        def values_of(name: str) -> Cells:
            exact = part.exact(name, _COLUMN_TYPES.get(type(self._kinds[name])))
            if exact is not None:
                array = pa.array(exact)
                return array if is_whole else array.take(pa.array(positions))
            values = columns.values(name)
            return values if is_whole else [values[at] for at in positions]

        if positions:
            yield self._rows.fitted(len(positions), values_of, lambda at: part.id(positions[at]))
        for ids in in_chunks([part.id(at) for at in sorted(short)], CHUNK):
            yield from self._rows.found(list(documents_of(self._collection, ids)))

    def _short(self, part: Part, matching: Sequence[int], changed: AbstractSet[str]) -> set[int]:
        """The rows that lack a value which decides whether they match, or which match and lack one that is shown."""
        matches, rows = set(matching), ((at, part.row(at)) for at in part.cut if part.id(at) not in changed)
        return {
            at
            for at, row in rows
            if any(is_cut(row, name) for name in self._filter.fields)
            or (at in matches and any(is_cut(row, name) for name in self._kinds))
        }
