"""Sessions, workers and transactions behind a proxy that fails in every way at once: see `storm_room.py`.

`WORM_SEED=<n>` runs one seed, `WORM_SEEDS=<count>` runs more, `WORM_FAULT_SECONDS=<n>` lets each storm last longer.
"""

from __future__ import annotations

import os

import pytest

from tests.fault_proxy import FaultProxy
from tests.storm.storm_room import StormRoom

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("storm")]

SEEDS = [int(os.environ["WORM_SEED"])] if "WORM_SEED" in os.environ else range(int(os.environ.get("WORM_SEEDS", "2")))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", SEEDS)
def test_what_was_acknowledged_in_a_storm_is_there_once_and_everything_derived_follows(
    proxy: FaultProxy, seed: int
) -> None:
    room = StormRoom(proxy, seed)
    print(f"WORM_SEED={seed} replays what each client tries")
    room.run()
    print(f"{len(proxy.seen)} requests, struck: {dict(proxy.struck())}")
    print(f"{len(room.told.acked)} writes, {len(room.told.transfers)} transfers; {dict(room.told.refused)}")
    room.check()
    assert proxy.struck().total() > 10
    assert len(room.told.acked) > 2
