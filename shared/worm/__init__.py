"""S3WORM: plain JSON documents in your own S3 bucket become a database.

    import worm
    db = worm.connect("./data", schema="schema.json")

Names below are imported on first use: a Lambda handler that imports `worm.upkeep` does not load the rest.
"""

from __future__ import annotations

from worm.doors import door
from worm.version import VERSION

__version__ = VERSION
TYPE_CHECKING = False  # `typing` takes longer to load than everything in this module
if TYPE_CHECKING:
    from worm import errors
    from worm.collections import OplogEntry, StorageResolver
    from worm.errors import (
        CommitStateUnknown,
        Conflict,
        Corrupt,
        Denied,
        EditKept,
        Expired,
        Fenced,
        Invalid,
        NotFound,
        SchemaDiffers,
        SnapshotExpired,
        Unavailable,
        UniqueViolation,
        UnsafeStore,
        WormError,
    )
    from worm.formats import MISSING, Schema, load_schema
    from worm.log import CommitLog, open_log
    from worm.pages import PageDb, open_pages
    from worm.query import Plan
    from worm.sdk import (
        BranchChange,
        Document,
        DocumentDict,
        HistoryEntry,
        HistoryRows,
        Index,
        ManifestSettings,
        MergeResult,
        Model,
        ModelSettings,
        Ref,
        Result,
        Rows,
        SnapshotSettings,
        SqlRows,
        Worm,
        aconnect,
        connect,
        schema_of,
    )
    from worm.spaces import MergeConflict, Space, open_space
    from worm.store import open_store
    from worm.upkeep import push
else:
    __getattr__ = door(
        __name__,
        """
        collections: OplogEntry StorageResolver
        errors:
        errors: CommitStateUnknown Conflict Corrupt Denied EditKept Expired Fenced Invalid NotFound SchemaDiffers
        errors: SnapshotExpired Unavailable UniqueViolation UnsafeStore WormError
        formats: MISSING Schema load_schema
        log: CommitLog open_log
        pages: PageDb open_pages
        query: Plan
        sdk: BranchChange Document DocumentDict HistoryEntry HistoryRows Index ManifestSettings MergeResult Model
        sdk: ModelSettings Ref Result Rows SnapshotSettings SqlRows Worm aconnect connect schema_of
        spaces: MergeConflict Space open_space
        store: open_store
        upkeep: push
        """,
    )

__all__ = [
    "MISSING",
    "BranchChange",
    "CommitLog",
    "CommitStateUnknown",
    "Conflict",
    "Corrupt",
    "Denied",
    "Document",
    "DocumentDict",
    "EditKept",
    "Expired",
    "Fenced",
    "HistoryEntry",
    "HistoryRows",
    "Index",
    "Invalid",
    "ManifestSettings",
    "MergeConflict",
    "MergeResult",
    "Model",
    "ModelSettings",
    "NotFound",
    "OplogEntry",
    "PageDb",
    "Plan",
    "Ref",
    "Result",
    "Rows",
    "Schema",
    "SchemaDiffers",
    "SnapshotExpired",
    "SnapshotSettings",
    "Space",
    "SqlRows",
    "StorageResolver",
    "Unavailable",
    "UniqueViolation",
    "UnsafeStore",
    "Worm",
    "WormError",
    "__version__",
    "aconnect",
    "connect",
    "errors",
    "load_schema",
    "open_log",
    "open_pages",
    "open_space",
    "open_store",
    "push",
    "schema_of",
]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
