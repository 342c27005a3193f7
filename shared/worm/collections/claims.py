"""Uniqueness: a value of a unique index is claimed, by put-if-absent of one object, before a document may have it.

Vocabulary
- *claim*: `.worm.index/<field>/.claims/<sha256 of the value>`; names the document that has the value or is to get it.
- *holder*: the document that a claim names. A claim is *true* while its holder has the value, *stale* when it does not.
- *pending*: stale because the holder's write is still under way. It cannot be told from one whose writer died, so a
  stale claim is refused to others while it is younger than `GRACE`, and *taken over* by compare-and-swap afterwards.
- *adopt*: take over a claim that names the same document (left by a crash, or of another session): at once.
- *giver*: a document that loses the value with the same commit that gives it to another. The claim passes before the
  commit and names the giver as `over`: it is true whichever of the two has the value.

A writer: claims its new values; writes the document; *confirms*, that is, reads its claims again; frees the old ones.
A taker: reads the holder's document (value not there); swaps the claim; reads the holder's document again.
The writer writes the document before it looks at the claim, the taker writes the claim before it looks at the document:
one of them sees the other, whatever the clocks say. `GRACE` only makes meeting rare. See decision 0010.

Claims are freed with the etag that was read before the document changed: whoever adopted or took one meanwhile keeps
it. An unknown outcome (`CommitStateUnknown`) cleans nothing up; what it may leave is a stale claim.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from worm.clock import Clock, Ids, backoff
from worm.codec.strict_json import JsonValue
from worm.collections.claim_values import Claim, UniqueValue, unique_indexes, unique_values
from worm.collections.documents import Documents
from worm.collections.entries import Document
from worm.collections.tombstone import delete_unchanged
from worm.errors import CommitStateUnknown, Corrupt, Invalid, Unavailable, UniqueViolation, WormError
from worm.store.base import NotModified, Object, Won

GRACE = timedelta(seconds=60)
"""How long a claim whose holder has not the value is believed to be of a write under way."""
ROUNDS_MAX = 20


@dataclass(frozen=True, slots=True)
class Held:
    """A claim of ours as it is stored. `adopted`: it named this document before we wrote it. `giver`: who has the value
    until the commit."""

    value: UniqueValue
    etag: str
    version_id: str | None = None
    adopted: bool = False
    giver: str | None = None


@dataclass
class Reservation:
    """The claims of one write: `new` ones that it made, `old` ones (as read before) that it makes superfluous."""

    id: str
    new: list[Held] = field(default_factory=list)
    old: list[Held] = field(default_factory=list)


class Holders:
    """Who has a value without a claim, as far as the index knows. This one knows nothing."""

    def of(self, value: UniqueValue, entity_id: str) -> str | None:
        """The id of a document other than `entity_id` that has the value."""
        return None


Givers = Callable[[UniqueValue], Collection[str]]
"""The documents that lose a value with the commit that gives it to another one."""


def no_givers(value: UniqueValue) -> Collection[str]:
    return ()


class Claims:
    """The claims of one model."""

    def __init__(self, documents: Documents, clock: Clock, ids: Ids) -> None:
        self.documents = documents
        self.store = documents.store
        self.clock = clock
        self._ids = ids

    @property
    def are_needed(self) -> bool:
        return bool(unique_indexes(self.documents.definition))

    def key(self, value: UniqueValue) -> str:
        return self.documents.resolver.claim_key(self.documents.name, value.field, value.digest)

    def directory(self, field: str) -> str:
        """`org/customers/.worm.index/<field>/.claims/`."""
        resolver, name = self.documents.resolver, self.documents.name
        return resolver.claim_key(name, field, "0" * 64).removesuffix("0" * 64)

    def body(self, entity_id: str, value: UniqueValue, over: str | None = None) -> bytes:
        """A new claim of the value; no two are equal."""
        return Claim(entity_id, value.value, self._ids.ulid(), over).to_bytes()

    def values(self, document: Mapping[str, JsonValue] | None) -> list[UniqueValue]:
        """The unique values of a document or row, in the order of claiming."""
        return unique_values(self.documents.definition, document)

    def has(self, entity_id: str, value: UniqueValue) -> bool:
        """Does the document, as it is stored now, have the value? Also one that breaks the schema does."""
        try:
            found = self.documents.current(entity_id)
        except Invalid:  # too large to be read: no document of ours
            return False
        return found is not None and value.is_in(self.documents.recorded(found))

    def is_outdated(self, entity_id: str, value: UniqueValue) -> bool:
        """Has the document lost the value that its object, as just read, has?"""
        return False

    # Of one write

    def reserve(
        self,
        entity_id: str,
        before: Document | None,
        after: Document | None,
        holders: Holders | None = None,
        givers: Givers = no_givers,
    ) -> Reservation:
        """Claim the unique values that a write gives to the document, and look up the claims of those that it takes
        away. `UniqueViolation` when one is taken; nothing is left of the others then. No request where nothing
        changes. `givers` lose a value with the same commit."""
        had, gets = self.values(before), self.values(after)
        new = [value for value in gets if not value.is_in(before)]
        reservation = Reservation(entity_id)
        for value in had:
            if not value.is_in(after):
                reservation.old += self._own(entity_id, value)
        for value in new:
            holder = (holders or Holders()).of(value, entity_id)
            if holder is not None and holder not in givers(value):
                raise value.taken_by(holder)
        try:
            for value in new:
                reservation.new.append(self._claim(entity_id, value, givers(value)))
        except CommitStateUnknown:
            raise
        except WormError as error:
            self.cancel(reservation, error)
            raise
        return reservation

    def confirm(self, reservation: Reservation) -> UniqueViolation | None:
        """After the document is stored: are the new claims still ours? One that is gone is made again, one that another
        session of the same document adopted is taken back. The violation, where another document took one over."""
        for position, held in enumerate(reservation.new):
            try:
                reservation.new[position] = self._confirmed(reservation.id, held)
            except UniqueViolation as violation:
                return violation
        return None

    def cancel(self, reservation: Reservation, reason: WormError) -> None:
        """The document was certainly not written, for this reason: give the new claims back. An adopted one stays where
        the document has the value, and one that had a giver is the giver's again. What cannot be given back is said in
        the reason's hint."""
        for held in reservation.new:
            try:
                if held.adopted and self.has(reservation.id, held.value):
                    continue
                if held.giver is not None:
                    self._swap(held.giver, held.value, held.etag, None)
                else:
                    self._remove(held)
            except WormError as error:
                left = (
                    f"{held.value.field}={held.value.text} stays claimed for {GRACE.seconds} seconds: {error.message}"
                )
                reason.hint = f"{reason.hint}; {left}" if reason.hint else left

    def free(self, reservation: Reservation) -> None:
        """The document is stored without the old values: their claims go, unless somebody has them by now."""
        for held in reservation.old:
            self._remove(held)

    def keep(self, reservation: Reservation) -> bool:
        """Make the old claims sure again, to write the earlier document back. False: one of them is not ours any
        more."""
        for position, held in enumerate(reservation.old):
            swapped = self._swap(reservation.id, held.value, held.etag, None)
            if swapped is None:
                return False
            reservation.old[position] = swapped
        return True

    # One claim

    def _own(self, entity_id: str, value: UniqueValue) -> Sequence[Held]:
        """The claim of a value that the document has; nothing where there is none (a raw upload), or another's."""
        found = self.store.get(self.key(value))
        try:
            is_own = found is not None and Claim.from_bytes(found.body, found.key).id == entity_id
        except Corrupt:
            return ()  # whoever claims the value next hears of it, and `worm verify`
        return (Held(value, found.etag, found.version_id),) if found is not None and is_own else ()

    def _claim(self, entity_id: str, value: UniqueValue, givers: Collection[str] = ()) -> Held:
        for attempt in range(ROUNDS_MAX):
            outcome = self.store.put_if_absent(self.key(value), self.body(entity_id, value))
            if isinstance(outcome, Won):
                return Held(value, outcome.etag, outcome.version_id)
            taken = self._take(entity_id, value, outcome.current, givers)
            if taken is not None:
                return taken
            self.clock.sleep(backoff(self._ids, attempt, base_seconds=0.01, cap_seconds=0.5))
        raise Unavailable(
            f"{ROUNDS_MAX} attempts to claim {value.field}={value.text} met another writer", key=self.key(value)
        )

    def _take(self, entity_id: str, value: UniqueValue, found: Object, givers: Collection[str]) -> Held | None:
        """Adopt or take over a claim; None when it changed meanwhile."""
        there = Claim.from_bytes(found.body, found.key)
        if there.id == entity_id:
            over = there.over
        else:
            self._refuse_true(entity_id, value, there, givers)
            if there.id not in givers:
                self._refuse_young(value, there, found)
            over = there.over if there.over in givers else there.id
        giver = over if over in givers else None
        swapped = self._swap(entity_id, value, found.etag, over, adopted=there.id == entity_id, giver=giver)
        for other in {there.id, over} - {entity_id, None, *givers} if swapped is not None else ():
            if other is not None and swapped is not None and self.has(other, value):
                self._swap(other, value, swapped.etag, None)  # its write landed while we took over
                raise value.taken_by(other)
        return swapped

    def _refuse_true(self, entity_id: str, value: UniqueValue, there: Claim, givers: Collection[str]) -> None:
        """`UniqueViolation` if the holder has the value, or the one that the holder took it from: the holder may have
        died before it looked a second time."""
        for holder in (there.id, there.over):
            if holder is not None and holder not in (entity_id, *givers) and self.has(holder, value):
                raise value.taken_by(holder)

    def _refuse_young(self, value: UniqueValue, there: Claim, found: Object) -> None:
        age = self.clock.now() - found.last_modified
        if age < GRACE:
            left = (GRACE - age).total_seconds()
            raise value.taken_by(
                there.id, hint=f"a save of it is under way; if that died, the value is free again in {left:.0f} seconds"
            )

    def _swap(
        self,
        entity_id: str,
        value: UniqueValue,
        etag: str,
        over: str | None,
        *,
        adopted: bool = False,
        giver: str | None = None,
    ) -> Held | None:
        outcome = self.store.put_if_match(self.key(value), self.body(entity_id, value, over), etag)
        return Held(value, outcome.etag, outcome.version_id, adopted, giver) if isinstance(outcome, Won) else None

    def _confirmed(self, entity_id: str, held: Held) -> Held:
        found = self.store.get_if_changed(self.key(held.value), held.etag)
        if isinstance(found, NotModified):
            return held
        if found is not None:
            holder = Claim.from_bytes(found.body, found.key).id
            if holder != entity_id:
                raise held.value.taken_by(holder)
        again = self._claim(entity_id, held.value)
        if not self.has(entity_id, held.value):
            self._remove(again)  # the document changed since, and whoever did that had nothing to free
        return again

    def _remove(self, held: Held) -> None:
        delete_unchanged(self.store, self.key(held.value), held.etag, held.version_id)
