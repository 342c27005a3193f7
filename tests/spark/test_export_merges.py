"""Exports that merge into Delta and Iceberg tables and append to them, on the Spark of EMR, where Maven can be reached.
All scenarios (merges_drive.py) run in one process: starting Spark takes as long as one of them."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

from tests.emulators import CREDENTIALS, ROOT
from tests.spark.merges_drive import SCENARIOS
from tests.spark.session import PYTHON_PATH
from tests.spark.test_export_packages import require_maven

# Otherwise each worker of the tests runs all scenarios.
pytestmark = pytest.mark.xdist_group("merges")

RUNS = [f"{scenario.__name__}-{kind}" for scenario, kinds in SCENARIOS.items() for kind in kinds]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str | None]:
    python = os.environ.get("WORM_SPARK40_PYTHON")
    if python is None:
        pytest.skip("WORM_SPARK40_PYTHON names no Python with pyspark 4.0")
    require_maven()
    command = [python, "-m", "tests.spark.merges_drive", str(tmp_path_factory.mktemp("merges"))]
    environment = {**os.environ, **CREDENTIALS, "PYTHONPATH": PYTHON_PATH}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=580, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, str | None] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("run", RUNS)
def test_a_scenario_of_merges_and_appends_ends_as_it_should(outcomes: dict[str, str | None], run: str) -> None:
    assert outcomes[run] is None, outcomes[run]
