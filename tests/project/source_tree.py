"""The files of this repository and what the Python ones import, for the tests of this folder."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
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


@cache
def tracked_texts() -> list[tuple[str, str]]:
    """Name and content of every tracked text file."""
    contents = [(relative(path), path.read_bytes()) for path in tracked_files()]
    texts = [(name, body) for name, body in contents if b"\0" not in body and len(body) <= TEXT_BYTES_MAX]
    return [(name, body.decode("utf-8")) for name, body in texts]


def python_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*.py") if "__pycache__" not in path.parts)


@dataclass(frozen=True)
class Source:
    """What the rules ask of a file. Its syntax tree is not kept: those of all files have a hundred megabytes."""

    docstring: str
    classes: list[str]
    """At the top level."""
    functions: list[tuple[int, str, int]]
    """Line, name and the number of lines after the signature."""
    attributes: list[tuple[int, str]]
    """Line and the last two names: `(3, "time.sleep")`."""
    imports: frozenset[str]
    imports_at_run_time: frozenset[str]
    names: frozenset[tuple[str, str]]
    """Module and name of each `from module import name`."""


@cache
def source(path: Path) -> Source:
    tree = ast.parse(path.read_text(), filename=str(path))
    found = list(ast.walk(tree))
    return Source(
        ast.get_docstring(tree) or "",
        [node.name for node in tree.body if isinstance(node, ast.ClassDef)],
        [
            (node.lineno, node.name, (node.end_lineno or node.lineno) - node.body[0].lineno + 1)
            for node in found
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        ],
        [(node.lineno, f"{_last_name(node.value)}.{node.attr}") for node in found if isinstance(node, ast.Attribute)],
        _imports(found),
        _imports(_outside_type_checking(tree)),
        frozenset(
            (node.module, alias.name)
            for node in found
            if isinstance(node, ast.ImportFrom) and node.module
            for alias in node.names
        ),
    )


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _imports(nodes: Iterable[ast.AST]) -> frozenset[str]:
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return frozenset(found)


def _outside_type_checking(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those below `if TYPE_CHECKING:`."""
    for node in ast.iter_child_nodes(tree):
        yield node
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            for other in node.orelse:
                yield other
                yield from _outside_type_checking(other)
        elif isinstance(node, ast.stmt | ast.excepthandler | ast.match_case):
            yield from _outside_type_checking(node)


def imported_modules(path: Path, *, at_run_time_only: bool = True) -> frozenset[str]:
    """Full names of the modules that a file imports, with `from x import y` as both `x` and `x.y`."""
    return source(path).imports_at_run_time if at_run_time_only else source(path).imports


def imported_names(path: Path) -> frozenset[tuple[str, str]]:
    """Module and name of each `from module import name`, wherever in the file."""
    return source(path).names


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))
