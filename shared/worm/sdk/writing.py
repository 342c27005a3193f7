"""Creating, saving, changing and deleting documents, one or many.

Many at once: concurrent inside, one result for each, in order. Inline maintenance folds the bulk once. One item's error
fails no other. Of several documents with one id only the first is saved, the others fail: this code does not guess
which of them should stay. Documents that share a unique value are saved one after the other, in order: the first that
can be saved gets it.

A module of its own because it is one group of verbs: `Model` (`model.py`) is made of five such groups.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

from worm.clock import attempts, iso_seconds
from worm.codec.strict_json import JsonValue, Missing, check_json
from worm.collections.claims import Holders
from worm.collections.entries import Document
from worm.collections.reconcile import Sighting
from worm.collections.trash import Deletion, delete_unchanged
from worm.errors import Conflict, Invalid, NotFound, WormError
from worm.schema.fields import SINGLETON_ID, check_id, id_text, new_id, typed_problem
from worm.sdk.access import Access, Result, Touched
from worm.sdk.memory import Seen
from worm.store.base import Gone, Lost
from worm.store.parallel import in_parallel

PATCH_ATTEMPTS = 60
T = TypeVar("T")


class Writing(Access):
    """`create`, `save`, `patch`, `delete`, `save_many`, `delete_many`."""

    def create(self, data: Mapping[str, JsonValue], id: str | None = None) -> Document:
        """A new, checked document with id and times; not stored until `save`."""
        definition, own = self._collection.definition, data.get("id")
        given = id if id is not None else own
        if definition.is_singleton:
            entity_id = SINGLETON_ID
        elif given is None:
            entity_id = new_id(definition.id_type, self._session.ids)
        else:
            entity_id = id_text(definition.id_type, given)
        check_id(definition.id_type, entity_id)
        is_same = own is not None and not definition.is_singleton and id_text(definition.id_type, own) == entity_id
        document = self._stamped({**definition.defaults(), **data, "id": own if is_same else entity_id}, is_new=True)
        check_json(document)
        definition.check_document(document, id=entity_id)
        return document

    def save(self, document: Mapping[str, JsonValue], *, actor: str | None = None) -> Document:
        """Store a document: create it, or update the one that this session read. `Conflict` if it changed since."""
        saved, touched = self._save(document, actor)
        self._maintain([touched])
        return saved

    def patch(self, id: str, changes: Mapping[str, JsonValue | Missing], *, actor: str | None = None) -> Document:
        """Set top-level fields of the stored document, whatever it holds now: None sets null, `worm.MISSING` removes
        the field. Another's write in between is no conflict: the changes are applied to that one."""
        self._begin_write()
        self._checked(id)
        session = self._session
        for attempt in attempts(PATCH_ATTEMPTS, session.clock, session.ids, base_seconds=0.01, cap_seconds=1.0):
            found = self._current(id)
            if found is None:
                raise self._missing(id)
            stored, before = found
            merged: Document = {
                name: value for name, value in ({**before, **changes}).items() if not isinstance(value, Missing)
            }
            parent = Seen(stored.etag, before, stored.version_id, self._memory.commit_of(id, stored))
            patched = self._stamped(merged, is_new=False)
            try:
                touched = self._put(id, patched, parent, actor)
            except Conflict:
                if attempt == PATCH_ATTEMPTS - 1:
                    raise
                continue
            self._maintain([touched])
            return {"id": id, **patched}
        raise AssertionError("unreachable")

    def delete(self, id: str = SINGLETON_ID, *, actor: str | None = None) -> bool:
        """Delete the document as it is now; False when there is none, `Conflict` when it changes meanwhile.

        With `softDelete` it goes to trash first. Its history stays in either case.
        """
        removed = self._delete(id, actor)
        if removed is None:
            return False
        self._maintain([removed[1]])
        return True

    # Many at once

    def save_many(
        self, documents: Sequence[Mapping[str, JsonValue]], *, actor: str | None = None
    ) -> list[Result[Document]]:
        """`save` for each. A document whose id an earlier one has is not saved: `Invalid`."""
        ids = [self._named(document) for document in documents]
        holders = self._claiming.holders(documents) if self._claiming.is_needed else None
        first = {one: position for position, one in reversed(list(enumerate(ids)))}

        def save(position: int) -> tuple[Document, Touched]:
            one = ids[position]
            if one and first[one] != position:
                raise Invalid(
                    f"{self.name} '{one}' is twice in this bulk",
                    key=self._collection.documents.key(one) if self._is_id(one) else None,
                    hint="only the first one was tried; give the other its own id, or save it afterwards",
                )
            return self._save(documents[position], actor, holders)

        shared = self._claiming.shared_values(documents) if self._claiming.is_needed else None
        return self._bulk(ids, range(len(documents)), save, shared)

    def delete_many(self, ids: Sequence[str], *, actor: str | None = None) -> list[Result[Document]]:
        """`delete` for each; `document` is what was deleted."""
        return self._bulk(ids, ids, lambda one: self._delete(one, actor))

    def _named(self, document: Mapping[str, JsonValue]) -> str:
        """The id in the result; empty where there is none."""
        given = SINGLETON_ID if self._collection.definition.is_singleton else document.get("id")
        return "" if given is None else str(given)

    def _is_id(self, text: str) -> bool:
        return typed_problem(self._collection.definition.id_type, text) is None

    def _bulk(
        self,
        ids: Sequence[str],
        items: Sequence[T],
        work: Callable[[T], tuple[Document, Touched] | None],
        shared: Sequence[Iterable[Hashable]] | None = None,
    ) -> list[Result[Document]]:
        results: list[Result[Document]] = [Result(one) for one in ids]
        touched: dict[str, Touched] = {}

        def one_group(positions: Sequence[int]) -> None:
            for position in positions:
                try:
                    done = work(items[position])
                except WormError as error:
                    results[position] = Result(ids[position], error=error)
                    continue
                if done is not None:
                    results[position] = Result(ids[position], done[0])
                    touched.setdefault(ids[position], done[1])

        names = [{one, *more} for one, more in zip(ids, shared or [()] * len(ids), strict=True)]
        in_parallel(one_group, groups_of(names))
        try:
            self._maintain(list(touched.values()))
        except WormError as error:
            return [
                Result(one.id, one.document, error) if one.document is not None and one.ok else one for one in results
            ]
        return results

    # For transactions

    def _draft(self, document: Mapping[str, JsonValue], entity_id: str, before: Document | None) -> Document:
        """The document as a transaction stores it, over `before`: checked, with its times."""
        self._begin_write(creates=before is None)
        given = {name: value for name, value in document.items() if name != "id" or value is not None}
        kept = {} if before is None or "createdAt" not in before else {"createdAt": before["createdAt"]}
        drafted = self._stamped({"id": entity_id, **kept, **given}, is_new=before is None)
        self._encoded(entity_id, drafted)
        return drafted

    def _id_in(self, document: Mapping[str, JsonValue], id: str | None) -> str:
        """The id that is given, or the document's own, or a new one."""
        definition = self._collection.definition
        given = document.get("id") if id is None else id
        if given is None or definition.is_singleton:
            return new_id(definition.id_type, self._session.ids)
        return self._checked(id_text(definition.id_type, given))

    # Without maintenance

    def _save(
        self, document: Mapping[str, JsonValue], actor: str | None, holders: Holders | None = None
    ) -> tuple[Document, Touched]:
        self._begin_write(creates=True)
        entity_id = self._id_of(document)
        if document.get("id", "") is None:  # of a singleton
            document = {name: value for name, value in document.items() if name != "id"}
        parent = self._memory.seen(entity_id)
        if parent is not None and self.mode == "append":
            raise self._append_only(self._collection.documents.key(entity_id))
        saved = self._stamped(document, is_new=parent is None)
        return dict(saved), self._put(entity_id, saved, parent, actor, holders=holders)

    def _delete(self, entity_id: str, actor: str | None) -> tuple[Document, Touched] | None:
        """The deleted document (only its id where it was no valid one), or None where there was none."""
        self._begin_write()
        self._checked(entity_id)
        actor = actor or self._session.settings.actor
        if self.logged is not None:
            removed = self.logged.delete(entity_id, actor)
            return (
                None if removed is None else ({"id": entity_id, **removed[0]}, Touched(entity_id, unfreed=removed[1]))
            )
        found = self._session.store.get(self._collection.documents.key(entity_id))
        if found is None:
            self._memory.forget(entity_id)
            return None
        reservation = self._claiming.leaving(found, entity_id)
        if self._collection.definition.soft_delete:
            at = iso_seconds(self._session.clock.now())
            deletion = Deletion(found.etag, found.version_id, actor, at)
            self._collection.trash.put_away(entity_id, found.body, deletion)
        outcome = delete_unchanged(self._session.store, found.key, found.etag, found.version_id)
        if isinstance(outcome, Lost):
            raise self._defeat(entity_id, found.etag, outcome)
        document = self._readable(entity_id, found.body)
        self._memory.deleted(entity_id, document)
        # Gone: a hidden retry met our own delete, or another deleted the same version. What was asked for is the case.
        marker = None if isinstance(outcome, Gone) else Sighting(outcome.version_id, actor)
        return {"id": entity_id, **(document or {})}, Touched(
            entity_id, Seen(found.etag, document, found.version_id), marker, self._claiming.free(reservation)
        )

    def _id_of(self, document: Mapping[str, JsonValue]) -> str:
        if self._collection.definition.is_singleton:
            return SINGLETON_ID
        given = document.get("id")
        if given is None:
            raise Invalid("the document has no id", path="id", hint=f"make it with {self.name}.create(…)")
        return self._checked(id_text(self._collection.definition.id_type, given))

    def _missing(self, entity_id: str) -> NotFound:
        return NotFound(f"there is no {self.name} '{entity_id}'", key=self._collection.documents.key(entity_id))


def groups_of(names: Sequence[Iterable[Hashable]]) -> list[list[int]]:
    """The positions that share a name, directly or through others, together and in order."""
    leader = list(range(len(names)))

    def leading(position: int) -> int:
        while leader[position] != position:
            leader[position] = leader[leader[position]]
            position = leader[position]
        return position

    first: dict[Hashable, int] = {}
    for position, own in enumerate(names):
        for name in own:
            leader[leading(position)] = leading(first.setdefault(name, position))
    groups: dict[int, list[int]] = {}
    for position in range(len(names)):
        groups.setdefault(leading(position), []).append(position)
    return list(groups.values())
