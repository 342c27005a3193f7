"""Exports to s3a://, as Delta and as Iceberg, read back: where Maven can be reached, which has the packages for it."""

from __future__ import annotations

import json
import os
import subprocess
import urllib.request
from pathlib import Path

import pytest

from tests.emulators import CREDENTIALS, ROOT, new_bucket
from tests.spark.session import PYTHON_PATH
from tests.spark.source_room import SourceRoom

MAVEN = "https://repo1.maven.org/maven2/org/apache/hadoop/hadoop-aws/maven-metadata.xml"


def _require_maven() -> None:
    try:
        urllib.request.urlopen(MAVEN, timeout=10).close()
    except OSError as error:
        pytest.skip(f"the packages come from Maven, and {MAVEN} does not answer: {error}")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_exports_that_need_packages_are_read_back(moto: str, tmp_path: Path) -> None:
    """On the Spark of EMR: its packages of hadoop-aws, Delta and Iceberg are there, not always those of the newest."""
    python = os.environ.get("WORM_SPARK40_PYTHON")
    if python is None:
        pytest.skip("WORM_SPARK40_PYTHON names no Python with pyspark 4.0")
    _require_maven()
    bucket = new_bucket(moto)
    room = SourceRoom(f"s3://{bucket}/documents", endpoint_url=moto)
    for number in range(3):
        room.things.save(room.things.create({"count": number}, id=f"t.{number}"))
    command = [python, "-m", "tests.spark.packages_drive", room.url, moto, f"s3a://{bucket}/exports", str(tmp_path)]
    environment = {**os.environ, **CREDENTIALS, "PYTHONPATH": PYTHON_PATH}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=580, check=False)
    assert done.returncode == 0, done.stderr[-4000:]

    expected = [0, [[f"t.{number}", number] for number in range(3)]]
    assert json.loads(done.stdout.splitlines()[-1]) == dict.fromkeys(("s3a", "delta", "iceberg"), expected)
