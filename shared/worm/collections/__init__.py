"""The documents of a model and what is recorded about them: history, snapshots, trash and claims of unique values.

A `Collection` is one model on one store; all else hangs on it. An *entity* is one id of it. *Recording* writes an entry
for every version of a document into its *oplog*; `reconcile` finds what is not recorded yet, and may run at any time. A
*head* is the state after its newest entry; a *change* is a head with its table row, and a `ChangeSet` brings changes to
the tables. A *claim* reserves a unique value before the write. `layout` has the names of all keys, `origins` what an
object says about its write.

It never changes an entry, never trusts an event, and knows nothing of tables and spaces.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from worm.doors import door

if TYPE_CHECKING:
    from worm.collections import claim_slices, division, layout, origins
    from worm.collections.claiming import Claiming
    from worm.collections.claims import Holders, Reservation, UniqueValue
    from worm.collections.collection import Collection, EntityOutcome
    from worm.collections.difference import Diff, FieldDiff
    from worm.collections.documents import AGAIN, EXISTS, DocumentVersion
    from worm.collections.entries import (
        APART,
        CUT,
        REBUILT,
        Change,
        ChangeSet,
        Document,
        Head,
        Heads,
        OplogEntry,
        Row,
        is_cut,
    )
    from worm.collections.id_ranges import IdRange, Scan
    from worm.collections.layout import KeyInfo, KeyKind, StorageResolver
    from worm.collections.oplog import Archive, ArchiveView, Oplog, Seqs, StateAt
    from worm.collections.oplog_archives import Archiver, ArchiveReport
    from worm.collections.reconcile import Reconciled, Sighting, Survey, failure_of
    from worm.collections.recording import StoredWrite
    from worm.collections.snapshots import Snapshot
    from worm.collections.trash import Deletion, Trashed, delete_unchanged
    from worm.collections.walks import IdWalk
else:
    __getattr__ = door(
        __name__,
        """
        claim_slices:
        claiming: Claiming
        claims: Holders Reservation UniqueValue
        collection: Collection EntityOutcome
        difference: Diff FieldDiff
        division:
        documents: AGAIN DocumentVersion EXISTS
        entries: APART CUT Change ChangeSet Document Head Heads OplogEntry REBUILT Row is_cut
        id_ranges: IdRange Scan
        layout:
        layout: KeyInfo KeyKind StorageResolver
        oplog: Archive ArchiveView Oplog Seqs StateAt
        oplog_archives: ArchiveReport Archiver
        origins:
        reconcile: Reconciled Sighting Survey failure_of
        recording: StoredWrite
        snapshots: Snapshot
        trash: Deletion Trashed delete_unchanged
        walks: IdWalk
        """,
    )
