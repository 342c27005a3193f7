"""The full run, on a small file of tests: what runs again, and what fails the run all the same."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.project.source_tree import ROOT

pytestmark = pytest.mark.timeout(300)

SMALL = """
import os, pathlib, pytest

def is_first(name):
    seen = pathlib.Path(__file__).with_name(name.encode().hex())
    if seen.exists():
        return False
    seen.touch()
    return True

def test_steady():
    pass
"""
ONCE = """
def test_once():
    print("noticed at first")
    assert not is_first("once")
"""
ALWAYS = """
def test_always():
    print("noticed at first" if is_first("always") else "noticed again")
    assert False
"""
OF_WORKERS = """
def test_of_workers():
    if "PYTEST_XDIST_WORKER" not in os.environ:
        pytest.skip("there are no workers")
    assert False
"""


def full_run(folder: Path, tests: str, *options: str) -> tuple[int, str, str]:
    """pytest as `scripts/test` calls it: the exit code, the last line without its time, and everything printed."""
    (folder / "test_small.py").write_text(SMALL + tests)
    (folder / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-p", "tests.full_run", "-n2", "--dist=loadgroup", *options]
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    variables["PYTHONPATH"] = str(ROOT)
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=280, check=False)
    lines = done.stdout.splitlines() or [""]
    return done.returncode, lines[-1].strip("= ").partition(" in ")[0], done.stdout + done.stderr


def block(printed: str) -> str:
    """What is reported as unsteady."""
    return printed.partition("= unsteady =")[2]


def test_the_full_run_has_the_plugin() -> None:
    assert "\n.venv/bin/python -m pytest -p tests.full_run " in (ROOT / "scripts" / "test").read_text()


def test_a_test_that_passes_alone_is_reported_and_fails_nothing(tmp_path: Path) -> None:
    code, last, printed = full_run(tmp_path, ONCE)
    assert (code, last) == (0, "1 passed, 1 unsteady")
    assert "test_small.py::test_once" in block(printed)
    assert "noticed at first" in block(printed)


@pytest.mark.slow
def test_a_test_that_fails_again_or_is_skipped_fails_the_run_and_shows_both_outputs(tmp_path: Path) -> None:
    code, last, printed = full_run(tmp_path, ONCE + ALWAYS + OF_WORKERS)
    assert (code, last) == (1, "2 failed, 1 passed, 1 unsteady")
    unsteady = block(printed).partition("short test summary")[0]
    assert [name in unsteady for name in ("test_once", "test_always", "test_of_workers")] == [True, False, False]
    assert printed.count("noticed at first\n") == 2
    assert "noticed again\n" in printed


@pytest.mark.slow
def test_any_name_and_group_finds_its_test_again(tmp_path: Path) -> None:
    tests = r"""
@pytest.mark.parametrize("name", [
    pytest.param("a/b [c]::d @e", marks=pytest.mark.xdist_group("some group")),
    "$(exit 1) -k \u00fc\n@",
    "]@",
])
def test_odd(name):
    assert not is_first(name)
"""
    assert full_run(tmp_path, tests)[:2] == (0, "1 passed, 3 unsteady")


@pytest.mark.slow
def test_fixtures_and_crashed_workers_count_as_the_failures_of_their_tests(tmp_path: Path) -> None:
    tests = """
@pytest.fixture
def broken_before():
    assert not is_first("before")

@pytest.fixture
def broken_after():
    yield
    assert not is_first("after")

def test_before(broken_before):
    pass

@pytest.mark.xdist_group("after")
def test_after(broken_after):
    pass

def test_crash():
    if is_first("crash"):
        os._exit(1)
"""
    code, last, printed = full_run(tmp_path, tests)
    assert (code, last) == (0, "2 passed, 3 unsteady")
    assert "crashed while running 'test_small.py::test_crash'" in block(printed)


@pytest.mark.slow
def test_four_unsteady_tests_fail_the_run(tmp_path: Path) -> None:
    tests = """
@pytest.mark.parametrize("name", "abcd")
def test_flaky(name):
    assert not is_first(name)
"""
    code, last, printed = full_run(tmp_path, tests)
    assert (code, last) == (1, "4 failed, 1 passed")
    assert printed.count("again, alone: test_small.py::test_flaky") == 4


@pytest.mark.slow
def test_no_test_runs_again_if_many_fail(tmp_path: Path) -> None:
    tests = """
@pytest.mark.parametrize("number", range(21))
def test_broken(number):
    assert not is_first(str(number))
"""
    code, last, printed = full_run(tmp_path, tests)
    assert (code, last) == (1, "21 failed, 1 passed")
    assert "again, alone" not in printed


@pytest.mark.slow
def test_a_run_that_ended_early_fails_although_its_failures_pass_alone(tmp_path: Path) -> None:
    """Two tests crash their workers; then xdist gives up, and the tests after them never run."""
    tests = """
@pytest.mark.parametrize("number", range(9))
def test_crash(number):
    if number < 2 and "PYTEST_XDIST_WORKER" in os.environ:
        os._exit(1)
"""
    code, last, printed = full_run(tmp_path, tests, "--max-worker-restart=1")
    assert code == 1, printed
    assert "unsteady" not in last


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "text", "options", "code"),
    [
        ("test_broken.py", "import nothing_of_that_name", [], 1),
        ("conftest.py", "def pytest_collection_modifyitems(items): raise RuntimeError", [], 3),
        ("conftest.py", "", ["--no-such-option"], 4),
        ("conftest.py", "", ["--deselect=test_small.py"], 5),
    ],
)
def test_other_errors_fail_the_run_at_once(tmp_path: Path, name: str, text: str, options: list[str], code: int) -> None:
    (tmp_path / name).write_text(text)
    found, _, printed = full_run(tmp_path, ONCE, *options)
    assert found == code, printed
    assert "again, alone" not in printed
