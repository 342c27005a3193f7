"""The commit log under any order of requests, faults, crashes, sleeping processes and wrong clocks.

`WORM_SEED=n` replays one run; `WORM_SEEDS=n` runs so many, 2,000 of them in a night.
"""

from __future__ import annotations

import os

import pytest

from tests.log.simulation import Simulation, check, heal

SEEDS = int(os.environ.get("WORM_SEEDS", "500"))
PARTS = 8


def simulate(seed: int) -> Simulation:
    simulation = Simulation(seed, is_failing=seed % 4 != 0)
    try:
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
    simulate(int(os.environ["WORM_SEED"]))


def test_a_few_seeds() -> None:
    for seed in range(8):
        simulate(seed)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_many_seeds(part: int) -> None:
    totals = [0, 0, 0]
    for seed in range(part, SEEDS, PARTS):
        told = simulate(seed).told
        totals = [totals[0] + len(told.acked), totals[1] + told.fences, totals[2] + told.collected]
    assert all(total > SEEDS // PARTS for total in totals), totals


def test_the_same_seed_gives_the_same_run() -> None:
    one, other = simulate(7), simulate(7)
    assert one.told == other.told
    assert one.steps == other.steps
    assert one.clock.now() == other.clock.now()
