"""The memory of a rebuild: an executor stays far below 2 GiB, and the driver holds nothing of the collection."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.emulators import ROOT
from tests.spark.session import PYTHON_PATH

COUNT = 100_000
EXECUTOR_MB_MAX = 2048
WORKER_MB_MAX = 400
DRIVER_MB_MAX = 64
"""The rows of the collection would take some 300."""


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_memory_of_executors_and_driver_is_bounded(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.spark.memory_drive", str(COUNT), str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": PYTHON_PATH}
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=390, check=False)
    assert ended.returncode == 0, ended.stderr[-4000:]
    told = json.loads(ended.stdout.splitlines()[-1])
    assert told["live"] == COUNT
    assert told["partitions"] > 1
    assert len(told["workers"]) >= 2
    assert 0 < told["executor"] < EXECUTOR_MB_MAX, told
    assert max(told["workers"]) < WORKER_MB_MAX, told
    assert told["driver_grew"] < DRIVER_MB_MAX, told
