"""`worm verify` and `worm repair` of models in a space."""

from __future__ import annotations

import pytest

from tests.cli.company import Command
from worm.formats import load_schema
from worm.sdk.database import Worm, connect, push
from worm.store.base import PUT_ID
from worm.store.open import open_store

SCHEMA: dict[str, object] = {
    "version": "1.0",
    "models": {
        "Account": {
            "path": "#bank/@accounts/(id:slug)",
            "space": "main",
            "oplog": True,
            "fields": {"balance": {"type": "number"}},
            "manifest": {"enabled": True},
        }
    },
}
KEY = "bank/accounts/a/data.json"


@pytest.fixture
def bank(url: str) -> Worm:
    push(open_store(url), load_schema(SCHEMA))
    return connect(url, actor="user:ann", maintenance="inline", probe=False)


def test_repair_brings_commits_that_are_in_no_document(worm: Command, url: str, bank: Worm) -> None:
    writer = connect(url, actor="user:bob", maintenance="events", probe=False)
    with writer.transaction() as tx:
        tx.save("Account", {"id": "a", "balance": 1})
        tx.save("Account", {"id": "b", "balance": 2})
    writer.close()
    ended = worm("verify", "--url", url)
    assert ended.exit_code == 1
    assert "documents-behind" in ended.stdout
    assert worm("repair", "--url", url).exit_code == 0
    assert worm("verify", "--url", url).stdout.endswith("no differences\n")
    (entry,) = bank.model("Account").table.collection.oplog.entries("a")
    assert (entry.actor, entry.metadata["commitSeq"]) == ("user:bob", 1)


@pytest.mark.parametrize("is_copy", [False, True], ids=["a late write", "a copy"])
def test_repair_removes_a_late_write_and_leaves_what_was_copied_or_written_by_hand(
    worm: Command, url: str, bank: Worm, is_copy: bool
) -> None:
    accounts = bank.model("Account")
    accounts.save({"id": "a", "balance": 1})
    accounts.save({"id": "b", "balance": 1})
    found = bank.store.get(KEY)
    assert found is not None
    connect(url, actor="user:ann", maintenance="events", probe=False).model("Account").delete("a")
    bank.materialize("main")
    assert bank.store.get(KEY) is None
    put_id = found.metadata[PUT_ID] if is_copy else "of another attempt"
    bank.store.put(KEY, found.body, metadata={**found.metadata, PUT_ID: put_id})
    bank.store.put("bank/accounts/b/data.json", b'{"balance": 7}')
    ended = worm("verify", "--url", url)
    assert ended.exit_code == 1
    assert {"kept" if is_copy else "document-outdated", KEY} <= set(ended.stdout.replace(":", " ").split())
    assert worm("repair", "--url", url).exit_code == 0
    assert worm("verify", "--url", url).stdout.endswith("no differences\n")
    assert (bank.store.get(KEY) is not None) == is_copy
    ops = [entry.op for entry in accounts.table.collection.oplog.entries("a")]
    assert ops == (["create"] if is_copy else ["create", "delete"]), "a directory keeps no versions between two looks"
    kept = bank.store.get("bank/accounts/b/data.json")
    assert kept is not None
    assert kept.body == b'{"balance": 7}'


def test_repair_says_that_a_space_cannot_be_read_and_goes_on(worm: Command, url: str, bank: Worm) -> None:
    writer = connect(url, actor="user:bob", maintenance="events", probe=False)
    writer.model("Account").save({"id": "a", "balance": 1})
    writer.close()
    bank.store.put("bank/accounts/b/data.json", b'{"balance": 7}')
    for listed in list(bank.store.list("db/space-main/log/")):
        bank.store.put(listed.key, b"damaged")
    ended = worm("repair", "--url", url)
    assert ended.exit_code == 0
    assert "left as it is  db/space-main/log/" in ended.stdout
    assert [entry.op for entry in bank.model("Account").table.collection.oplog.entries("b")] == ["create"]
