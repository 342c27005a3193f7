"""How long a function's code takes to import, against boto3 with a client, and how long `worm` takes to start.

Each measurement of an import is a new interpreter that times only the import; `worm --version` and
`python -c pass` are timed as whole processes. The kinds take turns, so that a busy machine slows all of them equally,
and medians are reported. Budgets: a handler's import takes at most 300 ms, and at most as long as boto3 with its S3
client; `worm --version` takes at most 3 times `python -c pass` plus the import of typer.

`start`: `worm --version` and `worm table query` on 1,000 rows in a directory, as processes, against
`python -c "import typer"`, in wall time and in processor time. Goals: 1.5 and 3 times that.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BOTO3 = "import boto3; boto3.client('s3')"
VERSION = "import sys; from worm.cli.main import main; sys.argv[1:] = ['--version']; main()"
VERSION_MAX, QUERY_MAX = 1.5, 3.0
TYPER = "import typer"
ROWS = """
import sys, worm

class Customer(worm.Document):
    name: str
    status: str = "lead"

with worm.connect(sys.argv[1], models=[Customer]) as db:
    db.push()
    rows = [Customer(id=f"c{n:04}", name=f"Customer {n}", status="active" if n % 3 else "lead") for n in range(1000)]
    db.model(Customer).save_many(rows)
"""
TIMED = "import time; start = time.perf_counter(); {statement}; print((time.perf_counter() - start) * 1000)"


def _environment() -> dict[str, str]:
    """The variables that the template gives a function, so that it can be imported."""
    return {
        **{name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"},
        "AWS_DEFAULT_REGION": "eu-central-1",
        "POWERTOOLS_METRICS_NAMESPACE": "S3Worm",
        "POWERTOOLS_SERVICE_NAME": "coldstart",
        "PYTHONPATH": str(ROOT / "shared"),
        "WORM_BUCKET": "documents",
    }


def milliseconds(statement: str, folder: Path) -> float:
    """The time of one statement in a new interpreter started in a folder."""
    command = [sys.executable, "-c", TIMED.format(statement=statement)]
    done = subprocess.run(command, cwd=folder, env=_environment(), check=True, text=True, stdout=subprocess.PIPE)
    return float(done.stdout)


def process_milliseconds(*command: str) -> float:
    """The time of a process from start to end."""
    start = time.perf_counter()
    subprocess.run(command, env=_environment(), check=True, stdout=subprocess.DEVNULL)
    return (time.perf_counter() - start) * 1000


def subjects() -> dict[str, Callable[[], float]]:
    """What takes turns; each handler has the name of its folder."""
    found: dict[str, Callable[[], float]] = {
        "boto3_and_client": partial(milliseconds, BOTO3, ROOT),
        "import_typer": partial(milliseconds, "import typer", ROOT),
        "python_pass": partial(process_milliseconds, sys.executable, "-c", "pass"),
        "worm_version": partial(process_milliseconds, sys.executable, "-c", VERSION),
    }
    folders = sorted(path.parent for path in ROOT.glob("functions/*/handler.py"))
    return found | {folder.name: partial(milliseconds, "import handler", folder) for folder in folders}


def measure(repeats: int) -> dict[str, float]:
    """Median milliseconds of each subject."""
    measured = subjects()
    for once in measured.values():
        once()  # compiles modules that were never imported
    taken: dict[str, list[float]] = {name: [] for name in measured}
    for _ in range(repeats):
        for name, once in measured.items():
            taken[name].append(once())
    return {name: statistics.median(values) for name, values in taken.items()}


def process_cost(*command: str) -> tuple[float, float]:
    """Milliseconds of a process: from start to end, and of processors."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    wall = process_milliseconds(*command)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1000


def starts(repeats: int) -> dict[str, object]:
    """The command against the import of typer, in turns."""
    with tempfile.TemporaryDirectory(prefix="worm-bench-") as directory:
        subprocess.run([sys.executable, "-c", ROWS, directory], env=_environment(), check=True)
        query = ("--url", directory, "table", "query", "Customer", "--filter", "status=active", "--format", "json")
        commands = {
            "import typer": ("-c", TYPER),
            "worm --version": ("-m", "worm.cli.main", "--version"),
            "worm table query": ("-m", "worm.cli.main", *query),
        }
        taken: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
        for turn in range(repeats + 1):
            for name, command in commands.items():
                found = process_cost(sys.executable, *command)
                if turn > 0:  # the first turn compiles modules that were never imported
                    taken[name].append(found)
    medians = {name: [statistics.median(one) for one in zip(*found, strict=True)] for name, found in taken.items()}
    floor = medians["import typer"]
    ratios = {name: [one / least for one, least in zip(found, floor, strict=True)] for name, found in medians.items()}
    goals = {"worm --version": VERSION_MAX, "worm table query": QUERY_MAX}
    return {
        "wall_and_cpu_ms": {name: [round(one, 1) for one in found] for name, found in medians.items()},
        "wall_and_cpu_to_typer": {name: [round(one, 2) for one in found] for name, found in ratios.items()},
        "goals": {f"{name}: at most {most} x typer": max(ratios[name]) <= most for name, most in goals.items()},
    }


def main(arguments: list[str]) -> dict[str, object]:
    parser = argparse.ArgumentParser(prog="scripts/bench coldstart")
    parser.add_argument("--repeats", type=int, default=15)
    repeats = parser.parse_args(arguments).repeats
    medians = measure(repeats)
    baseline, typer = medians.pop("boto3_and_client"), medians.pop("import_typer")
    python, version = medians.pop("python_pass"), medians.pop("worm_version")
    budget = 3 * python + typer
    return {
        "boto3_and_client_ms": round(baseline, 1),
        "handler_import_ms": {name: round(value, 1) for name, value in medians.items()},
        "ratio_to_boto3": {name: round(value / baseline, 2) for name, value in medians.items()},
        "python_pass_ms": round(python, 1),
        "import_typer_ms": round(typer, 1),
        "worm_version_ms": round(version, 1),
        "worm_version_budget_ms": round(budget, 1),
        "worm_version_ratio_to_budget": round(version / budget, 2),
        "start": starts(repeats),
    }
