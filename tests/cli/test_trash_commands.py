"""`worm trash …`. Commands run at the machine's time, so what must be young or old is dated from there."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.cli.company import Command
from worm.clock import iso_seconds
from worm.sdk.database import Worm, connect

OLD = "2020-01-01T00:00:00Z"
TOMBSTONE = ".worm.trash/customers/{}/.worm.tombstone"


@pytest.fixture
def trashed(url: str, session: Worm) -> list[str]:
    """Two customers, deleted just now."""
    customers = connect(url, actor="user:bo", maintenance="inline", probe=False).model("Customer")
    assert customers.delete("acme")
    assert customers.delete("zeta")
    return ["acme", "zeta"]


def _expire(session: Worm, url: str, id: str) -> None:
    """As if it had been deleted long ago."""
    key = TOMBSTONE.format(id)
    found = session.store.get(key)
    assert found is not None
    session.store.put(key, json.dumps({**json.loads(found.body), "deletedAt": OLD}).encode())
    moment = datetime.fromisoformat(OLD).timestamp()
    os.utime(Path(url) / key, (moment, moment))


def _listed(worm: Command, url: str) -> list[str]:
    ended = worm("trash", "list", "--format", "ndjson", "--url", url)
    assert (ended.exit_code, ended.stderr) == (0, "")
    return [json.loads(line)["id"] for line in ended.stdout.splitlines()]


def test_list_shows_who_deleted_what_and_until_when_it_is_kept(
    worm: Command, url: str, session: Worm, trashed: list[str]
) -> None:
    rows = json.loads(worm("trash", "list", "Customer", "--format", "json", "--url", url).stdout)
    deleted = [datetime.fromisoformat(row["deletedAt"]) for row in rows]
    assert rows == [
        {
            "model": "Customer",
            "id": one,
            "deletedAt": iso_seconds(when),
            "deletedBy": "user:bo",
            "restorePath": f"org/customers/{one}/data.json",
            "ttl": 30,
            "expiresAt": iso_seconds(when + timedelta(days=30)),
        }
        for one, when in zip(trashed, deleted, strict=True)
    ]
    assert abs(datetime.now(UTC) - deleted[0]) < timedelta(minutes=5)
    header = worm("trash", "list", "--url", url).stdout.splitlines()[0]
    assert header.split() == ["model", "id", "deletedAt", "deletedBy", "expiresAt"]


def test_restore_brings_it_back_exactly(worm: Command, url: str, session: Worm) -> None:
    before = session.model("Customer").find_by_id("kobe")
    assert worm("rm", "Customer", "kobe", "--url", url).exit_code == 0
    ended = worm("trash", "restore", "Customer", "kobe", "--actor", "user:cy", "--url", url)
    assert (ended.exit_code, json.loads(ended.stdout)) == (0, before)
    entry = session.model("Customer").get_history("kobe")[-1]
    assert (entry.op, entry.actor) == ("restore", "user:cy")
    assert _listed(worm, url) == []
    assert worm("verify", "--url", url).exit_code == 0


def test_restore_overwrites_nothing(worm: Command, url: str, session: Worm, trashed: list[str]) -> None:
    assert worm("put", "Customer", "--id", "acme", "--url", url, stdin='{"name": "Another"}').exit_code == 0
    ended = worm("trash", "restore", "Customer", "acme", "--url", url)
    assert (ended.exit_code, ended.stdout) == (4, "")
    assert json.loads(worm("get", "Customer", "acme", "--url", url).stdout)["name"] == "Another"
    assert worm("rm", "Customer", "acme", "--url", url).exit_code == 0


def test_restore_of_what_is_not_in_trash_is_not_found(worm: Command, url: str, session: Worm) -> None:
    assert worm("trash", "restore", "Customer", "nobody", "--url", url).exit_code == 3


def test_purge_of_one_acts_and_history_stays(worm: Command, url: str, session: Worm, trashed: list[str]) -> None:
    ended = worm("trash", "purge", "Customer", "acme", "--url", url)
    assert (ended.exit_code, ended.stdout) == (0, "id    result\n----  ------\nacme  purged\n")
    assert [listed.key for listed in session.store.list(".worm.trash/customers/acme/")] == []
    assert [entry.op for entry in session.model("Customer").get_history("acme")] == ["create", "update", "delete"]
    again = worm("trash", "purge", "Customer", "acme", "--url", url)
    assert (again.exit_code, again.stderr) == (3, "worm: Customer 'acme' is not in trash\n")


def test_purge_in_bulk_is_a_dry_run_unless_told_otherwise(
    worm: Command, url: str, session: Worm, trashed: list[str]
) -> None:
    tried = worm("trash", "purge", "Customer", *trashed, "kobe", "--url", url)
    assert (tried.exit_code, _listed(worm, url)) == (3, trashed)
    assert tried.stderr == ("worm: dry run; --no-dry-run will purge 2 documents\nworm: 1 of 3 documents failed\n")
    acted = worm("trash", "purge", "Customer", *trashed, "--no-dry-run", "--format", "csv", "--url", url)
    assert (acted.exit_code, acted.stdout.splitlines()) == (0, ["id,result", "acme,purged", "zeta,purged"])
    assert _listed(worm, url) == []


def test_what_is_past_its_time_is_hidden_at_once_and_purged_only_when_told(
    worm: Command, url: str, session: Worm, trashed: list[str]
) -> None:
    _expire(session, url, "acme")
    assert _listed(worm, url) == ["zeta"]
    assert worm("trash", "restore", "Customer", "acme", "--url", url).exit_code == 3
    tried = worm("trash", "expire", "--url", url)
    assert (tried.exit_code, tried.stderr) == (0, "worm: dry run; --no-dry-run will purge 1 document\n")
    assert tried.stdout == "model     id    result\n--------  ----  -------\nCustomer  acme  expired\n"
    assert session.store.head(TOMBSTONE.format("acme")) is not None
    acted = worm("trash", "expire", "Customer", "--no-dry-run", "--format", "json", "--url", url)
    assert json.loads(acted.stdout) == [{"model": "Customer", "id": "acme", "result": "purged"}]
    assert [listed.key for listed in session.store.list(".worm.trash/customers/acme/")] == []
    assert _listed(worm, url) == ["zeta"]


@pytest.mark.parametrize("command", ["list", "expire"])
def test_a_model_without_soft_delete_has_no_trash(worm: Command, url: str, session: Worm, command: str) -> None:
    ended = worm("trash", command, "OrgSettings", "--url", url)
    message = 'worm: OrgSettings has no trash (set "softDelete": true in the schema and push it)\n'
    assert (ended.exit_code, ended.stdout, ended.stderr) == (2, "", message)
