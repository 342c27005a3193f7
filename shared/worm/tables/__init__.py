"""Manifests, indexes, and the fold that keeps them in line with the recorded history."""

from __future__ import annotations

from typing import TYPE_CHECKING

from worm.doors import door

if TYPE_CHECKING:
    from worm.tables import typed
    from worm.tables.build import Progress, build_manifest, silent
    from worm.tables.changed import Changed, HeadsDifference, HeadsState
    from worm.tables.columns import FALSE, TRUE, Column, Columns, SortKey, comparable, listed, sort_key
    from worm.tables.index import COMMON_IDS, entry_key, exact_key
    from worm.tables.lake.actions import RETENTION_DAYS
    from worm.tables.lake.audit import audit, restore
    from worm.tables.lake.ddl import ddl
    from worm.tables.lake.publish import Lake, Publication
    from worm.tables.lake.upkeep import LakeStatus, needed_files, vacuum
    from worm.tables.layout import T
    from worm.tables.manifest import Manifest
    from worm.tables.parquet import ID
    from worm.tables.parquet_part import ParquetPart
    from worm.tables.parts import Cell, ParsedPart, Part, RawPart, Several, copied, reader
    from worm.tables.pieces import REPLACED
    from worm.tables.ranges import TableRanges
    from worm.tables.root import IndexPieces, Piece, Root, cut
    from worm.tables.status import IndexStatus, ManifestStatus
    from worm.tables.table import RUSH_BYTES_MAX, SWEEP_BYTES_MAX, TIDY_BYTES_MAX, Mapped, Table
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
    from worm.tables.typed import Positions, Typed, grouped
    from worm.tables.verify import VerifyReport, verify_collection
    from worm.tables.view import ASSUMED_BYTES, PartFiles, RowBatch, Size, TableView
else:
    __getattr__ = door(
        __name__,
        """
        build: Progress build_manifest silent
        changed: Changed HeadsDifference HeadsState
        columns: Column Columns FALSE SortKey TRUE comparable listed sort_key
        index: COMMON_IDS entry_key exact_key
        lake.actions: RETENTION_DAYS
        lake.audit: audit restore
        lake.ddl: ddl
        lake.publish: Lake Publication
        lake.upkeep: LakeStatus needed_files vacuum
        layout: T
        manifest: Manifest
        parquet: ID
        parquet_part: ParquetPart
        parts: Cell ParsedPart Part RawPart Several copied reader
        pieces: REPLACED
        ranges: TableRanges
        root: IndexPieces Piece Root cut
        status: IndexStatus ManifestStatus
        table: Mapped RUSH_BYTES_MAX SWEEP_BYTES_MAX TIDY_BYTES_MAX Table
        tasks.incremental: ComparedRange DeltaFile Hint compare_range delta_hints divide_delta stage_compared
        tasks.index_parts: IndexTasks SeveralParts counting_tasks index_tasks
        tasks.listings: Shown entity_of
        tasks.paper: JobPlan Paper
        tasks.rebuild: RebuildReport StagedRange TableRebuild stage_range
        tasks.staging: StagedFile Staging staged_within
        tasks.verify_range: RangeReport StoredIndexes large_deltas verify_portions verify_root
        tree: ManifestTree READ_ATTEMPTS Tree
        typed:
        typed: Positions Typed grouped
        verify: VerifyReport verify_collection
        view: ASSUMED_BYTES PartFiles RowBatch Size TableView
        """,
    )
