"""The demo's end: Spark rebuilds every table from the documents, and nothing differs from the workers' result.

The rebuild is the template's schedule, fired by hand, and reads everything (`--full`); here it runs as a local
spark-submit. The result is compared byte by byte, and then the verify job checks every entity. A job that fails, or one
byte that differs, is an error.
"""

from __future__ import annotations

from dataclasses import replace

from worm.collections import KeyKind
from worm.dev.demo_view import Display
from worm.dev.environment import Environment
from worm.dev.specs import SparkJobSpec
from worm.dev.worker import OutcomeKind
from worm.errors import Corrupt, Unavailable
from worm.sdk import connect

_TABLES = (KeyKind.MANIFEST, KeyKind.INDEX, KeyKind.HEADS)


def show_spark(env: Environment, display: Display) -> None:
    """`Unavailable` if a job fails, `Corrupt` if its tables differ from those of the workers."""
    job = env.template.schedule("rebuild").job
    assert job is not None
    before = table_files(env)
    _run(env, display, replace(job, arguments=(*job.arguments, "--full")))
    after = table_files(env)
    differing = sorted(key for key in before.keys() | after.keys() if before.get(key) != after.get(key))
    if differing:
        raise Corrupt(f"Spark's rebuild differs from what the workers made: {', '.join(differing)}")
    _run(env, display, replace(job, name="verify"))
    display.line()
    display.line(f"Spark wrote the same bytes as the workers in all {len(after)} table files")


def table_files(env: Environment) -> dict[str, str]:
    """The key and etag of every table file. What the tasks of a rebuild passed to its driver (`stage-…`) is not part of
    a table; purge removes it."""
    session = connect(f"s3://{env.bucket}", maintenance="events")
    listed = [one for one in session.store.list("") if "/stage-" not in one.key]
    return {one.key: one.etag for one in listed if session.resolver.parse(one.key).kind in _TABLES}


def _run(env: Environment, display: Display, job: SparkJobSpec) -> None:
    display.line()
    display.line("$ " + " ".join(["spark-submit spark_jobs/launch.py", job.name, *job.arguments]), style="bold cyan")
    outcome = env.spark.run(job)
    for line in str(outcome.value or "").splitlines():
        display.line(line)
    if outcome.kind is not OutcomeKind.OK:
        hint = f"see its log: {env.spark.log_path(job.name)}"
        raise Unavailable(f"the Spark job {job.name} failed ({outcome.kind.value}): {outcome.error}", hint=hint)
