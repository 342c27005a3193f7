"""Every tutorial is followed from top to bottom in an empty directory, and prints what it shows."""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import tomllib
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from tests.cli.deployed import Deployed
from tests.docs.following import Desk, clean_environment, follow
from tests.docs.markdown import ROOT, blocks
from tests.emulators import CREDENTIALS, moto_server, s3_client
from worm.dev.cfn import load

pytestmark = pytest.mark.slow
FOLDER = ROOT / "docs" / "tutorials"
DEPLOY, SPARK = FOLDER / "deploy-to-aws.md", FOLDER / "spark-on-emr.md"
INSTALLS = re.compile(r"pip install|python3 -m venv|\. \.venv/bin/activate")
"""test_first_tutorial.py types these."""

NEEDS_ACCOUNT = re.compile(r"^(git clone|cd|make|\./scripts/|\.venv-tools/bin/sam|worm doctor) ?")
"""tests/template runs `make build`. What `worm doctor` prints is compared with docs/operations.md, which runs it."""

ON_EMR = re.compile(r"^(git clone|scripts/|aws |\.venv-tools/bin/sam)")


def shell_lines(page: Path) -> list[str]:
    text = "".join(block.text for block in blocks(page) if block.language == "sh")
    return re.sub(r"\s*\\\n\s*", " ", text).splitlines()


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """An empty directory."""
    folder = tmp_path / "desk"
    folder.mkdir()
    return Desk(folder, clean_environment(), skips=INSTALLS)


@pytest.mark.parametrize("name", ["crm", "history-and-undo", "branches", "sql-and-notebooks"])
def test_a_tutorial_on_a_directory_prints_what_it_shows(name: str, desk: Desk) -> None:
    """test_first_tutorial.py follows five-minutes.md, with its installation."""
    follow(FOLDER / f"{name}.md", desk)


@pytest.mark.timeout(300)
def test_the_tutorial_on_the_embedded_aws_prints_what_it_shows(desk: Desk) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    follow(FOLDER / "upload-to-query.md", replace(desk, replaces={"9325": port}, patience_seconds=60))


@pytest.mark.clients
@pytest.mark.timeout(300)
def test_the_deployment_that_needs_no_account_prints_what_it_shows(desk: Desk) -> None:
    """On a moto of its own: other tests have a stack of this name."""
    path = f"{desk.environment['PATH']}{os.pathsep}{ROOT / '.venv-clients' / 'bin'}"
    with moto_server() as endpoint:
        s3_client(endpoint).create_bucket(Bucket="acme-documents")
        Deployed(endpoint, "acme", "acme-documents").create()
        aws = CREDENTIALS | {"AWS_ENDPOINT_URL": endpoint, "PATH": path}
        away = {"--push crm.json": "--push crm.json --settle 0"}
        environment = {**desk.environment, **aws}
        printed = follow(DEPLOY, replace(desk, environment=environment, skips=NEEDS_ACCOUNT, replaces=away))
    (line,) = [line for line in shell_lines(DEPLOY) if "ExistingBucketName" in line]
    assert any(f"Deploy:  {line.removeprefix('.venv-tools/bin/')}\n" in one for one in printed)


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
@pytest.mark.timeout(900)
def test_the_spark_of_this_machine_prints_what_it_shows(desk: Desk) -> None:
    follow(
        SPARK,
        replace(
            desk,
            environment={**desk.environment, "SPARK_LOCAL_IP": "127.0.0.1"},
            skips=ON_EMR,
            replaces={"s3worm-python/spark_jobs": str(ROOT / "spark_jobs")},
            block_seconds_max=300,
        ),
    )


def test_what_is_sent_to_emr_is_what_its_page_sends() -> None:
    emr = ROOT / "docs" / "emr.md"
    sent = [line for line in shell_lines(SPARK) if line.startswith(("scripts/package_spark", "aws ", ".venv-tools"))]
    known = [line.partition("  #")[0].rstrip() for line in shell_lines(emr)]
    assert len(sent) == 5
    assert [line for line in sent if line not in known] == []
    jobs = [one for one in blocks(SPARK) if one.language == "json"]
    assert jobs != []
    assert [one for one in jobs if one not in blocks(emr)] == []


def test_the_crm_has_less_than_sixty_lines() -> None:
    models, program = [block.text for block in blocks(FOLDER / "crm.md") if block.text.startswith("# ")]
    assert len((models + program).splitlines()) < 60
    wanted = ("worm.Ref(", "unique=True", "soft_delete=True", ".restore(", "populate=")
    assert [word for word in wanted if word not in models + program] == []


def test_every_extra_that_a_tutorial_installs_exists() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for page in FOLDER.glob("*.md"):
        named = re.findall(r"pip install 's3worm\[([a-z,]+)\]'", page.read_text())
        assert named != [], page.name
        assert set(",".join(named).split(",")) <= set(extras), page.name


def test_the_screen_of_the_doctor_is_that_of_the_operations_page() -> None:
    (screen,) = [block.text for block in blocks(DEPLOY) if block.text.endswith("\nhealthy\n")]
    assert f"```text\n{screen}```" in (ROOT / "docs" / "operations.md").read_text()


@pytest.mark.tools
@pytest.mark.parametrize("page", [DEPLOY, SPARK], ids=lambda page: page.stem)
def test_every_option_and_parameter_of_sam_exists(page: Path) -> None:
    parameters, shown = load((ROOT / "template.yaml").read_text())["Parameters"], cache(_help_of)
    lines = [line for line in shell_lines(page) if line.startswith(".venv-tools/bin/sam ")]
    assert lines != []
    for line in lines:
        program, command, *words = shlex.split(line)
        told = shown(program, command)
        options = [word for word in words if word.startswith("--")]
        assert [one for one in options if not re.search(rf"{one}\b", told)] == [], line
        given = [word.partition("=")[0] for word in words if "=" in word]
        assert [one for one in given if one not in parameters] == [], line


def _help_of(program: str, command: str) -> str:
    """It takes seconds."""
    return subprocess.run([ROOT / program, command, "--help"], capture_output=True, text=True, check=True).stdout
