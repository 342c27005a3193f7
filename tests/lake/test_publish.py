"""Publishing: what a version has, what it costs, and when there is one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.harness import DataPath
from tests.lake.lake_room import (
    DIRECTORY,
    FIELDS,
    LOG,
    TIP,
    Rows,
    current,
    document,
    fill,
    lake_of,
    lake_path,
    opened,
    publish,
    published,
    revision,
)
from worm.collections.entries import Change, Head
from worm.collections.layout import SCHEMA_KEY
from worm.errors import Invalid
from worm.formats import load_schema
from worm.formats.strict_json import JsonValue
from worm.tables.lake.actions import LogState, decode_checkpoint
from worm.tables.lake.upkeep import LakeStatus
from worm.tables.manifest import Manifest
from worm.tables.table import Table
from worm.upkeep.purge import Purge

VALUES: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {},
    optional={
        "name": st.sampled_from(["a", "", "ü", None]),
        "score": st.sampled_from([1, 1.5, 10**18, None]),
        "visits": st.sampled_from([0, -3, 2**62, None]),
        "active": st.booleans() | st.none(),
        "since": st.sampled_from(["2026-01-31T12:00:00Z", "2026-02-01T00:00:00Z"]),
        "tags": st.lists(st.sampled_from("xyz"), max_size=2),
        "home": st.fixed_dictionaries({}, optional={"city": st.sampled_from(["Rome", "Oslo"]), "zip": st.just(5)}),
        "odd": st.sampled_from([None, [1], {"deep": True}]),
    },
)
STEPS: st.SearchStrategy[tuple[str, int, dict[str, Any]]] = st.one_of(
    st.tuples(st.just("put"), st.integers(0, 11), VALUES),
    st.tuples(st.just("remove"), st.integers(0, 11), st.just({})),
    st.tuples(
        st.sampled_from(["settle", "publish", "merge", "rebuild", "sweep", "forget", "wait"]), st.just(0), st.just({})
    ),
)


def merge(path: DataPath) -> None:
    path.table.tidy(force=True)


ACTIONS: dict[str, Callable[[DataPath], object]] = {
    "settle": DataPath.settle,
    "publish": publish,
    "merge": merge,
    "rebuild": lambda path: path.table.rebuild(),
    "sweep": DataPath.sweep,
    "forget": lambda path: path.store.delete(TIP),
    "wait": lambda path: path.clock.advance(100),
}


def folded_state(path: DataPath) -> tuple[int, Rows]:
    """The rows of the table with its revision, which the log of a published version must name."""
    manifest = path.table.manifest.read()
    assert manifest is not None
    return manifest.revision, current(path)


@pytest.mark.slow
@pytest.mark.parametrize("oplog", [True, False])
@settings(max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=st.lists(STEPS, max_size=40), every=st.sampled_from(["1m", "9000w"]), share=st.sampled_from([0, 4]))
def test_every_version_is_the_collection_as_of_its_revision(
    oplog: bool,
    steps: list[tuple[str, int, dict[str, Any]]],
    every: str,
    share: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("worm.tables.tree.BASE_SHARE", share)  # 0: deltas stay
        path, states = lived(steps, every=every, oplog=oplog)
    folder = tmp_path_factory.mktemp("lake")
    newest = opened(path.store, folder)
    assert published(newest) == current(path)
    for version in range(newest.version() + 1):
        newest.load_as_version(version)
        assert published(newest) == states[newest.transaction_version("worm") or 0], version
    if oplog:
        newest.load_as_version(newest.version())
        assert newest.transaction_version("worm") == revision(path)


def lived(steps: list[tuple[str, int, dict[str, Any]]], *, every: str, oplog: bool) -> tuple[DataPath, dict[int, Rows]]:
    """The path after these steps, and the states that it had, by their revisions."""
    path = lake_path(every=every, oplog=oplog)
    states = dict([folded_state(path)])
    for name, number, values in [*steps, ("settle", 0, {}), ("publish", 0, {})]:
        if name == "put":
            path.put(f"c{number:02d}", values)
        elif name == "remove":
            path.remove(f"c{number:02d}")
        else:
            path.settle()
            states.update([folded_state(path)])
            ACTIONS[name](path)
    return path, states


def test_a_table_in_one_file_and_a_partitioned_one_are_published_with_their_revision(tmp_path: Path) -> None:
    path = lake_path()
    fill(path, 3)
    assert publish(path).revision == revision(path) == 3
    assert published(opened(path.store, tmp_path)) == current(path)
    fill(path, 20, first=2)
    found = publish(path)
    assert (found.version, found.revision) == (1, revision(path))
    assert (found.added, found.removed) == (3, 1)
    path.put("c004", {"name": "newer"})
    path.settle()
    found = publish(path)
    assert (found.revision, found.added, found.removed) == (revision(path), 1, 1)
    assert published(opened(path.store, tmp_path)) == current(path)


def test_nothing_new_is_no_version_and_no_write() -> None:
    path = lake_path()
    fill(path, 12)
    first = publish(path)
    lake = lake_of(path)
    with path.store.requests.measure() as spent:
        again = lake.publish()
    assert (again.version, again.added, again.removed) == (first.version, 0, 0)
    assert "PUT" not in spent


def test_an_empty_collection_is_a_table_without_rows(tmp_path: Path) -> None:
    path = lake_path()
    assert publish(path).version == 0
    assert published(opened(path.store, tmp_path)) == {}


def test_a_merge_of_deltas_that_changes_no_row_leaves_the_rows_of_the_newest_version(tmp_path: Path) -> None:
    path = lake_path(threshold=10)
    fill(path, 40)
    path.put("c004", {"name": "newer"})
    path.settle()
    before = publish(path)
    merge(path)
    assert publish(path).revision == before.revision
    assert published(opened(path.store, tmp_path)) == current(path)


def large_table(path: DataPath, count: int) -> None:
    """Much faster than to upload the documents."""
    rows: Rows = {f"c{number:06d}": {**document(number), "extra": [1]} for number in range(count)}
    seqs, definition = dict.fromkeys(rows, 1), path.table.collection.definition
    made = Manifest("Customer", cast("Any", rows), seqs, "2026-01-01T00:00:00Z", count, fields=definition.row_form)
    path.table.manifest.update(lambda stored: made)


@pytest.mark.parametrize("is_warm", [True, False], ids=["warm", "cold"])
def test_a_publish_costs_six_requests_and_the_changed_partitions(is_warm: bool) -> None:
    path = lake_path(threshold=500, partitions=16)
    large_table(path, 5000)
    lake = lake_of(path)
    assert lake.publish().added == 10
    table = path.workspace.table("Customer")
    row: dict[str, JsonValue] = {"name": "new"}
    head = Head(2, "e", "v", True, "2030-01-01T00:00:00Z")
    changes = [Change(f"c{number:06d}", head, row) for number in range(1000, 2000, 10)]
    table.fold(changes)
    if not is_warm:
        lake = lake_of(path)
    with path.store.requests.measure() as spent:
        found = lake.publish()
    assert (found.added, found.removed, found.revision) == (2, 2, 5100)
    changed = 2 * 2  # one read and one write each
    assert spent["total"] <= 6 + changed, spent
    assert spent["PUT"] == 2 + 2


def test_a_model_without_lake_has_no_log_and_no_further_request() -> None:
    path = lake_path(lake=None)
    fill(path, 12)
    path.sweep()
    assert not [one.key for one in path.store.list(LOG)]
    with pytest.raises(Invalid, match="Customer has no Delta table"):
        publish(path)


# When


def versions(path: DataPath) -> int:
    return sum(one.key.endswith(".json") for one in path.store.list(LOG))


def test_the_worker_publishes_when_the_newest_version_is_old_enough() -> None:
    path = lake_path(every="15m")
    fill(path, 6)
    assert versions(path) == 1
    path.clock.advance(14 * 60)
    fill(path, 1, first=7)
    assert versions(path) == 1
    path.clock.advance(60)
    fill(path, 1, first=8)
    assert versions(path) == 2


def test_a_warm_worker_makes_no_request_to_find_that_nothing_is_due() -> None:
    path, plain = lake_path(every="15m"), lake_path(lake=None)
    spent = []
    for one in (path, plain):
        fill(one, 12)
        one.put("c001", {"name": "new"})
        one.run_capture()
        with one.store.requests.measure() as counted:
            one.run_fold()
        spent.append(counted)
    assert spent[0] == spent[1]


def test_a_worker_whose_memory_is_old_asks_before_it_publishes() -> None:
    path = lake_path(every="15m")
    fill(path, 6)
    worker = path.fold
    path.clock.advance(16 * 60)
    path.new_workers(path.store)
    path.put("c001", {"name": "one"})
    path.settle()
    assert versions(path) == 2
    path.fold = worker
    path.put("c002", {"name": "two"})
    path.settle()
    assert versions(path) == 2


def test_the_sweep_publishes_what_would_be_too_old_at_the_next_one() -> None:
    path = lake_path(every="1h")
    fill(path, 6)
    path.clock.advance(44 * 60)
    path.put("c001", {"name": "new"})
    path.settle()
    path.sweep()
    assert versions(path) == 1
    path.clock.advance(60)
    path.sweep()
    assert versions(path) == 2
    assert publish(path).version == 1


def test_a_worker_that_cannot_publish_has_folded_all_the_same_and_the_sweep_says_why() -> None:
    path = lake_path(every="1s")
    fill(path, 6)
    path.store.put(f"{LOG}{1:020d}.json", b"not json")
    path.put("c001", {"name": "new"})
    path.run_capture()
    outcome = path.run_fold()
    assert outcome.failed == {}
    assert "not valid JSON" in str(outcome.unpublished["Customer"])
    assert path.rows()["c001"]["name"] == "new"
    report = path.sweep()
    assert (report.listed, report.finished) == (6, True)
    assert report.error is not None
    assert report.error.key == f"{LOG}{1:020d}.json"
    path.clock.advance(10 * 86_400)
    [purged] = Purge(path.workspace).run(lambda: 1.0)
    assert list(purged.problems) == [f"{LOG}{1:020d}.json"]


def test_a_worker_in_a_rush_leaves_publishing_to_later(monkeypatch: pytest.MonkeyPatch) -> None:
    path = lake_path(every="1s")
    monkeypatch.setattr("worm.upkeep.workers.tables.RUSH_SETS", 1)
    fill(path, 6)
    assert versions(path) == 0
    path.sweep()
    assert versions(path) == 1


@pytest.mark.usefixtures("_deltas_stay")
def test_what_is_too_large_for_the_worker_is_left_to_the_sweep_and_then_to_you(monkeypatch: pytest.MonkeyPatch) -> None:
    path = lake_path(every="1s")
    fill(path, 12)
    before = versions(path)
    monkeypatch.setattr(Table, "TIDY_BYTES_MAX", 10)
    monkeypatch.setattr(Table, "SWEEP_BYTES_MAX", 10)
    path.put("c001", {"name": "new"})
    path.settle()
    path.sweep()
    assert versions(path) == before
    monkeypatch.setattr(Table, "SWEEP_BYTES_MAX", 100_000)
    path.sweep()
    assert versions(path) == before + 1
    path.put("c002", {"name": "new"})
    path.settle()
    assert publish(path).version == before + 1


@pytest.mark.usefixtures("_deltas_stay")
def test_a_sweep_without_time_leaves_a_large_publication_to_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads up to half a gigabyte, and a function whose time is over has 20 seconds to finish."""
    path = lake_path(every="1s")
    fill(path, 12)
    before = versions(path)
    monkeypatch.setattr(Table, "TIDY_BYTES_MAX", 10)
    path.put("c001", {"name": "new"})
    path.settle()
    path.sweeper.run(lambda: 0.0)
    assert versions(path) == before
    path.sweep()
    assert versions(path) == before + 1


# What the log says


def actions(path: DataPath, version: int) -> list[dict[str, Any]]:
    found = path.store.get(f"{LOG}{version:020d}.json")
    assert found is not None
    return [json.loads(line) for line in found.body.splitlines()]


def test_a_version_says_who_wrote_it_and_which_state_it_is() -> None:
    path = lake_path()
    fill(path, 6)
    publish(path)
    said = {name: value for action in actions(path, 0) for name, value in action.items()}
    assert said["protocol"] == {"minReaderVersion": 1, "minWriterVersion": 2}
    assert said["txn"] == {"appId": "worm", "version": 6, "lastUpdated": said["commitInfo"]["timestamp"]}
    assert said["commitInfo"]["operationMetrics"] == {"numFiles": "2", "numRemovedFiles": "0"}
    assert said["commitInfo"]["revision"] == 6
    assert json.loads(said["add"]["stats"])["numRecords"] > 0
    assert "/" not in said["add"]["path"]


def with_fields(path: DataPath, fields: dict[str, object]) -> None:
    models = cast("dict[str, dict[str, object]]", path.schema["models"])
    schema = {**path.schema, "models": {"Customer": {**models["Customer"], "fields": fields}}}
    path.store.put(SCHEMA_KEY, load_schema(schema).to_json())


def test_a_new_field_and_a_new_type_are_new_metadata_and_the_id_of_the_table_stays(tmp_path: Path) -> None:
    path = lake_path()
    fill(path, 9)
    publish(path)
    with_fields(path, FIELDS | {"visits": {"type": "string"}, "extra": {"type": "array", "items": "integer"}})
    path.new_workers(path.store)
    assert publish(path).version == 1
    table = opened(path.store, tmp_path, version=0)
    before = table.metadata().id
    assert table.to_pyarrow_table().column("visits").to_pylist()[:1] == [0]
    table.load_as_version(1)
    assert table.metadata().id == before
    assert published(table) == current(path)
    assert str(table.schema().to_arrow()).count("extra") == 1
    assert [name for one in actions(path, 1) for name in one if name in ("protocol", "metaData")] == ["metaData"]


def test_a_table_that_was_made_for_another_schema_is_rebuilt_before_it_is_published(tmp_path: Path) -> None:
    path = lake_path(manifest={"enabled": True, "fields": ["name"]})
    fill(path, 3)
    publish(path)
    models = cast("dict[str, dict[str, object]]", path.schema["models"])
    manifest = {"enabled": True, "fields": ["name", "visits"]}
    schema = {**path.schema, "models": {"Customer": {**models["Customer"], "manifest": manifest}}}
    path.store.put(SCHEMA_KEY, load_schema(schema).to_json())
    assert publish(path).version == 1
    assert [row["visits"] for row in published(opened(path.store, tmp_path)).values()] == [0, 1, 2]


# Checkpoints


def many_versions(path: DataPath, count: int) -> None:
    for number in range(count):
        path.put("c001", {"visits": number})
        path.settle()
        publish(path)


def test_a_table_opens_from_its_checkpoint_when_earlier_commits_are_deleted(tmp_path: Path) -> None:
    path = lake_path()
    fill(path, 9)
    many_versions(path, 14)
    assert [one.key for one in path.store.list(LOG) if "checkpoint" in one.key] == [
        f"{LOG}{10:020d}.checkpoint.parquet",
        f"{LOG}_last_checkpoint",
    ]
    for version in range(10):
        path.store.delete(f"{LOG}{version:020d}.json")
    table = opened(path.store, tmp_path)
    assert table.version() == 14
    assert published(table) == current(path)
    table.load_as_version(10)
    assert published(table)["c001"]["visits"] == 9
    path.store.delete(TIP)
    many_versions(path, 12)
    assert published(opened(path.store, tmp_path)) == current(path)
    assert path.store.head(f"{LOG}{20:020d}.checkpoint.parquet") is not None


def test_a_checkpoint_that_was_not_written_is_written_with_the_next_version(tmp_path: Path) -> None:
    path = lake_path()
    fill(path, 9)
    many_versions(path, 10)
    path.store.delete(f"{LOG}{10:020d}.checkpoint.parquet")
    path.store.delete(f"{LOG}_last_checkpoint")
    path.store.delete(TIP)
    many_versions(path, 1)
    assert path.store.head(f"{LOG}{11:020d}.checkpoint.parquet") is not None
    assert published(opened(path.store, tmp_path)) == current(path)


def test_the_time_of_a_version_with_a_checkpoint_is_known_without_the_tip() -> None:
    path = lake_path()
    fill(path, 9)
    many_versions(path, 10)
    before = LakeStatus.of(lake_of(path))
    path.store.delete(TIP)
    assert LakeStatus.of(lake_of(path)) == before


def test_a_checkpoint_of_which_a_part_is_missing_is_ignored(tmp_path: Path) -> None:
    path = lake_path()
    fill(path, 9)
    many_versions(path, 3)
    path.store.put(f"{LOG}{3:020d}.checkpoint.{1:010d}.{2:010d}.parquet", b"half of it")
    path.store.delete(TIP)
    many_versions(path, 1)
    assert published(opened(path.store, tmp_path)) == current(path)


def test_a_checkpoint_forgets_removed_files_after_their_retention() -> None:
    path = lake_path()
    fill(path, 9)
    many_versions(path, 10)
    path.clock.advance(8 * 86_400)
    many_versions(path, 10)
    found = path.store.get(f"{LOG}{20:020d}.checkpoint.parquet")
    assert found is not None
    removed = [one["remove"] for one in decode_checkpoint([found.body], found.key) if "remove" in one]
    assert 0 < len(removed) <= 10


def test_a_file_that_is_added_again_is_no_longer_removed() -> None:
    add: dict[str, JsonValue] = {"add": {"path": "a", "size": 1}}
    remove: dict[str, JsonValue] = {"remove": {"path": "a", "deletionTimestamp": 1}}
    state = LogState(-1).after(0, [add]).after(1, [remove])
    assert (set(state.adds), set(state.removes)) == (set(), {"a"})
    state = state.after(2, [add])
    assert (set(state.adds), set(state.removes)) == ({"a"}, set())


def test_the_files_of_a_version_are_of_one_directory() -> None:
    path = lake_path()
    fill(path, 30)
    publish(path)
    names = {one.key.removeprefix(DIRECTORY).partition("/")[0] for one in path.store.list(DIRECTORY)}
    assert {name for name in names if not name.startswith("partition-")} == {"_delta_log", "_worm.json"}


def test_a_file_that_another_version_of_arro3_wrote_is_published_with_its_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = lake_path()
    fill(path, 30)
    publish(path)
    monkeypatch.setattr("worm.tables.parquet._COMPRESSION", "uncompressed")
    path.table.rebuild()
    found = publish(path)
    assert found.added > 0
    assert (found.version, found.removed) == (1, 0)
    assert published(opened(path.store, tmp_path)) == current(path)


@pytest.mark.usefixtures("_deltas_stay")
def test_a_lost_tip_does_not_lose_the_revision_of_merged_files() -> None:
    path = lake_path()
    fill(path, 30)
    path.put("c001", {"name": "newer"})
    path.settle()
    publish(path)
    path.store.delete(TIP)
    path.put("c029", {"name": "newer"})
    path.settle()
    assert publish(path).revision == revision(path) == 32
