"""A directory with a pushed schema and three customers, and the command as a function."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.cli.company import SCHEMA, Command, Ended
from worm.cli.main import app
from worm.clock import Ids, VirtualClock
from worm.codec.strict_json import JsonValue
from worm.model import Worm, connect, push
from worm.schema import load_schema
from worm.store.open import open_store


@pytest.fixture
def worm(monkeypatch: pytest.MonkeyPatch) -> Command:
    """Runs the command in this process, apart from the developer's own settings."""
    for name in ("WORM_URL", "WORM_ACTOR", "WORM_MAINTENANCE", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: str, stdin: str | None = None) -> Ended:
        result = CliRunner().invoke(app, list(arguments), input=stdin, catch_exceptions=False)
        return Ended(result.exit_code, result.stdout, result.stderr)

    return run


@pytest.fixture
def url(tmp_path: Path) -> str:
    return str(tmp_path / "data")


@pytest.fixture
def schema_file(tmp_path: Path) -> Path:
    path = tmp_path / "schema.json"
    path.write_text(json.dumps(SCHEMA))
    return path


@pytest.fixture(scope="session")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made once and copied by `session`. Time stands at 2026-01-01 and moves a second with every save."""
    folder = tmp_path_factory.mktemp("filled")
    push(open_store(folder), load_schema(SCHEMA))
    clock = VirtualClock()
    customers = connect(str(folder), actor="user:ann", probe=False, clock=clock, ids=Ids.seeded(1)).model("Customer")
    documents: dict[str, dict[str, JsonValue]] = {
        "acme": {"name": "Acme, Inc.", "status": "active", "score": 10.5, "seats": 3, "vip": True, "tags": ["a", "b"]},
        "kobe": {"name": "神戸紙", "status": "inactive", "score": 2, "address": {"city": "Kōbe"}},
        "zeta": {"name": "Zeta", "status": "active", "seats": 12, "vip": False},
    }
    for name, data in documents.items():
        customers.save(customers.create(data, id=name))
        clock.advance(1)
    found = customers.find_by_id("acme")
    assert found is not None
    customers.save(found | {"status": "churned"})
    return folder


@pytest.fixture
def session(url: str, filled: Path) -> Worm:
    """The filled directory, at a later time."""
    shutil.copytree(filled, url)
    clock = VirtualClock(datetime(2026, 1, 2, tzinfo=UTC))
    return connect(url, actor="user:ann", probe=False, clock=clock, ids=Ids.seeded(2))
