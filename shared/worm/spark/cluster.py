"""What every job needs: its settings in a form that can be sent to executors, a session, and its command line.

A store or a session cannot be sent to another process. A `JobSpec` can: it says where the collection is, and each
Python worker opens it once.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from worm import errors
from worm.collections import Collection, layout
from worm.errors import Invalid, NotFound, WormError
from worm.formats import Schema, load_pushed, load_schema
from worm.store import Store, open_store
from worm.upkeep import Session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TASKS_PER_CORE = 4
_OURS = re.compile(r"^(?:.*: )?worm\.errors\.(\w+): (.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class JobSpec:
    """One model of one bucket, as plain values."""

    url: str
    endpoint_url: str | None
    model: str
    schema_json: str

    def collection(self) -> Collection:
        """The collection, opened once per process."""
        return _opened(self)

    def store(self) -> Store:
        return store_at(self.url, self.endpoint_url)

    def schema(self) -> Schema:
        return _schema(self.schema_json)


@lru_cache(maxsize=16)
def store_at(url: str, endpoint_url: str | None = None) -> Store:
    """The store, opened once per process. A job slows down when S3 throttles it."""
    return open_store(url, endpoint_url=endpoint_url, patient=True)


def check_shared(url: str) -> None:
    """Raise `Invalid` for a store that only this process can read."""
    if url.startswith("memory:"):
        raise Invalid(
            "Spark's executors cannot read the memory of this process", hint="use s3://bucket[/prefix] or file:///path"
        )


@lru_cache(maxsize=16)
def _schema(schema_json: str) -> Schema:
    return load_schema(schema_json.encode())


@lru_cache(maxsize=64)
def _opened(spec: JobSpec) -> Collection:
    return Session(spec.store(), schema=spec.schema()).collection(spec.model)


def job_specs(url: str, endpoint_url: str | None = None, models: Iterable[str] | None = None) -> list[JobSpec]:
    """One spec per model (default: all), with the pushed schema."""
    check_shared(url)
    found = store_at(url, endpoint_url).get(layout.SCHEMA_KEY)
    if found is None:
        raise NotFound(
            f"there is no schema at {url}", key=layout.SCHEMA_KEY, hint="run `worm push` with your schema.json"
        )
    schema = load_pushed(found.body, layout.SCHEMA_KEY)
    names = list(models or []) or list(schema.models)
    text = found.body.decode()
    return [JobSpec(url, endpoint_url, schema.model(name).name, text) for name in names]


def job_spec(url: str, model: str, endpoint_url: str | None = None) -> JobSpec:
    return job_specs(url, endpoint_url, [model])[0]


class JobParser(argparse.ArgumentParser):
    """`--plan` is like `--help`: it prints and ends the program."""

    def parse_args(  # type: ignore[override]  # argparse also takes other namespaces, which no job passes
        self, args: Sequence[str] | None = None, namespace: None = None
    ) -> argparse.Namespace:
        parsed = super().parse_args(args, namespace)
        if getattr(parsed, "plan", False):
            self.exit(self._planned(parsed))
        return parsed

    def _planned(self, parsed: argparse.Namespace) -> int:
        """Print the plan of each model; one without a plan does not stop the others."""
        try:
            specs = specs_of(parsed)
        except WormError as error:
            return self._failed(error)
        return max(map(self._described, specs), default=0)

    def _described(self, spec: JobSpec) -> int:
        from worm.spark.plan_text import described

        try:
            say("\n".join(described(self.prog, spec.collection())))
        except WormError as error:
            return self._failed(error)
        return 0

    def _failed(self, error: WormError) -> int:
        say(f"{self.prog}: {error}", sys.stderr)
        return error.exit_code


def job_parser(prog: str, about: str, *, models: bool = True) -> argparse.ArgumentParser:
    """The arguments that all jobs have; `models`: for jobs that work on collections."""
    from worm.spark.plan_text import PLANNED

    parser = JobParser(prog=prog, description=about)
    parser.add_argument("--url", required=True, help="s3://bucket[/prefix] or file:///path")
    parser.add_argument("--endpoint-url", help="URL of an S3 server other than AWS")
    if models:
        parser.add_argument("--model", action="append", dest="models", metavar="MODEL", help="repeatable; default: all")
    if prog in PLANNED:
        parser.add_argument("--plan", action="store_true", help="print the job's steps, requests and costs, and exit")
    return parser


def specs_of(arguments: argparse.Namespace) -> list[JobSpec]:
    """The models that the command line names."""
    return job_specs(arguments.url, arguments.endpoint_url, arguments.models)


def spark_session(app_name: str, defaults: Mapping[str, str] | None = None, **conf: str) -> SparkSession:
    """The session of this process, or a new one. In setting names, `__` means a dot:
    `spark__ui__enabled="false"`. `defaults`: settings for a new session, unless spark-submit got others."""
    try:
        from pyspark import SparkConf
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise Invalid("Spark is not installed here", hint='pip install "s3worm[spark]"') from error
    if SparkSession.getActiveSession() is None and not _has_java():
        raise Invalid("Spark needs Java 17 or newer, but none was found", hint="install it, or set JAVA_HOME")
    builder = SparkSession.builder.appName(app_name)
    if defaults and SparkSession.getActiveSession() is None:
        given = SparkConf()
        builder = builder.config(map={name: one for name, one in defaults.items() if not given.contains(name)})
    for name, value in conf.items():
        builder = builder.config(name.replace("__", "."), value)
    return builder.getOrCreate()


@contextmanager
def failures_of_tasks() -> Iterator[None]:
    """Raise the error of ours that made a task fail: of such an error, Spark has only the text of its traceback."""
    try:
        yield
    except WormError:
        raise
    except Exception as error:
        found = failure_in(str(error))
        if found is None:
            raise
        raise found from error


def failure_in(text: str) -> WormError | None:
    """The last error of ours in a traceback."""
    for name, message in reversed(_OURS.findall(text)):
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, WormError):
            found = kind.__new__(kind)
            WormError.__init__(found, message)
            return found
    return None


def _has_java() -> bool:
    home = os.environ.get("JAVA_HOME")
    return (Path(home) / "bin" / "java").exists() if home else shutil.which("java") is not None


def parallelism(spark: SparkSession) -> int:
    """How many tasks to plan at most if there are few ids, so that a slow one does not hold up the others."""
    return max(2, spark.sparkContext.defaultParallelism) * TASKS_PER_CORE


def say(text: str, to: TextIO | None = None) -> None:
    """Print a line of the job's output."""
    out = to or sys.stdout
    out.write(f"{text}\n")
    out.flush()
