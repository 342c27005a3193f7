"""How long a function's code takes to import, against `import boto3` and a client in the same run.

Each measurement is a fresh interpreter that times nothing but the import. The kinds take turns, so that a busy machine
slows all of them alike, and medians are reported. Budgets (issue 2): a handler's import takes at most 300 ms, and at
most as long as boto3 with its S3 client.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BOTO3 = "import boto3; boto3.client('s3')"
TIMED = "import time; start = time.perf_counter(); {statement}; print((time.perf_counter() - start) * 1000)"


def _environment() -> dict[str, str]:
    """What the template gives a function, so that importing it needs nothing else."""
    return {
        **os.environ,
        "AWS_DEFAULT_REGION": "eu-central-1",
        "POWERTOOLS_METRICS_NAMESPACE": "S3Worm",
        "POWERTOOLS_SERVICE_NAME": "coldstart",
        "PYTHONPATH": str(ROOT / "shared"),
        "WORM_BUCKET": "documents",
    }


def milliseconds(statement: str, folder: Path) -> float:
    """The time of one statement in a fresh interpreter started in a folder."""
    command = [sys.executable, "-c", TIMED.format(statement=statement)]
    done = subprocess.run(command, cwd=folder, env=_environment(), check=True, text=True, stdout=subprocess.PIPE)
    return float(done.stdout)


def measure(repeats: int) -> dict[str, float]:
    """Median milliseconds of boto3 with a client, and of each handler by its folder's name."""
    subjects = {"boto3_and_client": (BOTO3, ROOT)}
    subjects |= {
        path.parent.name: ("import handler", path.parent) for path in sorted(ROOT.glob("functions/*/handler.py"))
    }
    for statement, folder in subjects.values():
        milliseconds(statement, folder)  # compiles what was never imported
    taken: dict[str, list[float]] = {name: [] for name in subjects}
    for _ in range(repeats):
        for name, (statement, folder) in subjects.items():
            taken[name].append(milliseconds(statement, folder))
    return {name: statistics.median(values) for name, values in taken.items()}


def main(arguments: list[str]) -> dict[str, object]:
    parser = argparse.ArgumentParser(prog="scripts/bench coldstart")
    parser.add_argument("--repeats", type=int, default=15)
    medians = measure(parser.parse_args(arguments).repeats)
    baseline = medians.pop("boto3_and_client")
    return {
        "boto3_and_client_ms": round(baseline, 1),
        "handler_import_ms": {name: round(value, 1) for name, value in medians.items()},
        "ratio_to_boto3": {name: round(value / baseline, 2) for name, value in medians.items()},
    }
