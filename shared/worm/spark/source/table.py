"""Reads the table of a collection instead of its documents.

The driver reads the root once, and the deltas unless they are large. It gives each task some partitions and the newer
rows of their ids, so that all tasks see one state, and a read takes about as many requests as the table has files. A
table in one file goes to one task as it is.

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
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property

import pyarrow as pa
from arro3.core import Array
from pyarrow.parquet import ParquetFile
from pyspark.sql.types import BooleanType, DataType, DoubleType, LongType, StringType, StructType, TimestampType

from worm.clock import Ids, moment_of
from worm.collections import ChangeSet, Collection, IdRange, is_cut
from worm.errors import Corrupt, Invalid, WormError
from worm.formats import ModelDef
from worm.query import is_covered
from worm.spark.source.cells import Cells
from worm.spark.source.entities import CHUNK, documents_of
from worm.spark.source.rows import Reading, Rows, read_range
from worm.spark.source.schema import CORRUPT, documents_schema
from worm.store import chunked
from worm.tables import (
    ID,
    READ_ATTEMPTS,
    Columns,
    Manifest,
    ManifestTree,
    ParquetPart,
    ParsedPart,
    Part,
    PartFiles,
    Piece,
    RawPart,
    Root,
    cells,
    cut,
)

LOG = logging.getLogger(__name__)
DELTA_BYTES_MAX = 64 << 20
"""Larger deltas are read by the tasks, not by the driver."""
PATIENCE = timedelta(minutes=1)
"""How long a change set may wait before `auto` says that the table is behind."""
LISTED_MAX = 1000
_SAME_TYPES: dict[str, type[DataType]] = {
    "string": StringType,
    "long": LongType,
    "double": DoubleType,
    "boolean": BooleanType,
    "timestamp": TimestampType,
}
"""Types of columns in Parquet files, and the types of frames that show the same."""
INSTEAD = 'or use .option("from", "documents")'
REBUILD = f"run `worm table rebuild` to rebuild it, {INSTEAD}"
GONE = "if the frame was made more than a day ago, load it again; otherwise run `worm repair`, or read from documents"


@dataclass(frozen=True, slots=True)
class Slice:
    """One partition, its range, and the newer rows of the range."""

    piece: Piece
    within: IdRange
    newer: Manifest


@dataclass(frozen=True, slots=True)
class Share:
    """What one task reads: a table in one file (`body`), or some partitions. `deltas`: those that the driver did not
    read."""

    slices: tuple[Slice, ...] = ()
    deltas: tuple[Piece, ...] = ()
    body: bytes | None = None


# Planning


def table_schema(definition: ModelDef) -> StructType:
    """The columns that the table has."""
    if not definition.keeps_manifest:
        raise _no_table(definition)
    return StructType([one for one in documents_schema(definition).fields if is_covered(definition, one.name)])


def shares(reading: Reading) -> list[Share] | WormError:
    """What the tasks read, as of one root; or why the table cannot be used."""
    collection, is_auto = reading.spec.collection(), reading.options.read_from == "auto"
    problem = _lacks(reading, collection.definition) or (_needs_documents(reading) if is_auto else None)
    if problem is not None:
        return problem
    tree = ManifestTree(collection)
    try:
        found = _planned(tree, reading.options.partitions)
    except Corrupt as damage:
        return damage
    root = tree.file.held.value
    if root is None:
        return Invalid(f"{collection.name} has no table yet", hint=REBUILD)
    if tree.is_stale(root):
        return Invalid(f"the table of {collection.name} was made with other fields", hint=REBUILD)
    if is_auto and _is_waiting(collection, root.last_updated, reading.now):
        return Invalid(f"changes have been waiting for the table of {collection.name} for more than a minute")
    return found


def _planned(tree: ManifestTree, tasks: int) -> list[Share]:
    """A file that the root names may be gone by now: then there is a newer root. `Corrupt` if there is none."""
    damage, etag = Corrupt("the table is damaged", key=tree.key, hint=GONE), None
    for _ in range(READ_ATTEMPTS):
        tree.file.refresh()
        if etag is not None and tree.file.etag == etag:
            break
        etag, body, held = tree.file.etag, tree.file.undecoded, tree.file.held
        if held.damage is not None:
            raise held.damage
        if held.value is None or not held.value.is_spread:
            return [Share(body=body)]
        try:
            return _spread(tree, held.value, tasks)
        except Corrupt as found:
            damage = found
    raise damage


def _spread(tree: ManifestTree, root: Root[Manifest], tasks: int) -> list[Share]:
    pieces, is_small = tree.partitions(root), root.delta_size <= DELTA_BYTES_MAX
    delta = tree.delta(root) if is_small else Manifest(root.model)
    starts = [piece.start for piece in pieces]
    ranges = [IdRange(start, end) for start, end in zip(starts, [*starts[1:], None], strict=True)]
    slices = [
        Slice(piece, within, delta.part(ids))
        for piece, within, ids in zip(pieces, ranges, cut(delta.ids(), starts), strict=True)
    ]
    deltas = () if is_small else root.deltas
    tasks = max(tasks, IdRange.least_for(root.count))
    return [Share(tuple(some), deltas) for some in chunked(slices, -(-len(slices) // tasks))]


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


def read_share(reading: Reading, share: Share) -> Iterator[pa.RecordBatch]:
    """The rows of one task that match, a partition at a time."""
    collection, rows = reading.spec.collection(), _TableRows(reading, share.deltas)
    if share.body is not None:
        key = collection.resolver.manifest_key(collection.name)
        yield from rows.of_part(RawPart.of_root(share.body, key) or ParsedPart.of(Manifest.decode(share.body, key)))
        return
    for one in share.slices:
        try:
            made = list(rows.of_slice(one))
        except Corrupt as damage:
            if reading.options.read_from == "table":
                raise Corrupt(damage.message, key=damage.key, hint=GONE) from damage
            LOG.warning("%s: reads documents instead of %s: %s", collection.name, one.piece.file, damage)
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
    """Makes batches of the rows of a table. `deltas`: files with newer rows."""

    def __init__(self, reading: Reading, deltas: tuple[Piece, ...]) -> None:
        self._collection = reading.spec.collection()
        self._deltas = deltas
        self._rows = Rows(reading)
        self._filter = self._rows.filter
        self._kinds = {field.name: field.dataType for field in reading.schema.fields if field.name != CORRUPT}

    @cached_property
    def _delta(self) -> Manifest:
        return ManifestTree(self._collection).delta(Root(self._collection.name, 0, 0, 0, "", deltas=self._deltas))

    def of_slice(self, one: Slice) -> Iterator[pa.RecordBatch]:
        newer = self._delta.part(filter(one.within.__contains__, self._delta.ids())) if self._deltas else one.newer
        if not self._kinds and not self._filter.fields and not newer.seqs:
            yield self._rows.batches.made(one.piece.count, {})
            return
        root: Root[Manifest] = Root(self._collection.name, one.piece.count, one.piece.size, 0, "", (one.piece,))
        tree = ManifestTree(self._collection)
        tree.parquet.decode = NeededColumns
        (base,) = PartFiles(tree).load(root)
        changed = {one for one, seq in newer.seqs.items() if seq > base.seqs.get(one, 0)} if newer.seqs else set()
        yield from self.of_part(base, changed)
        if changed:
            yield from self.of_part(ParsedPart.of(newer.part(changed)))

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
            array = _array(part, name, self._kinds[name])
            if array is not None:
                return array if is_whole else array.take(pa.array(positions))
            values = columns.values(name)
            return values if is_whole else [values[at] for at in positions]

        if positions:
            yield self._rows.fitted(len(positions), values_of, lambda at: part.id(positions[at]))
        for ids in chunked([part.id(at) for at in sorted(short)], CHUNK):
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


def _array(part: Part, name: str, kind: DataType) -> pa.Array | None:
    """The column of a Parquet file, if it has every value as the frame shows it."""
    if not isinstance(part, ParquetPart) or name in part.inexact or "." in name:
        return None
    if name == ID and isinstance(kind, StringType):
        return pa.array(part.array(ID))
    column = part.column(name)
    if column is None:
        return None
    is_time = column.kind.type == "timestamp"
    if _SAME_TYPES.get(column.kind.type) is not type(kind) or (is_time and part.form(column.name) is None):
        return None
    return pa.array(part.array(column.name))
