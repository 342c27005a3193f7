"""What may go wrong around a publish: crashes, other publishers, purges, hands that delete or write, rebuilds."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.examples import crash_points
from tests.harness import DataPath
from tests.lake.lake_room import (
    DIRECTORY,
    LOG,
    TIP,
    current,
    fill,
    lake_of,
    lake_path,
    opened,
    publish,
    published,
    revision,
)
from worm.collections.layout import SCHEMA_KEY
from worm.errors import Corrupt, Invalid, Unavailable
from worm.formats import load_schema
from worm.formats.strict_json import JsonObject
from worm.store.faulty_store import Fault, FaultyStore, SimulatedCrash
from worm.tables.lake.lake import Lake
from worm.tables.lake.log import DeltaLog
from worm.tables.lake.publish import Publication
from worm.tables.lake.upkeep import LakeStatus, vacuum
from worm.upkeep.purge import Purge
from worm.upkeep.why import explain_key

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("_deltas_stay")]
WRITES_MAX = 40
DAY = 86_400


def is_whole(path: DataPath, folder: Path) -> None:
    """The newest version is the collection, and all versions can be read."""
    table = opened(path.store, folder)
    assert published(table) == current(path)
    assert table.transaction_version("worm") == revision(path)
    for version in range(table.version() + 1):
        table.load_as_version(version)
        published(table)


# Crashes


@cache
def busy() -> DataPath:
    """Nine versions, so that the next one but one has a checkpoint; a partitioned table with deltas."""
    path = lake_path()
    fill(path, 14)
    for number in range(9):
        path.put("c001", {"visits": number})
        path.settle()
        publish(path)
    path.put("c002", {"name": "newer"})
    path.put("c012", {"name": "newer"})
    path.remove("c005")
    path.settle()
    root = path.table.manifest.root()
    assert root is not None
    assert len(root.partitions) == 3
    assert root.deltas
    return path


def merge_and_publish(path: DataPath) -> None:
    path.workspace.table("Customer").tidy(force=True)
    path.workspace.lake("Customer").publish()


def fold_and_publish(path: DataPath) -> None:
    path.put("c003", {"name": "folded"})
    path.run_capture()
    path.run_fold()
    path.workspace.lake("Customer").publish()


def rebuild_and_publish(path: DataPath) -> None:
    path.workspace.table("Customer").rebuild()
    path.workspace.lake("Customer").publish()


WORK: dict[str, Callable[[DataPath], object]] = {
    "publish": lambda path: path.workspace.lake("Customer").publish(),
    "twice": lambda path: [publish_after(path, name) for name in "xy"],
    "merge": merge_and_publish,
    "fold": fold_and_publish,
    "rebuild": rebuild_and_publish,
}


def publish_after(path: DataPath, name: str) -> Publication:
    path.put("c001", {"name": name})
    path.run_capture()
    path.run_fold()
    return path.workspace.lake("Customer").publish()


def crashed(work: str) -> Iterator[DataPath]:
    for number, when in crash_points(WRITES_MAX):
        path = busy().fork()
        faulty = FaultyStore(path.store, clock=path.clock)
        path.new_workers(faulty)
        path.workspace.refresh()
        faulty.crash_at_write(number, when)
        try:
            WORK[work](path)
        except SimulatedCrash:
            yield path
        else:
            return
    raise AssertionError("the work never ended")


@pytest.mark.parametrize("work", WORK)
def test_after_a_crash_anywhere_the_next_publish_continues(work: str, tmp_path: Path) -> None:
    died = 0
    for path in crashed(work):
        died += 1
        path.new_workers(path.store)
        path.sweep()
        publish(path)
        is_whole(path, tmp_path)
        path.assert_true()
    assert died > 1


@pytest.mark.parametrize("fault", [Fault.LOST_RESPONSE, Fault.OWN_REFUSAL, Fault.CONFLICT, Fault.LOST_REQUEST])
def test_a_version_whose_answer_was_lost_is_added_once(fault: Fault, tmp_path: Path) -> None:
    path = busy().fork()
    faulty = FaultyStore(path.store, clock=path.clock)
    path.new_workers(faulty)
    path.workspace.refresh()
    faulty.fail_next("attempt_put", fault)
    found = path.workspace.lake("Customer").publish()
    assert found.version == opened(path.store, tmp_path).version() == 10
    is_whole(path, tmp_path)


# Other publishers


def before_the_commit(lake: Lake, happens: Callable[[], object]) -> Lake:
    """It happens once, after the files are stored and before the version is added."""
    pending = [happens]

    class Log(DeltaLog):
        def commit(self, version: int, actions: Iterable[JsonObject]) -> str | None:
            while pending:
                pending.pop()()
            return super().commit(version, actions)

    lake.log = Log(lake.store, lake.directory)
    return lake


def test_of_two_publishers_one_adds_the_version_and_the_other_looks_again(tmp_path: Path) -> None:
    path = busy().fork()
    slow = before_the_commit(lake_of(path), lambda: publish(path))
    found = slow.publish()
    assert (found.version, found.added, found.removed) == (10, 0, 0)
    is_whole(path, tmp_path)


def test_the_slower_publisher_publishes_what_changed_in_the_meantime(tmp_path: Path) -> None:
    path = busy().fork()

    def other() -> None:
        publish(path)
        path.put("c013", {"name": "even newer"})
        path.settle()

    found = before_the_commit(lake_of(path), other).publish()
    assert (found.version, found.revision) == (11, revision(path))
    is_whole(path, tmp_path)


def test_a_publisher_that_always_loses_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    path = busy().fork()
    lake = lake_of(path)
    monkeypatch.setattr(lake.log, "commit", lambda *given: None)
    with pytest.raises(Unavailable, match="other writers added a version"):
        lake.publish()


# What this process remembers, and what the tip says


@pytest.mark.parametrize("body", [None, b"", b"{}", b"[]", b'{"checksum":"sha256:0"}'])
def test_a_lost_or_damaged_tip_is_read_from_the_log(body: bytes | None, tmp_path: Path) -> None:
    path = busy().fork()
    if body is None:
        path.store.delete(TIP)
    else:
        path.store.put(TIP, body)
    assert publish(path).version == 10
    is_whole(path, tmp_path)
    assert publish(path).added == 0


def test_a_tip_that_is_behind_the_log_is_not_believed(tmp_path: Path) -> None:
    path = busy().fork()
    before = path.store.get(TIP)
    assert before is not None
    publish(path)
    path.store.put(TIP, before.body)
    assert publish(path).added == 0
    path.put("c001", {"name": "new"})
    path.settle()
    assert publish(path).version == 11
    is_whole(path, tmp_path)


def test_a_log_that_was_deleted_starts_again_although_the_tip_knows_it(tmp_path: Path) -> None:
    path = busy().fork()
    for one in list(path.store.list(LOG)):
        path.store.delete(one.key)
    assert publish(path).version == 0
    is_whole(path, tmp_path)


def test_a_gap_in_the_log_is_told_with_what_to_do() -> None:
    path = busy().fork()
    path.store.delete(f"{LOG}{4:020d}.json")
    path.store.delete(TIP)
    with pytest.raises(Corrupt, match="an entry of the Delta log is gone") as told:
        publish(path)
    assert "worm repair" in (told.value.hint or "")


# Other programs


def add_commit(path: DataPath, *actions: dict[str, Any]) -> None:
    body = b"".join(json.dumps(action).encode() + b"\n" for action in actions)
    path.store.put(f"{LOG}{10:020d}.json", body)


def test_what_another_program_did_to_the_table_is_undone_by_the_next_version(tmp_path: Path) -> None:
    path = lake_path()
    fill(path, 14)
    publish(path)
    file = next(one.key for one in path.store.list(f"{DIRECTORY}partition-")).removeprefix(DIRECTORY)
    body = json.dumps({"remove": {"path": file, "deletionTimestamp": 1, "dataChange": True}}).encode()
    path.store.put(f"{LOG}{1:020d}.json", body)
    assert len(published(opened(path.store, tmp_path))) < 14
    found = publish(path)
    assert (found.version, found.added) == (2, 1)
    is_whole(path, tmp_path)


def test_a_protocol_that_we_do_not_write_is_refused_with_what_to_do() -> None:
    path = busy().fork()
    add_commit(path, {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7}})
    with pytest.raises(Invalid, match="another program changed the protocol") as told:
        publish(path)
    assert "worm repair" in (told.value.hint or "")


# Files


def live_file(path: DataPath) -> str:
    return min(lake_of(path).compare(check_files=False).tip.files)


def test_a_file_that_was_deleted_by_hand_is_told_and_written_again(tmp_path: Path) -> None:
    path = busy().fork()
    publish(path)
    for file in sorted(lake_of(path).compare(check_files=False).tip.files):
        path.store.delete(DIRECTORY + file)
        assert LakeStatus.of(lake_of(path)).missing == (file,)
        publish(path)
        status = LakeStatus.of(lake_of(path))
        assert (status.missing, status.behind_seconds) == ((), 0)
        is_whole(path, tmp_path)


def test_the_sweep_writes_a_deleted_file_again(tmp_path: Path) -> None:
    path = lake_path(every="1h")
    fill(path, 14)
    path.store.delete(DIRECTORY + live_file(path))
    path.clock.advance(3600)
    path.sweep()
    is_whole(path, tmp_path)


def test_a_damaged_parquet_file_of_a_partition_is_replaced_before_it_is_published(tmp_path: Path) -> None:
    path = lake_path(lake=None)
    fill(path, 14)
    key = next(one.key for one in path.store.list(f"{DIRECTORY}partition-"))
    body = path.store.get(key)
    assert body is not None
    path.store.put(key, body.body[:40] + b"x" + body.body[41:])
    turn_on(path)
    publish(path)
    is_whole(path, tmp_path)


def turn_on(path: DataPath) -> None:
    path.store.put(SCHEMA_KEY, load_schema(dict(lake_path().schema)).to_json())
    path.new_workers(path.store)


def test_a_table_that_is_rebuilt_meanwhile_is_published_as_it_is_afterwards(tmp_path: Path) -> None:
    path = busy().fork()

    def rebuilt() -> None:
        path.table.rebuild()
        path.put("c001", {"name": "after the rebuild"})
        path.settle()

    before_the_commit(lake_of(path), rebuilt).publish()
    publish(path)
    is_whole(path, tmp_path)


def test_a_partition_that_is_gone_is_rebuilt_from_the_documents(tmp_path: Path) -> None:
    path = busy().fork()
    root = path.table.manifest.root()
    assert root is not None
    for piece in (*root.partitions, *root.deltas):
        path.store.delete(f"org/customers/.worm.manifest/{piece.file}")
    publish(path)
    is_whole(path, tmp_path)


def test_a_lost_manifest_is_rebuilt_before_it_is_published(tmp_path: Path) -> None:
    path = busy().fork()
    path.store.delete("org/customers/.worm.manifest.json")
    publish(path)
    is_whole(path, tmp_path)


def test_the_status_of_a_lost_manifest_is_behind_and_writes_nothing() -> None:
    path = busy().fork()
    publish(path)
    path.store.delete("org/customers/.worm.manifest.json")
    path.clock.advance(60)
    lake = lake_of(path)
    with path.store.requests.measure() as spent:
        status = LakeStatus.of(lake)
    assert (status.version, status.behind_seconds, status.missing) == (10, 60, ())
    assert "PUT" not in spent


# Purge


def test_a_reader_of_an_old_version_is_not_disturbed_by_purge_until_the_retention_is_over(tmp_path: Path) -> None:
    path = busy().fork()
    publish(path)
    old = published(opened(path.store, tmp_path, version=5))
    for days in (2, 4):
        path.clock.advance(days * DAY)
        path.new_workers(path.store)
        Purge(path.workspace).run(lambda: 1.0)
        is_whole(path, tmp_path)
        assert published(opened(path.store, tmp_path, version=5)) == old
    path.clock.advance(2 * DAY)
    [report] = Purge(path.workspace).run(lambda: 1.0)
    assert report.table_files > 0
    assert published(opened(path.store, tmp_path)) == current(path)
    with pytest.raises(Exception, match=r"not found|No such file|NotFound"):
        published(opened(path.store, tmp_path, version=5))


def test_a_file_that_no_version_names_yet_is_kept_for_a_day() -> None:
    path = busy().fork()
    stray = f"{DIRECTORY}partition-0-{'0' * 16}.parquet"
    path.store.put(stray, b"")
    path.clock.advance(DAY // 2)
    assert stray not in vacuum(lake_of(path), retention_days=0)
    path.clock.advance(DAY)
    assert stray in vacuum(lake_of(path), retention_days=0, dry_run=True)
    assert path.store.head(stray) is not None
    assert stray in vacuum(lake_of(path), retention_days=0)
    assert path.store.head(stray) is None


def test_the_files_of_the_current_root_stay_even_if_no_version_names_them() -> None:
    path = busy().fork()
    path.table.tidy(force=True)
    path.clock.advance(30 * DAY)
    vacuum(lake_of(path), retention_days=0)
    root = path.table.manifest.root()
    assert root is not None
    assert not path.table.manifest.lacks_files(root)


def test_old_entries_of_the_log_go_when_a_later_checkpoint_is_old_too(tmp_path: Path) -> None:
    path = busy().fork()
    publish(path)
    path.clock.advance(29 * DAY)
    assert not [key for key in vacuum(lake_of(path)) if key.startswith(LOG)]
    path.clock.advance(2 * DAY)
    doomed = [key for key in vacuum(lake_of(path)) if key.startswith(LOG)]
    assert doomed == [f"{LOG}{version:020d}.json" for version in range(10)]
    assert published(opened(path.store, tmp_path)) == current(path)
    assert publish(path).version == 10


def test_the_retention_is_a_number_of_days() -> None:
    with pytest.raises(Invalid, match="must be a number of days"):
        vacuum(lake_of(lake_path()), retention_days=-1)


def test_keys_of_the_lake_are_explained() -> None:
    path = busy().fork()
    publish(path)
    lake = lake_of(path)
    named = min(lake.compare(check_files=False).tip.files)
    told = {
        f"{LOG}{3:020d}.json": "a file of the Delta log of Customer",
        TIP: "a file of the Delta log of Customer",
        DIRECTORY + named: "The table uses it",
        f"{DIRECTORY}partition-0-{'0' * 16}.parquet": "The table no longer uses it",
    }
    for key, reason in told.items():
        assert reason in explain_key(path.workspace, key).explanation, key
    path.store.delete(DIRECTORY + named)
    assert "it is missing" in explain_key(path.workspace, DIRECTORY + named).explanation
