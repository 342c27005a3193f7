"""docs/tutorial.md is run from top to bottom, with the output that it shows; its CRM is a short program."""

from __future__ import annotations

from pathlib import Path

import pytest

import worm
from tests.docs.markdown import ROOT, blocks
from tests.docs.running import run_page

PAGE = ROOT / "docs" / "tutorial.md"


def test_the_tutorial_runs_as_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = run_page(PAGE, tmp_path, monkeypatch)
    assert (tmp_path / "crm" / "customers" / "acme" / "data.json").is_file()
    page.db.close()  # as the end of a program does
    with worm.connect("./crm", models=[page.Customer, page.Order]) as db:
        assert [report.differences for report in db.verify()] == [[], []]
        assert [entry.op for entry in db.model(page.Customer).get_history("globex")] == ["create", "delete", "restore"]


def test_the_crm_has_less_than_sixty_lines() -> None:
    program = next(block.text for block in blocks(PAGE) if block.language == "python")
    assert len(program.splitlines()) < 60
    wanted = ("worm.Ref(", "unique=True", "soft_delete=True", ".restore(", ".get_history(", ".rollback(")
    assert [word for word in wanted if word not in program] == []
