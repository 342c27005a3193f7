"""Every tutorial is followed from top to bottom in an empty directory, and prints what it shows."""

from __future__ import annotations

import re
import socket
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from tests.docs.following import Desk, clean_environment, follow
from tests.docs.markdown import ROOT, blocks

pytestmark = pytest.mark.slow
FOLDER = ROOT / "docs" / "tutorials"
INSTALLS = re.compile(r"pip install|python3 -m venv|\. \.venv/bin/activate")
"""test_first_tutorial.py types these."""


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """An empty directory."""
    folder = tmp_path / "desk"
    folder.mkdir()
    return Desk(folder, clean_environment(), skips=INSTALLS)


@pytest.mark.parametrize("name", ["five-minutes", "crm", "history-and-undo", "branches", "sql-and-notebooks"])
def test_a_tutorial_on_a_directory_prints_what_it_shows(name: str, desk: Desk) -> None:
    follow(FOLDER / f"{name}.md", desk)


@pytest.mark.timeout(300)
def test_the_tutorial_on_the_embedded_aws_prints_what_it_shows(desk: Desk) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    follow(FOLDER / "upload-to-query.md", replace(desk, replaces={"9325": port}, patience_seconds=60))


def test_the_crm_has_less_than_sixty_lines() -> None:
    models, program = [block.text for block in blocks(FOLDER / "crm.md") if block.text.startswith("# ")]
    assert len((models + program).splitlines()) < 60
    wanted = ("worm.Ref(", "unique=True", "soft_delete=True", ".restore(", "populate=")
    assert [word for word in wanted if word not in models + program] == []


def test_every_extra_that_a_tutorial_installs_exists() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for page in FOLDER.glob("*.md"):
        named = re.findall(r"pip install 's3worm\[([a-z,]+)\]'", page.read_text())
        assert named != [], page.name
        assert set(",".join(named).split(",")) <= set(extras), page.name
