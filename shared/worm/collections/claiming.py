"""Unique values around one write: claim them before, confirm them after, free the old ones; see
`collections/claims.py`.

A document may have a value without a claim if a raw upload put it there. So before a value is claimed, the index is
checked. It may lag, so it only names candidates; the documents decide. One lookup per index serves a whole bulk write.

A write may lose a claim if it stalls between claim and document for longer than the grace period. It is then undone if
that takes nothing from others, and it is an error in any case.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from worm.collections.claims import (
    Claims,
    Givers,
    Holders,
    Reservation,
    UniqueValue,
    no_givers,
)
from worm.collections.collection import Collection
from worm.collections.entries import Document
from worm.collections.origins import write_metadata
from worm.collections.trash import delete_unchanged
from worm.errors import CommitStateUnknown, Invalid, Unavailable, UniqueViolation, WormError
from worm.formats import IndexDef, JsonValue, dumps_document
from worm.store import Gone, Lost, Object, Read, Won, in_chunks

CHUNK = 500
IdsWith = Callable[[IndexDef, Sequence[JsonValue]], set[str] | None]
"""The ids that an index has under any of the values. None: the index cannot answer now."""


class Claiming:
    """The claims of one model's writes in one session. Costs nothing on a model without a unique index."""

    def __init__(self, collection: Collection, ids_with: IdsWith, forget: Callable[[str], None]) -> None:
        """`forget`: called with the id of a document whose write was undone."""
        self._collection = collection
        self._claims = collection.claims
        self._forget = forget
        self._ids_with = ids_with
        self.is_needed = self._claims.are_needed

    def holders(self, documents: Sequence[Mapping[str, JsonValue]]) -> Holders:
        """Which other documents have unique values of these documents: one lookup per index for all of them."""
        return IndexHolders(self._claims, self._ids_with, documents)

    def reserve(
        self,
        entity_id: str,
        before: Document | None,
        after: Document | None,
        holders: Holders | None,
        givers: Givers = no_givers,
    ) -> Reservation:
        """Before the write. `UniqueViolation` if another document has, or is about to get, one of the values."""
        if not self.is_needed:
            return Reservation(entity_id)
        looked_up = holders or self.holders([] if after is None else [after])
        return self._claims.reserve(entity_id, before, after, looked_up, givers)

    def leaving(self, found: Object, entity_id: str) -> Reservation:
        """Before a document is deleted: the claims that its deletion makes unnecessary."""
        if not self.is_needed:
            return Reservation(entity_id)
        return self._claims.reserve(entity_id, self._collection.documents.recorded(found), None)

    def shared_values(self, documents: Sequence[Mapping[str, JsonValue]]) -> list[set[tuple[str, bytes]]]:
        """For each document its unique values, comparable between documents."""
        return [{(one.field, one.canonical) for one in readable_values(self._claims, [each])} for each in documents]

    @contextmanager
    def around(self, reservation: Reservation) -> Iterator[None]:
        """Around the write: releases the claims if a failure proves that the write did not land."""
        try:
            yield
        except CommitStateUnknown:
            raise
        except WormError as error:
            self._claims.cancel(reservation, error)
            raise

    def confirm(self, reservation: Reservation, stored: Won | Object, before: Document | None, *, is_new: bool) -> None:
        """After the write: `UniqueViolation`, and the write is undone, if a claim was lost in the meantime."""
        violation = self.lost(reservation)
        if violation is None:
            return
        if self._undo(reservation, stored, before, is_new=is_new):
            self._forget(reservation.id)
            self._claims.cancel(reservation, violation)
            violation.hint = "the save took so long that its claim was taken over; it was undone"
        else:
            violation.is_stored = True
            violation.hint = (
                "the save took so long that its claim was taken over; the document is stored anyway, and the "
                "index lists both under conflicts: change one of them"
            )
        raise violation

    def lost(self, reservation: Reservation) -> UniqueViolation | None:
        """After the write: the violation, if another document took over a claim in the meantime."""
        try:
            return self._claims.confirm(reservation)
        except WormError as error:
            unsure = Unavailable(
                f"{self._named(reservation)} is stored, but its claims could not be confirmed: {error.message}",
                key=error.key,
                hint="run `worm verify` to see whether another document also has its unique values",
            )
            unsure.is_stored = True
            raise unsure from error

    def free(self, reservation: Reservation) -> WormError | None:
        """Free the values that the document no longer has. Returns the error if one could not be freed: the write is
        done, so the error is reported last (`Access._maintain`)."""
        try:
            self._claims.free(reservation)
        except WormError as error:
            left = Unavailable(
                f"{self._named(reservation)}: the change is stored, but the claim on its old value remains: "
                f"{error.message}",
                key=error.key,
                hint="the next save with that value takes the claim over",
            )
            left.is_stored = True
            return left
        return None

    def _undo(self, reservation: Reservation, stored: Won | Object, before: Document | None, *, is_new: bool) -> bool:
        """Restore the state before the write, if nobody has overwritten it. Append mode removes nothing."""
        store, key = self._collection.store, self._collection.documents.key(reservation.id)
        outcome: Won | Lost | Gone
        if is_new:
            if self._collection.definition.mode == "append":
                return False
            outcome = delete_unchanged(store, key, stored.etag, stored.version_id)
        elif before is not None and self._claims.keep(reservation):
            metadata = write_metadata(actor=None, parent=stored.etag)
            outcome = store.put_if_match(key, dumps_document(before), stored.etag, metadata=metadata)
        else:
            return False
        return isinstance(outcome, Won)

    def _named(self, reservation: Reservation) -> str:
        return f"{self._collection.name} '{reservation.id}'"


class IndexHolders(Holders):
    """The other documents that have a unique value of these documents. Safe across threads."""

    def __init__(self, claims: Claims, ids_with: IdsWith, documents: Sequence[Mapping[str, JsonValue]]) -> None:
        self._claims = claims
        self._ids_with = ids_with
        self._saved = documents
        self._lock = threading.Lock()
        self._candidates: dict[str, set[str]] = {}
        self._holding: dict[str, dict[bytes, list[str]]] = {}

    def of(self, value: UniqueValue, entity_id: str) -> str | None:
        with self._lock:
            if value.field not in self._candidates:
                self._candidates[value.field] = self._look_up(value.field)
            if not self._candidates[value.field] - {entity_id}:
                return None
            if value.field not in self._holding:
                self._holding[value.field] = self._read(value.field, sorted(self._candidates[value.field]))
            others = self._holding[value.field].get(value.canonical, [])
        candidates = (other for other in others if other != entity_id)
        return next((other for other in candidates if not self._claims.is_outdated(other, value)), None)

    def _look_up(self, field: str) -> set[str]:
        """The candidates. An index that cannot answer names none: between saves, the claims decide."""
        index = next(one for one in self._claims.documents.definition.unique_indexes if one.field == field)
        values = readable_values(self._claims, self._saved)
        wanted = {value.canonical: value.value for value in values if value.field == field}
        return self._ids_with(index, list(wanted.values())) or set()

    def _read(self, field: str, ids: Sequence[str]) -> dict[bytes, list[str]]:
        """The ids of the documents that hold each value now. A text that cannot be an id has no document."""
        documents, holding = self._claims.documents, dict[bytes, list[str]]()
        possible = [one for one in ids if documents.definition.id_problem(one) is None]
        for chunk in in_chunks(possible, CHUNK):
            reads = [Read(documents.key(one)) for one in chunk]
            for one, found in zip(
                chunk, self._claims.store.get_many(reads, max_bytes=documents.max_bytes), strict=True
            ):
                if isinstance(found, Exception) and not isinstance(found, Invalid):
                    raise found
                stored = documents.recorded(found) if isinstance(found, Object) else None
                value = None if stored is None else UniqueValue.of(field, stored)
                if value is not None:
                    holding.setdefault(value.canonical, []).append(one)
        return holding


def readable_values(claims: Claims, documents: Iterable[Mapping[str, JsonValue]]) -> Iterator[UniqueValue]:
    """The unique values of the data to save. Data that is not JSON has none here; the save refuses it."""
    for document in documents:
        for value in claims.values(document):
            try:
                if value.canonical:
                    yield value
            except Invalid:
                continue
