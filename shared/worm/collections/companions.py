"""What is kept beside the oplog, and what reconcile tells it: time marks, snapshots and trash follow the entries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from worm.collections.entries import Document, Head, OplogEntry
from worm.errors import WormError


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

    def deleted_by(self, entity_id: str, deleted: Head) -> str | None:
        """Who deleted this version, if a tombstone says so: a delete marker itself carries no metadata."""
        ...

    def mark(self, entity_id: str, entry: OplogEntry) -> None:
        """Make the entry's time mark, if it is due one. Called for every entry, at once."""
        ...

    def follow(self, recorded: Recorded) -> None: ...


class NoCompanions:
    """Keeps nothing beside the oplog."""

    def deleted_by(self, entity_id: str, deleted: Head) -> str | None:
        return None

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
