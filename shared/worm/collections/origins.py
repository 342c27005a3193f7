"""Where a change of a document came from: the port between a collection and what may stand behind its documents.

A collection records what it finds in the bucket. Some questions about it only the source of a change can answer: which
commit wrote this object, who deleted that version, does this object still count. Of a model without a space the objects
and the trash answer them (`PlainOrigins`). Of a model in a space its log does (`worm.bridge.origins`), and collections
and tables know nothing of spaces.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from worm.collections.documents import Origin
from worm.collections.entries import Document, Head
from worm.collections.trash import Trash
from worm.errors import Corrupt
from worm.schema import ModelDef
from worm.store.base import Object, ObjectInfo

Mismatch = tuple[str, str, str]
"""Kind, key and detail of something that verify reports."""


class Said(Protocol):
    """A document as its log has it."""

    @property
    def value(self) -> Document | None:
        """None: it is deleted."""
        ...

    @property
    def seq(self) -> int:
        """The commit that it is of."""
        ...


class Truth(Protocol):
    """What is true of a document where its object may be behind."""

    def __call__(self, entity_id: str) -> Said | None:
        """None: only the stored object knows."""
        ...


class Origins(Protocol):
    """The port."""

    @property
    def truth(self) -> Truth | None:
        """None: the stored objects are the truth."""
        ...

    def commit_of(self, entity_id: str, found: ObjectInfo | None) -> int | None:
        """The commit that wrote the object; None where no commit did."""
        ...

    def deletion(self, entity_id: str, deleted: Head) -> Origin:
        """Who deleted this version, if a tombstone or a commit says so: a delete marker carries no metadata."""
        ...

    def is_late(self, entity_id: str, found: Object, head: Head | None) -> bool:
        """Is the object of a commit that a later one, which is recorded already, deleted?"""
        ...

    def audit(self) -> Iterable[Mismatch]:
        """Where the stored documents are not what their source says."""
        ...


class PlainOrigins:
    """A model without a space: no object is of a commit, and none is late."""

    truth: Truth | None = None

    def __init__(self, definition: ModelDef, trash: Trash) -> None:
        self._definition = definition
        self._trash = trash

    def commit_of(self, entity_id: str, found: ObjectInfo | None) -> int | None:
        return None

    def deletion(self, entity_id: str, deleted: Head) -> Origin:
        if not self._definition.soft_delete:
            return Origin()
        try:
            tombstone = self._trash.tombstone(entity_id)
        except Corrupt:
            return Origin()  # the trash itself reports it; the history only lacks a name
        if tombstone is None or tombstone.etag != deleted.etag:
            return Origin()
        return Origin(tombstone.deleted_by, said=tombstone.note)

    def is_late(self, entity_id: str, found: Object, head: Head | None) -> bool:
        return False

    def audit(self) -> Iterable[Mismatch]:
        return ()
