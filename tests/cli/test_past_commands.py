"""`worm history --before`, `worm diff`, `worm rollback`, `worm snapshot …`, `worm restore`, and tables `--at`."""

from __future__ import annotations

import json

import pytest

from tests.cli.company import Command
from worm.sdk.database import Worm

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
    hint = "`worm history` lists the entries"
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


# Whole collections

THEN = "2026-01-01T00:00:02Z"  # before acme churned


def test_table_commands_take_a_moment(worm: Command, url: str, session: Worm) -> None:
    session.model("Customer").delete("zeta")
    asked = ("--filter", "status=active", "--at", THEN, "--url", url)
    rows = json.loads(worm("table", "query", "Customer", "--format", "json", *asked).stdout)
    assert [row["id"] for row in rows] == ["acme", "zeta"]
    assert json.loads(worm("table", "aggregate", "Customer", "--format", "json", *asked).stdout) == {"count": 2}
    values = worm("table", "distinct", "Customer", "name", "--format", "json", *asked)
    assert json.loads(values.stdout) == sorted(row["name"] for row in rows)
    exported = worm("table", "export", "Customer", "--format", "ndjson", *asked)
    assert sorted(json.loads(line)["id"] for line in exported.stdout.splitlines()) == ["acme", "zeta"]
    sorted_too = worm("table", "export", "Customer", "--format", "ndjson", "--sort", "-name", *asked)
    assert len(sorted_too.stdout.splitlines()) == 2
    plan = worm("table", "query", "Customer", "--explain", *asked)
    assert (plan.exit_code, f"as of {THEN}" in plan.stdout) == (0, True)


def test_table_commands_refuse_too_many_changes(worm: Command, url: str, session: Worm) -> None:
    ended = worm("table", "query", "Customer", "--at", "2020-01-01", "--max-changed", "1", "--url", url)
    assert (ended.exit_code, ended.stdout) == (2, "")
    assert "changed after 2020-01-01T00:00:00Z, and max_changed is 1" in ended.stderr
    assert "`--max-changed " in ended.stderr
    alone = worm("table", "query", "Customer", "--max-changed", "1", "--url", url)
    assert (alone.exit_code, "--max-changed needs --at" in alone.stderr) == (2, True)
    number = worm("table", "query", "Customer", "--at", "3", "--url", url)
    assert (number.exit_code, "counts its own seqs" in number.stderr) == (2, True)


def test_restore_is_a_dry_run_unless_told_otherwise(worm: Command, url: str, session: Worm) -> None:
    session.model("Customer").delete("zeta")
    session.model("Customer").insert({"id": "late", "name": "Late"})
    command = ("restore", "Customer", "--at", THEN, "--url", url)
    told = worm(*command)
    assert (told.exit_code, told.stderr) == (0, "worm: dry run; --no-dry-run will restore 3 documents\n")
    rows = [line.split()[:4] for line in told.stdout.splitlines()[2:]]
    assert rows[0] == ["Customer", "acme", "changed", "status"]
    assert [row[1:3] for row in rows[1:]] == [["late", "deleted"], ["zeta", "created"]]
    assert session.model("Customer").get("acme")["status"] == "churned"
    done = worm(*command, "--no-dry-run", "--reason", "mistake", "--actor", "eve", "--format", "json")
    assert (done.exit_code, [one["result"] for one in json.loads(done.stdout)]) == (
        0,
        ["changed", "deleted", "created"],
    )
    entry = session.model("Customer").get_history("acme")[-1]
    assert (entry.actor, entry.reason, entry.metadata["restoredFrom"]) == ("eve", "mistake", THEN)
    assert json.loads(worm(*command, "--no-dry-run", "--format", "json").stdout) == []


def test_restore_says_what_it_could_not_do(worm: Command, url: str, session: Worm) -> None:
    session.store.put(".oplog/customers/acme/0001.json", b"damaged")
    ended = worm("restore", "Customer", "--at", THEN, "--no-dry-run", "--url", url)
    assert (ended.exit_code, ended.stderr) == (9, "worm: 1 of 1 document failed\n")
    assert "0001.json" in ended.stdout
    missing = worm("restore", "--url", url)
    assert (missing.exit_code, "--at" in missing.stderr) == (2, True)
