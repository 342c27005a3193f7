"""Creating, saving, replacing and deleting documents, one at a time (many: `bulk.py`).

`save` is conditional on the version that the document came from; a new document must not exist yet. `replace` and
`upsert` replace whatever is stored now.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Unpack, cast

from worm.clock import attempts, iso_seconds
from worm.collections import Deletion, Document, DocumentVersion, Holders, Sighting, delete_unchanged
from worm.errors import Conflict, Hint, Invalid, NotFound
from worm.formats import SINGLETON_ID, JsonObject, JsonValue, dumps_document
from worm.sdk.access import Access, D, Seen, Touched, check_time, missing
from worm.sdk.document import About, DocumentDict, Provenance, is_same
from worm.store import Gone, Lost, Object, ObjectInfo

CHANGE_ATTEMPTS = 60


@dataclass(frozen=True, slots=True)
class DocumentDraft:
    """A document on its way to the store: checked as far as a verb can, with its times, to be stored over `parent`
    (None: where nothing is stored). `is_unchanged`: the parent is equal, so nothing is stored."""

    id: str
    document: Document
    parent: Seen | None = None
    is_unchanged: bool = False


class Writing(Access[D]):
    """`create`, `insert`, `save`, `replace`, `upsert`, `delete`."""

    def create(self, data: D | Mapping[str, object], id: object = None) -> D:
        """A new, checked document with id and times; not stored until `save` or `insert`.

        Examples:
            >>> draft = customers.create({"name": "Initech"})
            >>> draft.name, draft.version
            ('Initech', None)
        """
        given = self._shape.dump(self._identified(data, id))
        return self._shape.load(DocumentDict(self._made(given, self._new_id(given, id))))

    def insert(self, document: D | Mapping[str, object], **about: Unpack[About]) -> D:
        """Store a new document, with the schema's defaults. Without an id it gets one. `Conflict` if it exists.

        Examples:
            >>> customers.insert(Customer(id="initech", name="Initech")).status
            'lead'
        """
        given = self._shape.dump(self._identified(document))
        return self._finish(document, self._inserted(given, self._new_id(given), about))

    def save(self, document: D | Mapping[str, object], **about: Unpack[About]) -> D:
        """Store a document: over the version that it came from, or as a new document. `Conflict` if another writer was
        first. A document without changes is not written.

        The result has the new version. The object that you passed has it too, so you can go on changing and saving it.

        Examples:
            >>> acme = customers.get("acme")
            >>> acme.status = "active"
            >>> customers.save(acme, reason="signed the contract").status
            'active'
        """
        return self._finish(document, self._save(self._shape.dump(document), about))

    def replace(
        self, document: D | Mapping[str, object], *, if_version: str | None = None, **about: Unpack[About]
    ) -> D:
        """Replace the stored document with this one: the stored version must be `if_version` if you pass it. `NotFound`
        if it does not exist. A stored document that is broken is replaced as well.

        Examples:
            >>> customers.replace(Customer(id="acme", name="Acme Corp")).name
            'Acme Corp'
        """
        self._begin_write()
        given, wanted = self._shape.dump(document), if_version
        return self._finish(document, self._swapped(given, self._id_of(given), about, wanted, creates=False))

    def upsert(self, document: D | Mapping[str, object], **about: Unpack[About]) -> D:
        """Store a document regardless of what is stored: create it with the schema's defaults, or replace the existing
        one.

        Examples:
            >>> customers.upsert(Customer(id="initech", name="Initech")).id
            'initech'
        """
        return self._finish(document, self._upserted(self._shape.dump(self._identified(document)), about))

    def delete(self, id: object = SINGLETON_ID, *, if_version: str | None = None, **about: Unpack[About]) -> bool:
        """Delete the current document, or version `if_version` of it. False if it does not exist, `Conflict` if it
        changes in the meantime or has another version.

        With `softDelete` it goes to trash first. Its history stays in both cases.

        Examples:
            >>> customers.delete("acme"), customers.delete("nobody")
            (True, False)
        """
        removed = self._delete(self._checked(id), about, if_version)
        if removed is None:
            return False
        self._maintain([removed[1]])
        return True

    # For transactions

    def _draft(self, document: Mapping[str, JsonValue], entity_id: str, before: Document | None) -> Document:
        """The document as a transaction stores it, over `before`: checked, with its times."""
        self._begin_write(creates=before is None)
        given = {name: value for name, value in document.items() if name != "id" or value is not None}
        drafted = self._made(given, entity_id) if before is None else self._next(given, entity_id, before)
        self._encoded(entity_id, drafted, before)
        return drafted

    # Without maintenance: the document as it is stored, and what was touched (None: nothing had to be written)

    def _finish(self, item: object, done: tuple[Document, Touched | None]) -> D:
        """The caller's object gets its version before anything else can fail; then history and table are written."""
        document, touched = done
        if touched is None:
            return self._shape.load(cast("DocumentDict", document))
        self._shape.bring(item, self._saved(document, touched))
        heads = self._maintain([touched])
        return self._shape.load(self._saved(document, touched, heads.get(touched.id)))

    def _inserted(
        self, document: DocumentDict, entity_id: str, about: About, holders: Holders | None = None
    ) -> tuple[Document, Touched | None]:
        return self._written_out(self._draft_of_new(document, entity_id), about, holders)

    def _draft_of_new(self, document: DocumentDict, entity_id: str) -> DocumentDraft:
        self._begin_write(creates=True)
        return DocumentDraft(entity_id, self._made(document, entity_id))

    def _save(
        self, document: DocumentDict, about: About, holders: Holders | None = None
    ) -> tuple[Document, Touched | None]:
        return self._written_out(self._draft_of_save(document), about, holders)

    def _draft_of_save(self, document: DocumentDict) -> DocumentDraft:
        self._begin_write(creates=True)
        entity_id = self._id_of(document)
        origin = document.provenance
        if origin is None or (origin.model, origin.id) != (self.name, entity_id):
            return self._draft_of_new(document, entity_id)
        if self.mode == "append":
            raise self._append_only(self._collection.documents.key(entity_id))
        self._check_whole(document, entity_id)
        return self._draft_over(document, entity_id, self._parent(origin))

    def _draft_over(
        self, document: Mapping[str, JsonValue], entity_id: str, parent: Seen, *, with_defaults: bool = False
    ) -> DocumentDraft:
        """`with_defaults`: a document that differs from the parent only by defaults that it does not mention is
        equal."""
        before = parent.document
        saved = self._next(document, entity_id, before)
        is_unchanged = before is not None and is_same(saved, before)
        if before is not None and with_defaults and not is_unchanged:
            is_unchanged = is_same({**self._collection.definition.defaults(), **saved}, before)
        return DocumentDraft(entity_id, saved, parent, is_unchanged)

    def _written_out(
        self, draft: DocumentDraft, about: About, holders: Holders | None = None
    ) -> tuple[Document, Touched | None]:
        """A document that equals its parent is not written, if the parent is still stored."""
        parent = draft.parent
        if draft.is_unchanged and parent is not None and parent.document is not None:
            self._check_there(draft.id, parent)
            return self._unchanged(draft.id, parent.document, parent), None
        return draft.document, self._put(draft.id, draft.document, parent, about, holders=holders)

    def _check_whole(self, document: DocumentDict, entity_id: str) -> None:
        """`Invalid` for a partial document, and for one of the past."""
        origin = document.provenance
        if origin is None or (origin.model, origin.id) != (self.name, entity_id):
            return
        if origin.as_of:
            raise Invalid(
                f"{self.name} '{entity_id}' cannot be saved: it is the state of {origin.as_of}",
                hint=f"rollback('{entity_id}', to_seq=…) goes back to an entry, db.restore(at=…) to a moment; or read "
                f"get('{entity_id}') and change the current document",
            )
        if origin.partial:
            raise Invalid(
                f"{self.name} '{entity_id}' cannot be saved: {origin.partial}",
                hint=f"read the whole document with get('{entity_id}'), or change fields with patch() or update()",
            )

    def _update(
        self,
        document: Mapping[str, JsonValue],
        entity_id: str,
        parent: Seen,
        about: About,
        *,
        holders: Holders | None = None,
    ) -> tuple[Document, Touched | None]:
        """Save over the parent. A document that equals its parent is not written, if the parent is still stored."""
        return self._written_out(self._draft_over(document, entity_id, parent), about, holders)

    def _check_there(self, entity_id: str, parent: Seen) -> None:
        """`Conflict` if the version is not the current one."""
        if self.logged is not None:
            self.logged.check(entity_id, parent)
            return
        found = self._session.store.head(self._collection.documents.key(entity_id))
        if found is None or found.etag != parent.etag:
            raise self._conflict(entity_id, parent.etag, found)

    def _unchanged(self, entity_id: str, before: Document, parent: Seen) -> DocumentDict:
        version = DocumentVersion(parent.etag, parent.version_id, parent.commit)
        provenance = Provenance(self.name, entity_id, version, self._session.clock.now(), dumps_document(before))
        return DocumentDict.of({"id": entity_id, **before}, provenance)

    def _upserted(
        self, document: DocumentDict, about: About, holders: Holders | None = None
    ) -> tuple[Document, Touched | None]:
        self._begin_write(creates=True)
        entity_id = self._new_id(document)
        if self.mode == "append":
            return self._inserted(document, entity_id, about, holders)
        return self._swapped(document, entity_id, about, None, creates=True, holders=holders)

    def _swapped(
        self,
        document: DocumentDict,
        entity_id: str,
        about: About,
        if_version: str | None,
        *,
        creates: bool,
        holders: Holders | None = None,
    ) -> tuple[Document, Touched | None]:
        """Store the document in place of the current one, valid or not."""
        self._check_whole(document, entity_id)
        for is_last in self._tries():
            found = self._stored_now(entity_id)
            try:
                draft = self._draft_of_swap(document, entity_id, found, if_version, creates=creates)
                return self._written_out(draft, about, holders)
            except Conflict:
                if is_last or if_version is not None:
                    raise
        raise AssertionError("unreachable")

    def _draft_of_swap(
        self, document: DocumentDict, entity_id: str, found: Object | None, if_version: str | None, *, creates: bool
    ) -> DocumentDraft:
        """Save over `found`, the current document."""
        if found is None and creates:
            return self._draft_of_new(document, entity_id)
        if found is None:
            raise self._missing(entity_id)
        parent = self._seen(entity_id, found, self._collection.documents.recorded(found))
        self._check_version(entity_id, parent, if_version)
        return self._draft_over(document, entity_id, parent, with_defaults=creates)

    def _tries(self) -> Iterator[bool]:
        """Repeats while others are faster; yields True for the last attempt."""
        session = self._session
        for attempt in attempts(CHANGE_ATTEMPTS, session.clock, session.ids, base_seconds=0.01, cap_seconds=1.0):
            yield attempt == CHANGE_ATTEMPTS - 1

    def _delete(
        self,
        entity_id: str,
        about: About,
        if_version: str | None = None,
        expected: Seen | None = None,
        note: JsonObject | None = None,
    ) -> tuple[Document, Touched] | None:
        """The deleted document (only its id if it was invalid), or None if it did not exist."""
        self._begin_write()
        actor, note = self._actor(about), {**(self._note(about) or {}), **(note or {})} or None
        wanted = expected if if_version is None else self._version_seen(entity_id, DocumentVersion.decode(if_version))
        if self.logged is not None:
            removed = self.logged.delete(entity_id, actor, note=note, parent=wanted)
            return (
                None
                if removed is None
                else ({"id": entity_id, **removed[0]}, Touched(entity_id, unfreed=removed[1].unfreed))
            )
        found = self._session.store.get(self._collection.documents.key(entity_id))
        if wanted is not None and (found is None or found.etag != wanted.etag):
            raise self._conflict(entity_id, wanted.etag, found)
        if found is None:
            return None
        reservation = self._claiming.leaving(found, entity_id)
        if self._collection.definition.soft_delete:
            at = iso_seconds(self._session.clock.now())
            deletion = Deletion(found.etag, found.version_id, actor, at, note)
            self._collection.trash.put_away(entity_id, found.body, deletion)
        self._writing([entity_id])
        outcome = delete_unchanged(self._session.store, found.key, found.etag, found.version_id)
        if isinstance(outcome, Lost):
            self._follows([entity_id])
            raise self._defeat(entity_id, found.etag, outcome)
        document = self._readable(found.body)
        self._memory.deleted(entity_id, document)
        # Gone: a hidden retry met our own delete, or another writer deleted the same version. Either way the document
        # is deleted.
        marker = None if isinstance(outcome, Gone) else Sighting(outcome.version_id, actor, note)
        return {"id": entity_id, **(document or {})}, Touched(
            entity_id, Seen(found.etag, document, found.version_id), marker, self._claiming.free(reservation)
        )

    # Ids, times, versions

    def _new_id(self, document: Mapping[str, JsonValue], id: object = None) -> str:
        """The id that is given, or the document's own, or a new one."""
        definition = self._collection.definition
        if definition.is_singleton:
            return SINGLETON_ID
        given = document.get("id") if id is None else id
        return definition.new_id(self._session.ids) if given is None else self._checked(given)

    def _identified(self, document: object, id: object = None) -> object:
        """A dict gets its id before it becomes an object: the class may need one."""
        if not isinstance(document, Mapping) or self._collection.definition.is_singleton:
            return document
        if id is None and document.get("id") is not None:
            return document
        return {**document, "id": self._new_id(document, id)}

    def _id_of(self, document: Mapping[str, JsonValue]) -> str:
        if self._collection.definition.is_singleton:
            return SINGLETON_ID
        given = document.get("id")
        if given is None:
            raise Invalid(
                "the document has no id",
                path="id",
                hint=Hint(
                    "set one, or call insert(), which creates one",
                    http="set one, or use POST …/documents, which creates one",
                ),
            )
        return self._checked(given)

    def _made(self, document: Mapping[str, JsonValue], entity_id: str) -> Document:
        """A new document: its id, what was given, defaults and times, in this order, because people read these files.
        One that was stored before starts with the time of now."""
        definition = self._collection.definition
        own = document.get("id")
        is_own = own is not None and (definition.is_singleton or self._checked(own) == entity_id)
        given = {**document, "id": own if is_own else entity_id}
        if isinstance(document, DocumentDict) and document.provenance is not None:
            given.pop("updatedAt", None)
        usual = {name: value for name, value in definition.defaults().items() if name not in given}
        made = self._stamped({"id": None, **given, **usual}, is_new=True)
        if definition.is_singleton and own is None:
            del made["id"]
        definition.check_document(made, id=entity_id)
        return made

    def _next(self, document: Mapping[str, JsonValue], entity_id: str, before: Document | None) -> Document:
        """The document that follows `before`. It keeps the time of its creation."""
        kept = {} if before is None or "createdAt" not in before else {"createdAt": before["createdAt"]}
        given = {name: value for name, value in document.items() if name != "id" or value is not None}
        if given.get("createdAt", "") is None:
            del given["createdAt"]
        elif "createdAt" in given and given["createdAt"] != kept.get("createdAt"):
            check_time("createdAt", given["createdAt"])
        own: Document = {} if self._collection.definition.is_singleton else {"id": entity_id}
        return self._stamped({**own, **kept, **given}, is_new=False)

    def _parent(self, origin: Provenance) -> Seen:
        """The version that a document came from, as a write names it. A row of a table has less: its oplog entry names
        the version, and the document is read again to find the changes."""
        now = self._session.clock.now()
        if origin.at.etag is not None or origin.at.commit is not None:
            etag, commit = origin.at.etag or "", origin.at.commit
            if origin.body is not None:
                return Seen(etag, origin.document(), origin.fresh_version_id(now), commit)
        wanted = self._version_seen(origin.id, origin.at)
        found = self._current(origin.id)
        if found is None or not _is_of(self._seen(origin.id, *found), wanted):
            raise self._conflict(origin.id, wanted.etag, None if found is None else found[0])
        return self._seen(origin.id, *found)

    def _seen(self, entity_id: str, found: ObjectInfo, document: Document | None) -> Seen:
        commit = self._collection.origins.commit_of(entity_id, found)
        return Seen(found.etag, document, found.version_id, commit)

    def _version_seen(self, entity_id: str, at: DocumentVersion) -> Seen:
        """The parts of a version; a version that is only a seq is looked up in the oplog."""
        if at.etag is not None or at.commit is not None or at.seq is None:
            return Seen(at.etag or "", None, at.version_id, at.commit)
        entry = self._collection.oplog.read(entity_id, at.seq)
        if entry is None:
            raise self._conflict(entity_id, f"seq {at.seq}", None)
        commit = entry.metadata.get("commitSeq")
        return Seen(entry.etag or "", None, entry.version_id, commit if isinstance(commit, int) else None)

    def _check_version(self, entity_id: str, seen: Seen, if_version: str | None) -> None:
        """`Conflict` if the stored document does not have that version."""
        if if_version is None:
            return
        wanted = self._version_seen(entity_id, DocumentVersion.decode(if_version))
        if not _is_of(seen, wanted):
            now = self._session.store.head(self._collection.documents.key(entity_id))
            raise self._conflict(entity_id, wanted.etag, now)

    def _missing(self, entity_id: str) -> NotFound:
        return missing(self._collection, entity_id)


def _is_of(seen: Seen, wanted: Seen) -> bool:
    """Compares commits if both have one, else etags."""
    if seen.commit is not None and wanted.commit is not None:
        return seen.commit == wanted.commit
    return seen.etag == wanted.etag
