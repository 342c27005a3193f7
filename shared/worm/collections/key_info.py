"""What a parsed key says: its kind, and the model, id and names it holds. Keys are built and parsed by `layout.py`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

LOG_PREFIX = "db/"


class KeyKind(Enum):
    """What a key is."""

    DOCUMENT = "document"
    OPLOG = "oplog"
    TIME_MARK = "time_mark"
    ARCHIVE = "archive"
    SNAPSHOT = "snapshot"
    TRASH = "trash"
    TOMBSTONE = "tombstone"
    MANIFEST = "manifest"
    INDEX = "index"
    HEADS = "heads"
    CHANGE_SET = "change_set"
    CLAIM = "claim"
    SENTINEL = "sentinel"
    SCHEMA = "schema"
    LOG = "log"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class KeyInfo:
    """A parsed key. `name`: snapshot time, time mark, archive, change set, claim hash, partition; `field`: of an index
    or claim.

    UNKNOWN with a model: a document's place with an id that is not allowed. UNKNOWN without: no key of ours.
    """

    kind: KeyKind
    model: str | None = None
    id: str | None = None
    seq: int | None = None
    name: str | None = None
    reason: str | None = None
    field: str | None = None


def is_system_key(key: str) -> bool:
    """True for keys that belong to this library and are never documents."""
    return key.startswith((".", LOG_PREFIX)) or "/." in key


def unknown_key(reason: str, model: str | None = None, id: str | None = None) -> KeyInfo:
    return KeyInfo(KeyKind.UNKNOWN, model=model, id=id, reason=reason)
