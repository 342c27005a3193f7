"""A table for many readers: what each of them reads, as of one root.

Who plans reads the root once, and the deltas unless they are large. Each reader gets some partitions and the newer rows
of their ids, so that all of them see one state, and a read takes about as many requests as the table has files. A table
in one file goes to one reader as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property

from worm.collections import Collection, IdRange
from worm.errors import Corrupt
from worm.store import in_chunks
from worm.tables.manifest import Manifest
from worm.tables.parquet_part import Decoded
from worm.tables.parts import ParsedPart, Part, RawPart
from worm.tables.root import Piece, Root, cut
from worm.tables.tree import READ_ATTEMPTS, ManifestTree
from worm.tables.view import PartFiles

DELTA_BYTES_MAX = 64 << 20
"""Larger deltas are read by the readers, not by the planner."""


@dataclass(frozen=True, slots=True)
class Slice:
    """One partition, its range, and the newer rows of the range."""

    piece: Piece
    within: IdRange
    newer: Manifest

    @property
    def file(self) -> str:
        return self.piece.file


@dataclass(frozen=True, slots=True)
class TableShare:
    """What one reader gets: a table in one file (`body`), or some partitions. `deltas`: those that are not read yet."""

    slices: tuple[Slice, ...] = ()
    deltas: tuple[Piece, ...] = ()
    body: bytes | None = None

    def open(self, collection: Collection, decode: Callable[[bytes], Decoded]) -> OpenShare:
        """`decode`: how Parquet files are read."""
        return OpenShare(self, collection, decode)


class SharedTable:
    """Plans the shares of a table. `last_updated` is None if there is no table."""

    def __init__(self, collection: Collection) -> None:
        self._tree = ManifestTree(collection)

    @property
    def last_updated(self) -> str | None:
        root = self._tree.file.held.value
        return None if root is None else root.last_updated

    @property
    def is_stale(self) -> bool:
        """Whether it was made with other fields than those of the schema."""
        root = self._tree.file.held.value
        return root is not None and self._tree.is_stale(root)

    def shares(self, readers: int) -> list[TableShare]:
        """A file that the root names may be gone by now: then there is a newer root. `Corrupt` if there is none."""
        tree, etag = self._tree, None
        damage = Corrupt("the table is damaged", key=tree.key)
        for _ in range(READ_ATTEMPTS):
            tree.file.refresh()
            if etag is not None and tree.file.etag == etag:
                break
            etag, body, held = tree.file.etag, tree.file.undecoded, tree.file.held
            if held.damage is not None:
                raise held.damage
            if held.value is None or not held.value.is_spread:
                return [TableShare(body=body)]
            try:
                return self._spread(held.value, readers)
            except Corrupt as found:
                damage = found
        raise damage

    def _spread(self, root: Root[Manifest], readers: int) -> list[TableShare]:
        pieces, is_small = self._tree.partitions(root), root.delta_size <= DELTA_BYTES_MAX
        delta = self._tree.delta(root) if is_small else Manifest(root.model)
        starts = [piece.start for piece in pieces]
        ranges = [IdRange(start, end) for start, end in zip(starts, [*starts[1:], None], strict=True)]
        slices = [
            Slice(piece, within, delta.part(ids))
            for piece, within, ids in zip(pieces, ranges, cut(delta.ids(), starts), strict=True)
        ]
        deltas = () if is_small else root.deltas
        readers = max(readers, IdRange.least_for(root.count))
        return [TableShare(tuple(some), deltas) for some in in_chunks(slices, -(-len(slices) // readers))]


class OpenShare:
    """Reads a share, one slice at a time."""

    def __init__(self, share: TableShare, collection: Collection, decode: Callable[[bytes], Decoded]) -> None:
        self._share = share
        self._collection = collection
        self._decode = decode

    def whole(self) -> Part | None:
        """The table, if it is in one file."""
        body, key = self._share.body, self._collection.resolver.manifest_key(self._collection.name)
        if body is None:
            return None
        return RawPart.of_root(body, key) or ParsedPart.of(Manifest.decode(body, key))

    def count(self, one: Slice) -> int | None:
        """The number of rows, if it is known without a partition: nothing is newer."""
        return None if self._newer(one).seqs else one.piece.count

    def parts(self, one: Slice) -> Iterator[tuple[Part, AbstractSet[str]]]:
        """The parts of a slice, each with the ids whose rows are in another one. `Corrupt` if a file is gone or
        damaged."""
        newer, tree = self._newer(one), ManifestTree(self._collection)
        root: Root[Manifest] = Root(self._collection.name, one.piece.count, one.piece.size, 0, "", (one.piece,))
        tree.parquet.decode = self._decode
        (base,) = PartFiles(tree).load(root)
        changed = {one for one, seq in newer.seqs.items() if seq > base.seqs.get(one, 0)} if newer.seqs else set[str]()
        yield base, changed
        if changed:
            yield ParsedPart.of(newer.part(changed)), frozenset()

    def _newer(self, one: Slice) -> Manifest:
        if not self._share.deltas:
            return one.newer
        return self._delta.part(filter(one.within.__contains__, self._delta.ids()))

    @cached_property
    def _delta(self) -> Manifest:
        name = self._collection.name
        return ManifestTree(self._collection).delta(Root(name, 0, 0, 0, "", deltas=self._share.deltas))
