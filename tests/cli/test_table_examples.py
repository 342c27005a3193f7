"""The commands on a company of 1,423 customers show what the table chapter shows, number by number."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from tests.cli.company import Command
from worm.clock import VirtualClock
from worm.formats import load_schema
from worm.formats.strict_json import JsonValue, dumps
from worm.sdk.database import connect, push
from worm.store.memory import MemoryStore
from worm.tables.manifest import Manifest

URL = "memory://table-examples"
CUSTOMERS, INVOICES = 1423, 8291
DOCUMENT_BYTES, MANIFEST_BYTES = 1476, 847_000
TAGS = [f"tag-{at:02}" for at in range(11)]
MODELS: dict[str, JsonValue] = {
    "Customer": {
        "path": "#org/@customers/(id:uuid)",
        "fields": {
            "name": {"type": "string"},
            "email": {"type": "string"},
            "status": {"type": "string"},
            "tags": {"type": "array", "items": "string"},
            "notes": {"type": "string"},
        },
        "manifest": {"enabled": True, "fields": ["name", "email", "status", "tags"]},
        "indexes": {
            "byStatus": {"field": "status"},
            "byEmail": {"field": "email", "unique": True},
            "byTags": {"field": "tags", "type": "multiValue"},
        },
    },
    "Invoice": {
        "path": "#org/@invoices/(id:int)",
        "fields": {"status": {"type": "string"}, "amount": {"type": "number"}},
        "manifest": {"enabled": True},
        "indexes": {"byStatus": {"field": "status"}},
    },
    "OrgSettings": {"path": "#org/@settings"},
}


def _customer(at: int, name: str) -> bytes:
    status = "active" if at < 1200 else "inactive" if at < 1350 else "churned"
    tags: list[JsonValue] = ["vip", TAGS[at % 11]] if at % 7 == 0 else [TAGS[at % 11]]
    shown: dict[str, JsonValue] = {"name": name, "email": f"a{at}@x.org", "status": status, "tags": tags, "notes": ""}
    return dumps({**shown, "notes": "n" * max(0, DOCUMENT_BYTES - len(dumps(shown)))})


def _put_customers(store: MemoryStore, name: Callable[[int], str]) -> int:
    """Returns the size of the manifest."""
    for at in range(CUSTOMERS):
        store.put(f"org/customers/00000000-0000-4000-8000-{at:012}/data.json", _customer(at, name(at)))
    return connect(URL).model("Customer").build_manifest().size_bytes


@pytest.fixture(scope="module", autouse=True)
def company() -> MemoryStore:
    """Names are long enough to make the manifest as large as in the chapter; the second has the rest."""
    store = MemoryStore.named("table-examples")
    store.clock = clock = VirtualClock(datetime(2026, 2, 24, 10, tzinfo=UTC))
    push(store, load_schema({"version": "1.0", "models": MODELS}))
    store.put("org/settings/data.json", b"{}")
    clock.advance(4.5 * 3600)
    each, rest = divmod(MANIFEST_BYTES - _put_customers(store, lambda at: f"N{at:04}"), CUSTOMERS)
    size = _put_customers(store, lambda at: f"N{at:04}" + "n" * (each + rest * (at == 1)))
    assert size == MANIFEST_BYTES
    rows: dict[str, dict[str, JsonValue]] = {str(at): {"status": "paid"} for at in range(INVOICES)}
    fields = ("status", "amount", "createdAt", "updatedAt")
    invoices = Manifest("Invoice", rows, last_updated="2026-02-24T12:00:00Z", revision=1, fields=fields)
    store.put("org/invoices/.worm.manifest.json", invoices.encode())
    return store


def _words(text: str) -> list[str]:
    """Lines without their alignment, as the chapter is written."""
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]


def test_list(worm: Command) -> None:
    ended = worm("table", "list", "--url", URL)
    assert (ended.exit_code, ended.stderr) == (0, "")
    assert _words(ended.stdout) == [
        "Model Count Manifest Indexes Last Updated",
        "------------- -------- ---------- -------------------- ----------------------",
        "Customer 1,423 fresh status, email, tags 2026-02-24T14:30:00Z",
        "Invoice 8,291 stale status 2026-02-24T12:00:00Z",
        "OrgSettings 1 n/a -- 2026-02-24T10:00:00Z",
    ]


def test_inspect(worm: Command) -> None:
    ended = worm("table", "inspect", "Customer", "--url", URL)
    assert (ended.exit_code, ended.stderr) == (0, "")
    assert _words(ended.stdout) == [
        "Model: Customer",
        "Path: #org/@customers/(id:uuid)",
        "Mode: readwrite",
        "Collection:",
        "Count: 1,423",
        "Size: ~2.1 MB (estimated from manifest)",
        "Last Updated: 2026-02-24T14:30:00Z",
        "Manifest:",
        "Status: fresh (checksum verified)",
        "Size: 847 KB",
        "Fields: name, email, status, tags, createdAt, updatedAt",
        "Auto-update: enabled",
        "Indexes:",
        "byStatus: status (standard) 3 distinct values",
        "byEmail: email (unique) 1,423 entries",
        "byTags: tags (multiValue) 12 distinct values",
    ]


def test_query(worm: Command) -> None:
    options = ("--filter", "status=active", "--sort", "name:asc", "--limit", "10", "--select", "name,email")
    ended = worm("table", "query", "Customer", *options, "--format", "table", "--url", URL)
    header, _, *rows = ended.stdout.splitlines()
    assert header.split() == ["id", "name", "email"]
    assert [row.split()[2] for row in rows] == [f"a{at}@x.org" for at in range(10)]


@pytest.mark.parametrize(
    ("model", "filter", "count"),
    [("Customer", "status=active", 1200), ("Customer", "status=active,tags~vip", 172), ("Invoice", "amount>100", 0)],
)
def test_filter_syntax(worm: Command, model: str, filter: str, count: int) -> None:
    ended = worm("table", "query", model, "--filter", filter, "--select", "status", "--format", "csv", "--url", URL)
    assert len(ended.stdout.splitlines()) == 1 + count


def test_rebuild(worm: Command) -> None:
    ended = worm("table", "rebuild", "Customer", "--url", URL)
    assert (ended.exit_code, ended.stderr) == (0, "")
    assert re.sub(r"\d+\.\d(?=s$)", "12.3", ended.stdout.rstrip()).splitlines() == [
        "Scanning collection: org/customers/",
        "Found 1,423 entities",
        "Building manifest... done (847 KB)",
        "Building index: status... done (3 values)",
        "Building index: email... done (1,423 entries)",
        "Building index: tags... done (12 values)",
        "Rebuild complete in 12.3s",
    ]


def test_export(worm: Command) -> None:
    ended = worm("table", "export", "Customer", "--format", "csv", "--filter", "status=active", "--url", URL)
    assert {row["status"] for row in csv.DictReader(io.StringIO(ended.stdout))} == {"active"}
    ended = worm("table", "export", "Customer", "--format", "json", "--select", "name,email,status", "--url", URL)
    rows = json.loads(ended.stdout)
    assert (len(rows), list(rows[0])) == (CUSTOMERS, ["id", "name", "email", "status"])
    ended = worm("table", "export", "Customer", "--format", "ndjson", "--url", URL)
    assert [len(json.loads(line)["notes"]) > 0 for line in ended.stdout.splitlines()].count(True) == CUSTOMERS


def test_aggregate(worm: Command) -> None:
    ended = worm("table", "aggregate", "Customer", "--group-by", "status", "--count", "--format", "json", "--url", URL)
    assert json.loads(ended.stdout) == {
        "groups": {"active": {"count": 1200}, "churned": {"count": 73}, "inactive": {"count": 150}}
    }
