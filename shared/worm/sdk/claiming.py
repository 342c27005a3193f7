"""Unique values around one write of the SDK: claimed before, confirmed after, freed at the end; see
`collections/claims.py`.

A write that turns out to have lost a claim (it stalled between claim and document for longer than the grace period) is
undone where that is possible without taking anything from others, and is an error in any case.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from worm.codec.strict_json import JsonValue, dumps_document
from worm.collections.claims import Givers, Holders, IdsWith, IndexHolders, Reservation, no_givers, readable_values
from worm.collections.collection import Collection
from worm.collections.documents import write_metadata
from worm.collections.entries import Document
from worm.collections.trash import delete_unchanged
from worm.errors import CommitStateUnknown, Unavailable, UniqueViolation, WormError
from worm.sdk.memory import Memory
from worm.store.base import Gone, Lost, Object, Won


class Claiming:
    """The claims of one model's writes in one session. Costs nothing on a model without a unique index."""

    def __init__(self, collection: Collection, memory: Memory, ids_with: IdsWith) -> None:
        self._collection = collection
        self._claims = collection.claims
        self._memory = memory
        self._ids_with = ids_with
        self.is_needed = self._claims.are_needed

    def holders(self, documents: Sequence[Mapping[str, JsonValue]]) -> Holders:
        """Who else has unique values of these documents: one look at each index for all of them."""
        return IndexHolders(self._claims, self._ids_with, documents)

    def reserve(
        self,
        entity_id: str,
        before: Document | None,
        after: Document | None,
        holders: Holders | None,
        givers: Givers = no_givers,
    ) -> Reservation:
        """Before the write. `UniqueViolation` when another document has, or is just getting, one of the values."""
        if not self.is_needed:
            return Reservation(entity_id)
        looked_up = holders or self.holders([] if after is None else [after])
        return self._claims.reserve(entity_id, before, after, looked_up, givers)

    def leaving(self, found: Object, entity_id: str) -> Reservation:
        """Before a document is deleted: the claims that its deletion makes superfluous."""
        if not self.is_needed:
            return Reservation(entity_id)
        return self._claims.reserve(entity_id, self._collection.documents.recorded(found), None)

    def shared_values(self, documents: Sequence[Mapping[str, JsonValue]]) -> list[set[tuple[str, bytes]]]:
        """For each document its unique values, comparable between documents."""
        return [{(one.field, one.canonical) for one in readable_values(self._claims, [each])} for each in documents]

    @contextmanager
    def around(self, reservation: Reservation) -> Iterator[None]:
        """Around the write: a failure that says that it did not land gives the claims back."""
        try:
            yield
        except CommitStateUnknown:
            raise
        except WormError as error:
            self._claims.cancel(reservation, error)
            raise

    def settle(self, reservation: Reservation, stored: Won | Object, before: Document | None, *, is_new: bool) -> None:
        """After the write: `UniqueViolation`, and the write is undone, if a claim was lost meanwhile."""
        violation = self.lost(reservation)
        if violation is None:
            return
        if self._undo(reservation, stored, before, is_new=is_new):
            self._memory.forget(reservation.id)
            self._claims.cancel(reservation, violation)
            violation.hint = "the save took so long that its claim was taken over; it was undone"
        else:
            violation.hint = (
                "the save took so long that its claim was taken over; the document is stored all the same, and the "
                "index lists both under conflicts: change one of them"
            )
        raise violation

    def lost(self, reservation: Reservation) -> UniqueViolation | None:
        """After the write: the violation, if another document took a claim over meanwhile."""
        try:
            return self._claims.confirm(reservation)
        except WormError as error:
            raise Unavailable(
                f"{self._named(reservation)} is stored, but its claims could not be confirmed: {error.message}",
                key=error.key,
                hint="`worm verify` says whether another document has its unique values too",
            ) from error

    def free(self, reservation: Reservation) -> WormError | None:
        """The values that the document does not have any more are free. The error where one could not be freed: the
        write is done, so that it is reported last (`Core._maintain`)."""
        try:
            self._claims.free(reservation)
        except WormError as error:
            return Unavailable(
                f"{self._named(reservation)}: the change is stored, but the claim of a value that it had is left: "
                f"{error.message}",
                key=error.key,
                hint="the next save of that value takes it over",
            )
        return None

    def _undo(self, reservation: Reservation, stored: Won | Object, before: Document | None, *, is_new: bool) -> bool:
        """Bring back what was there before the write, if nobody wrote over it. Append mode removes nothing."""
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
