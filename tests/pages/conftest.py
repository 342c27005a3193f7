"""Layers of tests are small; here they are read as large ones are, in pieces. `test_whole_layers.py` has others."""

from __future__ import annotations

import pytest

from worm.pages import layers

WHOLE_BYTES = layers.WHOLE_BYTES


@pytest.fixture(autouse=True)
def large_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "WHOLE_BYTES", 0)
