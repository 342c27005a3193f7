"""verify and status report damage to a Delta table, and repair fixes it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.harness import DataPath
from tests.lake.lake_room import LOG, TIP, fill, lake_of, lake_path, opened, publish, published
from worm.errors import Corrupt
from worm.tables.lake.upkeep import LakeStatus
from worm.upkeep.repair import repair_model
from worm.upkeep.verifying import verify_model

Damage = Callable[[DataPath], str]
FIRST = f"{LOG}{0:020d}.json"


def data_file(path: DataPath) -> str:
    lake = lake_of(path)
    return lake.directory + min(lake.compare(check_files=True).tip.files)


def changed(path: DataPath, key: str, body: Callable[[bytes], bytes | None]) -> str:
    found = path.store.get(key)
    assert found is not None
    damaged = body(found.body)
    path.store.delete(key)
    if damaged is not None:
        path.store.put(key, damaged)
    return key


def flipped(body: bytes) -> bytes:
    return body[:40] + bytes([body[40] ^ 1]) + body[41:]


FILES: dict[str, Damage] = {
    "a changed file": lambda path: changed(path, data_file(path), flipped),
    "a short file": lambda path: changed(path, data_file(path), lambda body: body[:-9]),
    "a deleted file": lambda path: changed(path, data_file(path), lambda body: None),
}
LOGS: dict[str, Damage] = {
    "a damaged entry": lambda path: changed(path, FIRST, lambda body: b"{bad"),
    "a deleted entry": lambda path: changed(path, FIRST, lambda body: None),
    "no log": lambda path: without_log(path),
}


def without_log(path: DataPath) -> str:
    for one in path.store.list(LOG):
        path.store.delete(one.key)
    return LOG


def versions(count: int) -> DataPath:
    """A table of several files, with as many versions; the last one has deltas."""
    path = lake_path()
    fill(path, count)
    publish(path)
    path.put("c001", {"name": "newer"})
    path.settle()
    publish(path)
    return path


@pytest.mark.parametrize("count", [3, 9])
@pytest.mark.parametrize("how", [*FILES, *LOGS])
def test_what_is_damaged_is_told_and_mended(how: str, count: int, tmp_path: Path) -> None:
    path = versions(count)
    assert verify_model(path.workspace, "Customer").is_clean
    before = published(opened(path.store, tmp_path))
    key = (FILES | LOGS)[how](path)
    found = {(one.kind, one.key) for one in verify_model(path.workspace, "Customer").differences}
    kind = "lake-file-damaged" if how in FILES else "lake-log-damaged"
    assert (kind, key) in found
    assert {one for one, _ in found} <= {kind, "parquet-damaged"}
    lake_of(path)
    assert repair_model(path.workspace, "Customer").problems == {}
    assert verify_model(path.workspace, "Customer").is_clean
    assert published(opened(path.store, tmp_path)) == before


@pytest.mark.parametrize("how", LOGS)
def test_the_status_of_a_damaged_log_says_what_to_do(how: str) -> None:
    path = versions(3)
    LOGS[how](path)
    with pytest.raises(Corrupt) as told:
        LakeStatus.of(lake_of(path))
    assert "worm repair" in (told.value.hint or "")
    assert told.value.key is not None
    assert told.value.key.startswith(LOG)


@pytest.mark.parametrize("how", ["a short file", "a deleted file"])
def test_the_status_counts_a_file_of_another_size_as_missing_and_publish_writes_it(how: str, tmp_path: Path) -> None:
    path = versions(3)
    before = published(opened(path.store, tmp_path))
    key = FILES[how](path)
    assert LakeStatus.of(lake_of(path)).missing == (key.rpartition("/")[2],)
    publish(path)
    assert LakeStatus.of(lake_of(path)).missing == ()
    assert published(opened(path.store, tmp_path)) == before


def test_a_process_that_remembers_another_log_notices_it(tmp_path: Path) -> None:
    """Somebody deleted the log, and others published as many versions as there were."""
    path = versions(9)
    warm = lake_of(path)
    warm.publish()
    without_log(path)
    path.put("c002", {"name": "other"})
    path.settle()
    publish(path)
    path.put("c002", {"name": "another"})
    path.settle()
    assert publish(path).version == 1
    path.put("c005", {"name": "newest"})
    path.settle()
    assert warm.publish().version == 2
    rows = opened(path.store, tmp_path).to_pyarrow_table().to_pylist()
    assert sorted(row["id"] for row in rows) == [f"c{at:03d}" for at in range(9)]


def test_a_version_from_the_future_does_not_stop_the_workers() -> None:
    path = lake_path(every="15m")
    fill(path, 3)
    path.clock.advance(86_400)
    path.put("c001", {"name": "from the future"})
    path.settle()
    future = publish(path).version
    path.clock.advance(-86_000)
    path.put("c001", {"name": "newer"})
    path.settle()
    lake_of(path).publish_due(bytes_max=1 << 20)
    assert LakeStatus.of(lake_of(path)).version == future + 1


def test_a_lost_tip_is_no_damage() -> None:
    path = versions(3)
    path.store.delete(TIP)
    assert verify_model(path.workspace, "Customer").is_clean
    assert LakeStatus.of(lake_of(path)).version == 1


def test_a_repair_publishes_what_is_not_published_yet(tmp_path: Path) -> None:
    path = versions(3)
    path.put("c002", {"name": "newest"})
    path.settle()
    assert published(opened(path.store, tmp_path))["c002"] != {"name": "newest"}
    repair_model(path.workspace, "Customer")
    assert published(opened(path.store, tmp_path))["c002"] == {"name": "newest"}
