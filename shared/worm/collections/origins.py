"""Where a change of a document came from: the port between a collection and the source of its documents.

A collection records what it finds in the bucket. Only the source of a change can answer some questions about it: which
commit wrote this object, who deleted that version, does this object still count. For a model without a space, the
objects and the trash answer them (`PlainOrigins`). For a model in a space, its log does (`worm.spaces.bridge.origins`).
Collections and tables know nothing about spaces.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Protocol

from worm.collections.authorship import Origin
from worm.collections.entries import Document, Head
from worm.collections.trash import Trash
from worm.errors import Corrupt
from worm.formats import ModelDef
from worm.store import Object, ObjectInfo
from worm.values import dataclass

Mismatch = tuple[str, str, str]
"""The kind, key and detail of a finding of verify."""
KEPT = "document-kept"
"""The kind of a finding that is not an error, but worth a line: somebody's own document where its source has
another."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What an object means for the history. `commit`: the commit that it was written for. `is_late`: a later commit
    deleted the document before the write landed, so the object is not a change. `is_own`: it names a commit, but
    somebody put it there by hand (as a copy does), or nobody can know: it counts like any upload."""

    commit: int | None = None
    is_late: bool = False
    is_own: bool = False


OWN = Standing(is_own=True)


class Said(Protocol):
    """A document as its log has it."""

    @property
    def value(self) -> Document | None:
        """The value; None if it is deleted."""
        ...

    @property
    def seq(self) -> int:
        """The commit that wrote it."""
        ...


class Truth(Protocol):
    """The actual state of a document whose object may be behind."""

    def __call__(self, entity_id: str) -> Said | None:
        """None: only the stored object knows."""
        ...


class Origins(Protocol):
    """The port."""

    @property
    def truth(self) -> Truth | None:
        """None if the stored objects are the truth."""
        ...

    def commit_of(self, entity_id: str, found: ObjectInfo | None) -> int | None:
        """The commit that wrote the object; None if no commit did."""
        ...

    def deletion(self, entity_id: str, deleted: Head, at: datetime) -> Origin:
        """Who deleted this version at this time, if a tombstone or a commit says so: a delete marker has no
        metadata."""
        ...

    def standing(self, entity_id: str, found: Object, head: Head | None) -> Standing:
        """What the object means for the history that ends with `head`."""
        ...

    def audit(self) -> Iterable[Mismatch]:
        """Where the stored documents differ from their source."""
        ...


class PlainOrigins:
    """A model without a space: no object belongs to a commit, and none is late."""

    truth: Truth | None = None

    def __init__(self, definition: ModelDef, trash: Trash) -> None:
        self._definition = definition
        self._trash = trash

    def commit_of(self, entity_id: str, found: ObjectInfo | None) -> int | None:
        return None

    def deletion(self, entity_id: str, deleted: Head, at: datetime) -> Origin:
        if not self._definition.soft_delete:
            return Origin()
        try:
            tombstone = self._trash.tombstone(entity_id)
        except Corrupt:
            return Origin()  # the trash itself reports it; only the author is missing from the history
        if tombstone is None or not tombstone.is_of(deleted.etag, deleted.version_id):
            return Origin()
        return Origin(tombstone.deleted_by, said=tombstone.note)

    def standing(self, entity_id: str, found: Object, head: Head | None) -> Standing:
        return Standing()

    def audit(self) -> Iterable[Mismatch]:
        return ()
