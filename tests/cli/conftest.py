"""A directory with a pushed schema and three customers, and the command as a function."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.cli.company import SCHEMA, SDK_CALL, Command, Ended
from worm.cli.program import app
from worm.clock import Ids, VirtualClock
from worm.formats import load_schema
from worm.formats.strict_json import JsonValue
from worm.sdk.database import Worm, connect, push
from worm.store.base import Store
from worm.store.file import FileStore
from worm.store.open import open_store
from worm.store.probe import ensure_safe


def _trusting(store: Store, *, ids: Ids) -> None:
    """A directory is safe: `tests/store/test_probe.py` shows it. To probe it takes longer than most commands do."""
    if not isinstance(store, FileStore):
        ensure_safe(store, ids=ids)


@pytest.fixture
def worm(monkeypatch: pytest.MonkeyPatch) -> Command:
    """Runs the command in this process, apart from the developer's own settings. Whatever it says on stderr is said to
    somebody at a shell: it never names a call of the SDK."""
    for name in ("WORM_URL", "WORM_ACTOR", "WORM_MAINTENANCE", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("worm.upkeep.session.ensure_safe", _trusting)

    def run(*arguments: str, stdin: str | None = None) -> Ended:
        result = CliRunner().invoke(app, list(arguments), input=stdin, catch_exceptions=False)
        assert SDK_CALL.search(result.stderr) is None, result.stderr
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
def filled(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, tuple[bytes, float]]:
    """Made once and written again by `session`: files with their bytes and times. Time stands at 2026-01-01 and moves
    a second with every save."""
    folder = tmp_path_factory.mktemp("filled")
    push(open_store(folder), load_schema(SCHEMA))
    clock = VirtualClock()
    customers = connect(
        str(folder), actor="user:ann", maintenance="inline", probe=False, clock=clock, ids=Ids.seeded(1)
    ).model("Customer")
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
    files = [path for path in folder.rglob("*") if path.is_file() and path.parent.name != "locks"]
    return {path.relative_to(folder): (path.read_bytes(), path.stat().st_mtime) for path in files}


@pytest.fixture
def session(url: str, filled: dict[Path, tuple[bytes, float]]) -> Worm:
    """The filled directory, at a later time."""
    for folder in sorted({Path(url, name).parent for name in filled}):
        folder.mkdir(parents=True, exist_ok=True)
    for name, (body, modified) in filled.items():
        path = Path(url, name)
        path.write_bytes(body)
        os.utime(path, (modified, modified))
    clock = VirtualClock(datetime(2026, 1, 2, tzinfo=UTC))
    return connect(url, actor="user:ann", maintenance="inline", probe=False, clock=clock, ids=Ids.seeded(2))
