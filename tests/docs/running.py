"""A page of the documentation, run from top to bottom: its Python in one module, its commands in one directory.

A `text` block is what the block before it prints: all of it for Python, some of its lines for commands.
"""

from __future__ import annotations

import contextlib
import io
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from typer.testing import CliRunner

from tests.docs.markdown import Block, blocks
from worm.cli.main import app


def run_page(page: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module with everything that the page defines. Asserts the output that it shows."""
    monkeypatch.chdir(folder)
    for name in ("WORM_URL", "WORM_ACTOR", "WORM_MAINTENANCE", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    module = ModuleType(f"page_{page.stem}")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    before, printed = Block("", ""), ""
    for block in blocks(page):
        if block.language == "python":
            printed = _python(block.text, page, module)
        elif block.language == "sh":
            printed = _commands(block.text, folder)
        elif block.language == "text" and before.language == "python":
            assert printed == block.text
        elif block.language == "text":
            shown = iter(printed.splitlines())
            missing = [line for line in block.text.splitlines() if line not in shown]
            assert missing == [], printed
        before = block
    return module


def _python(text: str, page: Path, module: ModuleType) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(text, page.name, "exec"), module.__dict__)
    return printed.getvalue()


def _commands(text: str, folder: Path) -> str:
    printed = ""
    for line in text.splitlines():
        if line.startswith("worm "):
            printed += CliRunner().invoke(app, shlex.split(line)[1:], catch_exceptions=False).stdout
        else:
            subprocess.run(["bash", "-c", line], cwd=folder, check=True, timeout=10)
    return printed
