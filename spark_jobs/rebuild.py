"""Rebuild the tables of whole collections from their documents and their history, while workers continue.

    spark-submit spark_jobs/rebuild.py --url s3://bucket --model Customer

It writes manifest, indexes, heads, claims and sentinel: the same bytes as `worm table rebuild`, and the same again in a
second run.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from worm.errors import Corrupt, WormError
from worm.spark.cluster import JobSpec, job_parser, say, spark_session, specs_of
from worm.spark.rebuild_job import rebuild

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXIT_FAILED = 1


def main(arguments: Sequence[str] | None = None) -> int:
    parsed = job_parser("rebuild", "Rebuild tables from the documents.").parse_args(arguments)
    try:
        specs = [spec for spec in specs_of(parsed) if parsed.models or has_tables(spec)]
        spark = spark_session("worm-rebuild")
    except WormError as error:
        say(f"rebuild: {error}", sys.stderr)
        return error.exit_code
    codes = [_rebuilt(spark, spec) for spec in specs]
    return max(codes, default=0)


def _rebuilt(spark: SparkSession, spec: JobSpec) -> int:
    """The exit code for one model. A model that cannot be rebuilt does not stop the others."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        report = rebuild(spark, spec)
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
