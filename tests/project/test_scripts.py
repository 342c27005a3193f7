"""The scripts that a new user calls first."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import setup
from tests.project.source_tree import ROOT


@pytest.fixture
def small_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A root with the files that decide about an environment, and no package to install."""
    (tmp_path / "pyproject.toml").write_text('[dependency-groups]\ndevelop = ["pytest>=9"]\n')
    (tmp_path / "constraints.txt").write_text("a==1\n")
    monkeypatch.setattr(setup, "ROOT", tmp_path)
    return tmp_path


@pytest.fixture
def installs(small_project: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The pip calls, which are not made."""
    calls: list[list[str]] = []
    monkeypatch.setattr(setup, "run", lambda command, hint: calls.append([str(part) for part in command]))
    return calls


def _extras(installs: list[list[str]]) -> list[str]:
    return [call[-1] for call in installs]


@pytest.mark.slow
def test_setup_installs_once_and_again_only_when_the_pins_change(
    small_project: Path, installs: list[list[str]]
) -> None:
    setup.ensure(setup.application())
    setup.ensure(setup.application())
    assert _extras(installs) == [".[dev,spark]"]
    (small_project / "constraints.txt").write_text("a==2\n")
    setup.ensure(setup.application())
    assert _extras(installs) == [".[dev,spark]", ".[dev,spark]"]


@pytest.mark.slow
def test_an_environment_for_tests_serves_to_run_as_well(installs: list[list[str]]) -> None:
    setup.ensure(setup.development(), implied=[setup.application()])
    setup.ensure(setup.application())
    assert _extras(installs) == ["pytest>=9"]


@pytest.mark.slow
def test_a_failed_install_is_tried_again_the_next_time(small_project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A half-installed environment must not count as ready."""
    attempts: list[str] = []

    def fail(command: object, hint: str) -> None:
        attempts.append(hint)
        raise setup.SetupFailed("no network")

    monkeypatch.setattr(setup, "run", fail)
    for _ in range(2):
        with pytest.raises(setup.SetupFailed):
            setup.ensure(setup.application())
    assert len(attempts) == 2


@pytest.mark.slow
def test_an_environment_whose_python_is_gone_is_made_anew(small_project: Path, installs: list[list[str]]) -> None:
    setup.ensure(setup.application())
    python = small_project / ".venv" / "bin" / "python"
    python.unlink()
    setup.ensure(setup.application())
    assert _extras(installs) == [".[dev,spark]", ".[dev,spark]"]
    assert python.exists()


@pytest.mark.slow
def test_the_spark_of_emr_has_an_environment_and_pins_of_its_own(
    small_project: Path, installs: list[list[str]]
) -> None:
    (small_project / "constraints-spark40.txt").write_text("pyspark==4.0.2\n")
    setup.ensure(setup.spark40())
    (call,) = installs
    assert call[0] == str(small_project / ".venv-spark40" / "bin" / "python")
    assert call[-4:] == ["--constraint", "constraints-spark40.txt", "--editable", ".[spark]"]


@pytest.mark.slow
def test_clients_have_an_environment_of_their_own_because_they_pin_another_botocore(
    small_project: Path, installs: list[list[str]]
) -> None:
    (small_project / "constraints-clients.txt").write_text("botocore==1\n")
    setup.ensure(setup.clients())
    (call,) = installs
    assert call[0] == str(small_project / ".venv-clients" / "bin" / "python")
    assert call[-8:] == ["--constraint", "constraints-clients.txt", *setup.clients().requirements]


def test_a_run_and_a_test_set_up_java_and_a_test_tells_where_the_spark_of_emr_is() -> None:
    run, test = ((ROOT / "scripts" / name).read_text() for name in ("run", "test"))
    assert "\nscripts/setup --java\n" in run
    assert "\nscripts/setup --dev --java --spark40 --tools --clients --browser --localstack || exit 1\n" in test
    assert '\nexport WORM_SPARK40_PYTHON="$PWD/.venv-spark40/bin/python"\n' in test


def test_the_fast_part_starts_no_spark() -> None:
    makefile = (ROOT / "Makefile").read_text()
    check = re.search(r'^check:.*\n(?:\t.*\n)*?\t.*pytest .*-m "([^"]+)"', makefile, re.MULTILINE)
    assert check is not None
    assert {"not spark", "not slow"} <= set(check[1].split(" and "))


def test_a_failing_step_shows_its_output_and_what_to_do() -> None:
    with pytest.raises(setup.SetupFailed) as failure:
        setup.run(["sh", "-c", "echo no such package; exit 3"], "Ask for help.")
    expected = "no such package\n'sh -c echo no such package; exit 3' ended with 3. Ask for help."
    assert str(failure.value) == expected


def test_setup_refuses_a_python_that_is_too_old() -> None:
    environment = {"PATH": "/usr/bin:/bin", "PYTHON": "/bin/false"}
    command = [str(ROOT / "scripts" / "setup")]
    done = subprocess.run(command, env=environment, text=True, capture_output=True, check=False)
    message = "setup: PYTHON=/bin/false is not Python 3.11 or newer with the venv module\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", message)


def test_bench_lists_the_benchmarks_when_the_name_is_unknown() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "bench.py"), "nonsense"]
    done = subprocess.run(command, text=True, capture_output=True, check=False)
    assert done.returncode == 2
    assert "there is no benchmark 'nonsense'" in done.stderr
    assert "coldstart" in done.stderr


def test_make_without_a_target_prints_help() -> None:
    done = subprocess.run(["make", "--no-print-directory"], cwd=ROOT, text=True, capture_output=True, check=False)
    assert done.returncode == 0
    assert [line.split()[1] for line in done.stdout.splitlines()][:4] == ["help", "setup", "run", "test"]
