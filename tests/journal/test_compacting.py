"""Compaction: minimal, replay-identical, and safe whenever it dies."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.journal.log_room import (
    FailingDisk,
    QuickDisk,
    RecordingDisk,
    every_death,
    log_bytes,
    opened,
    state_of,
    store_at,
    write_log,
)
from worm.errors import CommitStateUnknown, Corrupt, Unavailable
from worm.log.journal.file import COMPACTING, OPLOG, Poisoned
from worm.log.journal.records import Abort, Begin, Insert
from worm.log.journal.state import minimal

pytestmark = pytest.mark.slow


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store whose log has much that is superseded."""
    folder = tmp_path / "app.omgdb"
    with store_at(folder) as store:
        store.create_index("c", "v")
        for number in range(6):
            store.insert("c", {"_id": number, "v": 0})
            store.replace("c", {"_id": number, "v": 1})
        store.delete("c", 3)
        store.define("c", {"strict": False})
    return folder


def test_the_log_becomes_minimal_and_the_state_stays(path: Path) -> None:
    with store_at(path) as store:
        before = len(log_bytes(path))
        report = store.compact()
        assert (report.records_before, report.size_before, report.records_after) == (15, before, 7)
        assert report.size_after == len(log_bytes(path))
        assert log_bytes(path).count(b'"ts":{"$date":0}}') == 7
        assert store.verify().is_clean
        assert [one["_id"] for one in store.find("c", "v", 1)] == [0, 1, 2, 4, 5]
        store.insert("c", {"_id": 9})  # appended to the new file
        assert store.next_lsn == 8
    with store_at(path) as store:
        assert store.get("c", 9) == {"_id": 9}
        assert store.verify().is_clean
    assert not (path / COMPACTING).exists()


def test_dropped_transactions_and_torn_tails_go(path: Path, tmp_path: Path) -> None:
    other = write_log(
        tmp_path / "o",
        (Begin(), 0),
        (Insert("c", 1, {"_id": 1}), 0),
        (Abort(), 0),
        (Begin(), 1),
        Insert("c", 2, {"_id": 2}),
    )
    with (other / OPLOG).open("ab") as file:
        file.write(b"torn")
    with store_at(other) as store:
        assert store.compact().records_after == 1
        with store.transaction() as tx:
            tx.insert("c", {"_id": 3})
    assert [one.split(b'"op":"')[1][:6] for one in log_bytes(other).splitlines()] == [
        b"insert",
        b'begin"',
        b"insert",
        b"commit",
    ]


def test_an_empty_store_compacts_to_an_empty_log(tmp_path: Path) -> None:
    with store_at(tmp_path / "s") as store:
        store.insert("c", {"_id": 1})
        store.delete("c", 1)
        assert store.compact().size_after == 0
    assert log_bytes(tmp_path / "s") == b""


def test_the_order_is_write_fsync_rename_directory_fsync(path: Path) -> None:
    disk = RecordingDisk()
    with store_at(path, disk) as store:
        disk.calls.clear()
        store.compact()
    assert disk.calls == ["write", "sync", f"rename {COMPACTING} {OPLOG}", f"sync directory {path.name}"]


def test_a_death_at_any_step_leaves_the_state_and_a_store_that_opens(path: Path) -> None:
    want, original = state_of(path), log_bytes(path)
    deaths = 0
    for _ in every_death(lambda disk: _compact_and_append(path, disk)):
        deaths += 1
        found = state_of(path)
        assert not (path / COMPACTING).exists()
        assert [one for one in want.differences(found) if one != 'c: document "new"'] == []
        (path / OPLOG).write_bytes(original)
    assert deaths > 15
    assert state_of(path).differences(want) == ['c: document "new"']


def _compact_and_append(path: Path, disk: QuickDisk) -> None:
    store = opened(path, disk)
    try:
        store.compact()
        store.insert("c", {"_id": "new"})
    finally:
        store._log.close()  # what a death does, too


class Damaging(QuickDisk):
    """Loses something of what is written, and says nothing."""

    def __init__(self, harm: str) -> None:
        self.harm = harm

    def write(self, handle: int, data: bytes) -> None:
        if self.harm == "flip":
            data = data.replace(b'"v":1', b'"v":2', 1)
        elif self.harm == "torn":
            data = data[:-5]
        elif self.harm == "record":
            data = b"".join(data.splitlines(keepends=True)[:-1])
        super().write(handle, data)


@pytest.mark.parametrize(
    ("harm", "said"), [("flip", "line 3 .* CRC"), ("torn", "6 records, but 7"), ("record", "6 records, but 7")]
)
def test_what_was_written_is_read_back_before_it_counts(path: Path, harm: str, said: str) -> None:
    original = log_bytes(path)
    disk = Damaging("")
    with store_at(path, disk) as store:
        disk.harm = harm
        with pytest.raises(Corrupt, match=said):
            store.compact()
        disk.harm = ""
        assert log_bytes(path) == original
        assert not (path / COMPACTING).exists()
        store.insert("c", {"_id": "new"})  # the store goes on
        assert store.verify().is_clean


def test_a_new_log_with_another_state_is_not_taken(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worm.log.journal.store.minimal", lambda state: list(minimal(state))[:-1])
    original = log_bytes(path)
    with store_at(path) as store, pytest.raises(Corrupt, match="replaying it gives a different state: c: document 5"):
        store.compact()
    assert log_bytes(path) == original


def test_a_full_disk_leaves_the_old_log_and_a_store_that_goes_on(path: Path) -> None:
    disk, original = FailingDisk(), log_bytes(path)
    with store_at(path, disk) as store:
        disk.write_left = 10
        with pytest.raises(Unavailable, match="No space left"):
            store.compact()
        assert log_bytes(path) == original
        disk.failing.add("sync")
        with pytest.raises(Unavailable):
            store.compact()
        assert not (path / COMPACTING).exists()
        store.insert("c", {"_id": "new"})


@pytest.mark.parametrize("failing", ["rename", "sync_directory"])
def test_a_failed_rename_is_recovered_by_reopening(path: Path, failing: str) -> None:
    want, disk = state_of(path), FailingDisk()
    with store_at(path, disk) as store:
        disk.failing.add(failing)
        with pytest.raises(CommitStateUnknown, match="both hold the same data"):
            store.compact()
        with pytest.raises(Poisoned):
            store.insert("c", {"_id": "new"})
    assert want.differences(state_of(path)) == []
    assert sorted(one.name for one in Path(path).iterdir()) == ["LOCK", OPLOG]


@pytest.mark.parametrize("mode", [0o600, 0o664])
def test_the_new_log_has_the_mode_of_the_old_one(path: Path, mode: int) -> None:
    """A compaction would show a private log to everybody."""
    (path / OPLOG).chmod(mode)
    with store_at(path) as store:
        store.compact()
    assert (path / OPLOG).stat().st_mode & 0o777 == mode
