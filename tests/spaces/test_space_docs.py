"""What docs/spaces.md and docs/formats.md say of spaces is so."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.docs.markdown import ROOT, blocks
from worm.spaces import results
from worm.spaces.operations import SpaceConfig
from worm.spaces.results import Presence
from worm.spaces.sqlite_schema import TABLES

PAGE = ROOT / "docs" / "spaces.md"
FORMATS = (ROOT / "docs" / "formats.md").read_text()


def test_the_example_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = [block.text for block in blocks(PAGE) if block.language == "python"]
    exec(compile(example, "spaces.md", "exec"), {"directory": tmp_path})
    assert capsys.readouterr().out.splitlines() == [
        "{'value': {'count': 2}} {'value': {'name': 'x'}}",
        "['c'] ('c',)",
        "b'...' [3, 4, 5, 6]",
    ]


def test_every_setting_and_its_default_is_described() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", PAGE.read_text(), flags=re.MULTILINE))
    told = {name: rows[name] for name in SpaceConfig.model_fields}
    mib = 1024 * 1024
    for name, default in SpaceConfig():
        shown = "all" if default is None else f"{default // mib} MiB" if default >= mib else f"{default:,}"
        assert told[name] == shown


def test_every_presence_and_every_conflict_is_described() -> None:
    page = PAGE.read_text()
    conflicts = [name for name in vars(results) if name.endswith("Conflict") and name != "Conflict"]
    assert len(conflicts) == 3
    assert [name for name in (*Presence, *conflicts) if f"| `{name}`" not in page] == []


def test_every_table_and_column_is_in_the_formats() -> None:
    section = FORMATS.partition("\n## Space in SQLite\n")[2].partition("\n## ")[0]
    for table in TABLES:
        name, columns = (
            re.findall(r"CREATE TABLE \"?(\w+)", table)[0],
            re.findall(r"^  ([a-z]\w*) ", table, re.MULTILINE),
        )
        if name in ("invocation", "authorization"):
            columns = ["ref"]
        (row,) = [line for line in section.splitlines() if line.startswith("| ") and f"`{name}`" in line.split("|")[1]]
        assert [column for column in columns if f"`{column}`" not in row] == [], name


def test_the_records_in_the_formats_have_the_members_that_are_written() -> None:
    section = FORMATS.partition("\n## Space in SQLite\n")[2].partition("\n## ")[0]
    records = [json.loads(text) for text in re.findall(r"```json\n(.*?)```", section, flags=re.DOTALL)]
    assert [set(record) for record in records] == [
        {"localSeq", "reads", "operations", "merge"},
        {"seq", "resolvedPendingReads"},
    ]
