"""The mark `xdist_group` works: with a pytest or xdist that loses it, each worker runs expensive fixtures."""

from __future__ import annotations

import pytest


@pytest.mark.slow
@pytest.mark.xdist_group("groups")
def test_a_worker_knows_the_group_of_a_test(request: pytest.FixtureRequest) -> None:
    if not hasattr(request.config, "workerinput"):
        pytest.skip("there are no workers; scripts/test has two")
    assert request.node.nodeid.endswith("@groups")
