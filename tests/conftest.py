"""Emulators for the whole session, and what makes every test faster and changes none."""

from __future__ import annotations

import gc
import os
from collections.abc import Generator, Iterator
from functools import cache

import pytest
from botocore.loaders import create_loader
from typer.main import get_command

import tests.examples  # noqa: F401 - the profile that `make check` names
from tests.corrupt_report import stored_around
from tests.emulators import CREDENTIALS, localstack_server, moto_server
from tests.log import minio
from worm.spaces import requests


def pytest_configure() -> None:
    """A writer of a space opens a desk for other processes after a moment of real time, and its thread makes requests.
    Where these would be counted depends on the speed of the machine; so tests that want a desk ask for it."""
    requests.BEGIN_SECONDS = 3600.0


def pytest_collection_finish() -> None:
    """What the imports left stays to the end: the collector need not look at it again and again. A test leaves little
    behind, so it comes seldom, and before a fork, which waits for each database that a test left in a read."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000)
    os.register_at_fork(before=gc.collect)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that fails with `Corrupt` anywhere in the chain of its error shows what the store holds there."""
    report = yield
    if report.failed and call.excinfo is not None:
        shown = stored_around(call.excinfo.value)
        if shown is not None:
            report.sections.append(("stored objects around Corrupt", shown))
    return report


@pytest.fixture(scope="session")
def moto_endpoint() -> Iterator[str]:
    with moto_server() as url:
        yield url


@pytest.fixture(scope="session")
def localstack_endpoint() -> Iterator[str]:
    with localstack_server() as url:
        yield url


@pytest.fixture(scope="session")
def minio_endpoint() -> Iterator[str]:
    try:
        minio.minio_binary()
    except minio.MinioMissing as missing:
        pytest.skip(str(missing))
    with minio.minio_server() as url:
        yield url


@pytest.fixture
def aws_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Credentials of the emulators, and nothing of the developer's own settings."""
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="session", autouse=True)
def _read_once() -> Iterator[None]:
    """typer builds all commands again in every `invoke`, and every session of boto3 parses the descriptions of its
    services again: both take longer than most tests do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("typer.testing._get_command", cache(get_command))
        patch.setattr("botocore.session.create_loader", cache(create_loader))
        yield


@pytest.fixture(scope="session", autouse=True)
def _no_waiting_for_the_disk() -> Iterator[None]:
    """A test sees its own writes without fsync. Tests of durability put a disk of their own in its place; a handle that
    is closed is refused as before."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", os.fstat)
        patch.setattr("os.fdatasync", os.fstat)
        yield
