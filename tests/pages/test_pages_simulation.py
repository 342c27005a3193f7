"""A page store under any order of requests, faults, crashes, sleeping processes and wrong clocks: ring S.

`WORM_SEED=n` replays one run; `WORM_SEEDS=n` runs so many.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest

from tests.pages.conftest import WHOLE_BYTES
from tests.pages.page_simulation import PageSimulation, one_thread
from tests.pages.page_simulation_check import check, heal
from worm.pages import layers

SEEDS = int(os.environ.get("WORM_SEEDS", "160"))
PARTS = 4


def simulate(seed: int) -> PageSimulation:
    """Every other one reads layers by pieces, as if they were large."""
    simulation = PageSimulation(seed, is_failing=seed % 4 != 0)
    try:
        with one_thread(), pytest.MonkeyPatch.context() as patch:
            patch.setattr(layers, "WHOLE_BYTES", WHOLE_BYTES if seed % 2 else 0)
            simulation.run()
            check(simulation)
            heal(simulation)
            check(simulation)
            simulation.network.land(simulation.chance, 1.0)
            check(simulation)
    except BaseException as error:
        error.add_note(f"replay with WORM_SEED={seed}")
        raise
    return simulation


@pytest.mark.skipif("WORM_SEED" not in os.environ, reason="WORM_SEED names no run to replay")
def test_one_seed() -> None:
    print(simulate(int(os.environ["WORM_SEED"])).record.done)


@pytest.mark.slow
def test_a_few_seeds() -> None:
    for seed in range(4):  # with and without faults, layers whole and by pieces
        simulate(seed)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", range(PARTS))
def test_many_seeds(part: int) -> None:
    done: Counter[str] = Counter()
    for seed in range(part, SEEDS, PARTS):
        done += simulate(seed).record.done
    print(dict(done))
    for what in ("commit", "read", "flush", "apply", "compact", "collect", "branch", "deleted", "orphans"):
        assert done[what] > 0, (what, done)


def test_the_same_seed_gives_the_same_run() -> None:
    one, other = simulate(3), simulate(3)
    assert one.record == other.record
    assert one.steps == other.steps
    assert one.clock.now() == other.clock.now()
