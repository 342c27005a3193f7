"""All claims of a model against all its documents: what verify reports, and what a rebuild writes anew.

`rows` are the live documents, or the rows of a table, which have the indexed fields. They may be behind: before a claim
is called stale its holder's document is read, and one that is younger than the grace period may be of a save under way.
A document without a claim is no difference: raw uploads make none, and a save finds them by the index.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from worm.codec.strict_json import JsonValue
from worm.collections.claim_values import REPAIR, Claim, UniqueValue, unique_indexes
from worm.collections.claims import GRACE, Claims
from worm.collections.tombstone import delete_unchanged
from worm.errors import Corrupt
from worm.store.base import Object, Read, Won

CHUNK = 500
IDS_SHOWN_MAX = 5
Rows = Mapping[str, Mapping[str, JsonValue]]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong with unique values: `unique-conflict`, `claim-stale` or `claim-damaged`."""

    kind: Literal["unique-conflict", "claim-stale", "claim-damaged"]
    key: str
    detail: str


@dataclass
class ClaimReport:
    """What `restore_claims` did, as keys of claims; `conflicts` are values that several documents have."""

    written: list[str] = field(default_factory=list)
    corrected: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    conflicts: list[Finding] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Wanted:
    """A unique value that documents have, and their ids in order. The first one is the index's, too."""

    value: UniqueValue
    ids: list[str]

    @property
    def shown(self) -> str:
        """The ids for people: not more than a few."""
        return ", ".join(self.ids[:IDS_SHOWN_MAX]) + (", …" if len(self.ids) > IDS_SHOWN_MAX else "")


@dataclass(frozen=True, slots=True)
class Stored:
    """A claim as it is stored, and the field that it is for."""

    field: str
    object: Object

    @property
    def key(self) -> str:
        return self.object.key


def wanted_claims(claims: Claims, rows: Rows) -> dict[str, Wanted]:
    """What should be claimed, by key."""
    wanted: dict[str, Wanted] = {}
    for entity_id in sorted(rows):
        for value in claims.values(rows[entity_id]):
            wanted.setdefault(claims.key(value), Wanted(value, [])).ids.append(entity_id)
    return wanted


@dataclass(frozen=True, slots=True)
class Digests:
    """A range of the names of claims, from `start` up to and without `end`: all of them, or one process's share."""

    start: str = ""
    end: str | None = None


ALL_DIGESTS = Digests()


def audit_claims(claims: Claims, rows: Rows) -> list[Finding]:
    """What is wrong, keys ascending. Reads only: a listing per unique index, and every claim."""
    return audit_wanted(claims, wanted_claims(claims, rows))


def audit_wanted(claims: Claims, wanted: Mapping[str, Wanted], within: Digests = ALL_DIGESTS) -> list[Finding]:
    """The same for a range of claims; `wanted` has all that documents want of it."""
    found = _conflicts(wanted)
    for stored, claim in _stored(claims, within):
        if isinstance(claim, Corrupt):
            found.append(Finding("claim-damaged", stored.key, f"{claim.message} ({claim.hint or REPAIR})"))
        elif claim.id not in _ids(wanted, stored.key) and _is_stale(claims, stored, claim):
            found.append(Finding("claim-stale", stored.key, f"'{claim.id}' has not the value that is claimed for it"))
    return sorted(found, key=lambda one: (one.key, one.kind))


def restore_claims(claims: Claims, rows: Rows) -> ClaimReport:
    """Claim what documents have without a claim, and correct or remove stale and damaged ones. Runs beside saves: every
    write is conditional on what was read, and one that loses is left to the other. The rows only name candidates: a
    claim is written for a document that has the value now, which is read first."""
    return restore_wanted(claims, wanted_claims(claims, rows))


def restore_wanted(claims: Claims, wanted: Mapping[str, Wanted], within: Digests = ALL_DIGESTS) -> ClaimReport:
    """The same for a range of claims; `wanted` has all that documents want of it."""
    report = ClaimReport(conflicts=_conflicts(wanted))
    missing = dict(wanted)
    for stored, claim in _stored(claims, within):
        missing.pop(stored.key, None)
        ids = _ids(wanted, stored.key)
        is_wrong = isinstance(claim, Corrupt) or (claim.id not in ids and _is_stale(claims, stored, claim))
        holder = _holder(claims, wanted[stored.key]) if is_wrong and ids else None
        if holder is not None:
            body = claims.body(holder, wanted[stored.key].value)
            if isinstance(claims.store.put_if_match(stored.key, body, stored.object.etag), Won):
                report.corrected.append(stored.key)
        elif is_wrong:
            found = stored.object
            if isinstance(delete_unchanged(claims.store, found.key, found.etag, found.version_id), Won):
                report.removed.append(stored.key)
    for key, one in missing.items():
        holder = _holder(claims, one)
        if holder is not None and isinstance(claims.store.put_if_absent(key, claims.body(holder, one.value)), Won):
            report.written.append(key)
    return report


def _holder(claims: Claims, wanted: Wanted) -> str | None:
    """The first of the documents that has the value as it is stored now."""
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


def _is_stale(claims: Claims, stored: Stored, claim: Claim) -> bool:
    """Has neither its holder the value, nor the one that it was to pass from?"""
    is_old, value = claims.clock.now() - stored.object.last_modified >= GRACE, UniqueValue(stored.field, claim.value)
    return is_old and not any(claims.has(one, value) for one in (claim.id, claim.over) if one is not None)


def _keys(claims: Claims, field: str, within: Digests) -> Iterator[str]:
    directory = claims.directory(field)
    for listed in claims.store.list(directory, start_after=directory + within.start if within.start else None):
        if within.end is not None and listed.key >= directory + within.end:
            return
        yield listed.key


def _stored(claims: Claims, within: Digests) -> Iterator[tuple[Stored, Claim | Corrupt]]:
    """Every stored claim, or what is wrong with it."""
    for index in unique_indexes(claims.documents.definition):
        keys = list(_keys(claims, index.field, within))
        for start in range(0, len(keys), CHUNK):
            for found in claims.store.get_many([Read(key) for key in keys[start : start + CHUNK]]):
                if isinstance(found, Exception):
                    raise found
                if found is not None:
                    yield Stored(index.field, found), _parsed(claims, index.field, found)


def _parsed(claims: Claims, field: str, found: Object) -> Claim | Corrupt:
    try:
        claim = Claim.from_bytes(found.body, found.key)
    except Corrupt as damage:
        return damage
    if claims.key(UniqueValue(field, claim.value)) != found.key:
        return Corrupt("the claim lies under the name of another value", key=found.key, hint=REPAIR)
    return claim
