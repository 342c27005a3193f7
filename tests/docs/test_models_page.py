"""docs/models.md: its examples run in their order, and it names every setting with its default."""

from __future__ import annotations

import sys
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import worm
from tests.docs.markdown import ROOT, blocks

PAGE = ROOT / "docs" / "models.md"


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the examples define, run in a directory of their own."""
    monkeypatch.chdir(tmp_path)
    module = ModuleType("tests_models_page")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for block in blocks(PAGE):
        if block.language == "python":
            exec(compile(block.text, "models.md", "exec"), module.__dict__)
    return module.__dict__


def test_the_examples_run(names: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (tmp_path / "data" / "customers" / "acme" / "data.json").is_file()
    assert (tmp_path / "data" / ".oplog" / "customers" / "acme" / "0002.json").is_file()
    with worm.connect("./data", models=[names["Customer"]]) as db:
        assert [one.name for one in db.model(names["Customer"]).find_all(filter={"status": "active"})] == ["Acme"]
    schema = worm.schema_of([names[name] for name in ("Customer", "Invoice", "Session", "Order", "Address")])
    assert list(schema.models["Address"].indexes) == ["byCity", "byEmail", "byTag"]


def test_the_settings_are_shown_with_their_defaults(names: dict[str, Any]) -> None:
    assert names["Order"].worm_settings == worm.ModelSettings()
    page = PAGE.read_text()
    assert [one.name for one in fields(worm.ModelSettings) if f"        {one.name}=" not in page] == []
    parts = [*fields(worm.SnapshotSettings), *fields(worm.ManifestSettings)]
    assert [one.name for one in parts if f"{one.name}=" not in page] == []
