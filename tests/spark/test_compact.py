"""The compact_oplog job: the same archives as the library makes, over ranges of ids, and nothing without being told."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from spark_jobs.compact_oplog import CompactTask, compact, main
from tests.harness import schema_of
from worm.clock import Ids, VirtualClock
from worm.collections.collection import Collection
from worm.collections.id_ranges import IdRange
from worm.collections.layout import SCHEMA_KEY
from worm.errors import Invalid
from worm.formats import load_schema
from worm.sdk.database import Worm
from worm.spark.cluster import job_spec
from worm.store.file import FileStore
from worm.tables.verify import verify_collection

pytestmark = pytest.mark.usefixtures("small_portions")
LENGTH = 12
IDS = ["c.1", "c-2", "d3", "E_4", "f"]
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
WINDOW = timedelta(days=90)


@pytest.fixture
def bucket(tmp_path: Path) -> str:
    """Five entities with a long history, and one whose history is too short to be archived; all long ago."""
    clock = VirtualClock(LONG_AGO)
    ids = Ids.seeded(3, clock)
    store = FileStore(tmp_path / "bucket", clock=clock, ids=ids, durability="process")
    schema = load_schema(schema_of(snapshots={"enabled": False, "every": 3}, archiveAfter="7d"))
    store.put(SCHEMA_KEY, schema.to_json())
    customers = Worm(store, schema, probe=False, clock=clock, ids=ids).model("Customer")
    for entity_id in [*IDS, "short"]:
        document = customers.create({"name": entity_id}, id=entity_id)
        for score in range(LENGTH if entity_id in IDS else 3):
            clock.advance(1)
            document = customers.save(document | {"score": score})
    return f"file://{tmp_path}/bucket"


def collection_at(url: str) -> Collection:
    return job_spec(url, "Customer").collection()


def histories(url: str) -> dict[str, list[bytes]]:
    oplog = collection_at(url).oplog
    return {entity_id: [entry.to_bytes() for entry in oplog.entries(entity_id)] for entity_id in [*IDS, "short"]}


def keys(url: str) -> list[str]:
    return sorted(listed.key for listed in collection_at(url).store.list(""))


def test_the_job_packs_all_ranges_and_the_history_stays(spark: SparkSession, bucket: str) -> None:
    before, objects = histories(bucket), keys(bucket)
    spec, now = job_spec(bucket, "Customer"), datetime.now(UTC)
    spark.sparkContext.setJobGroup("compact", "all ranges at the same time")
    foretold = compact(spark, spec, now=now, older_than=WINDOW, dry_run=True)
    assert len(spark.sparkContext.statusTracker().getJobIdsForGroup("compact")) == 1, "a job for each range is serial"
    assert keys(bucket) == objects
    report = compact(spark, spec, now=now, older_than=WINDOW, dry_run=False)
    assert report.summary() == foretold.summary()
    assert (report.entities, report.cold, report.compacted, report.archives) == (6, 5, 5, 5)
    assert report.problems == {}
    assert len(keys(bucket)) == len(objects) - report.removed + 2 * report.archives
    assert histories(bucket) == before
    assert verify_collection(collection_at(bucket)).differences == []
    again = compact(spark, spec, now=now, older_than=WINDOW, dry_run=False)
    assert (again.removed, again.archives, again.cold) == (0, 0, 5)


def test_a_task_that_runs_twice_or_beside_itself_does_the_work_of_one(bucket: str) -> None:
    before = histories(bucket)
    spec = job_spec(bucket, "Customer")
    task = CompactTask(spec, datetime.now(UTC).isoformat(), WINDOW, dry_run=False)
    ranges = [IdRange("", "d"), IdRange("d", None)]
    first = [task(within).removed for within in ranges]
    assert all(first)
    assert [task(within).removed for within in reversed(ranges)] == [0, 0]
    assert histories(bucket) == before


def test_what_a_task_leaves_of_its_range_is_compacted_in_the_next_round(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an import that no table knows of, one range has most of the ids."""
    before, rounds = histories(bucket), list[int]()

    def run(spark: object, work: Callable[[IdRange], object], ranges: Sequence[IdRange], about: str) -> list[object]:
        rounds.append(len(ranges))
        return [work(one) for one in ranges]

    monkeypatch.setattr("worm.spark.rebuild_tasks.run", run)
    monkeypatch.setattr("spark_jobs.compact_oplog.planned_ranges", lambda spark, spec: [IdRange()])
    monkeypatch.setattr("worm.collections.walks.IdWalk.PART_IDS", 1)
    monkeypatch.setattr("worm.collections.walks.IdWalk.TASK_IDS_MAX", 2)
    spec, now = job_spec(bucket, "Customer"), datetime.now(UTC)
    report = compact(cast(Any, None), spec, now=now, older_than=WINDOW, dry_run=False)
    assert (report.entities, report.cold, report.compacted, report.archives) == (6, 5, 5, 5)
    assert len(rounds) > 1
    assert histories(bucket) == before


def test_the_command_changes_nothing_unless_told_and_says_what_it_did(
    spark: SparkSession, bucket: str, capsys: pytest.CaptureFixture[str]
) -> None:
    objects = keys(bucket)
    assert main(["--url", bucket]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["dry_run"], told["model"], told["archives"]) == (True, "Customer", 5)
    assert keys(bucket) == objects
    assert main(["--url", bucket, "--model", "Customer", "--older-than", "1w", "--no-dry-run"]) == 0
    done = json.loads(capsys.readouterr().out)
    assert {**done, "dry_run": True} == told
    assert done["objects_removed"] == len(objects) - len(keys(bucket)) + 10


def test_what_is_young_stays_and_a_short_window_is_refused(
    spark: SparkSession, bucket: str, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = job_spec(bucket, "Customer")
    young = compact(spark, spec, now=LONG_AGO + timedelta(days=89), older_than=WINDOW, dry_run=False)
    assert (young.entities, young.cold, young.removed) == (6, 0, 0)
    assert main(["--url", bucket, "--older-than", "6d", "--no-dry-run"]) == 2
    assert "keep single entries for 7d" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["--url", bucket, "--older-than", "soon"])
    assert not any("/.archive/" in key for key in keys(bucket))


@pytest.mark.parametrize("said", [None, "never"])
def test_a_model_that_does_not_ask_for_archives_gets_none(
    spark: SparkSession, bucket: str, capsys: pytest.CaptureFixture[str], said: str | None
) -> None:
    store = collection_at(bucket).store
    asked: dict[str, object] = {} if said is None else {"archiveAfter": said}
    store.put(
        SCHEMA_KEY, load_schema(schema_of(storage=None, snapshots={"enabled": False, "every": 3}, **asked)).to_json()
    )
    assert main(["--url", bucket, "--no-dry-run"]) == 0
    assert capsys.readouterr().out == ""
    with pytest.raises(Invalid, match="no `archiveAfter`"):
        compact(spark, job_spec(bucket, "Customer"), now=datetime.now(UTC), older_than=WINDOW, dry_run=True)
    assert not any("/.archive/" in key for key in keys(bucket))


def test_a_damaged_entry_is_a_problem_the_others_are_done_and_the_exit_code_tells(
    spark: SparkSession, bucket: str, capsys: pytest.CaptureFixture[str]
) -> None:
    collection = collection_at(bucket)
    key = collection.oplog.key("d3", 4)
    entry = collection.oplog.read("d3", 4)
    assert entry is not None
    collection.store.put(key, replace(entry, seq=5).to_bytes())
    assert main(["--url", bucket, "--no-dry-run"]) == 1
    done = json.loads(capsys.readouterr().out)
    assert done["compacted"] == 4
    assert key in done["problems"]["d3"]
    assert not any("/d3/.archive/" in one for one in keys(bucket))
