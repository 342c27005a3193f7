"""Trash: what soft delete put there, bringing it back, and removing it for good.

The tombstone decides: restoring and purging are transitions of it by compare-and-swap (see `collections/trash.py`), so
that of a restore and a purge at once exactly one happens.

A module of its own because it is one group of verbs: `Model` (`model.py`) is made of five such groups.
"""

from __future__ import annotations

from worm.codec.strict_json import JsonObject
from worm.collections.documents import OP, write_metadata
from worm.collections.entries import Document
from worm.collections.trash import Trashed
from worm.errors import Conflict, Invalid, UniqueViolation, WormError
from worm.schema.fields import SINGLETON_ID
from worm.sdk.access import Access, Touched
from worm.store.base import Lost, Object


class Trashing(Access):
    """`list_trashed`, `restore`, `purge`, `purge_expired`."""

    def list_trashed(self) -> list[JsonObject]:
        """The deleted documents that can be restored: their ids and what the tombstones say."""
        now = self._session.clock.now()
        return [_shown(one) for one in self._collection.trash.list(now)]

    def restore(self, id: str = SINGLETON_ID, *, actor: str | None = None) -> Document:
        """Bring a deleted document back, exactly as it was. `NotFound` when it is not in trash or has expired;
        `Conflict` when the id was created anew, `UniqueViolation` when another document has a unique value of it by
        now; nothing is overwritten, and it stays in trash. Append mode allows it: what was removed is
        created once more, under put-if-absent."""
        self._require_trash()
        self._begin_write(creates=True)
        self._checked(id)
        trash = self._collection.trash
        # With the bytes of the deleted version its etag would come back, and a writer that read that version before it
        # was deleted would pass its If-Match. A newline more is the same document under a new etag.
        body = _under_new_etag(trash.begin_restore(id, self._session.clock.now()), self._collection.max_bytes)
        document = self._readable(id, body)
        try:
            self._put_back(id, body, document, actor)
        except UniqueViolation:
            trash.abort_restore(id)
            raise
        trash.finish_restore(id)
        self._maintain([Touched(id)])
        return {"id": id, **(document or {})}

    def _put_back(self, entity_id: str, body: bytes, document: Document | None, actor: str | None) -> None:
        """The document under its key again, if nothing is there and its unique values are free."""
        if self.logged is not None:
            self._commit_back(entity_id, document, actor)
            return
        key = self._collection.documents.key(entity_id)
        metadata = write_metadata(actor=actor or self._session.settings.actor, parent=None, op="restore")
        reservation = self._claiming.reserve(entity_id, None, document, None)
        with self._claiming.around(reservation):
            outcome = self._session.store.put_if_absent(key, body, metadata=metadata)
            if isinstance(outcome, Lost) and not _is_this_restore(outcome.current, body):
                raise self._not_restored(entity_id, outcome)
        stored = outcome.current if isinstance(outcome, Lost) else outcome
        if document is None:
            self._memory.forget(entity_id)
        else:
            self._memory.wrote(entity_id, stored, document)
        self._claiming.confirm(reservation, stored, None, is_new=True)

    def _commit_back(self, entity_id: str, document: Document | None, actor: str | None) -> None:
        """The same for a model in a space: the restore is a commit."""
        try:
            if document is None:
                raise Invalid("what is in trash is no valid document", hint="save a valid one under its id")
            self._put(entity_id, document, None, actor, op="restore")
        except (Invalid, Conflict):
            self._collection.trash.abort_restore(entity_id)
            raise

    def _not_restored(self, entity_id: str, outcome: Lost) -> WormError:
        if outcome.in_doubt:  # ours may have been there and replaced: trash stays as it is
            return self._defeat(entity_id, None, outcome)
        self._collection.trash.abort_restore(entity_id)
        return Conflict(
            f"{self.name} '{entity_id}' was created anew since it was deleted",
            key=self._collection.documents.key(entity_id),
            found=outcome.current.etag,
            hint=self._way_back(entity_id),
        )

    def _require_trash(self) -> None:
        if not self._collection.definition.soft_delete:
            raise Invalid(f"{self.name} has no trash", hint='set "softDelete": true in the schema and push it')

    def _way_back(self, entity_id: str) -> str:
        """Trash has one place for each id: deleting the new document would replace the deleted one."""
        if self._collection.definition.oplog:
            return (
                "the deleted one stays in trash, do not delete the new one: that would replace it; save the new one "
                "under another id if you need it, then roll back to the entry before the delete (`worm rollback`)"
            )
        copy = self._collection.trash.copy_key(entity_id)
        return (
            "the deleted one stays in trash, do not delete the new one: that would replace it; save the copy "
            f"{copy} under another id first"
        )

    def purge(self, id: str = SINGLETON_ID) -> bool:
        """Remove a deleted document from trash for good; its history stays. False when it is not there, `Conflict`
        while it is being restored."""
        self._begin_write()
        return self._collection.trash.purge(self._checked(id))

    def purge_expired(self) -> list[str]:
        """Purge everything that is past its `ttl`, and return the ids."""
        self._begin_write()
        trash = self._collection.trash
        expired = list(trash.expired(self._session.clock.now()))
        return [one.id for one in expired if trash.purge(one.id, force=True, expected=one)]


def _under_new_etag(body: bytes, max_bytes: int) -> bytes:
    return body + b"\n" if len(body) < max_bytes else body.rstrip()


def _is_this_restore(current: Object, body: bytes) -> bool:
    """The document that a restore has put there before it could finish."""
    return current.body == body and current.metadata.get(OP) == "restore"


def _shown(trashed: Trashed) -> JsonObject:
    tombstone = trashed.tombstone
    shown: JsonObject = {"id": trashed.id, "deletedAt": tombstone.deleted_at}
    if tombstone.deleted_by is not None:
        shown["deletedBy"] = tombstone.deleted_by
    return {**shown, "restorePath": tombstone.restore_path, "ttl": tombstone.ttl}
