"""The proxy that storms are made of, in front of moto."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fault_proxy import FaultProxy, fault_proxy


@pytest.fixture
def proxy(request: pytest.FixtureRequest, aws_environment: None, moto_endpoint: str) -> Iterator[FaultProxy]:
    """Seeded by the parameter `seed` of the test, if it has one."""
    seed = request.node.callspec.params.get("seed", 0) if hasattr(request.node, "callspec") else 0
    with fault_proxy(moto_endpoint, seed=seed) as made:
        yield made
