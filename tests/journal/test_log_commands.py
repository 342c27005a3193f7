"""`worm log …`, `worm pack`, `worm unpack` on a store's directory."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.journal.log_room import log_bytes, store_at
from worm.cli.log import show
from worm.cli.program import app
from worm.clock import VirtualClock
from worm.errors import Conflict
from worm.formats.frames import encode
from worm.log.common import LogLine, LogTools
from worm.log.journal.file import OPLOG
from worm.log.journal.records import Insert, Record
from worm.log.journal.tools import DirectoryTools
from worm.log.writer import LogWriter
from worm.store.open import open_store


def worm(*arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, [str(one) for one in arguments], catch_exceptions=False)
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def path(tmp_path: Path) -> Path:
    folder = tmp_path / "app.omgdb"
    with store_at(folder) as store:
        store.create_index("people", "name")
        store.insert("people", {"_id": 1, "name": "Ada"})
        with store.transaction() as tx:
            tx.replace("people", {"_id": 1, "name": "Ada L."})
            tx.insert("other", {"_id": "x", "esc": "\u009b2J\u202e"})
        store.delete("people", 1)
    return folder


def test_cat_is_a_readable_line_for_each_record(path: Path) -> None:
    time = "2026-01-01T00:00:00.000Z"
    code, out, err = worm("log", "cat", "--url", path)
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        f"0  {time}  -  create_index  people  -  name",
        f'1  {time}  -  insert  people  1  {{"_id":1,"name":"Ada"}}',
        f"2  {time}  txn=0  begin  -  -  -",
        f'3  {time}  txn=0  replace  people  1  {{"_id":1,"name":"Ada L."}}',
        f'4  {time}  txn=0  insert  other  "x"  {{"_id":"x","esc":"\\x9b2J\\u202e"}}',
        f"5  {time}  txn=0  commit  -  -  -",
        f"6  {time}  -  delete  people  1  -",
    ]


def test_cat_chooses_by_lsn_namespace_and_op(path: Path) -> None:
    def lsns(*arguments: str) -> list[str]:
        code, out, _ = worm("log", "cat", "--url", path, *arguments)
        assert code == 0
        return [line.split()[0] for line in out.splitlines()]

    assert lsns("--after", "4") == ["5", "6"]
    assert lsns("--ns", "people") == ["0", "1", "3", "6"]
    assert lsns("--op", "insert") == ["1", "4"]
    assert lsns("--op", "insert", "--ns", "other", "--after", "1") == ["4"]
    assert lsns("--after", "99") == []


def test_raw_lines_are_the_stored_ones(path: Path) -> None:
    assert worm("log", "cat", "--url", path, "--raw")[1].encode() == log_bytes(path)
    assert worm("log", "tail", "--url", path, "-n", "2", "--raw")[1].encode() == b"".join(
        log_bytes(path).splitlines(True)[-2:]
    )


def test_a_torn_tail_is_a_note(path: Path) -> None:
    size = len(log_bytes(path))
    (path / OPLOG).write_bytes(log_bytes(path) + b"torn")
    for command in ("cat", "tail"):
        code, out, err = worm("log", command, "--url", path)
        assert (code, len(out.splitlines())) == (0, 7)
        assert err == f"note: 4 torn bytes after byte {size}: an unfinished write\n"
    assert "           4\nno problems\n" in worm("log", "verify", "--url", path)[1]


def test_cat_shows_what_is_before_damage_and_stops(path: Path) -> None:
    lines = log_bytes(path).splitlines(True)
    (path / OPLOG).write_bytes(b"".join([*lines[:3], b"x" + lines[3], *lines[4:]]))
    offset = sum(map(len, lines[:3]))
    code, out, err = worm("log", "cat", "--url", path)
    assert (code, len(out.splitlines())) == (9, 3)
    assert f"worm: line 4 (byte {offset}) has CRC" in err
    assert str(path / OPLOG) in err


def test_tail_shows_the_last(path: Path) -> None:
    assert [line.split()[0] for line in worm("log", "tail", "--url", path, "-n", "2")[1].splitlines()] == ["5", "6"]
    assert worm("log", "tail", "--url", path, "-n", "0") == (0, "", "")
    assert len(worm("log", "tail", "--url", path)[1].splitlines()) == 7
    assert worm("log", "tail", "--url", path, "-n", "-1")[0] == 2


class ScriptedClock(VirtualClock):
    """Every sleep is a step of a script."""

    def __init__(self, *steps: object) -> None:
        super().__init__()
        self.steps = list(steps)

    def sleep(self, seconds: float) -> None:
        if not self.steps:
            raise KeyboardInterrupt
        step = self.steps.pop(0)
        assert callable(step)
        step()


def test_follow_goes_on_with_what_is_appended_and_waits_for_whole_lines(path: Path) -> None:
    line = encode(Record(7, 0, Insert("c", 1, {"_id": 1})).to_json())
    more = encode(Record(8, 0, Insert("c", 2, {"_id": 2})).to_json())

    def add(body: bytes) -> None:
        with (path / OPLOG).open("ab") as file:
            file.write(body)

    clock = ScriptedClock(lambda: None, lambda: add(line[:9]), lambda: add(line[9:] + more), lambda: None)
    assert [lsn for lsn, _ in followed(path, clock, 1)] == [6, 7, 8]


def followed(path: Path, clock: ScriptedClock, count: int) -> list[tuple[int, object]]:
    """What a follower saw until Ctrl-C."""
    tools: LogTools = DirectoryTools(path, clock)
    seen: list[tuple[int, object]] = []
    with suppress(KeyboardInterrupt):
        for item in tools.tail(count, follow=True):
            assert isinstance(item, LogLine)
            seen.append((item.lsn, item.value["op"]))
    return seen


def test_follow_yields_every_record_once(path: Path) -> None:
    with store_at(path) as store:
        clock = ScriptedClock(lambda: store.insert("c", {"_id": 1}), lambda: store.delete("c", 1))
        assert followed(path, clock, 1) == [(6, "delete"), (7, "insert"), (8, "delete")]

        def compact_and_grow() -> None:
            store.compact()
            store.insert("c", {"_id": 2, "text": "x" * 2_000})

        for step in (store.compact, compact_and_grow):
            with pytest.raises(Conflict, match="compacted or repaired"):
                followed(path, ScriptedClock(step), 0)
    cut = ScriptedClock(lambda: os.truncate(path / OPLOG, 0))
    with pytest.raises(Conflict, match="compacted or repaired"):
        followed(path, cut, 0)


def test_damage_that_a_follower_meets_is_named_by_its_place_in_the_file(path: Path) -> None:
    size = len(log_bytes(path))
    clock = ScriptedClock(lambda: (path / OPLOG).write_bytes(log_bytes(path) + b"bad\n"))
    with pytest.raises(Exception, match=rf"line 8 \(byte {size}\)"):
        list(DirectoryTools(path, clock).tail(0, follow=True))


def test_verify_tells_figures_and_exits_by_what_it_found(path: Path) -> None:
    code, out, _ = worm("log", "verify", "--url", path)
    assert code == 0
    assert out.splitlines()[2].split() == ["7", str(len(log_bytes(path))), "1", "1", "0", "0", "0"]
    assert out.endswith("no problems\n")
    size = len(log_bytes(path))
    (path / OPLOG).write_bytes(log_bytes(path) + b"bad line\n")
    code, out, _ = worm("log", "verify", "--url", path)
    assert code == 9
    assert f"log-damaged  {path / OPLOG}: line 8 (byte {size}) is not a framed record\n1 problem\n" in out
    code, out, _ = worm("log", "verify", "--url", path, "--format", "json")
    report = json.loads(out)
    assert (code, report["clean"], report["records"]) == (9, False, 7)
    assert report["problems"] == [
        {
            "kind": "log-damaged",
            "key": str(path / OPLOG),
            "detail": f"line 8 (byte {size}) is not a framed record",
            "line": 8,
            "offset": size,
        }
    ]


def test_repair_is_a_dry_run_unless_told(path: Path) -> None:
    assert worm("log", "repair", "--url", path) == (0, "nothing to repair: 7 records\n", "")
    good = log_bytes(path)
    (path / OPLOG).write_bytes(good + b"bad line\n")
    code, out, _ = worm("log", "repair", "--url", path)
    assert (code, out.splitlines()[1:]) == (
        0,
        ["would keep 7 records; 9 bytes aside", "nothing was changed; run it with --no-dry-run"],
    )
    assert log_bytes(path) == good + b"bad line\n"
    code, out, _ = worm("log", "repair", "--url", path, "--no-dry-run", "--format", "json")
    report = json.loads(out)
    assert (code, report["dryRun"], report["kept"], report["moved"]) == (0, False, 7, 9)
    assert report["side"] == str(path / f"{OPLOG}.damaged-1")
    assert log_bytes(path) == good
    assert worm("log", "verify", "--url", path)[0] == 0


def test_compact_tells_what_it_saved(path: Path) -> None:
    before = len(log_bytes(path))
    code, out, _ = worm("log", "compact", "--url", path)
    assert (code, out) == (0, f"7 records, {before} bytes -> 2 records, {len(log_bytes(path))} bytes\n")
    report = json.loads(worm("log", "compact", "--url", path, "--format", "json")[1])
    assert (report["recordsBefore"], report["recordsAfter"]) == (2, 2)


def test_tools_that_change_refuse_an_open_store_and_the_others_do_not(path: Path, tmp_path: Path) -> None:
    with store_at(path):
        for arguments in (
            ("log", "compact", "--url", path),
            ("log", "repair", "--url", path, "--no-dry-run"),
            ("pack", path, tmp_path / "a"),
        ):
            code, _, err = worm(*arguments)
            assert (code, "is open in this process" in err) == (6, True)
        for command in ("verify", "cat", "tail", "repair"):
            assert worm("log", command, "--url", path)[0] == 0


def test_pack_and_unpack(path: Path, tmp_path: Path) -> None:
    size = len(log_bytes(path))
    figures = f"1 file, {size:,} bytes; 7 records, 1 document\n"
    assert worm("pack", path, tmp_path / "a.pack") == (0, f"packed {tmp_path / 'a.pack'}: {figures}", "")
    assert worm("unpack", tmp_path / "a.pack", tmp_path / "b") == (0, f"unpacked {tmp_path / 'b'}: {figures}", "")
    assert log_bytes(tmp_path / "b") == log_bytes(path)
    assert worm("unpack", tmp_path / "a.pack", path)[0] == 4
    (tmp_path / "bad").write_bytes(b"no archive")
    code, _, err = worm("unpack", tmp_path / "bad", tmp_path / "c")
    assert (code, "OMGDB-PACK v1" in err or "in the middle of an entry" in err) == (9, True)


@pytest.mark.parametrize("command", ["verify", "repair", "compact", "cat", "tail"])
def test_a_directory_without_a_store_is_not_found_and_not_made(tmp_path: Path, command: str) -> None:
    code, out, err = worm("log", command, "--url", tmp_path / "none")
    assert (code, out) == (3, "")
    assert "there is no oplog.ndjson" in err
    assert list(tmp_path.iterdir()) == []


def test_a_bucket_needs_the_name_of_a_database() -> None:
    code, _, err = worm("log", "cat", "--url", "s3://bucket/prefix")
    assert code == 2
    assert "NAME --url URL" in err


def test_a_commit_log_of_a_store_is_chosen_by_its_database(tmp_path: Path) -> None:
    store = open_store(tmp_path / "data")
    writer = LogWriter.open(store, "main")
    writer.append_wal([{"op": "insert", "ns": "c", "id": 1, "doc": {"_id": 1}}])
    code, out, _ = worm("log", "cat", "main", "--url", tmp_path / "data", "--ns", "c")
    assert (code, len(out.splitlines())) == (0, 1)
    assert out.endswith('insert  c  1  {"_id":1}\n')
    assert worm("log", "verify", "main", "--url", tmp_path / "data")[0] == 0
    assert worm("log", "repair", "main", "--url", tmp_path / "data", "--no-dry-run")[0] == 0
    code, _, err = worm("log", "compact", "main", "--url", tmp_path / "data")
    assert (code, "worm db compact" in err) == (2, True)
    assert worm("log", "verify", "nothing", "--url", tmp_path / "data")[0] == 3


def test_records_of_other_logs_are_shown_too() -> None:
    value = {"lsn": 4, "ts": 10**20, "op": "fence", "epoch": 3, "token": "a"}
    line = LogLine(4, value, b"", "log/1")  # type: ignore[arg-type]  # a literal is no JsonObject to mypy
    assert show(line.lsn, line.value) == f'4  {10**20}  -  fence  -  -  {{"epoch":3,"token":"a"}}'
