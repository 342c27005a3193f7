"""What every job needs: its settings in a form that can be sent to executors, a session, and its command line.

A store or a session cannot be sent to another process. A `JobSpec` can: it says where the collection is, and each
Python worker opens it once.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from worm.collections.collection import Collection
from worm.collections.id_ranges import IdRange, plan_ranges
from worm.collections.layout import SCHEMA_KEY
from worm.errors import Invalid, NotFound
from worm.schema import Schema, load_pushed, load_schema
from worm.session import Session
from worm.store.base import Store
from worm.store.open import open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TASKS_PER_CORE = 4


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
    """The store, opened once per process."""
    return open_store(url, endpoint_url=endpoint_url)


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
    found = store_at(url, endpoint_url).get(SCHEMA_KEY)
    if found is None:
        raise NotFound(f"there is no schema at {url}", key=SCHEMA_KEY, hint="run `worm push` with your schema.json")
    schema = load_pushed(found.body, SCHEMA_KEY)
    names = list(models or []) or list(schema.models)
    text = found.body.decode()
    return [JobSpec(url, endpoint_url, schema.model(name).name, text) for name in names]


def job_spec(url: str, model: str, endpoint_url: str | None = None) -> JobSpec:
    return job_specs(url, endpoint_url, [model])[0]


def job_parser(prog: str, about: str, *, models: bool = True) -> argparse.ArgumentParser:
    """The arguments that all jobs have; `models`: for jobs that work on collections."""
    parser = argparse.ArgumentParser(prog=prog, description=about)
    parser.add_argument("--url", required=True, help="s3://bucket[/prefix] or file:///path")
    parser.add_argument("--endpoint-url", help="URL of an S3 server other than AWS")
    if models:
        parser.add_argument("--model", action="append", dest="models", metavar="MODEL", help="repeatable; default: all")
    return parser


def specs_of(arguments: argparse.Namespace) -> list[JobSpec]:
    """The models that the command line names."""
    return job_specs(arguments.url, arguments.endpoint_url, arguments.models)


def spark_session(app_name: str, **conf: str) -> SparkSession:
    """The session of this process, or a new one. In setting names, `__` means a dot:
    `spark__ui__enabled="false"`."""
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise Invalid("Spark is not installed here", hint='pip install "s3worm[spark]"') from error
    if SparkSession.getActiveSession() is None and not _has_java():
        raise Invalid("Spark needs Java 17 or newer, but none was found", hint="install it, or set JAVA_HOME")
    builder = SparkSession.builder.appName(app_name)
    for name, value in conf.items():
        builder = builder.config(name.replace("__", "."), value)
    return builder.getOrCreate()


def _has_java() -> bool:
    home = os.environ.get("JAVA_HOME")
    return (Path(home) / "bin" / "java").exists() if home else shutil.which("java") is not None


def parallelism(spark: SparkSession) -> int:
    """How many ranges to plan, so that a slow one does not hold up the others."""
    return max(2, spark.sparkContext.defaultParallelism) * TASKS_PER_CORE


def planned_ranges(spark: SparkSession, spec: JobSpec, wanted: int | None = None) -> Sequence[IdRange]:
    return plan_ranges(spec.collection(), parallelism(spark) if wanted is None else wanted)


def say(text: str, to: TextIO | None = None) -> None:
    """Print a line of the job's output."""
    out = to or sys.stdout
    out.write(f"{text}\n")
    out.flush()
