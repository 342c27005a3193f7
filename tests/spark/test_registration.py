"""Spark finds the data source by the package `pyspark_worm`; `register` is for sessions that looked too early."""

from __future__ import annotations

import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import MagicMock

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource

import pyspark_worm
from tests.spark.source_room import SourceRoom
from worm.spark.source import register
from worm.spark.source.datasource import WormDataSource


def test_a_session_reads_and_writes_without_registering(spark: SparkSession, tmp_path: Path) -> None:
    """A new session has none of the sources that others registered."""
    room, fresh = SourceRoom(f"file://{tmp_path}/bucket"), spark.newSession()
    fresh.createDataFrame([("a", "n1")], "id string, name string").write.format("worm").options(**room.options()).mode(
        "append"
    ).save()
    found = fresh.read.format("worm").options(**room.options(partitions="1")).schema("id string, name string").load()
    assert [tuple(row) for row in found.collect()] == [("a", "n1")]


def test_registering_what_spark_has_found_is_no_error(spark: SparkSession, tmp_path: Path) -> None:
    room, fresh = SourceRoom(f"file://{tmp_path}/bucket"), spark.newSession()
    for _ in range(2):
        register(fresh)
    assert fresh.read.format("worm").options(**room.options()).load().columns[0] == "id"


@pytest.mark.parametrize(("condition", "is_raised"), [("DATA_SOURCE_ALREADY_EXISTS", False), ("ANOTHER", True)])
def test_only_the_error_of_spark_4_0_for_a_source_that_exists_is_ignored(condition: str, is_raised: bool) -> None:
    session = MagicMock()
    session.dataSource.register.side_effect = AnalysisException("no", errorClass=condition, messageParameters={})
    with pytest.raises(AnalysisException) if is_raised else nullcontext():
        register(session)


def test_what_spark_makes_is_the_data_source_itself() -> None:
    assert issubclass(pyspark_worm.DefaultSource, DataSource)
    assert pyspark_worm.DefaultSource.name() == WormDataSource.name()
    made = pyspark_worm.DefaultSource({"model": "Thing"})
    assert type(made) is WormDataSource
    assert made.options == {"model": "Thing"}


def test_importing_it_imports_nothing_of_worm() -> None:
    """Spark imports it in every program that uses any data source of a package."""
    code = (
        "import sys, pyspark.sql.datasource; before = set(sys.modules); import pyspark_worm;"
        "pyspark_worm.DefaultSource.name(); print(*sorted(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["pyspark_worm"]
