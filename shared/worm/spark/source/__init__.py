"""The Spark data source `worm`."""

from __future__ import annotations

from worm.spark.source.datasource import register

__all__ = ["register"]
