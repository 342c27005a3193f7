"""What docs/pages.md and docs/formats.md say of pages is what is there."""

from __future__ import annotations

import json
from contextlib import redirect_stdout
from io import StringIO

from tests.docs.markdown import ROOT, blocks
from worm.pages.manifest import Layer, Mark, PageBranch, PageConfig, Pages, Pin
from worm.pages.records import page_of, page_record

PAGE = ROOT / "docs" / "pages.md"
FORMATS = ROOT / "docs" / "formats.md"


def test_the_example_runs_with_the_output_shown() -> None:
    code, shown = (block.text for block in blocks(PAGE) if block.text.startswith(("import worm", "b'ONE'")))
    said = StringIO()
    with redirect_stdout(said):
        exec(compile(code, "docs/pages.md", "exec"), {})
    assert said.getvalue().strip() == shown.strip()


def test_every_setting_is_described() -> None:
    page = PAGE.read_text()
    assert [name for name in PageConfig.model_fields if f"`{name}" not in page] == []


def test_the_examples_of_records_are_what_is_written() -> None:
    (text,) = [block.text for block in blocks(FORMATS) if block.text.startswith('{"op":"page"')]
    found = [json.loads(line) for line in text.splitlines()]
    read = [page_of(record) for record in found]
    assert read == [("a/1", b"one"), ("a/2", b"\x00\x01\x02\xff"), ("a/3", None)]
    assert [page_record(*one, max_bytes=10) for one in read if one is not None] == found


def test_every_member_of_the_root_is_described() -> None:
    page = FORMATS.read_text().split("## Page store")[1].split("\n## ")[0]
    members = {
        field.alias or name
        for part in (Pages, PageBranch, Layer, Mark, Pin)
        for name, field in part.model_fields.items()
        if name != "written"
    }
    assert [name for name in sorted(members) if f"`{name}`" not in page] == []
