"""oplog.ndjson on the disk: torn tails, damage, the poisoned writer, the lock."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.journal.log_room import (
    FailingDisk,
    QuickDisk,
    RecordingDisk,
    contents,
    log_bytes,
    opened,
    store_at,
    write_log,
)
from worm.errors import CommitStateUnknown, Corrupt, Denied, Invalid, NotFound, Unavailable
from worm.formats.frames import encode, frame
from worm.log.journal.file import COMPACTING, LOCK, OPLOG, FileLog, Locked, Poisoned, replay
from worm.log.journal.records import Insert, Record
from worm.log.journal.store import LogStore

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store with three records."""
    folder = tmp_path / "app.omgdb"
    with store_at(folder) as store:
        for number in range(3):
            store.insert("c", {"_id": number, "text": "grüße"})
    return folder


def test_a_store_is_a_directory_with_one_log_that_cat_can_read(path: Path) -> None:
    assert sorted(one.name for one in path.iterdir()) == [LOCK, OPLOG]
    lines = log_bytes(path).decode().splitlines()
    assert len(lines) == 3
    assert lines[0].startswith('{"doc":{"_id":0,"text":"grüße"},"id":0,"lsn":0,"ns":"c","op":"insert","ts":{"$date":')


def test_lsns_are_the_positions_in_the_file_from_zero(path: Path) -> None:
    with store_at(path) as store:
        assert store.next_lsn == 3
        store.delete("c", 1)
    assert [f'"lsn":{at},' in line for at, line in enumerate(log_bytes(path).decode().splitlines())] == [True] * 4


def test_the_wall_clock_is_in_the_record(path: Path) -> None:
    assert log_bytes(path).count(b'"ts":{"$date":1767225600000}') == 3


@pytest.mark.parametrize(
    "tail", [b'{"lsn":3,"ts":{"$date":0},"op":"inse', '{"text":"ü'.encode()[:-1], b"\x00" * 30, b"\t", b"\xff\xfe"]
)
def test_torn_tail_is_skipped_and_flagged_and_never_joined_to_the_next_record(path: Path, tail: bytes) -> None:
    before = log_bytes(path)
    (path / OPLOG).write_bytes(before + tail)
    with store_at(path) as store:
        torn = store.torn_tail
        assert torn is not None
        assert (torn.line, torn.offset, torn.size) == (4, len(before), len(tail))
        store.insert("c", {"_id": 3})
    assert log_bytes(path).startswith(before)
    with store_at(path) as store:
        assert (store.torn_tail, store.next_lsn, len(contents(store)["c"])) == (None, 4, 4)


def test_crc_detects_corruption_and_opening_stops(path: Path) -> None:
    damaged = log_bytes(path).replace(b"{", b"[", 1)
    (path / OPLOG).write_bytes(damaged)
    with pytest.raises(Corrupt, match=r"line 1 \(byte 0\) has CRC") as refused:
        opened(path)
    assert refused.value.key == str(path / OPLOG)
    assert "worm log repair" in str(refused.value)
    assert log_bytes(path) == damaged
    with pytest.raises(Corrupt):
        opened(path)  # not Locked: a failed open gave the lock back


def test_invalid_utf_8_in_a_complete_record_is_corruption(path: Path) -> None:
    (path / OPLOG).write_bytes(log_bytes(path) + frame(b'{"lsn":3,"x":"\xff"}'))
    with pytest.raises(Corrupt, match=r"line 4 .*not valid JSON"):
        opened(path)


def test_a_gap_and_a_repeat_of_lsns_are_corruption(path: Path) -> None:
    first, second, third = log_bytes(path).splitlines(keepends=True)
    for lines, said in ((first + third, "lsn 2 instead of 1"), (first + second + second, "lsn 1 instead of 2")):
        (path / OPLOG).write_bytes(lines)
        with pytest.raises(Corrupt, match=said):
            opened(path)


def test_f26_no_flipped_bit_is_taken_for_data(path: Path) -> None:
    """Whatever bit flips: what is read is a prefix of what was written, and the rest is damage or a torn tail."""
    whole = log_bytes(path)
    want = [{"_id": number, "text": "grüße"} for number in range(3)]
    for at in range(len(whole)):
        body = bytearray(whole)
        body[at] ^= 1 << (at % 8)
        (path / OPLOG).write_bytes(bytes(body))
        found = replay(path / OPLOG)
        assert found.damage is not None or found.torn is not None
        kept = [json.loads(one) for one in found.fold.state.scan("c")]
        assert kept == want[: found.end.lines]
        assert len(kept) < 3
        if found.damage is not None:
            assert f"line {found.end.lines + 1} (byte {found.end.offset})" in str(found.damage)
            assert found.damage.key == str(path / OPLOG)
    (path / OPLOG).write_bytes(whole)
    with store_at(path) as store:
        assert contents(store)["c"] == want


def test_f26_zeroed_bytes_stop_the_open(path: Path) -> None:
    whole = log_bytes(path)
    for at in range(0, len(whole) - 20, 7):
        (path / OPLOG).write_bytes(whole[:at] + b"\x00" * 16 + whole[at + 16 :])
        with pytest.raises(Corrupt, match=r"line \d \(byte \d+\)"):
            opened(path)


def test_f26_a_cut_anywhere_leaves_a_prefix(path: Path) -> None:
    whole = log_bytes(path)
    ends = [at + 1 for at, byte in enumerate(whole) if byte == 10]
    for cut in range(len(whole)):
        (path / OPLOG).write_bytes(whole[:cut])
        found = replay(path / OPLOG)
        assert found.end.lines == found.fold.state.documents == sum(end <= cut for end in ends)
        assert (found.torn is None, found.damage) == (cut in (0, *ends), None)


@pytest.mark.parametrize("left", [0, 1, 40])
def test_a_writer_is_poisoned_by_a_write_that_failed(path: Path, left: int) -> None:
    disk = FailingDisk()
    before = log_bytes(path)
    with store_at(path, disk) as store:
        disk.write_left = left
        with pytest.raises(CommitStateUnknown, match="No space left"):
            store.insert("c", {"_id": 3})
        for write in (lambda: store.insert("c", {"_id": 4}), lambda: store.delete("c", 1), store.compact):
            with pytest.raises(Poisoned, match="an earlier write failed"):
                write()
        assert store.get("c", 3) is None
        assert store.get("c", 1) is not None
        assert log_bytes(path)[: len(before)] == before
        assert len(log_bytes(path)) == len(before) + left
    with store_at(path) as store:
        assert (store.torn_tail is not None) is (left > 0)
        store.insert("c", {"_id": 4})
        assert [one["_id"] for one in store.scan("c")] == [0, 1, 2, 4]


def test_a_writer_is_poisoned_by_an_fsync_that_failed(path: Path) -> None:
    disk = FailingDisk()
    with store_at(path, disk) as store:
        disk.failing.add("sync")
        with pytest.raises(CommitStateUnknown, match="Input/output error"):
            store.insert("c", {"_id": 3})
        assert store.get("c", 3) is None  # memory is never ahead of the disk
        with pytest.raises(Poisoned):
            store.insert("c", {"_id": 4})
        assert not store.verify().is_clean  # the log may be ahead of memory, and verify says so
    with store_at(path) as store:
        assert store.get("c", 3) is not None  # unknown: here it had landed


class Interrupted(QuickDisk):
    def write(self, handle: int, data: bytes) -> None:
        super().write(handle, data[:5])
        raise KeyboardInterrupt


def test_a_writer_is_poisoned_by_an_interruption(path: Path) -> None:
    with store_at(path, Interrupted()) as store:
        with pytest.raises(KeyboardInterrupt):
            store.insert("c", {"_id": 3})
        with pytest.raises(Poisoned, match="interrupted by KeyboardInterrupt"):
            store.insert("c", {"_id": 3})


class Stingy(QuickDisk):
    """Takes a few bytes at a time, as a system may."""

    def write(self, handle: int, data: bytes) -> None:
        original = os.write
        try:
            os.write = lambda handle, some: original(handle, memoryview(some)[:7])
            super().write(handle, data)
        finally:
            os.write = original


def test_short_writes_are_finished(path: Path) -> None:
    with store_at(path, Stingy()) as store:
        store.insert("c", {"_id": 3, "text": "x" * 100})
    with store_at(path) as store:
        assert store.get("c", 3) == {"_id": 3, "text": "x" * 100}


def test_a_log_that_something_else_writes_is_not_continued(path: Path) -> None:
    with store_at(path) as store:
        with (path / OPLOG).open("ab") as file:
            file.write(encode(Record(3, 0, Insert("c", 9, {"_id": 9})).to_json()))
        with pytest.raises(Corrupt, match="another process writes to this log"):
            store.insert("c", {"_id": 3})
        with pytest.raises(Poisoned):
            store.insert("c", {"_id": 3})


def test_append_then_fsync_and_opening_syncs_directory_and_log(tmp_path: Path) -> None:
    disk = RecordingDisk()
    with store_at(tmp_path / "new", disk) as store:
        assert disk.calls == [f"sync directory {tmp_path.name}", "sync directory new", "sync"]
        disk.calls.clear()
        store.insert("c", {"_id": 1})
        assert disk.calls == ["write", "sync"]


def test_a_torn_tail_is_cut_before_the_log_is_synced(path: Path) -> None:
    (path / OPLOG).write_bytes(log_bytes(path) + b"half")
    disk = RecordingDisk()
    with store_at(path, disk):
        assert disk.calls[-2:] == ["truncate", "sync"]


def test_second_open_is_locked_out_and_names_the_holder(path: Path) -> None:
    first = opened(path)
    with pytest.raises(Locked, match="is open in this process") as refused:
        opened(path)
    assert (refused.value.pid, refused.value.exit_code) == (os.getpid(), Unavailable.exit_code)
    first.close()
    opened(path).close()


def start(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.journal.log_worker", *arguments]
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'shared'}{os.pathsep}{ROOT}"}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdin=pipe, stdout=pipe, text=True)


def test_another_process_holds_the_lock_until_it_ends_however_it_ends(path: Path) -> None:
    holder = start("hold", str(path))
    try:
        assert holder.stdout is not None
        assert int(holder.stdout.readline()) == holder.pid
        with pytest.raises(Locked, match=f"is open in process {holder.pid}") as refused:
            LogStore.open(path)
        assert refused.value.pid == holder.pid
    finally:
        holder.kill()
        holder.communicate()
    opened(path).close()


def test_a_disk_that_is_really_full_poisons_and_loses_nothing(tmp_path: Path) -> None:
    worker = start("fill", str(tmp_path / "s"), "2000")
    told = worker.communicate(timeout=60)[0].split()
    assert told[-2:] == ["CommitStateUnknown", "Poisoned"]
    with store_at(tmp_path / "s") as store:
        assert [str(one["_id"]) for one in store.scan("c")] == told[:-2]
        assert store.torn_tail is not None


def test_a_store_is_not_used_by_a_forked_child(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with store_at(path) as store:
        monkeypatch.setattr(os, "getpid", lambda: 1)
        with pytest.raises(Invalid, match="was opened by process"):
            store.insert("c", {"_id": 3})


def test_an_orphaned_compaction_is_removed_on_open(path: Path) -> None:
    (path / COMPACTING).write_bytes(b"half of a log")
    opened(path).close()
    assert not (path / COMPACTING).exists()


def test_symbolic_links_and_other_things_are_no_log(tmp_path: Path, path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / OPLOG).symlink_to(path / OPLOG)
    with pytest.raises(Invalid, match="is a symbolic link"):
        opened(other)
    (other / OPLOG).unlink()
    os.mkfifo(other / OPLOG)
    with pytest.raises(Invalid, match="not a regular file"):
        opened(other)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(Invalid):
        opened(tmp_path / "file")


def test_a_missing_store_is_only_made_where_that_is_wanted(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"there is no oplog\.ndjson"):
        FileLog(tmp_path / "none", create=False)
    assert not (tmp_path / "none").exists()
    opened(tmp_path / "a" / "b").close()
    assert (tmp_path / "a" / "b" / OPLOG).read_bytes() == b""


class Refusing(QuickDisk):
    def open(self, path: Path, flags: int) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def test_a_directory_that_may_not_be_written_is_denied(path: Path) -> None:
    with pytest.raises(Denied, match="Permission denied"):
        opened(path, Refusing())


def test_a_log_of_another_producer_is_continued(tmp_path: Path) -> None:
    write_log(tmp_path / "s", Insert("c", 1, {"_id": 1}))
    with store_at(tmp_path / "s") as store:
        store.insert("c", {"_id": 2})
        assert store.next_lsn == 2
