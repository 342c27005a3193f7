"""The rooms of shared/worm: imports go downwards only, client libraries have their place, chance is injected."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

from tests.project.source_tree import ROOT, WORM, imported_modules, imported_names, python_files, relative, source

ROOMS = [
    "dev",
    "cli",
    "spark",
    "api",
    "sdk",
    "upkeep",
    "spaces",
    "query",
    "tables",
    "collections",
    "pages",
    "log",
    "store",
    "formats",
    "clock",
    "errors",
]
"""From top to bottom. The package's own `__init__` stands above them all: it only names what is public."""

PROGRAMS = {"dev", "spark"}
"""The embedded AWS and the Spark jobs: programs around the library, each with words and clocks of its own."""

WITHOUT_A_RANK = {"doors", "forks", "values", "version"}
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
    "boto3": [
        "shared/worm/store/",
        "shared/worm/upkeep/deployment/aws.py",
        "shared/worm/upkeep/workers/lambdas.py",
        "shared/worm/dev/",
    ],
    "botocore": [
        "shared/worm/store/",
        "shared/worm/upkeep/deployment/aws.py",
        "shared/worm/upkeep/workers/lambdas.py",
        "shared/worm/dev/",
    ],
    "moto": ["shared/worm/dev/"],
    "msgspec": ["shared/worm/tables/parts.py"],
    "obstore": ["shared/worm/store/"],
    "pyspark": ["shared/worm/spark/", "shared/pyspark_worm/", "spark_jobs/"],
    "rich": ["shared/worm/cli/", "shared/worm/dev/"],
    "typer": ["shared/worm/cli/", "shared/worm/dev/"],
    "worm.dev": ["shared/worm/dev/"],
    "worm.spark": ["shared/worm/cli/table.py", "shared/worm/spark/", "shared/pyspark_worm/", "spark_jobs/"],
    "aws_lambda_powertools": ["shared/worm/api/routes.py", "shared/worm/upkeep/workers/", "functions/"],
}
"""Where a package may be imported; the Lambda layer and its cold start depend on it."""

SOURCES = [path for folder in ("shared", "functions", "spark_jobs") for path in python_files(ROOT / folder)]
FUNCTION_LINES_MAX = 50
SAME_IN_SEVERAL: dict[str, str] = {}
"""Class names that may occur twice, with the reason."""
CONFTEST_LINES_MAX = 100


def _room(module: str) -> str | None:
    """The room of `worm.<room>.…`."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[0] == "worm" else None


def _own_room(path: Path) -> str:
    return path.relative_to(WORM).parts[0].removesuffix(".py")


def _library() -> list[Path]:
    return [path for path in python_files(WORM) if _own_room(path) not in PROGRAMS]


def _name(path: Path) -> str:
    """The module's name: `worm.store.base`; a package has that of its folder."""
    parts = path.relative_to(WORM.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _graph(*, at_run_time_only: bool) -> dict[str, set[str]]:
    """Which modules of the library a module of it imports, wherever in the file; a module needs no door of its own
    room, which `from worm.room import module` names too."""
    names = {_name(path): path for path in python_files(WORM)}
    return {
        name: {
            one
            for one in imported_modules(path, at_run_time_only=at_run_time_only)
            if one in names and one not in (name, f"worm.{_room(name)}")
        }
        for name, path in names.items()
        if name != "worm"
    }


def test_imports_between_rooms_go_downwards_only() -> None:
    """Imports for type checkers count: what a room knows the types of, it knows."""
    upwards = [
        f"{relative(path)} imports {module}"
        for path in python_files(WORM)
        if (own := _own_room(path)) in ROOMS
        for module in sorted(imported_modules(path, at_run_time_only=False))
        if (other := _room(module)) in ROOMS and ROOMS.index(other) < ROOMS.index(own)
    ]
    assert upwards == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph = _graph(at_run_time_only=False)
    while True:
        imported_by_some = {name for imported in graph.values() for name in imported}
        rest = {name for name, imported in graph.items() if name in imported_by_some and imported & graph.keys()}
        if len(rest) == len(graph):
            break
        graph = {name: graph[name] & rest for name in rest}
    assert {name: sorted(imported) for name, imported in sorted(graph.items())} == {}


def _rooms() -> list[str]:
    return [name for name in ROOMS if (WORM / name / "__init__.py").exists()]


def test_other_rooms_import_from_the_door_of_a_room() -> None:
    """What stands behind the door may change without anybody else noticing."""
    inside = [
        f"{relative(path)} imports {name} from {module}"
        for path in SOURCES
        for module, name in imported_names(path)
        if (room := _room(f"{module}.{name}")) in _rooms()
        and not (path.is_relative_to(WORM) and _own_room(path) == room)
        and module not in ("worm", f"worm.{room}")
    ]
    assert inside == []


@pytest.mark.parametrize("room", _rooms())
def test_a_door_names_what_is_behind_it(room: str) -> None:
    """Type checkers read the imports of a door, Python its table: both name the same."""
    path = WORM / room / "__init__.py"
    package = import_module(f"worm.{room}")
    for module, name in imported_names(path):
        if module.startswith(f"worm.{room}"):
            assert getattr(package, name) is getattr(import_module(module), name)


def test_a_door_names_only_what_other_rooms_and_programs_use() -> None:
    inside = [WORM / room / "__init__.py" for room in _rooms()]
    used = {one for path in SOURCES if path not in inside for one in imported_names(path)}
    for page in (ROOT / "docs").glob("*.md"):  # what programs import
        for module, names in re.findall(r"^from (worm\.\w+) import (.+)$", page.read_text(), re.MULTILINE):
            used |= {(module, name) for name in names.split(", ")}
    idle = [
        f"{relative(path)}: {name}"
        for path in inside
        for module, name in sorted(imported_names(path))
        if _room(module) == _own_room(path) and (f"worm.{_own_room(path)}", name) not in used
    ]
    assert idle == []


def test_no_two_modules_of_a_room_differ_by_an_s() -> None:
    names = {_name(path) for path in python_files(WORM)}
    assert sorted(name for name in names if f"{name}s" in names) == []


def test_a_class_name_means_one_thing() -> None:
    homes: dict[str, list[str]] = {}
    for path in _library():
        for name in source(path).classes:
            if not name.startswith("_"):
                homes.setdefault(name, []).append(relative(path))
    assert {name: found for name, found in homes.items() if len(found) > 1 and name not in SAME_IN_SEVERAL} == {}


def test_collections_and_their_queries_know_nothing_of_spaces() -> None:
    """They reach a space through a port only, although pages and log are below them."""
    apart = {"collections": {"pages", "log"}, "tables": {"pages", "log"}, "query": {"pages", "log"}}
    known = [
        f"{relative(path)} imports {module}"
        for path in python_files(WORM)
        for module in sorted(imported_modules(path))
        if _room(module) in apart.get(_own_room(path), ())
    ]
    assert known == []


def test_every_module_of_the_library_has_a_room() -> None:
    rooms = {_own_room(path) for path in python_files(WORM)}
    assert rooms <= {*ROOMS, *WITHOUT_A_RANK, "__init__"}


@pytest.mark.parametrize("package", sorted(HOMES))
def test_a_package_is_imported_in_its_own_rooms_only(package: str) -> None:
    strays = [
        name
        for path in SOURCES
        if not (name := relative(path)).startswith(tuple(HOMES[package]))
        and any(f"{module}.".startswith(f"{package}.") for module in imported_modules(path))
    ]
    assert strays == []


def test_only_the_clock_module_reads_time_or_draws_chance() -> None:
    """One hidden call is enough to make a failing seed impossible to replay."""
    found = []
    for path in _library():
        if path == CLOCK:
            continue
        found += [f"{relative(path)}: import {name}" for name in {"random", "secrets"} & imported_modules(path)]
        used = [one for one in source(path).attributes if one[1] in CHANCE_AND_TIME]
        found += [f"{relative(path)}:{line}: {name}" for line, name in used]
    assert found == []


def test_functions_stay_small() -> None:
    large = [
        f"{relative(path)}:{line}: {name} has {length} lines"
        for path in [*SOURCES, *python_files(ROOT / "scripts")]
        for line, name, length in source(path).functions
        if length > FUNCTION_LINES_MAX
    ]
    assert large == []


def test_a_conftest_stays_small() -> None:
    sizes = {relative(path): len(path.read_text().splitlines()) for path in (ROOT / "tests").rglob("conftest.py")}
    assert {name: lines for name, lines in sizes.items() if lines > CONFTEST_LINES_MAX} == {}


def test_every_module_says_what_it_is_for() -> None:
    silent = [relative(path) for path in SOURCES if path.read_text().strip() and not source(path).docstring]
    assert silent == []
