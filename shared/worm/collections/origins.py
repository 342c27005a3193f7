"""Where a change of a document came from: the port between a collection and what may stand behind its documents.

A collection records what it finds in the bucket. Some questions about it only the source of a change can answer: which
commit wrote this object, who deleted that version, does this object still count. Of a model without a space the objects
and the trash answer them (`PlainOrigins`). Of a model in a space its log does (`worm.bridge.origins`), and collections
and tables know nothing of spaces.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Protocol

from worm.collections.documents import Origin
from worm.collections.entries import Document, Head
from worm.collections.trash import Trash
from worm.errors import Corrupt
from worm.schema import ModelDef
from worm.store.base import Object, ObjectInfo
from worm.values import dataclass

Mismatch = tuple[str, str, str]
"""Kind, key and detail of something that verify reports."""
KEPT = "document-kept"
"""The kind of what is not a mistake, but worth a line: somebody's own document where its source has another one."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What an object is to the history. `commit`: that which it was written for. `is_late`: a later commit deleted the
    document before the write landed, so it is nobody's change. `is_own`: it names a commit, but somebody put it there
    by hand, as a copy does, or nobody can know: it counts like any upload."""

    commit: int | None = None
    is_late: bool = False
    is_own: bool = False


OWN = Standing(is_own=True)


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

    def deletion(self, entity_id: str, deleted: Head, at: datetime) -> Origin:
        """Who deleted this version, at this time, if a tombstone or a commit says so: a delete marker carries no
        metadata."""
        ...

    def standing(self, entity_id: str, found: Object, head: Head | None) -> Standing:
        """What the object is to the history that ends with `head`."""
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

    def deletion(self, entity_id: str, deleted: Head, at: datetime) -> Origin:
        if not self._definition.soft_delete:
            return Origin()
        try:
            tombstone = self._trash.tombstone(entity_id)
        except Corrupt:
            return Origin()  # the trash itself reports it; the history only lacks a name
        if tombstone is None or not tombstone.is_of(deleted.etag, deleted.version_id):
            return Origin()
        return Origin(tombstone.deleted_by, said=tombstone.note)

    def standing(self, entity_id: str, found: Object, head: Head | None) -> Standing:
        return Standing()

    def audit(self) -> Iterable[Mismatch]:
        return ()
