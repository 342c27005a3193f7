"""Registers the data source `worm` with Spark 4, so that `spark.read.format("worm")` works without `register(spark)`.

At the first use of any data source that Spark does not know, its driver imports every top-level module whose name
starts with `pyspark_`, and takes its `DefaultSource`. So this module is imported by programs that do not use worm. It
imports nothing of worm until Spark makes the source.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql.datasource import DataSource


class DefaultSource(DataSource):
    """What Spark registers. To make one gives a `WormDataSource`."""

    @classmethod
    def name(cls) -> str:
        return "worm"

    def __new__(cls, options: dict[str, str]) -> Any:
        from worm.spark import WormDataSource

        return WormDataSource(options)
