"""compact_pages: compacts page stores, with the work of each merge and image shared by all executors.

    spark-submit spark_jobs/compact_pages.py --url s3://bucket                        # what is due
    spark-submit spark_jobs/compact_pages.py --url s3://bucket --db shop --branch main --force

The driver plans and publishes like the worker `compact` (`worm.pages.compact`); executors make layers, which nobody
sees before the root names them. A task that runs twice, even at the same time, leaves layers that the root never names;
they are collected later. Prints a line of JSON for each branch. Exit code 1: some branch has a problem.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from worm.clock import Ids
from worm.errors import Corrupt, Fenced, WormError
from worm.formats import JsonObject, dumps
from worm.log import databases
from worm.pages import Candidate, Compacted, Compactor, Layer, LayerGone, PageRange, PagesRoot, Task, do_task
from worm.spark import check_shared, job_parser, parallelism, say, spark_session, store_at

if TYPE_CHECKING:
    import argparse

    from pyspark.sql import SparkSession

STEP_BYTES = 64 * 1024**3
"""The bytes read for one step. Each step is published separately, so a long run loses no more than one to another
compaction."""
STEPS_MAX = 100
ATTEMPTS_MAX = 3


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a task. An error that a retry cannot fix is returned, not raised: Spark would retry it."""

    layers: Sequence[Layer] = ()
    gone: tuple[Layer, str] | None = None
    damage: Corrupt | None = None

    def checked(self) -> Sequence[Layer]:
        if self.gone is not None:
            raise LayerGone(*self.gone)
        if self.damage is not None:
            raise self.damage
        return self.layers


@dataclass(frozen=True, slots=True)
class LayerMaker:
    """Does tasks on an executor."""

    url: str
    endpoint_url: str | None

    def __call__(self, tasks: Iterable[Task]) -> Iterator[Outcome]:
        for task in tasks:
            yield self._done(task)

    def _done(self, task: Task) -> Outcome:
        try:
            return Outcome(do_task(store_at(self.url, self.endpoint_url), task, Ids.system()))
        except LayerGone as gone:
            return Outcome(gone=(gone.layer, gone.key or gone.layer.path))
        except Corrupt as damage:
            return Outcome(damage=damage)


@dataclass(frozen=True, slots=True)
class OnExecutors:
    """Sends the tasks of a plan to executors, each as a Spark task."""

    spark: SparkSession
    maker: LayerMaker

    def __call__(self, tasks: Sequence[Task]) -> list[Sequence[Layer]]:
        sent = self.spark.sparkContext.parallelize([_light(task) for task in tasks], len(tasks))
        return [outcome.checked() for outcome in sent.mapPartitions(self.maker).collect()]


def _light(task: Task) -> Task:
    """The task without the filters of its layers, which are also in their indexes."""

    def light(span: PageRange) -> PageRange:
        layers = ((one.layer.model_copy(update={"filter": None}), one.lsn) for one in span.candidates)
        return replace(span, candidates=[Candidate(*one) for one in layers])

    return replace(task, ranges=[light(span) for span in task.ranges])


def compact(
    spark: SparkSession, url: str, endpoint_url: str | None, db_id: str, branch: str, *, force: bool = False
) -> Compacted:
    """Compact one branch, step by step, until nothing is left to do."""
    compactor = Compactor(
        store_at(url, endpoint_url),
        db_id,
        runner=OnExecutors(spark, LayerMaker(url, endpoint_url)),
        max_bytes=STEP_BYTES,
        parts=parallelism(spark),
    )
    total = Compacted(branch)
    for _ in range(STEPS_MAX):
        done = step(compactor, branch, force)
        total = Compacted(
            branch,
            total.merged + done.merged,
            total.deltas + done.deltas,
            total.images + done.images,
            total.bytes_read + done.bytes_read,
            total.bytes_written + done.bytes_written,
            done.is_done,
        )
        if done.is_done or not done.bytes_written:
            break
    return total


def step(compactor: Compactor, branch: str, force: bool) -> Compacted:
    """The worker may compact at the same time; what it did is then already done."""
    for _ in range(ATTEMPTS_MAX - 1):
        try:
            return compactor.run(branch, force=force)
        except Fenced as overtaken:
            say(f"compact_pages: {compactor.root.keys.db_id}/{branch}: {overtaken}; trying again", sys.stderr)
    return compactor.run(branch, force=force)


def compact_all(spark: SparkSession, arguments: argparse.Namespace) -> Iterator[JsonObject]:
    """What was done to each branch. A problem with one does not stop the others."""
    url, endpoint_url = arguments.url, arguments.endpoint_url
    check_shared(url)
    store = store_at(url, endpoint_url)
    for db_id in arguments.databases or list(databases(store)):
        try:
            for branch in arguments.branches or _branches(url, endpoint_url, db_id, is_named=bool(arguments.databases)):
                yield from _told(spark, arguments, db_id, branch)
        except WormError as problem:
            yield {"db": db_id, "problem": str(problem)}


def _told(spark: SparkSession, arguments: argparse.Namespace, db_id: str, branch: str) -> Iterator[JsonObject]:
    try:
        done = compact(spark, arguments.url, arguments.endpoint_url, db_id, branch, force=arguments.force)
        yield {"db": db_id, **asdict(done)}
    except WormError as problem:
        yield {"db": db_id, "branch": branch, "problem": str(problem)}


def _branches(url: str, endpoint_url: str | None, db_id: str, *, is_named: bool) -> list[str]:
    """All branches of the database; none if there is only a log, unless it was named."""
    ids = Ids.system()
    root = PagesRoot(store_at(url, endpoint_url), db_id, clock=ids.clock, ids=ids)
    pages = root.read() if is_named else root.find()
    return sorted(pages.branches) if pages else []


def arguments_of(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = job_parser("compact_pages", "Compacts page stores.", models=False)
    parser.add_argument("--db", action="append", dest="databases", metavar="ID", help="repeatable; default: all")
    parser.add_argument("--branch", action="append", dest="branches", metavar="NAME", help="repeatable; default: all")
    parser.add_argument("--force", action="store_true", help="compact every branch, not only those that need it")
    arguments = parser.parse_args(argv)
    if arguments.branches and not arguments.databases:
        parser.error("--branch needs --db")
    return arguments


def main(argv: Sequence[str] | None = None) -> int:
    arguments = arguments_of(argv)
    has_problem = False
    try:
        for told in compact_all(spark_session("worm-compact-pages"), arguments):
            say(dumps(told).decode())
            has_problem = has_problem or "problem" in told
    except WormError as error:
        say(f"compact_pages: {error}", sys.stderr)
        return error.exit_code
    return 1 if has_problem else 0


if __name__ == "__main__":
    sys.exit(main())
