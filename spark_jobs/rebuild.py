"""Rebuild the tables of whole collections from their documents and their history, while workers continue.

    spark-submit spark_jobs/rebuild.py --url s3://bucket --model Customer

By default, it takes over the rows of the table that a listing shows as unchanged, and reads only the others.
`--inventory` and `--inventory-table` name an inventory to use in place of the listing. `--full` reads everything. It
writes manifest, indexes, heads, claims and sentinel: the same bytes as `worm table rebuild`, and the same again in a
second run.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from worm.errors import Corrupt, WormError
from worm.spark import (
    InventoryTable,
    JobSpec,
    Source,
    failures_of_tasks,
    job_parser,
    open_inventory,
    rebuild,
    rebuild_incrementally,
    say,
    spark_session,
    specs_of,
)
from worm.tables import RebuildReport

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXIT_FAILED = 1


def main(arguments: Sequence[str] | None = None) -> int:
    parsed = _parser().parse_args(arguments)
    try:
        specs = [spec for spec in specs_of(parsed) if parsed.models or has_tables(spec)]
        source = _source(parsed)
        spark = spark_session("worm-rebuild")
    except WormError as error:
        say(f"rebuild: {error}", sys.stderr)
        return error.exit_code
    how = rebuild if parsed.full else partial(rebuild_incrementally, source=source)
    codes = [_rebuilt(spark, spec, how) for spec in specs]
    return max(codes, default=0)


def _parser() -> argparse.ArgumentParser:
    parser = job_parser("rebuild", "Rebuild tables from the documents.")
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument("--full", action="store_true", help="read everything, and restore claims")
    chosen.add_argument("--inventory", metavar="URL", help="manifest.json of an S3 Inventory, in place of listings")
    chosen.add_argument("--inventory-table", metavar="NAME", help="live inventory table of S3 Metadata, likewise")
    return parser


def _source(parsed: argparse.Namespace) -> Source | None:
    if parsed.inventory is not None:
        return open_inventory(parsed.inventory, parsed.url, parsed.endpoint_url)
    return None if parsed.inventory_table is None else InventoryTable(parsed.inventory_table)


def _rebuilt(spark: SparkSession, spec: JobSpec, how: Callable[[SparkSession, JobSpec], RebuildReport]) -> int:
    """The exit code for one model. A model that cannot be rebuilt does not stop the others."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        with failures_of_tasks():
            report = how(spark, spec)
        say(report.summary())
        for entity_id, reason in report.damaged:
            say(f"damaged  {entity_id}: its document is served; {reason}", sys.stderr)
        return Corrupt.exit_code if report.damaged else 0
    except WormError as error:
        say(f"rebuild: {spec.model}: {error}", sys.stderr)
        return error.exit_code
    except (Py4JJavaError, PySparkException) as error:
        say(f"rebuild: {spec.model}: a task failed: {error}", sys.stderr)
        return EXIT_FAILED


def has_tables(spec: JobSpec) -> bool:
    definition = spec.schema().model(spec.model)
    return definition.oplog or definition.keeps_manifest


if __name__ == "__main__":
    sys.exit(main())
