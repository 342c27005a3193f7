"""`worm history --before`, `worm diff`, `worm rollback`, `worm snapshot …`."""

from __future__ import annotations

import json

import pytest

from tests.cli.company import Command
from worm.model import Worm

CREATED, CHANGED = "2026-01-01T00:00:00.000Z", "2026-01-01T00:00:03.000Z"


def _seqs(worm: Command, url: str, *options: str) -> list[int]:
    ended = worm("history", "Customer", "acme", "--format", "ndjson", "--url", url, *options)
    assert (ended.exit_code, ended.stderr) == (0, "")
    return [json.loads(line)["seq"] for line in ended.stdout.splitlines()]


def test_history_pages_backwards(worm: Command, url: str, session: Worm) -> None:
    for score in range(4):
        session.model("Customer").patch("acme", {"score": score})
    assert _seqs(worm, url, "--limit", "2") == [5, 6]
    assert _seqs(worm, url, "--limit", "2", "--before", "5") == [3, 4]
    assert _seqs(worm, url, "--before", "3") == [1, 2]
    assert _seqs(worm, url, "--before", "1") == []


def test_history_as_csv_has_the_members_of_an_entry_as_columns(worm: Command, url: str, session: Worm) -> None:
    lines = worm("history", "Customer", "acme", "--format", "csv", "--url", url).stdout.splitlines()
    assert lines[0] == "seq,op,ts,actor,snapshot,diff,absent,metadata"
    assert [line.split(",")[:4] for line in lines[1:]] == [
        ["1", "create", "2026-01-01T00:00:00Z", "user:ann"],
        ["2", "update", "2026-01-01T00:00:03Z", "user:ann"],
    ]


def test_diff_shows_the_fields_that_differ(worm: Command, url: str, session: Worm) -> None:
    ended = worm("diff", "Customer", "acme", "1", "2", "--url", url)
    assert (ended.exit_code, ended.stderr) == (0, "")
    assert ended.stdout == (
        "Field      Seq 1                     Seq 2\n"
        "---------  ------------------------  ------------------------\n"
        "status     active                    churned\n"
        f"updatedAt  {CREATED}  {CHANGED}\n"
    )


def test_diff_tells_no_field_from_null(worm: Command, url: str, session: Worm) -> None:
    session.store.put("org/customers/raw/data.json", b'{"name":"A","status":null}')
    session.store.put("org/customers/raw/data.json", b'{"name":"A","status":null}')
    assert worm("repair", "Customer", "--url", url).exit_code == 0
    session.store.put("org/customers/raw/data.json", b'{"name":"A","vip":null}')
    assert worm("repair", "Customer", "--url", url).exit_code == 0
    rows = json.loads(worm("diff", "Customer", "raw", "1", "2", "--format", "json", "--url", url).stdout)
    assert rows == [{"field": "status", "before": None}, {"field": "vip", "after": None}]
    table = worm("diff", "Customer", "raw", "1", "2", "--url", url).stdout
    assert table.splitlines()[2:] == ["status  null    (none)", "vip     (none)  null"]


def test_diff_of_an_entry_that_is_not_there_is_not_found(worm: Command, url: str, session: Worm) -> None:
    ended = worm("diff", "Customer", "acme", "1", "7", "--url", url)
    hint = "`worm history` (get_history) shows which there are"
    message = f"worm: Customer 'acme' has no entry 7 [org/customers/acme/data.json] ({hint})\n"
    assert (ended.exit_code, ended.stdout, ended.stderr) == (3, "", message)


def test_rollback_brings_an_earlier_document_back_and_says_so_in_the_history(
    worm: Command, url: str, session: Worm
) -> None:
    ended = worm("rollback", "Customer", "acme", "--to", "1", "--actor", "user:bo", "--url", url)
    assert (ended.exit_code, ended.stderr) == (0, "")
    assert json.loads(ended.stdout) == session.model("Customer").find_by_id("acme")
    assert json.loads(ended.stdout)["status"] == "active"
    entry = session.model("Customer").get_history("acme")[-1]
    assert (entry.seq, entry.op, entry.actor, entry.metadata["rollback"]) == (3, "update", "user:bo", 1)
    assert worm("verify", "--url", url).exit_code == 0


def test_rollback_to_a_moment_without_a_document_is_refused(worm: Command, url: str, session: Worm) -> None:
    session.model("Customer").delete("acme")
    assert worm("rollback", "Customer", "acme", "--to", "3", "--url", url).exit_code == 2
    assert worm("rollback", "Customer", "acme", "--to", "2", "--url", url).exit_code == 0
    assert session.model("Customer").get_history("acme")[-1].op == "restore"


def test_snapshots_are_taken_listed_and_restored(worm: Command, url: str, session: Worm) -> None:
    taken = worm("snapshot", "take", "Customer", "acme", "--format", "json", "--url", url)
    (row,) = json.loads(taken.stdout)
    assert (row["ts"], row["seq"]) == ("2026-01-01T00:00:03Z", 2)
    assert worm("snapshot", "take", "Customer", "acme", "--format", "json", "--url", url).stdout == taken.stdout
    assert worm("snapshot", "list", "Customer", "acme", "--url", url).stdout == (
        f"ts                    size\n--------------------  ----\n2026-01-01T00:00:03Z  {row['size']}\n"
    )
    session.model("Customer").patch("acme", {"status": "active"})
    ended = worm("snapshot", "restore", "Customer", "acme", row["ts"], "--url", url)
    assert json.loads(ended.stdout)["status"] == "churned"
    assert session.model("Customer").get_history("acme")[-1].metadata["snapshot"] == row["ts"]
    assert worm("verify", "--url", url).exit_code == 0


@pytest.mark.parametrize(("ts", "code"), [("2020-01-01T00:00:00Z", 3), ("../x", 2)])
def test_a_snapshot_that_is_not_there_cannot_be_restored(
    worm: Command, url: str, session: Worm, ts: str, code: int
) -> None:
    ended = worm("snapshot", "restore", "Customer", "acme", ts, "--url", url)
    assert (ended.exit_code, ended.stdout) == (code, "")
