"""A fresh bucket of somebody else for each test."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest

from tests.attach.attach_room import SCHEMA, Room
from worm.store.s3_boto import BotoSide


@cache
def _client(endpoint_url: str | None, region: str | None) -> object:
    return BotoSide("", endpoint_url, region, "worm-tests", 30.0)._made_client()


@pytest.fixture
def room(moto_endpoint: str, aws_environment: None, monkeypatch: pytest.MonkeyPatch) -> Room:
    """Clients are made once: making one takes longer than most commands do. So does probing moto, which
    `tests/store/test_probe.py` shows to be safe."""
    for module in ("worm.cli.attach", "worm.upkeep.session"):
        monkeypatch.setattr(f"{module}.ensure_safe", lambda store, **options: None)
    monkeypatch.setattr(BotoSide, "_make", lambda side: _client(side.endpoint_url, side.region))
    for name in ("WORM_URL", "WORM_ACTOR", "WORM_MAINTENANCE"):
        monkeypatch.delenv(name, raising=False)
    return Room(moto_endpoint)


@pytest.fixture
def schema_file(tmp_path: Path) -> str:
    path = tmp_path / "schema.json"
    path.write_text(json.dumps(SCHEMA))
    return str(path)
