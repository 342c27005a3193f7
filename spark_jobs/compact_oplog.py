"""compact_oplog: packs old oplog entries of cold entities into archives, over all executors.

    spark-submit spark_jobs/compact_oplog.py --url s3://bucket                 # reports what it would do
    spark-submit spark_jobs/compact_oplog.py --url s3://bucket --no-dry-run

The schema says how old entries must be (`archiveAfter`); models without it are left alone.

Every task lists and compacts the entities of one range of ids (`oplog_archives.py`). If they are too many, it hands
back the rest of its range for the next round. A task that runs twice, even at the same time, has the effect of one run.
The driver only sees counts. Exit code 1: some entity has a problem.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from worm.clock import SystemClock, moment_of
from worm.collections import Archiver, ArchiveReport, IdRange
from worm.errors import Invalid, WormError
from worm.formats import dumps, duration_seconds
from worm.spark import (
    JobSpec,
    failures_of_tasks,
    job_parser,
    planned_ranges,
    run_rounds,
    say,
    spark_session,
    specs_of,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class CompactTask:
    """What a task needs: the place, and the age limit. All tasks share the driver's time."""

    spec: JobSpec
    now: str
    older_than: timedelta | None
    dry_run: bool

    def archiver(self) -> Archiver:
        now = moment_of(self.now)
        if now is None:
            raise Invalid(f"{self.now!r} is not a time")
        return Archiver(self.spec.collection(), now=now, older_than=self.older_than, dry_run=self.dry_run)

    def __call__(self, within: IdRange) -> ArchiveReport:
        return self.archiver().run(within)


def compact(
    spark: SparkSession, spec: JobSpec, *, now: datetime, older_than: timedelta | None, dry_run: bool
) -> ArchiveReport:
    """Compact one model."""
    task = CompactTask(spec, now.isoformat(), older_than, dry_run)
    task.archiver()  # fails here if every task would fail
    total = ArchiveReport(spec.model)
    for one in run_rounds(spark, task, planned_ranges(spark, spec), f"{spec.model}: compact"):
        total.add(one)
    return total


def _window(text: str) -> timedelta:
    try:
        return timedelta(seconds=duration_seconds(text))
    except ValueError as mistake:
        raise argparse.ArgumentTypeError(str(mistake)) from mistake


def arguments_of(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = job_parser("compact_oplog", "Packs old oplog entries of cold entities into archives.")
    parser.add_argument(
        "--older-than",
        type=_window,
        metavar="AGE",
        help="pack entities whose newest entry is older than this; at least the schema's `archiveAfter` (the default)",
    )
    parser.add_argument(
        "--dry-run",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="only report what the job would do (default); use --no-dry-run to do it",
    )
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    arguments = arguments_of(argv)
    try:
        spark, now = spark_session("worm-compact-oplog"), SystemClock().now()
        with failures_of_tasks():
            reports = [
                compact(spark, spec, now=now, older_than=arguments.older_than, dry_run=arguments.dry_run)
                for spec in specs_of(arguments)
                if spec.schema().model(spec.model).archive_seconds is not None
            ]
    except WormError as error:
        say(f"compact_oplog: {error}", sys.stderr)
        return error.exit_code
    for report in reports:
        say(dumps({"dry_run": arguments.dry_run, **report.summary()}).decode())
    return 1 if any(report.problems for report in reports) else 0


if __name__ == "__main__":
    sys.exit(main())
