"""Manifests, indexes, and the fold that keeps them in line with the recorded history."""

from __future__ import annotations

from typing import TYPE_CHECKING

from worm.doors import door

if TYPE_CHECKING:
    from worm.tables import cells
    from worm.tables.build import Progress, build_manifest, silent
    from worm.tables.changed import Changed, HeadsDifference, HeadsState
    from worm.tables.columns import Column, Columns
    from worm.tables.index import COMMON_IDS, exact_key
    from worm.tables.lake.actions import RETENTION_DAYS
    from worm.tables.lake.audit import audit, restore
    from worm.tables.lake.ddl import ddl
    from worm.tables.lake.publish import Lake, Publication
    from worm.tables.lake.upkeep import LakeStatus, needed_files, vacuum
    from worm.tables.layout import T
    from worm.tables.manifest import Manifest
    from worm.tables.parquet import ID
    from worm.tables.parquet_part import ParquetPart
    from worm.tables.parts import ParsedPart, Part, RawPart
    from worm.tables.pieces import REPLACED
    from worm.tables.ranges import TableRanges
    from worm.tables.root import IndexPieces, Piece, Root, cut
    from worm.tables.table import RUSH_BYTES_MAX, SWEEP_BYTES_MAX, TIDY_BYTES_MAX, Mapped, Table
    from worm.tables.table_status import IndexStatus, ManifestStatus
    from worm.tables.tasks.incremental import (
        ComparedRange,
        DeltaFile,
        Hint,
        compare_range,
        delta_hints,
        divide_delta,
        stage_compared,
    )
    from worm.tables.tasks.index_parts import IndexTasks, SeveralParts, counting_tasks, index_tasks
    from worm.tables.tasks.listings import Shown, entity_of
    from worm.tables.tasks.paper import JobPlan, Paper
    from worm.tables.tasks.rebuild import RebuildReport, StagedRange, TableRebuild, stage_range
    from worm.tables.tasks.staging import StagedFile, Staging, staged_within
    from worm.tables.tasks.verify_range import RangeReport, StoredIndexes, large_deltas, verify_portions, verify_root
    from worm.tables.tree import READ_ATTEMPTS, ManifestTree, Tree
    from worm.tables.verify import VerifyReport, verify_collection
    from worm.tables.view import PartFiles, RowBatch, Size, TableView
else:
    __getattr__ = door(
        __name__,
        """
        build: Progress build_manifest silent
        cells:
        changed: Changed HeadsDifference HeadsState
        columns: Column Columns
        index: COMMON_IDS exact_key
        lake.actions: RETENTION_DAYS
        lake.audit: audit restore
        lake.ddl: ddl
        lake.publish: Lake Publication
        lake.upkeep: LakeStatus needed_files vacuum
        layout: T
        manifest: Manifest
        parquet: ID
        parquet_part: ParquetPart
        parts: ParsedPart Part RawPart
        pieces: REPLACED
        ranges: TableRanges
        root: IndexPieces Piece Root cut
        table: Mapped RUSH_BYTES_MAX SWEEP_BYTES_MAX TIDY_BYTES_MAX Table
        table_status: IndexStatus ManifestStatus
        tasks.incremental: ComparedRange DeltaFile Hint compare_range delta_hints divide_delta stage_compared
        tasks.index_parts: IndexTasks SeveralParts counting_tasks index_tasks
        tasks.listings: Shown entity_of
        tasks.paper: JobPlan Paper
        tasks.rebuild: RebuildReport StagedRange TableRebuild stage_range
        tasks.staging: StagedFile Staging staged_within
        tasks.verify_range: RangeReport StoredIndexes large_deltas verify_portions verify_root
        tree: ManifestTree READ_ATTEMPTS Tree
        verify: VerifyReport verify_collection
        view: PartFiles RowBatch Size TableView
        """,
    )
