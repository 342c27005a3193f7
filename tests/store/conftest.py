"""The stores the contract suite runs on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.emulators import CREDENTIALS, new_bucket, rclone_server
from worm.store.base import Store
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
    "file",
    "moto",
    "moto-versioned",
    pytest.param("localstack", marks=pytest.mark.localstack),
    pytest.param("localstack-versioned", marks=pytest.mark.localstack),
]


@pytest.fixture(autouse=True)
def aws_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="session")
def rclone_endpoint() -> Iterator[str]:
    with rclone_server() as url:
        yield url


@pytest.fixture(params=SUBJECTS)
def subject(request: pytest.FixtureRequest, tmp_path: Path, aws_environment: None) -> Subject:
    name = str(request.param)
    kind, _, suffix = name.partition("-")
    versioned = suffix == "versioned"
    if kind == "memory":
        return Subject(name, MemoryStore(versioned=versioned), versioned)
    if kind == "file":
        return Subject(name, FileStore(tmp_path / "data", fsync=False), is_versioned=False)
    endpoint = str(request.getfixturevalue(f"{kind}_endpoint"))
    store = S3Store(new_bucket(endpoint, versioned=versioned), "a/prefix", endpoint_url=endpoint)
    return Subject(name, store, versioned, deletes_conditionally=kind != "localstack")


@pytest.fixture
def store(subject: Subject) -> Store:
    return subject.store
