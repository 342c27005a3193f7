"""Documents, their oplog, and `reconcile`: brings the recorded history in line with the bucket."""

from __future__ import annotations

from typing import TYPE_CHECKING

from worm.doors import door

if TYPE_CHECKING:
    from worm.collections import claim_slices, division
    from worm.collections.claiming import Claiming
    from worm.collections.claims import (
        Holders,
        Reservation,
        Rows,
        UniqueValue,
        audit_claims,
        claim_unclaimed,
        judged_claim,
        restore_claims,
        unique_indexes,
        unique_value,
    )
    from worm.collections.collection import Collection, EntityOutcome
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
        Document,
        Head,
        Heads,
        Op,
        OplogEntry,
        Row,
        change_sets,
        decode_changes,
        decode_head,
        encode_changes,
        encode_head,
        exact_name,
        is_cut,
        row_weight,
        table_row,
    )
    from worm.collections.id_ranges import (
        AFTER_SLASH,
        IDS_PER_RANGE_MAX,
        IdRange,
        Scan,
        known_ids,
        plan_ranges,
        punctual,
        ranges_between,
    )
    from worm.collections.infer import SAMPLES_MAX, CollectionReport, InferReport, infer_schema
    from worm.collections.layout import (
        ANSWERS_PREFIX,
        ATTACHED_KEY,
        BUCKET_SENTINEL,
        CHANGES_DIR,
        LOG_PREFIX,
        OPLOG_DIR,
        SCHEMA_KEY,
        ArchiveName,
        KeyInfo,
        KeyKind,
        StorageResolver,
        digest_of,
        is_system_key,
    )
    from worm.collections.oplog import Archive, ArchiveView, Oplog, Seqs, StateAt, gap, seqs_add
    from worm.collections.oplog_archives import Archiver, ArchiveReport
    from worm.collections.origins import KEPT, OWN, Mismatch, Origins, PlainOrigins, Standing
    from worm.collections.push import (
        STRANDED_HINT,
        Adopted,
        PushReport,
        collection_sentinel,
        load_pushed_schema,
        predecessors,
        push_over,
        pushed_before,
        stranding,
        successor,
    )
    from worm.collections.reconcile import UNLISTED, Reconciled, Sighting, Survey, failure_of
    from worm.collections.recording import RECORDED_AT_ONCE, StoredWrite, record_unit
    from worm.collections.relayout import RELAYOUT_KEY, Relayout, RelayoutReport, Step, layouts, told
    from worm.collections.snapshots import Snapshot, SnapshotInfo
    from worm.collections.trash import Deletion, Tombstone, Trash, Trashed, delete_unchanged
    from worm.collections.walks import PART_IDS, TASK_IDS_MAX, IdWalk, documents_of, histories_of
else:
    __getattr__ = door(
        __name__,
        """
        claim_slices:
        claiming: Claiming
        claims: Holders Reservation Rows UniqueValue audit_claims claim_unclaimed judged_claim restore_claims
        claims: unique_indexes unique_value
        collection: Collection EntityOutcome
        division:
        documents: ACTOR AGAIN DocumentVersion EXISTS MAX_DOCUMENT_BYTES NOTE NO_VERSION OP Origin RESERVED TRUST
        documents: author_metadata is_written_over write_metadata
        entries: APART CUT Change Document HEAD Head Heads OPS Op OplogEntry REBUILT Row SEQ_MAX change_sets
        entries: decode_changes decode_head encode_changes encode_head exact_name is_cut row_weight table_row
        id_ranges: AFTER_SLASH IDS_PER_RANGE_MAX IdRange Scan known_ids plan_ranges punctual ranges_between
        infer: CollectionReport InferReport SAMPLES_MAX infer_schema
        layout: ANSWERS_PREFIX ATTACHED_KEY ArchiveName BUCKET_SENTINEL CHANGES_DIR KeyInfo KeyKind LOG_PREFIX OPLOG_DIR
        layout: SCHEMA_KEY StorageResolver digest_of is_system_key
        oplog: Archive ArchiveView Oplog Seqs StateAt gap seqs_add
        oplog_archives: ArchiveReport Archiver
        origins: KEPT Mismatch OWN Origins PlainOrigins Standing
        push: Adopted PushReport STRANDED_HINT collection_sentinel load_pushed_schema predecessors push_over
        push: pushed_before stranding successor
        reconcile: Reconciled Sighting Survey UNLISTED failure_of
        recording: RECORDED_AT_ONCE StoredWrite record_unit
        relayout: RELAYOUT_KEY Relayout RelayoutReport Step layouts told
        snapshots: Snapshot SnapshotInfo
        trash: Deletion Tombstone Trash Trashed delete_unchanged
        walks: IdWalk PART_IDS TASK_IDS_MAX documents_of histories_of
        """,
    )
