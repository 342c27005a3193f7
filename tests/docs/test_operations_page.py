"""docs/operations.md: the screens are what `worm doctor` prints, and every command about dead letters exists."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest

from tests.cli.deployed import Deployed
from tests.docs.commands import check_command
from tests.docs.markdown import ROOT
from tests.docs.recording import (
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


@pytest.mark.parametrize("title", ["Dead letters", "Is it well?"])
def test_every_command_of_a_runbook_exists(title: str) -> None:
    """A command that is mistyped costs most when something is on fire."""
    shells = re.findall(r"^```sh\n(.*?)^```$", section(title), flags=re.MULTILINE | re.DOTALL)
    lines = [line for one in shells for line in one.splitlines()]
    assert lines != []
    for line in lines:
        check_command(line)
