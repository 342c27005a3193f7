"""Changing stored documents: each verb reads the document, applies a change and saves it over the version that it read.
If another writer was faster, it tries again. No change gets lost, and the caller sees no `Conflict`.

With `if_version` a change applies to that version only: a write in between is then a `Conflict`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Unpack, cast

from worm.collections import Document
from worm.errors import Conflict, Invalid, show
from worm.formats import JsonValue
from worm.query import Filter
from worm.sdk.access import D, Result, Seen, Touched
from worm.sdk.bulk import Bulk
from worm.sdk.document import About, DocumentDict, id_shown, provenance_of
from worm.sdk.operators import check_operators, check_patch, merged, updated
from worm.sdk.reading import Reading
from worm.sdk.values import as_changes, check_function

Change = Callable[[Document], Document]
Wanted = Callable[[Document], bool]


class Changing(Bulk[D], Reading[D]):
    """`patch`, `update`, `modify`, `refresh`, `update_many`, `delete_many`."""

    def patch(
        self, id: object, changes: Mapping[str, object], *, if_version: str | None = None, **about: Unpack[About]
    ) -> D:
        """Merge fields into the stored document (RFC 7396): objects are merged, None removes a field, anything else
        replaces. To store null: `update(id, {"$set": {"field": None}})`.

        Examples:
            >>> customers.patch("acme", {"status": "active"}).status
            'active'
        """
        checked = as_changes(check_patch(changes), self._collection.definition)
        return self._changed(id, lambda before: merged(before, checked), about, if_version)

    def update(
        self, id: object, operators: Mapping[str, object], *, if_version: str | None = None, **about: Unpack[About]
    ) -> D:
        """Change fields with `$set`, `$unset`, `$inc`, `$push`, `$pull`, `$addToSet`, with dotted paths.

        Examples:
            >>> customers.update("acme", {"$inc": {"visits": 1}}).visits
            1
        """
        checked = self._operators(operators)
        return self._changed(id, lambda before: updated(before, checked), about, if_version)

    def modify(
        self,
        id: object,
        function: Callable[[D], D | None],
        *,
        if_version: str | None = None,
        **about: Unpack[About],
    ) -> D:
        """Read the document, let the function change it (in place, or by returning a new one), and save it. If another
        writer is faster, the function is called again with the newer document, so it must have no side effects.

        Examples:
            >>> def greet(customer):
            ...     customer.visits += 1
            >>> customers.modify("acme", greet).visits
            1
        """
        check_function(function, "function")
        self._begin_write()
        entity_id = self._checked(id)
        for is_last in self._tries():
            found = self._current(entity_id)
            if found is None:
                raise self._missing(entity_id)
            self._check_version(entity_id, self._seen(entity_id, *found), if_version)
            item = self._shape.load(self._read(entity_id, *found))
            origin = provenance_of(item)
            returned: D | None = function(item)
            document = self._shape.dump(item if returned is None else returned)
            if self._new_id(document, None if document.get("id") is not None else entity_id) != entity_id:
                raise Invalid(f"the function changed the id of {self.name} '{entity_id}'", path="id")
            self._check_whole(document, entity_id)
            if document.provenance is not None and origin is not None and document.provenance.at != origin.at:
                raise Invalid("the function returned a different version of the document", path="function")
            named: Document = {"id": entity_id} if document.get("id") is None else {}
            try:
                done = self._save(DocumentDict.of(document | named, origin), about)
            except Conflict:
                if is_last or if_version is not None:
                    raise
                continue
            return self._finish(None, done)
        raise AssertionError("unreachable")

    def refresh(self, document: D) -> D:
        """Read the document again: the object that you pass is updated to the stored state, and returned. `NotFound` if
        it was deleted.

        Examples:
            >>> acme = customers.get("acme")
            >>> _ = customers.patch("acme", {"visits": 5})
            >>> customers.refresh(acme).visits
            5
        """
        origin = provenance_of(document)
        entity_id = self._id_of(self._shape.dump(document)) if origin is None else origin.id
        found = self._current(entity_id)
        if found is None:
            raise self._missing(entity_id)
        return self._shape.refreshed(document, self._read(entity_id, *found))

    # Many at once

    def update_many(
        self,
        filter: Mapping[str, object] | None,
        operators: Mapping[str, object],
        *,
        dry_run: bool = False,
        **about: Unpack[About],
    ) -> list[Result[D]]:
        """`update` for each document that matches at the moment it is changed. `document` is the result, or None if it
        no longer matched. `dry_run` changes nothing and shows the results.

        Examples:
            >>> results = customers.update_many({"status": "lead"}, {"$set": {"status": "active"}})
            >>> [result.document.id for result in results]
            ['acme']
        """
        self._begin_write()
        checked, compiled = self._operators(operators), self._filter(filter)
        ids = self._matching(filter)

        def work(entity_id: str) -> tuple[Document, Touched | None] | None:
            wanted = self._wanted(entity_id, compiled)
            return self._change(entity_id, lambda before: updated(before, checked), about, wanted, dry_run=dry_run)

        return self._bulk(ids, ids, work)

    def delete_many(
        self,
        which: Mapping[str, object] | Sequence[object],
        *,
        dry_run: bool = False,
        **about: Unpack[About],
    ) -> list[Result[D]]:
        """`delete` for each of the ids, or for each document that matches the filter at the moment it is deleted.
        `document` is the deleted one. `dry_run` deletes nothing and shows what would be deleted.

        Examples:
            >>> [result.document.id for result in customers.delete_many({"status": "active"})]
            ['globex']
        """
        if isinstance(which, Mapping):
            ids, compiled = self._matching(which), self._filter(which)
        elif isinstance(which, str | bytes) or not isinstance(which, Sequence):
            raise Invalid(
                "needs a filter or a list of ids", path="delete_many", hint="to delete one document, call delete(id)"
            )
        else:
            return self._bulk(
                [id_shown(one) for one in which], which, lambda one: self._delete_one(one, None, about, dry_run=dry_run)
            )
        return self._bulk(ids, ids, lambda one: self._delete_one(one, compiled, about, dry_run=dry_run))

    def _delete_one(
        self, given: object, compiled: Filter | None, about: About, *, dry_run: bool
    ) -> tuple[Document, Touched | None] | None:
        entity_id = self._checked(given)
        if compiled is None and not dry_run:
            return self._delete(entity_id, about)
        for is_last in self._tries():
            found = self._current(entity_id)
            if found is None or (compiled is not None and not self._wanted(entity_id, compiled)(found[1])):
                return None
            if dry_run:
                return self._read(entity_id, *found), None
            try:
                return self._delete(entity_id, about, expected=self._seen(entity_id, *found))
            except Conflict:
                if is_last:
                    raise
        raise AssertionError("unreachable")

    # Shared

    def _changed(self, id: object, change: Change, about: About, if_version: str | None) -> D:
        self._begin_write()
        done = self._change(self._checked(id), change, about, if_version=if_version)
        return self._finish(None, cast("tuple[Document, Touched | None]", done))

    def _change(
        self,
        entity_id: str,
        change: Change,
        about: About,
        wanted: Wanted | None = None,
        *,
        if_version: str | None = None,
        dry_run: bool = False,
    ) -> tuple[Document, Touched | None] | None:
        """None if the document is not wanted, or was deleted in the meantime."""
        for is_last in self._tries():
            found = self._current(entity_id)
            if found is None or (wanted is not None and not wanted(found[1])):
                if wanted is not None:
                    return None
                raise self._missing(entity_id)
            parent = self._seen(entity_id, *found)
            self._check_version(entity_id, parent, if_version)
            after = change(found[1])
            self._check_id_kept(entity_id, after)
            if dry_run:
                return self._tried(entity_id, after, parent), None
            try:
                return self._update(after, entity_id, parent, about)
            except Conflict:
                if is_last or if_version is not None:
                    raise
        raise AssertionError("unreachable")

    def _check_id_kept(self, entity_id: str, after: Document) -> None:
        """A change that leaves all other fields alone is checked nowhere else."""
        if "id" in after and not self._collection.definition.is_singleton and str(after["id"]) != entity_id:
            raise Invalid(f"must equal the id of the document, {show(entity_id)}, not {show(after['id'])}", path="id")

    def _tried(self, entity_id: str, after: Document, parent: Seen) -> Document:
        """What a dry run shows. It is checked like a save."""
        following = self._next(after, entity_id, parent.document)
        self._encoded(entity_id, following, parent.document)
        return DocumentDict({"id": entity_id, **following})

    def _operators(self, operators: Mapping[str, object]) -> dict[str, dict[str, JsonValue]]:
        given: object = operators
        if isinstance(given, Mapping) and isinstance(given.get("$set"), Mapping):
            operators = {**given, "$set": as_changes(given["$set"], self._collection.definition)}
        return check_operators(operators)

    def _matching(self, filter: Mapping[str, object] | None) -> list[str]:
        return [str(row["id"]) for row in self.find_all(filter=filter, select=["id"])]

    def _wanted(self, entity_id: str, compiled: Filter) -> Wanted:
        return lambda document: compiled.matches(self._collection.as_row(entity_id, document))
