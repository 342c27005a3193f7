"""schemathesis asks `worm serve` whatever `/openapi.json` allows, and what it does not.

Every answer must be of a status, a media type, headers and a shape that the description has, and none a failure of the
server. The description is given as it is, but for names that exist: of a random model there is nothing but 404.

One seed and so many examples: how long it takes depends on the machine, what is asked does not.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.api.client import event, memory_session, reply
from tests.api.shop import SCHEMA
from tests.outside.world import CLIENTS
from worm.api.app import Api
from worm.api.local import LocalApi
from worm.clock import SystemClock
from worm.sdk.database import Worm

TOKEN = "of-this-test"
SEED, EXAMPLES = 21, 25
SCHEMATHESIS = CLIENTS / "schemathesis"
UNDECIDABLE = ["positive_data_acceptance"]
"""Checks that say nothing here: which documents and filters fit a model, the description of the API does not know."""
CONFIG = """
[[operations]]
include-name = "POST /v1/rejected/{id}/redrive"
checks.not_a_server_error.expected-statuses = ["2xx", "4xx", 501]

[[operations]]
include-name = "POST /v1/models/{model}/documents/{id}/upload"
checks.not_a_server_error.expected-statuses = ["2xx", "4xx", 501]
"""
"""Both need AWS, which is not here."""


def _some(*values: str) -> dict[str, Any]:
    """One of these, or any text."""
    return {"anyOf": [{"enum": list(values)}, {"enum": list(values)}, {"type": "string"}]}


PATHS: dict[str, Any] = {
    "model": {"enum": ["Note", "Account", "Draft"]},
    "id": _some("a", "b", "gone", "d/e"),
    "branch": _some("main", "draft"),
}
OTHERS: dict[str, Any] = {
    "branch": _some("main", "draft"),
    "If-Match": _some("*", '"x"'),
    "If-None-Match": _some("*", '"x"'),
    "sort": _some("title", "-stars,title"),
    "select": _some("title", "stars"),
    "filter": {"type": "array", "maxItems": 3, "items": _some("title=a", "stars>1", '{"title": "a"}')},
    "at": _some("2026-01-01T00:00:00Z", "1"),
    "key": _some("org/notes/a/data.json", "org/notes/gone/data.json"),
    **{name: {"type": "integer", "minimum": 1, "maximum": 3} for name in ("seq", "from", "to")},
}


def narrowed(description: Any) -> Any:
    """With names that exist."""
    for operations in description["paths"].values():
        for operation in operations.values():
            for one in operation["parameters"]:
                known = PATHS if one["in"] == "path" else OTHERS
                one["schema"] = known.get(one["name"], one["schema"])
    return description


def seeded() -> Worm:
    session = memory_session(SCHEMA, clock=SystemClock())
    for model in ("Note", "Draft"):
        session.model(model).insert_many([{"id": one, "title": one} for one in ("a", "b", "d/e", "gone")])
    session.model("Note").patch("a", {"stars": 2})
    session.model("Note").delete("gone")
    session.model("Account").insert({"id": "a", "name": "A", "balance": 1})
    session.create_branch("draft")
    session.branch("draft").model("Account").patch("a", {"balance": 2})
    return session


@pytest.fixture
def local() -> Iterator[LocalApi]:
    if not SCHEMATHESIS.exists():
        missing = "schemathesis is not installed in .venv-clients; run scripts/setup --clients"
        assert os.environ.get("CI") != "true", missing
        pytest.skip(missing)
    with LocalApi(seeded(), token=TOKEN) as one:
        yield one


@pytest.mark.clients
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_every_answer_is_as_the_description_says(
    local: LocalApi, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    description = json.loads(reply(Api(seeded).handle(event("GET", "/openapi.json"))).body)
    (tmp_path / "openapi.json").write_text(json.dumps(narrowed(description)))
    (tmp_path / "schemathesis.toml").write_text(CONFIG)
    options = {
        "--url": local.url,
        "--header": f"Authorization: Bearer {TOKEN}",
        "--seed": str(SEED),
        "--max-examples": str(EXAMPLES),
        "--phases": "coverage,fuzzing,stateful",
        "--generation-database": "none",
        "--checks": "all",
        "--exclude-checks": ",".join(UNDECIDABLE),
        "--request-timeout": "60",
    }
    command = [str(SCHEMATHESIS), "--config-file", "schemathesis.toml", "run", "openapi.json", "--no-color"]
    command += [part for option in options.items() for part in option]
    done = subprocess.run(command, cwd=tmp_path, text=True, capture_output=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"Tested: {len(_operations(description))}" in done.stdout
    assert [one.getMessage() for one in caplog.records if one.name.startswith("worm")] == []


def _operations(description: Any) -> list[str]:
    return [method for operations in description["paths"].values() for method in operations]
