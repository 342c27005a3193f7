"""The rebuild of one collection, as the driver sees it: it knows files and counts, never the rows of a large table.

1. The roots are read, before the source is.
2. Each task reads a range of ids from the source and stages its rows (`staging.py`). What it leaves of a range that
   has too many ids is for the tasks of the next round (`collections/walks.py`).
3. A small table is assembled by the driver, as in `Table.rebuild`. For a large one, the tasks write partitions, heads
   and parts of the indexes, exactly those that `Table.rebuild` would write.
4. One compare-and-swap of each root makes them the table, with what was folded in the meantime (`staging.Flip`).
5. The claims of unique values are restored.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from worm.collections import Heads, IdRange
from worm.errors import Invalid, Unavailable
from worm.spark.cluster import JobSpec, job_specs, parallelism, spark_session
from worm.spark.incremental_job import Incremental
from worm.spark.inventory_frames import Source
from worm.spark.plan import DAMAGED_SHOWN_MAX, grouped, tasks_for
from worm.spark.rebuild_claims import ClaimCounts, restore_claims
from worm.spark.rebuild_index import build_indexes
from worm.spark.rebuild_tasks import (
    Comparison,
    ask,
    build,
    compare,
    for_spec,
    run,
    run_rounds,
    stage,
)
from worm.spark.shares import compared_ranges, planned_ranges
from worm.spark.staging import (
    BuiltPart,
    CatchUp,
    Flip,
    Kind,
    Overtaken,
    StagedFile,
    StagedRow,
    Staging,
    StoredFiles,
    catch_up,
    part_plans,
    questions,
    rebuild_documents,
    staged_base,
    staged_within,
    starts_of,
    stored_files,
    wish,
)
from worm.tables import PART, HeadsTree, Manifest, ManifestTree, Piece, Root, T, Table, Tree

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


ROUNDS_MAX = 3


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


def rebuild_models(url: str, endpoint_url: str | None, models: Sequence[str]) -> list[RebuildReport]:
    """Runs in the session of this process, or in a new local one with this Python."""
    specs = job_specs(url, endpoint_url, models)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = spark_session("worm-rebuild")
    return [rebuild(spark, spec) for spec in specs]


def rebuild(spark: SparkSession, spec: JobSpec) -> RebuildReport:
    """Rebuild manifest, indexes, heads, claims and sentinel of one model from its documents and their history."""
    return _in_rounds(spec, lambda: _Rebuild(spark, spec).run())


def rebuild_incrementally(spark: SparkSession, spec: JobSpec, source: Source | None = None) -> RebuildReport:
    """Rebuild manifest, indexes, heads and sentinel of one model: rows that a listing shows as unchanged are taken over
    from the table. `source`: an inventory in place of the listing. A table that cannot be used is rebuilt in full."""
    return _in_rounds(spec, lambda: _Rebuild(spark, spec).run_incrementally(source))


def _in_rounds(spec: JobSpec, attempt: Callable[[], RebuildReport]) -> RebuildReport:
    definition = spec.collection().definition
    if not definition.oplog and not definition.keeps_manifest:
        raise Invalid(f"{spec.model} has neither an oplog nor a manifest: there is nothing to rebuild")
    for _ in range(ROUNDS_MAX):
        try:
            return attempt()
        except Overtaken:
            continue
    raise Unavailable(
        f"while the table of {spec.model} was rebuilt, it was removed or folded with an old schema {ROUNDS_MAX} times",
        hint="end the sessions that were opened before the last push, then run the job again",
    )


class _Rebuild:
    def __init__(self, spark: SparkSession, spec: JobSpec) -> None:
        self._spark = spark
        self._spec = spec
        self._collection = spec.collection()
        self._table = Table(self._collection)
        self._staging = Staging(self._collection)
        definition = self._collection.definition
        self._manifest_start = self._table.manifest.root() if definition.keeps_manifest else None
        self._heads_start = self._table.heads.root() if definition.oplog else None
        self._files: list[StagedFile] = []

    def run(self) -> RebuildReport:
        spark, spec = self._spark, self._spec
        ranges = planned_ranges(spark, spec)
        staged = run_rounds(spark, for_spec(stage, spec), ranges, f"{spec.model}: stage")
        self._files = sorted((file for one in staged for file in one.what), key=lambda file: file.first)
        self._publish()
        claims = restore_claims(spark, spec, self._files) if self._collection.definition.keeps_manifest else None
        return replace(
            self._report(self._files, sum(file.count for file in self._files), sum(file.live for file in self._files)),
            claims_changed=0 if claims is None else claims.changed,
            conflicts=0 if claims is None else claims.conflicts,
        )

    def run_incrementally(self, source: Source | None) -> RebuildReport:
        if not self._is_usable():
            return self.run()
        roots = self._manifest_start, self._heads_start
        ranges = compared_ranges(self._spark, self._spec)
        changes = Incremental(self._spark, self._spec, self._table, roots, ranges, source)
        compared = changes.compare()
        if compared.is_unsound:
            return self.run()
        lacks_files, claims = self._lacks_files(), ClaimCounts(0, 0)
        lost = self._may_lack_claims(lacks_files=lacks_files)
        if compared.changed and not lacks_files and not lost and changes.can_fold(compared):
            changes.fold(compared)
        elif compared.changed or lacks_files or lost:
            staged = changes.whole(compared)
            if staged is None:
                raise Overtaken
            self._files = staged
            self._publish()
            claims = restore_claims(self._spark, self._spec, staged) if lost else claims
        else:
            self._follow()
        report = self._report(compared.files, compared.entities, compared.live)
        return replace(
            report,
            taken=compared.taken,
            changed=compared.changed,
            claims_changed=claims.changed,
            conflicts=claims.conflicts,
        )

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
        return RebuildReport(self._spec.model, entities, live, partitions, 0, 0, damaged, damages)

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
        table, spark, spec = self._table, self._spark, self._spec
        wishes = []
        if "manifest" in large:
            wishes.append(wish("manifest", table.manifest, self._manifest_start, self._files))
        if "heads" in large:
            wishes.append(wish("heads", table.heads, self._heads_start, self._files))
        tasks = tasks_for(count, parallelism(spark))
        groups = grouped(questions(self._files, wishes), tasks)
        answers = run(spark, for_spec(ask, spec), groups, f"{spec.model}: ranges")
        starts = starts_of(wishes, [answer for group in answers for answer in group])
        plans = [plan for kind, ids in starts.items() for plan in part_plans(kind, ids, self._files, self._stored)]
        work = [group for kind in starts for group in grouped([plan for plan in plans if plan.kind == kind], tasks)]
        built = run(spark, for_spec(build, spec), work, f"{spec.model}: partitions and heads")
        return [part for group in built for part in group]

    def _stored(self, within: IdRange) -> StoredFiles | None:
        is_needed = not self._collection.definition.oplog
        return stored_files(self._table, self._manifest_start, within) if is_needed else None

    def _flip_manifest(self, parts: Sequence[BuiltPart]) -> None:
        table = self._table
        ours = [part for part in parts if part.kind == "manifest"]
        indexes = build_indexes(self._spark, self._spec, self._files)
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
            Comparison(kind, piece, within, staged_within(self._files, within))
            for piece, within in zip(pieces, ranges, strict=True)
        ]
        found = run(self._spark, for_spec(compare, self._spec), items, f"{self._spec.model}: catch up")
        deltas = tuple(delta for one in found for delta in one.deltas)
        return CatchUp(deltas, tuple(entity_id for one in found for entity_id in one.ids))


def _is_whole(tree: Tree[T], root: Root[T] | None, count: int, weight: int) -> bool:
    return tree.layout.is_whole(count, weight)
