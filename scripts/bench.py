"""Runs a benchmark by name and keeps its numbers.

A benchmark is a module scripts/benchmarks/<name>.py with a docstring (its first line is shown in the list) and
`main(arguments: list[str]) -> dict[str, object]`, whose result is JSON: the measurements, with units in the keys.
The result is printed and saved as bench-results/<name>-<time>.json together with the machine and the versions. Shared
code is in modules whose names start with `_`.
"""

from __future__ import annotations

import ast
import datetime
import importlib.util
import json
import os
import platform
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import cast

ROOT = Path(__file__).resolve().parent.parent
BENCHMARKS = ROOT / "scripts" / "benchmarks"
RESULTS = ROOT / "bench-results"
VERSIONS = ("s3worm", "boto3", "obstore", "moto", "deltalake", "duckdb", "slatedb")

Benchmark = Callable[[list[str]], dict[str, object]]


def names() -> dict[str, str]:
    """Name → first line of the docstring."""
    paths = sorted(BENCHMARKS.glob("[a-z]*.py"))
    return {path.stem: (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n")[0] for path in paths}


def load(name: str) -> Benchmark:
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))  # for shared modules: scripts.benchmarks._<name>
    spec = importlib.util.spec_from_file_location(f"benchmark_{name}", BENCHMARKS / f"{name}.py")
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot load the benchmark {name}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return cast("Benchmark", module.main)


def machine() -> dict[str, object]:
    versions = {name: version(name) for name in VERSIONS}
    return {"python": platform.python_version(), "system": platform.system(), "cores": os.cpu_count(), **versions}


def main(arguments: list[str]) -> int:
    known = names()
    if not arguments or arguments[0] not in known:
        if arguments:
            print(f"bench: there is no benchmark {arguments[0]!r}", file=sys.stderr)
        listing = "\n".join(f"  {name:<16} {about}" for name, about in known.items())
        print(f"scripts/bench NAME, where NAME is one of:\n{listing or '  (none yet)'}", file=sys.stderr)
        return 2 if arguments else 0
    name, rest = arguments[0], arguments[1:]
    measured = load(name)(rest)
    now = datetime.datetime.now(datetime.UTC)
    report = {"benchmark": name, "time": now.isoformat(timespec="seconds"), "machine": machine(), "results": measured}
    text = json.dumps(report, indent=2)
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}-{now:%Y%m%dT%H%M%SZ}.json"
    path.write_text(text + "\n")
    print(text)
    print(f"saved as {path.relative_to(ROOT)}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
