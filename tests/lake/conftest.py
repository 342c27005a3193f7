"""Tables whose deltas stay."""

from __future__ import annotations

import pytest


@pytest.fixture
def _deltas_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small table is merged after each fold, because a delta has a quarter of its bytes. Large ones are not."""
    monkeypatch.setattr("worm.tables.tree.BASE_SHARE", 0)
