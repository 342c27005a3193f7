"""docs/operations.md: the screens are what `worm doctor` prints, and every alarm has a runbook that can be run."""

from __future__ import annotations

import re
import shlex
from datetime import timedelta
from typing import Any

import pytest
import typer.main

from tests.cli.deployed import Deployed
from tests.docs.markdown import ROOT
from tests.docs.recording import (
    ALARMS,
    BUCKET,
    NOW,
    STACK,
    healthy,
    letters,
    outage,
    recorded,
    seed_documents,
    set_alarms,
)
from tests.emulators import s3_client
from worm.cli.app import app
from worm.dev.cfn import load

PAGE = ROOT / "docs" / "operations.md"


def section(title: str) -> str:
    """From a heading of the second level to the next one."""
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", PAGE.read_text(), flags=re.MULTILINE | re.DOTALL)
    assert found is not None, title
    return found[1]


@pytest.fixture
def stack(moto_endpoint: str, aws_environment: None, monkeypatch: pytest.MonkeyPatch) -> Deployed:
    monkeypatch.setenv("AWS_ENDPOINT_URL", moto_endpoint)
    monkeypatch.delenv("WORM_URL", raising=False)
    s3_client(moto_endpoint).create_bucket(Bucket=BUCKET)
    made = Deployed(moto_endpoint, STACK, BUCKET).create().create_functions()
    seed_documents(made)
    healthy(made)
    set_alarms(made)
    return made


def test_the_screens_of_the_doctor_are_what_it_prints(stack: Deployed, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = re.findall(r"^```text\n(.*?)^```$", section("Is it well?"), flags=re.MULTILINE | re.DOTALL)
    screens = [recorded(stack, monkeypatch, NOW)]
    outage(stack)
    screens.append(recorded(stack, monkeypatch, NOW))
    letters(stack)
    screens.append(recorded(stack, monkeypatch, NOW + timedelta(minutes=30)))
    assert [code for code, _ in screens] == [0, 1, 1]
    assert shown == [text for _, text in screens]


# Runbooks

RUNBOOKS = dict(
    re.findall(r"^### Alarm ([a-z-]+)\n(.*?)(?=^### |\Z)", section("Alarms"), flags=re.MULTILINE | re.DOTALL)
)
NESTED = (ROOT / "functions" / "observability.yaml", ROOT / "spark_jobs" / "template.yaml")


def deployed_alarms() -> set[str]:
    """The alarms of the nested templates, without the name of the stack."""
    found = set()
    for path in NESTED:
        resources = load(path.read_text())["Resources"].values() if path.exists() else ()
        names = [one["Properties"]["AlarmName"] for one in resources if one["Type"] == "AWS::CloudWatch::Alarm"]
        found |= {one["Fn::Sub"].partition("}-")[2] for one in names}
    return found


def test_every_alarm_has_a_runbook_and_no_other() -> None:
    assert set(RUNBOOKS) == {*ALARMS, "spark-failed"}
    assert deployed_alarms() in (set(), set(RUNBOOKS))


@pytest.mark.parametrize("alarm", RUNBOOKS)
def test_a_runbook_says_what_it_means_what_to_run_and_when_to_stop(alarm: str) -> None:
    text = RUNBOOKS[alarm]
    assert re.findall(r"^\*([A-Za-z ]+):\* ", text, flags=re.MULTILINE) == ["It means", "Stop when"]
    fenced = r"^```{}\n(.*?)^```$"
    [commands] = re.findall(fenced.format("sh"), text, flags=re.MULTILINE | re.DOTALL)
    [asked] = re.findall(fenced.format("insights"), text, flags=re.MULTILINE | re.DOTALL)
    assert len(commands.splitlines()) == 3
    assert asked.startswith("fields @timestamp, ")
    assert "\n| filter " in asked


@pytest.mark.parametrize("title", ["Alarms", "Dead letters", "Is it well?"])
def test_every_command_of_a_runbook_exists(title: str) -> None:
    """A command that is mistyped costs most when something is on fire."""
    shells = re.findall(r"^```sh\n(.*?)^```$", section(title), flags=re.MULTILINE | re.DOTALL)
    lines = [line for one in shells for line in one.splitlines()]
    assert lines != []
    for line in lines:
        program, *words = shlex.split(line)
        assert program in ("worm", "aws"), line
        if program == "worm":
            command: Any = typer.main.get_command(app)
            while words and words[0] in getattr(command, "commands", {}):
                command = command.commands[words.pop(0)]
            assert not getattr(command, "commands", {}), line
            with command.make_context(line, words):
                pass
