"""Trash: listing soft-deleted documents, restoring them, and removing them permanently.

The tombstone decides: restoring and purging are transitions of it by compare-and-swap (see `collections/trash.py`), so
that of a concurrent restore and purge exactly one happens.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Unpack

from worm.collections import Document, DocumentVersion, Trashed, origins
from worm.errors import Conflict, Hint, Invalid, UniqueViolation, WormError
from worm.formats import SINGLETON_ID, JsonObject
from worm.sdk.access import D, Seen, Touched
from worm.sdk.document import About, DocumentDict, Provenance
from worm.sdk.writing import Writing
from worm.store import Lost, Object


class Trashing(Writing[D]):
    """`list_trashed`, `restore`, `purge`, `purge_expired`."""

    def list_trashed(self) -> list[JsonObject]:
        """The deleted documents that can be restored: their ids and the contents of their tombstones.

        Examples:
            >>> _ = customers.delete("acme")
            >>> [one["id"] for one in customers.list_trashed()]
            ['acme']
        """
        now = self._session.clock.now()
        return [_shown(one) for one in self._collection.trash.list(now)]

    def restore(self, id: object = SINGLETON_ID, *, if_version: str | None = None, **about: Unpack[About]) -> D:
        """Restore a deleted document, exactly as it was. `NotFound` if it is not in trash or has expired; `Conflict` if
        the id was created again, or if the version in trash is not `if_version`; `UniqueViolation` if another document
        now has one of its unique values. In these cases nothing is overwritten, and the document stays in trash. Append
        mode allows restoring: the document is created again with put-if-absent.

        Examples:
            >>> _ = customers.delete("acme")
            >>> customers.restore("acme").name
            'Acme'
        """
        self._require_trash()
        self._begin_write(creates=True)
        entity_id = self._checked(id)
        trash = self._collection.trash
        self._check_trashed(entity_id, if_version)
        # With the same bytes, the etag of the deleted version would come back, and a writer that read that version
        # before the delete would pass its If-Match. One extra newline gives the same document a new etag.
        body = _under_new_etag(trash.begin_restore(entity_id, self._session.clock.now()), self._collection.max_bytes)
        document = self._readable(body)
        self._check_shape(entity_id, document)
        try:
            touched = self._put_back(entity_id, body, document, about)
        except UniqueViolation:
            trash.abort_restore(entity_id)
            raise
        trash.finish_restore(entity_id)
        if document is None:
            reason = "the restored object is not a valid document"
            origin = Provenance(self.name, entity_id, touched.version, partial=reason)
            self._maintain([touched])
            return self._shape.load(DocumentDict.of({"id": entity_id}, origin))
        return self._finish(None, (document, touched))

    def _check_shape(self, entity_id: str, document: Document | None) -> None:
        try:
            if document is not None:
                self._shape.check({"id": entity_id, **document})
        except Invalid:
            self._collection.trash.abort_restore(entity_id)
            raise

    def _check_trashed(self, entity_id: str, if_version: str | None) -> None:
        if if_version is None:
            return
        wanted = self._version_seen(entity_id, DocumentVersion.decode(if_version))
        tombstone = self._collection.trash.tombstone(entity_id)
        if tombstone is not None and not self._is_deleted_version(entity_id, tombstone.etag, wanted):
            raise Conflict(
                f"trash has another version of {self.name} '{entity_id}'",
                expected=wanted.etag,
                found=tombstone.etag,
                hint=Hint(
                    "list_trashed() shows what is there; restore() without if_version restores it",
                    "`worm trash list` shows what is there, `worm trash restore` restores it",
                    "GET /v1/trash shows what is there; leave out If-Match to restore it",
                ),
            )

    def _is_deleted_version(self, entity_id: str, etag: str | None, wanted: Seen) -> bool:
        """Compares the etag. A version of a space may have only a commit: then it must be the last one before the
        delete."""
        if self.logged is None or wanted.etag or wanted.commit is None:
            return etag == wanted.etag
        space, entity = self.logged.space, self.logged.entity(entity_id)
        deleted = space.read(entity)
        return deleted.seq > 1 and space.recall(entity, deleted.seq - 1).seq == wanted.commit

    def _put_back(self, entity_id: str, body: bytes, document: Document | None, about: About) -> Touched:
        """Store the document under its key again, if the key is free and its unique values are too."""
        if self.logged is not None:
            return self._commit_back(entity_id, document, about)
        key = self._collection.documents.key(entity_id)
        note = self._note(about)
        metadata = origins.write_metadata(actor=self._actor(about), parent=None, op="restore", note=note)
        reservation = self._claiming.reserve(entity_id, None, document, None)
        with self._claiming.around(reservation):
            outcome = self._session.store.put_if_absent(key, body, metadata=metadata)
            if isinstance(outcome, Lost) and not _is_this_restore(outcome.current, body):
                raise self._not_restored(entity_id, outcome)
        stored = outcome.current if isinstance(outcome, Lost) else outcome
        version = DocumentVersion(stored.etag, stored.version_id)
        if document is not None and not self._collection.definition.validate_document(document, id=entity_id):
            self._memory.wrote(entity_id, deepcopy(document), None, version)
        self._claiming.confirm(reservation, stored, None, is_new=True)
        return Touched(entity_id, version=version, body=body)

    def _commit_back(self, entity_id: str, document: Document | None, about: About) -> Touched:
        """The same for a model in a space: the restore is a commit."""
        try:
            if document is None:
                raise Invalid("the object in trash is not a valid document", hint="save a valid document under its id")
            return self._put(entity_id, document, None, about, op="restore", accepted=document)
        except (Invalid, Conflict):
            self._collection.trash.abort_restore(entity_id)
            raise

    def _not_restored(self, entity_id: str, outcome: Lost) -> WormError:
        if outcome.in_doubt:  # ours may have been stored and replaced: trash stays as it is
            return self._defeat(entity_id, None, outcome)
        self._collection.trash.abort_restore(entity_id)
        return Conflict(
            f"{self.name} '{entity_id}' was created again since it was deleted",
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
            stays = (
                "the deleted one stays in trash. Do not delete the new one, because "
                "that would replace it in trash. Save the new one "
                "under another id if you need it, then go back to the entry before the delete with"
            )
            return Hint(f"{stays} rollback()", f"{stays} `worm rollback`", f"{stays} POST …/{{id}}/rollback")
        copy = self._collection.trash.copy_key(entity_id)
        return (
            "the deleted one stays in trash. Do not delete the new one, because that "
            "would replace it in trash. First save the copy "
            f"{copy} under another id"
        )

    def purge(self, id: object = SINGLETON_ID) -> bool:
        """Remove a deleted document from trash permanently; its history stays. False if it is not in trash, `Conflict`
        while it is being restored.

        Examples:
            >>> _ = customers.delete("acme")
            >>> customers.purge("acme"), customers.list_trashed()
            (True, [])
        """
        self._begin_write()
        return self._collection.trash.purge(self._checked(id))

    def purge_expired(self) -> list[str]:
        """Purge all documents past their `ttl`, and return the ids.

        Examples:
            >>> customers.purge_expired()
            []
        """
        self._begin_write()
        trash = self._collection.trash
        expired = list(trash.expired(self._session.clock.now()))
        return [one.id for one in expired if trash.purge(one.id, force=True, expected=one)]


def _under_new_etag(body: bytes, max_bytes: int) -> bytes:
    return body + b"\n" if len(body) < max_bytes else body.rstrip()


def _is_this_restore(current: Object, body: bytes) -> bool:
    """The document that a restore has put there before it could finish."""
    return current.body == body and current.metadata.get(origins.OP) == "restore"


def _shown(trashed: Trashed) -> JsonObject:
    tombstone = trashed.tombstone
    shown: JsonObject = {"id": trashed.id, "deletedAt": tombstone.deleted_at}
    if tombstone.deleted_by is not None:
        shown["deletedBy"] = tombstone.deleted_by
    if tombstone.note is not None and isinstance(tombstone.note.get("reason"), str):
        shown["reason"] = tombstone.note["reason"]
    return {**shown, "restorePath": tombstone.restore_path, "ttl": tombstone.ttl}
