"""Unique values: before a document may have a value of a unique index, it must claim it by put-if-absent of one object.

Two values are the same if the index has the same entry for them: `1` and `1.0` are the same, `1` and `"1"` are not.
Null and a missing field are not values: any number of documents may lack one. An array or an object (of a field that
the schema does not declare in detail) is one value.

- *claim*: `.worm.index/<field>/.claims/<sha256 of the value>`; names the document that has the value or will get it.
- *holder*: the document that a claim names. A claim is *true* while its holder has the value, *stale* when it does not.
- *pending*: stale because the holder's write is still in progress. It looks the same as a claim whose writer died. So a
  stale claim blocks others while it is younger than `GRACE`; afterward, they can *take it over* by compare-and-swap.
- *adopt*: take over a claim that names the same document (left by a crash or by another session), without waiting.
- *giver*: a document that loses the value with the same commit that gives it to another. The claim passes before the
  commit and names the giver as `over`: it is true while either of the two has the value.

A writer claims its new values, writes the document, *confirms* (it reads its claims again), and frees the old ones
(`claiming.py`). A taker reads the holder's document (it lacks the value), swaps the claim, and reads the holder's
document again. The writer writes the document before it checks the claim; the taker writes the claim before it checks
the document. So one of them sees the other, whatever the clocks say. `GRACE` only makes such meetings rare. See
decision 0010.

Claims are freed with the etag that was read before the document changed, so a process that adopted or took over a claim
in the meantime keeps it. An unknown outcome (`CommitStateUnknown`) cleans up nothing; it may leave a stale claim.

`Claims.audit` and `Claims.restore` compare all claims of a model with its documents. Their rows may be outdated. So
before a claim is called stale, its holder's document is read; a claim younger than the grace period may belong to a
save in progress. A document without a claim is not a difference: raw uploads make none, and a save finds them through
the index.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import field
from datetime import timedelta
from functools import cached_property
from hashlib import sha256
from typing import Literal, cast

from worm.clock import Clock, Ids, attempts
from worm.collections.documents import Documents
from worm.collections.entries import Document, is_cut
from worm.collections.origins import Truth
from worm.collections.trash import delete_unchanged
from worm.errors import (
    SHOWN_MAX,
    CommitStateUnknown,
    Corrupt,
    Invalid,
    Unavailable,
    UniqueViolation,
    WormError,
    shorten,
    show,
)
from worm.formats import (
    JsonObject,
    JsonValue,
    Missing,
    ModelDef,
    dumps,
    field_value,
    loads_own,
    normal,
    shapes,
)
from worm.store import NotModified, Object, Read, Won, in_chunks, in_parallel
from worm.values import dataclass

REPAIR = "run `worm repair` to rewrite it"
_NAME = re.compile("[0-9a-f]{64}")
CLAIM = shapes.record(
    "a claim that this version of worm reads",
    {"version": shapes.one_of(1), "id": shapes.TEXT, "value": shapes.ANYTHING, "claim": shapes.TEXT},
    {"over": shapes.TEXT},
)


@dataclass(frozen=True)
class UniqueValue:
    """A value of one field that only one document of the model may have."""

    field: str
    value: JsonValue

    @classmethod
    def of(cls, field: str, document: Mapping[str, JsonValue]) -> UniqueValue | None:
        value = field_value(document, field)
        return None if value is None or isinstance(value, Missing) else cls(field, value)

    @cached_property
    def canonical(self) -> bytes:
        return dumps(normal(self.value))

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical bytes: the name of the claim."""
        return sha256(self.canonical).hexdigest()

    @property
    def text(self) -> str:
        """As errors show it: a string in quotes, anything else as canonical JSON. A long value is truncated."""
        if not isinstance(self.value, str):
            return shorten(self.canonical.decode())
        return f"'{self.value}'" if len(self.value) <= SHOWN_MAX else show(self.value)

    def is_in(self, document: Mapping[str, JsonValue] | None) -> bool:
        """Whether the document (or row) has this value."""
        found = None if document is None else UniqueValue.of(self.field, document)
        return found is not None and found.canonical == self.canonical

    def taken_by(self, holder: str, *, hint: str | None = None) -> UniqueViolation:
        to_do = hint or "choose another value, or change that document first"
        return UniqueViolation(self.field, self.value, holder, shown=self.text, hint=to_do)


def unique_values(definition: ModelDef, document: Mapping[str, JsonValue] | None) -> list[UniqueValue]:
    """The unique values of a document or a row, in the order of claiming."""
    if document is None:
        return []
    found = (UniqueValue.of(index.field, document) for index in definition.unique_indexes)
    return [one for one in found if one is not None]


@dataclass(frozen=True, slots=True)
class Claim:
    """The body of a claim. `claim` is a random name of this write, so that bytes under compare-and-swap never repeat.
    `over` is the document that the value was taken from."""

    id: str
    value: JsonValue
    claim: str
    over: str | None = None

    def to_bytes(self) -> bytes:
        shape: JsonObject = {"version": 1, "id": self.id, "value": self.value, "claim": self.claim}
        return dumps(shape if self.over is None else {**shape, "over": self.over})

    @classmethod
    def from_bytes(cls, body: bytes, key: str) -> Claim:
        """`Corrupt`, naming the key, if it is not a claim. Unknown members are ignored."""
        try:
            shape = loads_own(body, key=key)
        except Corrupt as damage:
            damage.hint = REPAIR
            raise
        shapes.check(shape, CLAIM, key, hint=REPAIR)
        return cls(
            id=cast(str, shape["id"]),
            value=shape["value"],
            claim=cast(str, shape["claim"]),
            over=cast("str | None", shape.get("over")),
        )


GRACE = timedelta(seconds=60)
"""How long a claim whose holder lacks the value is assumed to belong to a write in progress."""
ROUNDS_MAX = 20


@dataclass(frozen=True, slots=True)
class HeldClaim:
    """One of our claims as it is stored. `adopted`: it named this document before we wrote it. `giver`: the document
    that has the value until the commit."""

    value: UniqueValue
    etag: str
    version_id: str | None = None
    adopted: bool = False
    giver: str | None = None


@dataclass
class Reservation:
    """The claims of one write: `new` ones that it made, `old` ones (as read before) that it makes unnecessary."""

    id: str
    new: list[HeldClaim] = field(default_factory=list)
    old: list[HeldClaim] = field(default_factory=list)


class Holders:
    """Which documents have a value without a claim, according to the index. This base class knows none."""

    def of(self, value: UniqueValue, entity_id: str) -> str | None:
        """The id of a document other than `entity_id` that has the value."""
        return None


Givers = Callable[[UniqueValue], Collection[str]]
"""The documents that lose a value in the commit that gives it to another one."""


def no_givers(value: UniqueValue) -> Collection[str]:
    return ()


CHUNK = 500
IDS_SHOWN_MAX = 5
SAMPLE = 1_000
SAMPLE_DIGITS = 6
Rows = Mapping[str, Mapping[str, JsonValue]]


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem with unique values: `unique-conflict`, `claim-stale` or `claim-damaged`."""

    kind: Literal["unique-conflict", "claim-stale", "claim-damaged"]
    key: str
    detail: str


@dataclass
class ClaimReport:
    """The claims that `Claims.restore` changed, by key. `conflicts` are values that several documents have."""

    written: list[str] = field(default_factory=list)
    corrected: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    conflicts: list[Finding] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Wanted:
    """A unique value that documents have, and their ids in order. The index also lists the first one."""

    value: UniqueValue
    ids: list[str]

    @property
    def shown(self) -> str:
        """The ids for display: only a few."""
        return ", ".join(self.ids[:IDS_SHOWN_MAX]) + (", …" if len(self.ids) > IDS_SHOWN_MAX else "")


@dataclass(frozen=True, slots=True)
class StoredClaim:
    """A claim as it is stored, and the field that it is for."""

    field: str
    object: Object

    @property
    def key(self) -> str:
        return self.object.key


@dataclass(frozen=True, slots=True)
class Digests:
    """A range of the names of claims, from `start` to before `end`: all of them, or the share of one process."""

    start: str = ""
    end: str | None = None


ALL_DIGESTS = Digests()


class Claims:
    """The claims of one model."""

    def __init__(self, documents: Documents, clock: Clock, ids: Ids, truth: Truth | None = None) -> None:
        self.documents = documents
        self.store = documents.store
        self.clock = clock
        self._ids = ids
        self._truth = truth

    @property
    def are_needed(self) -> bool:
        return bool(self.documents.definition.unique_indexes)

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

    def values_of(self, entity_id: str, row: Mapping[str, JsonValue] | None) -> list[UniqueValue]:
        """The same for a row of the table. If the row lacks a value because of its size, the document is read."""
        fields = (index.field for index in self.documents.definition.unique_indexes)
        is_whole = row is None or not any(is_cut(row, field) for field in fields)
        return self.values(row if is_whole else self._document(entity_id))

    def has(self, entity_id: str, value: UniqueValue) -> bool:
        """Whether the document has the value now, even if it violates the schema."""
        return value.is_in(self._document(entity_id))

    def _document(self, entity_id: str) -> Document | None:
        """The document as it is now. If the log of a space has it, the log decides: the stored document may be behind
        by more than the grace period."""
        said = None if self._truth is None else self._truth(entity_id)
        if said is not None:
            return said.value
        try:
            found = self.documents.current(entity_id)
        except Invalid:  # too large to be read: not one of our documents
            return None
        return None if found is None else self.documents.recorded(found)

    def is_outdated(self, entity_id: str, value: UniqueValue) -> bool:
        """Whether the document has lost a value that its object, as just read, still has."""
        return self._truth is not None and not self.has(entity_id, value)

    # One write

    def reserve(
        self,
        entity_id: str,
        before: Document | None,
        after: Document | None,
        holders: Holders | None = None,
        givers: Givers = no_givers,
    ) -> Reservation:
        """Claim the unique values that a write adds to the document, and look up the claims of the values that it
        removes. `UniqueViolation` if one is taken; the other claims are then released. Sends no request if nothing
        changes. `givers` lose a value in the same commit."""
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
        """After the document is stored: check that the new claims are still ours. A missing claim is made again; one
        that another session of the same document adopted is taken back. Returns the violation if another document took
        one over."""
        for position, held in enumerate(reservation.new):
            try:
                reservation.new[position] = self._confirmed(reservation.id, held)
            except UniqueViolation as violation:
                return violation
        return None

    def cancel(self, reservation: Reservation, reason: WormError) -> None:
        """The document was certainly not written, for this reason: release the new claims. An adopted claim stays if
        the document has the value; a claim with a giver goes back to the giver. If a claim cannot be released, the
        reason's hint says so."""
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
                    f"{held.value.field}={held.value.text} is claimed for {GRACE.seconds} more seconds: {error.message}"
                )
                reason.hint = f"{reason.hint}; {left}" if reason.hint else left

    def free(self, reservation: Reservation) -> None:
        """The document is stored without the old values: remove their claims, unless another document has them by
        now."""
        for held in reservation.old:
            self._remove(held)

    def keep(self, reservation: Reservation) -> bool:
        """Secure the old claims again, before the earlier document is written back. False: one of them is no longer
        ours."""
        for position, held in enumerate(reservation.old):
            swapped = self._swap(reservation.id, held.value, held.etag, None)
            if swapped is None:
                return False
            reservation.old[position] = swapped
        return True

    # One claim

    def _own(self, entity_id: str, value: UniqueValue) -> Sequence[HeldClaim]:
        """The claim of a value that the document has; empty if there is none (a raw upload) or it belongs to another
        document."""
        found = self.store.get(self.key(value))
        try:
            is_own = found is not None and Claim.from_bytes(found.body, found.key).id == entity_id
        except Corrupt:
            return ()  # the next process that claims the value finds out, and so does `worm verify`
        return (HeldClaim(value, found.etag, found.version_id),) if found is not None and is_own else ()

    def _claim(self, entity_id: str, value: UniqueValue, givers: Collection[str] = ()) -> HeldClaim:
        for _ in attempts(ROUNDS_MAX, self.clock, self._ids, base_seconds=0.01, cap_seconds=0.5):
            outcome = self.store.put_if_absent(self.key(value), self.body(entity_id, value))
            if isinstance(outcome, Won):
                return HeldClaim(value, outcome.etag, outcome.version_id)
            taken = self._take(entity_id, value, outcome.current, givers)
            if taken is not None:
                return taken
        raise Unavailable(
            f"{ROUNDS_MAX} attempts to claim {value.field}={value.text} lost to other writers", key=self.key(value)
        )

    def _take(self, entity_id: str, value: UniqueValue, found: Object, givers: Collection[str]) -> HeldClaim | None:
        """Adopt or take over a claim; None if it changed in the meantime."""
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
        """`UniqueViolation` if the holder has the value, or the document that the holder took it from: the holder may
        have died before its second check."""
        for holder in (there.id, there.over):
            if holder is not None and holder not in (entity_id, *givers) and self.has(holder, value):
                raise value.taken_by(holder)

    def _refuse_young(self, value: UniqueValue, there: Claim, found: Object) -> None:
        age = self.clock.now() - found.last_modified
        if age < GRACE:
            left = (GRACE - age).total_seconds()
            raise value.taken_by(
                there.id,
                hint=f"a save of it is in progress; if that save died, the value becomes free in {left:.0f} seconds",
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
    ) -> HeldClaim | None:
        outcome = self.store.put_if_match(self.key(value), self.body(entity_id, value, over), etag)
        return HeldClaim(value, outcome.etag, outcome.version_id, adopted, giver) if isinstance(outcome, Won) else None

    def _confirmed(self, entity_id: str, held: HeldClaim) -> HeldClaim:
        found = self.store.get_if_changed(self.key(held.value), held.etag)
        if isinstance(found, NotModified):
            return held
        if found is not None:
            holder = Claim.from_bytes(found.body, found.key).id
            if holder != entity_id:
                raise held.value.taken_by(holder)
        again = self._claim(entity_id, held.value)
        if not self.has(entity_id, held.value):
            self._remove(again)  # the document changed since then, and that writer had nothing to free
        return again

    def _remove(self, held: HeldClaim) -> None:
        delete_unchanged(self.store, self.key(held.value), held.etag, held.version_id)

    # All claims of the model

    def audit(self, rows: Rows) -> list[Finding]:
        """The problems, keys ascending. It only reads: one listing per unique index, and every claim."""
        return self.audit_wanted(self._wanted(rows))

    def audit_wanted(self, wanted: Mapping[str, Wanted], within: Digests = ALL_DIGESTS) -> list[Finding]:
        """The same for a range of claims; `wanted` has all values of documents in that range."""
        found = _conflicts(wanted)
        for stored, claim in _stored(self, within):
            is_true = isinstance(claim, Claim) and claim.id in _ids(wanted, stored.key)
            finding = None if is_true else _finding(self, stored, claim)
            found += [] if finding is None else [finding]
        return sorted(found, key=lambda one: (one.key, one.kind))

    def judge(self, field: str, found: Object) -> tuple[Claim | Corrupt, Finding | None]:
        """What is wrong with a stored claim, or None. Reads its holder's document."""
        stored, claim = StoredClaim(field, found), _parsed(self, field, found)
        return claim, _finding(self, stored, claim)

    def restore(self, rows: Rows) -> ClaimReport:
        """Claim values that documents have without a claim, and correct or remove stale and damaged ones. It can
        run while others save: every write is conditional on what was read, and if it loses, the other write counts. The
        rows only name candidates: before a claim is written, the document is read, and it must have the value."""
        return self.restore_wanted(self._wanted(rows))

    def restore_wanted(self, wanted: Mapping[str, Wanted], within: Digests = ALL_DIGESTS) -> ClaimReport:
        """The same for a range of claims; `wanted` has all values of documents in that range."""
        report = ClaimReport(conflicts=_conflicts(wanted))
        missing = dict(wanted)
        for stored, claim in _stored(self, within):
            missing.pop(stored.key, None)
            ids = _ids(wanted, stored.key)
            is_wrong = isinstance(claim, Corrupt) or (claim.id not in ids and _is_stale(self, stored, claim))
            holder = _holder(self, wanted[stored.key]) if is_wrong and ids else None
            if holder is not None:
                body = self.body(holder, wanted[stored.key].value)
                if isinstance(self.store.put_if_match(stored.key, body, stored.object.etag), Won):
                    report.corrected.append(stored.key)
            elif is_wrong:
                found = stored.object
                if isinstance(delete_unchanged(self.store, found.key, found.etag, found.version_id), Won):
                    report.removed.append(stored.key)
        written = in_parallel(lambda pair: _claim_missing(self, *pair), missing.items())
        report.written += [key for key, is_new in zip(missing, written, strict=True) if is_new]
        return report

    def claim_unclaimed(self, rows: Rows) -> ClaimReport:
        """Claim values of documents that have no claim at all, right or wrong: one listing per unique index, then two
        requests for each missing claim. Other problems are left to saves and to `Claims.restore`."""
        wanted = self._wanted(rows)
        there: set[str] = set()
        for index in self.documents.definition.unique_indexes:
            there.update(_keys(self, index.field, ALL_DIGESTS))
        missing = [(key, one) for key, one in wanted.items() if key not in there]
        written = in_parallel(lambda pair: _claim_missing(self, *pair), missing)
        return ClaimReport(
            written=[key for (key, _), is_new in zip(missing, written, strict=True) if is_new],
            conflicts=_conflicts(wanted),
        )

    def estimate_count(self) -> int:
        """About how many claims are stored: one LIST for each unique index. Their names are hashes, so the first ones
        show how close together all are."""
        total = 0
        for index in self.documents.definition.unique_indexes:
            directory = self.directory(index.field)
            names = [one.key.removeprefix(directory) for one in self.store.list(directory, limit=SAMPLE)]
            first = [int(name[:SAMPLE_DIGITS], 16) for name in names if _NAME.fullmatch(name)]
            is_all = len(names) < SAMPLE or not first
            total += len(first) if is_all else len(first) * 16**SAMPLE_DIGITS // (first[-1] + 1)
        return total

    def _wanted(self, rows: Rows) -> dict[str, Wanted]:
        """What should be claimed, by key."""
        wanted: dict[str, Wanted] = {}
        for entity_id in sorted(rows):
            for value in self.values_of(entity_id, rows[entity_id]):
                wanted.setdefault(self.key(value), Wanted(value, [])).ids.append(entity_id)
        return wanted


def _finding(claims: Claims, stored: StoredClaim, claim: Claim | Corrupt) -> Finding | None:
    if isinstance(claim, Corrupt):
        return Finding("claim-damaged", stored.key, f"{claim.message} ({claim.hint or REPAIR})")
    if _is_stale(claims, stored, claim):
        return Finding("claim-stale", stored.key, f"'{claim.id}' does not have the value that is claimed for it")
    return None


def _claim_missing(claims: Claims, key: str, wanted: Wanted) -> bool:
    holder = _holder(claims, wanted)
    return holder is not None and isinstance(claims.store.put_if_absent(key, claims.body(holder, wanted.value)), Won)


def _holder(claims: Claims, wanted: Wanted) -> str | None:
    """The first of the documents whose stored version has the value."""
    return next((one for one in wanted.ids if claims.has(one, wanted.value)), None)


def _ids(wanted: Mapping[str, Wanted], key: str) -> list[str]:
    return wanted[key].ids if key in wanted else []


def _conflicts(wanted: Mapping[str, Wanted]) -> list[Finding]:
    return [
        Finding(
            "unique-conflict", key, f"{one.value.field}={one.value.text} is on {len(one.ids)} documents: {one.shown}"
        )
        for key, one in sorted(wanted.items())
        if len(one.ids) > 1
    ]


def _is_stale(claims: Claims, stored: StoredClaim, claim: Claim) -> bool:
    """Whether neither its holder nor its giver has the value."""
    is_old, value = claims.clock.now() - stored.object.last_modified >= GRACE, UniqueValue(stored.field, claim.value)
    return is_old and not any(claims.has(one, value) for one in (claim.id, claim.over) if one is not None)


def _keys(claims: Claims, field: str, within: Digests) -> Iterator[str]:
    directory = claims.directory(field)
    for listed in claims.store.list(directory, start_after=directory + within.start if within.start else None):
        if within.end is not None and listed.key >= directory + within.end:
            return
        yield listed.key


def _stored(claims: Claims, within: Digests) -> Iterator[tuple[StoredClaim, Claim | Corrupt]]:
    """Every stored claim, or the problem with it."""
    for index in claims.documents.definition.unique_indexes:
        for keys in in_chunks(list(_keys(claims, index.field, within)), CHUNK):
            for found in claims.store.get_many([Read(key) for key in keys]):
                if isinstance(found, Exception):
                    raise found
                if found is not None:
                    yield StoredClaim(index.field, found), _parsed(claims, index.field, found)


def _parsed(claims: Claims, field: str, found: Object) -> Claim | Corrupt:
    try:
        claim = Claim.from_bytes(found.body, found.key)
    except Corrupt as damage:
        return damage
    if claims.key(UniqueValue(field, claim.value)) != found.key:
        return Corrupt("the claim is stored under the name of another value", key=found.key, hint=REPAIR)
    return claim
