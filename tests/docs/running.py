"""A page of the documentation, run from top to bottom: its Python in one module, its commands in one directory.

A `text` block is what the block before it prints: all of it for Python, some of its lines for commands. A block of
commands ends with the exit code 0, unless a comment after it says otherwise (`markdown.py`). Blocks of other languages
are not run: `bash` has commands that need an account of AWS (`commands.py`).
"""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType

import pytest
from typer.testing import CliRunner

from tests.docs.markdown import Block, blocks
from worm.cli.program import app

Actions = Mapping[str, Callable[[], None]]


def run_page(page: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, actions: Actions | None = None) -> ModuleType:
    """The module with everything that the page defines. Asserts the output that it shows. `actions` are what lines of a
    setup such as `@bucket` do."""
    monkeypatch.chdir(folder)
    for name in ("WORM_URL", "WORM_ACTOR", "WORM_MAINTENANCE", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    module = ModuleType(f"page_{page.stem}")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    listed, printed, is_python = blocks(page), "", False
    for block, after in zip(listed, [*listed[1:], Block("", "")], strict=True):
        if after.language == "file":
            (folder / after.text).write_text(block.text)
        elif block.language == "python":
            printed, is_python = _python(block.text, page, module), True
        elif block.language == "sh":
            code = int(after.text) if after.language == "exits" else 0
            printed, is_python = _commands(block.text, folder, code), False
        elif block.language == "setup":
            _set_up(block.text, folder, actions or {})
        elif block.language == "text" and is_python:
            assert printed == block.text
        elif block.language == "text":
            shown = iter(printed.splitlines())
            missing = [line for line in block.text.splitlines() if line not in shown]
            assert missing == [], printed
    return module


def _python(text: str, page: Path, module: ModuleType) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(text, page.name, "exec"), module.__dict__)
    return printed.getvalue()


def _commands(text: str, folder: Path, code: int) -> str:
    """What they print. The last one ends with this exit code, all others with 0."""
    printed, lines = "", text.splitlines()
    for number, line in enumerate(lines, start=1):
        if line.startswith("worm "):
            ended = CliRunner().invoke(app, shlex.split(os.path.expandvars(line))[1:], catch_exceptions=False)
            printed += ended.stdout
            assert ended.exit_code == (code if number == len(lines) else 0), f"{line}\n{ended.output}"
        else:
            subprocess.run(["bash", "-c", line], cwd=folder, check=True, timeout=10)
    return printed


def _set_up(text: str, folder: Path, actions: Actions) -> None:
    for line in text.splitlines():
        if line.startswith("@"):
            actions[line[1:]]()
        else:
            _commands(line, folder, 0)
