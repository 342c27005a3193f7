"""Documents, their oplog, and `reconcile`: brings the recorded history in line with the bucket."""

from __future__ import annotations

from typing import TYPE_CHECKING

from worm.doors import door

if TYPE_CHECKING:
    from worm.collections import layout, portions
    from worm.collections.claiming import Claiming
    from worm.collections.claims import Claims, Digests, Finding, Holders, Reservation, Rows, UniqueValue, Wanted
    from worm.collections.collection import Collection, EntityOutcome
    from worm.collections.difference import Diff, FieldDiff, diff
    from worm.collections.documents import (
        ACTOR,
        AGAIN,
        EXISTS,
        MAX_DOCUMENT_BYTES,
        NO_VERSION,
        NOTE,
        OP,
        RESERVED,
        TRUST,
        DocumentVersion,
        Origin,
        author_metadata,
        is_written_over,
        write_metadata,
    )
    from worm.collections.entries import (
        APART,
        CUT,
        HEAD,
        OPS,
        REBUILT,
        SEQ_MAX,
        Change,
        ChangeSet,
        Document,
        Head,
        Heads,
        OplogEntry,
        Row,
        exact_name,
        is_cut,
        row_weight,
        table_row,
    )
    from worm.collections.id_ranges import (
        AFTER_SLASH,
        IDS_PER_RANGE_MAX,
        IdRange,
        KnownIds,
        Scan,
        known_ids,
        plan_ranges,
        probed_ranges,
        punctual,
        ranges_between,
        thinned,
    )
    from worm.collections.inventory import (
        COLUMNS,
        CONFIGURE,
        MANIFEST_NAME,
        Inventory,
        InventoryFile,
        open_inventory,
        place_of,
        version_of,
    )
    from worm.collections.layout import ArchiveName, KeyInfo, KeyKind, StorageResolver
    from worm.collections.oplog import MIN_AGE, Archive, ArchiveView, Oplog, Seqs, StateAt, seqs_add
    from worm.collections.origins import KEPT, PlainOrigins, Standing
    from worm.collections.portions import PORTION_IDS, ListedPortions, counted, is_behind
    from worm.collections.reconcile import Reconciled, Sighting, Survey, failure_of
    from worm.collections.recording import StoredWrite, record_writes
    from worm.collections.snapshots import Snapshot, SnapshotInfo
    from worm.collections.trash import Deletion, Tombstone, Trash, Trashed, delete_unchanged
    from worm.collections.walks import (
        PART_IDS,
        TASK_IDS_MAX,
        IdSource,
        IdWalk,
        Objects,
        documents_of,
        histories_of,
        oplogs_of,
    )
else:
    __getattr__ = door(
        __name__,
        """
        claiming: Claiming
        claims: Claims Digests Finding Holders Reservation Rows UniqueValue Wanted
        collection: Collection EntityOutcome
        difference: Diff FieldDiff diff
        documents: ACTOR AGAIN DocumentVersion EXISTS MAX_DOCUMENT_BYTES NOTE NO_VERSION OP Origin RESERVED TRUST
        documents: author_metadata is_written_over write_metadata
        entries: APART CUT Change ChangeSet Document HEAD Head Heads OPS OplogEntry REBUILT Row SEQ_MAX exact_name
        entries: is_cut row_weight table_row
        id_ranges: AFTER_SLASH IDS_PER_RANGE_MAX IdRange KnownIds Scan known_ids plan_ranges probed_ranges punctual
        id_ranges: ranges_between thinned
        inventory: COLUMNS CONFIGURE Inventory InventoryFile MANIFEST_NAME open_inventory place_of version_of
        layout:
        layout: ArchiveName KeyInfo KeyKind StorageResolver
        oplog: Archive ArchiveView MIN_AGE Oplog Seqs StateAt seqs_add
        origins: KEPT PlainOrigins Standing
        portions:
        portions: ListedPortions PORTION_IDS counted is_behind
        reconcile: Reconciled Sighting Survey failure_of
        recording: StoredWrite record_writes
        snapshots: Snapshot SnapshotInfo
        trash: Deletion Tombstone Trash Trashed delete_unchanged
        walks: IdSource IdWalk Objects PART_IDS TASK_IDS_MAX documents_of histories_of oplogs_of
        """,
    )
