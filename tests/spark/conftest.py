"""One Spark session for all tests of this folder, and a bucket on disk or on moto for each.

All of them run in one worker of pytest-xdist (group `spark`): a session is a JVM of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.emulators import CREDENTIALS
from tests.spark.session import new_session
from worm.dev.aws import start_moto

__all__ = ["new_session"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.spark)
            item.add_marker(pytest.mark.xdist_group("spark"))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = new_session("local[2]")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """moto with its gaps filled: its own listing of versions that starts after a key leaves the first one out."""
    server = start_moto(tmp_path_factory.mktemp("moto"), CREDENTIALS["AWS_DEFAULT_REGION"])
    yield server.endpoint_url
    server.stop()


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def file_url(tmp_path: Path) -> str:
    return f"file://{tmp_path}/bucket"


@pytest.fixture
def small_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A collection of some ten documents has several portions, as large ones have."""
    monkeypatch.setattr("worm.collections.division.STEP", 2)
    monkeypatch.setattr("worm.collections.division.MARKS_PER_PORTION", 2)
    monkeypatch.setattr("worm.collections.division.PORTION_IDS", 4)
    monkeypatch.setattr("worm.collections.division.ROWS_PER_TASK", 50)
