"""The sample app runs, uses every verb, and type checkers agree with what it says of types and with what is wrong."""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.docs.markdown import ROOT
from tests.sdk import sample_app
from worm.sdk.model import Model

SAMPLE = ROOT / "tests" / "sdk" / "sample_app.py"
PATHS = [str(ROOT / "shared"), str(ROOT)]
WRONG = """\
from __future__ import annotations

import worm
from tests.sdk.sample_app import Customer, Order


def wrong(db: worm.Worm) -> None:
    customers, orders = db.model(Customer), db.model(Order)
    Customer(id=7, name="Acme", email="x")
    Customer(nam="Acme", email="x")
    Order(id="x", customer="acme", total=1, placed=None)
    customers.get("acme").nothing
    customers.find_by_id("acme").name
    customers.save(orders.get(1))
    customers.find_all(select=["name"])[0].name
    customers.modify("acme", lambda one: 3)
    customers.insert(Customer(name="x", email="y")).id + 1
    worm.ModelSettings(oplg=True)
    worm.ModelSettings(mode="sometimes")
    worm.Index(unique="yes")
    worm.connect("memory://x", models=[int])
"""
FIRST_WRONG_LINE = 9


def test_the_sample_app_runs(tmp_path: Path) -> None:
    names, total = sample_app.main(str(tmp_path))
    assert names == ["Acme", "Bolt", "Cord", "Dune", "Made"]
    assert total == Decimal(20)
    stored = json.loads((tmp_path / "orders" / "1" / "data.json").read_text())
    assert (stored["total"], stored["placed"]) == (19.9, "2026-02-24T12:00:00.000Z")


def test_the_sample_app_uses_every_verb() -> None:
    verbs = [name for name, one in inspect.getmembers(Model, inspect.isfunction) if not name.startswith("_")]
    helpers = {"typed", "check_removing"}  # for `db.model(Customer)` and the command
    source = SAMPLE.read_text()
    assert "insert" in verbs
    assert [name for name in verbs if name not in helpers and f".{name}(" not in source] == []


def _mypy(file: Path, folder: Path) -> str:
    command = [sys.executable, "-m", "mypy", "--config-file", "pyproject.toml", "--cache-dir", str(folder / "cache")]
    return _run([*command, str(file)])


def _pyright(file: Path, folder: Path) -> str:
    assert find_spec("basedpyright") is not None, "basedpyright is missing: run scripts/setup --dev"
    settings = {"typeCheckingMode": "standard", "pythonVersion": "3.11", "include": [str(file)], "extraPaths": PATHS}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "basedpyright", "--pythonpath", sys.executable, "--project", str(folder)]
    return _run(command)


def _run(command: list[str]) -> str:
    environment = {**os.environ, "MYPYPATH": os.pathsep.join(PATHS)}
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode in (0, 1), ended.stdout + ended.stderr
    return ended.stdout


CHECKERS: dict[str, Callable[[Path, Path], str]] = {"mypy": _mypy, "pyright": _pyright}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("checker", CHECKERS)
def test_a_type_checker_agrees_with_the_sample_app(checker: str, tmp_path: Path) -> None:
    """Every mistake of the wrong program is found, and none in the sample. Both in one go: mypy reads all of worm."""
    wrong = tmp_path / "wrong_program.py"
    wrong.write_text(WRONG)
    assert re.findall(r".*error.*", CHECKERS[checker](SAMPLE, tmp_path).replace("0 errors", "")) == []
    shown = CHECKERS[checker](wrong, tmp_path)
    lines = {int(line) for line in re.findall(r"wrong_program\.py:(\d+)(?::\d+)?(?: -|:) error", shown)}
    expected = set(range(FIRST_WRONG_LINE, len(WRONG.splitlines()) + 1))
    assert lines == expected, shown
