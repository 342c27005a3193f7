"""The console's files: vendored libraries are those that are listed, and nothing needs what the policy forbids."""

from __future__ import annotations

import re
from hashlib import sha256
from pathlib import Path

import pytest

from tests.browser.serving import ROOT

CONSOLE = ROOT / "shared" / "worm" / "api" / "console"
VENDORED = (CONSOLE / "vendor", Path(__file__).parent / "vendor")
IMPORT = re.compile(r"""(?:from\s*|import\s*\(?)["']([^"']+)["']""")


@pytest.mark.parametrize("folder", VENDORED, ids=["console", "tests"])
def test_vendored_files_are_the_listed_ones_with_a_licence_each(folder: Path) -> None:
    listed = dict(re.findall(r"`([\w.-]+)` \| [\d,]+ \| `(\w{64})`", (folder / "README.md").read_text()))
    files = {
        path.name: sha256(path.read_bytes()).hexdigest() for path in folder.iterdir() if path.suffix in (".js", ".css")
    }
    assert files == listed
    packages = re.findall(r"^\| (?:@)?([\w/-]+) \|", (folder / "README.md").read_text(), re.MULTILINE)
    licences = {path.name for path in folder.glob("LICENSE-*.txt")}
    assert {f"LICENSE-{name.replace('/', '-')}.txt" for name in packages if name != "Package"} <= licences


def test_every_import_is_a_relative_path_to_a_file() -> None:
    for path in CONSOLE.rglob("*.js"):
        names = (
            IMPORT.findall(path.read_text())
            if path.parent.name != "vendor"
            else re.findall(r'from"([^"]+)"', path.read_text())
        )
        missing = [name for name in names if not name.startswith(".") or not (path.parent / name).is_file()]
        assert missing == [], path


def test_the_page_has_no_inline_script_or_style() -> None:
    page = (CONSOLE / "index.html").read_text()
    assert re.findall(r"<style|\bstyle=|\bon\w+=|javascript:", page) == []
    assert [tag for tag in re.findall(r"<script[^>]*>", page) if "src=" not in tag] == []


def test_the_console_is_small() -> None:
    """What a browser loads before the first view; uPlot comes with the first plot."""
    loaded = [
        path for path in CONSOLE.rglob("*") if path.suffix in (".js", ".css", ".html") and path.name != "uplot.js"
    ]
    assert sum(path.stat().st_size for path in loaded) < 240_000
