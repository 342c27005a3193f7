"""One build and one environment for each extra in a session: all tests of this folder run in one worker."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.package.environments import Built, Installed, build, download, installed, linked

HERE = Path(__file__).parent
BY_PIP = ("", "cli", "dev")
Environments = Callable[[str], Installed]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents and item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.xdist_group("package"))


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return build(tmp_path_factory.mktemp("built"))


@pytest.fixture(scope="session")
def environment(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Environments:
    """The environment of an extra, made at the first call; the core alone is the extra `""`."""

    @cache
    def files() -> Path:
        return download(built.wheel, tmp_path_factory.mktemp("files"))

    @cache
    def made(extra: str) -> Installed:
        folder = tmp_path_factory.mktemp(f"with-{extra or 'nothing'}")
        return installed(built.wheel, extra, files(), folder) if extra in BY_PIP else linked(built, extra, folder)

    return made
