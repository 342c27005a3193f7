"""`worm history`, `worm verify`, `worm repair`."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.cli.company import Command
from tests.harness import schema_of
from worm.formats import load_schema
from worm.sdk.database import Worm, push
from worm.store.open import open_store


def test_history_shows_every_change_with_its_actor(worm: Command, url: str, session: Worm) -> None:
    ended = worm("history", "Customer", "acme", "--url", url)
    assert (ended.exit_code, ended.stderr) == (0, "")
    assert [line.split(maxsplit=5) for line in ended.stdout.splitlines()] == [
        ["Seq", "Op", "Time", "Actor", "Reason", "Change"],
        ["---", "------", "--------------------", "--------", "------", ended.stdout.splitlines()[1].split()[-1]],
        [
            "1",
            "create",
            "2026-01-01T00:00:00Z",
            "user:ann",
            "--",
            "9 fields: createdAt, id, name, score, seats, status, tags, updatedAt, vip",
        ],
        [
            "2",
            "update",
            "2026-01-01T00:00:03Z",
            "user:ann",
            "--",
            "status: active → churned",
        ],
    ]


def test_history_as_json_is_the_entries_as_stored(worm: Command, url: str, session: Worm) -> None:
    ended = worm("history", "Customer", "acme", "--limit", "1", "--format", "json", "--url", url)
    (entry,) = json.loads(ended.stdout)
    stored = session.store.get(".oplog/customers/acme/0002.json")
    assert stored is not None
    assert entry == json.loads(stored.body)
    assert [name for name in entry if name != "absent"] == ["seq", "op", "ts", "actor", "diff", "metadata"]


def test_history_of_a_singleton_needs_no_id(worm: Command, url: str, session: Worm) -> None:
    settings = session.model("OrgSettings")
    settings.save(settings.create({"title": "Acme"}))
    ended = worm("history", "OrgSettings", "--format", "ndjson", "--url", url)
    assert [json.loads(line)["op"] for line in ended.stdout.splitlines()] == ["create"]


def test_history_without_an_id_searches_those_of_all_documents(worm: Command, url: str, session: Worm) -> None:
    session.model("OrgSettings").upsert({"id": "_", "title": "Acme"}, actor="bob", reason="a <new> name")
    ended = worm("history", "Customer", "--url", url)
    assert (ended.exit_code, ended.stderr) == (0, "")
    head, _, *rows = [line.split() for line in ended.stdout.splitlines()]
    assert head == ["Model", "Id", "Seq", "Op", "Time", "Actor", "Reason", "Change"]
    assert [(row[1], row[2], row[5]) for row in rows] == [
        ("acme", "2", "user:ann"),
        ("zeta", "1", "user:ann"),
        ("kobe", "1", "user:ann"),
        ("acme", "1", "user:ann"),
    ]
    everything = worm("history", "--format", "ndjson", "--url", url).stdout.splitlines()
    assert [json.loads(line)["model"] for line in everything] == ["OrgSettings", *["Customer"] * 4]
    (found,) = json.loads(worm("history", "--reason", "NEW", "--format", "json", "--url", url).stdout)
    assert list(found)[:6] == ["model", "id", "seq", "op", "ts", "actor"]
    assert (found["id"], found["actor"], found["metadata"]["reason"]) == ("_", "bob", "a <new> name")
    (found,) = json.loads(worm("history", "OrgSettings", "--actor", "bob", "--format", "json", "--url", url).stdout)
    assert found["model"] == "OrgSettings"


def test_a_search_takes_times_operations_metadata_and_goes_on_by_cursor(worm: Command, url: str, session: Worm) -> None:
    def ids(*options: str) -> list[str]:
        ended = worm("history", "Customer", *options, "--format", "ndjson", "--url", url)
        assert (ended.exit_code, ended.stderr) == (0, "")
        return [json.loads(line)["id"] for line in ended.stdout.splitlines()]

    session.model("Customer").patch("zeta", {"vip": True}, metadata={"job": 7, "from": "crm"})
    assert ids("--metadata", "job=7", "--metadata", "from=crm") == ["zeta"]
    assert ids("--metadata", "job=8") == []
    assert ids("--op", "update", "--until", "2026-01-01T00:00:03Z") == ["acme"]
    assert ids("--since", "2026-01-01T00:00:01Z", "--until", "2026-01-01T00:00:02Z") == ["zeta", "kobe"]
    first = worm("history", "Customer", "--limit", "4", "--url", url)
    cursor = first.stderr.removeprefix("worm: note: more entries follow: --cursor ").strip()
    assert ids("--cursor", cursor) == ["acme"]


def test_a_search_and_one_history_are_not_mixed(worm: Command, url: str, session: Worm) -> None:
    ended = worm("history", "Customer", "acme", "--actor", "bob", "--url", url)
    message = "worm: --actor searches the histories of all documents (leave out either the id or the option)\n"
    assert (ended.exit_code, ended.stdout, ended.stderr) == (2, "", message)
    ended = worm("history", "Customer", "--before", "2", "--url", url)
    assert (ended.exit_code, ended.stderr.startswith("worm: --before needs the id of a document")) == (2, True)
    assert worm("history", "--metadata", "job", "--url", url).exit_code == 2
    assert worm("history", "Nothing", "--url", url).exit_code == 3


def test_a_search_shows_what_it_can_read_and_reports_the_rest(worm: Command, url: str, session: Worm) -> None:
    session.store.put(".oplog/customers/acme/0002.json", b"{")
    ended = worm("history", "--url", url)
    assert (ended.exit_code, len(ended.stdout.splitlines())) == (9, 2 + 3)
    assert ".oplog/customers/acme/0002.json" in ended.stderr


def test_history_of_an_unknown_document_is_not_found(worm: Command, url: str, session: Worm) -> None:
    ended = worm("history", "Customer", "nobody", "--url", url)
    message = "worm: Customer 'nobody' has no history [org/customers/nobody/data.json]\n"
    assert (ended.exit_code, ended.stdout, ended.stderr) == (3, "", message)


def test_verify_of_a_true_bucket_ends_with_zero(worm: Command, url: str, session: Worm) -> None:
    ended = worm("verify", "--url", url)
    assert (ended.exit_code, ended.stderr) == (0, "")
    assert ended.stdout == (
        "Model        Documents  Entries  Differences  Rejected\n"
        "-----------  ---------  -------  -----------  --------\n"
        "Customer             3        4            0         0\n"
        "OrgSettings          0        0            0         0\n"
        "no differences\n"
    )


def test_verify_names_the_differences_and_ends_with_one(worm: Command, url: str, session: Worm) -> None:
    session.store.put("org/customers/new/data.json", b'{"name": "New"}')
    session.store.delete("org/customers/.worm.index/status.json")
    ended = worm("verify", "Customer", "--url", url)
    assert (ended.exit_code, ended.stderr) == (1, "")
    assert ended.stdout == (
        "Model     Documents  Entries  Differences  Rejected\n"
        "--------  ---------  -------  -----------  --------\n"
        "Customer          4        4            2         0\n"
        "document-unrecorded  org/customers/new/data.json: the oplog does not know the document\n"
        "index-missing  org/customers/.worm.index/status.json: there is no index "
        "(run `worm repair` to rebuild it)\n"
        "2 differences\n"
    )


def test_a_rejected_document_is_listed_but_is_no_difference(worm: Command, url: str, session: Worm) -> None:
    session.store.put("org/customers/bad/data.json", b'{"name": 7}')
    ended = worm("verify", "Customer", "--format", "json", "--url", url)
    assert ended.exit_code == 0
    assert json.loads(ended.stdout) == {
        "clean": True,
        "models": [
            {
                "model": "Customer",
                "documents": 4,
                "entries": 4,
                "differences": [],
                "rejected": [
                    {"key": "org/customers/bad/data.json", "reason": "name: must be a string, not integer"},
                ],
                "outgrown": [],
                "kept": [],
                "unseen": {"count": 0, "first": []},
            }
        ],
        "irregular": [],
    }
    assert (
        "rejected  org/customers/bad/data.json: name: must be a string, not integer\n"
        in worm("verify", "--url", url).stdout
    )


def test_an_upload_that_nobody_will_see_is_a_warning(worm: Command, url: str, session: Worm) -> None:
    """Whoever uploaded it believes that it is stored as a document."""
    session.store.put("org/customers/new/profile.json", b'{"name": "New"}')
    named = "the file is named 'profile.json' instead of 'data.json'"
    reason = f"documents of Customer are org/customers/<id>/data.json: {named}"
    ended = worm("verify", "Customer", "--url", url)
    assert (ended.exit_code, ended.stderr) == (
        0,
        f"worm: warning: unseen  org/customers/new/profile.json: {reason}\n",
    )
    shape = json.loads(worm("verify", "Customer", "--format", "json", "--url", url).stdout)
    assert shape["models"][0]["unseen"] == {
        "count": 1,
        "first": [{"key": "org/customers/new/profile.json", "reason": reason}],
    }


@pytest.mark.timeout(60)
def test_what_is_not_a_regular_file_is_a_warning_of_verify(worm: Command, tmp_path: Path) -> None:
    """A FIFO made verify wait without end, and a link to itself ended it."""
    url = str(tmp_path / "data")
    push(open_store(url), load_schema(schema_of()))
    (tmp_path / "data/org/customers/fifo").mkdir(parents=True)
    os.mkfifo(tmp_path / "data/org/customers/fifo/profile.json")
    (tmp_path / "data/org/customers/loop").symlink_to("loop")
    ended = worm("verify", "--url", url)
    assert (ended.exit_code, ended.stderr.splitlines()) == (
        0,
        [
            f"worm: warning: irregular  org/customers/{name}: not a regular file, so not a document"
            for name in ("fifo/profile.json", "loop")
        ],
    )
    shape = json.loads(worm("verify", "--format", "json", "--url", url).stdout)
    assert shape["irregular"] == ["org/customers/fifo/profile.json", "org/customers/loop"]


@pytest.mark.parametrize("by_variable", [False, True])
def test_a_url_with_one_slash_is_refused(
    worm: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_variable: bool
) -> None:
    """It became a directory, and writes were acknowledged there."""
    monkeypatch.chdir(tmp_path)
    if by_variable:
        monkeypatch.setenv("WORM_URL", "s3:/bucket")
    ended = worm("verify", *([] if by_variable else ["--url", "s3:/bucket"]))
    assert (ended.exit_code, "write s3://bucket" in ended.stderr, list(tmp_path.iterdir())) == (2, True, [])


def test_repair_makes_everything_derived_true_again(worm: Command, url: str, session: Worm) -> None:
    """Lost events, lost files and damaged files must all be repairable from the documents and their history."""
    session.store.put("org/customers/new/data.json", b'{"name": "New"}')
    session.store.delete("org/customers/zeta/data.json")
    session.store.delete("org/customers/.worm.index/status.json")
    session.store.delete("org/customers/.worm.heads.json")
    session.store.put("org/customers/.worm.manifest.json", b"{}")
    assert worm("verify", "--url", url).exit_code == 1
    ended = worm("repair", "--url", url)
    assert (ended.exit_code, ended.stderr) == (0, "")
    assert ended.stdout == (
        "Model        Looked At  Recorded  Rows\n"
        "-----------  ---------  --------  ----\n"
        "Customer             3         2     3\n"
        "OrgSettings          0         0    --\n"
    )
    assert worm("verify", "--url", url).stdout.endswith("no differences\n")


def unmarked_history(session: Worm) -> list[str]:
    """Twenty entries of `acme` whose time marks are gone; their keys."""
    customers = session.model("Customer")
    for seats in range(18):
        customers.patch("acme", {"seats": seats + 100})
    marks = [listed.key for listed in session.store.list(".oplog/customers/acme/.times/")]
    for key in marks:
        session.store.delete(key)
    return marks


def test_repair_writes_the_time_marks_that_are_missing(worm: Command, url: str, session: Worm) -> None:
    """Without them the history reads the same, but slower, and nothing else would ever make them."""
    marks = unmarked_history(session)
    assert len(marks) == 2
    assert worm("verify", "--url", url).exit_code == 0
    assert worm("repair", "--url", url).exit_code == 0
    assert [listed.key for listed in session.store.list(".oplog/customers/acme/.times/")] == marks


def test_repair_names_an_entry_whose_mark_it_cannot_make_and_makes_the_others(
    worm: Command, url: str, session: Worm
) -> None:
    marks = unmarked_history(session)
    session.store.put(".oplog/customers/acme/0010.json", b"damaged")
    ended = worm("repair", "Customer", "--url", url)
    assert ended.exit_code == 0
    assert "left as it is  .oplog/customers/acme/0010.json: no time mark: " in ended.stdout
    assert [listed.key for listed in session.store.list(".oplog/customers/acme/.times/")] == marks[:1]


def test_repair_makes_no_marks_for_a_model_that_keeps_no_oplog_any_more(worm: Command, url: str, session: Worm) -> None:
    unmarked_history(session)
    pushed = json.loads((Path(url) / ".worm.schema.json").read_text())
    pushed["models"]["Customer"]["oplog"] = False
    push(session.store, load_schema(pushed), force=True)
    assert worm("repair", "Customer", "--url", url).exit_code == 0
    assert list(session.store.list(".oplog/customers/acme/.times/")) == []


def test_repair_finishes_what_a_scheduled_sweep_left_half_done(worm: Command, url: str, session: Worm) -> None:
    """A stored place to go on from must not hide what lies before it."""
    session.store.put(".worm.sweep/Customer.json", b'{"version":1,"after":"org/customers/kobe/data.json"}')
    session.store.put("org/customers/aaa/data.json", b'{"name": "New"}')
    assert worm("repair", "Customer", "--url", url).exit_code == 0
    assert worm("verify", "--url", url).exit_code == 0


def test_a_model_named_twice_or_unknown_is_refused(worm: Command, url: str, session: Worm) -> None:
    assert worm("verify", "Customer", "Customer", "--url", url).exit_code == 2
    assert worm("repair", "Nobody", "--url", url).exit_code == 3


@pytest.mark.parametrize("body", [b"damage", b"[]", b"{}", b'{"checksum":"sha256:00","version":1}'])
@pytest.mark.parametrize("file", [".worm.manifest.json", ".worm.index/status.json"])
def test_a_damaged_file_is_named_once_with_what_to_do(
    worm: Command, url: str, session: Worm, file: str, body: bytes
) -> None:
    session.store.put(f"org/customers/{file}", body)
    (line,) = [one for one in worm("verify", "--url", url).stdout.splitlines() if "-damaged" in one]
    assert line.count(file) == 1
    assert line.endswith(" (run `worm repair` to rebuild it)")
    assert line.count("repair") == 1


def test_a_missing_file_is_named_with_what_to_do(worm: Command, url: str, session: Worm) -> None:
    session.store.delete("org/customers/.worm.index/status.json")
    line = "index-missing  org/customers/.worm.index/status.json: there is no index (run `worm repair` to rebuild it)"
    assert line in worm("verify", "--url", url).stdout.splitlines()


def test_a_damaged_entry_is_named_once_with_what_to_do(worm: Command, url: str, session: Worm) -> None:
    session.store.put(".oplog/customers/acme/0002.json", b"damage")
    (line,) = [one for one in worm("verify", "--url", url).stdout.splitlines() if "oplog-corrupt" in one]
    assert line.startswith("oplog-corrupt  .oplog/customers/acme/0002.json: not valid JSON: ")
    assert line.endswith(" (run `worm why` on this key to see what to do)")


def test_prune_counts_in_a_dry_run_and_removes_without_one(worm: Command, url: str, session: Worm) -> None:
    store, name = session.store, ".snapshots/customers/acme/{}.json"
    for day in range(1, 4):
        taken = f"2020-01-0{day}T00:00:00Z"
        store.put(name.format(taken), b"{}")
    dry = worm("prune", "Customer", "--url", url)
    assert dry.exit_code == 0
    assert dry.stdout == (
        "Model     Trash  Snapshots  Table Files\n"
        "--------  -----  ---------  -----------\n"
        "Customer      0          2            0\n"
        "nothing was removed; pass --no-dry-run to remove it\n"
    )
    done = worm("prune", "Customer", "--no-dry-run", "--format", "json", "--url", url)
    assert json.loads(done.stdout) == {
        "dryRun": False,
        "models": [
            {
                "model": "Customer",
                "trash": [],
                "snapshots": [name.format("2020-01-02T00:00:00Z"), name.format("2020-01-01T00:00:00Z")],
                "tableFiles": 0,
                "problems": [],
            }
        ],
    }
    assert store.get(name.format("2020-01-03T00:00:00Z")) is not None
