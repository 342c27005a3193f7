"""Servers of the session for the tests of logs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fault_proxy import fault_proxy
from tests.log.wire import Wire
from worm.dev.aws import Aws, start_moto


@pytest.fixture(scope="session")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Aws]:
    aws = start_moto(tmp_path_factory.mktemp("moto"), "us-east-1")
    yield aws
    aws.stop()


@pytest.fixture
def wire(moto: Aws) -> Iterator[Wire]:
    with fault_proxy(moto.endpoint_url) as proxy:
        yield Wire(moto, proxy)
