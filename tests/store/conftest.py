"""The stores the contract suite runs on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.emulators import new_bucket, rclone_server
from worm.store.base import Durability, Store
from worm.store.file import FileStore
from worm.store.memory import MemoryStore
from worm.store.s3 import S3Store


@dataclass(frozen=True)
class Subject:
    """A store under test and what it can do."""

    name: str
    store: Store
    is_versioned: bool
    deletes_conditionally: bool = True


SUBJECTS = [
    "memory",
    "memory-versioned",
    "file-power",
    "file-process",
    pytest.param("moto", marks=pytest.mark.slow),  # what versioning changes, memory shows as well
    "moto-versioned",
    pytest.param("localstack", marks=pytest.mark.localstack),
    pytest.param("localstack-versioned", marks=pytest.mark.localstack),
]


@pytest.fixture(autouse=True)
def _alone(aws_environment: None) -> None:
    """Every test of a store is apart from the developer's own settings."""


@pytest.fixture(scope="session")
def rclone_endpoint() -> Iterator[str]:
    with rclone_server() as url:
        yield url


@pytest.fixture(params=SUBJECTS)
def subject(request: pytest.FixtureRequest, tmp_path: Path) -> Subject:
    name = str(request.param)
    kind, _, suffix = name.partition("-")
    versioned = suffix == "versioned"
    if kind == "memory":
        return Subject(name, MemoryStore(versioned=versioned), versioned)
    if kind == "file":
        durability: Durability = "power" if suffix == "power" else "process"
        return Subject(name, FileStore(tmp_path / "data", durability=durability), is_versioned=False)
    endpoint = str(request.getfixturevalue(f"{kind}_endpoint"))
    store = S3Store(new_bucket(endpoint, versioned=versioned), "a/prefix", endpoint_url=endpoint)
    return Subject(name, store, versioned, deletes_conditionally=kind != "localstack")


@pytest.fixture
def store(subject: Subject) -> Store:
    return subject.store
