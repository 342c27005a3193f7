"""Emulators for the whole session, and what makes every test faster and changes none."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from functools import cache

import pytest
from botocore.loaders import create_loader
from typer.main import get_command

from tests.emulators import localstack_server, moto_server


def pytest_collection_finish() -> None:
    """What the imports left stays to the end: the collector need not look at it again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def moto_endpoint() -> Iterator[str]:
    with moto_server() as url:
        yield url


@pytest.fixture(scope="session")
def localstack_endpoint() -> Iterator[str]:
    with localstack_server() as url:
        yield url


@pytest.fixture(scope="session", autouse=True)
def _read_once() -> Iterator[None]:
    """typer builds all commands anew in every `invoke`, and every session of boto3 parses what describes its services
    again: both take longer than most tests do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("typer.testing._get_command", cache(get_command))
        patch.setattr("botocore.session.create_loader", cache(create_loader))
        yield
