"""Snapshots: full copies of a document, on demand; going back to one.

The copies that the schema asks for (`snapshots.every`) are taken where entries are recorded, inline or by the workers.
"""

from __future__ import annotations

from worm.codec.strict_json import JsonObject
from worm.collections.entries import Document, Head, OplogEntry
from worm.collections.ids import SINGLETON_ID
from worm.collections.snapshots import SnapshotInfo
from worm.errors import NotFound, Unavailable
from worm.sdk.core import Touched
from worm.sdk.history import History
from worm.store.base import ObjectInfo, Version


class Snapshotting(History):
    """`snapshot`, `list_snapshots`, `restore_snapshot`."""

    def snapshot(self, id: str = SINGLETON_ID) -> JsonObject:
        """Keep a full copy of the document as it is now: `{"ts", "size", "seq"}`, `ts` being its name. Taking the same
        state again changes nothing. `Unavailable` while the workers have not recorded the newest version yet."""
        self._begin_write(creates=True)
        self._require_oplog(id)
        tail = self._newest(id)
        document = self._state_at(id, tail.seq)
        if document is None:
            raise NotFound(f"{self.name} '{id}' is deleted", key=self._document_key(id), hint="restore it first")
        taken = self._collection.snapshots.take(id, tail.seq, tail.ts, document)
        return {**_shown(taken), "seq": taken.seq}

    def list_snapshots(self, id: str = SINGLETON_ID) -> list[JsonObject]:
        """The snapshots of a document, oldest first: `[{"ts": "2026-02-24T12:00:00Z", "size": 1234}, …]`."""
        self._require_oplog(id)
        found = self._collection.snapshots.list(id)
        if not found:
            self._tail(id)  # a document that never was has no snapshots to list: `NotFound`
        return [_shown(info) for info in found]

    def restore_snapshot(self, id: str, ts: str, *, actor: str | None = None) -> Document:
        """Save the document of a snapshot again, as `rollback` does with an entry."""
        self._begin_write()
        self._checked(id)
        found = self._collection.snapshots.read(id, ts)
        if found is None:
            raise NotFound(
                f"{self.name} '{id}' has no snapshot {ts}", hint="`worm snapshot list` (list_snapshots) names them"
            )
        return self._bring_back(id, found.document, actor, {"snapshot": ts})

    def _newest(self, entity_id: str) -> OplogEntry:
        """The entry of the document as it is stored now. Inline what is not recorded yet is recorded first."""
        current = self._session.store.head(self._document_key(entity_id))
        try:
            tail = self._tail(entity_id)
        except NotFound:
            if current is None:
                raise
        else:
            if _is_of(tail, current):
                return tail
        self._current(entity_id)  # `Invalid` where it is a broken document, which nobody records
        if self._session.maintenance == "inline":
            self._maintain([Touched(entity_id)])
            tail = self._tail(entity_id)
            if _is_of(tail, self._session.store.head(self._document_key(entity_id))):
                return tail
        raise Unavailable(
            f"{self.name} '{entity_id}': the newest version is not recorded yet",
            key=self._document_key(entity_id),
            hint="try again in some seconds; if that does not help, the workers are not running: `worm repair`",
        )


def _is_of(tail: OplogEntry, current: ObjectInfo | None) -> bool:
    if current is None:
        return tail.op == "delete"
    version = Version(current.key, current.version_id, current.etag, current.size, current.last_modified, True)
    return tail.op != "delete" and Head.of(tail).names(version)


def _shown(info: SnapshotInfo) -> JsonObject:
    return {"ts": info.ts, "size": info.size}
