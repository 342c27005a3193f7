"""`worm table inspect` and `worm table rebuild` on tables in every state."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.company import SCHEMA, Command
from worm.cli.output import progress_bar
from worm.formats import load_schema
from worm.formats.strict_json import JsonValue
from worm.sdk.database import Worm, connect, push
from worm.store.open import open_store

WORM = Path(sys.executable).with_name("worm")


def _status(worm: Command, url: str, model: str = "Customer") -> str:
    shown = worm("table", "inspect", model, "--url", url).stdout
    found = re.search(r"^  Status: +(.*)$", shown, flags=re.MULTILINE)
    assert found is not None
    return found[1]


def test_labels_and_columns_are_aligned(worm: Command, url: str, session: Worm) -> None:
    shown = worm("table", "inspect", "Customer", "--url", url).stdout
    estimated = re.search(r"~\d+ B", shown)
    assert estimated is not None
    assert shown == (
        "Model:  Customer\n"
        "Path:   #org/@customers/(id:slug)\n"
        "Mode:   readwrite\n"
        "\n"
        "Collection:\n"
        "  Count:         3\n"
        f"  Size:          {estimated[0]} (estimated from manifest)\n"
        "  Last Updated:  2026-01-01T00:00:03Z\n"
        "\n"
        "Manifest:\n"
        "  Status:       fresh (checksum verified)\n"
        f"  Size:         {_manifest_size(session)}\n"
        "  Fields:       name, status, score, seats, vip, tags, createdAt, updatedAt\n"
        "  Auto-update:  enabled\n"
        "\n"
        "Indexes:\n"
        "  byStatus:  status (standard)  3 distinct values\n"
    )


def _manifest_size(session: Worm) -> str:
    found = session.store.head("org/customers/.worm.manifest.json")
    assert found is not None
    return f"{found.size} B" if found.size < 1000 else f"{found.size / 1000:.1f} KB"


def test_a_model_without_a_manifest_has_its_documents_listed(worm: Command, url: str, session: Worm) -> None:
    session.store.put("org/settings/data.json", b'{"title": "T"}')
    shown = worm("table", "inspect", "OrgSettings", "--url", url).stdout
    assert re.search(r"^  Size: +14 B$", shown, flags=re.MULTILINE)
    assert re.search(r"^  Count: +1$", shown, flags=re.MULTILINE)
    assert shown.endswith("Manifest:\n  Status:  n/a (not enabled)\n\nIndexes:\n  none\n")


def test_the_status_says_what_is_the_matter(worm: Command, url: str, session: Worm) -> None:
    manifest, index = "org/customers/.worm.manifest.json", "org/customers/.worm.index/status.json"
    kept = session.store.get(index)
    assert kept is not None
    session.store.delete(index)
    assert _status(worm, url) == "stale (an index is missing or damaged)"
    assert (
        "byStatus:  status (standard)  missing or damaged\n"
        in worm("table", "inspect", "Customer", "--url", url).stdout
    )
    session.store.put(index, kept.body)
    session.store.put("org/customers/new/data.json", b'{"name": "New"}')
    assert _status(worm, url) == "stale (it lacks a change)"
    session.store.put(manifest, b"{}")
    assert _status(worm, url) == "missing (or damaged: run `worm table rebuild Customer`)"


def test_a_collection_without_documents_has_no_manifest_to_miss(worm: Command, url: str) -> None:
    store = open_store(url)
    push(store, load_schema(SCHEMA))
    store.delete("org/customers/.worm.manifest.json")
    assert _status(worm, url) == "empty (no documents yet)"


def test_inspect_as_json_is_for_programs(worm: Command, url: str, session: Worm) -> None:
    found = json.loads(worm("table", "inspect", "Customer", "--format", "json", "--url", url).stdout)
    assert found["collection"].pop("sizeBytes") > 100
    assert found["manifest"].pop("sizeBytes") > 100
    assert found["indexes"][0].pop("sizeBytes") > 100
    fields = ["name", "status", "score", "seats", "vip", "tags", "createdAt", "updatedAt"]
    updated = "2026-01-01T00:00:03Z"
    assert found == {
        "model": "Customer",
        "path": "#org/@customers/(id:slug)",
        "mode": "readwrite",
        "collection": {"count": 3, "sizeEstimated": True, "lastUpdated": updated},
        "manifest": {
            "status": "fresh",
            "exists": True,
            "fresh": True,
            "count": 3,
            "lastUpdated": updated,
            "partitioned": False,
            "fields": fields,
            "autoUpdate": True,
            "partitions": 0,
            "deltas": 0,
        },
        "indexes": [
            {
                "name": "byStatus",
                "field": "status",
                "type": "standard",
                "unique": False,
                "values": 3,
                "conflicts": 0,
                "exists": True,
            }
        ],
    }


def test_partitions_and_conflicts_are_shown(worm: Command, url: str) -> None:
    model: dict[str, JsonValue] = {
        "path": "#org/@users/(id:slug)",
        "fields": {"email": {"type": "string"}},
        "manifest": {"enabled": True, "autoUpdate": False, "partitionThreshold": 2},
        "indexes": {"byEmail": {"field": "email", "unique": True}},
    }
    store = open_store(url)
    push(store, load_schema({"version": "1.0", "models": {"User": model}}))
    for at in range(6):  # raw uploads cannot be refused: two have the same address
        store.put(f"org/users/u{at}/data.json", b'{"email": "a%d@x.org"}' % max(1, at))
    rebuilt = worm("table", "rebuild", "User", "--url", url).stdout
    assert "Building index: email... done (5 entries, 1 conflict)\n" in rebuilt
    shown = worm("table", "inspect", "User", "--url", url).stdout
    assert "  byEmail:  email (unique)  5 entries, 1 conflict\n" in shown
    assert "  Auto-update:  disabled\n" in shown
    assert re.search(r"^  Partitions:   \d+, 0 delta files$", shown, flags=re.MULTILINE)


def test_a_rebuild_makes_a_damaged_table_fresh(worm: Command, url: str, session: Worm) -> None:
    session.store.put("org/customers/.worm.manifest.json", b"{")
    session.store.delete("org/customers/.worm.index/status.json")
    ended = worm("table", "rebuild", "Customer", "--url", url)
    lines = ended.stdout.splitlines()
    assert (ended.exit_code, ended.stderr, lines[1]) == (0, "", "Found 3 entities")
    assert re.fullmatch(r"Rebuild complete in \d+\.\ds", lines[-1])
    assert _status(worm, url) == "fresh (checksum verified)"


def test_all_rebuilds_every_model_that_keeps_a_table(worm: Command, url: str, session: Worm) -> None:
    assert worm("table", "rebuild", "--all", "--url", url).stdout.count("Scanning collection: ") == 1
    models = {**SCHEMA["models"], "Note": {"path": "#org/@notes/(id:slug)", "manifest": {"enabled": True}}}  # type: ignore[dict-item]
    push(open_store(url), load_schema({"version": "1.0", "models": models}))
    scanned = re.findall(
        r"^Scanning collection: (.*)$", worm("table", "rebuild", "--all", "--url", url).stdout, re.MULTILINE
    )
    assert scanned == ["org/customers/", "org/notes/"]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "name a model, or pass --all (worm table rebuild MODEL)"),
        (["Customer", "--all"], 2, "name a model, or pass --all (worm table rebuild MODEL)"),
        (["Nobody"], 3, "the schema has no model 'Nobody'; known: Customer, OrgSettings"),
        (["OrgSettings"], 2, "OrgSettings keeps no manifest (set"),
    ],
)
def test_what_cannot_be_rebuilt_is_one_line(
    worm: Command, url: str, session: Worm, arguments: list[str], code: int, message: str
) -> None:
    ended = worm("table", "rebuild", *arguments, "--url", url)
    assert (ended.exit_code, ended.stdout) == (code, "")
    assert ended.stderr.startswith(f"worm: {message}")


@pytest.mark.slow
def test_a_bar_is_shown_on_a_terminal(url: str, session: Worm) -> None:
    """Where stderr is none, the other tests find it empty."""
    arguments = [str(WORM), "table", "rebuild", "Customer", "--url", url]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    ours, theirs = pty.openpty()
    ended = subprocess.run(arguments, stdout=subprocess.PIPE, stderr=theirs, env=environment, timeout=60, check=True)
    os.close(theirs)
    bar = os.read(ours, 65536).decode()
    os.close(ours)
    assert re.search(r"Building manifest.*3/3", bar, flags=re.DOTALL)
    assert b"\x1b" not in ended.stdout


class Terminal(io.StringIO):
    """A stderr that people look at."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "is_hidden", "is_shown"),
    [(Terminal(), False, True), (Terminal(), True, False), (io.StringIO(), False, False)],
)
def test_a_bar_is_for_people_only(
    monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, is_hidden: bool, is_shown: bool
) -> None:
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    with progress_bar("Exporting", is_hidden=is_hidden) as show:
        show(7, None)
        show(7, 10)
    assert ("7/10" in stream.getvalue()) is is_shown
    assert (stream.getvalue() != "") is is_shown


def test_a_session_sees_the_rebuilt_table(worm: Command, url: str, session: Worm) -> None:
    session.store.delete("org/customers/.worm.manifest.json")
    assert worm("table", "rebuild", "Customer", "--url", url).exit_code == 0
    rows = connect(url).model("Customer").find_all(select=["name"], sort={"field": "name"})
    assert (rows.plan.strategy, [row["id"] for row in rows]) == ("manifest_scan", ["acme", "zeta", "kobe"])


def test_null_is_no_value_and_not_counted(worm: Command, url: str) -> None:
    model: dict[str, JsonValue] = {
        "path": "#org/@users/(id:slug)",
        "fields": {"email": {"type": "string"}, "kind": {"type": "string"}},
        "indexes": {"byEmail": {"field": "email", "unique": True}, "byKind": {"field": "kind"}},
    }
    store = open_store(url)
    push(store, load_schema({"version": "1.0", "models": {"User": model}}))
    for name, email in (("a", b'"a@x.org"'), ("b", b"null"), ("c", b"null")):
        store.put(f"org/users/{name}/data.json", b'{"email": %s, "kind": null}' % email)
    assert worm("repair", "--url", url).exit_code == 0
    rebuilt = worm("table", "rebuild", "User", "--url", url).stdout
    assert "Building index: email... done (1 entry)\n" in rebuilt
    assert "Building index: kind... done (0 values)\n" in rebuilt
    shown = worm("table", "inspect", "User", "--url", url).stdout
    assert "  byEmail:  email (unique)   1 entry\n" in shown
    assert "  byKind:   kind (standard)  0 distinct values\n" in shown
