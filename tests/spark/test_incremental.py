"""Incremental rebuilds: the content of a full one, for a fraction of its requests, with a listing or an inventory."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import pytest
from pyspark.sql import Row, SparkSession

from spark_jobs.rebuild import main
from tests.collections.inventory_room import Delivery
from tests.emulators import new_bucket
from tests.spark.collection_room import Room, customer_id
from worm.collections.entries import Change, Head
from worm.errors import Corrupt, Invalid
from worm.spark.inventory import open_inventory
from worm.spark.inventory_frames import InventoryTable
from worm.spark.rebuild_job import rebuild, rebuild_incrementally
from worm.spark.rebuild_tasks import run
from worm.store.base import Version
from worm.store.open import open_store

COUNT = 240
WHOLE, SPREAD = 10_000, 40
INDEXES = {"byStatus": {"field": "status"}}
CHANGED = 3
AT = datetime(2026, 2, 24, 1, 0, tzinfo=UTC)
LISTS = ("LIST", "VERSIONS")
T = TypeVar("T")
R = TypeVar("R")


def room_of(url: str, *, threshold: int = SPREAD, oplog: bool = True, endpoint_url: str | None = None) -> Room:
    room = Room(url, endpoint_url=endpoint_url, oplog=oplog, threshold=threshold, indexes=INDEXES)
    room.fill(COUNT)
    room.table.rebuild()
    return room


@pytest.mark.parametrize("threshold", [WHOLE, SPREAD], ids=["whole", "spread"])
@pytest.mark.parametrize("lost", ["", "email"], ids=["all", "one"])
def test_claims_come_back_with_a_lost_index(spark: SparkSession, file_url: str, threshold: int, lost: str) -> None:
    """Without them, only the index keeps somebody from taking a value that a document has."""
    room = Room(file_url, threshold=threshold)
    room.put(range(1, 60))
    room.sweep()
    rebuild(spark, room.spec)
    derived, claimed = room.derived(), room.claimed()
    assert claimed
    for listed in list(room.store.list(f"org/customers/.worm.index/{lost}")):
        room.store.delete(listed.key)
    report = rebuild_incrementally(spark, room.spec)
    assert (report.taken, report.claims_changed) == (report.entities, len(claimed))
    assert (room.derived(), room.claimed()) == (derived, claimed)
    assert f"{len(claimed)} claims changed" in report.summary()
    assert "claims" not in rebuild_incrementally(spark, room.spec).summary()


def change(room: Room, first: int = 3) -> None:
    """Three changes that are not in the table: of a document, a deleted one, and a new one."""
    room.put([first], score=7)
    room.remove([first + 1])
    room.put([COUNT + first])
    collection = room.table.collection
    for number in (first, first + 1, COUNT + first) if collection.definition.oplog else ():
        assert collection.reconcile(customer_id(number), None, None).error is None


def content(room: Room) -> tuple[bytes, bytes | None]:
    """The whole table, in whichever files it is."""
    table = room.table
    manifest, heads = table.manifest.read(), table.heads.read()
    assert manifest is not None
    return manifest.encode(), None if heads is None else heads.encode()


def versions_of(room: Room) -> list[Version]:
    return list(room.store.list_versions(""))


@pytest.mark.parametrize("oplog", [True, False], ids=["oplog", "plain"])
@pytest.mark.parametrize("threshold", [WHOLE, SPREAD], ids=["whole", "spread"])
def test_the_table_is_that_of_a_full_rebuild(
    spark: SparkSession, file_url: str, threshold: int, oplog: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = room_of(file_url, threshold=threshold, oplog=oplog)
    for first, is_sliced in ((3, False), (9, True)):
        monkeypatch.setattr("worm.tables.tasks.rebuild.SLICED_BYTES", 0 if is_sliced else 1 << 30)
        change(room, first)
        report = rebuild_incrementally(spark, room.spec)
        assert (report.changed, report.entities - (report.taken or 0)) == (CHANGED, CHANGED if oplog else CHANGED - 1)
    root = room.table.manifest.root()
    assert root is not None
    assert len(root.deltas) == (2 if threshold == SPREAD else 0), "a large table gets deltas"
    found, table = content(room), room.table
    table.tidy(force=True)
    table.heads.tidy(force=True)
    merged = room.derived()
    assert rebuild(spark, room.spec).taken is None
    assert content(room) == found
    assert {key: merged.get(key) for key in room.derived()} == room.derived(), "after a merge, the bytes are the same"


def test_an_unchanged_table_is_not_written(spark: SparkSession, file_url: str) -> None:
    room = room_of(file_url)
    before = room.derived()
    report = rebuild_incrementally(spark, room.spec)
    assert (report.taken, report.changed) == (report.entities, 0)
    assert room.derived() == before
    assert f"{report.entities} taken over, 0 read, 0 changed" in report.summary()
    lost = [*room.store.list("org/customers/.worm.index/status/part-0"), *room.store.list("org/customers/.worm.lake/")]
    for one in lost:
        room.store.delete(one.key)
    report = rebuild_incrementally(spark, room.spec)
    assert (report.taken, report.changed) == (report.entities, 0)
    assert len(lost) > 1
    assert room.derived().items() <= before.items()
    assert room.verify().is_clean, "files that a comparison does not read are written again"


def test_what_cannot_be_folded_is_rewritten_and_what_is_damaged_is_reported(
    spark: SparkSession, file_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = room_of(file_url)
    change(room)
    phantom = Head(9, '"x"', None, live=True, ts="2099-01-01T00:00:00Z")
    room.table.fold([Change("phantom", phantom, {"name": "Nobody"})])
    room.store.put(room.table.collection.oplog.key(customer_id(20), 2), b"{}")
    monkeypatch.setattr("worm.tables.tasks.rebuild.SLICED_BYTES", 0)
    report = rebuild_incrementally(spark, room.spec)
    assert report.changed == CHANGED + 2
    assert [entity_id for entity_id, _ in report.damaged] == [customer_id(20)]
    found = room.derived()
    rebuild(spark, room.spec)
    assert room.derived() == found


def test_a_damaged_table_is_rebuilt_in_full(spark: SparkSession, file_url: str) -> None:
    room = room_of(file_url)
    expected = content(room)
    (first, *_) = (one.key for one in room.store.list("org/customers/.worm.manifest/partition-"))
    room.store.put(first, b"{}")
    assert rebuild_incrementally(spark, room.spec).taken is None
    assert content(room) == expected


# Inventories


@pytest.mark.parametrize("oplog", [True, False], ids=["oplog", "plain"])
def test_an_inventory_saves_every_listing_and_loses_nothing(
    spark: SparkSession, moto: str, tmp_path: Path, oplog: bool
) -> None:
    """It is older than several folds and deletes, and lacks documents that were made after it."""
    bucket = new_bucket(moto)
    room = room_of(f"s3://{bucket}/team", oplog=oplog, endpoint_url=moto)
    versions = versions_of(room)
    parts = [versions[number::3] for number in range(3)]
    form = "CSV" if oplog else "Parquet"
    delivery = Delivery(open_store(tmp_path), form=form, prefix="team/", source=bucket, at=AT)
    inventory = open_inventory(f"file://{tmp_path}/{delivery.write(parts)}", room.url)
    for number in (30, 40, 60):  # folded after the inventory
        room.put([number], score=number)
        room.remove([number + 1])
        room.put([COUNT + number])
        room.sweep()
    before = content(room)
    lists = _lists(moto)
    report = rebuild_incrementally(spark, room.spec, inventory)
    # With an oplog, entities that changed since are listed, one by one; the collection is not. The plan looks at both
    # ends of the collection, to see whether the table is far behind; and files of the table are listed, to see whether
    # one of the manifest, of Parquet or of the index is gone.
    changed = [customer_id(number) for base in (30, 40, 60) for number in (base, base + 1, COUNT + base)]
    assert _lists(moto) - lists == 2 + 3 + (len(changed) if oplog else 0)
    assert report.entities - (report.taken or 0) == (len(changed) if oplog else len(changed) - 3)
    assert report.changed == 0
    assert content(room) == before
    assert rebuild(spark, room.spec).entities == report.entities
    assert content(room) == before


def test_the_job_reads_the_inventory_that_its_command_line_names(
    spark: SparkSession, file_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    room = room_of(file_url)
    change(room)
    destination = open_store(tmp_path / "destination")
    key = Delivery(destination, at=AT).write([versions_of(room)])
    url = f"{destination.url}/{key}"
    assert main(["--url", room.url, "--inventory", url]) == 0
    assert "3 read, 3 changed" in capsys.readouterr().out
    assert room.verify().is_clean
    assert main(["--url", room.url, "--full"]) == 0
    assert "claims changed" in capsys.readouterr().out
    data = f"{key.rpartition('/')[0].rpartition('/')[0]}/data/"
    (file,) = (one.key for one in destination.list(data))
    destination.put(file, b"")
    assert main(["--url", room.url, "--inventory", url]) == Corrupt.exit_code
    told = capsys.readouterr().err.splitlines()
    assert [line for line in told if line.startswith("rebuild: Customer: ")] == told
    assert len(told) == 1, "one line, and no traceback of Spark"
    assert file in told[0]
    assert main(["--url", room.url, "--inventory", f"{destination.url}/manifest.json"]) != 0
    assert "there is no manifest of an inventory" in capsys.readouterr().err


def test_an_inventory_table_of_s3_metadata_is_an_inventory(
    spark: SparkSession, file_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    room = room_of(file_url, oplog=False)
    change(room)
    rows = [
        Row(
            bucket="else",
            key=version.key,
            sequence_number=f"{number:04d}",
            version_id=version.version_id,
            is_delete_marker=False,
            size=version.size,
            last_modified_date=version.last_modified.strftime("%Y-%m-%d %H:%M:%S"),
            e_tag=version.etag.strip('"') if number else "older",
        )
        for version in versions_of(room)
        for number in (0, 1)
    ]
    frame = spark.createDataFrame(rows, schema=TABLE)
    frame = frame.withColumn("last_modified_date", frame["last_modified_date"].cast("timestamp_ntz"))
    frame.createOrReplaceTempView("live_inventory")
    report = rebuild_incrementally(spark, room.spec, InventoryTable("live_inventory"))
    assert (report.entities - (report.taken or 0), report.changed) == (CHANGED - 1, CHANGED)
    expected = content(room)
    rebuild(spark, room.spec)
    assert content(room) == expected
    frame.drop("e_tag").createOrReplaceTempView("live_inventory")
    with pytest.raises(Invalid, match="lacks the columns e_tag"):
        rebuild_incrementally(spark, room.spec, InventoryTable("live_inventory"))
    frame.withColumn("record_type", frame["key"]).createOrReplaceTempView("live_inventory")
    with pytest.raises(Invalid, match="is a journal"):
        rebuild_incrementally(spark, room.spec, InventoryTable("live_inventory"))
    for wrong in ("live_inventery", "no.such.catalog.inventory", "live-inventory"):
        assert main(["--url", room.url, "--inventory-table", wrong]) == Invalid.exit_code
        (told,) = capsys.readouterr().err.splitlines()
        assert told.startswith(f"rebuild: Customer: inventory-table: Spark cannot open the table {wrong}: [")


TABLE = (
    "bucket string, key string, sequence_number string, version_id string, is_delete_marker boolean, size bigint, "
    "last_modified_date string, e_tag string"
)


def _lists(url: str) -> int:
    with urllib.request.urlopen(f"{url}/_worm/requests", timeout=30) as response:
        counted = json.loads(response.read())
    return sum(by_kind.get(kind, 0) for by_kind in counted.values() for kind in LISTS)


# Beside folds


def while_folding(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> list[str]:
    """Act once, when the deltas of the job are written, but not yet in the table."""
    acted: list[str] = []

    def meanwhile(spark: SparkSession, work: Callable[[T], R], items: Sequence[T], about: str) -> list[R]:
        done = run(spark, work, items, about)
        if about.endswith(": fold") and not acted:
            acted.append(about)
            act()
        return done

    monkeypatch.setattr("worm.spark.rebuild_job.run", meanwhile)
    return acted


@pytest.mark.parametrize("merges", [False, True], ids=["folded", "merged"])
@pytest.mark.parametrize("oplog", [True, False], ids=["oplog", "plain"])
def test_what_others_fold_while_the_job_runs_stays(
    spark: SparkSession, file_url: str, oplog: bool, merges: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They fold a document that the job has read, and one that it has not."""
    room = room_of(file_url, oplog=oplog)
    change(room)

    def fold() -> None:
        room.put([3, 8], score=99)
        room.sweep()
        if merges:
            room.table.tidy(force=True)

    acted = while_folding(monkeypatch, fold)
    rebuild_incrementally(spark, room.spec)
    assert acted
    manifest = room.table.manifest.read()
    assert manifest is not None
    assert [manifest.entities[customer_id(number)]["score"] for number in (3, 8)] == [99, 99]
    expected = content(room)
    rebuild(spark, room.spec)
    assert content(room) == expected


def test_a_table_that_is_removed_while_the_job_runs_is_rebuilt(
    spark: SparkSession, file_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = room_of(file_url)
    change(room)
    acted = while_folding(monkeypatch, lambda: room.store.delete(room.table.manifest.key))
    assert rebuild_incrementally(spark, room.spec).taken is None
    assert acted
    assert room.verify().is_clean
