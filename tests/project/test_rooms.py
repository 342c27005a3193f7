"""The rooms of shared/worm: imports go downwards only, client libraries have their place, chance is injected."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.project.source_tree import ROOT, WORM, imported_modules, nodes, parsed, python_files, relative

ROOMS = [
    "cli",
    "model",
    "sdk",
    "workers",
    "query",
    "tables",
    "collections",
    "spaces",
    "pages",
    "log",
    "journal",
    "schema",
    "codec",
    "store",
    "clock",
    "errors",
]
"""From top to bottom. The package's own `__init__` stands above them all: it only names what is public."""

WITHOUT_A_RANK = {"version"}
"""Modules that import nothing of worm and may be used from everywhere."""

CLOCK = WORM / "clock.py"
CHANCE_AND_TIME = {
    "datetime.now",
    "datetime.utcnow",
    "datetime.today",
    "date.today",
    "time.time",
    "time.monotonic",
    "time.sleep",
    "uuid.uuid1",
    "uuid.uuid4",
    "os.urandom",
}
HOMES = {
    "boto3": ["shared/worm/store/", "shared/worm/workers/dead_letters.py", "shared/worm_dev/"],
    "botocore": ["shared/worm/store/", "shared/worm/workers/dead_letters.py", "shared/worm_dev/"],
    "moto": ["shared/worm_dev/"],
    "msgspec": ["shared/worm/tables/stored_rows.py"],
    "obstore": ["shared/worm/store/"],
    "pyspark": ["spark_jobs/"],
    "rich": ["shared/worm/cli/", "shared/worm_dev/"],
    "typer": ["shared/worm/cli/", "shared/worm_dev/"],
    "worm_dev": ["shared/worm/cli/dev.py", "shared/worm_dev/"],
    "aws_lambda_powertools": ["shared/worm/workers/", "functions/"],
}
"""Where a package may be imported; the Lambda layer and its cold start depend on it."""

SOURCES = [path for folder in ("shared", "functions", "spark_jobs") for path in python_files(ROOT / folder)]
FUNCTION_LINES_MAX = 50
CONFTEST_LINES_MAX = 100


def _room(module: str) -> str | None:
    """The room of `worm.<room>.…`."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[0] == "worm" else None


def _own_room(path: Path) -> str:
    return path.relative_to(WORM).parts[0].removesuffix(".py")


def test_imports_between_rooms_go_downwards_only() -> None:
    upwards = [
        f"{relative(path)} imports {module}"
        for path in python_files(WORM)
        if (own := _own_room(path)) in ROOMS
        for module in sorted(imported_modules(path))
        if (other := _room(module)) in ROOMS and ROOMS.index(other) < ROOMS.index(own)
    ]
    assert upwards == []


def test_every_module_of_the_library_has_a_room() -> None:
    rooms = {_own_room(path) for path in python_files(WORM)}
    assert rooms <= {*ROOMS, *WITHOUT_A_RANK, "__init__"}


@pytest.mark.parametrize("package", sorted(HOMES))
def test_a_package_is_imported_in_its_own_rooms_only(package: str) -> None:
    strays = [
        name
        for path in SOURCES
        if not (name := relative(path)).startswith(tuple(HOMES[package]))
        and any(module.split(".")[0] == package for module in imported_modules(path))
    ]
    assert strays == []


def test_only_the_clock_module_reads_time_or_draws_chance() -> None:
    """One hidden call is enough to make a failing seed impossible to replay."""
    found = []
    for path in python_files(WORM):
        if path == CLOCK:
            continue
        found += [f"{relative(path)}: import {name}" for name in {"random", "secrets"} & imported_modules(path)]
        for node in nodes(path):
            if isinstance(node, ast.Attribute) and ".".join(ast.unparse(node).split(".")[-2:]) in CHANCE_AND_TIME:
                found.append(f"{relative(path)}:{node.lineno}: {ast.unparse(node)}")
    assert found == []


def test_functions_stay_small() -> None:
    large = []
    for path in [*SOURCES, *python_files(ROOT / "scripts")]:
        for node in nodes(path):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
                length = node.end_lineno - node.body[0].lineno + 1
                if length > FUNCTION_LINES_MAX:
                    large.append(f"{relative(path)}:{node.lineno}: {node.name} has {length} lines")
    assert large == []


def test_a_conftest_stays_small() -> None:
    sizes = {relative(path): len(path.read_text().splitlines()) for path in (ROOT / "tests").rglob("conftest.py")}
    assert {name: lines for name, lines in sizes.items() if lines > CONFTEST_LINES_MAX} == {}


def test_every_module_says_what_it_is_for() -> None:
    silent = [relative(path) for path in SOURCES if path.read_text().strip() and not ast.get_docstring(parsed(path))]
    assert silent == []
