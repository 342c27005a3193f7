"""docs/lake.md runs from top to bottom."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.markdown import ROOT
from tests.docs.running import run_page
from worm.tables.lake.actions import CHECKPOINT_EVERY, LOG_DAYS, RETENTION_DAYS
from worm.tables.lake.ddl import ENGINES

PAGE = ROOT / "docs" / "lake.md"


def test_the_page_runs_as_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_page(PAGE, tmp_path, monkeypatch)


def test_the_page_has_the_limits_of_the_code_and_every_engine() -> None:
    text = PAGE.read_text()
    assert f"its files stay for {RETENTION_DAYS} days" in text
    assert f"The log itself is kept for {LOG_DAYS} days" in text
    assert CHECKPOINT_EVERY == 10
    assert "tenth version also writes a checkpoint" in text
    assert [name for name in ENGINES if name not in text.lower()] == []
