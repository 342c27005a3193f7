"""How a table is laid out over files, and how a change of its root is computed. Everything here is pure: no requests.

A change of a root is a function from the root to an *edit*: the new root, and the immutable files that must be stored
before it. `Tree.publish` stores the files and swaps the root; if another writer was faster, the function is applied to
the newer root. Everything that a change needs (the source, all of a partitioned table) is read first and passed to it.

The files of a new base may be too many to hold. An `EditStream` yields them a few at a time, to be stored as they come,
and ends with the edit. A base that is made partition by partition (`new_base` of `regrouped` parts) needs memory for
two partitions, all ids and the entries of the indexes. It gives the same files as `formed` for the whole table.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Generic, Protocol, Self, TypeVar

from worm.collections import Change, Heads, Row
from worm.formats import IndexDef, ModelDef, loads_own
from worm.store import in_chunks, in_parallel
from worm.tables.index import IndexEntries, NewIndex, new_index
from worm.tables.manifest import MadeRows, Manifest, is_stale
from worm.tables.pieces import NewFile, new_file
from worm.tables.root import (
    Balanced,
    By,
    Counted,
    Piece,
    Root,
    balanced_starts,
    cut,
    encode_directory,
    fitting_starts,
    heavy_keys,
    is_spread,
    weights_between,
    whole_root,
)
from worm.tables.sealed import unseal
from worm.values import dataclass

INLINE_PARTITIONS = 64
SPREAD_BYTES = 8 << 20
"""A larger table is partitioned, however few ids it has."""
FOLD_BYTES = 64 << 10
"""A larger file is not rewritten for a much smaller change: the table is partitioned until it is quiet."""
PARTITION_BYTES = 16 << 20
"""Partitions are not much larger than this, and merged deltas are not larger: a fold or a merge holds a few at a
time."""
ROWS_PER_PARTITION_MAX = 100_000
"""Partitions have not many more rows than this, whatever `maxPartitions` says: a task of a Spark job holds one."""
HEADS_PER_PART = 1000
HEADS_PARTS_MAX = 100_000
"""Every fold, and every task that reads heads, reads the directory of all parts."""


class Keyed(Counted, Protocol):
    """What a tree holds: items by id, whose parts merge by the newest seq."""

    @property
    def known(self) -> int: ...
    def ids(self) -> list[str]: ...
    def weight(self, entity_id: str) -> int:
        """The approximate number of bytes for an id."""
        ...

    def folded(self, changes: Iterable[Change]) -> Self | None: ...
    def merged(self, others: Iterable[Self]) -> Self: ...
    def part(self, ids: Iterable[str]) -> Self: ...
    def encode(self) -> bytes: ...
    @classmethod
    def decode(cls, body: bytes, key: str) -> Self: ...
    @classmethod
    def joined(cls, model: str, parts: Iterable[Self]) -> Self: ...


T = TypeVar("T", bound=Keyed)
ParquetDraft = Callable[[str, Manifest], tuple[int, bytes | None]]
"""The size of the Parquet file of a partition, and its bytes unless it is known to be stored."""


@dataclass(frozen=True, slots=True)
class NewFiles(Generic[T]):
    """Files to store in this order; those of `pieces` concurrently."""

    pieces: Sequence[NewFile[T]] = ()
    directory: NewFile[tuple[Piece, ...]] | None = None
    indexes: Sequence[NewIndex] = ()


@dataclass(frozen=True, slots=True)
class Edit(Generic[T]):
    """The result of a change: the new root, and the files that it needs and that may not be stored yet. `by` says what
    the change does, for the invariants of `root.check`."""

    root: Root[T]
    by: By
    files: NewFiles[T] = NewFiles()


EditStream = Generator[NewFiles[T], None, Edit[T]]


class News(Protocol[T]):
    """The content of one fold, in the two forms that a root may need."""

    def onto(self, stored: T) -> T | None:
        """The whole table with the news; None if nothing changes."""
        ...

    def delta(self, revision: int) -> T:
        """Only what the news touches."""
        ...


class Layout(ABC, Generic[T]):
    """One kind of table: how it is encoded and partitioned, and when."""

    stem = "partition"
    writers = 2
    """How many partitions are made and written at the same time."""
    keeps_seqs = True
    indexes: Sequence[IndexDef] = ()
    fields: tuple[str, ...] = ()

    def __init__(self, definition: ModelDef, kind: type[T]) -> None:
        self.definition = definition
        self.model = definition.name
        self.threshold = definition.manifest.partition_threshold
        """The number of ids above which the table is partitioned."""
        self.decode = kind.decode
        self._kind = kind

    @abstractmethod
    def decode_root(self, body: bytes, key: str) -> Root[T]: ...
    @abstractmethod
    def ranges(self, count: int) -> tuple[int, int]:
        """How many partitions this many ids should have, and how many they may have."""

    def root(self, whole: T) -> Root[T]:
        """The root of a table that is one file."""
        return whole_root(self.model, whole)

    def rows(self, part: T) -> Mapping[str, Row]:
        """What is indexed."""
        return {}

    def finished(self, whole: T, root: Root[T]) -> T:
        """The merged table, or a part of it, with the values that only the root has."""
        return whole

    def is_stale(self, made: MadeRows) -> bool:
        """Whether it must be rebuilt from the source because the schema changed."""
        return False

    def joined(self, parts: Iterable[T]) -> T:
        return self._kind.joined(self.model, parts)

    def is_whole(self, known: int, weight: int) -> bool:
        """Whether a quiet table with this many ids, including deleted ones, is one file."""
        return known <= self.threshold and weight <= SPREAD_BYTES

    def may_be_whole(self, root: Root[T]) -> bool:
        """The same for a partitioned table, judged by its root, which does not count deleted ids."""
        few = root.partition_count <= max(1, self.ranges(self.threshold)[0])
        return few and self.is_whole(root.count, root.size)

    def starts(self, ids: Sequence[str], weights: Sequence[int], carried: Sequence[str]) -> list[str]:
        """The first ids of the partitions. `carried`: the first ids of the existing partitions."""
        starts = balanced_starts(ids, *self.ranges(len(ids)), carried)
        balanced = Balanced(starts, weights_between(ids, weights, starts))
        of_carried = weights_between(ids, weights, carried) if carried else ()
        heavy = heavy_keys(ids, weights, PARTITION_BYTES // 2)
        return fitting_starts(balanced, carried, of_carried, heavy, PARTITION_BYTES)

    def new_file(self, stem: str, part: T, *, start: str = "", level: int = 0) -> NewFile[T]:
        return new_file(stem, part.encode(), part, count=part.count, start=start, level=level)

    def partition(self, number: int, start: str, part: T) -> NewFile[T]:
        return self.new_file(f"{self.stem}-{number}", part, start=start)


class ManifestLayout(Layout[Manifest]):
    """`parquet` drafts Parquet files; without it there are none."""

    def __init__(self, definition: ModelDef, parquet: ParquetDraft | None = None) -> None:
        super().__init__(definition, Manifest)
        self.keeps_seqs = definition.oplog
        self.indexes = list(definition.indexes.values())
        self.fields = definition.row_form
        self._parquet = parquet

    def decode_root(self, body: bytes, key: str) -> Root[Manifest]:
        shape = unseal(body, key)
        return Root.of_shape(shape, key) if is_spread(shape) else self.root(Manifest.of_shape(shape, key))

    def ranges(self, count: int) -> tuple[int, int]:
        few = 1 if count <= self.threshold else 2
        least = -(-count // ROWS_PER_PARTITION_MAX)
        maximum = max(least, self.definition.manifest.max_partitions)
        return min(maximum, max(few, least, round(count / self.threshold))), maximum

    def root(self, whole: Manifest) -> Root[Manifest]:
        return whole_root(self.model, whole, whole.fields, whole.oplog)

    def rows(self, part: Manifest) -> Mapping[str, Row]:
        return part.entities

    def finished(self, whole: Manifest, root: Root[Manifest]) -> Manifest:
        known = replace(whole, fields=root.fields, last_updated=root.last_updated, oplog=root.oplog)
        return known if self.keeps_seqs else replace(known, seqs={}, revision=root.revision)

    def is_stale(self, made: MadeRows) -> bool:
        return is_stale(self.definition, made)

    def new_file(self, stem: str, part: Manifest, *, start: str = "", level: int = 0) -> NewFile[Manifest]:
        made = super().new_file(stem, part, start=start, level=level)
        size, body = self._parquet(made.piece.file, part) if self._parquet else (0, None)
        return replace(made, piece=replace(made.piece, parquet=size, cut=part.cut), beside=body)


class HeadsLayout(Layout[Heads]):
    stem = "heads"
    writers = 16

    def __init__(self, definition: ModelDef) -> None:
        super().__init__(definition, Heads)

    def decode_root(self, body: bytes, key: str) -> Root[Heads]:
        shape = loads_own(body, key=key)
        return Root.of_shape(unseal(body, key), key) if is_spread(shape) else self.root(Heads.of_shape(shape, key))

    def ranges(self, count: int) -> tuple[int, int]:
        return min(-(-count // HEADS_PER_PART), HEADS_PARTS_MAX), HEADS_PARTS_MAX


# Changes of a root


def folded(layout: Layout[T], root: Root[T], news: News[T]) -> Edit[T] | None:
    """The root with the news of a fold: in the table itself, or as one more delta. None if it already has the news."""
    if root.whole is not None:
        whole = news.onto(root.whole)
        return None if whole is None else Edit(layout.root(whole), "fold")
    revision = root.revision if layout.keeps_seqs else root.revision + 1
    delta = news.delta(revision)
    file = layout.new_file("delta", delta)
    changed = root.with_delta(file.piece, delta.last_updated, revision)
    return None if changed is None else Edit(changed, "fold", NewFiles([file]))


def merged_deltas(root: Root[T] | None, gone: Sequence[Piece], merged: NewFile[T]) -> Edit[T] | None:
    """The root with one delta in place of several; None if some of them are gone."""
    taken = {piece.file for piece in gone}
    if root is None or not taken <= {piece.file for piece in root.deltas}:
        return None
    rest = (piece for piece in root.deltas if piece.file not in {merged.piece.file, *taken})
    return Edit(replace(root, deltas=(merged.piece, *rest)), "merge", NewFiles([merged]))


def rebased(layout: Layout[T], root: Root[T] | None, start: Root[T], base: Root[T]) -> Edit[T] | None:
    """The root with the base that was made from `start`; what was folded since stays a delta. None if that is no longer
    possible because another writer was faster."""
    if root is None or not root.is_spread or root.base != start.base:
        return None
    taken = {piece.file for piece in start.deltas}
    rest = tuple(piece for piece in root.deltas if piece.file not in taken)
    if not layout.keeps_seqs and len(root.deltas) - len(rest) != len(taken):
        return None  # some of ours were merged with newer ones in the meantime; without seqs, their order is unknown
    if not base.is_spread:
        return None if rest else Edit(base, "base")
    newest = max(base.last_updated, root.last_updated)
    revision = base.revision if layout.keeps_seqs else root.revision
    return Edit(replace(base, deltas=rest, last_updated=newest, revision=revision), "base")


def formed(
    layout: Layout[T], whole: T, root: Root[T] | None, carried: Sequence[str], by: By, *, spread: bool = False
) -> EditStream[T]:
    """The root of this table: one file, or partitioned if it is large or `spread` is set. `carried`: the first ids of
    the partitions of `root`."""
    ids = whole.ids()
    weights = [whole.weight(one) for one in ids]
    if not spread and layout.is_whole(whole.known, sum(weights)):
        return Edit(layout.root(whole), by)
    starts = layout.starts(ids, weights, carried)
    parts = zip(starts, (whole.part(some) for some in cut(ids, starts)), strict=True)
    made = yield from new_base(layout, parts, whole.last_updated, is_split=root is None or not root.is_spread)
    return Edit(replace(made, revision=whole.revision), by)


def remade(layout: Layout[T], root: Root[T], parts: Iterable[T], starts: Sequence[str]) -> EditStream[T]:
    """The root with every delta merged into the base. `parts`: the partitions of `root` with its deltas; they may be
    read lazily."""
    finished = (layout.finished(part, root) for part in parts)
    made = yield from new_base(layout, regrouped(layout, finished, starts), root.last_updated, is_split=False)
    return Edit(made if layout.keeps_seqs else replace(made, revision=root.revision), "base")


def new_base(
    layout: Layout[T], parts: Iterable[tuple[str, T]], last_updated: str, *, is_split: bool
) -> Generator[NewFiles[T], None, Root[T]]:
    """The root that names these partitions, which come with the first id of their range. `is_split`: the table was one
    file or is new."""
    gathered = [IndexEntries(definition) for definition in layout.indexes]
    pieces: list[Piece] = []
    revision = 0
    for batch in in_chunks(enumerate(parts), layout.writers):
        files = in_parallel(lambda one: layout.partition(one[0], *one[1]), batch)
        yield NewFiles(files)
        pieces += [file.piece for file in files]
        for _, (_, part) in batch:
            revision += layout.joined([part]).revision
            for entries in gathered:
                entries.add(layout.rows(part))
    root, directory = of_pieces(layout, pieces, revision, last_updated)
    yield NewFiles(directory=directory)
    indexes = {}
    for entries in gathered:
        index = entries.index(layout.model, last_updated, revision)
        new = new_index(index, layout.definition.manifest.max_partitions, is_split=is_split)
        yield NewFiles(indexes=[new])
        indexes[index.field] = new.pieces
    return replace(root, indexes=indexes)


def of_pieces(
    layout: Layout[T], pieces: Sequence[Piece], revision: int, last_updated: str
) -> tuple[Root[T], NewFile[tuple[Piece, ...]] | None]:
    """The root of a base of these partitions, without its indexes, and the directory if there are many."""
    count, size = sum(piece.count for piece in pieces), sum(piece.size for piece in pieces)
    root: Root[T] = Root(layout.model, count, size, revision, last_updated, tuple(pieces))
    root = replace(root, fields=layout.fields, oplog=layout.keeps_seqs)
    if len(pieces) <= INLINE_PARTITIONS:
        return root, None
    file = new_file("directory", encode_directory(layout.model, pieces), tuple(pieces), count=len(pieces))
    parquet, cut_rows = sum(piece.parquet for piece in pieces), sum(piece.cut for piece in pieces)
    directory = replace(file.piece, parquet=parquet, cut=cut_rows)
    return replace(root, partitions=(), directory=directory), file


def regrouped(layout: Layout[T], parts: Iterable[T], starts: Sequence[str]) -> Iterator[tuple[str, T]]:
    """The same rows in partitions with other ranges, in order."""
    number, pending = 0, list[T]()
    for part in parts:
        for at, ids in enumerate(cut(part.ids(), starts)):
            if not ids:
                continue
            while number < at:
                yield starts[number], layout.joined(pending).part(_ids(pending))
                number, pending = number + 1, []
            pending.append(part.part(ids))
    yield starts[number], layout.joined(pending).part(_ids(pending))


def _ids(parts: Iterable[Keyed]) -> list[str]:
    return [one for part in parts for one in part.ids()]
