"""Environments of the embedded AWS, one per test module where tests can share it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from worm.dev.environment import Environment, Settings

HERE = Path(__file__).parent
SMALL_TEMPLATE = HERE / "template_small.yaml"


@pytest.fixture(scope="module")
def env() -> Iterator[Environment]:
    """The small template on moto, with a short window."""
    settings = Settings(window_seconds=0.1, retry_seconds=1, run_schedules=False)
    with Environment(SMALL_TEMPLATE, settings) as environment:
        yield environment
