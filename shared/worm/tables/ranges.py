"""A table range by range, in the order of ids, for a comparison with a listing. What is held at a time does not depend
on the size of the table.

A range has partitions of up to `RANGE_BYTES` (or one that is larger), with the deltas merged into them. Deltas of up to
`DELTAS_BYTES` are held all together. Larger ones are read one after the other for a *window*: up to `WINDOW_IDS` ids,
from the start of the range. When the ranges have passed the end of the window, the deltas are read again for the next.

The root is read for every range, so a table that changes in the meantime is compared as it is. If a partition is gone
because the root was replaced, the range is read again from the new root. A range that cannot be read is returned
without its part: a caller then knows nothing about its ids.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Generic

from worm.collections import IdRange
from worm.errors import Corrupt
from worm.tables.layout import PARTITION_BYTES, T
from worm.tables.root import Piece, Root
from worm.tables.tree import READ_ATTEMPTS, Tree
from worm.values import dataclass

RANGE_BYTES = 6 << 20
"""About 50,000 heads."""
DELTAS_BYTES = PARTITION_BYTES
WINDOW_IDS = 500_000


@dataclass(frozen=True, slots=True)
class _Window(Generic[T]):
    """The content of these deltas, for the ids of a range."""

    base: tuple[tuple[Piece, ...], Piece | None]
    files: frozenset[str]
    within: IdRange
    content: T


class TableRanges(Generic[T]):
    """Reads one table. `count` (about how many ids it knows) and `last_updated` are as of the last read of the root."""

    def __init__(self, tree: Tree[T]) -> None:
        self._tree = tree
        self._window: _Window[T] | None = None
        self.count = 0
        self.last_updated = ""

    def at(self, start: str) -> tuple[IdRange, T | None]:
        """The range that begins with this id, and what the table knows about its ids, and maybe about others. None:
        there is no table, or it is damaged there."""
        tree, within = self._tree, IdRange(start)
        for _ in range(READ_ATTEMPTS):
            root = tree.root()
            self.count, self.last_updated = (0, "") if root is None else (root.count, root.last_updated)
            if root is None or root.whole is not None:
                whole = None if root is None else root.whole
                self.count = 0 if whole is None else whole.known
                return IdRange(start), whole
            etag = tree.file.held.etag
            try:
                within, pieces = self._planned(root, start)
                return self._read(root, within, pieces)
            except Corrupt as damage:
                tree.root()
                if tree.file.held.etag == etag:
                    tree.damage = damage
                    break
        return within, None

    def _planned(self, root: Root[T], start: str) -> tuple[IdRange, Sequence[Piece]]:
        """The range, and the partitions that cover it."""
        pieces = self._tree.partitions(root)
        first = max(0, bisect_right(pieces, start, key=_start_of) - 1)
        last, size = first + 1, pieces[first].size if start == pieces[first].start else 0  # else: of its end, and held
        while last < len(pieces) and size + pieces[last].size <= RANGE_BYTES:
            size, last = size + pieces[last].size, last + 1
        end = None if last == len(pieces) else pieces[last].start
        if end is not None and IdRange.punctual(end) > start:
            end = IdRange.punctual(end)
        return IdRange(start, end), pieces[first:last]

    def _read(self, root: Root[T], within: IdRange, pieces: Sequence[Piece]) -> tuple[IdRange, T]:
        tree = self._tree
        if root.delta_size <= DELTAS_BYTES:
            delta = tree.delta(root)
        else:
            window = self._window_at(root, within.start)
            delta, end = window.content, window.within.end
            if end is not None and (within.end is None or end < within.end):
                within = IdRange(within.start, end)
        files = [piece.file for piece in pieces if within.end is None or piece.start < within.end]
        news = _ids_in(delta, within)
        part = tree.layout.joined(tree.pieces.get(files)).merged([delta.part(news)])
        is_small = root.size <= RANGE_BYTES
        tree.pieces.keep({*files, *root.files()} if is_small else {files[-1]})  # the next range may begin in it
        return within, part

    def _window_at(self, root: Root[T], start: str) -> _Window[T]:
        held = self._window
        if held is not None and held.base == root.base and start in held.within:
            held = self._filled(held, root)
        if held is None or held.base != root.base or start not in held.within:  # a new delta may have shortened it
            held = self._filled(_Window(root.base, frozenset(), IdRange(start), self._tree.layout.joined(())), root)
        self._window = held
        return held

    def _filled(self, held: _Window[T], root: Root[T]) -> _Window[T]:
        """With the deltas that it lacks."""
        for piece in root.deltas:
            if piece.file not in held.files:
                held = self._with(held, piece)
        return held

    def _with(self, held: _Window[T], piece: Piece) -> _Window[T]:
        """The window with one more delta; it ends earlier if that is too much."""
        (delta,) = self._tree.pieces.get([piece.file])
        self._tree.pieces.keep(set())
        content, within = held.content.merged([delta.part(_ids_in(delta, held.within))]), held.within
        if content.known > WINDOW_IDS:
            ids = content.ids()
            within, content = IdRange(within.start, ids[WINDOW_IDS]), content.part(ids[:WINDOW_IDS])
        return _Window(held.base, held.files | {piece.file}, within, content)


def _start_of(piece: Piece) -> str:
    return piece.start


def _ids_in(content: T, within: IdRange) -> list[str]:
    ids = content.ids()
    return ids[bisect_left(ids, within.start) : len(ids) if within.end is None else bisect_left(ids, within.end)]
