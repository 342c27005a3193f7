"""The files of this repository and what the Python ones import, for the tests of this folder."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WORM = ROOT / "shared" / "worm"
TEXT_BYTES_MAX = 1024 * 1024


@cache
def tracked_files() -> list[Path]:
    """Every file that is, or would be, committed."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    return [path for name in sorted(set(names)) if name and (path := ROOT / name).is_file()]


def tracked_texts() -> Iterator[tuple[str, str]]:
    """Name and content of every tracked text file."""
    for path in tracked_files():
        content = path.read_bytes()
        if b"\0" not in content and len(content) <= TEXT_BYTES_MAX:
            yield str(path.relative_to(ROOT)), content.decode("utf-8")


def python_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*.py") if "__pycache__" not in path.parts)


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), filename=str(path))


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(parsed(path)))


@cache
def imported_modules(path: Path, *, at_run_time_only: bool = True) -> frozenset[str]:
    """Full names of the modules that a file imports, with `from x import y` as both `x` and `x.y`."""
    skipped = _type_checking_nodes(path) if at_run_time_only else set()
    found: set[str] = set()
    for node in nodes(path):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return frozenset(found)


def _type_checking_nodes(path: Path) -> set[int]:
    guarded = (
        inner
        for node in nodes(path)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for statement in node.body
        for inner in ast.walk(statement)
    )
    return {id(node) for node in guarded}


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))
