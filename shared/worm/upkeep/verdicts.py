"""The answer of `worm why`: a verdict about a key, with the facts behind it."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from worm.clock import iso_seconds
from worm.formats import JsonObject
from worm.store import ObjectInfo

NOTHING = "nothing"


def asked(key: str | None) -> str:
    """The command for another key."""
    return f"`worm why {shlex.quote(key or '')}`"


class Verdict(StrEnum):
    """How far an upload got, or the state of an internal object."""

    RECORDED = "recorded"
    """The oplog and the table have this version, if the model keeps them."""
    BEHIND = "behind"
    """The oplog has it, the table does not yet; or a table file is not up to date."""
    WAITING = "waiting"
    """The object was written or deleted, and the oplog does not say so yet."""
    REJECTED = "rejected"
    """The object is not a valid document of its model."""
    LATE = "late"
    """The object was written for a commit that a later one has undone."""
    DAMAGED = "damaged"
    """The object, or the history that it belongs to, is damaged."""
    DELETED = "deleted"
    """There is no object, and its deletion is recorded."""
    ABSENT = "absent"
    """There is no object, and none is missing."""
    UNMATCHED = "unmatched"
    """The key is not a document key."""
    SYSTEM = "system"
    """The key belongs to the library, and its object is healthy."""


@dataclass(frozen=True, slots=True)
class ObjectFacts:
    """The object that is stored under the key."""

    size: int
    modified: datetime
    etag: str
    version_id: str | None = None

    @classmethod
    def of(cls, found: ObjectInfo | None) -> ObjectFacts | None:
        return None if found is None else cls(found.size, found.last_modified, found.etag, found.version_id)


@dataclass(frozen=True, slots=True)
class EntryFacts:
    """The newest entry of the oplog; `is_of_object`: it records the stored version."""

    seq: int
    op: str
    ts: str
    actor: str | None
    is_of_object: bool


@dataclass(frozen=True, slots=True)
class RowFacts:
    """What the table has. `seq` None: nothing yet (or the model has no oplog); `behind`: entries that it lacks."""

    is_there: bool
    seq: int | None
    behind: int


@dataclass(frozen=True, slots=True)
class DeadLetterFacts:
    """A message about the key that waits in the dead-letter queue."""

    reason: str
    sent: str


LookUp = Callable[[str], Sequence[DeadLetterFacts]]
"""The messages about a key."""


@dataclass(frozen=True, slots=True)
class Why:
    """The answer. `explanation` and `next_step` are sentences for people; the rest are the facts behind them.

    `model` is the one that matched, or the closest one that did not; `rule` says what keys of its documents look like,
    if the key is not an internal one.
    """

    key: str
    verdict: Verdict
    explanation: str
    next_step: str
    model: str | None = None
    id: str | None = None
    rule: str | None = None
    object: ObjectFacts | None = None
    entry: EntryFacts | None = None
    row: RowFacts | None = None
    rejection: str | None = None
    dead_letters: tuple[DeadLetterFacts, ...] | None = None

    def shape(self) -> JsonObject:
        """For programs."""
        stored, entry, row, letters = self.object, self.entry, self.row, self.dead_letters
        return {
            "key": self.key,
            "verdict": self.verdict.value,
            "explanation": self.explanation,
            "nextStep": self.next_step,
            "model": self.model,
            "id": self.id,
            "rule": self.rule,
            "object": None if stored is None else _object_shape(stored),
            "entry": None if entry is None else _entry_shape(entry),
            "row": None if row is None else {"isThere": row.is_there, "seq": row.seq, "behind": row.behind},
            "rejection": self.rejection,
            "deadLetters": None if letters is None else [{"reason": one.reason, "sent": one.sent} for one in letters],
        }


def _object_shape(stored: ObjectFacts) -> JsonObject:
    modified = iso_seconds(stored.modified)
    return {"size": stored.size, "modified": modified, "etag": stored.etag, "versionId": stored.version_id}


def _entry_shape(entry: EntryFacts) -> JsonObject:
    return {
        "seq": entry.seq,
        "op": entry.op,
        "ts": entry.ts,
        "actor": entry.actor,
        "isOfObject": entry.is_of_object,
    }
