"""Exports, read back: what is in the files is what the SDK says, in every format."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pyarrow.parquet as parquet
import pytest
from pyspark.sql import SparkSession

from spark_jobs.export import export, main
from tests.spark.source_room import SourceRoom, moment
from worm.api import csv_rows
from worm.errors import Conflict, Invalid
from worm.formats.strict_json import JsonObject
from worm.spark.export_frames import columns_of, read_schema
from worm.spark.export_request import ExportRequest
from worm.spark.export_writing import FORMULA

TRAPS = ["=1+1", "+1", "-1", "@x", "\tx", "'=x", "''+", "\uff1dx", "plain", "1=1", " =x", "", "'quoted'", 'a "b", c\nd']
DOCUMENTS: dict[str, JsonObject] = {
    "a": {
        "name": "=cmd()",
        "count": 1,
        "since": "2026-01-02T03:04:05.678Z",
        "tags": ["x", "y"],
        "address": {"city": "Bonn"},
        "anything": {"k": [1, {"z": None}]},
    },
    "b.x": {"name": 'say "hi", then\nleave ', "count": 2, "score": 0.5, "active": True, "address": {"city": "Köln"}},
    "c": {"name": "plain", "count": 3, "active": False},
}


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> SourceRoom:
    made = SourceRoom(f"file://{tmp_path_factory.mktemp('room')}/bucket")
    for one, document in DOCUMENTS.items():
        made.things.save(made.things.create(document, id=one), actor="user:ann")
    made.things.patch("c", {"count": 4}, actor="user:bob")
    made.things.save(made.things.create({"name": "gone"}, id="d"))
    made.things.delete("d")
    return made


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def exported(room: SourceRoom, out: Path, **options: object) -> list[Path]:
    request = ExportRequest.of(room.spec, f"file://{out}", files=1, **options)  # type: ignore[arg-type]
    assert export(request) >= 0
    return sorted(out.glob("**/part-*"))


def expected_rows(room: SourceRoom) -> list[JsonObject]:
    return sorted(room.things.find_all(), key=lambda row: str(row["id"]))


@pytest.mark.usefixtures("spark")
def test_parquet_is_the_default(room: SourceRoom, out: Path) -> None:
    (file,) = exported(room, out)
    table = parquet.read_table(file).sort_by("id")

    assert table.column_names[:3] == ["id", "name", "count"]
    assert table["id"].to_pylist() == ["a", "b.x", "c"]
    assert table["count"].to_pylist() == [1, 2, 4]
    assert table["since"].to_pylist()[0] == moment("2026-01-02T03:04:05.678Z")
    assert table["anything"].to_pylist()[0] == '{"k":[1,{"z":null}]}'
    assert table["address"].to_pylist()[1] == {"city": "Köln", "floor": None}


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("format", ["ndjson", "json"])
def test_json_holds_the_documents(room: SourceRoom, out: Path, format: str) -> None:
    (file,) = exported(room, out, format=format)
    text = file.read_text()
    rows = json.loads(text) if format == "json" else [json.loads(line) for line in text.splitlines()]

    found = sorted(rows, key=lambda row: str(row["id"]))
    for row, document in zip(found, expected_rows(room), strict=True):
        for name in ("createdAt", "updatedAt", "since"):
            assert moment(row.pop(name, None) or "2026-01-01") == moment(document.pop(name, None) or "2026-01-01")
        assert row == {name: value for name, value in document.items() if value is not None}


@pytest.mark.usefixtures("spark")
def test_json_of_nothing_is_an_empty_list(room: SourceRoom, out: Path) -> None:
    files = exported(room, out, format="json", where='{"name": "nobody"}')

    assert [json.loads(file.read_text()) for file in files] == [[]]


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("raw", [False, True])
def test_csv_keeps_texts_and_runs_no_formula(room: SourceRoom, out: Path, raw: bool) -> None:
    (file,) = exported(room, out, format="csv", csv_raw=raw, select="name,count,tags,since,address.city")
    with file.open(newline="") as lines:
        rows = {row["id"]: row for row in csv.DictReader(lines)}

    assert list(rows["a"]) == ["id", "name", "count", "tags", "since", "address.city"]
    assert rows["a"]["name"] == ("=cmd()" if raw else "'=cmd()")
    assert rows["b.x"]["name"] == DOCUMENTS["b.x"]["name"]
    assert (rows["a"]["tags"], rows["c"]["tags"], rows["a"]["address.city"]) == ('["x","y"]', "", "Bonn")
    assert moment(rows["a"]["since"]) == moment("2026-01-02T03:04:05.678Z")


def test_the_rule_for_formulas_is_that_of_the_command(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(one,) for one in TRAPS], "text string")
    found = [row[0] for row in frame.selectExpr(f'text rlike r"{FORMULA}"').collect()]
    by_command = [csv_rows.text(["t"], [{"t": one}]) != csv_rows.text(["t"], [{"t": one}], raw=True) for one in TRAPS]

    assert found == by_command
    assert True in found
    assert False in found


@pytest.mark.usefixtures("spark")
def test_filters_columns_and_directories(room: SourceRoom, out: Path) -> None:
    where = '{"name": {"$exists": true}}'
    files = exported(room, out, filters=["count>1"], where=where, select="name", partition_by="active")

    assert {file.parent.name for file in files} == {"active=true", "active=false"}
    rows = [row for file in files for row in parquet.ParquetFile(file).read().to_pylist()]
    assert {row["id"]: row["name"] for row in rows} == {one: DOCUMENTS[one]["name"] for one in ("b.x", "c")}


def test_only_columns_that_are_needed_are_read(room: SourceRoom) -> None:
    definition = room.spec.schema().model("Thing")
    names = columns_of(definition, ["address.city", "extra"], ["count"])

    assert names == ["id", "address.city", "extra", "count"]
    assert read_schema(definition, names, "documents").fieldNames() == ["id", "address", "extra", "count"]
    history = read_schema(definition, ["id", "name"], "history")
    assert history.simpleString() == (
        "struct<id:string,seq:bigint,op:string,ts:timestamp,until:timestamp,actor:string,document:struct<name:string>>"
    )


@pytest.mark.usefixtures("spark")
def test_history_is_a_slowly_changing_table(room: SourceRoom, out: Path) -> None:
    (file,) = exported(room, out, history=True, select="name,count")
    rows = parquet.read_table(file).sort_by([("id", "ascending"), ("seq", "ascending")]).to_pylist()

    assert list(rows[0]) == ["id", "valid_from", "valid_to", "op", "actor", "seq", "name", "count"]
    for row in rows:
        entries = room.things.get_history(row["id"])
        entry, after = entries[row["seq"] - 1], entries[row["seq"] :]
        assert (row["op"], row["actor"], row["valid_from"]) == (entry.op, entry.actor, moment(entry.ts))
        assert row["valid_to"] == (moment(after[0].ts) if after else None)
    assert [(row["id"], row["op"], row["count"]) for row in rows] == [
        ("a", "create", 1),
        ("b.x", "create", 2),
        ("c", "create", 3),
        ("c", "update", 4),
        ("d", "create", None),
        ("d", "delete", None),
    ]


@pytest.mark.usefixtures("spark")
def test_as_of_a_time_before_anything(room: SourceRoom, out: Path) -> None:
    assert export(ExportRequest.of(room.spec, f"file://{out}", at="2020-01-01T00:00:00Z")) == 0
    assert export(ExportRequest.of(room.spec, f"file://{out}", at="2099-01-01", overwrite=True)) == 3


@pytest.mark.usefixtures("spark")
def test_what_is_there_is_not_replaced_unasked(room: SourceRoom, out: Path) -> None:
    exported(room, out)
    with pytest.raises(Conflict, match="exists"):
        exported(room, out)
    assert export(ExportRequest.of(room.spec, f"file://{out}", overwrite=True)) == 3


MISTAKES = [
    ({"format": "json", "partition_by": "count"}, "cannot be partitioned"),
    ({"format": "xml"}, "unknown format"),
    ({"files": 0}, "at least 1"),
    ({"filters": ["count=x"]}, "number"),
]


@pytest.mark.parametrize(("options", "problem"), MISTAKES, ids=str)
def test_mistakes_are_told_before_anything_is_read(room: SourceRoom, options: dict[str, object], problem: str) -> None:
    with pytest.raises(Invalid, match=problem):
        ExportRequest.of(room.spec, "file:///x", **options)  # type: ignore[arg-type]


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("format", ["delta", "iceberg"])
def test_a_format_without_its_package_is_a_clear_error(room: SourceRoom, out: Path, format: str) -> None:
    with pytest.raises(Invalid, match=f"--format {format} needs a package"):
        export(ExportRequest.of(room.spec, f"file://{out}", format=format))


@pytest.mark.usefixtures("spark")
def test_the_command_line(room: SourceRoom, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["--url", room.url, "--model", "Thing", "--out", f"file://{out}", "--format", "ndjson"]

    assert main([*command, "--filter", "count=4", "--from", "table"]) == 0
    assert capsys.readouterr().out == f"Thing: 1 rows to file://{out}\n"
    assert main(command) == Conflict.exit_code
    assert "exists" in capsys.readouterr().err
    assert main([*command, "--where", "{"]) == Invalid.exit_code


@pytest.mark.usefixtures("spark")
def test_s3_without_its_file_system_is_a_clear_error(room: SourceRoom) -> None:
    with pytest.raises(Invalid, match="s3a://"):
        export(ExportRequest.of(room.spec, "s3://bucket/out"))
