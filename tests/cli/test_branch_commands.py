"""`worm branch …`, and `--branch` for commands on documents."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.company import Command

SCHEMA = {
    "version": "1.0",
    "models": {
        "Customer": {
            "path": "@customers/(id:string)",
            "space": "main",
            "oplog": True,
            "softDelete": True,
            "fields": {"name": {"type": "string", "required": True}, "score": {"type": "number"}},
            "manifest": {"enabled": True},
        }
    },
}


@pytest.fixture
def place(worm: Command, tmp_path: Path) -> str:
    """A directory with one customer and the branch `draft`."""
    schema, url = tmp_path / "schema.json", str(tmp_path / "data")
    schema.write_text(json.dumps(SCHEMA))
    assert worm("push", str(schema), "--url", url).exit_code == 0
    assert worm("put", "Customer", "--url", url, stdin='{"id": "a", "name": "Ann", "score": 1}').exit_code == 0
    assert worm("branch", "create", "draft", "--url", url).exit_code == 0
    return url


def shown(worm: Command, place: str, *arguments: str) -> list[dict[str, object]]:
    ended = worm(*arguments, "--format", "json", "--url", place)
    assert (ended.exit_code, ended.stderr) == (0, "")
    found: list[dict[str, object]] = json.loads(ended.stdout)
    return found


@pytest.mark.slow
def test_a_document_is_changed_on_a_branch_compared_and_merged(worm: Command, place: str) -> None:
    on = ("--branch", "draft", "--url", place)
    assert worm("put", "Customer", *on, "--actor", "ann", stdin='{"id": "b", "name": "Bob"}').exit_code == 0
    assert worm("put", "Customer", *on, stdin='{"id": "a", "name": "Anna", "score": 1}').exit_code == 0
    assert [row["id"] for row in shown(worm, place, "table", "query", "Customer", "--branch", "draft")] == ["a", "b"]
    assert [row["id"] for row in shown(worm, place, "table", "query", "Customer")] == ["a"]
    assert json.loads(worm("get", "Customer", "a", *on).stdout)["name"] == "Anna"
    counted = worm("table", "aggregate", "Customer", "--count", "--format", "json", *on)
    assert json.loads(counted.stdout) == {"count": 2}
    assert [row["seq"] for row in shown(worm, place, "history", "Customer", "a", "--branch", "draft")] == [1, 2]
    changes = shown(worm, place, "branch", "diff", "draft")
    assert [(row["id"], row["change"], row["conflict"]) for row in changes] == [
        ("a", "updated", False),
        ("b", "created", False),
    ]
    assert changes[0]["fields"] == {"name": ["Ann", "Anna"]}
    tried = worm("branch", "merge", "draft", "--dry-run", "--url", place)
    assert (tried.exit_code, tried.stderr) == (0, "worm: dry run; 2 documents would change\n")
    done = worm("branch", "merge", "draft", "--actor", "boss", "--url", place)
    assert (done.exit_code, done.stderr) == (0, "worm: merged 2 documents by commit 5\n")
    assert json.loads(worm("get", "Customer", "a", "--url", place).stdout)["name"] == "Anna"
    [entry] = shown(worm, place, "history", "Customer", "b")
    assert entry["actor"] == "boss"
    assert worm("verify", "--url", place).exit_code == 0


@pytest.mark.slow
def test_what_both_changed_ends_in_a_conflict_unless_a_policy_decides(worm: Command, place: str) -> None:
    assert worm("put", "Customer", "--url", place, stdin='{"id": "a", "name": "Ann", "score": 2}').exit_code == 0
    on = ("--branch", "draft", "--url", place)
    assert worm("put", "Customer", *on, stdin='{"id": "a", "name": "Anna", "score": 1}').exit_code == 0
    refused = worm("branch", "merge", "draft", "--url", place)
    assert refused.exit_code == 4
    assert refused.stderr.startswith("worm: both branches changed 'Customer/a'")
    assert worm("branch", "merge", "draft", "--policy", "fields", "--url", place).exit_code == 0
    found = json.loads(worm("get", "Customer", "a", "--url", place).stdout)
    assert (found["name"], found["score"]) == ("Anna", 2)


def test_branches_are_listed_ended_and_brought_back(worm: Command, place: str) -> None:
    assert [(row["name"], row["parent"], row["status"]) for row in shown(worm, place, "branch", "list")] == [
        ("main", None, "active"),
        ("draft", "main", "active"),
    ]
    assert [line.split()[:3] for line in worm("branch", "list", "--url", place).stdout.splitlines()[2:]] == [
        ["main", "--", "--"],
        ["draft", "main", "1"],
    ]
    assert [row["status"] for row in shown(worm, place, "branch", "delete", "draft")] == ["deleted"]
    refused = worm("put", "Customer", "--branch", "draft", "--url", place, stdin='{"id": "x", "name": "x"}')
    assert refused.exit_code == 3
    assert [row["status"] for row in shown(worm, place, "branch", "undelete", "draft")] == ["active"]
    missing = worm("get", "Customer", "a", "--branch", "nobody", "--url", place)
    assert (missing.exit_code, missing.stderr) == (
        3,
        "worm: there is no branch 'nobody' (create it: `worm branch create nobody`)\n",
    )


@pytest.mark.slow
def test_a_document_deleted_on_a_branch_comes_back(worm: Command, place: str) -> None:
    on = ("--branch", "draft", "--url", place)
    assert worm("rm", "Customer", "a", *on).exit_code == 0
    assert [row["id"] for row in shown(worm, place, "trash", "list", "Customer", "--branch", "draft")] == ["a"]
    assert worm("get", "Customer", "a", "--url", place).exit_code == 0
    assert worm("trash", "restore", "Customer", "a", *on).exit_code == 0
    assert json.loads(worm("rollback", "Customer", "a", "--to", "1", *on).stdout)["name"] == "Ann"
