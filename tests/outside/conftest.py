"""The embedded AWS that all clients share."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.outside.schema import SCHEMA
from tests.outside.world import CLIENTS, ROOT, Outside, require_clients
from tests.template.stack import judged
from worm.dev.environment import Environment, Settings


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outside]:
    """One environment for all clients: each keeps to ids of its own."""
    require_clients(CLIENTS, is_ci=os.environ.get("CI") == "true")
    settings = Settings(window_seconds=0.2, run_schedules=False, concurrency_limit=2)
    with Environment(ROOT / "template.yaml", settings) as environment, judged(environment):
        outside = Outside(environment, environment.aws.s3(), tmp_path_factory.mktemp("outside"))
        schema = outside.folder("schema", {"schema.json": SCHEMA}) / "schema.json"
        outside.worm("push", str(schema))
        yield outside
