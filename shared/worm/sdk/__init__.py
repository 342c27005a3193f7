"""The verbs. Import from `worm.sdk.database`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from worm.doors import door

if TYPE_CHECKING:
    from worm.sdk.access import Result, Seen, Touched
    from worm.sdk.aio import aconnect
    from worm.sdk.bulk import Verb
    from worm.sdk.class_schema import schema_of
    from worm.sdk.class_source import source_of
    from worm.sdk.classes import Document, Index, ManifestSettings, ModelSettings, Ref, SnapshotSettings, collection_of
    from worm.sdk.database import Worm, connect
    from worm.sdk.document import About, DocumentDict, decode_version, encode_version, note_of_write
    from worm.sdk.feed import ChangeRows
    from worm.sdk.html import NO_FIELD, change_text
    from worm.sdk.merging import BranchChange, MergeResult
    from worm.sdk.migrating import Change, MigrationReport, name_of
    from worm.sdk.migration_rules import Rule, apply_rules, convert, rename, rules_of
    from worm.sdk.model import Model
    from worm.sdk.operators import check_operators, check_patch
    from worm.sdk.past import CHANGED_MAX
    from worm.sdk.reading import populated_fields, referred_model
    from worm.sdk.restoring import RestoreChange
    from worm.sdk.rows import Rows
    from worm.sdk.searching import HistoryEntry, HistoryRows
    from worm.sdk.shapes import Dicts
    from worm.sdk.sql import MEMORY_LIMIT, TIMEOUT_SECONDS, SqlLimits, SqlRows, json_row, run_sql
    from worm.sdk.transacting import DocumentTransaction
    from worm.sdk.writing import DocumentDraft
else:
    __getattr__ = door(
        __name__,
        """
        access: Result Seen Touched
        aio: aconnect
        bulk: Verb
        class_schema: schema_of
        class_source: source_of
        classes: Document Index ManifestSettings ModelSettings Ref SnapshotSettings collection_of
        database: Worm connect
        document: About DocumentDict decode_version encode_version note_of_write
        feed: ChangeRows
        html: NO_FIELD change_text
        merging: BranchChange MergeResult
        migrating: Change MigrationReport name_of
        migration_rules: Rule apply_rules convert rename rules_of
        model: Model
        operators: check_operators check_patch
        past: CHANGED_MAX
        reading: populated_fields referred_model
        restoring: RestoreChange
        rows: Rows
        searching: HistoryEntry HistoryRows
        shapes: Dicts
        sql: MEMORY_LIMIT SqlLimits SqlRows TIMEOUT_SECONDS json_row run_sql
        transacting: DocumentTransaction
        writing: DocumentDraft
        """,
    )
