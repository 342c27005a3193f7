"""The sweep job: what the function `sweep` finds, in tasks, from a listing or from an inventory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import cast

import pytest
from pyspark.errors import SparkRuntimeException
from pyspark.sql import SparkSession

from spark_jobs.sweep import main
from tests.collections.inventory_room import ALL_COLUMNS, CURRENT_COLUMNS, Delivery
from tests.emulators import new_bucket, s3_client
from tests.spark.collection_room import Room, customer_id
from tests.tagging import of_each_kind
from worm.clock import SystemClock
from worm.collections.collection import EntityOutcome
from worm.collections.id_ranges import IdRange
from worm.errors import Invalid
from worm.spark.cluster import JobSpec, job_specs
from worm.spark.rebuild_job import rebuild
from worm.spark.sweep_job import SweepJobReport, _sweep_shown, inventory_at, sweep
from worm.store.base import Version
from worm.store.open import open_store
from worm.upkeep.session import Session
from worm.upkeep.sweep_cursor import SweepCursor
from worm.upkeep.sweep_tasks import Row, SweptRange, TaskSweep

COUNT, SPREAD = 40, 20
PLAIN = {"byStatus": {"field": "status"}}


def lose_events(room: Room) -> int:
    """Changed, deleted and new documents of which nobody has heard. Returns their number."""
    room.put([1, 2, 3], score=9)
    room.remove([5, 7])
    room.put(range(COUNT, COUNT + 4))
    return 9


def inventory_of(room: Room, bucket: str, *, columns: Sequence[str] = ALL_COLUMNS) -> str:
    """An inventory in several files, with all versions of one key spread over them. Returns its folder."""
    at = SystemClock().now()
    delivery = Delivery(
        open_store(f"s3://{bucket}", endpoint_url=room.endpoint_url),
        prefix="team/",
        source=bucket,
        at=at,
        configuration=f"inventories/{bucket}/daily",
        columns=columns,
    )
    versions = list(room.store.list_versions(""))
    delivery.write([versions[::2], versions[1::2]])
    return f"s3://{bucket}/inventories/{bucket}/daily/"


@pytest.mark.slow
def test_lost_events_are_found_and_folded_and_every_derived_file_has_its_tag(
    spark: SparkSession, moto: str, capsys: pytest.CaptureFixture[str]
) -> None:
    bucket = new_bucket(moto, versioned=True)
    room = Room(f"s3://{bucket}/team", endpoint_url=moto, threshold=SPREAD)
    room.fill(COUNT)
    rebuild(spark, room.spec)
    assert lose_events(room) == 9
    command = ["--url", room.url, "--endpoint-url", moto]
    assert main(command) == 0
    said = capsys.readouterr().out
    assert "9 checked, 9 oplog entries written, 9 changes folded, 0 not recorded" in said
    assert {one.kind for one in room.verify().differences} <= {"claim-missing"}, "a rebuild restores claims"
    assert main(command) == 0
    assert "0 checked, 0 oplog entries written, 0 changes folded" in capsys.readouterr().out
    tagged, untagged = of_each_kind(s3_client(moto), bucket, "team/", room.spec.schema())
    assert tagged == {"manifest", "lake", "index", "heads", "sentinel", "sweep"}
    assert SweepCursor.read(room.table.collection).by_spark
    assert untagged >= {"document", "oplog", "claim", "schema", "change_set"}


@pytest.mark.slow
@pytest.mark.parametrize("oplog", [True, False], ids=["oplog", "plain"])
def test_an_inventory_takes_the_place_of_listings(spark: SparkSession, moto: str, oplog: bool) -> None:
    bucket = new_bucket(moto, versioned=True)
    room = Room(f"s3://{bucket}/team", endpoint_url=moto, oplog=oplog, threshold=SPREAD, indexes=PLAIN)
    room.fill(COUNT)
    lose_events(room)
    folder = inventory_of(room, bucket)
    room.put([20, 21], score=4)  # after the inventory: the next one shows them
    report = sweep(spark, room.spec, inventory_at(folder, room.url, moto))
    assert report.problems == 0
    if oplog:
        assert (report.reconciled, report.recorded) == (9, 9)
    found = room.table.manifest.read()
    assert found is not None
    assert found.entities[customer_id(COUNT)]["status"] == f"s{COUNT % 5}"
    assert customer_id(5) not in found.entities
    room.sweep()
    assert room.verify().differences == []


def test_an_inventory_or_a_table_that_cannot_be_used_is_an_error(
    spark: SparkSession, moto: str, capsys: pytest.CaptureFixture[str]
) -> None:
    bucket = new_bucket(moto, versioned=True)
    room = Room(f"s3://{bucket}/team", endpoint_url=moto, indexes=PLAIN)
    room.put(range(3))
    command = ["--url", room.url, "--endpoint-url", moto]
    assert main(command) != 0
    assert "run the Spark job `rebuild` first" in capsys.readouterr().err
    room.sweep()
    assert main([*command, "--inventory", f"s3://{bucket}/nowhere/"]) != 0
    assert "there is no inventory" in capsys.readouterr().err
    assert main([*command, "--inventory", ""]) != 0, "an empty variable must not list a billion documents"
    assert "not a URL" in capsys.readouterr().err
    assert main([*command, "--inventory", inventory_of(room, bucket, columns=CURRENT_COLUMNS)]) != 0
    assert "all versions" in capsys.readouterr().err
    assert main([*command, "--documents-min", "3", "--inventory", f"s3://{bucket}/nowhere/"]) == 0, "no model is larger"


def swept(spec: JobSpec, within: IdRange, shown: tuple[list[Row], str] | None = None) -> SweptRange:
    return SweptRange.of(Session(spec.store(), schema=spec.schema()), spec.model, within, shown)


def shown_of(room: Room, *, days: float) -> tuple[list[Row], str]:
    """What an inventory shows now; heads are old enough to be in it after so many days."""
    rows = list[tuple[str, Version]]()
    collection = room.table.collection
    for entity_id, version, _ in collection.newest_versions():
        rows.append((entity_id, version))
    horizon = SystemClock().now() + timedelta(days=days)
    return sorted(rows), f"{horizon:%Y-%m-%dT%H:%M:%SZ}"


def test_a_range_of_which_an_inventory_shows_too_much_is_listed(moto: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an import behind the last id that the table knows, the rows of one range did not fit into a task."""
    monkeypatch.setattr("worm.collections.division.IDS_OF_A_TASK_MAX", 4)
    bucket = new_bucket(moto, versioned=True)
    room = Room(f"s3://{bucket}", endpoint_url=moto, threshold=SPREAD, indexes=PLAIN)
    room.put(range(3))
    room.sweep()
    room.put(range(3, 9))
    rows, horizon = shown_of(room, days=1)
    left = iter(rows)
    found = _sweep_shown(room.spec, horizon, IdRange(), left)
    assert (found.listed, found.recorded) == (9, 6)
    assert len(list(left)) == 4, "of which the task has not held all"


def test_a_head_that_is_newer_than_the_inventory_is_not_doubted_and_an_old_one_is(moto: str) -> None:
    bucket = new_bucket(moto, versioned=True)
    room = Room(f"s3://{bucket}", endpoint_url=moto, threshold=SPREAD, indexes=PLAIN)
    room.put(range(12))
    room.sweep()
    recent, old = shown_of(room, days=-2), shown_of(room, days=1)
    SystemClock().sleep(1.1)  # versions have whole seconds, and one of the same second may be newer
    room.put(range(12, 15))
    room.remove([0])
    room.sweep()
    (spec,) = job_specs(room.url, moto)
    everything = IdRange()
    assert swept(spec, everything, recent).reconciled == 0, "it was changed after the inventory"
    doubted = swept(spec, everything, old)
    assert (doubted.reconciled, doubted.recorded) == (4, 0), "three are not in it, and one has another head"
    assert doubted.change_sets == []


def test_a_version_in_an_inventory_that_is_newer_than_a_recent_head_is_recorded(moto: str) -> None:
    bucket = new_bucket(moto, versioned=True)
    room = Room(f"s3://{bucket}", endpoint_url=moto, threshold=SPREAD, indexes=PLAIN)
    room.put(range(3))
    room.sweep()
    room.put([1], score=1)
    found = swept(room.spec, IdRange(), shown_of(room, days=-2))
    assert (found.reconciled, found.recorded) == (1, 1)


def test_a_model_that_cannot_be_swept_does_not_stop_the_others(
    moto: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = new_bucket(moto, versioned=True)
    spec = Room(f"s3://{bucket}", endpoint_url=moto).spec
    specs = [replace(spec, model=name) for name in ("A", "B", "C")]
    failures = {"A": Invalid("its table is missing"), "B": SparkRuntimeException("a task died")}

    def swept_by_job(spark: object, spec: JobSpec, inventory: object) -> SweepJobReport:
        if spec.model in failures:
            raise failures[spec.model]
        return SweepJobReport(spec.model, listed=7)

    monkeypatch.setattr("spark_jobs.sweep.specs_of", lambda parsed: specs)
    monkeypatch.setattr("spark_jobs.sweep.spark_session", lambda name: None)
    monkeypatch.setattr("spark_jobs.sweep.sweep", swept_by_job)
    assert main(["--url", "s3://b"]) == Invalid.exit_code
    said = capsys.readouterr()
    assert "C: 7 listed" in said.out
    assert "A: its table is missing" in said.err
    assert "B: a task failed: a task died" in said.err


def test_a_document_that_a_task_may_not_delete_is_left_to_the_function(
    moto: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its cursor once kept the function away for as long as Spark swept the model."""
    bucket = new_bucket(moto, versioned=True)
    room = Room(f"s3://{bucket}", endpoint_url=moto, indexes=PLAIN)
    room.put(range(3))
    room.sweep()
    room.put([1], score=1)
    late = EntityOutcome(is_late=True)
    with monkeypatch.context() as patched:
        patched.setattr("worm.collections.collection.Collection.reconcile", lambda *_, **__: late)
        found = swept(room.spec, IdRange())
    assert (found.late, found.problems, found.change_sets) == (1, 0, [])
    room.put([2], score=1)
    monkeypatch.setattr("worm.spark.sweep_job._ranges", lambda *_: [])
    monkeypatch.setattr("worm.spark.sweep_job._swept", lambda *_: [found])
    nothing = cast("SparkSession", None)
    assert sweep(nothing, room.spec).summary().endswith("1 left to the function")
    assert SweepCursor.read(room.table.collection).is_due(SystemClock().now(), 86_400.0)
    going_on = SweepCursor("m", 5_000, "2026-02-24T01:00:00Z")
    going_on.save(room.table.collection)
    sweep(nothing, room.spec)
    assert SweepCursor.read(room.table.collection) == going_on, (
        "if it began again each day, it would not reach the document"
    )
    found.late = 0
    sweep(nothing, room.spec)
    assert not SweepCursor.read(room.table.collection).is_due(SystemClock().now(), 86_400.0)


@pytest.mark.parametrize(("days", "is_left_to_spark"), [(1, True), (30, False)])
def test_an_inventory_of_long_ago_does_not_keep_the_function_away(
    moto: str, days: int, is_left_to_spark: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If S3 delivers no more inventories, a job that reads the last one every day finds nothing, and says so every
    day."""
    bucket = new_bucket(moto, versioned=True)
    room = Room(f"s3://{bucket}", endpoint_url=moto, indexes=PLAIN)
    room.put(range(3))
    room.sweep()
    found = inventory_at(inventory_of(room, bucket), room.url, moto)
    monkeypatch.setattr("worm.spark.sweep_job._ranges", lambda *_: [])
    monkeypatch.setattr("worm.spark.sweep_job._swept", lambda *_: [])
    now = SystemClock().now()
    sweep(cast("SparkSession", None), room.spec, replace(found, created=now - timedelta(days=days)))
    assert SweepCursor.read(room.table.collection).is_due(now, 86_400.0) is not is_left_to_spark


def test_a_task_of_a_model_without_history_writes_change_sets_of_a_chunk_each(
    moto: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who folds a change set reads all its documents."""
    monkeypatch.setattr("worm.upkeep.sweep_pass.DOCUMENTS_CHUNK", 3)
    bucket = new_bucket(moto, versioned=True)
    room = Room(f"s3://{bucket}", endpoint_url=moto, oplog=False, indexes=PLAIN)
    room.put(range(2))
    room.sweep()
    room.put(range(2, 10))
    assert len(swept(room.spec, IdRange()).change_sets) == 3


@pytest.mark.parametrize("days", [None, -2, 1], ids=["listed", "recent-inventory", "old-inventory"])
@pytest.mark.parametrize("oplog", [True, False], ids=["oplog", "plain"])
def test_what_a_killed_job_recorded_is_found_again_and_folded(moto: str, oplog: bool, days: float | None) -> None:
    """It is killed after its tasks, and nobody else folds their change sets."""
    bucket = new_bucket(moto, versioned=True)
    room = Room(f"s3://{bucket}", endpoint_url=moto, oplog=oplog, threshold=SPREAD, indexes=PLAIN)
    room.put(range(4))
    room.sweep()
    room.put([1, 4], score=1)
    room.remove([2])
    shown = None if days is None else shown_of(room, days=days)
    killed = swept(room.spec, IdRange(), shown)
    for key in killed.change_sets:
        room.store.delete(key)
    again = swept(room.spec, IdRange(), shown)
    assert (killed.recorded, again.recorded) == (3 if oplog else 0, 0)
    tasks = TaskSweep(room.table.collection)
    assert sum(tasks.fold(key) for key in again.change_sets) == 3
    assert room.verify().differences == []


def test_a_task_keeps_to_its_range(moto: str) -> None:
    bucket = new_bucket(moto, versioned=True)
    room = Room(f"s3://{bucket}", endpoint_url=moto, threshold=SPREAD, indexes=PLAIN)
    room.put(range(8))
    room.sweep()
    room.put(range(8), score=1)
    (spec,) = job_specs(room.url, moto)
    ids = sorted(customer_id(number) for number in range(8))
    found = [swept(spec, within) for within in (IdRange("", ids[3]), IdRange(ids[3], ids[6]), IdRange(ids[6]))]
    assert [one.recorded for one in found] == [3, 3, 2]
    assert [one.listed for one in found] == [3, 3, 2]
    assert all(len(one.change_sets) == 1 for one in found)
