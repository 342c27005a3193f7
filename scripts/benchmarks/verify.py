"""The memory of the Spark job `verify` at 100,000, 300,000 and 1,000,000 documents: it must not grow with them.

The collection exists only as a seed (tests/spark/seeded_room.py): documents and oplog entries are made when they are
read, so the numbers show the job and not a server. One executor with two tasks at a time; the peak of each Python
worker is read from /proc. `ratio`: the largest peak compared to that at the smallest size.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COUNTS = (100_000, 300_000, 1_000_000)
QUICK = (20_000, 60_000)
RATIO_MAX = 1.25


def measured(count: int) -> dict[str, object]:
    """One run, in its own process."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "shared"), str(ROOT)])}
    with tempfile.TemporaryDirectory(prefix="worm-bench-") as scratch:
        command = [sys.executable, "-m", "tests.spark.memory_drive", str(count), scratch, "verify"]
        ended = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    told: dict[str, object] = json.loads(ended.stdout.splitlines()[-1])
    if told["live"] != count or told["kinds"]:
        raise RuntimeError(f"{told} of {count} documents")
    sys.stderr.write(f"{count}: {told}\n")
    return told


def main(arguments: list[str]) -> dict[str, object]:
    parser = argparse.ArgumentParser(prog="scripts/bench verify")
    parser.add_argument("--quick", action="store_true", help="20,000 and 60,000 documents")
    parser.add_argument("--count", type=int, action="append", help="other numbers of documents; repeatable")
    chosen = parser.parse_args(arguments)
    counts = sorted(chosen.count or (QUICK if chosen.quick else COUNTS))
    results: dict[str, object] = {}
    smallest = 0
    for count in counts:
        told = measured(count)
        workers = told["workers"]
        assert isinstance(workers, list)
        largest = max(workers)
        smallest = smallest or largest
        results[f"{count} documents"] = {
            "seconds": told["seconds"],
            "largest worker, MB": largest,
            "executor, MB": told["executor"],
            "driver grew by, MB": told["driver_grew"],
            "ratio": round(largest / smallest, 2),
        }
    return {"goals": {"ratio": f"at most {RATIO_MAX}"}, **results}
