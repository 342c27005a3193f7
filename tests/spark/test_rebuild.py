"""The rebuild job: the bytes of a rebuild in one process, whatever the form of the table and the keeping of history,
also beside live writers."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import worm
from spark_jobs.rebuild import main
from tests.emulators import new_bucket
from tests.harness import CUSTOMER
from tests.spark.collection_room import Room, customer_id
from worm.cli.program import run
from worm.collections.entries import Change, Head
from worm.collections.layout import SCHEMA_KEY
from worm.dev.aws import start_moto
from worm.formats import load_schema
from worm.spark.rebuild_job import rebuild
from worm.spark.verify_job import verify
from worm.store.open import open_store
from worm.tables.index import Index
from worm.tables.tasks.staging import StagedRow

pytestmark = pytest.mark.usefixtures("small_portions")
COUNT = 180
WHOLE, SPREAD = 10_000, 40
WITHOUT_CONFLICTS = {"byStatus": {"field": "status"}}


@pytest.mark.parametrize("oplog", [True, False], ids=["oplog", "plain"])
@pytest.mark.parametrize("threshold", [WHOLE, SPREAD], ids=["whole", "spread"])
def test_the_bytes_are_those_of_a_rebuild_in_one_process(
    spark: SparkSession, file_url: str, threshold: int, oplog: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worm.tables.index.POSTINGS_PER_PART", 60)
    monkeypatch.setattr("worm.tables.tasks.index_parts.KEYS_PER_BUCKET", 20)
    monkeypatch.setattr("worm.tables.tasks.index_parts.SAMPLES_PER_BUCKET", 4)
    room = Room(file_url, oplog=oplog, threshold=threshold)
    room.fill(COUNT)
    room.forget()
    report = rebuild(spark, room.spec)
    ours, claimed = room.derived(), room.claimed()
    assert (report.partitions > 1) is (threshold == SPREAD)
    assert report.conflicts > 0
    room.forget()
    room.rebuild_in_process()
    assert room.derived() == ours
    assert room.claimed() == claimed
    again = rebuild(spark, room.spec)
    assert room.derived() == ours, "a second run gives the same bytes"
    assert again.claims_changed == 0


def test_common_values_have_the_bytes_of_a_rebuild_in_one_process(
    spark: SparkSession, file_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worm.tables.index.POSTINGS_PER_PART", 20)
    room = Room(file_url, threshold=SPREAD)
    room.fill(COUNT)
    room.rebuild_in_process()
    for place in (
        "worm.tables.index",
        "worm.tables.tasks.index_parts",
        "worm.spark.rebuild_index",
        "worm.spark.verify_job",
    ):
        monkeypatch.setattr(f"{place}.COMMON_IDS", 30)
    for place in ("worm.tables.index", "worm.tables.tasks.index_parts"):
        monkeypatch.setattr(f"{place}.PART_POSTINGS_MAX", 60)
    told = verify(spark, room.spec).kinds.keys()
    assert told == {"index-differs", "unique-conflict"}, "that table lists the ids of all values"
    room.forget()
    rebuild(spark, room.spec)
    ours = room.derived()
    assert {field: index.common.keys() for field, index in _indexes(room).items()} == {
        "status": {f"s{number}" for number in range(5)},
        "tags": {f"ü:{number}" for number in range(3)},
        "email": set(),
    }
    room.forget()
    room.rebuild_in_process()
    assert room.derived() == ours
    assert verify(spark, room.spec).kinds.keys() == {"unique-conflict"}
    assert {one.kind for one in room.verify().differences} == {"unique-conflict"}


def _indexes(room: Room) -> dict[str, Index]:
    table = room.table
    root = table.manifest.root()
    assert root is not None
    found = {files.definition.field: files.joined(root) for files in table.indexes}
    return {field: index for field, index in found.items() if index is not None}


def test_rows_without_a_source_vanish_and_deltas_are_merged(spark: SparkSession, file_url: str) -> None:
    room = Room(file_url, threshold=SPREAD, indexes=WITHOUT_CONFLICTS)
    room.fill(COUNT)
    table = room.table
    phantom = Head(9, '"x"', None, live=True, ts="2099-01-01T00:00:00Z")
    table.fold([Change("phantom", phantom, {"name": "Nobody"})])
    assert not room.verify().is_clean
    rebuild(spark, room.spec)
    assert room.verify().differences == []
    root = room.table.manifest.root()
    assert root is not None
    assert root.is_spread
    assert root.deltas == ()


def test_deleted_ones_count_and_the_driver_reads_no_row_of_a_large_table(
    spark: SparkSession, file_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(self: object) -> Iterator[StagedRow]:
        raise AssertionError("the driver reads rows")

    monkeypatch.setattr("worm.tables.tasks.rebuild._Round._rows", refused)
    room = Room(file_url, threshold=22, indexes=WITHOUT_CONFLICTS)
    room.fill(24)
    room.forget()
    report = rebuild(spark, room.spec)
    assert (report.live, report.entities, report.partitions) == (22, 24, 2)
    assert room.verify().differences == []


@pytest.fixture(scope="module")
def quick_moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The moto of `worm dev`, which answers several times as quickly as moto's own server."""
    aws = start_moto(tmp_path_factory.mktemp("moto"), "us-east-1")
    yield aws.endpoint_url
    aws.stop()


@pytest.mark.parametrize("oplog", [True, False], ids=["oplog", "plain"])
def test_nothing_that_is_uploaded_meanwhile_is_lost(spark: SparkSession, quick_moto: str, oplog: bool) -> None:
    url = f"s3://{new_bucket(quick_moto, versioned=True)}"
    room = Room(url, endpoint_url=quick_moto, oplog=oplog, threshold=SPREAD, indexes=WITHOUT_CONFLICTS)
    room.fill(100)
    writer = Writer(room, 500)
    writer.start()
    runs = 0
    while writer.is_alive() or not runs:
        rebuild(spark, room.spec)
        runs += 1
    writer.join()
    assert writer.failure is None, writer.failure
    assert room.verify().differences == []
    rows = room.table.manifest.read()
    assert rows is not None
    assert {customer_id(number) for number in range(100, 300)} <= set(rows.entities)


class Writer(threading.Thread):
    """Uploads, one after the other, recorded and folded in small batches as workers do it."""

    def __init__(self, room: Room, uploads: int) -> None:
        super().__init__()
        self._room = room
        self._uploads = uploads
        self.failure: Exception | None = None

    def run(self) -> None:
        try:
            for start in range(0, self._uploads, 20):
                numbers = [100 + number % 200 for number in range(start, start + 20)]
                self._room.put(numbers, score=start)
                self._fold(numbers)
        except Exception as error:  # noqa: BLE001 - told by the test
            self.failure = error

    def _fold(self, numbers: Sequence[int]) -> None:
        table = self._room.workspace.table("Customer")
        if table.collection.definition.oplog:
            table.fold(reconciled(self._room, numbers))
        else:
            table.fold_documents(map(customer_id, numbers))


def reconciled(room: Room, numbers: Sequence[int]) -> list[Change]:
    table = room.workspace.table("Customer")
    outcomes = [table.collection.reconcile(customer_id(number), None, None) for number in numbers]
    assert [outcome.error for outcome in outcomes if outcome.error] == []
    return [outcome.change for outcome in outcomes if outcome.change is not None]


def test_a_bucket_without_schema_is_told(file_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--url", file_url, "--model", "Customer"]) == 3
    assert "worm push" in capsys.readouterr().err


def test_the_command_rebuilds_all_models(
    spark: SparkSession, file_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    room = Room(file_url, indexes=WITHOUT_CONFLICTS)
    room.fill(20)
    room.forget()
    assert main(["--url", file_url]) == 0
    assert capsys.readouterr().out.startswith("Customer: 18 rows of 20 entities in one file")
    assert room.verify().differences == []


def test_the_command_line_rebuilds_by_spark(
    spark: SparkSession, file_url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    room = Room(file_url, indexes=WITHOUT_CONFLICTS)
    room.fill(20)
    room.forget()
    monkeypatch.setattr("sys.argv", ["worm", "table", "rebuild", "Customer", "--spark", "--url", file_url])
    assert run() == 0
    assert "Customer: 18 rows of 20 entities in one file" in capsys.readouterr().out
    assert room.verify().differences == []


def test_a_machine_without_java_is_told(file_url: str, tmp_path: Path) -> None:
    room = Room(file_url)
    room.fill(1)
    command = [sys.executable, "-c", "from worm.cli.main import main; main()"]
    arguments = ["table", "rebuild", "Customer", "--spark", "--url", file_url]
    environment = {**os.environ, "JAVA_HOME": str(tmp_path)}
    ended = subprocess.run([*command, *arguments], env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 2, ended.stderr
    assert "Spark needs Java 17 or newer, but none was found" in ended.stderr


def test_damage_of_one_document_does_not_stop_its_model_or_the_others(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"file://{tmp_path}/bucket"
    store = open_store(url)
    models = {name: {**CUSTOMER, "path": f"#org/@{name.lower()}s/(id:string)"} for name in "AB"}
    schema = {"version": "1.0", "storage": {"layout": "root"}, "models": models}
    store.put(SCHEMA_KEY, load_schema(schema).to_json())
    session = worm.connect(url)
    for name in "AB":
        model = session.model(name)
        model.save(model.create({"name": "x"}, id="a"))
    store.put(".oplog/as/a/0001.json", b"{broken")
    store.delete("org/bs/.worm.manifest.json")
    assert main(["--url", url]) != 0
    assert ".oplog/as/a/0001.json" in capsys.readouterr().err
    assert store.get("org/bs/.worm.manifest.json") is not None
