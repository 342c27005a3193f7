"""S3WORM: plain JSON documents in your own S3 bucket become a database.

    import worm
    db = worm.connect("./data", schema="schema.json")

Names below are imported on first use: a Lambda handler that imports `worm.workers` does not load the rest.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # `typing` takes longer to load than everything in this module
if TYPE_CHECKING:
    from worm import errors as errors
    from worm.aio import aconnect as aconnect
    from worm.codec.strict_json import MISSING as MISSING
    from worm.collections.entries import OplogEntry as OplogEntry
    from worm.collections.layout import StorageResolver as StorageResolver
    from worm.errors import CommitStateUnknown as CommitStateUnknown
    from worm.errors import Conflict as Conflict
    from worm.errors import Corrupt as Corrupt
    from worm.errors import Denied as Denied
    from worm.errors import EditKept as EditKept
    from worm.errors import Expired as Expired
    from worm.errors import Fenced as Fenced
    from worm.errors import Invalid as Invalid
    from worm.errors import NotFound as NotFound
    from worm.errors import SchemaDiffers as SchemaDiffers
    from worm.errors import SnapshotExpired as SnapshotExpired
    from worm.errors import Unavailable as Unavailable
    from worm.errors import UniqueViolation as UniqueViolation
    from worm.errors import UnsafeStore as UnsafeStore
    from worm.errors import WormError as WormError
    from worm.log.opening import CommitLog as CommitLog
    from worm.log.opening import open_log as open_log
    from worm.model import Model as Model
    from worm.model import Worm as Worm
    from worm.model import connect as connect
    from worm.model import push as push
    from worm.pages.db import PageDb as PageDb
    from worm.pages.opening import open_pages as open_pages
    from worm.query.planner import Plan as Plan
    from worm.schema import Schema as Schema
    from worm.schema import load_schema as load_schema
    from worm.sdk.access import Result as Result
    from worm.sdk.class_schema import schema_of as schema_of
    from worm.sdk.classes import Document as Document
    from worm.sdk.classes import FieldIndex as Index
    from worm.sdk.classes import ManifestSettings as ManifestSettings
    from worm.sdk.classes import ModelSettings as ModelSettings
    from worm.sdk.classes import Ref as Ref
    from worm.sdk.classes import SnapshotSettings as SnapshotSettings
    from worm.sdk.document import DocumentDict as DocumentDict
    from worm.sdk.merging import BranchChange as BranchChange
    from worm.sdk.merging import MergeResult as MergeResult
    from worm.sdk.rows import Rows as Rows
    from worm.sdk.searching import HistoryEntry as HistoryEntry
    from worm.sdk.searching import HistoryRows as HistoryRows
    from worm.sdk.sql import SqlRows as SqlRows
    from worm.spaces.opening import open_space as open_space
    from worm.spaces.results import MergeConflict as MergeConflict
    from worm.spaces.space import Space as Space
    from worm.store.open import open_store as open_store

    __version__: str

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

_HOMES = {
    "BranchChange": ("worm.sdk.merging", "BranchChange"),
    "CommitLog": ("worm.log.opening", "CommitLog"),
    "CommitStateUnknown": ("worm.errors", "CommitStateUnknown"),
    "Conflict": ("worm.errors", "Conflict"),
    "Corrupt": ("worm.errors", "Corrupt"),
    "Denied": ("worm.errors", "Denied"),
    "Document": ("worm.sdk.classes", "Document"),
    "DocumentDict": ("worm.sdk.document", "DocumentDict"),
    "EditKept": ("worm.errors", "EditKept"),
    "Expired": ("worm.errors", "Expired"),
    "Fenced": ("worm.errors", "Fenced"),
    "HistoryEntry": ("worm.sdk.searching", "HistoryEntry"),
    "HistoryRows": ("worm.sdk.searching", "HistoryRows"),
    "Index": ("worm.sdk.classes", "FieldIndex"),
    "Invalid": ("worm.errors", "Invalid"),
    "MISSING": ("worm.codec.strict_json", "MISSING"),
    "ManifestSettings": ("worm.sdk.classes", "ManifestSettings"),
    "MergeConflict": ("worm.spaces.results", "MergeConflict"),
    "MergeResult": ("worm.sdk.merging", "MergeResult"),
    "Model": ("worm.model", "Model"),
    "ModelSettings": ("worm.sdk.classes", "ModelSettings"),
    "NotFound": ("worm.errors", "NotFound"),
    "OplogEntry": ("worm.collections.entries", "OplogEntry"),
    "PageDb": ("worm.pages.db", "PageDb"),
    "Plan": ("worm.query.planner", "Plan"),
    "Ref": ("worm.sdk.classes", "Ref"),
    "Result": ("worm.sdk.access", "Result"),
    "Rows": ("worm.sdk.rows", "Rows"),
    "Schema": ("worm.schema", "Schema"),
    "SchemaDiffers": ("worm.errors", "SchemaDiffers"),
    "SnapshotExpired": ("worm.errors", "SnapshotExpired"),
    "SnapshotSettings": ("worm.sdk.classes", "SnapshotSettings"),
    "Space": ("worm.spaces.space", "Space"),
    "SqlRows": ("worm.sdk.sql", "SqlRows"),
    "StorageResolver": ("worm.collections.layout", "StorageResolver"),
    "Unavailable": ("worm.errors", "Unavailable"),
    "UniqueViolation": ("worm.errors", "UniqueViolation"),
    "UnsafeStore": ("worm.errors", "UnsafeStore"),
    "Worm": ("worm.model", "Worm"),
    "WormError": ("worm.errors", "WormError"),
    "aconnect": ("worm.aio", "aconnect"),
    "connect": ("worm.model", "connect"),
    "load_schema": ("worm.schema", "load_schema"),
    "open_log": ("worm.log.opening", "open_log"),
    "open_pages": ("worm.pages.opening", "open_pages"),
    "open_space": ("worm.spaces.opening", "open_space"),
    "open_store": ("worm.store.open", "open_store"),
    "push": ("worm.model", "push"),
    "schema_of": ("worm.sdk.class_schema", "schema_of"),
    "__version__": ("worm.version", "VERSION"),
}


def __getattr__(name: str) -> object:
    if name == "errors":
        return import_module("worm.errors")
    if name not in _HOMES:
        raise AttributeError(f"module 'worm' has no attribute {name!r}")
    module, attribute = _HOMES[name]
    found: object = getattr(import_module(module), attribute)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
