"""What is committed: nothing of one machine, nothing secret, and files that agree with each other."""

from __future__ import annotations

import os
import re
import tomllib
from importlib.metadata import version
from typing import Any

import pytest

from scripts.setup import develop_group
from tests.project.source_tree import ROOT, relative, tracked_files, tracked_texts

MACHINE_PATH = re.compile(r"(?<![\w.*-])/(?:work|root|Users|home/\w+)/")
# Written so that this line does not match itself.
PACKAGE_INDEX = re.compile(
    r"(?i)--(?:extra-)?(?:index)-url|find-(?:links)|trusted-(?:host)|(?:pypi|artifactory|nexus)[a-z.-]*\.[a-z]+/|\bPIP_[A-Z]+="
)
SECRET = re.compile(
    r"(?:AKIA|ASIA)[0-9A-Z]{16}|-----BEGIN [A-Z ]*PRIVATE KEY-----|gh[pousr]_[A-Za-z0-9]{30}|xox[bp]-[0-9]{6}"
)
UNFINISHED = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|XX" + r"X)\b")


def _lines_with(pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{name}:{number}: {line.strip()[:100]}"
        for name, text in tracked_texts()
        if pattern.search(text)  # much faster than line by line
        for number, line in enumerate(text.splitlines(), start=1)
        if pattern.search(line)
    ]


def _project() -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return project


def _pins(name: str) -> dict[str, str]:
    pins = re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / name).read_text(), flags=re.MULTILINE)
    return {_canonical(package): pinned for package, pinned in pins}


def _canonical(package: str) -> str:
    return re.sub(r"[-_.]+", "-", package).lower()


def _requirement_name(requirement: str) -> str:
    found = re.match(r"[\w.-]+", requirement)
    assert found is not None, requirement
    return _canonical(found[0])


def test_no_file_names_a_path_of_somebodys_machine() -> None:
    assert _lines_with(MACHINE_PATH) == []


def test_no_file_names_a_package_index() -> None:
    """Where packages come from is a setting of the machine (pip config), not of the project."""
    assert _lines_with(PACKAGE_INDEX) == []


def test_no_file_holds_a_secret() -> None:
    assert _lines_with(SECRET) == []


def test_nothing_is_left_unfinished() -> None:
    assert _lines_with(UNFINISHED) == []


def test_text_files_end_with_one_newline_and_have_no_trailing_blanks() -> None:
    untidy = [
        name
        for name, text in tracked_texts()
        if text and (not text.endswith("\n") or text.endswith("\n\n") or re.search(r"[ \t]+$", text, re.MULTILINE))
    ]
    assert untidy == []


def test_scripts_can_be_executed() -> None:
    with_shebang = [path for path in tracked_files() if path.read_bytes().startswith(b"#!")]
    names = {relative(path) for path in with_shebang}
    assert {f"scripts/{name}" for name in ("setup", "run", "test", "lint", "bench", "package_spark")} | {
        ".ci/run"
    } <= names
    assert [relative(path) for path in with_shebang if not os.access(path, os.X_OK)] == []


def test_the_extras_that_users_are_told_about_exist() -> None:
    assert {"api", "arrow", "cli", "dev", "fast", "spark", "sql"} == set(_project()["optional-dependencies"])


def _layer_requirements() -> list[str]:
    return sorted([*_project()["dependencies"], *_project()["optional-dependencies"]["api"]])


def test_the_layer_requires_what_the_project_requires() -> None:
    lines = (ROOT / "shared" / "requirements.txt").read_text().splitlines()
    assert [line for line in lines if line and not line.startswith("#")] == _layer_requirements()


def test_the_layers_pins_are_those_of_the_development_environment() -> None:
    pins = _pins("constraints.txt")
    layer = _pins("shared/constraints.txt")
    assert layer == {name: pins[name] for name in layer}
    assert {_requirement_name(one) for one in _layer_requirements()} <= set(layer)


def test_every_dependency_is_pinned() -> None:
    extras = _project()["optional-dependencies"]
    wanted = [*_project()["dependencies"], *(one for extra in extras.values() for one in extra), *develop_group()]
    names = {_requirement_name(requirement) for requirement in wanted} - {"s3worm"}
    assert names - set(_pins("constraints.txt")) == set()
    on_emr = {_requirement_name(requirement) for requirement in [*_project()["dependencies"], *extras["spark"]]}
    assert on_emr - set(_pins("constraints-spark40.txt")) == set()
    assert {"aws-sam-cli", "aws-sam-translator", "cfn-lint", "checkov"} <= set(_pins("constraints-tools.txt"))


def test_the_second_spark_is_that_of_emr_and_all_else_is_the_same() -> None:
    pins, on_emr = _pins("constraints.txt"), _pins("constraints-spark40.txt")
    assert on_emr["pyspark"].startswith("4.0.")
    assert {name for name, pinned in on_emr.items() if pins[name] != pinned} == {"pyspark"}


@pytest.mark.parametrize("package", ["boto3", "moto", "obstore", "orjson", "pyarrow", "pydantic", "pyspark"])
def test_this_environment_has_the_pinned_versions(package: str) -> None:
    assert version(package) == _pins("constraints.txt")[package]


def test_make_explains_each_of_its_targets() -> None:
    text = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z][\w-]*):", text, flags=re.MULTILINE))
    explained = set(re.findall(r"^([a-z][\w-]*):.*## \w", text, flags=re.MULTILINE))
    assert {"check", "test", "run", "bench", "lint", "clean", "lock", "package"} <= explained
    assert targets == explained


def test_the_change_log_has_an_entry_for_this_version() -> None:
    assert f"\n## {_project()['version']}" in (ROOT / "CHANGELOG.md").read_text()
