"""What docs/branches.md says is so."""

from __future__ import annotations

import re

import pytest

import worm
from tests.docs.markdown import ROOT, blocks
from worm.spaces.merging import POLICIES

PAGE = ROOT / "docs" / "branches.md"
SCHEMA = {
    "version": "1.0",
    "models": {
        "Account": {
            "path": "@accounts/(id:string)",
            "space": "main",
            "oplog": True,
            "fields": {"owner": {"type": "string"}, "balance": {"type": "number"}},
            "manifest": {"enabled": True},
        }
    },
}
CREATED = {"balance": [None, 0], "createdAt": [None, "TIME"], "id": [None, "c"], "owner": [None, "Cid"]}


def test_the_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = [block.text for block in blocks(PAGE) if block.language == "python"]
    with worm.connect("memory://branches-page", schema=SCHEMA) as db:
        db.push()
        db.model("Account").insert_many([{"id": "a", "owner": "Ann", "balance": 100}, {"id": "b", "owner": "Bob"}])
        exec(compile(example, "branches.md", "exec"), {"db": db})
    assert [re.sub(r"\d{4}-[^']*Z", "TIME", line) for line in capsys.readouterr().out.splitlines()] == [
        "3 2",
        "Account a updated {'balance': [100, 90]}",
        f"Account c created {CREATED}",
        "90 (6,)",
    ]


def test_every_policy_is_described() -> None:
    table = PAGE.read_text().partition("| `policy` |")[2]
    assert [one for one in POLICIES if f"`{one}`" not in table] == []
