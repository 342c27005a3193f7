"""On separate executor processes: a task that fails, one that is slow and runs twice, and an executor that is killed
leave the bytes of a rebuild without any of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.emulators import ROOT
from tests.spark.session import PYTHON_PATH


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_faults_of_tasks_and_executors_leave_exact_results(tmp_path: Path, file_url: str) -> None:
    command = [sys.executable, "-m", "tests.spark.cluster_drive", file_url, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": PYTHON_PATH}
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=290, check=False)
    assert ended.returncode == 0, ended.stderr[-4000:]
    told = json.loads(ended.stdout.splitlines()[-1])
    assert told == {"failure": True, "speculation": True, "kill": True}
