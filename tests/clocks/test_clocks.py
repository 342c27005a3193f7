"""Clocks that jump by years under sessions, workers and compaction: see `clock_life.py`.

A seed that fails is printed; `WORM_SEED=<n>` runs that one alone, `WORM_SEEDS=<count>` runs more of them.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.clocks.clock_life import Broken, Life
from tests.corrupt_report import stored_around
from tests.sdk.sessions import Bench
from worm.errors import Corrupt

SEEDS = [int(os.environ["WORM_SEED"])] if "WORM_SEED" in os.environ else range(int(os.environ.get("WORM_SEEDS", "40")))
FAST_SEEDS = 2
CALLS = 250


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=[pytest.mark.slow] if seed >= FAST_SEEDS else []) for seed in SEEDS]
)
def test_clocks_that_jump_by_years_lose_nothing_and_damage_nothing(seed: int) -> None:
    life = Life(seed)
    try:
        life.run(CALLS)
    except (Broken, AssertionError):
        print("\n".join(life.trail[-40:]))
        print(f"WORM_SEED={seed} replays this")
        raise
    assert life.calls.total() >= CALLS


@pytest.mark.slow
def test_some_lives_restore_what_they_deleted() -> None:
    """Else they would say nothing of restores. In a single life, chance may have everything purged first."""
    lives = [Life(seed) for seed in range(2, 5)]
    for life in lives:
        life.run(CALLS)
    assert any(life.calls["restore"] > life.refused["restore NotFound"] for life in lives)


def test_a_seed_replays_the_same_life() -> None:
    """Else a failing seed tells nothing."""
    lives = [Life(4), Life(4)]
    for life in lives:
        life.run(60)
    assert lives[0].trail == lives[1].trail


def test_a_corrupt_in_a_test_shows_the_objects_that_it_looked_at(tmp_path: Path) -> None:
    bench = Bench("memory", tmp_path)
    bench.customers().insert({"id": "a", "name": "Acme"})
    bench.customers().delete("a")
    tombstone = ".worm.trash/customers/a/.worm.tombstone"
    bench.store.put(tombstone, b'{"broken": true}')
    with pytest.raises(Corrupt) as caught:
        bench.customers().restore("a")
    shown = stored_around(Broken("of another client").with_traceback(None))
    assert shown is None
    try:
        raise Broken("of another client") from caught.value
    except Broken as broken:
        shown = stored_around(broken)
    assert shown is not None
    assert repr(caught.value) in shown
    assert tombstone in shown
    assert repr(b'{"broken": true}') in shown
    assert ".worm.trash/customers/a/profile.json" in shown
