from __future__ import annotations

from pathlib import Path

import pytest

from tests.sdk.sessions import KINDS, Bench


@pytest.fixture(params=KINDS)
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Bench:
    """A bench on every kind of store."""
    return Bench(request.param, tmp_path)
