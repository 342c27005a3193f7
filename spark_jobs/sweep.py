"""Sweep whole collections: record and fold changes that no event reported, for collections that are too large for the
function `sweep`.

    spark-submit spark_jobs/sweep.py --url s3://bucket
    spark-submit spark_jobs/sweep.py --url s3://bucket --inventory s3://inventories/bucket/daily/

`--documents-min N` leaves out models with at most N documents: the function sweeps those. `--inventory` names an S3
Inventory to use in place of listings, by its manifest.json; or the folder of its configuration, for the newest one.
Exit code 1 if valid documents could not be recorded, or a task failed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from worm.errors import WormError
from worm.spark import (
    Inventory,
    JobSpec,
    failures_of_tasks,
    inventory_at,
    is_larger,
    job_parser,
    say,
    spark_session,
    specs_of,
    sweep,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXIT_LEFT = 1


def main(arguments: Sequence[str] | None = None) -> int:
    parser = job_parser("sweep", "Record and fold changes that no event reported.")
    parser.add_argument(
        "--inventory",
        metavar="URL",
        help="manifest.json of an S3 Inventory, or the folder of its configuration",
    )
    parser.add_argument("--documents-min", type=int, default=0, metavar="N", help="only models with more documents")
    parsed = parser.parse_args(arguments)
    try:
        specs = [spec for spec in specs_of(parsed) if is_larger(spec, parsed.documents_min)]
        inventory = _inventory(parsed) if specs else None
        spark = spark_session("worm-sweep")
    except WormError as error:
        say(f"sweep: {error}", sys.stderr)
        return error.exit_code
    if not specs:
        say(f"no model has more than {parsed.documents_min:,} documents")
    return max((_swept(spark, spec, inventory) for spec in specs), default=0)


def _inventory(parsed: argparse.Namespace) -> Inventory | None:
    if parsed.inventory is None:
        return None
    found = inventory_at(parsed.inventory, parsed.url, parsed.endpoint_url)
    say(f"inventory of {found.created:%Y-%m-%d %H:%M} UTC, {len(found.files):,} files")
    return found


def _swept(spark: SparkSession, spec: JobSpec, inventory: Inventory | None) -> int:
    """The exit code for one model. A model that cannot be swept does not stop the others."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        with failures_of_tasks():
            report = sweep(spark, spec, inventory)
    except WormError as error:
        say(f"sweep: {spec.model}: {error}", sys.stderr)
        return error.exit_code
    except (Py4JJavaError, PySparkException) as error:
        say(f"sweep: {spec.model}: a task failed: {error}", sys.stderr)
        return EXIT_LEFT
    say(report.summary())
    for key, reason in report.shown:
        say(f"not recorded  {key}: {reason}")
    return EXIT_LEFT if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
