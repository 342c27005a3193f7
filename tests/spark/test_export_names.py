"""Exports of fields and places with awkward names, and an export that must not begin."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from spark_jobs.export import export
from tests.spark.source_room import FIELDS, SourceRoom
from worm.errors import Invalid
from worm.formats.strict_json import JsonObject
from worm.spark.export_frames import read_schema
from worm.spark.export_request import ExportRequest, refuse_overlap

OBJECTS = {name: {"type": "object"} for name in ("actor", "op", "valid_to", "meta")}


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> SourceRoom:
    """Objects that are called like the columns of a history, and texts that a spreadsheet would run."""
    made = SourceRoom(f"file://{tmp_path_factory.mktemp('names')}/bucket", fields={**FIELDS, **OBJECTS})
    document: JsonObject = {
        "name": "=x",
        "actor": {"n": 1},
        "op": {"n": 2},
        "valid_to": {"n": 3},
        "meta": {"color": "red", "size": {"w": 1}},
        "extra": {"k": 5},
        "address": {"city": "-1", "zip": "+2"},
    }
    made.things.save(made.things.create(document, id="a"), actor="ann")
    return made


def exported(room: SourceRoom, out: Path, **options: object) -> list[Path]:
    request = ExportRequest.of(room.spec, f"file://{out}", files=1, **options)  # type: ignore[arg-type]
    assert export(request) == 1
    return sorted(out.glob("**/part-*"))


@pytest.mark.usefixtures("spark")
def test_objects_called_like_columns_of_a_history_are_objects(room: SourceRoom, tmp_path: Path) -> None:
    (file,) = exported(
        room, tmp_path / "out", history=True, format="ndjson", select="actor,op,valid_to,meta,meta.color"
    )
    row = json.loads(file.read_text())

    assert (row["actor"], row["op"], row.get("valid_to")) == ("ann", "create", None)
    assert [row[f"document_{name}"] for name in ("actor", "op", "valid_to")] == [{"n": 1}, {"n": 2}, {"n": 3}]
    assert (row["meta"], row["meta.color"]) == ({"color": "red", "size": {"w": 1}}, "red")


@pytest.mark.usefixtures("spark")
def test_dotted_names_reach_into_objects_of_every_kind(room: SourceRoom, tmp_path: Path) -> None:
    select = "meta.color,meta.size,meta.size.w,meta.none,extra.k,address.zip,address.city"
    (file,) = exported(room, tmp_path / "out", format="csv", select=select, csv_raw=True)
    with file.open(newline="") as lines:
        (row,) = csv.DictReader(lines)

    assert list(row) == ["id", *select.split(",")]
    assert list(row.values()) == ["a", "red", '{"w":1}', "1", "", "5", "+2", "-1"]


@pytest.mark.usefixtures("spark")
def test_names_of_directories_have_no_apostrophe(room: SourceRoom, tmp_path: Path) -> None:
    select = "name,address.zip"
    (file,) = exported(room, tmp_path / "out", format="csv", select=select, partition_by="address.city")
    with file.open(newline="") as lines:
        (row,) = csv.DictReader(lines)

    assert file.parent.name == "address.city=-1"
    assert row == {"id": "a", "name": "'=x", "address.zip": "'+2"}


def test_only_what_is_declared_is_read_as_a_struct(room: SourceRoom) -> None:
    names = ["id", "address.city", "address.zip", "meta", "meta.color", "tags.x"]
    read = read_schema(room.spec.schema().model("Thing"), names, "documents")

    assert read.fieldNames() == ["id", "address", "address.zip", "meta", "meta.color", "tags.x"]


# Places

TOGETHER = [
    ("s3://bucket", "s3://bucket"),
    ("s3://bucket/", "s3a://bucket/exports"),
    ("s3://bucket/docs", "s3a://bucket/docs/"),
    ("s3://bucket/docs/", "S3N://bucket//docs/x"),
    ("s3://bucket/docs/v1", "s3://bucket/docs"),
    ("s3://bucket/docs/v1", "s3a://bucket"),
    ("s3://bucket/docs", "s3a://bucket/x/../docs"),
    ("file:///data/docs", "file:/data/docs/out"),
    ("file:///data/docs", "file://localhost/data"),
    ("file:///data/my%20docs", "file:///data/my docs"),
    ("file:///data/my%20docs", "/data/my%20docs/x"),
    ("/data/docs", "file:///data/docs"),
    ("/data/docs", "/data/x/../docs/out"),
    ("here", "here/out"),
    ("~/docs", f"file://{Path.home()}/docs"),
]
APART = [
    ("s3://bucket", "s3a://bucket2"),
    ("s3://bucket/docs", "s3://bucket/docs2"),
    ("s3://bucket/docs", "s3://bucket/out"),
    ("s3://data/docs", "file:///data/docs"),
    ("s3://data/docs", "/data/docs"),
    ("s3://data/docs", "hdfs://data/docs"),
    ("/data/docs", "/data/docs2"),
    ("here", "there"),
]


@pytest.mark.parametrize(("url", "out"), TOGETHER)
def test_an_export_does_not_lie_among_the_documents(url: str, out: str) -> None:
    with pytest.raises(Invalid, match="overlaps with the documents") as found:
        refuse_overlap(url, out)
    assert found.value.hint == "choose a place that neither contains --url nor is inside it"


@pytest.mark.parametrize(("url", "out"), APART)
def test_an_export_beside_the_documents_is_fine(url: str, out: str) -> None:
    refuse_overlap(url, out)


def test_a_link_to_the_documents_is_the_documents(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "docs")
    with pytest.raises(Invalid, match="overlaps"):
        refuse_overlap(f"file://{tmp_path}/docs", f"file://{tmp_path}/link")


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_request_is_refused_with_and_without_overwrite(room: SourceRoom, overwrite: bool) -> None:
    for out in (room.url, f"{room.url}/org", str(Path(room.url).parent).replace("file:/", "file:///")):
        with pytest.raises(Invalid, match="overlaps"):
            ExportRequest.of(room.spec, out, overwrite=overwrite)
    assert ExportRequest.of(room.spec, "lake.things", format="iceberg").out == "lake.things"
