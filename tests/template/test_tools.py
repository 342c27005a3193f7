"""The tools that judge a SAM template each catch what the others miss, so all of them must be content."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.template.sam_document import ROOT, TEMPLATE, TEMPLATES, document

pytestmark = [pytest.mark.tools, pytest.mark.xdist_group("tools"), pytest.mark.timeout(300)]

REGION = "eu-central-1"
TOOLS = ROOT / ".venv-tools" / "bin"
CHECKOV_CONFIG = ROOT / ".checkov.yaml"


def _environment() -> dict[str, str]:
    """No account is ever asked: region and credentials are made up."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "SAM_"))}
    made_up = {"AWS_DEFAULT_REGION": REGION, "AWS_ACCESS_KEY_ID": "none", "AWS_SECRET_ACCESS_KEY": "none"}
    return {**kept, **made_up, "AWS_EC2_METADATA_DISABLED": "true", "SAM_CLI_TELEMETRY": "0"}


def tool(name: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    executable = TOOLS / name
    assert executable.exists(), f"{name} is missing: run scripts/setup --tools"
    command = [str(executable), *(str(argument) for argument in arguments)]
    return subprocess.run(command, cwd=ROOT, env=_environment(), text=True, capture_output=True, check=False)


def accepted(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


EVERY = pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: str(path.relative_to(ROOT)))
SAM = [path for path in TEMPLATES if "Transform" in document(path)]
EVERY_SAM = pytest.mark.parametrize("template", SAM, ids=lambda path: str(path.relative_to(ROOT)))


@pytest.fixture(scope="module")
def translated() -> dict[Path, str]:
    return {path: accepted(tool("python", "scripts/sam_translate.py", path)) for path in SAM}


@EVERY_SAM
def test_sam_validate_accepts_the_template(template: Path) -> None:
    assert "is a valid SAM Template" in accepted(tool("sam", "validate", "--region", REGION, "--template", template))


def test_sam_validate_would_see_a_misspelt_property_of_an_event(tmp_path: Path) -> None:
    """Guards the guard: lint does not look at the properties of SAM's events, plain validation does."""
    path = tmp_path / "template.yaml"
    path.write_text(TEMPLATE.read_text().replace("BatchSize: 100", "BatchSzie: 100"))
    done = tool("sam", "validate", "--region", REGION, "--template", path)
    assert done.returncode != 0
    assert "BatchSzie" in done.stdout + done.stderr


@EVERY
def test_sam_validate_lint_accepts_the_template(template: Path) -> None:
    output = accepted(tool("sam", "validate", "--lint", "--region", REGION, "--template", template))
    assert "is a valid SAM Template" in output


def test_cfn_lint_accepts_the_translated_templates(translated: dict[Path, str], tmp_path: Path) -> None:
    paths = [tmp_path / f"{path.stem}.json" for path in translated]
    for path, text in zip(paths, translated.values(), strict=True):
        path.write_text(text)
    assert accepted(tool("cfn-lint", "--non-zero-exit-code", "informational", *paths)) == ""


def test_cfn_lint_would_see_a_visibility_timeout_shorter_than_the_function(
    translated: dict[Path, str], tmp_path: Path
) -> None:
    """Guards the guard: only the translated template shows this mistake."""
    path = tmp_path / "translated.json"
    path.write_text(translated[TEMPLATE].replace('"VisibilityTimeout": 750', '"VisibilityTimeout": 60'))
    done = tool("cfn-lint", path)
    assert done.returncode != 0
    assert "E3505" in done.stdout


def test_checkov_accepts_the_templates() -> None:
    output = accepted(tool("checkov", "--config-file", CHECKOV_CONFIG, "--file", *TEMPLATES))
    assert "Failed checks: 0" in output


def test_every_exception_for_checkov_has_its_reason() -> None:
    text = CHECKOV_CONFIG.read_text()
    reasons = dict(re.findall(r"^  - (CKV_\w+)  # (.{40,})$", text, flags=re.MULTILINE))
    in_template = [
        skip
        for template in TEMPLATES
        for resource in document(template)["Resources"].values()
        for skip in resource.get("Metadata", {}).get("checkov", {}).get("skip", [])
    ]
    assert list(reasons) == yaml.safe_load(text)["skip-check"]
    assert [skip["id"] for skip in in_template if len(skip.get("comment", "")) < 40] == []
