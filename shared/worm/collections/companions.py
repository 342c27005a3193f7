"""What is kept beside the oplog, and what reconcile tells it: time marks, snapshots and trash follow the entries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from worm.collections.documents import Origin
from worm.collections.entries import Document, Head, OplogEntry
from worm.errors import WormError
from worm.store.base import Object


@dataclass(frozen=True, slots=True)
class Recorded:
    """An entry that stands in the oplog now, ours or another's of the same version, and the documents around it."""

    id: str
    entry: OplogEntry
    previous: Head | None
    before: Document | None
    after: Document | None


class Companions(Protocol):
    """What is kept beside the oplog: time marks, snapshots and trash. Called for a version again whenever it is met
    again, so that a crash after the entry is made good."""

    def deletion(self, entity_id: str, deleted: Head) -> Origin:
        """Who deleted this version, if a tombstone or the model's space says so: a delete marker itself carries no
        metadata."""
        ...

    def commit_of(self, entity_id: str, found: Object) -> int | None:
        """The commit of the model's space that the object was written for."""
        ...

    def is_late(self, entity_id: str, found: Object, head: Head | None) -> bool:
        """Is the object of a commit that a later one, which is recorded already, deleted?"""
        ...

    def mark(self, entity_id: str, entry: OplogEntry) -> None:
        """Make the entry's time mark, if it is due one. Called for every entry, at once."""
        ...

    def follow(self, recorded: Recorded) -> None: ...


class NoCompanions:
    """Keeps nothing beside the oplog."""

    def deletion(self, entity_id: str, deleted: Head) -> Origin:
        return Origin()

    def commit_of(self, entity_id: str, found: Object) -> int | None:
        return None

    def is_late(self, entity_id: str, found: Object, head: Head | None) -> bool:
        return False

    def mark(self, entity_id: str, entry: OplogEntry) -> None:
        return

    def follow(self, recorded: Recorded) -> None:
        return


def failure_of(*keeps: Callable[[], None]) -> WormError | None:
    """Do all of them, whichever fails; the first failure."""
    failures: list[WormError] = []
    for keep in keeps:
        try:
            keep()
        except WormError as error:
            failures.append(error)
    return failures[0] if failures else None
