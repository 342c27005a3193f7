"""Regenerates the pins: constraints.txt, constraints-spark40.txt, constraints-tools.txt, constraints-clients.txt and
shared/constraints.txt (`make lock`).

Each file is the freeze of a new environment that was resolved without pins; the layer's pins are the part of
constraints.txt that shared/requirements.txt needs. `--layer-only` recomputes just that part. Only the standard library
and pip are used.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

from scripts.setup import DEVELOP, develop_group

ROOT = Path(__file__).resolve().parent.parent
SPARK_OF_EMR = "pyspark>=4.0,<4.1"
TOOLS = ("aws-sam-cli", "checkov", "cfn-lint", "wheel")
CLIENTS = ("awscli", "datasette", "minio", "s3cmd", "s3fs", "schemathesis")
# Where the layer runs: the resolver must see this interpreter's markers, not this machine's.
LAYER_TARGET = ("--platform", "manylinux2014_x86_64", "--implementation", "cp", "--python-version", "3.11")


def run(*command: str | Path) -> str:
    return subprocess.run([str(part) for part in command], check=True, text=True, stdout=subprocess.PIPE).stdout


def fresh_freeze(folder: Path, *requirements: str) -> str:
    """The freeze of a new environment with these requirements."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", *requirements)
    run(python, "-m", "pip", "check")
    return run(
        python, "-m", "pip", "freeze", "--all", "--exclude-editable", "--exclude", "pip", "--exclude", "setuptools"
    )


def canonical(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")


def layer_names() -> set[str]:
    """The packages that the layer's requirements need, directly or indirectly."""
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.json"
        shared = ROOT / "shared"
        command = (sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed")
        output = ("--report", report, "--target", scratch)
        where = ("--only-binary=:all:", *LAYER_TARGET)
        what = ("--requirement", shared / "requirements.txt", "--constraint", ROOT / "constraints.txt")
        run(*command, *output, *where, *what)
        installed = json.loads(report.read_text())["install"]
        return {canonical(item["metadata"]["name"]) for item in installed}


def write(path: Path, header: str, pins: str) -> None:
    lines = sorted((line for line in pins.splitlines() if "==" in line), key=str.lower)
    path.write_text(f"# {header} Written by `make lock`.\n" + "\n".join(lines) + "\n")
    print(f"{path.relative_to(ROOT)}: {len(lines)} pins")


def write_layer() -> None:
    names = layer_names()
    pins = (ROOT / "constraints.txt").read_text().splitlines()
    chosen = "\n".join(pin for pin in pins if canonical(pin.partition("==")[0]) in names)
    write(ROOT / "shared" / "constraints.txt", "Pins of the Lambda layer, a part of ../constraints.txt.", chosen)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layer-only", action="store_true", help="keep the other files as they are")
    if not parser.parse_args().layer_only:
        with tempfile.TemporaryDirectory() as scratch:
            wanted = ("--editable", f"{ROOT}{DEVELOP.removeprefix('.')}", *develop_group())
            dev = fresh_freeze(Path(scratch) / "dev", *wanted)
            write(ROOT / "constraints.txt", "Pins of .venv (`scripts/setup --dev`).", dev)
            spark = fresh_freeze(Path(scratch) / "spark40", "--editable", f"{ROOT}[spark]", SPARK_OF_EMR)
            about = "Pins of .venv-spark40 (extra spark on the Spark of EMR) and of the environment for EMR."
            write(ROOT / "constraints-spark40.txt", about, spark)
            tools = fresh_freeze(Path(scratch) / "tools", *TOOLS)
            write(ROOT / "constraints-tools.txt", "Pins of .venv-tools.", tools)
            clients = fresh_freeze(Path(scratch) / "clients", *CLIENTS)
            write(ROOT / "constraints-clients.txt", "Pins of .venv-clients.", clients)
    write_layer()


if __name__ == "__main__":
    main()
