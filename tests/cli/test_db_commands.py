"""`worm db …`: page stores by command."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from worm.cli.program import app
from worm.clock import VirtualClock
from worm.log.collect import LogCollector
from worm.log.config import LogConfig
from worm.log.opening import open_log
from worm.spaces.opening import open_space
from worm.spaces.operations import set_document
from worm.store.open import open_store

Worm = Callable[..., tuple[int, str, str]]


@pytest.fixture
def worm(tmp_path: Path) -> Worm:
    def run(*arguments: object, stdin: bytes | None = None) -> tuple[int, str, str]:
        url = f"memory://{tmp_path}"
        result = CliRunner().invoke(app, ["--url", url, *map(str, arguments)], input=stdin, catch_exceptions=False)
        return result.exit_code, result.stdout, result.stderr

    return run


@pytest.fixture
def db(worm: Worm) -> Worm:
    """A database with two pages, the second one written twice: LSNs 3, 6 and 9."""
    assert worm("db", "create", "d", "--set", "gc_min_age_seconds=1") == (0, "created d\n", "")
    for page, data in (("a", b"one"), ("b", b"two"), ("b", b"TWO")):
        assert worm("db", "put", "d", page, "-", stdin=data)[0] == 0
    return worm


def test_pages_are_written_read_and_deleted(db: Worm, tmp_path: Path) -> None:
    assert db("db", "get", "d", "b") == (0, "TWO", "")
    assert db("db", "get", "d", "b", "--at", 6) == (0, "two", "")
    (tmp_path / "file").write_bytes(b"from a file")
    assert db("db", "put", "d", "c", tmp_path / "file") == (0, "LSN 12\n", "")
    assert db("db", "get", "d", "c")[1] == "from a file"
    assert db("db", "put", "d", "c", "--delete")[0] == 0
    assert db("db", "get", "d", "c") == (3, "", "worm: the page 'c' does not exist\n")
    assert db("db", "get", "d", "c", "--at", 12)[1] == "from a file"


def test_bytes_come_out_as_they_went_in(db: Worm, tmp_path: Path) -> None:
    everything = bytes(range(256))
    assert db("db", "put", "d", "raw", "-", stdin=everything)[0] == 0
    arguments = ["--url", f"memory://{tmp_path}", "db", "get", "d", "raw"]
    assert CliRunner().invoke(app, arguments).stdout_bytes == everything


def test_what_is_wrong_with_arguments_is_said(db: Worm) -> None:
    assert db("db", "put", "d", "a")[0] == 2
    assert db("db", "put", "d", "a", "-", "--delete", stdin=b"")[0] == 2
    assert db("db", "get", "d", "a", "--at", "yesterday")[2].startswith("worm: at: 'yesterday' is not a time")
    assert db("db", "get", "d", "a", "--at", 99)[0] == 3
    assert db("db", "get", "d", "a", "--branch", "x")[2] == "worm: there is no branch 'x' (the branches are: main)\n"
    assert db("db", "get", "e", "a")[0] == 3
    assert db("db", "restore", "d", "--at", 3)[0] == 2
    assert db("db", "restore", "d", "--at", 3, "--to", "x", "--in-place")[0] == 2
    assert db("db", "create", "d")[0] == 4
    for wrong in ("x=1", "pitr_window_seconds", "pitr_window_seconds=-1", "log=1", "log.x=1", "a.b.c=1"):
        assert db("db", "configure", "d", "--set", wrong)[0] == 2, wrong


def test_settings_are_shown_and_changed(db: Worm) -> None:
    assert json.loads(db("db", "configure", "d")[1])["gc_min_age_seconds"] == 1
    code, out, _ = db("db", "configure", "d", "--set", "pitr_window_seconds=60", "--set", "log.cas_max_retries=3")
    shown = json.loads(out)
    assert (code, shown["pitr_window_seconds"], shown["log"]["cas_max_retries"]) == (0, 60, 3)
    assert shown["log"]["gc_min_age_seconds"] == shown["gc_min_age_seconds"]
    assert json.loads(db("db", "configure", "d", "--set", "cache_tier=disk")[1])["cache_tier"] == "disk"
    assert json.loads(db("db", "configure", "d")[1])["pitr_window_seconds"] == 60


def test_layers_are_made_merged_and_drawn(db: Worm) -> None:
    assert db("db", "apply", "d") == (0, "6 segments applied, up to LSN 9\n", "")
    assert db("db", "apply", "d") == (0, "0 segments applied, up to LSN 9\n", "")
    assert db("db", "put", "d", "a", "-", stdin=b"1")[0] == 0
    assert db("db", "apply", "d")[0] == 0
    code, out, _ = db("db", "compact", "d", "--force")
    assert (code, out.split(";")[0]) == (0, "2 layers merged: 1 merged layer, 1 image")
    code, out, _ = db("db", "stat", "d")
    lines = out.splitlines()
    assert lines[:2] == ["branch main", "LSN 12, in layers up to 12, readable since 0"]
    assert "a read checks up to 1 layers, 1.0 on average, before filters" in lines
    assert [line.split()[:2] for line in lines[-2:]] == [["@12", "image"], ["3..12", "merged"]]
    assert lines[-2].split("|")[1] == "#" * 60
    shape = json.loads(db("db", "stat", "d", "--format", "json")[1])
    assert [one["layers"] for one in shape["layers"]] == [0, 1, 1]
    assert shape["writeAmplification"] > 1
    assert db("db", "get", "d", "b", "--at", 6)[1] == "two"


def test_branches(db: Worm) -> None:
    assert db("db", "branch", "create", "d", "old", "--at", 6) == (0, "branch old of main at LSN 6\n", "")
    assert (
        db("db", "branch", "create", "d", "older", "--from", "old", "--at", 3)[1] == "branch older of main at LSN 3\n"
    )
    assert db("db", "branch", "create", "d", "old")[0] == 4
    assert db("db", "branch", "create", "d", "a/b")[0] == 2
    assert db("db", "put", "d", "n", "-", "--branch", "old", stdin=b"new")[0] == 0
    code, out, _ = db("db", "branch", "diff", "d", "main", "old")
    assert (code, out) == (0, "~ b  3 -> 3 bytes\n+ n  0 -> 3 bytes\n2 pages different\n")
    assert db("db", "branch", "diff", "d", "older")[1] == "+ b  0 -> 3 bytes\n1 page different\n"
    names = [one["name"] for one in json.loads(db("db", "branch", "list", "d", "--format", "json")[1])]
    assert names == ["main", "old", "older"]
    assert db("db", "branch", "list", "d")[1].splitlines()[2].startswith("main    -")
    assert db("db", "branch", "reset", "d", "old") == (0, "branch old of main at LSN 9\n", "")
    assert db("db", "get", "d", "n", "--branch", "old")[0] == 3
    assert db("db", "branch", "delete", "d", "main")[0] == 2
    assert db("db", "branch", "delete", "d", "old") == (0, "deleted old\n", "")
    assert db("db", "branch", "delete", "d", "old")[0] == 3


def test_a_past_state_is_brought_back(db: Worm) -> None:
    assert db("db", "restore", "d", "--at", 6, "--to", "then") == (0, "branch then at LSN 6\n", "")
    assert db("db", "get", "d", "b", "--branch", "then")[1] == "two"
    assert db("db", "restore", "d", "--at", 3, "--in-place") == (0, "1 page as at LSN 3\n", "")
    assert db("db", "get", "d", "b")[0] == 3
    assert db("db", "get", "d", "b", "--at", 9)[1] == "TWO"
    assert db("db", "restore", "d", "--at", "2000-01-01T00:00:00Z", "--in-place")[1] == "1 page as at LSN 0\n"
    assert db("db", "get", "d", "a")[0] == 3


def test_garbage_is_counted_in_a_dry_run_and_collected(db: Worm) -> None:
    db("db", "apply", "d")
    db("db", "put", "d", "a", "-", stdin=b"1")
    db("db", "compact", "d", "--force")
    db("db", "configure", "d", "--set", "pitr_window_seconds=0")
    db("db", "apply", "d")
    db("db", "compact", "d", "--force")
    code, out, _ = db("db", "gc", "d", "--dry-run")
    assert (code, out.splitlines()[-1]) == (0, "nothing was changed")
    would = json.loads(db("db", "gc", "d", "--dry-run", "--format", "json")[1])
    done = json.loads(db("db", "gc", "d", "--format", "json")[1])
    assert done["dropped"] == would["dropped"] != []
    assert done["horizons"] == {"main": 12}
    assert db("db", "get", "d", "a")[1] == "1"
    assert db("db", "get", "d", "a", "--at", 3)[0] == 13
    assert db("db", "gc", "d")[1].splitlines()[0].startswith("Layers Dropped  Objects Deleted")


def test_databases_are_listed(db: Worm) -> None:
    assert db("db", "create", "d-2")[0] == 0
    assert db("db", "create", "e")[0] == 0
    listed = json.loads(db("db", "list", "--format", "json")[1])
    assert [one["name"] for one in listed] == ["d", "d-2", "e"]
    assert db("log", "list")[1].splitlines()[2:] == ["d     pages", "d-2   pages", "e     pages"]


def test_a_store_is_checked_and_kept_up_by_command(db: Worm, tmp_path: Path) -> None:
    assert db("db", "maintain", "d")[1].splitlines()[0] == "6 segments applied, 0 layers merged, 0 images"
    assert json.loads(db("db", "maintain", "d", "--format", "json")[1])["finished"] is True
    assert db("db", "verify", "d") == (0, "no problems\n", "")
    store = open_store(f"memory://{tmp_path}")
    (layer,) = store.list("db/d/delta/")
    found = store.get(layer.key)
    assert found is not None
    store.put(layer.key, found.body[:-40] + b"x" * 40)
    code, out, _ = db("db", "verify", "d")
    assert (code, out.splitlines()[0].startswith(f"layer-damaged  {layer.key}: ")) == (1, True)
    assert json.loads(db("db", "verify", "d", "--format", "json")[1])["clean"] is False
    assert db("db", "verify", "none")[0] == 3


def test_a_lost_root_is_rebuilt_by_command(db: Worm, tmp_path: Path) -> None:
    assert db("db", "repair", "d")[1] == "nothing to repair: the root of this pages database is intact\n"
    assert db("db", "branch", "create", "d", "b")[0] == 0
    open_store(f"memory://{tmp_path}").delete("db/d/manifest.json")
    code, _, err = db("db", "get", "d", "b")
    assert (code, "worm db repair" in err) == (9, True)
    assert db("db", "create", "d")[0] == 9
    assert db("db", "repair", "d")[1].splitlines() == [
        "would rebuild the root (pages) from its copy and the log",
        "branch b is restored from its log",
        "lost: pins and settings that changed since the copy of the root",
        "nothing was changed; run it with --no-dry-run",
    ]
    assert db("db", "get", "d", "b")[0] == 9
    assert db("db", "repair", "d", "--no-dry-run")[0] == 0
    assert db("db", "get", "d", "b") == (0, "TWO", "")
    assert db("db", "get", "d", "b", "--branch", "b") == (0, "TWO", "")


def test_a_deleted_database_is_not_found_and_comes_back(db: Worm) -> None:
    assert db("db", "delete", "d")[0] == 0
    assert db("db", "get", "d", "a")[0] == 3
    assert db("db", "list")[1].splitlines()[2] == "d     pages, deleted"
    assert db("db", "undelete", "d") == (0, "d is back\n", "")
    assert db("db", "get", "d", "a")[1] == "one"
    assert db("db", "branch", "undelete", "d", "gone")[0] == 3


def test_a_space_is_not_damaged_through_its_pages(worm: Worm, tmp_path: Path) -> None:
    """`worm db restore space-x --in-place` threw commits away, and gave their numbers again."""
    with open_space(f"memory://{tmp_path}", "x") as space:
        for number in range(3):
            space.transact([set_document("a", {"v": number})])
    assert worm("db", "branch", "create", "space-x", "b")[0] == 0
    for arguments, breaks in (
        (("put", "space-x", "m", "--delete"), "disagree"),
        (("restore", "space-x", "--at", "4", "--in-place"), "numbers are used again"),
        (("gc", "space-x"), "start over"),
        (("branch", "reset", "space-x", "b"), "numbers are used again"),
    ):
        code, _, err = worm("db", *arguments)
        assert (code, breaks in err, "--force" in err) == (2, True, True), arguments
        assert worm("db", *arguments, "--force")[0] == 0, arguments
    assert worm("db", "gc", "space-x", "--dry-run")[0] == 0
    assert worm("db", "create", "space-x")[0] == 2


def test_a_log_is_shown_by_what_it_is(db: Worm, tmp_path: Path) -> None:
    lines = db("log", "cat", "d")[1].splitlines()
    assert [line.split("  ")[3:] for line in lines] == [
        ["page", "-", '"a"', "one"],
        ["page", "-", '"b"', "two"],
        ["page", "-", '"b"', "TWO"],
    ]
    with open_space(f"memory://{tmp_path}", "x") as space:
        space.transact([set_document("a", {"v": 1})])
    (line,) = db("log", "cat", "space-x")[1].splitlines()
    assert line.split("  ")[3:] == ["space", "main", "1", '[{"id":"a","op":"set","value":{"v":1}}]']
    assert db("db", "branch", "create", "d", "b")[0] == 0
    assert db("db", "put", "d", "n", "-", "--branch", "b", stdin=b"new")[0] == 0
    assert db("log", "tail", "d", "--branch", "b")[1].endswith('page  -  "n"  new\n')
    assert db("db", "tail", "d", "-n", 1)[1].endswith('page  -  "b"  TWO\n')
    shape = json.loads(db("log", "stat", "d", "--format", "json")[1])
    assert (shape["kind"], shape["keptFrom"], shape["head"], shape["slots"]) == ("pages", 1, 9, 6)
    assert db("log", "gc", "d", "--before", 3)[0] == 2


def test_old_slots_of_a_log_go_by_command_and_the_tools_go_on(worm: Worm, tmp_path: Path) -> None:
    config = LogConfig(gc_min_age_seconds=0.001)
    with open_log(f"memory://{tmp_path}", "l", config=config) as log:
        for number in range(5):
            log.append([{"op": "put", "n": number}])
    clock = VirtualClock(datetime.now(UTC) + timedelta(days=1))
    store = open_store(f"memory://{tmp_path}")
    LogCollector(store, "l", config=config, clock=clock).run(0)
    assert worm("log", "gc", "l", "--before", 6, "--dry-run")[1].splitlines()[-1] == "nothing was changed"
    assert worm("log", "stat", "l")[0] == 0
    assert worm("log", "verify", "l")[0] == 0
    assert worm("log", "stat", "none")[0] == 3


def test_a_database_is_packed_and_unpacked(db: Worm, tmp_path: Path) -> None:
    assert db("db", "apply", "d")[0] == 0
    assert db("db", "put", "d", "late", "-", stdin=b"L")[0] == 0
    assert db("db", "branch", "create", "d", "b")[0] == 0
    code, out, _ = db("db", "pack", "d", tmp_path / "d.tar")
    assert (code, out.startswith("packed d (pages): ")) == (0, True)
    assert db("db", "pack", "d", tmp_path / "d.tar")[0] == 4
    assert db("db", "pack", "none", tmp_path / "n.tar")[0] == 3
    assert db("db", "unpack", "copy", tmp_path / "d.tar")[0] == 0
    assert db("db", "unpack", "copy", tmp_path / "d.tar")[0] == 4
    assert db("db", "verify", "copy") == (0, "no problems\n", "")
    for page in ("a", "b", "late"):
        assert db("db", "get", "copy", page) == db("db", "get", "d", page)
    assert db("db", "get", "copy", "b", "--at", 6)[1] == "two"
    assert db("db", "put", "copy", "new", "-", "--branch", "b", stdin=b"N")[0] == 0
    (tmp_path / "bad").write_bytes(b"no archive")
    assert db("db", "unpack", "other", tmp_path / "bad")[0] == 9
    with tarfile.open(tmp_path / "wrong", "w"):
        pass
    assert db("db", "unpack", "other", tmp_path / "wrong")[0] == 2
