"""What is in sdist and wheel, and what they say about themselves."""

from __future__ import annotations

import re
import tarfile
import zipfile
from email.message import Message
from pathlib import Path, PurePosixPath

import pytest
from packaging.requirements import Requirement

from scripts.long_description import FILES, PAGES, for_pypi
from tests.package.environments import ROOT, Built
from tests.project.source_tree import relative, tracked_files
from worm.version import VERSION

PACKAGES = ("shared/pyspark_worm/", "shared/worm/")
DEPLOYED = ("functions/", "spark_jobs/", "template.yaml")
EXTRAS = {"api", "arrow", "cli", "dev", "fast", "spark", "sql"}


def _expected() -> set[str]:
    """Every committed file of the two packages, and of what `worm dev` deploys."""
    names = [relative(path) for path in tracked_files()]
    package = {name.removeprefix("shared/") for name in names if name.startswith(PACKAGES)}
    return package | {f"worm/dev/deployed/{name}" for name in names if name.startswith(DEPLOYED)}


@pytest.mark.slow
def test_the_wheel_has_two_packages_with_all_of_their_files_and_nothing_else(built: Built) -> None:
    own = {name for name in built.names() if not name.startswith(f"s3worm-{VERSION}.dist-info/")}
    assert own == _expected()
    named = ("py.typed", "api/console/index.html", "dev/sample/schema.json", "dev/deployed/template.yaml")
    assert {f"worm/{name}" for name in named} <= own
    assert [name for name in own if {"tests", "__pycache__"} & set(PurePosixPath(name).parts)] == []


@pytest.mark.slow
def test_the_sdist_makes_the_same_wheel_as_the_checkout(built: Built) -> None:
    assert _checksums(built.wheel) == _checksums(built.direct)


@pytest.mark.slow
def test_the_sdist_has_what_it_takes_to_build_and_no_tests(built: Built) -> None:
    with tarfile.open(built.sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {name.partition("/")[0] for name in names} == {
        ".gitignore", "CHANGELOG.md", "LICENSE", "PKG-INFO", "README.md", "functions", "pyproject.toml", "scripts",
        "shared", "spark_jobs", "template.yaml",
    }  # fmt: skip
    assert [name for name in names if name.endswith(".pyc")] == []


@pytest.mark.slow
def test_the_metadata_says_who_where_and_for_which_python(built: Built) -> None:
    said = built.metadata()
    assert (said["Name"], said["Version"], said["Requires-Python"]) == ("s3worm", VERSION, ">=3.11")
    assert (said["Author"], said["License-Expression"]) == ("The S3WORM authors", "MIT AND Apache-2.0")
    assert {one.partition(", ")[0] for one in _all(said, "Project-URL")} == {
        "Homepage", "Documentation", "Changelog", "Issues",
    }  # fmt: skip
    versions = {f"Programming Language :: Python :: 3.{minor}" for minor in (11, 12, 13, 14)}
    assert versions | {"Typing :: Typed", "Operating System :: MacOS"} <= set(_all(said, "Classifier"))
    assert set(_all(said, "Provides-Extra")) == EXTRAS
    licenses = {name.partition("/licenses/")[2] for name in built.names() if "/licenses/" in name}
    assert licenses == set(_all(said, "License-File"))
    assert {"LICENSE", "shared/worm/api/console/vendor/LICENSE-preact.txt"} <= licenses


@pytest.mark.slow
def test_the_core_needs_six_packages(built: Built) -> None:
    asked = [Requirement(one) for one in _all(built.metadata(), "Requires-Dist")]
    wanted = {"arro3-core", "arro3-io", "boto3", "obstore", "orjson", "pydantic"}
    assert {one.name for one in asked if one.marker is None} == wanted


@pytest.mark.slow
def test_the_description_is_the_readme_with_links_that_work_on_pypi(built: Built) -> None:
    said = built.metadata()
    assert said["Description-Content-Type"] == "text/markdown"
    text = said.get_payload()
    assert isinstance(text, str)
    assert text.strip() == for_pypi((ROOT / "README.md").read_text()).strip()


def test_no_link_of_the_description_is_relative() -> None:
    text = for_pypi((ROOT / "README.md").read_text())
    targets = re.findall(r"\]\(([^)\s]+)", text) + re.findall(r"(?:src|srcset|href)=\"([^\"]+)", text)
    assert [target for target in targets if not re.match(r"https?://|#", target)] == []
    ours = [target.removeprefix(base) for target in targets for base in (PAGES, FILES) if target.startswith(base)]
    assert ours != []
    assert [name for name in ours if not (ROOT / name.partition("#")[0]).exists()] == []


def test_pictures_lead_to_the_file_and_links_to_the_page() -> None:
    text = "![a](docs/a.png) [b](docs/b.md#c) [d](https://example.com) [e](#f)"
    assert for_pypi(text) == f"![a]({FILES}docs/a.png) [b]({PAGES}docs/b.md#c) [d](https://example.com) [e](#f)"


def _checksums(wheel: Path) -> dict[str, int]:
    with zipfile.ZipFile(wheel) as archive:
        return {one.filename: one.CRC for one in archive.infolist()}


def _all(said: Message, name: str) -> list[str]:
    return [str(one) for one in said.get_all(name) or []]
