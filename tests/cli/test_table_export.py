"""`worm table export`: formats, files, pipes."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.company import Command
from worm.cli.output import Progress
from worm.cli.rows import Choice, ExportFormat, export_chunks
from worm.errors import Unavailable
from worm.formats.strict_json import JsonValue
from worm.sdk.database import Model, Worm

WORM = Path(sys.executable).with_name("worm")
Row = dict[str, JsonValue]


def _text(format: ExportFormat, *batches: list[Row]) -> str:
    return "".join(text for _, text in export_chunks(format, Choice(columns=["id", "name"]), batches))


def test_batches_make_one_text() -> None:
    one: list[Row] = [{"id": "a", "name": "Ä"}, {"id": "b", "more": 1}]
    two: list[Row] = [{"id": "c"}]
    assert _text(ExportFormat.csv, one, [], two) == "id,name,more\r\na,Ä,\r\nb,,1\r\nc,,\r\n"
    assert _text(ExportFormat.ndjson, one, two) == '{"id": "a", "name": "Ä"}\n{"id": "b", "more": 1}\n{"id": "c"}\n'
    assert _text(ExportFormat.json, [], one, [], two) == (
        '[\n{"id": "a", "name": "Ä"},\n{"id": "b", "more": 1},\n{"id": "c"}\n]\n'
    )


def test_csv_has_a_column_for_every_field_that_any_row_has() -> None:
    """Fields that the schema does not declare are data, too; the header is known when the last row is."""
    batches: list[list[Row]] = [[{"id": "a", "z": 1}], [{"id": "b", "a b": "x\u2028y", "name": "n"}], [{"id": "c"}]]
    chunks = list(export_chunks(ExportFormat.csv, Choice(columns=["id", "name"]), batches))
    assert "".join(text for _, text in chunks) == "id,name,a b,z\r\na,,,1\r\nb,n,x\u2028y,\r\nc,,,\r\n"
    assert sum(rows for rows, _ in chunks) == 3
    selected = Choice(columns=["id", "name"], is_closed=True)
    assert list(export_chunks(ExportFormat.csv, selected, batches))[1] == (1, "a,\r\n")


@pytest.mark.parametrize(
    ("format", "wanted"), [(ExportFormat.csv, "id,name\r\n"), (ExportFormat.json, "[]\n"), (ExportFormat.ndjson, "")]
)
def test_nothing_is_well_formed_too(format: ExportFormat, wanted: str) -> None:
    assert _text(format) == _text(format, []) == wanted


def test_batches_are_taken_one_at_a_time() -> None:
    """A whole collection need not fit into memory."""
    taken: list[int] = []

    def batches() -> Iterator[list[Row]]:
        for at in range(3):
            taken.append(at)
            yield [{"id": str(at)}]

    for one_format in ExportFormat:
        taken.clear()
        next(one for one in export_chunks(one_format, Choice(columns=["id"]), batches()) if one[0])
        assert taken == [0]


def test_the_examples_of_the_table_chapter(worm: Command, url: str, session: Worm, tmp_path: Path) -> None:
    found = worm("table", "export", "Customer", "--format", "csv", "--filter", "status=active", "--url", url)
    rows = list(csv.DictReader(io.StringIO(found.stdout)))
    assert [(row["id"], row["name"], row["seats"], row["vip"]) for row in rows] == [("zeta", "Zeta", "12", "false")]
    lines = worm("table", "export", "Customer", "--format", "ndjson", "--url", url).stdout.splitlines()
    assert [json.loads(line)["id"] for line in lines] == ["acme", "kobe", "zeta"]
    found = worm("table", "export", "Customer", "--format", "json", "--select", "name,status", "--url", url)
    assert json.loads(found.stdout) == [
        {"id": "acme", "name": "Acme, Inc.", "status": "churned"},
        {"id": "kobe", "name": "神戸紙", "status": "inactive"},
        {"id": "zeta", "name": "Zeta", "status": "active"},
    ]
    assert (found.exit_code, found.stderr) == (0, "")


def test_without_a_selection_every_declared_field_has_a_column(worm: Command, url: str, session: Worm) -> None:
    """Also one that the manifest leaves out."""
    found = worm("table", "export", "Customer", "--filter", "id=kobe", "--url", url)
    (row,) = csv.DictReader(io.StringIO(found.stdout))
    assert list(row)[:4] == ["id", "name", "status", "score"]
    assert row["address"] == '{"city":"Kōbe"}'


def test_rows_can_be_filtered_by_json_and_sorted(worm: Command, url: str, session: Worm) -> None:
    options = ("--where", '{"status": {"$in": ["active", "churned"]}}', "--sort", "name:desc", "--select", "name")
    assert (
        worm("table", "export", "Customer", *options, "--url", url).stdout == 'id,name\nzeta,Zeta\nacme,"Acme, Inc."\n'
    )


def test_a_file_is_written_whole_and_replaces_the_old_one(
    worm: Command, url: str, session: Worm, tmp_path: Path
) -> None:
    file = tmp_path / "out" / "customers.csv"
    file.parent.mkdir()
    file.write_text("old")
    ended = worm("table", "export", "Customer", "--select", "name", "-o", str(file), "--url", url)
    assert (ended.exit_code, ended.stdout, ended.stderr) == (0, "", f"wrote {file}: 3 rows\n")
    assert file.read_bytes().decode() == 'id,name\r\nacme,"Acme, Inc."\r\nkobe,神戸紙\r\nzeta,Zeta\r\n'
    assert [one.name for one in file.parent.iterdir()] == ["customers.csv"]


@pytest.mark.parametrize(
    ("is_terminal", "to_file", "is_hidden"), [(True, False, True), (True, True, False), (False, False, False)]
)
def test_progress_is_told_by_rows_and_not_among_them(
    worm: Command,
    url: str,
    session: Worm,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_terminal: bool,
    to_file: bool,
    is_hidden: bool,
) -> None:
    told: list[object] = []

    @contextmanager
    def bar(title: str, *, is_hidden: bool) -> Iterator[Progress]:
        told.append((title, is_hidden))
        yield lambda done, total: told.append((done, total))

    monkeypatch.setattr("worm.cli.rows.progress_bar", bar)
    monkeypatch.setattr("worm.cli.rows._is_watched", lambda: is_terminal)
    file = str(tmp_path / "rows.csv") if to_file else "-"
    assert worm("table", "export", "Customer", "-o", file, "--url", url).exit_code == 0
    assert told == [("Exporting Customer", is_hidden), (3, None)]


def test_an_error_leaves_the_old_file_and_nothing_else(
    worm: Command, url: str, session: Worm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(self: Model, **options: object) -> Iterator[list[Row]]:
        yield [{"id": "a"}]
        raise Unavailable("the store does not answer")

    monkeypatch.setattr(Model, "find_batches", failing)
    file = tmp_path / "out" / "rows.csv"
    file.parent.mkdir()
    file.write_text("old")
    ended = worm("table", "export", "Customer", "-o", str(file), "--url", url)
    assert (ended.exit_code, ended.stderr) == (6, "worm: the store does not answer\n")
    assert ([one.name for one in file.parent.iterdir()], file.read_text()) == (["rows.csv"], "old")


def test_a_link_is_followed_and_a_pipe_is_written_to(worm: Command, url: str, session: Worm, tmp_path: Path) -> None:
    real, link, pipe = tmp_path / "real.csv", tmp_path / "link.csv", tmp_path / "pipe"
    link.symlink_to(real)
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()), daemon=True)
    reader.start()
    for file in (link, pipe):
        assert worm("table", "export", "Customer", "--select", "name", "-o", str(file), "--url", url).exit_code == 0
    reader.join(timeout=10)
    assert link.is_symlink()
    assert read == [real.read_text()]
    assert read[0].startswith("id,name")


@pytest.mark.parametrize(
    ("file", "code", "message"),
    [("missing/x.csv", 3, "the directory missing does not exist"), (".", 2, ". is a directory (name a file in it)")],
)
def test_a_place_that_cannot_be_written_is_told_before_anything_is_read(
    worm: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, code: int, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    ended = worm("table", "export", "Customer", "-o", file)
    assert ended.exit_code == code
    assert ended.stderr.startswith(f"worm: {message}")


def test_formulas_are_disarmed_unless_raw(worm: Command, url: str, session: Worm) -> None:
    customers = session.model("Customer")
    customers.save(customers.create({"name": "=1+1"}, id="evil"))
    options = ("--filter", "id=evil", "--select", "name", "--url", url)
    assert worm("table", "export", "Customer", *options).stdout == "id,name\nevil,'=1+1\n"
    assert worm("table", "export", "Customer", *options, "--csv-raw").stdout == "id,name\nevil,=1+1\n"


def test_an_export_can_be_stored_again(worm: Command, url: str, session: Worm, tmp_path: Path) -> None:
    file = tmp_path / "customers.ndjson"
    before = worm("table", "export", "Customer", "--format", "ndjson", "-o", str(file), "--url", url)
    assert before.exit_code == 0
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    worm("rm", "Customer", "acme", "kobe", "zeta", "--no-dry-run", "--url", url)
    assert worm("table", "export", "Customer", "--format", "ndjson", "--url", url).stdout == ""
    assert worm("put", "Customer", str(file), "--many", "--url", url).exit_code == 0
    again = worm("table", "export", "Customer", "--format", "ndjson", "--url", url).stdout
    assert [json.loads(line) for line in again.splitlines()] == rows


@pytest.mark.slow
def test_a_reader_that_has_enough_ends_the_export_quietly(url: str, session: Worm) -> None:
    customers = session.model("Customer")
    customers.save_many([customers.create({"name": "x" * 2000}, id=f"many{at}") for at in range(60)])
    command = [str(WORM), "table", "export", "Customer", "--format", "ndjson", "--url", url]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.read(1)
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait(timeout=30) == 0
    process.stderr.close()
