"""The verify job finds what `worm verify` finds, says so in its reports, and repairs it."""

from __future__ import annotations

import io
import json
import os
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from spark_jobs.verify import main
from tests.emulators import CREDENTIALS, new_bucket
from tests.spark.collection_room import Room, customer_id, document
from tests.template.recorder import BUCKET
from tests.template.stack import Roles, Stack
from worm.collections.claim_slices import Found, Rows, audit_slice, slices_for
from worm.collections.collection import Collection
from worm.collections.entries import Change, Head
from worm.dev.aws import Aws
from worm.dev.iam import Call
from worm.errors import Invalid
from worm.spark.verify_job import verify
from worm.store.base import Store
from worm.store.open import open_store
from worm.version import DEFAULT_ROLE

pytestmark = pytest.mark.usefixtures("small_portions")
COUNT = 60
SPREAD = 20
INDEXES = {"byStatus": {"field": "status"}, "byName": {"field": "name", "unique": True}}
OF_TABLES = {"manifest-differs", "manifest-damaged", "heads-differ", "index-differs"}
"""Told once for each range or part of an index: how many there are depends on the plan."""


def _room(url: str, **options: object) -> Room:
    """Without conflicts of unique values."""
    room = Room(url, indexes=INDEXES, **options)  # type: ignore[arg-type]
    room.fill(COUNT)
    room.rebuild_in_process()
    assert room.verify().differences == []
    return room


# Damage


def _unrecorded(room: Room) -> None:
    """An upload, a new document and a deletion that no event reported, and a history that is lost."""
    room.put([1, COUNT], score=77)
    room.remove([2])
    room.store.delete(room.table.collection.oplog.key(customer_id(3), 1))


def _phantom(room: Room) -> None:
    """A row and a head of nothing."""
    head = Head(9, '"x"', None, live=True, ts="2099-01-01T00:00:00Z")
    room.table.fold([Change("phantom", head, {"name": "Nobody"})])


def _damage_claim(room: Room) -> None:
    claim = next(key for key, holder in room.claimed().items() if holder == customer_id(4))
    room.store.put(claim, b"{}")


def _damage_tables(room: Room) -> None:
    """A part of an index, and a partition of the manifest with all that the indexes have of it."""
    table = room.table
    root = table.manifest.root()
    assert root is not None
    assert root.is_spread
    room.store.put(table.indexes[0].pieces.key(root.indexes["status"].parts[0].file), b"{}")
    room.store.put(table.manifest.pieces.key(table.manifest.partitions(root)[-1].file), b"{}")


def _damage_history(room: Room) -> dict[str, bytes]:
    """The first of two entries is gone, another one cannot be read; returns what was there."""
    oplog = room.table.collection.oplog
    gone, changed = oplog.key(customer_id(9), 1), oplog.key(customer_id(5), 1)
    before = {key: found.body for key in (gone, changed) if (found := room.store.get(key)) is not None}
    room.store.delete(gone)
    room.store.put(changed, b"{}")
    return before


def _conflict(room: Room) -> None:
    room.store.put(room.key("twin"), json.dumps(document(6)).encode())
    room.sweep()


def _stale_claim(room: Room) -> None:
    """Older than any save takes: its holder has another value."""
    claim = next(key for key, holder in room.claimed().items() if holder == customer_id(7))
    found = room.store.get(claim)
    assert found is not None
    room.store.put(claim, found.body.replace(customer_id(7).encode(), customer_id(8).encode()))
    os.utime(Path(room.url.removeprefix("file://"), claim), (0, 0))


def _lose_trash(room: Room) -> None:
    trash = room.table.collection.trash
    room.store.put(trash.tombstone_key(customer_id(17)), b"{}")
    room.store.delete(trash.copy_key(customer_id(34)))


def _change_index(room: Room) -> None:
    """The index of a whole table says less than the table."""
    files = room.table.indexes[0]
    index = files.file.read()
    assert index is not None
    room.store.put(files.key, replace(index, entries={}).encode())


def _whole_index(room: Room) -> None:
    """The file of an index holds entries beside those of its parts: readers believe them."""
    files = room.table.indexes[1]
    stub = files.file.read()
    assert stub is not None
    assert stub.partitioned
    room.store.put(files.key, replace(stub, partitioned=False, entries={'"x"': ["nobody"]}).encode())


def _told(store: Store) -> dict[str, int]:
    """The kinds of `report.json`, which are those of the Parquet files."""
    report = store.get("report.json")
    assert report is not None
    (model,) = json.loads(report.body)["models"]
    files = [store.get(listed.key) for listed in store.list("differences/")]
    rows = [row for file in files if file for row in pq.read_table(io.BytesIO(file.body)).to_pylist()]
    assert Counter(row["kind"] for row in rows) == model["kinds"]
    assert {row["model"] for row in rows} <= {"Customer"}
    assert json.loads(report.body)["clean"] is not bool(rows)
    return dict(model["kinds"])


def test_what_differs_on_s3_is_counted_reported_and_repaired(
    spark: SparkSession, moto: str, capsys: pytest.CaptureFixture[str]
) -> None:
    bucket = new_bucket(moto, versioned=True)
    room = _room(f"s3://{bucket}/.data:v1", endpoint_url=moto, threshold=SPREAD)
    for damage in (_unrecorded, _phantom, _damage_claim, _damage_tables, _whole_index):
        damage(room)
    command = ["--url", room.url, "--endpoint-url", moto, "--model", "Customer", "--out", f"s3://{bucket}/report"]
    reports = open_store(f"s3://{bucket}/report", endpoint_url=moto)
    reports.put("differences/Customer-00099.parquet", b"of an earlier report")
    aws = Aws(moto, "us-east-1", CREDENTIALS, is_moto=True)
    aws.record([DEFAULT_ROLE])

    assert main(command) == 1
    kinds, printed = _told(reports), capsys.readouterr().out
    assert all(f"{count} {kind}" in printed for kind, count in kinds.items())
    assert {kind: 0 if kind in OF_TABLES else count for kind, count in kinds.items()} == {
        "version-unrecorded": 4,
        "document-unrecorded": 2,
        "replay-differs": 1,
        "deletion-unrecorded": 1,
        "claim-damaged": 1,
        "index-damaged": 1,
        **dict.fromkeys(OF_TABLES, 0),
    }
    code = main([*command, "--fix"])
    if set(_told(reports)) == {"claim-stale"}:  # on a slow machine, it was too young for the repair, but not afterward
        code = main([*command, "--fix"])
    assert code == 0
    calls = of_job(aws.calls(), f"{bucket}/.data:v1/")
    assert any("/.oplog/" in one.target and one.operation == "PUT" for one in calls)
    assert Roles(Stack(parameters={"SparkArtifactsBucket": "artifacts"})).refused(calls) == []
    assert _told(reports) == {}
    assert room.verify().differences == []


def of_job(calls: Iterable[Call], place: str) -> set[Call]:
    """The calls below a place of a bucket (the reports lie elsewhere), as the job would make them in a stack."""
    bucket, _, prefix = place.partition("/")
    found = set()
    for one in calls:
        listed = dict(one.query).get("prefix")
        if one.target.startswith(place):
            target = f"{BUCKET}/{one.target.removeprefix(place)}"
            found.add(replace(one, role="SparkJobRole", target=target))
        elif one.target.rstrip("/") == bucket and listed is not None and listed.startswith(prefix):
            found.add(replace(one, role="SparkJobRole", target=BUCKET))
    return found


def test_damage_of_the_source_is_left_and_told(
    spark: SparkSession, tmp_path: Path, file_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    room = _room(file_url, softDelete=True)
    before = _damage_history(room)
    for damage in (_conflict, _stale_claim, _lose_trash, _change_index):
        damage(room)
    command = ["--url", file_url, "--model", "Customer", "--out", f"file://{tmp_path}/report", "--fix"]
    reports = open_store(f"file://{tmp_path}/report")
    lasting = {"trash-damaged": 1, "trash-copy-missing": 1, "unique-conflict": 1}

    assert main(command) == 1
    assert _told(reports) == {**lasting, "oplog-gap": 1, "oplog-corrupt": 1}, "everything else is rebuilt"
    printed = capsys.readouterr().out
    assert "Customer: 0 oplog entries written" in printed
    damaged = [room.key(customer_id(number)) for number in (5, 9)]
    assert all(f"left as it is  {key}" in printed for key in (*damaged, room.key(customer_id(17))))
    rows = room.table.manifest.read()
    assert rows is not None
    assert {customer_id(5), customer_id(9)} == set(rows.etags) <= set(rows.entities), "their documents are served"
    assert room.verify().differences == [
        one for one in room.verify().differences if one.kind in {*lasting, "oplog-gap", "oplog-corrupt"}
    ]
    for key, body in before.items():
        room.store.put(key, body)
    assert main(command) == 1
    assert _told(reports) == lasting


def test_a_collection_without_oplog_is_clean_but_for_an_index_beside_its_parts(
    spark: SparkSession, file_url: str
) -> None:
    room = _room(file_url, threshold=SPREAD, oplog=False)
    room.store.put(room.key("bad"), b'{"name": 5}')
    room.workspace.table("Customer").fold_documents(["bad"])
    report = verify(spark, room.spec)
    assert report.is_clean, report.shown
    assert (report.documents, report.rejected) == (room.verify().documents, 1)
    _whole_index(room)
    assert (
        verify(spark, room.spec).kinds == {"index-differs": 1} == Counter(one.kind for one in room.verify().differences)
    )


def test_rows_of_large_deltas_are_compared_by_the_task_of_their_share(
    spark: SparkSession, file_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = _room(file_url, threshold=SPREAD)
    room.put(range(0, COUNT, 7), score=5)
    room.sweep()
    root = room.table.manifest.root()
    assert root is not None
    assert root.deltas
    monkeypatch.setattr("worm.spark.verify_job.DELTA_BYTES_MAX", 0)
    assert verify(spark, room.spec).kinds == {}
    _phantom(room)
    assert {"manifest-differs", "heads-differ"} <= set(verify(spark, room.spec).kinds)


def test_a_report_among_the_documents_is_refused(file_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Its files would be captured, and every reader would see them."""
    Room(file_url)
    for out in (file_url, f"{file_url}/orders", file_url.rpartition("/")[0]):
        assert main(["--url", file_url, "--out", out]) == Invalid.exit_code
        assert "overlaps with the documents" in capsys.readouterr().err


def test_lost_indexes_are_counted_also_without_a_manifest(spark: SparkSession, file_url: str) -> None:
    room = Room(file_url)
    room.fill(12)
    room.table.rebuild()
    for listed in list(room.store.list("org/customers/.worm.")):
        if listed.key.endswith((".worm.manifest.json", "/status.json")):
            room.store.delete(listed.key)
    found = verify(spark, room.spec).kinds
    assert (found["manifest-missing"], found["index-missing"]) == (1, 1)


@pytest.mark.parametrize("out", ["memory://report", "s3:/report"])
def test_a_place_that_cannot_take_a_report_is_refused_before_the_work(
    file_url: str, out: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each executor would write to its own memory, and the report would be lost."""

    def refused(name: str) -> SparkSession:
        raise AssertionError(f"{name} starts")

    monkeypatch.setattr("spark_jobs.verify.spark_session", refused)
    Room(file_url)
    assert main(["--url", file_url, "--out", out]) == Invalid.exit_code
    assert "s3://" in capsys.readouterr().err


@dataclass(frozen=True)
class CountedAudit:
    """The audit of claims; leaves a file for each slice that it looks at."""

    notes: str

    def __call__(self, collection: Collection, rows: Rows, number: int, slices: int) -> Iterator[Found]:
        with tempfile.NamedTemporaryFile(dir=self.notes, delete=False):
            return audit_slice(collection, rows, number, slices)


def test_a_missing_manifest_is_told_by_a_single_pass(
    spark: SparkSession, file_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the second pass for a report finds may differ from the counts: a claim becomes stale a minute after it was
    made."""
    room = Room(file_url, indexes=INDEXES)
    room.fill(20)
    room.store.delete(room.table.manifest.key)
    notes = tmp_path / "notes"
    notes.mkdir()
    monkeypatch.setattr("worm.collections.claim_slices.audit_slice", CountedAudit(str(notes)))
    assert verify(spark, room.spec, f"file://{tmp_path}/report").kinds == {"manifest-missing": 1}
    assert len(list(notes.iterdir())) == slices_for(20)


def test_claims_that_deletions_left_behind_are_in_slices_by_their_number(
    spark: SparkSession, file_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lifecycle rule deletes documents and leaves their claims. By the documents alone, two tasks would hold all."""
    room = _room(file_url)
    claims = len(room.claimed())
    room.remove(range(2, COUNT))
    room.sweep()
    notes = tmp_path / "notes"
    notes.mkdir()
    monkeypatch.setattr("worm.collections.claim_slices.audit_slice", CountedAudit(str(notes)))
    monkeypatch.setattr("worm.collections.claim_slices.CLAIMS_PER_SLICE", 5)
    assert set(verify(spark, room.spec).kinds) <= {"claim-stale"}
    assert len(list(notes.iterdir())) == -(-claims // 5) > 10
