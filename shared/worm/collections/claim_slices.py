"""Claims of unique values, compared by many tasks: each has the stored and wanted claims of one range of names.

The names of claims are hashes. A *slice* is a range of them, given by their first digits; the more values there are,
the more slices, so that a task never holds many claims.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from worm.collections.claims import Claims, Digests, UniqueValue, Wanted
from worm.collections.collection import Collection
from worm.collections.division import ROWS_PER_TASK
from worm.formats import JsonValue, dumps, loads

SLICES = 16
CLAIMS_PER_SLICE = 50_000
DIGITS = 6
NAME_BITS = 4 * DIGITS
"""Of the numbers that the first digits of names are: number times slices, without so many bits, is the slice."""
CHANGED = "changed"
ClaimRow = tuple[int, str, str, str]
"""The first digits of a claim's name as a number, an id, a field, and its value as JSON."""
Rows = Iterable[tuple[str, str, str]]
"""The ids, fields and values of a slice."""
Found = tuple[str, str, str]
"""The kind of what was found, its key, and the details."""


def slices_for(values: int) -> int:
    """How many ranges the names of claims are divided into, if so many are stored or should be; a task holds the claims
    of one."""
    return max(2, min(SLICES, -(-values // ROWS_PER_TASK)), -(-values // CLAIMS_PER_SLICE))


def slices_needed(collection: Collection, values: int) -> int:
    """For about so many values. Uploads and lifecycle rules leave claims behind, so there may be many more of them."""
    return slices_for(max(values, collection.claims.estimate_count()))


def claim_rows(
    collection: Collection, rows: Iterable[tuple[str, Mapping[str, JsonValue] | None]]
) -> Iterator[ClaimRow]:
    """The unique values of rows."""
    for entity_id, row in rows:
        for value in collection.claims.values_of(entity_id, row):
            yield int(value.digest[:DIGITS], 16), entity_id, value.field, dumps(value.value).decode()


def audit_slice(collection: Collection, rows: Rows, number: int, slices: int) -> Iterator[Found]:
    """What is wrong with the claims of a slice."""
    found = collection.claims.audit_wanted(_wanted(collection.claims, rows), slice_of(number, slices))
    return ((one.kind, one.key, one.detail) for one in found)


def restore_slice(collection: Collection, rows: Rows, number: int, slices: int) -> Iterator[Found]:
    """Bring the claims of a slice in line with its rows, while saves continue. What was written or removed is
    `CHANGED`."""
    report = collection.claims.restore_wanted(_wanted(collection.claims, rows), slice_of(number, slices))
    yield from ((one.kind, one.key, one.detail) for one in report.conflicts)
    for key in (*report.written, *report.corrected, *report.removed):
        yield CHANGED, key, ""


def _wanted(claims: Claims, rows: Rows) -> dict[str, Wanted]:
    wanted: dict[str, Wanted] = {}
    for entity_id, field, text in rows:
        value = UniqueValue(field, loads(text.encode()))
        wanted.setdefault(claims.key(value), Wanted(value, [])).ids.append(entity_id)
    return wanted


def slice_of(number: int, slices: int) -> Digests:
    """The names of the claims of a slice: those whose first digits, times `slices`, begin with its number."""
    starts = [f"{-(-one * 16**DIGITS // slices):0{DIGITS}x}" for one in (number, number + 1)]
    return Digests(starts[0] if number else "", starts[1] if number + 1 < slices else None)
