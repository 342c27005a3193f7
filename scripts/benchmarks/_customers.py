"""The collection that the benchmarks of tables share: synthetic customers with rows of about 350 bytes.

Customer number n has `status` active for every even n, a `segment` that it shares with nine others (indexed), a
`cohort` that it shares with 49 others (not indexed), and `notes`, which the manifest does not have.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta

from worm.clock import Clock
from worm.collections.entries import Change, Document, Head, Heads, Row
from worm.formats import Schema, load_schema
from worm.formats.strict_json import JsonValue
from worm.sdk.database import Model, Worm
from worm.store.base import Store
from worm.tables.manifest import Manifest

MODEL = "Customer"
SEGMENT = 10
COHORT = 50
TABLE_FIELDS = ["name", "email", "status", "city", "country", "segment", "cohort", "plan", "amount", "score", "about"]
_START = datetime(2025, 1, 1, tzinfo=UTC)
_CITIES = ("Hamburg", "Lyon", "Porto", "Turin", "Graz", "Ghent", "Malmo", "Cork")
_WORDS = ["alder", "birch", "cedar", "elder", "hazel", "larch", "maple", "rowan", "willow", "aspen"]


def schema(threshold: int = 10_000) -> Schema:
    numbers = {"amount": {"type": "number"}, "score": {"type": "integer"}}
    text = {name: {"type": "string"} for name in (*TABLE_FIELDS, "notes") if name not in numbers}
    manifest = {"enabled": True, "fields": TABLE_FIELDS, "partitionThreshold": threshold}
    customer = {
        "path": "#org/@customers/(id:slug)",
        "fields": {**text, **numbers},
        "oplog": True,
        "manifest": manifest,
        "indexes": {"bySegment": {"field": "segment"}},
    }
    return load_schema({"version": "1.0", "models": {MODEL: customer}})


def session(store: Store, wanted: Schema, clock: Clock | None = None) -> Model:
    """A new session, which knows nothing about the bucket yet."""
    return Worm(store, wanted, probe=False, clock=clock).model(MODEL)


def customer_id(number: int) -> str:
    return f"customer-{number:07d}"


def moment(seconds: int) -> str:
    return (_START + timedelta(seconds=seconds)).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def row(number: int, seq: int = 1) -> Row:
    """The manifest row of a customer after its write number `seq`."""
    scattered = number * 2_654_435_761 % 2**32
    name = f"{_WORDS[scattered % 10].title()} {_WORDS[scattered // 10 % 10].title()} {scattered:010d}"
    return {
        "name": name,
        "email": f"{name.lower().replace(' ', '.')}@example.com",
        "status": "inactive" if number % 2 else "active",
        "city": _CITIES[scattered % 8],
        "country": "EU",
        "segment": f"segment-{number // SEGMENT}",
        "cohort": f"cohort-{number // COHORT}",
        "plan": ("free", "team", "business")[scattered % 3],
        "amount": scattered % 1_000_000 / 100,
        "score": seq,
        "about": f"Customer {number} {_WORDS[seq % 10]}",
        "createdAt": "2025-01-01T00:00:00.000Z",
        "updatedAt": moment(seq),
    }


def document(number: int) -> Document:
    notes: JsonValue = f"Notes about customer {number}, which only the document has. " * 2
    return {"id": customer_id(number), **row(number), "notes": notes}


def manifest(count: int, wanted: Schema) -> Manifest:
    """The whole table, every customer at seq 1."""
    entities = {customer_id(number): row(number) for number in range(count)}
    fields = wanted.model(MODEL).row_form
    return Manifest(MODEL, entities, dict.fromkeys(entities, 1), moment(1), count, fields=fields)


def heads(count: int) -> Heads:
    return Heads(MODEL, {customer_id(number): head(number, 1) for number in range(count)})


def head(number: int, seq: int) -> Head:
    etag = f'"{number * 2_654_435_761 + seq:032x}"'
    return Head(seq, etag, f"version{number:016x}{seq:09x}", live=True, ts=moment(seq))


class Writes:
    """Changes as capture would report them: every customer's seqs go up by one."""

    def __init__(self) -> None:
        self._seqs: dict[int, int] = {}

    def changes(self, numbers: Iterable[int]) -> Iterator[Change]:
        for number in numbers:
            seq = self._seqs[number] = self._seqs.get(number, 1) + 1
            yield Change(customer_id(number), head(number, seq), row(number, seq))
