"""The Spark data source `worm`."""

from __future__ import annotations

from spark_jobs.source.datasource import register

__all__ = ["register"]
