"""A worker of a stack without spaces does not load them: its start would be the slower for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    "worker",
    [
        "upkeep.workers.tables",
        *(pytest.param(one, marks=pytest.mark.slow) for one in ("upkeep.workers.capture", "upkeep.purge")),
    ],
)
def test_a_worker_that_opens_no_space_loads_none(worker: str) -> None:
    told = f"import sys, worm.{worker}; print(*(name for name in sys.modules if name.startswith('worm.spaces.')))"
    done = subprocess.run(
        [sys.executable, "-c", told], cwd=ROOT / "shared", capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split() == []
