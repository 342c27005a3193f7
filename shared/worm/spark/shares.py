"""How a job divides a collection among its tasks (`collections/division.py`), where tasks of Spark count the ids."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from worm.collections import IdRange, division
from worm.spark.cluster import JobSpec, parallelism
from worm.spark.rebuild_tasks import for_spec, run_rounds

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def planned_shares(spark: SparkSession, spec: JobSpec) -> list[division.Share]:
    """Portions that are counted before the job starts."""
    return division.planned_shares(spec.collection(), parallelism(spark), partial(_count, spark, spec))


def planned_ranges(spark: SparkSession, spec: JobSpec) -> list[IdRange]:
    """Ranges for tasks that are prepared for many more ids."""
    return division.planned_ranges(spec.collection(), parallelism(spark))


def compared_ranges(spark: SparkSession, spec: JobSpec) -> list[IdRange]:
    """Ranges for tasks that can handle some more ids."""
    return division.compared_ranges(spec.collection(), parallelism(spark), partial(_count, spark, spec))


def _count(spark: SparkSession, spec: JobSpec, ranges: list[IdRange]) -> list[division.ListedPortions]:
    return run_rounds(spark, for_spec(count_range, spec), ranges, f"{spec.model}: count")


def count_range(spec: JobSpec, within: IdRange) -> division.ListedPortions:
    return division.counted(spec.collection(), within)
