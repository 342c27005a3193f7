"""The rebuild of one collection by many tasks: it knows files and counts, never the rows of a large table.

1. The roots are read, before the source is.
2. Each task reads a range of ids from the source and stages its rows (`staging.py`). What it leaves of a range that
   has too many ids is for the tasks of the next round (`collections/walks.py`).
3. A small table is assembled here, as in `Table.rebuild`. For a large one, the tasks write partitions, heads and parts
   of the indexes, exactly those that `Table.rebuild` would write.
4. One compare-and-swap of each root makes them the table, with what was folded in the meantime (`staging.Flip`).
5. The claims of unique values are restored.

An incremental rebuild begins otherwise:

1. Each task compares a range with the table (`incremental.py`), and stages what it had to read.
2. If nothing differs, the table is left as it is.
3. If what differs can be folded, and is little compared to the base, tasks make deltas of it (`deltas.py`).
4. Otherwise, the whole ranges are staged, and the rebuild continues as a full one.

Every task only writes files named by their content, and returns their names. A task that is repeated, or runs twice at
the same time, writes the same files or others; only the result of a finished task counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Protocol, TypeVar

from worm.collections import Collection, Heads, IdRange, division
from worm.errors import Invalid, Unavailable
from worm.tables.index import PART
from worm.tables.layout import T
from worm.tables.manifest import Manifest
from worm.tables.root import IndexPieces, Piece, Root
from worm.tables.table import Table
from worm.tables.tasks.deltas import DeltaFold, write_deltas
from worm.tables.tasks.incremental import ComparedRange, DeltaFile, delta_files
from worm.tables.tasks.staging import (
    BuiltPart,
    CatchUp,
    Flip,
    Kind,
    Measurement,
    Overtaken,
    PartPlan,
    Question,
    StagedFile,
    StagedRow,
    Staging,
    StoredFiles,
    build_part,
    catch_up,
    part_plans,
    questions,
    rebuild_documents,
    staged_base,
    starts_of,
    stored_files,
    survey,
    wish,
)
from worm.tables.tree import HeadsTree, ManifestTree, Tree

ROUNDS_MAX = 3
SLICED_BYTES = 32 << 20
"""Larger deltas are read once and divided."""
DAMAGED_SHOWN_MAX = 1_000
"""What is kept of what tasks report one by one; of the rest, only the number."""
Item = TypeVar("Item")
R = TypeVar("R")


class RebuildEngine(Protocol):
    """What runs the tasks of a rebuild of one collection."""

    most: int
    """How many tasks few rows get at most."""

    def run(self, work: Callable[[Collection, Item], R], items: Sequence[Item], about: str) -> list[R]:
        """One task per item; results in the order of the items."""

    def stage(self) -> list[StagedFile]:
        """The rows of the source (`RangeTasks.stage`)."""

    def compare(self, deltas: Sequence[DeltaFile]) -> list[ComparedRange]:
        """All ranges (`RangeTasks.compare`). `deltas`: large ones, which are read once and divided among the tasks."""

    def stage_whole(self, deltas: Sequence[DeltaFile], fresh: Sequence[StagedFile]) -> list[list[StagedFile] | None]:
        """The ranges that were compared, with what that has staged (`RangeTasks.stage_compared`)."""

    def indexes(self, files: Sequence[StagedFile]) -> dict[str, IndexPieces]:
        """The parts of every index, written."""

    def restore_claims(self, files: Sequence[StagedFile]) -> tuple[int, int]:
        """How many claims were written, corrected or removed, and how many values several documents have."""


@dataclass(frozen=True, slots=True)
class RebuildReport:
    """The result of a rebuild. `conflicts`: unique values that several documents have. `damaged`: by id, why histories
    cannot be continued; their documents are served. There are `damages` of them; `damaged` has the first ones. `taken`:
    how many rows an incremental rebuild took over from the table (None: it was a full one); it read the others, and
    `changed` of them differed. It leaves claims alone, unless their index is gone."""

    model: str
    entities: int
    live: int
    partitions: int
    claims_changed: int
    conflicts: int
    damaged: tuple[tuple[str, str], ...] = ()
    damages: int = 0
    taken: int | None = None
    changed: int = 0

    def summary(self) -> str:
        plural = "" if self.partitions == 1 else "s"
        shape = "one file" if self.partitions == 0 else f"{self.partitions} partition{plural}"
        conflicts = f", {self.conflicts} conflicts" if self.conflicts else ""
        rows = f"{self.live} rows of {self.entities} entities in {shape}"
        damaged = f", {self.damages} damaged" if self.damages else ""
        claims = f", {self.claims_changed} claims changed" if self.taken is None or self.claims_changed else ""
        if self.taken is not None:
            rows += f", {self.taken} taken over, {self.entities - self.taken} read, {self.changed} changed"
        return f"{self.model}: {rows}{claims}{conflicts}{damaged}"


class TableRebuild:
    """Rebuilds manifest, indexes, heads, claims and sentinel of one model from its documents and their history."""

    def __init__(self, collection: Collection, engine: RebuildEngine) -> None:
        self._collection = collection
        self._engine = engine
        definition = collection.definition
        if not definition.oplog and not definition.keeps_manifest:
            raise Invalid(f"{collection.name} has neither an oplog nor a manifest: there is nothing to rebuild")

    def run(self) -> RebuildReport:
        return self._in_rounds(lambda: _Round(self._collection, self._engine).run())

    def run_incrementally(self) -> RebuildReport:
        """Take over rows that a listing shows as unchanged. A table that cannot be used is rebuilt in full."""
        return self._in_rounds(lambda: _Round(self._collection, self._engine).run_incrementally())

    def _in_rounds(self, attempt: Callable[[], RebuildReport]) -> RebuildReport:
        for _ in range(ROUNDS_MAX):
            try:
                return attempt()
            except Overtaken:
                continue
        raise Unavailable(
            f"while the table of {self._collection.name} was rebuilt, it was removed or folded with an old schema "
            f"{ROUNDS_MAX} times",
            hint="end the sessions that were opened before the last push, then run the job again",
        )


class _Round:
    def __init__(self, collection: Collection, engine: RebuildEngine) -> None:
        self._engine = engine
        self._collection = collection
        self._table = Table(collection)
        self._staging = Staging(collection)
        definition = collection.definition
        self._manifest_start = self._table.manifest.root() if definition.keeps_manifest else None
        self._heads_start = self._table.heads.root() if definition.oplog else None
        self._files: list[StagedFile] = []

    def run(self) -> RebuildReport:
        self._files = sorted(self._engine.stage(), key=lambda file: file.first)
        self._publish()
        changed, conflicts = 0, 0
        if self._collection.definition.keeps_manifest:
            changed, conflicts = self._engine.restore_claims(self._files)
        entities, live = sum(file.count for file in self._files), sum(file.live for file in self._files)
        report = self._report(self._files, entities, live)
        return replace(report, claims_changed=changed, conflicts=conflicts)

    def run_incrementally(self) -> RebuildReport:
        if not self._is_usable():
            return self.run()
        deltas = delta_files([("manifest", self._manifest_start), ("heads", self._heads_start)], SLICED_BYTES)
        compared = ComparedRange.total(self._engine.compare(deltas))
        if compared.is_unsound:
            return self.run()
        lacks_files, claims = self._lacks_files(), (0, 0)
        lost = self._may_lack_claims(lacks_files=lacks_files)
        fold = DeltaFold(self._table, self._manifest_start, self._heads_start)
        if compared.changed and not lacks_files and not lost and fold.is_possible(compared):
            fold.run(compared, lambda plans: self._engine.run(write_deltas, plans, "fold"))
        elif compared.changed or lacks_files or lost:
            self._files = self._whole(deltas, compared)
            self._publish()
            claims = self._engine.restore_claims(self._files) if lost else claims
        else:
            self._follow()
        report = self._report(compared.files, compared.entities, compared.live)
        return replace(
            report,
            taken=compared.taken,
            changed=compared.changed,
            claims_changed=claims[0],
            conflicts=claims[1],
        )

    def _whole(self, deltas: Sequence[DeltaFile], compared: ComparedRange) -> list[StagedFile]:
        """All rows, staged after the comparison."""
        whole = list[StagedFile]()
        for files in self._engine.stage_whole(deltas, compared.files):
            if files is None:  # the table cannot be used any more
                raise Overtaken
            whole += files
        return whole

    def _is_usable(self) -> bool:
        """Whether there is a table whose rows can be taken over."""
        definition, manifest, heads = self._collection.definition, self._manifest_start, self._heads_start
        if definition.keeps_manifest and (manifest is None or self._table.manifest.is_stale(manifest)):
            return False
        return not definition.oplog or heads is not None

    def _lacks_files(self) -> bool:
        """Whether the base must be written although its rows are right: a comparison does not read its indexes and
        Parquet files."""
        manifest, root = self._table.manifest, self._manifest_start
        if root is None or not root.is_spread:
            return False
        has_indexes = manifest.has_all_indexes(root) and not any(files.is_whole() for files in self._table.indexes)
        return not has_indexes or manifest.lacks_files(root)

    def _may_lack_claims(self, *, lacks_files: bool) -> bool:
        """Whether files of a unique index are gone, maybe because somebody deleted its folder, in which the claims are.
        Nothing else would show that they are gone, too."""
        root, unique = self._manifest_start, [one for one in self._table.indexes if one.definition.unique]
        if any(one.file.read() is None for one in unique):
            return True
        if root is None or not root.is_spread or not lacks_files:
            return False
        return any(not root.index_files(one.definition.field) <= one.pieces.listed(f"{PART}-") for one in unique)

    def _follow(self) -> None:
        """Write what follows a table in one file, where it differs: indexes and sentinel."""
        table = self._table
        if self._collection.definition.keeps_manifest:
            manifest = table.manifest.root()
            if manifest is not None and not manifest.is_spread:
                table.follow()
        else:
            heads = table.heads.root()
            if heads is not None and not heads.is_spread:
                table.keep_sentinel(heads)

    def _publish(self) -> None:
        """Make the staged rows the table."""
        table, definition = self._table, self._collection.definition
        count, weight = sum(file.count for file in self._files), sum(file.weight for file in self._files)
        large = set[Kind]()
        if definition.keeps_manifest and not _is_whole(table.manifest, self._manifest_start, count, weight):
            large.add("manifest")
        if definition.oplog and not _is_whole(table.heads, self._heads_start, count, 0):
            large.add("heads")
        parts = self._build(large, count) if large else []
        if definition.keeps_manifest:
            self._flip_manifest(parts) if "manifest" in large else self._whole_manifest()
        if definition.oplog:
            self._flip_heads(parts) if "heads" in large else self._whole_heads()

    def _report(self, files: Sequence[StagedFile], entities: int, live: int) -> RebuildReport:
        root = self._table.manifest.file.held.value
        partitions = 0 if root is None or not root.is_spread else len(self._table.manifest.partitions(root))
        damaged = tuple(islice((one for file in files for one in file.damaged), DAMAGED_SHOWN_MAX))
        damages = sum(file.damages for file in files)
        return RebuildReport(self._collection.name, entities, live, partitions, 0, 0, damaged, damages)

    # Small tables

    def _whole_manifest(self) -> None:
        if self._collection.definition.oplog:
            self._table.rebuild_manifest([row.change for row in self._rows()])
        else:
            rebuild_documents(self._table, self._manifest_start, self._rows())

    def _whole_heads(self) -> None:
        self._table.rebuild_heads([row.change for row in self._rows()])

    def _rows(self) -> Iterator[StagedRow]:
        for file in self._files:
            yield from self._staging.rows(file.file)

    # Large tables

    def _build(self, large: set[Kind], count: int) -> list[BuiltPart]:
        table, wishes = self._table, []
        if "manifest" in large:
            wishes.append(wish("manifest", table.manifest, self._manifest_start, self._files))
        if "heads" in large:
            wishes.append(wish("heads", table.heads, self._heads_start, self._files))
        tasks = division.tasks_for(count, self._engine.most)
        groups = division.grouped(questions(self._files, wishes), tasks)
        answers = self._engine.run(_measure, groups, "ranges")
        starts = starts_of(wishes, [answer for group in answers for answer in group])
        plans = [plan for kind, ids in starts.items() for plan in part_plans(kind, ids, self._files, self._stored)]
        work = [
            group for kind in starts for group in division.grouped([plan for plan in plans if plan.kind == kind], tasks)
        ]
        built = self._engine.run(_build, work, "partitions and heads")
        return [part for group in built for part in group]

    def _stored(self, within: IdRange) -> StoredFiles | None:
        is_needed = not self._collection.definition.oplog
        return stored_files(self._table, self._manifest_start, within) if is_needed else None

    def _flip_manifest(self, parts: Sequence[BuiltPart]) -> None:
        table = self._table
        ours = [part for part in parts if part.kind == "manifest"]
        indexes = self._engine.indexes(self._files)
        base = staged_base(table.manifest.layout, ours, indexes)
        differs = any(part.differs for part in ours)
        compared = partial(self._catch_up, "manifest", table.manifest)
        flip = Flip(table.manifest, base, self._manifest_start, compared, differs)
        flip.run()
        table.follow()
        if flip.refold:
            table.fold_documents(flip.refold)

    def _flip_heads(self, parts: Sequence[BuiltPart]) -> None:
        heads = self._table.heads
        base = staged_base(heads.layout, [part for part in parts if part.kind == "heads"])
        compared = partial(self._catch_up, "heads", heads)
        self._table.keep_sentinel(Flip(heads, base, self._heads_start, compared).run())

    def _catch_up(self, kind: Kind, tree: ManifestTree | HeadsTree, root: Root[Manifest | Heads]) -> CatchUp:
        if root.whole is None:
            return self._compared(kind, tree.partitions(root))
        return catch_up(self._staging, self._table, root.whole, [file.file for file in self._files], IdRange())

    def _compared(self, kind: Kind, pieces: Sequence[Piece]) -> CatchUp:
        starts = ["", *(piece.start for piece in pieces[1:])]
        ranges = [IdRange(start, end) for start, end in zip(starts, [*starts[1:], None], strict=True)]
        items = [
            _Comparison(kind, piece, within, Staging.within(self._files, within))
            for piece, within in zip(pieces, ranges, strict=True)
        ]
        found = self._engine.run(_compare, items, "catch up")
        deltas = tuple(delta for one in found for delta in one.deltas)
        return CatchUp(deltas, tuple(entity_id for one in found for entity_id in one.ids))


def _is_whole(tree: Tree[T], root: Root[T] | None, count: int, weight: int) -> bool:
    return tree.layout.is_whole(count, weight)


# What tasks do


def _measure(collection: Collection, asked: Sequence[Question]) -> list[Measurement]:
    staging = Staging(collection)
    return [survey(staging, question) for question in asked]


def _build(collection: Collection, plans: Sequence[PartPlan]) -> list[BuiltPart]:
    """Build neighboring parts together, so that a staged file is read once for many of them."""
    staging, table = Staging(collection), Table(collection)
    return [build_part(staging, table, plan) for plan in plans]


@dataclass(frozen=True, slots=True)
class _Comparison:
    """A partition of the table to compare with the staged files of its range."""

    kind: Kind
    piece: Piece
    within: IdRange
    files: tuple[str, ...]


def _compare(collection: Collection, comparison: _Comparison) -> CatchUp:
    staging, table = Staging(collection), Table(collection)
    tree = table.manifest if comparison.kind == "manifest" else table.heads
    (part,) = tree.pieces.get([comparison.piece.file])
    return catch_up(staging, table, part, comparison.files, comparison.within)
