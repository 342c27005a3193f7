"""`worm demo`: what it hands to the demo, and what it says where something that it needs is missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.company import Command
from worm.dev.demo import DOCUMENTS, QUICK_DOCUMENTS
from worm.dev.spark import spark_problem


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """What the demo was called with; it does not run."""
    found: dict[str, object] = {}

    def run(**options: object) -> int:
        found.update(options)
        return 0

    monkeypatch.setattr("worm.dev.demo.run", run)
    return found


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder with programs, beside the Python of an environment without Spark."""
    monkeypatch.setattr("worm.dev.spark.sys.executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    return tmp_path


def _program(path: Path, text: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{text}' >&2\n")
    path.chmod(0o755)


def test_quick_is_few_documents_without_spark(worm: Command, given: dict[str, object]) -> None:
    assert worm("demo", "--quick").exit_code == 0
    assert given == {"documents": QUICK_DOCUMENTS, "without_spark": "--quick leaves out the rebuild with Spark"}


def test_it_goes_on_without_spark(worm: Command, given: dict[str, object], programs: Path) -> None:
    assert worm("demo").exit_code == 0
    missing = "Spark is not installed, so it rebuilds nothing here (pip install 's3worm[spark]')"
    assert given == {"documents": DOCUMENTS, "without_spark": missing}


def test_it_goes_on_without_java(programs: Path) -> None:
    _program(programs / "spark-submit")
    missing = "Spark needs Java 17 or newer, so it rebuilds nothing here (java does not start)"
    assert spark_problem() == missing


@pytest.mark.parametrize(("version", "major"), [("1.8.0_392", 8), ("11.0.21", 11)])
def test_it_goes_on_without_a_java_that_spark_can_use(programs: Path, version: str, major: int) -> None:
    _program(programs / "spark-submit")
    _program(programs / "java", f'openjdk version "{version}"')
    assert spark_problem() == f"Spark needs Java 17 or newer, so it rebuilds nothing here (java is Java {major})"


def test_java_home_is_the_java_that_counts(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _program(programs / "spark-submit")
    _program(programs / "java", 'openjdk version "21.0.1"')
    assert spark_problem() is None
    monkeypatch.setenv("JAVA_HOME", str(programs / "jdk"))
    missing = f"Spark needs Java 17 or newer, so it rebuilds nothing here ({programs}/jdk/bin/java does not start)"
    assert spark_problem() == missing
    _program(programs / "jdk" / "bin" / "java", 'openjdk version "17.0.9"')
    assert spark_problem() is None


@pytest.mark.parametrize("command", ["demo", "dev"])
def test_windows_is_sent_to_wsl(worm: Command, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    monkeypatch.setattr("worm.dev.commands.IS_WINDOWS", True)
    ended = worm(command)
    assert (ended.exit_code, ended.stderr) == (
        2,
        "worm: the embedded AWS needs process groups, which Windows lacks (use WSL)\n",
    )


@pytest.mark.parametrize("command", [["demo"], ["dev"], ["demo", "--quick"]])
def test_macos_gets_no_functions_that_could_not_start(
    worm: Command, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    """AWS's runtime client installs there, without the part that talks to Lambda."""
    monkeypatch.setattr("worm.dev.environment.find_spec", lambda name: None)
    ended = worm(*command)
    missing = "Lambda functions cannot run here: the compiled part of AWS's runtime client exists for Linux only"
    assert (ended.exit_code, ended.stderr) == (6, f"worm: {missing} (use Linux, a Linux container, or WSL)\n")


@pytest.mark.parametrize(
    ("command", "package", "extra"),
    [("demo", "yaml", "dev"), ("dev", "yaml", "dev"), ("serve", "aws_lambda_powertools", "api")],
)
def test_a_command_without_its_extra_says_what_to_install(command: str, package: str, extra: str) -> None:
    ended = _without(package, f"sys.argv[1:] = [{command!r}]; from worm.cli.main import main; main()")
    missing = f"this command needs the package {package}, which is not installed (pip install 's3worm[{extra}]')"
    assert (ended.returncode, ended.stdout, ended.stderr) == (3, "", f"worm: {missing}\n")


@pytest.mark.parametrize("arguments", [[], ["--help"], ["table", "list"]])
def test_the_core_alone_says_how_to_get_the_command(arguments: list[str]) -> None:
    ended = _without("typer", f"sys.argv[1:] = {arguments!r}; from worm.cli.main import main; main()")
    expected = "worm: the command is not installed, only the library; pip install 's3worm[cli]'\n"
    assert (ended.returncode, ended.stdout, ended.stderr) == (3, "", expected)


@pytest.mark.parametrize("module", ["worm.api.routes", "worm.api.local", "worm.upkeep.workers.lambdas"])
def test_a_module_without_powertools_says_what_to_install(module: str) -> None:
    ended = _without("aws_lambda_powertools", f"import {module}")
    room = "worm.api" if module.startswith("worm.api") else module
    last = f"ModuleNotFoundError: {room} needs the package aws-lambda-powertools: pip install 's3worm[api]'"
    assert (ended.returncode, ended.stderr.splitlines()[-1]) == (1, last)


def _without(package: str, program: str) -> subprocess.CompletedProcess[str]:
    """Runs the program where the package is not installed."""
    text = f"import sys; sys.modules[{package!r}] = None; {program}"
    return subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False, timeout=60)
