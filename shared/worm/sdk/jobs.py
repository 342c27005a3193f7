"""A model as jobs on a cluster save with it, whose tasks may be repeated or run twice at once.

All saves of a job carry the time of its start, objects that are not valid documents can be replaced, and what an
attempt did before it died can be looked up in the history and recorded.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from worm.clock import backoff
from worm.collections import Document, Heads, Holders, OplogEntry
from worm.errors import Invalid
from worm.formats import TIME_FIELDS, FieldDef, JsonObject, JsonValue
from worm.sdk.access import Result, Seen, Touched
from worm.sdk.bulk import Verb
from worm.sdk.document import About, DocumentDict
from worm.sdk.model import Model
from worm.sdk.shapes import Dicts
from worm.sdk.writing import DocumentDraft
from worm.upkeep import Session

_LOOK_BACK = 100


class JobModel(Model):
    """A model whose saves all carry one time."""

    stamp: str = ""

    @classmethod
    def of(cls, session: Session, name: str) -> JobModel:
        """The model with its documents as dicts."""
        return cls(session, name, Dicts(session.schema.model(name)))

    @property
    def fields(self) -> Mapping[str, FieldDef]:
        """The fields that the schema declares, and the two times."""
        times = {name: FieldDef(type="datetime") for name in TIME_FIELDS}
        return {**times, **self._collection.definition.fields}

    @property
    def defaults(self) -> JsonObject:
        return self._collection.definition.defaults()

    def pause(self, attempt: int) -> None:
        self._session.clock.sleep(backoff(self._session.ids, attempt))

    def _stamped(self, document: Mapping[str, JsonValue], *, is_new: bool) -> Document:
        times = {name: self.stamp for name in TIME_FIELDS if is_new and document.get(name) is None}
        stamped = super()._stamped({**document, **times}, is_new=is_new)
        return stamped if is_new else {**stamped, "updatedAt": self.stamp}

    def is_broken(self, found: Result[DocumentDict]) -> bool:
        """Whether the stored object is not a valid document."""
        return isinstance(found.error, Invalid) and self._is_id(found.id)

    def save_over(
        self, documents: Sequence[DocumentDict], broken: Collection[str], about: About
    ) -> list[Result[DocumentDict]]:
        """`save_many`; the stored objects with these ids were found `broken`, and are replaced if they still are."""

        def draft(document: DocumentDict) -> DocumentDraft:
            entity_id = self._id_of(document)
            if entity_id not in broken:
                return self._draft_of_save(document)
            self._begin_write()
            return self._draft_over(document, entity_id, self._broken_version(entity_id))

        def alone(document: DocumentDict, holders: Holders | None) -> tuple[Document, Touched | None]:
            return self._written_out(draft(document), about, holders)

        return self._many(documents, Verb(lambda one, _: draft(one), alone), about)

    def delete_found(self, found: Mapping[str, DocumentDict | None], about: About) -> list[Result[DocumentDict]]:
        """Delete the versions that were read; None: a broken document, which is deleted as it is now."""
        ids = list(found)
        versions = {one: None if document is None else document.version for one, document in found.items()}
        return self._bulk(ids, ids, lambda one: self._delete(one, about, versions[one]))

    def _broken_version(self, entity_id: str) -> Seen:
        found = self._session.store.get(self._collection.documents.key(entity_id))
        if self.logged is not None:
            found = self.logged.latest(entity_id, found)
        if found is not None:
            try:
                self._collection.document_of(entity_id, found)
            except Invalid:
                return self._seen(entity_id, found, None)
        raise self._conflict(entity_id, "", found)

    def record(self, documents: Sequence[DocumentDict], gone: Sequence[str] = ()) -> None:
        """Bring history and table of these documents up to date, and of `gone` ones, if they are behind (inline
        maintenance)."""
        etags = {origin.id: origin.at.etag for one in documents if (origin := one.provenance) is not None}
        behind = [*etags, *gone]
        if self._collection.definition.oplog and behind:
            with self._tables:
                heads = self.table.heads.among(behind) or Heads(self.name)
            behind = [
                *(one for one in etags if (head := heads.get(one)) is None or head.etag != etags[one]),
                *(one for one in gone if (head := heads.get(one)) is not None and head.live),
            ]
        self._maintain([Touched(one) for one in behind])

    def entries_since(self, entity_id: str, moment: str) -> list[OplogEntry]:
        """The newest entries, from the newest back to `moment`."""
        tail = self._collection.oplog.tail(entity_id) if self._collection.definition.oplog else None
        if tail is None or tail.ts < moment:
            return []
        found: list[OplogEntry] = []
        for entry in self._collection.oplog.newest_first(entity_id, tail.seq):
            if entry.ts < moment or len(found) >= _LOOK_BACK:
                break
            found.append(entry)
        return found
