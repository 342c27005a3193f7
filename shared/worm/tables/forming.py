"""Making the files of a spread table: from the whole table, or partition by partition, holding few at a time.

Both give the same files. The second way needs memory for two partitions, all ids, and the entries of the indexes; so
a worker can merge tables that it could not hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from worm.store.parallel import in_parallel
from worm.tables.keyed import T
from worm.tables.spread import INLINE_PARTITIONS, Piece, Spread, balanced_starts, cut

if TYPE_CHECKING:
    from worm.tables.tree import Tree


def formed(tree: Tree[T], whole: T, root: T | Spread | None) -> T | Spread:
    """The root for this table: itself, or a spread one, whose files are written."""
    stays = isinstance(root, Spread) and whole.known > tree.threshold // 2
    if whole.known <= tree.threshold and not stays:
        return whole
    ids = whole.ids()
    starts = balanced_starts(ids, *tree.ranges(len(ids)), tree.carried(root))
    parts = (whole.part(slice_) for slice_ in cut(ids, starts))
    spread = _written(tree, zip(starts, parts, strict=True), whole.last_updated, root)
    return replace(spread, revision=whole.revision)


def reformed(tree: Tree[T], root: Spread) -> T | Spread:
    """The root with every delta merged into the base."""
    ids = [one for part in tree.parts(root) for one in tree.finished(part, root).ids()]
    if len(ids) <= tree.threshold // 2:
        return formed(tree, tree.load(root), root)
    starts = balanced_starts(ids, *tree.ranges(len(ids)), tree.carried(root))
    settled = (tree.finished(part, root) for part in tree.parts(root))
    spread = _written(tree, _regrouped(tree, settled, starts), root.last_updated, root, keep={*root.files()})
    return spread if tree.keeps_seqs else replace(spread, revision=root.revision)


def _regrouped(tree: Tree[T], parts: Iterable[T], starts: Sequence[str]) -> Iterator[tuple[str, T]]:
    """Partitions of other ranges, in order."""
    number, pending = 0, list[T]()
    for part in parts:
        for at, ids in enumerate(cut(part.ids(), starts)):
            if not ids:
                continue
            while number < at:
                yield starts[number], tree.joined(pending).part(_ids(pending))
                number, pending = number + 1, []
            pending.append(part.part(ids))
    yield starts[number], tree.joined(pending).part(_ids(pending))


def _ids(parts: Iterable[T]) -> list[str]:
    return [one for part in parts for one in part.ids()]


def _written(
    tree: Tree[T],
    parts: Iterable[tuple[str, T]],
    last_updated: str,
    root: T | Spread | None,
    *,
    keep: set[str] | None = None,
) -> Spread:
    """Write partitions as they come. `keep`: files whose content stays in memory (None: all)."""
    gathered = tree.gathering()
    pieces: list[Piece] = []
    count = revision = 0
    numbered = enumerate(parts)
    while batch := list(islice(numbered, tree.writers)):
        pieces += in_parallel(lambda one: tree.put(f"{tree.stem}-{one[0]}", one[1][1], start=one[1][0]), batch)
        for _, (_, part) in batch:
            count += part.count
            revision += tree.joined([part]).revision
            gathered.add(part)
        if keep is not None:
            tree.pieces.keep(keep)
    size = sum(piece.size for piece in pieces)
    spread = Spread(tree.collection.name, count, size, revision, last_updated, tuple(pieces))
    if len(pieces) > INLINE_PARTITIONS:
        spread = replace(spread, partitions=(), directory=tree.put_directory(pieces))
    return gathered.completed(spread, is_split=not isinstance(root, Spread))
