"""The tables of a collection: manifest, indexes and heads, in one file each or spread over many under one root.

A `Table` folds changes and gives a `TableView`, the rows as of one root. `Lake` is the Delta table of a model; `tasks/`
divide a rebuild or a verify into ranges, whatever runs them. Files are stored before the root that names them, so a
reader sees the table before a change or after it, and a fold may run twice.

All of it can be built again from documents and histories. This room never writes a document or an entry, and knows
nothing of spaces, sessions and events.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from worm.doors import door

if TYPE_CHECKING:
    from worm.tables import cells
    from worm.tables.build import Progress, build_manifest, silent
    from worm.tables.changed import Changed, HeadsState
    from worm.tables.columns import Column, Columns
    from worm.tables.index import COMMON_IDS, exact_key
    from worm.tables.lake.lake import Lake
    from worm.tables.lake.publish import Publication
    from worm.tables.lake.upkeep import LakeStatus
    from worm.tables.layout import T
    from worm.tables.manifest import Manifest
    from worm.tables.parts import Part
    from worm.tables.pieces import REPLACED
    from worm.tables.ranges import TableRanges
    from worm.tables.root import IndexPieces
    from worm.tables.table import Mapped, Table
    from worm.tables.table_status import IndexStatus, ManifestStatus
    from worm.tables.tasks.incremental import ComparedRange, DeltaFile, Hint, RangeTasks, StagedRange
    from worm.tables.tasks.index_parts import IndexTasks, SeveralParts
    from worm.tables.tasks.listings import Shown
    from worm.tables.tasks.paper import JobPlan, Paper
    from worm.tables.tasks.rebuild import RebuildReport, TableRebuild
    from worm.tables.tasks.shares import SharedTable, TableShare
    from worm.tables.tasks.staging import StagedFile, Staging
    from worm.tables.tasks.verify_range import RangeReport, StoredIndexes, VerifyTasks
    from worm.tables.verify import VerifyReport, verify_collection
    from worm.tables.view import RowBatch, Size, TableView
else:
    __getattr__ = door(
        __name__,
        """
        build: Progress build_manifest silent
        cells:
        changed: Changed HeadsState
        columns: Column Columns
        index: COMMON_IDS exact_key
        lake.lake: Lake
        lake.publish: Publication
        lake.upkeep: LakeStatus
        layout: T
        manifest: Manifest
        parts: Part
        pieces: REPLACED
        ranges: TableRanges
        root: IndexPieces
        table: Mapped Table
        table_status: IndexStatus ManifestStatus
        tasks.incremental: ComparedRange DeltaFile Hint RangeTasks StagedRange
        tasks.index_parts: IndexTasks SeveralParts
        tasks.listings: Shown
        tasks.paper: JobPlan Paper
        tasks.rebuild: RebuildReport TableRebuild
        tasks.shares: SharedTable TableShare
        tasks.staging: StagedFile Staging
        tasks.verify_range: RangeReport StoredIndexes VerifyTasks
        verify: VerifyReport verify_collection
        view: RowBatch Size TableView
        """,
    )
