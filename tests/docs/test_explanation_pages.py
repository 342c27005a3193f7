"""docs/explanation: numbers are those of the code, and the tests that a page names exist."""

from __future__ import annotations

import ast
import json
import re
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.docs.markdown import ROOT
from tests.docs.running import run_page
from worm.cli.program import app
from worm.dev.cfn import load
from worm.formats.members import Definition

FOLDER = ROOT / "docs" / "explanation"
ROW = re.compile(r"^\| ([^|]+) \| ([^|]+) \| [^|]+ \| `([^`|]+)` \|$", re.MULTILINE)
LIMITS = [(what, value, where) for what, value, where in ROW.findall((FOLDER / "limits.md").read_text())]
SIZES = {"": 1, "bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "MB": 10**6, "GB": 10**9}
TIMES = {"s": 1, "min": 60, "minutes": 60, "h": 3600, "hour": 3600, "days": 86_400}
UNITS = {**SIZES, **TIMES}
WORM = ROOT / "shared" / "worm"
REFUSING = [WORM / f"query/{name}.py" for name in ("filters", "patterns", "query", "aggregate")]
REFUSING += [*(WORM / "schema").glob("*.py"), *(WORM / "api").glob("*.py")]
INTERNAL = {"worm.api.tokens.KNOWN_MAX", "worm.api.tokens.RECORD_BYTES_MAX", "worm.api.http1.LINGER_BYTES_MAX"}


def number(text: str) -> float:
    """`10 MiB`, `1,000`, `2^64 - 1`, `rate(15 minutes)`: bytes, seconds or a count."""
    if power := re.fullmatch(r"(-?)(\d+)\^(\d+)( - 1)?", text):
        found: int = int(power[2]) ** int(power[3]) - bool(power[4])
        return -found if power[1] else found
    told = re.fullmatch(r"(?:rate\()?([\d,.]+) ?([A-Za-z]*)\)?", text)
    assert told, text
    return float(told[1].replace(",", "")) * UNITS[told[2]]


def defined(where: str) -> Any:
    """What a constant (also of a class), a default of a class, or a property of a template is."""
    file, is_template, path = where.partition(": ")
    if is_template:
        name, *steps = path.split(".")
        found = load((ROOT / file).read_text())["Resources"][name]["Properties"]
        for step in steps:
            found = next(one for one in found if one["Id"] == step) if isinstance(found, list) else found[step]
        return found
    module, _, name = where.rpartition(".")
    if (ROOT / "shared" / f"{module.replace('.', '/')}.py").is_file():
        return getattr(import_module(module), name)
    module, _, owner = module.rpartition(".")
    found = getattr(import_module(module), owner)
    if name.isupper():
        return getattr(found, name)
    return found.members[name].default if issubclass(found, Definition) else found.model_fields[name].default


def plain(found: Any, where: str) -> float:
    """In bytes, seconds or a count, as a value of the page."""
    if isinstance(found, str):
        return number(found)
    if isinstance(found, timedelta):
        return found.total_seconds()
    is_days = re.search(r"(Days|DAYS|DAYS_MAX)$", where)
    assert isinstance(found, (int, float)), where
    return found * UNITS["days" if is_days else ""]


@pytest.mark.parametrize(("what", "value", "where"), LIMITS, ids=[where for _, _, where in LIMITS])
def test_a_limit_is_what_the_code_has(what: str, value: str, where: str) -> None:
    assert number(value) == plain(defined(where), where), what


def test_no_limit_stands_twice_and_none_is_left_out_of_the_comparison() -> None:
    lines = [line for line in (FOLDER / "limits.md").read_text().splitlines() if line.startswith("| ")]
    titles = [line for line in lines if line.startswith("| What |")]
    assert len(LIMITS) == len(lines) - len(titles) > 80
    assert len({where for _, _, where in LIMITS}) == len(LIMITS)


def limits_of(path: Path) -> set[str]:
    """The public constants that are upper limits, with the names of their modules."""
    module = ".".join(path.relative_to(WORM.parent).with_suffix("").parts)
    assigned = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.Assign)]
    names = [one for node in assigned for target in node.targets for one in ast.walk(target)]
    is_limit = re.compile(r"[A-Z][A-Z_]*_MAX|MAX_[A-Z_]+")
    return {f"{module}.{one.id}" for one in names if isinstance(one, ast.Name) and is_limit.fullmatch(one.id)}


def test_every_limit_that_refuses_something_is_on_the_page() -> None:
    """A document, a schema, a query or a call."""
    limits = set().union(*(limits_of(path) for path in REFUSING))
    assert len(limits) > 25
    assert limits - {where for _, _, where in LIMITS} == INTERNAL


@pytest.mark.parametrize("page", sorted(path.name for path in FOLDER.glob("*.md")))
def test_every_test_that_a_page_names_exists(page: str) -> None:
    named = set(re.findall(r"`(tests/[\w/.]+)`", (FOLDER / page).read_text()))
    assert {one for one in named if not (ROOT / one).exists()} == set()
    assert page != "guarantees.md" or len(named) > 15


def test_the_example_of_two_sessions_runs_as_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = run_page(FOLDER / "consistency.md", tmp_path, monkeypatch)
    page.writer.close()
    page.reader.close()


def test_every_invariant_has_its_row() -> None:
    rows = re.findall(r"^\| (I\d+) \| .* \| .* \| (.*) \|$", (FOLDER / "guarantees.md").read_text(), flags=re.MULTILINE)
    assert [name for name, _ in rows] == [f"I{number}" for number in range(1, 11)]
    assert [name for name, tests in rows if "`tests/" not in tests] == []


def test_the_comparison_has_its_numbers_from_benchmarks_and_costs() -> None:
    page = " ".join((FOLDER / "comparison.md").read_text().split())
    saves = (ROOT / "docs" / "benchmarks.md").read_text().partition("\n## save\n")[2].partition("\n## ")[0]
    measured = dict(re.findall(r"^\| (deltalake|moto)[^|]* raw PUTs \| \**([\d.]+)\** \|", saves, re.MULTILINE))
    assert f"with deltalake took {measured['deltalake']} times as long as two raw PUTs" in page
    assert f"a save took {measured['moto']} times" in page
    estimate = json.loads(CliRunner().invoke(app, ["cost", "--format", "json"]).stdout)
    idle = sum(line["usd"] for line in estimate["lines"] if line["group"] == "idle")
    assert f"about ${estimate['units']['a million changes']:.0f} for a million changes" in page
    assert f"about ${idle:.0f} a month" in page
