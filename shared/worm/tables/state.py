"""One state of a table, as of one root: what queries read. It stays while the root stays, and with it what was parsed.

Rows come as bytes and are decoded as far as a query needs (`stored_rows.py`, and `column_rows.py` of partitions), or
parsed: a whole table where msgspec is missing, and what this process has just written and so has at hand.

A file of a spread table may be gone by the time it is read (merged, and deleted a day later) or damaged: `rows`,
`columns` and `batches` then raise `Corrupt`, and the reader asks for the state again or reads the documents. A column
file alone is not missed: its partition is read instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Protocol, TypeVar

from worm.collections.changes import Row
from worm.errors import Corrupt
from worm.tables.coded import Coded
from worm.tables.column_rows import ColumnRows
from worm.tables.columns import Cell, Columns
from worm.tables.manifest import Manifest
from worm.tables.pieces import Pieces
from worm.tables.root import Piece, Root, cut
from worm.tables.stored_columns import MergedRows, ParsedRows, Part, RowsById, StoredColumns
from worm.tables.stored_rows import StoredRows, is_available
from worm.tables.tree import ManifestTree

R = TypeVar("R")


class _Content(Protocol):
    """The rows of a state and what was folded into them."""

    @property
    def columns(self) -> Columns: ...
    @property
    def rows(self) -> Mapping[str, Row]: ...
    @property
    def seqs(self) -> Mapping[str, int]: ...
    @property
    def etags(self) -> Mapping[str, str]: ...
    @property
    def revision(self) -> int: ...


class _Parsed:
    """Rows in memory."""

    def __init__(self, manifest: Manifest) -> None:
        self.rows = manifest.entities
        self.seqs = manifest.seqs
        self.etags = manifest.etags
        self.revision = manifest.revision

    @cached_property
    def columns(self) -> Columns:
        return Columns(list(self.rows), list(self.rows.values()))


class _Stored:
    """Rows as bytes."""

    def __init__(self, parts: list[Part], root: Root[Manifest | StoredRows], keeps_seqs: bool) -> None:
        self._parts = parts
        self._root = root
        self._keeps_seqs = keeps_seqs
        self.columns = StoredColumns(parts)
        self.rows = RowsById(self.columns)

    @cached_property
    def seqs(self) -> Mapping[str, int]:
        """In a delta of a model without oplog they are numbers of folds."""
        return {one: seq for part in self._parts for one, seq in part.seqs.items()} if self._keeps_seqs else {}

    @cached_property
    def etags(self) -> Mapping[str, str]:
        return {one: etag for part in self._parts for one, etag in part.etags.items()}

    @property
    def revision(self) -> int:
        """A spread root knows the sum of the seqs in its base only."""
        is_of_base = self._root.is_spread and self._keeps_seqs
        return sum(self.seqs.values()) if is_of_base else self._root.revision


class _ColumnPart:
    """A partition by its column file. Where that turns out to be damaged, by the partition itself."""

    def __init__(self, rows: ColumnRows, instead: Callable[[Corrupt], Part]) -> None:
        self._part: Part = rows
        self._instead = instead
        self.count = rows.count

    @property
    def ids(self) -> Sequence[str]:
        return self._try(lambda part: part.ids)

    def id(self, at: int) -> str:
        return self._try(lambda part: part.id(at))

    @property
    def seqs(self) -> Mapping[str, int]:
        return self._try(lambda part: part.seqs)

    @property
    def etags(self) -> Mapping[str, str]:
        return self._try(lambda part: part.etags)

    def row(self, at: int) -> Row:
        return self._try(lambda part: part.row(at))

    def cells(self, field: str) -> list[Cell]:
        return self._try(lambda part: part.cells(field))

    def coded(self, field: str) -> Coded | None:
        return self._try(lambda part: part.coded(field))

    def prepare(self, fields: Iterable[str]) -> None:
        self._try(lambda part: part.prepare(fields))

    def _try(self, work: Callable[[Part], R]) -> R:
        try:
            return work(self._part)
        except Corrupt as damage:
            self._part = self._instead(damage)
            return work(self._part)


class StoredFiles:
    """The partitions of a spread table as bytes, kept as long as a root names them. `damages`: what was wrong with
    column files, by the names of their partitions."""

    def __init__(self, tree: ManifestTree) -> None:
        self._tree = tree
        self._parts: dict[str, Part] = {}
        self.damages: dict[str, Corrupt] = {}

    def requests(self, root: Root[Manifest | StoredRows]) -> int:
        """How many GETs `load` takes."""
        tree = self._tree
        if not tree.knows_partitions(root):
            return 1 + root.partition_count + len(root.deltas)
        unknown = sum(piece.file not in self._parts for piece in self._unparsed(tree.partitions(root)))
        return unknown + tree.pieces.missing(piece.file for piece in root.deltas)

    def load(self, root: Root[Manifest | StoredRows], fields: Sequence[str] = ()) -> _Content:
        """What this process wrote itself, and has in memory, is taken from there. The cells of `fields` are decoded as
        the files come, while others are on their way."""
        tree = self._tree
        partitions = tree.partitions(root)
        unparsed = self._unparsed(partitions)
        self._read([piece for piece in unparsed if piece.file not in self._parts], fields)
        self._parts = {piece.file: self._parts[piece.file] for piece in unparsed}
        self.damages = {file: damage for file, damage in self.damages.items() if file in self._parts}
        delta = tree.delta(root)
        tree.pieces.keep({piece.file for piece in (*partitions, *root.deltas)})
        slices = cut(delta.ids(), [piece.start for piece in partitions])
        parts = [
            MergedRows.of(self._parts.get(piece.file) or self._parsed(piece), delta.part(touched))
            for piece, touched in zip(partitions, slices, strict=True)
        ]
        return _Stored(parts, root, tree.layout.keeps_seqs)

    def _read(self, pieces: Sequence[Piece], fields: Sequence[str]) -> None:
        """By their column files; by themselves where there is none, or it is damaged."""
        told = [piece for piece in pieces if piece.columns]
        plain = [piece for piece in pieces if not piece.columns]
        for piece, rows in zip(told, self._tree.columns.get(told, fields), strict=True):
            if isinstance(rows, ColumnRows) and rows.count == piece.count:
                self._parts[piece.file] = _ColumnPart(rows, partial(self._instead, piece))
                continue
            plain.append(piece)
            self.damages[piece.file] = rows if isinstance(rows, Corrupt) else Corrupt("has other rows", key=piece.file)
        self._parts |= zip((piece.file for piece in plain), self._plain(plain), strict=True)

    def _instead(self, piece: Piece, damage: Corrupt) -> Part:
        """The partition itself. Queries of several threads may come here."""
        self.damages[piece.file] = damage
        return self._plain([piece])[0]

    def _plain(self, pieces: Sequence[Piece]) -> list[Part]:
        store, directory = self._tree.collection.store, self._tree.pieces.directory
        files = [piece.file for piece in pieces]
        if is_available():
            return [*Pieces(store, directory, StoredRows).get(files)]
        return [ParsedRows(parsed) for parsed in Pieces(store, directory, Manifest.decode).get(files)]

    def _unparsed(self, partitions: Sequence[Piece]) -> list[Piece]:
        return [piece for piece in partitions if piece.file in self._parts or self._tree.pieces.missing([piece.file])]

    def _parsed(self, piece: Piece) -> ParsedRows:
        return ParsedRows(*self._tree.pieces.get([piece.file]))


class TableState:
    """Rows of a table. What it hands out belongs to the cache: readers copy before they change."""

    def __init__(
        self,
        tree: ManifestTree,
        files: StoredFiles,
        root: Root[Manifest | StoredRows],
        etag: str | None,
        root_size: int,
    ) -> None:
        self.etag = etag
        self._tree = tree
        self._files = files
        self._root = root
        self._root_size = root_size
        self._loaded: _Content | None = None

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
    def size_bytes(self) -> int:
        """Of all files that hold the rows."""
        return self._root_size + self._root.size

    @property
    def damages(self) -> Mapping[str, Corrupt]:
        """Column files that were missing or damaged, by the names of the partitions that were read instead."""
        return self._files.damages

    @property
    def requests(self) -> int:
        """How many GETs it takes to have the rows."""
        return self._files.requests(self._root) if self._root.is_spread and self._loaded is None else 0

    @property
    def partitions(self) -> int:
        return len(self._tree.partitions(self._root))

    @property
    def deltas(self) -> int:
        return len(self._root.deltas)

    @property
    def count_hint(self) -> int:
        """About how many rows there are, without a request."""
        return self._root.count

    @property
    def count(self) -> int:
        return len(self.columns)

    @property
    def revision(self) -> int:
        return self._content.revision

    @property
    def rows(self) -> Mapping[str, Row]:
        return self._content.rows

    @property
    def seqs(self) -> Mapping[str, int]:
        return self._content.seqs

    @property
    def etags(self) -> Mapping[str, str]:
        return self._content.etags

    def seq(self, entity_id: str) -> int:
        return self.seqs.get(entity_id, 0)

    @property
    def columns(self) -> Columns:
        return self._content.columns

    def batches(self) -> Iterator[Mapping[str, Row]]:
        """The rows partition by partition, holding one partition at a time."""
        if not self._root.is_spread or self._loaded is not None:
            yield self.rows
            return
        for part in self._tree.parts(self._root):
            yield part.entities

    def read(self, fields: Sequence[str] = ()) -> None:
        """Have the rows. `fields`: those that will be asked for first."""
        if self._loaded is None:
            self._loaded = self._opened(fields)

    @property
    def _content(self) -> _Content:
        if self._loaded is None:
            self._loaded = self._opened(())
        return self._loaded

    def _opened(self, fields: Sequence[str]) -> _Content:
        whole = self._root.whole
        if isinstance(whole, StoredRows):
            return _Stored([whole], self._root, keeps_seqs=True)
        return self._files.load(self._root, fields) if whole is None else _Parsed(whole)
