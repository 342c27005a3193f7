"""The view of a table: its rows as of one root. Queries read it. It is kept, with everything decoded so far, until the
root changes.

A table inside its root is one part, kept as bytes (or parsed: without msgspec, or if this process has just written it).
A partitioned table has a part for each partition, which `PartFiles` keeps from one view to the next: a Parquet file or
the partition itself, each with newer rows from the deltas.

A file of a partitioned table may be gone when it is read (merged, and deleted a day later) or damaged. `rows`,
`columns` and `batches` then raise `Corrupt`, and the reader requests the view again or reads the documents. A missing
Parquet file is not an error: its partition is read instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import TypeVar

from worm.collections import DocumentVersion, Row
from worm.errors import Corrupt
from worm.formats import JsonValue
from worm.tables.columns import Columns, RowsById
from worm.tables.index import entry_key
from worm.tables.manifest import Manifest
from worm.tables.parquet_part import ParquetPart
from worm.tables.parts import MergedPart, ParsedPart, Part, RawPart, is_available
from worm.tables.pieces import Pieces
from worm.tables.root import Counted, Piece, Root, covering, cut
from worm.tables.tree import ManifestTree
from worm.values import dataclass

V = TypeVar("V")
ASSUMED_BYTES = 1000
"""The assumed bytes of a document, if nothing is known about the collection."""
ASSUMED_COUNT = 1000
"""The assumed number of documents, if nothing counts them."""


class PartFiles:
    """The partitions of a partitioned table as parts, kept as long as a root names them. `damages`: what was wrong with
    Parquet files, by the names of their partitions."""

    def __init__(self, tree: ManifestTree) -> None:
        self._tree = tree
        self._parts: dict[str, Part] = {}
        self.damages: dict[str, Corrupt] = {}

    def requests(self, root: Root[Manifest | RawPart]) -> int:
        """The number of GETs that `load` takes."""
        tree = self._tree
        if not tree.knows_partitions(root):
            return 1 + root.partition_count + len(root.deltas)
        unknown = sum(piece.file not in self._parts for piece in self._unparsed(tree.partitions(root)))
        return unknown + tree.pieces.missing(piece.file for piece in root.deltas)

    def load(self, root: Root[Manifest | RawPart], fields: Sequence[str] = ()) -> list[Part]:
        """Files that this process wrote and still has in memory are taken from there. The cells of `fields` are decoded
        as the files arrive, while others are still being read."""
        tree = self._tree
        partitions = tree.partitions(root)
        unparsed = self._unparsed(partitions)
        self._read([piece for piece in unparsed if piece.file not in self._parts], fields)
        self._parts = {piece.file: self._parts[piece.file] for piece in unparsed}
        self.damages = {file: damage for file, damage in self.damages.items() if file in self._parts}
        delta = tree.delta(root)
        tree.pieces.keep({piece.file for piece in (*partitions, *root.deltas)})
        slices = cut(delta.ids(), [piece.start for piece in partitions])
        return [
            MergedPart.of(self._parts.get(piece.file) or ParsedPart.of(*tree.pieces.get([piece.file])), delta.part(ids))
            for piece, ids in zip(partitions, slices, strict=True)
        ]

    def _read(self, pieces: Sequence[Piece], fields: Sequence[str]) -> None:
        """Reads the Parquet files, or the partitions themselves if there is none or it is damaged."""
        told = [piece for piece in pieces if piece.parquet]
        plain = [piece for piece in pieces if not piece.parquet]
        for piece, part in zip(told, self._tree.parquet.get(told, fields), strict=True):
            if isinstance(part, ParquetPart) and part.count == piece.count:
                self._parts[piece.file] = part
                continue
            plain.append(piece)
            self.damages[piece.file] = part if isinstance(part, Corrupt) else Corrupt("has other rows", key=piece.file)
        self._parts |= zip((piece.file for piece in plain), self._plain(plain), strict=True)

    def _plain(self, pieces: Sequence[Piece]) -> list[Part]:
        store, directory = self._tree.collection.store, self._tree.pieces.directory
        files = [piece.file for piece in pieces]
        if is_available():
            return [*Pieces(store, directory, RawPart).get(files)]
        return [ParsedPart.of(parsed) for parsed in Pieces(store, directory, Manifest.decode).get(files)]

    def _unparsed(self, partitions: Sequence[Piece]) -> list[Piece]:
        return [piece for piece in partitions if piece.file in self._parts or self._tree.pieces.missing([piece.file])]


@dataclass(frozen=True, slots=True)
class RowBatch:
    """Rows by id, and the document version of each."""

    rows: Mapping[str, Row]
    version: Callable[[str], DocumentVersion | None]


class TableView:
    """Rows of a table. The values that it returns belong to the cache: copy them before you change them."""

    def __init__(
        self,
        tree: ManifestTree,
        files: PartFiles,
        root: Root[Manifest | RawPart],
        etag: str | None,
        root_size: int,
    ) -> None:
        self.etag = etag
        self._tree = tree
        self._files = files
        self._root = root
        self._root_size = root_size
        self._parts: Sequence[Part] | None = None

    # From the root

    @property
    def is_partitioned(self) -> bool:
        return self._root.is_spread

    @property
    def fields(self) -> tuple[str, ...]:
        return self._root.fields

    @property
    def oplog(self) -> bool:
        return self._root.oplog

    @property
    def last_updated(self) -> str:
        return self._root.last_updated

    @property
    def revision(self) -> int:
        return self._root.revision

    @property
    def size_bytes(self) -> int:
        """The bytes of all files that hold the rows."""
        return self._root_size + self._root.size

    @property
    def count_hint(self) -> int:
        """The approximate number of rows, without a request."""
        return self._root.count

    @property
    def cut_hint(self) -> int:
        """How many rows lack values of their documents (an upper bound if the table is partitioned). No request."""
        return self._root.cut if self.is_partitioned else len(self.columns.cut)

    @property
    def requests(self) -> int:
        """The number of GETs that it takes to load the rows."""
        return self._files.requests(self._root) if self.is_partitioned and self._parts is None else 0

    @property
    def partitions(self) -> int:
        return len(self._tree.partitions(self._root))

    @property
    def deltas(self) -> int:
        return len(self._root.deltas)

    @property
    def damages(self) -> Mapping[str, Corrupt]:
        """Parquet files that were missing or damaged, by the names of the partitions that were read instead."""
        return self._files.damages

    # The rows

    def read(self, fields: Sequence[str] = ()) -> Sequence[Part]:
        """Load the rows. `fields`: the fields that will be used first."""
        if self._parts is None:
            whole = self._root.whole
            if whole is None:
                self._parts = self._files.load(self._root, fields)
            else:
                self._parts = [whole if isinstance(whole, RawPart) else ParsedPart.of(whole)]
        return self._parts

    @cached_property
    def columns(self) -> Columns:
        return Columns(self.read())

    @cached_property
    def rows(self) -> Mapping[str, Row]:
        return RowsById(self.columns)

    @property
    def count(self) -> int:
        return len(self.columns)

    @cached_property
    def seqs(self) -> Mapping[str, int]:
        """In a delta of a model without an oplog, they are numbers of folds."""
        if self.is_partitioned and not self._tree.layout.keeps_seqs:
            return {}
        return _joined([part.seqs for part in self.read()])

    @cached_property
    def etags(self) -> Mapping[str, str]:
        return _joined([part.etags for part in self.read()])

    def version(self, at: int) -> DocumentVersion | None:
        """The document version of the row at this position of `columns`, as far as the table knows."""
        return self._version(*self.columns.stamp(at))

    def _version(self, seq: int | None, etag: str | None) -> DocumentVersion | None:
        """Without an oplog, there are no seqs, but the etags that rows were read at. The same holds for damaged
        entities."""
        if self.oplog and seq is not None:
            return DocumentVersion(seq=seq)
        return None if etag is None else DocumentVersion(etag=etag)

    def batches(self) -> Iterator[RowBatch]:
        """The rows partition by partition, holding one partition at a time."""
        if not self.is_partitioned or self._parts is not None:
            yield RowBatch(self.rows, lambda one: self.version(self.columns.places[one]))
            return
        for part in self._tree.parts(self._root):
            yield RowBatch(part.entities, partial(self._version_in, part))

    def _version_in(self, part: Manifest, entity_id: str) -> DocumentVersion | None:
        return self._version(part.seqs.get(entity_id), part.etags.get(entity_id))


def _joined(of_parts: Sequence[Mapping[str, V]]) -> Mapping[str, V]:
    return of_parts[0] if len(of_parts) == 1 else {one: value for part in of_parts for one, value in part.items()}


@dataclass(frozen=True, slots=True)
class Size:
    """What is known about a collection: the number of documents, the bytes of one, the bytes that a scan reads, the
    bytes of the root, and the root itself if the table is partitioned. `is_assumed`: nothing counted the documents."""

    count: int = 0
    each: int = ASSUMED_BYTES
    manifest_bytes: int = 0
    root_bytes: int = 0
    root: Root[Counted] | None = None
    is_assumed: bool = False

    @classmethod
    def counted(cls, count: int | None) -> Size:
        """The default if nothing else is known."""
        return cls(ASSUMED_COUNT, is_assumed=True) if count is None else cls(count)

    @classmethod
    def known(cls, tree: ManifestTree, view: TableView | None) -> Size | None:
        """Without a request; None if neither the view nor a root that was read has the answer."""
        file = tree.file
        root = tree.held_spread if file.undecoded is None else None
        if root is not None:
            whole = file.held.size + root.size
            scanned = file.held.size + root.scan_size
            return cls(root.count, _each(whole, root.count), scanned, file.held.size, root)
        if view is None:
            return None
        count, size = view.count_hint, view.size_bytes
        return cls(count, _each(size, count), size, root_bytes=size)

    @property
    def is_partitioned(self) -> bool:
        return self.root is not None

    @property
    def files(self) -> int:
        """The number of files with rows, without the root."""
        if self.root is None:
            return 0
        directory = self.root.directory
        partitions = len(self.root.partitions) if directory is None else 1 + directory.count
        return partitions + self.deltas

    @property
    def deltas(self) -> int:
        return 0 if self.root is None else len(self.root.deltas)

    @property
    def delta_bytes(self) -> int:
        return 0 if self.root is None else self.root.delta_size

    def index_parts(self, field: str, values: Iterable[JsonValue]) -> list[int]:
        """The bytes of each part of the field's index that covers one of the values."""
        known = None if self.root is None else self.root.indexes.get(field)
        return [] if known is None else [part.size for part in covering(known.parts, map(entry_key, values))]


def _each(size: int, count: int) -> int:
    return size // count if count else ASSUMED_BYTES
