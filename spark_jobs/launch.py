"""The entry point of every job: `spark-submit launch.py rebuild --url s3://bucket` runs `spark_jobs.rebuild`.

EMR takes one file as the entry point; the jobs themselves are in spark_jobs.zip (`--py-files`). So this file imports
nothing from the package before it runs, and it ends with the job's exit code. In a checkout, the jobs are beside it.
"""

from __future__ import annotations

import re
import runpy
import sys
from importlib.util import find_spec
from pathlib import Path

_NAME = re.compile(r"[a-z][a-z_]*")


def main(arguments: list[str]) -> None:
    """Runs the job that the first argument names, with the others; the job's exit code is the exit code."""
    name, here = arguments[0] if arguments else "", Path(__file__).resolve().parent
    if (here / "__init__.py").exists():
        sys.path.insert(0, str(here.parent))
    if not _NAME.fullmatch(name) or find_spec(f"spark_jobs.{name}") is None:
        sys.exit(f"launch.py: there is no job {name!r}; use launch.py JOB ARGUMENTS, with a job from spark_jobs/")
    sys.argv = [f"spark_jobs.{name}", *arguments[1:]]
    runpy.run_module(f"spark_jobs.{name}", run_name="__main__", alter_sys=False)


if __name__ == "__main__":
    main(sys.argv[1:])
