"""The verbs of a database for Python programs: sessions, models, documents and transactions.

`connect` opens a `Worm` session; a `Model` has the verbs for its documents; a `DocumentDict` knows the version that a
save of it replaces. Every verb checks its arguments and raises a `WormError` that says what to write instead.

`migration_rules` are changes of many documents as values; `operators` are changes of one. Nothing here prints, and no
write relies on what a session remembers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from worm.doors import door

if TYPE_CHECKING:
    from worm.sdk import migration_rules, operators
    from worm.sdk.access import Result
    from worm.sdk.aio import aconnect
    from worm.sdk.class_schema import schema_of
    from worm.sdk.class_source import source_of
    from worm.sdk.classes import Document, Index, ManifestSettings, ModelSettings, Ref, SnapshotSettings
    from worm.sdk.database import Worm, connect
    from worm.sdk.document import About, DocumentDict, note_of_write
    from worm.sdk.feed import ChangeRows
    from worm.sdk.html import NO_FIELD, change_text
    from worm.sdk.jobs import JobModel
    from worm.sdk.merging import BranchChange, MergeResult
    from worm.sdk.migrating import MigrationReport
    from worm.sdk.model import Model
    from worm.sdk.past import CHANGED_MAX
    from worm.sdk.reading import populated_models
    from worm.sdk.rows import Rows
    from worm.sdk.searching import HistoryEntry, HistoryRows
    from worm.sdk.sql import SqlRows, json_row, run_sql_page
    from worm.sdk.transacting import DocumentTransaction
else:
    __getattr__ = door(
        __name__,
        """
        access: Result
        aio: aconnect
        class_schema: schema_of
        class_source: source_of
        classes: Document Index ManifestSettings ModelSettings Ref SnapshotSettings
        database: Worm connect
        document: About DocumentDict note_of_write
        feed: ChangeRows
        html: NO_FIELD change_text
        jobs: JobModel
        merging: BranchChange MergeResult
        migrating: MigrationReport
        migration_rules:
        model: Model
        operators:
        past: CHANGED_MAX
        reading: populated_models
        rows: Rows
        searching: HistoryEntry HistoryRows
        sql: SqlRows json_row run_sql_page
        transacting: DocumentTransaction
        """,
    )
