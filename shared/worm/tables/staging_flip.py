"""The flip of a rebuild by many processes: one compare-and-swap makes the new base the table.

What was folded since the job began is not in the base, and must not be lost:
- deltas that the root did not have at the beginning stay deltas;
- where the base itself is another than at the beginning (deltas were merged into it, or the table was whole), the rows
  that it knows newer than the staged ones are added as a delta;
- a model without oplog has no seqs that tell which of two rows is newer: documents that were folded meanwhile are
  folded once more after the flip;
- where the root was taken away meanwhile, or is now one of another schema, nothing tells what was folded: `Overtaken`,
  and the rebuild starts again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic

from worm.tables.build import empty_manifest
from worm.tables.index import Index
from worm.tables.keyed import T
from worm.tables.manifest import Manifest, ReadRow
from worm.tables.spread import INLINE_PARTITIONS, IndexPieces, Spread
from worm.tables.staging import StagedRow
from worm.tables.staging_parts import BuiltPart, CatchUp
from worm.tables.table import Table
from worm.tables.tree import Tree


def is_whole(tree: Tree[T], root: T | Spread | None, known: int) -> bool:
    """Is a table that knows so many ids, deleted ones too, one file? As `forming.formed` decides."""
    stays = isinstance(root, Spread) and known > tree.threshold // 2
    return known <= tree.threshold and not stays


def new_base(
    tree: Tree[T], parts: Sequence[BuiltPart], indexes: dict[str, IndexPieces] | None = None, fields: Sequence[str] = ()
) -> Spread:
    """The root that names these files; of a model without oplog it has no revision yet."""
    ordered = sorted(parts, key=lambda part: part.number)
    pieces = tuple(part.piece for part in ordered)
    spread = Spread(
        tree.collection.name,
        count=sum(piece.count for piece in pieces),
        base_size=sum(piece.size for piece in pieces),
        revision=sum(part.revision for part in ordered),
        last_updated=max((part.last_updated for part in ordered), default=""),
        partitions=pieces,
        indexes=indexes or {},
        fields=tuple(fields),
        oplog=tree.collection.definition.oplog,
    )
    if len(pieces) > INLINE_PARTITIONS:
        spread = replace(spread, partitions=(), directory=tree.put_directory(pieces))
    return spread


class Overtaken(Exception):
    """Nothing tells what was folded since the job began."""


@dataclass
class Flip(Generic[T]):
    """One flip. `start`: the root when the job began, before anything was read from the source; `catch_up` compares a
    whole table, or the partitions of a root, with what is staged; `stub` empties the files of the indexes, and is told
    whether the table becomes a spread one."""

    tree: Tree[T]
    base: Spread
    start: T | Spread | None
    catch_up: Callable[[T | Spread], CatchUp]
    differs: bool = True
    stub: Callable[[bool], None] = lambda is_split: None
    refold: set[str] = field(default_factory=set)
    _caught: tuple[object, CatchUp] | None = None

    def run(self) -> Spread:
        """`refold` then has the ids of documents that must be folded once more."""
        stored = self.tree.file.update(self._changed)
        assert isinstance(stored, Spread)
        return stored

    def _changed(self, root: T | Spread | None) -> Spread | None:
        rest, caught = self._meanwhile(root)
        self.stub(not isinstance(root, Spread))
        wanted = replace(self.base, deltas=(*rest.deltas, *caught.deltas))
        if root is not None and wanted.deltas:
            wanted = replace(wanted, last_updated=max(wanted.last_updated, root.last_updated))
        self.refold = {*rest.ids, *caught.ids}
        if not self.tree.keeps_seqs:
            wanted = self._counted(wanted, root)
        return None if wanted == root else wanted

    def _counted(self, wanted: Spread, root: T | Spread | None) -> Spread:
        """A model without oplog carries its revision on, and counts when something changes."""
        if root is None:
            return replace(wanted, revision=1)
        is_new = self.differs or root != self.start or root.last_updated < wanted.last_updated
        newest = max(wanted.last_updated, root.last_updated)
        return replace(wanted, revision=root.revision + is_new, last_updated=newest)

    def _meanwhile(self, root: T | Spread | None) -> tuple[CatchUp, CatchUp]:
        """Deltas that came since, and what a base that is not the one of the start knows newer."""
        if root == self.start:
            return CatchUp(), CatchUp()
        if root is None or self.tree.is_stale(root):
            raise Overtaken
        start = self.start
        if not isinstance(root, Spread):
            return CatchUp(), self._compared(root, root)
        base = (root.partitions, root.directory)
        if isinstance(start, Spread) and base == (start.partitions, start.directory):
            known = {piece.file for piece in start.deltas}
            return self._kept(root, known), CatchUp()
        return self._kept(root, set()), self._compared(root, base)

    def _kept(self, root: Spread, known: set[str]) -> CatchUp:
        rest = tuple(piece for piece in root.deltas if piece.file not in known)
        if self.tree.keeps_seqs:
            return CatchUp(rest)
        ids = (one for delta in self.tree.pieces.get([piece.file for piece in rest]) for one in delta.ids())
        return CatchUp(rest, tuple(ids))

    def _compared(self, root: T | Spread, base: object) -> CatchUp:
        if self._caught is None or self._caught[0] != base:
            self._caught = base, self.catch_up(root)
        return self._caught[1]


def stub_indexes(table: Table, base: Spread, *, is_split: bool) -> None:
    """Before the flip: whoever reads an index from now on asks the table's root."""
    for files in table.indexes:
        definition = files.definition
        kind, unique = definition.type, definition.unique
        revision = base.revision if table.manifest.keeps_seqs else 0
        stub = Index(base.model, definition.field, kind, unique, base.last_updated, revision, {})
        files.stub(stub, is_split=is_split)


def rebuild_documents(table: Table, start: Manifest | Spread | None, rows: Iterable[StagedRow]) -> None:
    """A whole manifest of a model without oplog from staged rows. What was folded since they were read is folded once
    more."""
    read = {row.id: row.read for row in rows}
    collection, refold = table.collection, set[str]()

    def anew(stored: Manifest | None) -> Manifest | None:
        refold.clear()
        carry = stored or empty_manifest(collection)
        known = {*carry.entities, *carry.etags}
        if table.manifest.file.held.value != start:
            refold.update(one for one in {*known, *read} if carry.etags.get(one) != read.get(one, ABSENT).etag)
        if table.manifest.is_stale(carry):
            carry = replace(empty_manifest(collection), revision=carry.revision, last_updated=carry.last_updated)
        built = carry.with_documents({**dict.fromkeys(known, ABSENT), **read}) or carry
        return None if built is stored else built

    table.manifest.update(anew)
    table.follow()
    if refold:
        table.fold_documents(refold)


ABSENT = ReadRow(None, None)
