"""What is kept beside the oplog, and what reconcile tells it: snapshots and trash follow the entries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from worm.collections.entries import Document, Head, OplogEntry


@dataclass(frozen=True, slots=True)
class Recorded:
    """An entry that stands in the oplog now, ours or another's of the same version, and the documents around it."""

    id: str
    entry: OplogEntry
    previous: Head | None
    before: Document | None
    after: Document | None


class Companions(Protocol):
    """What is kept beside the oplog: snapshots and trash. Called for a version again whenever it is met again, so that
    a crash after the entry is made good."""

    def deleted_by(self, entity_id: str, deleted: Head) -> str | None:
        """Who deleted this version, if a tombstone says so: a delete marker itself carries no metadata."""
        ...

    def follow(self, recorded: Recorded) -> None: ...


class NoCompanions:
    """For a model that keeps neither snapshots nor trash."""

    def deleted_by(self, entity_id: str, deleted: Head) -> str | None:
        return None

    def follow(self, recorded: Recorded) -> None:
        return
