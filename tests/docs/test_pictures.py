"""The diagrams are what the scripts draw, and say in words what they show."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from scripts.pictures import IMAGES, PICTURES
from scripts.terminal_recording import PICTURE, draw, session
from tests.docs.markdown import ROOT

SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_what_the_script_draws(name: str) -> None:
    assert (IMAGES / name).read_text() == PICTURES[name](), "run scripts/pictures.py"


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_has_a_text_alternative_and_no_text_leaves_it(name: str) -> None:
    root = ElementTree.fromstring(PICTURES[name]())
    title, description = root.findtext(f"{SVG}title"), root.findtext(f"{SVG}desc")
    assert title is not None
    assert len(description or "") > len(title)
    width = int(root.attrib["width"])
    starts = [one for one in root.iter(f"{SVG}text") if one.attrib["text-anchor"] == "start"]
    assert starts != []
    wide = 7.6  # pixels of a character in the widest font
    assert [one.text for one in starts if float(one.attrib["x"]) + wide * len(one.text or "") > width] == []


@pytest.mark.slow
def test_the_terminal_recording_is_what_the_commands_print(tmp_path: Path) -> None:
    assert PICTURE.read_text() == draw(session(tmp_path)), "run scripts/terminal_recording.py"


def test_the_terminal_recording_loads_nothing_and_has_a_text_alternative() -> None:
    root = ElementTree.fromstring(PICTURE.read_text())
    assert "worm rollback" in (root.findtext(f"{SVG}desc") or "")
    assert "url(http" not in PICTURE.read_text().replace('"', "")


@pytest.mark.parametrize("name", [*PICTURES, PICTURE.name])
def test_a_picture_is_shown_on_a_page_with_a_text_alternative(name: str) -> None:
    pages = "".join(path.read_text() for path in (ROOT / "docs").rglob("*.md"))
    assert f"](img/{name})" in pages
    assert f"![](img/{name})" not in pages
