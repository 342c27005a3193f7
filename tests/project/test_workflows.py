"""The workflows of GitHub are not run here, so they do little: each step calls an action, or a script that runs here.

The JSON Schema that comes with check-jsonschema, yamllint and bash check what they can without a network. actionlint
would check more; it is a Go program that neither Debian nor the package index has, so it is not used.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.project.source_tree import ROOT

FOLDER = ROOT / ".github" / "workflows"
FILES = sorted(FOLDER.glob("*.yml"))
EXPRESSION = re.compile(r"\$\{\{(.*?)\}\}")
BIN = Path(sys.executable).parent
each_workflow = pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)


def _load(path: Path) -> dict[str, Any]:
    # YAML 1.1 takes `on` for true.
    found: dict[str, Any] = yaml.safe_load(path.read_text().replace("\non:", '\n"on":'))
    return found


def _jobs(path: Path) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = _load(path)["jobs"]
    return found


def _steps(path: Path) -> list[dict[str, Any]]:
    return [step for job in _jobs(path).values() for step in job["steps"]]


def _runs(path: Path) -> list[str]:
    return [step["run"] for step in _steps(path) if "run" in step]


def _accepted(*command: str | Path, text: str | None = None) -> None:
    done = subprocess.run(
        [str(one) for one in command], input=text, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_workflow_is_there() -> None:
    assert [path.stem for path in FILES] == ["check", "docs", "full", "localstack", "release", "template"]


def test_they_are_what_github_understands() -> None:
    _accepted(BIN / "check-jsonschema", "--builtin-schema", "vendor.github-workflows", *FILES)
    _accepted(BIN / "yamllint", "--strict", "--config-file", ROOT / ".yamllint", *FILES)


@each_workflow
def test_it_runs_nothing_but_scripts_of_this_repository(path: Path) -> None:
    for text in _runs(path):
        _accepted("bash", "-n", text=text)
        for line in text.splitlines():
            script, *arguments = shlex.split(line)
            assert script.startswith("./scripts/")
            assert os.access(ROOT / script, os.X_OK), script
            missing = [one for one in arguments if one.startswith("tests/") and not (ROOT / one).exists()]
            assert missing == []


@each_workflow
def test_no_expression_is_part_of_a_command(path: Path) -> None:
    """Anyone who can name a branch or a tag could write the command."""
    assert [text for text in _runs(path) if EXPRESSION.search(text)] == []


PERMISSIONS = {
    "docs": {"publish": {"id-token": "write", "pages": "write"}},
    "release": {"publish": {"id-token": "write"}},
}
"""What a job may do besides reading the code."""


@each_workflow
def test_it_may_read_the_code_and_has_no_secret(path: Path) -> None:
    workflow = _load(path)
    assert workflow["permissions"] == {"contents": "read"}
    more = {name: job["permissions"] for name, job in workflow["jobs"].items() if "permissions" in job}
    assert more == PERMISSIONS.get(path.stem, {})
    assert "secrets." not in path.read_text()
    checkouts = [step for step in _steps(path) if step.get("uses", "").startswith("actions/checkout@")]
    assert [step for step in checkouts if step["with"] != {"persist-credentials": False}] == []


@each_workflow
def test_jobs_end_and_versions_are_pinned(path: Path) -> None:
    for job in _jobs(path).values():
        assert job["timeout-minutes"] <= 150
        assert re.search(r"-\d", job["runs-on"]), "an image such as ubuntu-latest changes by itself"
    unpinned = [step["uses"] for step in _steps(path) if "uses" in step and not re.search(r"@v\d", step["uses"])]
    assert unpinned == []


def test_every_python_that_the_package_names_is_checked() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    assert _jobs(FOLDER / "check.yml")["linux"]["strategy"]["matrix"]["python"] == named


def test_localstack_has_the_same_version_in_docker_and_here() -> None:
    image = _jobs(FOLDER / "localstack.yml")["localstack"]["services"]["localstack"]["image"]
    pins = (ROOT / "scripts" / "localstack-requirements.txt").read_text()
    assert f"localstack-core=={image.partition(':')[2]}\n" in pins


def test_only_a_built_distribution_with_the_version_of_its_tag_is_published() -> None:
    jobs = _jobs(FOLDER / "release.yml")
    assert _load(FOLDER / "release.yml")["on"] == {"push": {"tags": ["v*"]}}
    assert jobs["publish"]["needs"] == "build"
    assert [step["uses"].partition("@")[0] for step in jobs["publish"]["steps"]] == [
        "actions/download-artifact",
        "pypa/gh-action-pypi-publish",
    ]
    assert jobs["build"]["env"]["TAG"] == "${{ github.ref_name }}"
    assert './scripts/distribution "$TAG"' in _runs(FOLDER / "release.yml")


def test_functions_are_not_invoked_without_docker(tmp_path: Path) -> None:
    """The script says what is missing before it builds anything."""
    for name in ("bash", "dirname", "env"):
        (tmp_path / name).symlink_to(shutil.which(name) or pytest.fail(f"there is no {name}"))
    done = subprocess.run(
        [ROOT / "scripts" / "local-invoke"], env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (1, "local-invoke: Docker is not running\n")


@pytest.mark.parametrize("script", ["check", "build"])
def test_make_calls_the_script(script: str) -> None:
    rule = re.search(rf"^{script}:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert rule is not None
    assert rule[1] == f"\t./scripts/{script}\n"
