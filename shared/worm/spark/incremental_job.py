"""The incremental part of a rebuild, as the driver sees it: which ranges differ from the table, and what becomes of it.

1. Each task compares a range with the table (`incremental.py`), and stages what it had to read.
2. If nothing differs, the table is left as it is.
3. If what differs can be folded, and is little compared to the base, tasks make deltas of it, and one compare-and-swap
   of each root adds them. So unchanged rows, their Parquet files and the indexes are not written again. As after other
   folds, a later merge brings the deltas into the base; then the files are those of a full rebuild.
4. Otherwise, the whole ranges are staged, and the rebuild continues as a full one (`rebuild_job.py`).

A task reads the deltas of the table for its range. If they are large, other tasks read each of them once, and Spark
brings their parts to the ranges (*slices*), as it does with the rows of an inventory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Literal, TypeVar

from worm.collections import Heads, IdRange
from worm.errors import Corrupt, Unavailable
from worm.spark.cluster import JobSpec
from worm.spark.incremental import Compared, Comparing, Slices, Unsound, staged_whole
from worm.spark.inventory_frames import Source, shown_by_range
from worm.spark.listings import Crowded, Listing, Shown, joined
from worm.spark.plan import DELTA_BYTES, may_fold
from worm.spark.rebuild_tasks import run
from worm.spark.staging import Kind, Overtaken, StagedFile, Staging, staged_within
from worm.tables import (
    DELTAS_MAX,
    LEVEL_MAX,
    PARTITION_BYTES,
    TIDY_BYTES_MAX,
    Edit,
    Manifest,
    Piece,
    Root,
    T,
    Table,
    Tree,
    cut,
)

if TYPE_CHECKING:
    from pyspark import RDD
    from pyspark.sql import SparkSession

SLICED_BYTES = 32 << 20
"""Larger deltas are read once and divided."""
NUMBERS_MAX = 5
R = TypeVar("R")
Hint = tuple[Literal["shown"], str, Shown] | tuple[Kind, bytes] | tuple[Literal["unsound"]]
"""What a task gets for its range: what an inventory shows of an entity, a part of a delta, or that a delta is gone or
damaged."""


@dataclass(frozen=True, slots=True)
class FoldedFiles:
    """The deltas that one task wrote."""

    manifest: Piece | None
    heads: Piece | None
    last_updated: str


class Incremental:
    """`ranges`: what each task compares. `source`: an inventory in place of listings."""

    def __init__(
        self,
        spark: SparkSession,
        spec: JobSpec,
        table: Table,
        roots: tuple[Root[Manifest] | None, Root[Heads] | None],
        ranges: Sequence[IdRange],
        source: Source | None,
    ) -> None:
        self._spark = spark
        self._spec = spec
        self._table = table
        self._manifest, self._heads = roots
        self._ranges = ranges
        self._source = source

    # Comparing

    def compare(self) -> Compared:
        hints = self._slices()
        if self._source is not None:
            shown = shown_by_range(self._spark, self._spec, self._source, self._ranges).map(_shown_hint)
            hints = shown if hints is None else hints.union(shown)
        work = partial(_compare, self._spec, self._source is not None, self._is_sliced)
        return Compared.total(self._by_range(work, [(one, ()) for one in self._ranges], hints, "compare"))

    def whole(self, compared: Compared) -> list[StagedFile] | None:
        """All rows, staged after the comparison; None: the table cannot be used any more."""
        items = [(one, staged_within(compared.files, one)) for one in self._ranges]
        staged = self._by_range(partial(_stage_whole, self._spec, self._is_sliced), items, self._slices(), "stage")
        if any(files is None for files in staged):
            return None
        return [file for files in staged if files is not None for file in files]

    def _by_range(
        self, work: Callable[[Item, Iterable[Hint]], R], items: Sequence[Item], hints: RDD[Hinted] | None, about: str
    ) -> list[R]:
        """One task per range, with the hints of the range."""
        spark, about = self._spark, f"{self._spec.model}: {about}"
        if hints is None:
            return run(spark, partial(_without_hints, work), items, about)
        spark.sparkContext.setJobDescription(about)
        every = spark.sparkContext.broadcast(items)
        try:
            parted = hints.partitionBy(len(items), _itself)
            return parted.mapPartitionsWithIndex(
                lambda number, found: [work(every.value[number], (hint for _, hint in found))]
            ).collect()
        finally:
            every.destroy()

    # Slices of deltas

    @property
    def _is_sliced(self) -> bool:
        sizes = (root.delta_size for root in (self._manifest, self._heads) if root is not None)
        return sum(sizes) > SLICED_BYTES

    def _slices(self) -> RDD[Hinted] | None:
        if not self._is_sliced:
            return None
        deltas: list[tuple[Kind, str]] = []
        if self._manifest is not None:
            deltas += [("manifest", piece.file) for piece in self._manifest.deltas]
        if self._heads is not None:
            deltas += [("heads", piece.file) for piece in self._heads.deltas]
        starts = [one.start for one in self._ranges]
        return self._spark.sparkContext.parallelize(deltas, len(deltas)).flatMap(partial(_slice, self._spec, starts))

    # Folding

    def can_fold(self, compared: Compared) -> bool:
        """Whether deltas are enough: then the base stays as it is."""
        roots = [root for root in (self._manifest, self._heads) if root is not None]
        if compared.needs_rewrite or not all(root.is_spread for root in roots):
            return False
        size = compared.weight + roots[0].delta_size
        return may_fold(size, roots[0].base_size)

    def fold(self, compared: Compared) -> None:
        """Add what differs to the table."""
        groups, about = [*_groups(compared.files)], f"{self._spec.model}: fold"
        if self._spec.collection().definition.oplog:
            made = run(self._spark, partial(_fold, self._spec, 0), groups, about)
            if self._manifest is not None:
                _publish(self._table.manifest, [(one.manifest, one.last_updated) for one in made])
            _publish(self._table.heads, [(one.heads, one.last_updated) for one in made])
            if self._manifest is not None and not self._table.is_kept:  # no fold merges its deltas
                self._table.tidy(bytes_max=TIDY_BYTES_MAX)
            self._table.tidy_folded(bytes_max=TIDY_BYTES_MAX)
            return
        refold = self._fold_documents(groups, about)
        self._table.tidy(bytes_max=TIDY_BYTES_MAX)
        if refold:
            self._table.fold_documents(refold)

    def _fold_documents(self, groups: Sequence[Sequence[str]], about: str) -> set[str]:
        """For a model without an oplog, whose deltas have the number of their fold. Documents that others have folded
        since the start may be newer than what was read: they must be folded again."""
        tree, start = self._table.manifest, self._manifest
        assert start is not None
        for step in range(NUMBERS_MAX):
            root = _spread(tree.root())
            number = root.revision + 4**step  # if others fold all the time, leave room for them
            made = run(self._spark, partial(_fold, self._spec, number), groups, about)
            found = _publish(tree, [(one.manifest, one.last_updated) for one in made], number, start)
            if found is None:
                continue
            ours = {one.manifest.file for one in made if one.manifest is not None}
            known = {*ours, *(piece.file for piece in start.deltas)}
            others = tree.pieces.get([piece.file for piece in found.deltas if piece.file not in known])
            return {one for delta in others for one in delta.ids()}
        raise Unavailable(
            f"others folded {self._spec.model} all the time", hint="try again, or run the job with --full"
        )


# What tasks do

Item = tuple[IdRange, tuple[str, ...]]
Hinted = tuple[int, Hint]


def _itself(number: int) -> int:
    return number


def _without_hints(work: Callable[[Item, Iterable[Hint]], R], item: Item) -> R:
    return work(item, ())


def _shown_hint(found: tuple[int, tuple[str, Shown]]) -> Hinted:
    return found[0], ("shown", *found[1])


def _slice(spec: JobSpec, starts: Sequence[str], delta: tuple[Kind, str]) -> Iterator[Hinted]:
    kind, file = delta
    table = Table(spec.collection())
    tree = table.manifest if kind == "manifest" else table.heads
    try:
        (part,) = tree.pieces.get([file])
    except Corrupt:
        yield 0, ("unsound",)
        return
    for number, ids in enumerate(cut(part.ids(), starts)):
        if ids:
            yield number, (kind, part.part(ids).encode())


def _sorted_out(hints: Iterable[Hint], *, is_sliced: bool, is_listed: bool) -> tuple[Listing | None, Slices | None]:
    manifest, heads = list[Manifest](), list[Heads]()

    def shown() -> Iterator[tuple[str, Shown]]:
        for hint in hints:
            if hint[0] == "shown":
                yield hint[1], hint[2]
            elif hint[0] == "unsound":
                raise Unsound
            elif hint[0] == "manifest":
                manifest.append(Manifest.decode(hint[1], "a slice of a delta"))
            else:
                heads.append(Heads.decode(hint[1], "a slice of a delta"))

    listing = joined(shown())
    return listing if is_listed else None, Slices(tuple(manifest), tuple(heads)) if is_sliced else None


def _compare(spec: JobSpec, is_listed: bool, is_sliced: bool, item: Item, hints: Iterable[Hint]) -> Compared:
    try:
        listing, slices = _sorted_out(hints, is_sliced=is_sliced, is_listed=is_listed)
    except (Unsound, Crowded):
        return Compared(is_unsound=True)
    return Comparing(Table(spec.collection()), item[0], listing, slices).run(Staging(spec.collection()))


def _stage_whole(spec: JobSpec, is_sliced: bool, item: Item, hints: Iterable[Hint]) -> list[StagedFile] | None:
    try:
        _, slices = _sorted_out(hints, is_sliced=is_sliced, is_listed=False)
    except Unsound:
        return None
    return staged_whole(Staging(spec.collection()), Table(spec.collection()), *item, slices)


def _groups(files: Sequence[StagedFile]) -> Iterator[list[str]]:
    """Files whose rows make one delta of a good size."""
    group, weight = list[str](), 0
    for file in files:
        if group and weight + file.weight > DELTA_BYTES:
            yield group
            group, weight = [], 0
        group.append(file.file)
        weight += file.weight
    if group:
        yield group


def _fold(spec: JobSpec, number: int, files: Sequence[str]) -> FoldedFiles:
    """Write the deltas of staged files. `number`: of the fold, for a model without an oplog."""
    collection, table, staging = spec.collection(), Table(spec.collection()), Staging(spec.collection())
    rows = [row for file in files for row in staging.rows(file)]
    name, definition = collection.name, collection.definition
    if not definition.oplog:
        read = Manifest.of_documents(name, {row.id: row.read for row in rows}, number)
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
