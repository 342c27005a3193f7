"""The functions of the template, for tests of what they answer and print."""

from __future__ import annotations

import pytest

from tests.workers.function_room import Functions


@pytest.fixture
def functions(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Functions:
    return Functions(monkeypatch, capsys)
