"""Every tutorial is followed from top to bottom in an empty directory, and prints what it shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.following import Desk, clean_environment, follow
from tests.docs.markdown import ROOT

FOLDER = ROOT / "docs" / "tutorials"
INSTALLS = re.compile(r"pip install|python3 -m venv|\. \.venv/bin/activate")
"""test_first_tutorial.py types these."""


def desk_in(folder: Path) -> Desk:
    made = folder / "desk"
    made.mkdir()
    return Desk(made, clean_environment(), skips=INSTALLS)


@pytest.mark.parametrize("name", ["five-minutes", "crm", "history-and-undo", "branches", "sql-and-notebooks"])
def test_a_tutorial_on_a_directory_prints_what_it_shows(name: str, tmp_path: Path) -> None:
    follow(FOLDER / f"{name}.md", desk_in(tmp_path))
