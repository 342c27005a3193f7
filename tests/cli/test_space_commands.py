"""`worm space …`: log, read, at, write, merge, branches, blobs, and pulling a replica."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.company import Command, Ended
from worm.clock import SystemClock
from worm.errors import Conflict, Corrupt, Invalid, NotFound, UnsafeStore
from worm.spaces.opening import open_space
from worm.store.base import Store

PAYLOAD = b"\x00\xff blob\n" * 100
HASH = hashlib.sha256(PAYLOAD).hexdigest()
Run = Callable[..., Ended]


@pytest.fixture
def where(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("spaces") / "store")


@pytest.fixture
def run(worm: Command, where: str) -> Run:
    def run(*arguments: str, stdin: str | None = None) -> Ended:
        return worm("--url", where, "space", *arguments, stdin=stdin)

    return run


def _put(run: Run, id: str, branch: str = "", **value: object) -> int:
    """The seq of a commit that sets one document."""
    body = json.dumps({"ops": [{"op": "set", "id": id, "value": value}]})
    (done,) = _json(run("write", "main", "-", "--branch", branch, "--format", "json", stdin=body))
    return int(done["seq"])


def _json(ended: Ended) -> Any:
    assert (ended.exit_code, ended.stderr) == (0, "")
    return json.loads(ended.stdout)


def test_a_transaction_is_written_read_and_logged(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "tx.json"
    ops = [{"op": "set", "id": "a", "value": {"n": 1}}, {"op": "set", "id": "b", "value": {}}]
    file.write_text(json.dumps({"ops": ops, "session": {"id": "s", "localSeq": 7}}))
    (done,) = _json(run("write", "main", str(file), "--format", "json"))
    assert (done["seq"], done["sessionId"], done["localSeq"], done["isRepeat"]) == (1, "s", 7, False)
    (again,) = _json(run("write", "main", str(file), "--format", "json"))
    assert again == {**done, "isRepeat": True}
    rows = _json(run("read", "main", "b", "a", "x", "--format", "json"))
    assert [(row["id"], row["presence"], row["seq"], row["value"]) for row in rows] == [
        ("b", "present", 1, {}),
        ("a", "present", 1, {"n": 1}),
        ("x", "never", 0, None),
    ]
    (entry,) = _json(run("log", "main", "--format", "json"))
    assert entry["original"]["operations"] == ops
    shown = run("log", "main").stdout.splitlines()
    assert shown[0].split() == ["seq", "createdAt", "branch", "sessionId", "localSeq", "operations"]
    assert shown[2].endswith("set a, set b")


def test_reads_of_a_transaction_refuse_what_was_changed_since(run: Run) -> None:
    _put(run, "a", n=1)
    _put(run, "a", n=2)
    ops = [{"op": "delete", "id": "a"}]
    stale = run("write", "main", "-", stdin=json.dumps({"ops": ops, "reads": [{"id": "a", "seq": 1}]}))
    assert stale.exit_code == Conflict.exit_code
    assert "changed by commit 2" in stale.stderr
    pending = {"ops": ops, "reads": [{"id": "a", "localSeq": 1}], "session": {"id": "s", "localSeq": 2}}
    assert run("write", "main", "-", stdin=json.dumps(pending)).exit_code == Conflict.exit_code
    fresh = {"ops": ops, "reads": [{"id": "a", "seq": 2, "branch": ""}]}
    assert run("write", "main", "-", stdin=json.dumps(fresh)).exit_code == 0


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("[]", "must be an object"),
        ("{}", "no member 'ops'"),
        ('{"ops": [], "op": 1}', "unknown member 'op'"),
        ('{"ops": {}}', "ops must be an array"),
        ('{"ops": []}', "at least one operation"),
        ('{"ops": [1]}', "ops[0] must be an object"),
        ('{"ops": [{"op": "set", "id": "a"}]}', "ops[0]"),
        ('{"ops": [{"op": "delete", "id": "a"}], "reads": [{"id": "a"}]}', "reads[0]"),
        ('{"ops": [{"op": "delete", "id": "a"}], "reads": [{"id": "a", "seq": "1"}]}', "reads[0]"),
        ('{"ops": [{"op": "delete", "id": "a"}], "session": {"id": "s"}}', "session"),
        ('{"ops": [{"op": "delete", "id": "a"}], "session": {"id": 1, "localSeq": 1}}', "session_id must be a string"),
        ('{"ops": [{"op": "delete", "id": "a"}], "session": {"id": "s", "localSeq": "1"}}', "local_seq"),
    ],
)
def test_a_transaction_that_breaks_a_rule_is_refused(run: Run, body: str, told: str) -> None:
    ended = run("write", "main", "-", stdin=body)
    assert ended.exit_code == Invalid.exit_code
    assert told in ended.stderr


def test_the_past_is_read_by_seq_and_by_time(run: Run) -> None:
    for n in range(3):
        _put(run, "a", n=n)
    assert run("read", "main", "a", "--at", "0").stdout.splitlines()[2].split()[1] == "empty"
    (row,) = _json(run("read", "main", "a", "--at", "2", "--format", "json"))
    assert (row["at"], row["value"]) == (2, {"n": 1})
    entries = [json.loads(line) for line in run("log", "main", "--format", "ndjson").stdout.splitlines()]
    time = entries[1]["createdAt"]
    assert run("at", "main", "2000-01-01").stdout == "0\n"
    assert run("at", "main", "2999-01-01").stdout == "3\n"
    seq = int(run("at", "main", time).stdout)
    assert entries[seq - 1]["createdAt"] == time  # the last one of that millisecond
    (row,) = _json(run("read", "main", "a", "--at", time, "--format", "json"))
    assert (row["at"], row["value"]) == (seq, {"n": seq - 1})
    assert run("at", "main", "3").exit_code == Invalid.exit_code
    assert run("read", "main", "a", "--at", "9").exit_code == NotFound.exit_code
    assert run("read", "main", "a", "--at", "9" * 50).exit_code == Invalid.exit_code


def test_the_log_goes_on_after_a_seq_and_has_a_limit(run: Run) -> None:
    for n in range(5):
        _put(run, "a", n=n)
    assert [entry["seq"] for entry in _json(run("log", "main", "--after", "2", "--format", "json"))] == [3, 4, 5]
    limited = run("log", "main", "--after", "1", "--limit", "2", "--format", "ndjson").stdout.splitlines()
    assert [json.loads(line)["seq"] for line in limited] == [2, 3]
    assert run("log", "main", "--limit", "0").exit_code == 2


def test_branches_are_made_compared_merged_and_ended(run: Run) -> None:
    _put(run, "a", n=1)
    assert _json(run("branch", "create", "main", "draft", "--format", "json"))[0]["seq"] == 2
    _put(run, "a", "draft", n=2)
    _put(run, "b", "draft", n=3)
    (first, second) = _json(run("branch", "diff", "main", "draft", "--format", "json"))
    assert (first["left"]["value"], first["right"]["value"]) == ({"n": 2}, {"n": 1})
    assert (second["id"], second["right"]["presence"]) == ("b", "never")
    assert run("branch", "diff", "main", "draft").stdout.splitlines()[3].split() == ["b", '{"n":3}', "(never)"]
    assert _json(run("branch", "diff", "main", "draft", "--at", "2", "--format", "json")) == []
    (merged,) = _json(run("merge", "main", "draft", "--format", "json"))
    assert merged == {"seq": 5, "changed": ["a", "b"], "conflicts": []}
    (idle,) = _json(run("merge", "main", "draft", "--format", "json"))
    assert idle == {"seq": None, "changed": [], "conflicts": []}
    assert run("branch", "delete", "main", "draft").exit_code == 0
    listed = _json(run("branch", "list", "main", "--format", "json"))
    assert [(one["name"], one["parent"], one["forkSeq"], one["status"]) for one in listed] == [
        ("main", None, None, "active"),
        ("draft", "main", 1, "deleted"),
    ]
    assert run("branch", "delete", "main", "draft").exit_code == NotFound.exit_code
    (back,) = _json(run("branch", "undelete", "main", "draft", "--format", "json"))
    assert (back["seq"], back["branch"]) == (7, "draft")
    assert run("branch", "undelete", "main", "draft").exit_code == Conflict.exit_code


def test_a_branch_begins_at_a_past_commit_of_any_branch(run: Run) -> None:
    _put(run, "a", n=1)
    _put(run, "a", n=2)
    run("branch", "create", "main", "old", "--at", "1")
    run("branch", "create", "main", "child", "--parent", "old")
    (row,) = _json(run("read", "main", "a", "--branch", "child", "--format", "json"))
    assert row["value"] == {"n": 1}


@pytest.mark.parametrize(("policy", "kept"), [("ours", 2), ("theirs", 3), ("fields-ours", 2), ("fields-theirs", 3)])
def test_what_both_changed_is_decided_by_the_policy(run: Run, policy: str, kept: int) -> None:
    _put(run, "a", n=1)
    run("branch", "create", "main", "draft")
    run("branch", "create", "main", "other")
    _put(run, "a", "other", n=2)
    _put(run, "a", "draft", n=3)
    refused = run("merge", "main", "draft", "--into", "other")
    assert (refused.exit_code, refused.stdout) == (Conflict.exit_code, "")
    assert "both branches changed 'a'" in refused.stderr
    (merged,) = _json(run("merge", "main", "draft", "--into", "other", "--policy", policy, "--format", "json"))
    assert merged["conflicts"] == ["a"]
    (row,) = _json(run("read", "main", "a", "--branch", "other", "--format", "json"))
    assert row["value"] == {"n": kept}


def test_blobs_are_put_listed_and_got(run: Run, tmp_path: Path) -> None:
    file, copy = tmp_path / "in.bin", tmp_path / "out.bin"
    file.write_bytes(PAYLOAD)
    more = ("--content-type", "image/png", "--metadata", '{"title": "x"}')
    (stored,) = _json(run("blob", "put", "main", str(file), *more, "--format", "json"))
    assert stored == {"hash": HASH, "size": len(PAYLOAD), "contentType": "image/png"}
    (row,) = _json(run("read", "main", f"urn:blob-meta:{HASH}", "--format", "json"))
    assert row["value"]["value"]["title"] == "x"
    assert [one["hash"] for one in _json(run("blob", "list", "main", "--format", "json"))] == [HASH]
    assert run("blob", "get", "main", HASH, "-o", str(copy)).exit_code == 0
    assert copy.read_bytes() == PAYLOAD
    assert sorted(one.name for one in tmp_path.iterdir()) == ["in.bin", "out.bin"]


def test_a_blob_goes_through_pipes(run: Run) -> None:
    (stored,) = _json(run("blob", "put", "main", "-", "--format", "json", stdin="text\n"))
    assert run("blob", "get", "main", stored["hash"]).stdout == "text\n"


def test_a_blob_that_is_not_there_leaves_the_file_as_it_is(run: Run, tmp_path: Path) -> None:
    _put(run, "a")
    copy = tmp_path / "out.bin"
    copy.write_text("before")
    assert run("blob", "get", "main", HASH, "-o", str(copy)).exit_code == NotFound.exit_code
    assert run("blob", "get", "main", "zz").exit_code == Invalid.exit_code
    assert run("blob", "get", "main", HASH, "-o", str(tmp_path)).exit_code == NotFound.exit_code
    assert copy.read_text() == "before"


def test_collecting_blobs_is_a_dry_run_unless_told(run: Run) -> None:
    (stored,) = _json(run("blob", "put", "main", "-", "--format", "json", stdin="text\n"))
    (needed,) = _json(run("blob", "put", "main", "-", "--format", "json", stdin="other\n"))
    ops = [{"op": "delete", "id": f"urn:blob-meta:{stored['hash']}"}]
    run("write", "main", "-", stdin=json.dumps({"ops": ops}))
    assert "will remove 0 blobs" in run("blob", "gc", "main").stderr  # younger than an hour
    assert "will remove 0 blobs" in run("blob", "gc", "main", "--older-than", "0").stderr  # the past names it
    drop = ("--older-than", "0", "--history", "drop", "--format", "json")
    tried = run("blob", "gc", "main", *drop)
    assert json.loads(tried.stdout) == [{"hash": stored["hash"], "result": "unneeded"}]
    assert "will remove 1 blob" in tried.stderr
    done = _json(run("blob", "gc", "main", *drop, "--no-dry-run"))
    assert done == [{"hash": stored["hash"], "result": "removed"}]
    assert [one["hash"] for one in _json(run("blob", "list", "main", "--format", "json"))] == [needed["hash"]]


@pytest.mark.parametrize(
    "arguments",
    [
        ("log", "main"),
        ("read", "main", "a"),
        ("at", "main", "2026-01-01"),
        ("branch", "list", "main"),
        ("branch", "create", "main", "draft"),
        ("merge", "main", "draft"),
        ("blob", "list", "main"),
        ("blob", "gc", "main", "--no-dry-run"),
    ],
)
def test_what_does_not_write_documents_makes_no_space(run: Run, arguments: tuple[str, ...]) -> None:
    for _ in range(2):
        ended = run(*arguments)
        assert ended.exit_code == NotFound.exit_code
        assert "the space 'main' does not exist" in ended.stderr


def test_a_store_that_keeps_no_conditions_is_not_written(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    _put(run, "a")
    run("branch", "create", "main", "draft")

    def refuse(store: Store) -> None:
        raise UnsafeStore(f"{store.url} does not honor write conditions")

    monkeypatch.setattr("worm.store.probe.ensure_safe", refuse)
    body = '{"ops": [{"op": "delete", "id": "a"}]}'
    for arguments in (
        ("write", "main", "-"),
        ("merge", "main", "draft"),
        ("branch", "create", "main", "other"),
        ("branch", "delete", "main", "draft"),
        ("blob", "put", "main", "-"),
        ("blob", "gc", "main", "--no-dry-run"),
    ):
        assert run(*arguments, stdin=body).exit_code == UnsafeStore.exit_code, arguments
    assert len(_json(run("log", "main", "--format", "json"))) == 2
    assert run("blob", "gc", "main").exit_code == 0


def test_the_url_may_be_a_database_or_a_directory(worm: Command, tmp_path: Path) -> None:
    body = '{"ops": [{"op": "set", "id": "a", "value": {}}]}'
    for url in (f"sqlite://{tmp_path}/one.sqlite", str(tmp_path / "data")):
        assert worm("space", "write", "main", "-", "--url", url, stdin=body).exit_code == 0
        assert worm("space", "log", "main", "--url", url).stdout.splitlines()[2].endswith("set a")
    assert (tmp_path / "one.sqlite").is_file()


def test_a_replica_is_pulled_and_brought_up_to_date(run: Run, tmp_path: Path) -> None:
    replica = tmp_path / "local.sqlite"
    _put(run, "a", n=1)
    run("blob", "put", "main", "-", stdin="text\n")

    def pull(*options: str) -> Any:
        (done,) = _json(run("pull", "main", str(replica), "--format", "json", *options))
        return done

    assert pull() == {"seq": 2, "commits": 2, "revisions": 2, "blobs": 0, "snapshots": 0}
    _put(run, "a", n=2)
    assert pull("--blobs", "--snapshots") == {"seq": 3, "commits": 1, "revisions": 1, "blobs": 1, "snapshots": 2}
    assert pull("--blobs", "--snapshots") == {"seq": 3, "commits": 0, "revisions": 0, "blobs": 0, "snapshots": 0}
    with open_space(f"sqlite://{replica}", "main", create=False) as space:
        assert space.read("a").value == {"n": 2}
        space.transact([{"op": "delete", "id": "a"}])
    _put(run, "a", n=3)
    refused = run("pull", "main", str(replica))
    assert refused.exit_code == Conflict.exit_code
    assert "pull into a new file" in refused.stderr


def test_a_pull_of_nothing_leaves_no_file(run: Run, tmp_path: Path) -> None:
    ended = run("pull", "main", str(tmp_path / "local.sqlite"))
    assert ended.exit_code == NotFound.exit_code
    assert "the space 'main' does not exist" in ended.stderr
    assert run("pull", "main", str(tmp_path / "local.db")).exit_code == Invalid.exit_code
    assert list(tmp_path.iterdir()) == []


def test_what_is_written_to_memory_is_refused(worm: Command) -> None:
    """It would say that it is committed, and be gone."""
    body = '{"ops": [{"op": "set", "id": "a", "value": {}}]}'
    for arguments in (
        ("write", "main", "-"),
        ("blob", "put", "main", "-"),
        ("merge", "main", "draft"),
        ("branch", "create", "main", "draft"),
        ("maintain", "main"),
    ):
        ended = worm("space", *arguments, "--url", "memory://x", stdin=body)
        assert ended.exit_code == Invalid.exit_code
        assert "is lost when the command ends" in ended.stderr
        assert "--url" in ended.stderr


@pytest.mark.parametrize("url", ["{}/new", "sqlite://{}/new", "sqlite://{}/new/one.sqlite"])
@pytest.mark.parametrize(
    ("arguments", "body"),
    [
        (("write", "main", "-"), '{"ops": []}'),
        (("write", "main", "-"), '{"ops": [{"op": "nope"}]}'),
        (("write", "main", "-", "--branch", "nope"), '{"ops": [{"op": "delete", "id": "a"}]}'),
        (("write", "main", "-"), '{"ops": [{"op": "delete", "id": "a"}], "reads": [{"id": "a", "seq": 3}]}'),
        (("write", "main", "-"), '{"ops": [{"op": "patch", "id": "a", "patches": [{"op": "remove", "path": "/x"}]}]}'),
        (("write", "a/b", "-"), '{"ops": [{"op": "delete", "id": "a"}]}'),
        (("blob", "put", "main", "-", "--branch", "nope"), "bytes"),
        (("blob", "put", "main", "-", "--metadata", "[]"), "bytes"),
        (("blob", "put", "main", "-", "--content-type", "a\nb"), "bytes"),
        (("blob", "put", "main", "missing-file"), ""),
    ],
)
def test_a_refused_write_leaves_nothing_behind(
    worm: Command, tmp_path: Path, url: str, arguments: tuple[str, ...], body: str
) -> None:
    ended = worm("space", *arguments, "--url", url.format(tmp_path), stdin=body)
    assert ended.exit_code in (Invalid.exit_code, NotFound.exit_code, Conflict.exit_code), ended
    assert list(tmp_path.iterdir()) == []


def test_the_spaces_of_a_url_are_listed(run: Run) -> None:
    assert _json(run("list", "--format", "json")) == []
    _put(run, "a")
    run("write", "other", "-", stdin='{"ops": [{"op": "delete", "id": "a"}]}')
    assert _json(run("list", "--format", "json")) == [{"name": "main"}, {"name": "other"}]


def test_a_space_is_counted_checked_and_kept_in_shape(run: Run) -> None:
    for n in range(3):
        _put(run, "a", n=n)
    (found,) = _json(run("stat", "main", "--format", "json"))
    assert (found["seq"], found["branches"], found["entities"], found["blobs"]) == (3, 1, 1, 0)
    (done,) = _json(run("maintain", "main", "--format", "json"))
    assert (done["snapshots"], done["applied"] >= 3) == (0, True)
    report = _json(run("verify", "main", "--format", "json"))
    assert report == {
        "seq": 3,
        "commits": 3,
        "revisions": 3,
        "entities": 1,
        "snapshots": 0,
        "branches": 1,
        "blobs": 0,
        "problems": [],
    }
    assert run("verify", "main").stdout.endswith("no problems\n")


def test_damage_ends_with_its_exit_code(worm: Command, tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}"
    worm("space", "write", "main", "-", "--url", url, stdin='{"ops": [{"op": "set", "id": "a", "value": {}}]}')
    database = sqlite3.connect(tmp_path / "main.sqlite")
    database.execute("UPDATE revision SET data = '{\"x\":1}'")
    database.commit()
    database.close()
    ended = worm("space", "verify", "main", "--url", url)
    assert ended.exit_code == Corrupt.exit_code
    assert "revision  'a' on 'main': its revisions do not match the commits" in ended.stdout
    assert ended.stdout.endswith("1 problem\n")


def test_wrong_snapshots_are_dropped_unless_it_is_a_dry_run(worm: Command, tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}"
    worm("space", "write", "main", "-", "--url", url, stdin='{"ops": [{"op": "set", "id": "a", "value": {}}]}')
    database = sqlite3.connect(tmp_path / "main.sqlite")
    database.execute("INSERT INTO snapshot VALUES ('', 'a', 1, '{\"x\":1}')")
    database.commit()
    database.close()
    tried = worm("space", "repair", "main", "--url", url)
    assert (tried.exit_code, "snapshot  'a' on 'main', commit 1" in tried.stdout) == (Corrupt.exit_code, True)
    assert worm("space", "verify", "main", "--url", url).exit_code == Corrupt.exit_code
    done = worm("space", "repair", "main", "--url", url, "--no-dry-run")
    assert (done.exit_code, done.stdout.splitlines()[-1]) == (0, "no problems")
    assert worm("space", "verify", "main", "--url", url).exit_code == 0


def test_the_last_commits_are_followed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(4):
        _put(run, "a", n=n)
    assert [line.split()[0] for line in run("tail", "main", "-n", "2").stdout.splitlines()] == ["3", "4"]
    assert run("tail", "main").stdout.splitlines()[3].endswith("set a")
    assert json.loads(run("tail", "main", "--lines", "1", "--raw").stdout)["seq"] == 4
    pauses = [0]

    def sleep(_: SystemClock, seconds: float) -> None:
        pauses[0] += 1
        if pauses[0] == 3:
            raise KeyboardInterrupt
        if seconds == 1:
            monkeypatch.setattr(SystemClock, "sleep", lambda *_: None)
            _put(run, "b", n=pauses[0])
            monkeypatch.setattr(SystemClock, "sleep", sleep)

    monkeypatch.setattr(SystemClock, "sleep", sleep)
    followed = run("tail", "main", "-n", "1", "--follow")
    assert [line.split()[0] for line in followed.stdout.splitlines()] == ["4", "5", "6"]


def test_the_log_begins_after_a_time(run: Run) -> None:
    _put(run, "a")
    assert _json(run("log", "main", "--after", "2999-01-01", "--format", "json")) == []
    assert len(_json(run("log", "main", "--after", "2000-01-01T00:00:00Z", "--format", "json"))) == 1
    assert run("log", "main", "--after", "9").exit_code == NotFound.exit_code
    assert run("log", "main", "--after", "noon").exit_code == Invalid.exit_code
