"""Exports to s3a://, as Delta and as Iceberg, and the Delta table that a collection publishes, read by Spark: where
Maven can be reached, which has the packages for it."""

from __future__ import annotations

import json
import os
import random
import subprocess
import urllib.request
from pathlib import Path

import pytest

from tests.emulators import CREDENTIALS, ROOT, new_bucket
from tests.spark.session import PYTHON_PATH
from tests.spark.source_room import SourceRoom, random_document

MAVEN = "https://repo1.maven.org/maven2/org/apache/hadoop/hadoop-aws/maven-metadata.xml"


def require_maven() -> None:
    try:
        urllib.request.urlopen(MAVEN, timeout=10).close()
    except OSError as error:
        pytest.skip(f"the packages come from Maven, and {MAVEN} does not answer: {error}")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_exports_and_published_tables_are_read_with_packages(moto: str, tmp_path: Path) -> None:
    """On the Spark of EMR: its packages of hadoop-aws, Delta and Iceberg are there, not always those of the newest."""
    python = os.environ.get("WORM_SPARK40_PYTHON")
    if python is None:
        pytest.skip("WORM_SPARK40_PYTHON names no Python with pyspark 4.0")
    require_maven()
    bucket = new_bucket(moto)
    manifest, rng = {"enabled": True, "partitionThreshold": 5}, random.Random(3)
    lake = {"format": "delta"}
    room = SourceRoom(f"s3://{bucket}/documents", endpoint_url=moto, manifest=manifest, lake=lake)
    for number in range(12):
        room.things.save(room.things.create(random_document(rng) | {"count": number}, id=f"t.{number:02d}"))
    version = room.things.publish().version
    first = [[f"t.{number:02d}", number] for number in range(12)]
    room.things.delete("t.11")
    room.things.patch("t.00", {"count": 100})
    newest = [["t.00", 100], *first[1:-1]]
    assert room.things.publish().removed > 0
    location = room.things.get_lake_status().location.replace("s3://", "s3a://")
    places = [room.url, moto, f"s3a://{bucket}/exports", str(tmp_path), location, str(version)]
    command = [python, "-m", "tests.spark.packages_drive", *places]
    environment = {**os.environ, **CREDENTIALS, "PYTHONPATH": PYTHON_PATH}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=580, check=False)
    assert done.returncode == 0, done.stderr[-4000:]

    assert json.loads(done.stdout.splitlines()[-1]) == {
        **{name: [0, newest] for name in ("s3a", "delta", "iceberg")},
        "published": [newest, first],
        "differing": {"delta": [0, 0], "table": [0, 0]},
    }
