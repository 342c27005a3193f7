"""`worm get`, `worm put`, `worm rm`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.company import Command
from worm.cli.arguments import MOMENT_HELP
from worm.sdk.database import Worm

SEQS_HINT = "`worm history` lists the entries"
TRASH_HINT = "if it was deleted, it may be in trash: `worm trash list`, `worm trash restore`"
KEY = "[org/customers/nobody/data.json]"


def test_get_shows_the_document_as_json(worm: Command, url: str, session: Worm) -> None:
    ended = worm("get", "Customer", "zeta", "--url", url)
    assert (ended.exit_code, ended.stderr) == (0, "")
    assert json.loads(ended.stdout) == session.model("Customer").find_by_id("zeta")


def test_get_in_the_other_formats(worm: Command, url: str, session: Worm) -> None:
    session.store.put("org/customers/raw/data.json", b'{"name":"=1+1","tags":["a","b"]}')
    shown = {name: worm("get", "Customer", "raw", "--format", name, "--url", url).stdout for name in FORMATS}
    assert shown == {
        "table": "Field  Value\n-----  -----\nid     raw\nname   =1+1\ntags   a, b\n",
        "ndjson": '{"id": "raw", "name": "=1+1", "tags": ["a", "b"]}\n',
        "csv": 'id,name,tags\nraw,\'=1+1,"[""a"",""b""]"\n',
    }


A_TIME = "a time such as 2026-02-24T12:00:00.000Z"
FORMATS = ("table", "ndjson", "csv")


@pytest.mark.parametrize(
    ("at", "status"),
    [
        ("1", "active"),
        ("2", "churned"),
        ("2026-01-01T00:00:02Z", "active"),
        ("2026-01-01T00:00:03.500Z", "churned"),
        ("2026-01-01T01:00:02+01:00", "active"),
        ("2026-01-02", "churned"),
    ],
)
def test_get_shows_the_document_as_it_was(worm: Command, url: str, session: Worm, at: str, status: str) -> None:
    ended = worm("get", "Customer", "acme", "--at", at, "--url", url)
    assert json.loads(ended.stdout)["status"] == status


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["nobody"], 3, f"Customer 'nobody' does not exist {KEY} ({TRASH_HINT})"),
        (["acme", "--at", "9"], 3, f"Customer 'acme' has no entry 9 [org/customers/acme/data.json] ({SEQS_HINT})"),
        (
            ["acme", "--at", "2025-01-01"],
            3,
            "Customer 'acme' has no entry at 2025-01-01T00:00:00Z or before [org/customers/acme/data.json]",
        ),
        (["acme", "--at", "0"], 2, "'0' is not a seq (seqs start at 1; `worm history` shows them)"),
        (
            ["acme", "--at", "yesterday"],
            2,
            f"'yesterday' is neither a seq nor a time (write {MOMENT_HELP})",
        ),
        ([], 2, "Customer has many documents (name one: worm get Customer ID)"),
    ],
)
def test_what_was_never_there_cannot_be_shown(
    worm: Command, url: str, session: Worm, arguments: list[str], code: int, message: str
) -> None:
    ended = worm("get", "Customer", *arguments, "--url", url)
    assert (ended.exit_code, ended.stdout, ended.stderr) == (code, "", f"worm: {message}\n")


def test_a_deleted_document_can_be_seen_as_it_was_before(worm: Command, url: str, session: Worm) -> None:
    session.model("Customer").delete("zeta")
    assert worm("get", "Customer", "zeta", "--url", url).exit_code == 3
    assert worm("get", "Customer", "zeta", "--at", "2", "--url", url).stderr == (
        "worm: Customer 'zeta' does not exist at seq 2 [org/customers/zeta/data.json]\n"
    )
    assert json.loads(worm("get", "Customer", "zeta", "--at", "1", "--url", url).stdout)["name"] == "Zeta"


def test_put_creates_and_then_replaces(worm: Command, url: str, session: Worm) -> None:
    created = worm(
        "put", "Customer", "--id", "new", "--url", url, "--actor", "user:bo", stdin='{"name": "New", "seats": 1}'
    )
    assert (created.exit_code, created.stderr) == (0, "")
    first = json.loads(created.stdout)
    replaced = json.loads(worm("put", "Customer", "-", "--url", url, stdin='{"id": "new", "name": "Newer"}').stdout)
    assert replaced == {
        "id": "new",
        "name": "Newer",
        "createdAt": first["createdAt"],
        "updatedAt": replaced["updatedAt"],
    }
    history = session.model("Customer").get_history("new")
    assert [(entry.op, entry.actor) for entry in history] == [("create", "user:bo"), ("update", None)]
    assert worm("verify", "--url", url).exit_code == 0


def test_put_reads_a_file_and_makes_an_id_where_there_is_none(
    worm: Command, url: str, session: Worm, tmp_path: Path
) -> None:
    (tmp_path / "settings.json").write_text('{"title": "Acme"}')
    stored = json.loads(worm("put", "OrgSettings", str(tmp_path / "settings.json"), "--url", url).stdout)
    assert (stored["id"], stored["title"]) == ("_", "Acme")
    made = json.loads(worm("put", "Customer", "--url", url, stdin='{"name": "New"}').stdout)
    assert session.model("Customer").find_by_id(made["id"]) == made


@pytest.mark.parametrize(
    ("arguments", "stdin", "code", "message"),
    [
        ([], '{"name": 7}', 2, "name: must be a string, not integer"),
        ([], "[]", 2, "the document is not a JSON object (to store several documents, pass --many)"),
        (["--id", "a"], '{"id": "b", "name": "B"}', 2, "id: the document has id 'b', but --id is 'a'"),
        (["--id", "A B"], '{"name": "B"}', 2, None),
        (["--id", "a", "--many"], "[]", 2, None),
        (["--many"], '[{"name": "A"}, {"name":', 2, None),
        ([], '{"id": 5, "name": "A"}', 2, "id: must be a string, not 5"),
        ([], '{"name": "A", "createdAt": "soon"}', 2, f"createdAt: must be {A_TIME}, not 'soon'"),
        (
            ["nowhere.json"],
            None,
            3,
            "the file nowhere.json does not exist (paths are relative to the current directory)",
        ),
        (["/tmp"], None, 2, "/tmp is a directory (name a file in it)"),
    ],
)
def test_what_cannot_be_stored_is_refused_and_nothing_is_written(
    worm: Command,
    url: str,
    session: Worm,
    arguments: list[str],
    stdin: str | None,
    code: int,
    message: str | None,
) -> None:
    before = _documents_and_entries(session)
    ended = worm("put", "Customer", *arguments, "--url", url, stdin=stdin)
    assert (ended.exit_code, ended.stdout) == (code, "")
    assert ended.stderr.startswith("worm: ") if message is None else ended.stderr == f"worm: {message}\n"
    assert _documents_and_entries(session) == before


def _documents_and_entries(session: Worm) -> list[str]:
    return [listed.key for prefix in ("org/", ".oplog/", ".worm.trash/") for listed in session.store.list(prefix)]


@pytest.mark.parametrize("is_array", [True, False])
def test_put_many_stores_what_it_can_and_ends_with_the_first_failure(
    worm: Command, url: str, session: Worm, is_array: bool
) -> None:
    documents = [{"id": "acme", "name": "Acme 2"}, {"id": "bad"}, {"id": "new", "name": "New"}]
    stdin = json.dumps(documents) if is_array else "\n".join(map(json.dumps, documents)) + "\n\n"
    ended = worm("put", "Customer", "--many", "--url", url, stdin=stdin)
    assert (ended.exit_code, ended.stderr) == (2, "worm: 1 of 3 documents failed\n")
    assert ended.stdout == (
        "id    result    reason\n"
        "----  --------  -----------------\n"
        "acme  replaced\n"
        "bad   failed    name: is required\n"
        "new   created\n"
    )
    assert session.model("Customer").find_all(filter={"id": "acme"}, select=["name"]) == [
        {"id": "acme", "name": "Acme 2"}
    ]
    assert worm("verify", "--url", url).exit_code == 0


def test_the_same_lines_again_write_nothing_and_say_so(worm: Command, url: str, session: Worm, tmp_path: Path) -> None:
    """After a kill the command is run again; a name like *.ndjson says that there are many."""
    lines = tmp_path / "new.ndjson"
    lines.write_text('{"id": "one", "name": "One"}\n{"id": "two", "name": "Two"}\n')
    first = worm("put", "Customer", str(lines), "--format", "ndjson", "--url", url)
    assert (first.exit_code, first.stderr) == (0, "")
    lines.write_text(lines.read_text() + '{"id": "three", "name": "Three"}\n')
    again = worm("put", "Customer", str(lines), "--format", "ndjson", "--url", url)
    assert (again.exit_code, again.stderr) == (0, "worm: 2 of 3 documents were already stored\n")
    assert [json.loads(line)["result"] for line in again.stdout.splitlines()] == ["unchanged", "unchanged", "created"]
    assert len(session.model("Customer").get_history("one")) == 1
    assert worm("put", "Customer", str(lines), "--id", "x", "--url", url).exit_code == 2


def test_rm_of_one_id_acts(worm: Command, url: str, session: Worm) -> None:
    ended = worm("rm", "Customer", "zeta", "--actor", "user:bo", "--format", "json", "--url", url)
    assert (ended.exit_code, ended.stderr) == (0, "")
    assert json.loads(ended.stdout) == [{"id": "zeta", "result": "deleted"}]
    customers = session.model("Customer")
    assert (customers.exists("zeta"), customers.get_history("zeta")[-1].actor) == (False, "user:bo")
    again = worm("rm", "Customer", "zeta", "--url", url)
    assert (again.exit_code, again.stderr) == (
        3,
        "worm: Customer 'zeta' does not exist [org/customers/zeta/data.json]\n",
    )


def test_rm_of_one_id_can_be_tried_first(worm: Command, url: str, session: Worm) -> None:
    ended = worm("rm", "Customer", "zeta", "--dry-run", "--url", url)
    assert (ended.exit_code, ended.stderr) == (0, "worm: dry run; --no-dry-run will delete 1 document\n")
    assert session.model("Customer").exists("zeta")


@pytest.mark.parametrize("chosen", [["acme", "kobe"], ["--filter", "status=churned"]])
def test_rm_in_bulk_is_a_dry_run_unless_told_otherwise(
    worm: Command, url: str, session: Worm, chosen: list[str]
) -> None:
    """A filter that matches more than its author thinks must not cost documents."""
    customers = session.model("Customer")
    tried = worm("rm", "Customer", *chosen, "--format", "ndjson", "--url", url)
    ids = [json.loads(line)["id"] for line in tried.stdout.splitlines()]
    assert tried.exit_code == 0
    assert tried.stderr.startswith("worm: dry run; --no-dry-run will delete ")
    assert [customers.exists(one) for one in ids] == [True] * len(ids)
    acted = worm("rm", "Customer", *chosen, "--no-dry-run", "--format", "ndjson", "--url", url)
    assert [json.loads(line) for line in acted.stdout.splitlines()] == [{"id": one, "result": "deleted"} for one in ids]
    assert [customers.exists(one) for one in ids] == [False] * len(ids)
    assert worm("verify", "--url", url).exit_code == 0


def test_rm_goes_on_after_one_that_is_not_there(worm: Command, url: str, session: Worm) -> None:
    ended = worm("rm", "Customer", "acme", "nobody", "zeta", "--no-dry-run", "--url", url)
    assert (ended.exit_code, ended.stderr) == (3, "worm: 1 of 3 documents failed\n")
    assert ended.stdout == (
        "id      result     reason\n"
        "------  ---------  -----------\n"
        "acme    deleted\n"
        "nobody  not found  no document\n"
        "zeta    deleted\n"
    )


@pytest.mark.parametrize("arguments", [[], ["acme", "--filter", "status=active"]])
def test_rm_wants_ids_or_a_filter(worm: Command, url: str, session: Worm, arguments: list[str]) -> None:
    ended = worm("rm", "Customer", *arguments, "--url", url)
    message = "worm: name the documents by id, or with --filter (worm rm Customer ID)\n"
    assert (ended.exit_code, ended.stdout, ended.stderr) == (2, "", message)
