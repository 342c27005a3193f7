"""What an incremental rebuild has found, as deltas of the table, as if the workers had folded it.

Tasks write the deltas, and one compare-and-swap of each root adds them. So unchanged rows, their Parquet files and the
indexes are not written again. As after other folds, a later merge brings the deltas into the base; then the files are
those of a full rebuild.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from worm.collections import Collection, Heads
from worm.errors import Unavailable
from worm.tables.layout import PARTITION_BYTES, Edit, T
from worm.tables.manifest import Manifest
from worm.tables.root import LEVEL_MAX, Piece, Root
from worm.tables.table import Table
from worm.tables.tasks.incremental import ComparedRange
from worm.tables.tasks.staging import Overtaken, StagedFile, Staging
from worm.tables.tree import BASE_SHARE, DELTAS_MAX, Tree

FOLDED_BYTES_MAX = 256 << 20
"""More than this is not left in deltas: every reader of the table reads them."""
DELTA_BYTES = PARTITION_BYTES // 2
NUMBERS_MAX = 5


def may_fold(size: int, base: int) -> bool:
    """Whether what differs can be left in deltas of this size, beside a base. Otherwise, the base is written again."""
    return size <= FOLDED_BYTES_MAX and size * BASE_SHARE < base


@dataclass(frozen=True, slots=True)
class DeltaPlan:
    """The staged files whose rows make one delta. `number`: of the fold, for a model without an oplog."""

    number: int
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FoldedFiles:
    """The deltas that one task wrote."""

    manifest: Piece | None
    heads: Piece | None
    last_updated: str


Write = Callable[[list[DeltaPlan]], list[FoldedFiles]]
"""Runs `write_deltas` for each plan."""


class DeltaFold:
    """Adds what differs to a table. The roots are those of the start."""

    def __init__(self, table: Table, manifest: Root[Manifest] | None, heads: Root[Heads] | None) -> None:
        self._table = table
        self._manifest, self._heads = manifest, heads

    def is_possible(self, compared: ComparedRange) -> bool:
        """Whether deltas are enough: then the base stays as it is."""
        roots = [root for root in (self._manifest, self._heads) if root is not None]
        if compared.needs_rewrite or not all(root.is_spread for root in roots):
            return False
        size = compared.weight + roots[0].delta_size
        return may_fold(size, roots[0].base_size)

    def run(self, compared: ComparedRange, write: Write) -> None:
        groups = [*_groups(compared.files)]
        if self._table.collection.definition.oplog:
            made = write([DeltaPlan(0, group) for group in groups])
            if self._manifest is not None:
                _publish(self._table.manifest, [(one.manifest, one.last_updated) for one in made])
            _publish(self._table.heads, [(one.heads, one.last_updated) for one in made])
            if self._manifest is not None and not self._table.is_kept:  # no fold merges its deltas
                self._table.tidy(bytes_max=self._table.TIDY_BYTES_MAX)
            self._table.tidy_folded(bytes_max=self._table.TIDY_BYTES_MAX)
            return
        refold = self._fold_documents(groups, write)
        self._table.tidy(bytes_max=self._table.TIDY_BYTES_MAX)
        if refold:
            self._table.fold_documents(refold)

    def _fold_documents(self, groups: Sequence[tuple[str, ...]], write: Write) -> set[str]:
        """For a model without an oplog, whose deltas have the number of their fold. Documents that others have folded
        since the start may be newer than what was read: they must be folded again."""
        tree, start = self._table.manifest, self._manifest
        assert start is not None
        for step in range(NUMBERS_MAX):
            root = _spread(tree.root())
            number = root.revision + 4**step  # if others fold all the time, leave room for them
            made = write([DeltaPlan(number, group) for group in groups])
            found = _publish(tree, [(one.manifest, one.last_updated) for one in made], number, start)
            if found is None:
                continue
            ours = {one.manifest.file for one in made if one.manifest is not None}
            known = {*ours, *(piece.file for piece in start.deltas)}
            others = tree.pieces.get([piece.file for piece in found.deltas if piece.file not in known])
            return {one for delta in others for one in delta.ids()}
        raise Unavailable(
            f"others folded {self._table.collection.name} all the time",
            hint="try again, or run the job with --full",
        )


def _groups(files: Sequence[StagedFile]) -> Iterator[tuple[str, ...]]:
    """Files whose rows make one delta of a good size."""
    group, weight = list[str](), 0
    for file in files:
        if group and weight + file.weight > DELTA_BYTES:
            yield tuple(group)
            group, weight = [], 0
        group.append(file.file)
        weight += file.weight
    if group:
        yield tuple(group)


def write_deltas(collection: Collection, plan: DeltaPlan) -> FoldedFiles:
    """What a task does."""
    table, staging = Table(collection), Staging(collection)
    rows = [row for file in plan.files for row in staging.rows(file)]
    name, definition = collection.name, collection.definition
    if not definition.oplog:
        read = Manifest.of_documents(name, {row.id: row.read for row in rows}, plan.number)
        return FoldedFiles(_delta(table.manifest, read), None, read.last_updated)
    changes = [row.change for row in rows if row.head is not None]
    manifest = Manifest(name).folded(changes) if definition.keeps_manifest else None
    heads = Heads(name).folded(changes)
    return FoldedFiles(
        None if manifest is None else _delta(table.manifest, manifest),
        None if heads is None else _delta(table.heads, heads),
        max((row.updated for row in rows if row.head is not None), default=""),
    )


def _delta(tree: Tree[T], part: T) -> Piece:
    """Write a delta. Deltas that are too large to be merged with each other have a level of their own: at the level of
    the small ones, they would keep these from being merged, too."""
    piece = tree.put("delta", part)
    return replace(piece, level=LEVEL_MAX) if piece.size * DELTAS_MAX > PARTITION_BYTES else piece


def _publish(
    tree: Tree[T], deltas: Sequence[tuple[Piece | None, str]], number: int = 0, start: Root[T] | None = None
) -> Root[T] | None:
    """The root with these deltas; None if others have folded up to the number. `Overtaken` if the table is no longer
    one that deltas can be added to. `start`: the root whose base it must still have: what others have folded since then
    must not be hidden in a new base, below older rows."""

    def change(root: Root[T] | None) -> Edit[T] | None:
        changed = found = _spread(root)
        if tree.is_stale(found) or (start is not None and found.base != start.base):
            raise Overtaken
        if number and found.revision >= number:
            return None
        for piece, last_updated in deltas:
            if piece is not None:
                changed = changed.with_delta(piece, last_updated, number or found.revision) or changed
        return None if changed is found else Edit(changed, "folds")

    stored = tree.publish(change)
    named = set[str]() if stored is None else {piece.file for piece in stored.deltas}
    return stored if all(piece is None or piece.file in named for piece, _ in deltas) else None


def _spread(root: Root[T] | None) -> Root[T]:
    if root is None or not root.is_spread:
        raise Overtaken
    return root
