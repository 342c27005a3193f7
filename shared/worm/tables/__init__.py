"""Manifests, indexes, and the fold that keeps them in line with the recorded history."""

from __future__ import annotations

from typing import TYPE_CHECKING

from worm.doors import door

if TYPE_CHECKING:
    from worm.tables import typed
    from worm.tables.build import (
        CHUNK,
        Progress,
        build_manifest,
        empty_manifest,
        is_recorded,
        newest_changes,
        read_rows,
        silent,
    )
    from worm.tables.changed import EMBEDDED_MAX, NOTHING, Changed, HeadsDifference, HeadsState, state_now
    from worm.tables.columns import FALSE, TRUE, Column, Columns, SortKey, comparable, listed, sort_key
    from worm.tables.index import (
        COMMON_IDS,
        PART,
        PART_POSTINGS_MAX,
        Index,
        IndexEntries,
        NewIndex,
        entry_key,
        entry_keys,
        exact_key,
        new_part,
        part_step,
        parts_wanted,
    )
    from worm.tables.lake.actions import RETENTION_DAYS
    from worm.tables.lake.audit import audit, restore
    from worm.tables.lake.ddl import ddl
    from worm.tables.lake.publish import Lake, Publication
    from worm.tables.lake.upkeep import LakeStatus, lake_status, needed_files, vacuum
    from worm.tables.layout import (
        INLINE_PARTITIONS,
        PARTITION_BYTES,
        Edit,
        HeadsLayout,
        Layout,
        ManifestLayout,
        NewFiles,
        T,
        of_pieces,
    )
    from worm.tables.manifest import Manifest, ReadRow
    from worm.tables.parquet import ID
    from worm.tables.parquet_part import ParquetPart
    from worm.tables.parts import Cell, ParsedPart, Part, RawPart, Several, copied, reader
    from worm.tables.pieces import REPLACED, Pieces, new_file
    from worm.tables.ranges import TableRanges
    from worm.tables.root import (
        LEVEL_MAX,
        Balanced,
        IndexPieces,
        Piece,
        Root,
        are_balanced,
        counts_between,
        cut,
        cuts,
        fitting_starts,
        heavy_keys,
        may_carry,
        weights_between,
    )
    from worm.tables.status import IndexStatus, ManifestStatus, index_status, manifest_status
    from worm.tables.table import RUSH_BYTES_MAX, SWEEP_BYTES_MAX, TIDY_BYTES_MAX, Mapped, Table
    from worm.tables.tree import BASE_SHARE, DELTAS_MAX, READ_ATTEMPTS, HeadsTree, ManifestTree, Tree
    from worm.tables.typed import Positions, Typed, grouped
    from worm.tables.verify import (
        DETAILS_MAX,
        VerifyReport,
        absence,
        audit_append,
        beside_parts,
        differing,
        explain_index,
        verify_collection,
        verify_entities,
        verify_index,
        wrong_heads,
    )
    from worm.tables.view import ASSUMED_BYTES, PartFiles, RowBatch, Size, TableView
else:
    __getattr__ = door(
        __name__,
        """
        build: CHUNK Progress build_manifest empty_manifest is_recorded newest_changes read_rows silent
        changed: Changed EMBEDDED_MAX HeadsDifference HeadsState NOTHING state_now
        columns: Column Columns FALSE SortKey TRUE comparable listed sort_key
        index: COMMON_IDS Index IndexEntries NewIndex PART PART_POSTINGS_MAX entry_key entry_keys exact_key new_part
        index: part_step parts_wanted
        lake.actions: RETENTION_DAYS
        lake.audit: audit restore
        lake.ddl: ddl
        lake.publish: Lake Publication
        lake.upkeep: LakeStatus lake_status needed_files vacuum
        layout: Edit HeadsLayout INLINE_PARTITIONS Layout ManifestLayout NewFiles PARTITION_BYTES T of_pieces
        manifest: Manifest ReadRow
        parquet: ID
        parquet_part: ParquetPart
        parts: Cell ParsedPart Part RawPart Several copied reader
        pieces: Pieces REPLACED new_file
        ranges: TableRanges
        root: Balanced IndexPieces LEVEL_MAX Piece Root are_balanced counts_between cut cuts fitting_starts heavy_keys
        root: may_carry weights_between
        status: IndexStatus ManifestStatus index_status manifest_status
        table: Mapped RUSH_BYTES_MAX SWEEP_BYTES_MAX TIDY_BYTES_MAX Table
        tree: BASE_SHARE DELTAS_MAX HeadsTree ManifestTree READ_ATTEMPTS Tree
        typed:
        typed: Positions Typed grouped
        verify: DETAILS_MAX VerifyReport absence audit_append beside_parts differing explain_index verify_collection
        verify: verify_entities verify_index wrong_heads
        view: ASSUMED_BYTES PartFiles RowBatch Size TableView
        """,
    )
