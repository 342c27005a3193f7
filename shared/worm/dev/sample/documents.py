"""Realistic documents of the sample schema, the same ones for the same seed.

A *change* is what a client does to one key: a put with a body, or a delete (body None). `workload()` imitates a small
company: customers and invoices are uploaded, some are overwritten (a few twice in a row), some are deleted.
"""

from __future__ import annotations

import json
import random
import unicodedata
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

SCHEMA_PATH = Path(__file__).with_name("schema.json")
START = datetime(2026, 1, 5, 8, 0, tzinfo=UTC)

_FIRST = [
    "Acme",
    "Nordwind",
    "Blue-River",
    "Café",
    "Zürich",
    "Kōbe",
    "Baltic",
    "Iron-Gate",
    "Helios",
    "Maple",
    "Sierra",
    "Østfold",
    "Atlas",
    "Cobalt",
]
_SECOND = [
    "Tools",
    "Logistics",
    "Foods",
    "Robotics",
    "Textiles",
    "Energy",
    "Paper",
    "Optics",
    "Instruments",
    "Farms",
    "Media",
    "Marine",
]
_LEGAL = ("Inc.", "GmbH", "Ltd", "AB", "S.A.", "KK", "Oy")
_CITIES = (
    ("Hamburg", "DE"),
    ("Zürich", "CH"),
    ("København", "DK"),
    ("Portland", "US"),
    ("神戸市", "JP"),
    ("São Paulo", "BR"),
    ("Leeds", "GB"),
)
_STREETS = ("Hafenstraße", "Mill Lane", "Rua das Flores", "Main Street", "Bahnhofplatz", "Harbor Road")
_TAGS = ("vip", "enterprise", "startup", "partner", "newsletter", "reseller", "trial")
_ITEMS = (
    ("Torque wrench 1/2 in", 89.5),
    ("Cable, 3 m", 7.25),
    ("Maintenance, monthly", 240.0),
    ("Sensor kit", 132.4),
    ("Pallet freight", 61.0),
    ("Training day", 980.0),
)

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Change:
    """One request of a client. `body` None deletes the key."""

    key: str
    body: bytes | None


@dataclass(frozen=True, slots=True)
class Workload:
    """What a run uploads, overwrites and deletes, in this order. `watched` is a customer that is overwritten twice."""

    uploads: list[Change]
    overwrites: list[Change]
    deletes: list[Change]
    watched: str

    @property
    def size(self) -> int:
        return len(self.uploads) + len(self.overwrites) + len(self.deletes)


@dataclass
class SampleCompany:
    """Makes documents. Every method draws from the same seeded source, so the order of calls is part of the result."""

    seed: int = 1
    _random: random.Random = field(init=False)
    _invoices: int = field(init=False, default=0)
    _offices: Counter[str] = field(init=False, default_factory=Counter)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def customer(self) -> Document:
        pick = self._random
        name = f"{pick.choice(_FIRST)} {pick.choice(_SECOND)} {pick.choice(_LEGAL)}"
        city, country = pick.choice(_CITIES)
        return {
            "id": str(UUID(int=pick.getrandbits(128), version=4)),
            "name": name,
            "email": self._email(name),
            "status": pick.choices(("active", "inactive", "churned"), (7, 2, 1))[0],
            "score": pick.randint(0, 100),
            "tags": sorted(pick.sample(_TAGS, pick.randint(0, 3))),
            "address": {"street": f"{pick.choice(_STREETS)} {pick.randint(1, 140)}", "city": city, "country": country},
            **self._times(),
        }

    def invoice(self, customer: str) -> Document:
        pick = self._random
        self._invoices += 1
        lines: list[Document] = [
            {"description": text, "quantity": pick.randint(1, 12), "unitPrice": price}
            for text, price in pick.sample(_ITEMS, pick.randint(1, 4))
        ]
        issued = START + timedelta(days=pick.randint(0, 300))
        return {
            "id": f"INV-2026-{self._invoices:05d}",
            "customer": customer,
            "number": f"2026/{self._invoices:05d}",
            "amount": round(sum(line["quantity"] * line["unitPrice"] for line in lines), 2),
            "currency": pick.choice(("USD", "EUR", "GBP")),
            "status": pick.choices(("draft", "sent", "paid", "void"), (2, 3, 5, 1))[0],
            "issuedAt": _iso(issued),
            "dueAt": _iso(issued + timedelta(days=30)),
            "lines": lines,
            **self._times(),
        }

    def settings(self) -> Document:
        return {
            "displayName": "Acme Holding",
            "timezone": "Europe/Berlin",
            "defaultCurrency": "EUR",
            "features": {"exports": True, "beta": False},
            **self._times(),
        }

    def edited(self, document: Document) -> Document:
        """The document after somebody worked on it: one to three fields differ, one may be new or gone."""
        pick = self._random
        after = dict(document)
        if "lines" in after:
            after["status"] = {"draft": "sent", "sent": "paid"}.get(after["status"], "void")
        elif "score" in after:
            after["score"] = pick.randint(0, 100)
            after["status"] = pick.choice(("active", "inactive", "churned"))
            if pick.random() < 0.3:
                after["note"] = f"called on {pick.choice(('Monday', 'Tuesday', 'Friday'))}"
            elif pick.random() < 0.3:
                after.pop("address", None)
        else:
            after["features"] = {**after["features"], "beta": not after["features"]["beta"]}
        after["updatedAt"] = _iso(datetime.fromisoformat(after["updatedAt"]) + timedelta(hours=pick.randint(1, 72)))
        return after

    def _email(self, name: str) -> str:
        """No two customers have the same: it is unique in the schema."""
        domain = _domain(name)
        self._offices[domain] += 1
        number = self._offices[domain]
        return f"office{number if number > 1 else ''}@{domain}.example"

    def _times(self) -> Document:
        created = START + timedelta(minutes=self._random.randint(0, 300 * 24 * 60))
        return {"createdAt": _iso(created), "updatedAt": _iso(created)}


def key_of(document: Document) -> str:
    """Where the sample schema keeps the document."""
    if "displayName" in document:
        return "org/settings/data.json"
    if "lines" in document:
        return f"org/invoices/{document['id']}/data.json"
    return f"org/customers/{document['id']}/profile.json"


def sample_documents(count: int, *, seed: int = 1) -> list[Document]:
    """`count` documents: two fifths customers, the rest their invoices, and one settings document."""
    company = SampleCompany(seed)
    return list(_documents(company, count))


def workload(count: int, *, seed: int = 1) -> Workload:
    """Uploads of `count` documents, overwrites of a fifth of them, deletes of a fifteenth."""
    company = SampleCompany(seed)
    documents = list(_documents(company, count))
    watched = next((document for document in documents if "score" in document), documents[0])
    others = [document for document in documents if document is not watched]
    doomed = [document for document in others[14::14] if "displayName" not in document][: count // 15]
    gone = {key_of(document) for document in doomed}
    kept = [document for document in others if key_of(document) not in gone]
    kept = [document for first in range(5) for document in kept[first::5]]  # some of every model, however few
    kept.sort(key=lambda document: "displayName" not in document)
    wanted = count // 5
    twice = [watched, *kept[: max(0, wanted // 6)]]
    once = kept[len(twice) - 1 :][: max(0, wanted - 2 * len(twice))]
    overwrites: list[Change] = []
    for document in (*twice, *once):
        after = company.edited(document)
        overwrites.append(_put(after))
        if document in twice:
            overwrites.append(_put(company.edited(after)))
    return Workload(
        uploads=[_put(document) for document in documents],
        overwrites=overwrites,
        deletes=[Change(key_of(document), None) for document in doomed],
        watched=str(watched.get("id", "_")),
    )


def _documents(company: SampleCompany, count: int) -> Iterator[Document]:
    customers: list[str] = []
    for _ in range(max(1, count * 2 // 5) if count else 0):
        customer = company.customer()
        customers.append(customer["id"])
        yield customer
    if count > 1:
        yield company.settings()
    for at in range(count - len(customers) - 1):
        yield company.invoice(customers[at % len(customers)])


def _put(document: Document) -> Change:
    return Change(key_of(document), json.dumps(document, ensure_ascii=False, indent=2).encode())


def _iso(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _domain(name: str) -> str:
    words = [word for word in name.split() if word not in _LEGAL]
    plain = unicodedata.normalize("NFKD", "-".join(words).lower().replace("ø", "o"))
    return "".join(one for one in plain if one.isascii())
