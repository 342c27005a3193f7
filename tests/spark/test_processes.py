"""The jobs on separate executors, against moto, on the Spark of EMR: a task that fails, an executor that is killed and
a second attempt beside a slow task leave exact results. Where only the newest Spark is installed, it runs them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.version import __version__ as newest

from tests.emulators import CREDENTIALS, ROOT, new_bucket
from tests.spark.jobs_drive import FAULTS, ROWS
from tests.spark.session import PYTHON_PATH

# On the newest Spark executors fail, lag and are killed in test_rebuild_cluster.py; the jobs run in one process there.
SPARK_40 = os.environ.get("WORM_SPARK40_PYTHON")
EVERYTHING: dict[str, object] = {
    "verified": {
        "codes": [1, 0],
        "killed": True,
        "kinds": {"version-unrecorded": 1, "replay-differs": 1, "index-missing": 2},
        "clean": True,
    },
    "exported": [0, 2 * ROWS + 1],
    "updates": ROWS,
}
PYTHON, VERSION, STEPS = (SPARK_40, "4.0.", EVERYTHING) if SPARK_40 else (sys.executable, newest, {"updates": ROWS})


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_faults_leave_exact_results(moto: str, tmp_path: Path) -> None:
    """The prefix of the bucket has a dot and a colon: Spark's own file sources would find nothing there."""
    url = f"s3://{new_bucket(moto, versioned=True)}/.data:v1"
    command = [PYTHON, "-m", "tests.spark.jobs_drive", url, moto, str(tmp_path), *STEPS]
    environment = {**os.environ, **CREDENTIALS, "PYTHONPATH": PYTHON_PATH}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=580, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])

    assert found.pop("spark").startswith(VERSION)
    # A slow machine may make Spark start more attempts than that.
    assert {f"{fault}-{attempt}" for fault in FAULTS for attempt in (0, 1)} <= set(found["written"].pop("attempts"))
    stored = found["written"].pop("stored before the fault")
    assert len(stored) == len(FAULTS)
    assert all(0 < count < ROWS for count in stored)
    assert found == {
        "written": {
            "appended": [["create"]],
            "operations": [["create"]] * 2 * ROWS + [["create", "update"]] * ROWS,
            "clean": True,
        },
        **STEPS,
    }
