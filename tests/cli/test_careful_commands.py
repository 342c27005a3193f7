"""What must not be lost, and what must not end in a traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.company import SCHEMA, Command
from worm.formats import load_schema
from worm.sdk.database import Worm, connect, push
from worm.store.open import open_store

WORM = Path(sys.executable).with_name("worm")
BROKEN = "org/customers/zeta/data.json"


@pytest.fixture
def other(url: str) -> Worm:
    """Models with other modes and ids."""
    models = {
        "Log": {"path": "@logs/(id:string)", "mode": "append", "softDelete": True},
        "Fixed": {"path": "@fixed/(id:string)", "mode": "readonly"},
        "Order": {"path": "@orders/(id:int)", "oplog": True},
        "Note": {"path": "@notes/(id:string)"},
    }
    push(open_store(url), load_schema({"version": "1.0", "models": models}))
    session = connect(url, maintenance="inline", probe=False)
    session.model("Log").save({"id": "a"})
    session.store.put("fixed/a/data.json", b"{}")
    return session


def test_the_second_document_of_an_id_in_a_bulk_fails(worm: Command, url: str, session: Worm) -> None:
    stdin = '{"id": "new", "name": "One"}\n{"id": "new", "name": "Two"}\n'
    ended = worm("put", "Customer", "--many", "--format", "json", "--url", url, stdin=stdin)
    assert (ended.exit_code, [row["result"] for row in json.loads(ended.stdout)]) == (2, ["created", "failed"])
    assert "occurs twice in this bulk" in json.loads(ended.stdout)[1]["reason"]
    assert json.loads(worm("get", "Customer", "new", "--url", url).stdout)["name"] == "One"
    twice = worm("put", "OrgSettings", "--many", "--url", url, stdin='[{"title": "A"}, {"title": "B"}]')
    assert (twice.exit_code, json.loads(worm("get", "OrgSettings", "--url", url).stdout)["title"]) == (2, "A")


def test_a_broken_line_or_item_fails_alone(worm: Command, url: str, session: Worm) -> None:
    lines = '{"id": "one", "name": "A"}\n{"name":\n7\n{"id": 5, "name": "x"}\n{"id": "two", "name": "B"}\n'
    ended = worm("put", "Customer", "--many", "--format", "json", "--url", url, stdin=lines)
    rows = json.loads(ended.stdout)
    assert (ended.exit_code, [row["result"] for row in rows]) == (2, ["created", *["failed"] * 3, "created"])
    assert rows[1]["reason"].startswith("line 2: ")
    assert rows[1]["reason"].count("line ") == 1
    assert rows[2]["reason"] == "line 3 is not a JSON object"
    items = worm("put", "Customer", "--many", "--format", "json", "--url", url, stdin='[7, {"id": "x", "name": "X"}]')
    assert [row["result"] for row in json.loads(items.stdout)] == ["failed", "created"]


def test_put_replaces_a_broken_document_and_get_says_how(worm: Command, url: str, session: Worm) -> None:
    for body in (b"{", b'{"name": 5}'):
        session.store.put(BROKEN, body)
        got = worm("get", "Customer", "zeta", "--url", url)
        assert got.exit_code == 2
        assert got.stderr.startswith("worm: the stored document is not valid: ")
        told = "(`worm put` replaces it; `worm history` shows its last valid state)\n"
        assert got.stderr.endswith(told)
        assert worm("put", "Customer", "--url", url, stdin='{"id": "zeta", "name": "Z"}').exit_code == 0
        assert json.loads(worm("get", "Customer", "zeta", "--url", url).stdout)["name"] == "Z"
    session.store.put(BROKEN, b"{")
    many = worm("put", "Customer", "--many", "--url", url, stdin='[{"id": "zeta", "name": "Y"}]')
    assert (many.exit_code, "replaced" in many.stdout) == (0, True)
    assert worm("verify", "--url", url).exit_code == 0


def test_a_singleton_has_no_other_id(worm: Command, url: str, session: Worm) -> None:
    assert worm("put", "OrgSettings", "--id", "x", "--url", url, stdin="{}").exit_code == 2
    assert worm("put", "OrgSettings", "--id", "_", "--url", url, stdin='{"id": null}').exit_code == 0
    assert worm("put", "OrgSettings", "--url", url, stdin='{"plan": "pro"}').exit_code == 0
    key = session.resolver.document_key("OrgSettings", "_")
    stored = session.store.get(key)
    assert stored is not None
    assert "id" not in json.loads(stored.body)


def test_an_int_id_stays_as_the_document_says(worm: Command, url: str, other: Worm) -> None:
    for given, kept in (('{"id": 5}', 5), ('{"id": null, "a": 1}', 5), ('{"id": "5"}', "5")):
        assert json.loads(worm("put", "Order", "--id", "5", "--url", url, stdin=given).stdout)["id"] == kept
        assert json.loads(worm("get", "Order", "5", "--url", url).stdout)["id"] == kept


def test_the_id_of_singletons_is_reserved(worm: Command, url: str, other: Worm) -> None:
    ended = worm("put", "Note", "--id", "_", "--url", url, stdin="{}")
    assert (ended.exit_code, "is reserved for the only document of a singleton" in ended.stderr) == (2, True)


@pytest.mark.parametrize("arguments", [["rm", "Log", "a"], ["rm", "Fixed", "a"], ["trash", "purge", "Log", "a"]])
def test_a_dry_run_refuses_what_the_real_one_refuses(
    worm: Command, url: str, other: Worm, arguments: list[str]
) -> None:
    tried, real = (worm(*arguments, flag, "--url", url) for flag in ("--dry-run", "--no-dry-run"))
    assert (tried.exit_code, tried.stderr) == (real.exit_code, real.stderr) == (2, tried.stderr)
    assert "-only (its " in tried.stderr


@pytest.mark.parametrize("verb", ["list", "restore", "purge"])
def test_a_model_without_trash_says_so_to_every_verb(worm: Command, url: str, other: Worm, verb: str) -> None:
    ended = worm("trash", verb, "Note", *([] if verb == "list" else ["a"]), "--url", url)
    assert (ended.exit_code, ended.stderr.startswith("worm: Note has no trash (set ")) == (2, True)


def test_snapshots_of_what_never_was_are_not_found(worm: Command, url: str, other: Worm) -> None:
    assert worm("snapshot", "list", "Order", "1", "--url", url).exit_code == 3
    assert worm("snapshot", "list", "Note", "never", "--url", url).exit_code == 3


@pytest.mark.parametrize("at", ["0001-01-01T00:00:00+05:00", "9999-12-31T23:59:59-05:00", "1" * 5000])
def test_a_moment_outside_every_range_is_refused(worm: Command, url: str, session: Worm, at: str) -> None:
    ended = worm("get", "Customer", "acme", "--at", at, "--url", url)
    assert (ended.exit_code, ended.stderr.count("\n"), len(ended.stderr) < 300) == (2, 1, True)


def test_import_into_a_missing_directory_is_refused(worm: Command, url: str, session: Worm, tmp_path: Path) -> None:
    ended = worm("import", "-o", str(tmp_path / "no" / "x.json"), "--url", url)
    assert (ended.exit_code, ended.stderr.startswith("worm: the directory ")) == (3, True)


def test_import_with_push_tells_on_stderr(worm: Command, url: str) -> None:
    open_store(url).put("shop/orders/1/order.json", b'{"total": 10.5}')
    ended = worm("import", "--push", "--url", url)
    assert (ended.exit_code, ended.stdout, "pushed the schema" in ended.stderr) == (0, "", True)


def test_a_push_that_leaves_a_model_with_documents_out_is_refused(
    worm: Command, url: str, session: Worm, tmp_path: Path
) -> None:
    models = SCHEMA["models"]
    assert isinstance(models, dict)
    less = tmp_path / "less.json"
    less.write_text(json.dumps({"version": "1.0", "models": {"OrgSettings": models["OrgSettings"]}}))
    ended = worm("push", str(less), "--url", url)
    assert (ended.exit_code, ended.stderr.startswith("worm: Customer has documents, but the new")) == (2, True)
    assert worm("push", str(less), "--force", "--url", url).exit_code == 0


@pytest.mark.parametrize("arguments", [["get"], ["history", "X", "--limit", "many"], ["get", "X", "--nothing"]])
def test_a_usage_error_is_one_line(worm: Command, arguments: list[str]) -> None:
    ended = worm(*arguments)
    assert (ended.exit_code, ended.stdout, ended.stderr.count("\n")) == (2, "", 1)
    assert ended.stderr.startswith("worm: ")
    assert ended.stderr.endswith(f"{arguments[0]} --help`)\n")


def _shell(line: str, url: str) -> subprocess.CompletedProcess[bytes]:
    environment = os.environ | {"WORM_URL": url}
    script = line.replace("worm ", f"{WORM} ")
    return subprocess.run(["bash", "-c", script], capture_output=True, env=environment, timeout=60, check=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "code", "message"),
    [
        ("worm put Customer <&-", 2, b"worm: stdin is closed (name a file)\n"),
        ("worm table list >&-", 1, b"worm: stdout is closed\n"),
        ("worm table list >/dev/full", 1, b"worm: No space left on device\n"),
        ("worm table list 2>&-", 0, b""),
        ("worm table query Customer | true; exit ${PIPESTATUS[0]}", 0, b""),
    ],
)
def test_streams_that_are_closed_or_full(url: str, session: Worm, line: str, code: int, message: bytes) -> None:
    found = _shell(line, url)
    assert (found.returncode, found.stderr) == (code, message)
