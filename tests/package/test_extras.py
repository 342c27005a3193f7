"""Each extra does what it is for, alone in a new environment and an empty directory; the core says what is missing."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.docs.markdown import blocks
from tests.package.conftest import Environments
from tests.package.environments import ROOT, Built, Installed, required

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

README = [block for block in blocks(ROOT / "README.md") if block.language in ("python", "text")]
INSTALL_PAGE = ROOT / "docs" / "how-to" / "install.md"
ALL = ("", "api", "arrow", "cli", "dev", "fast", "spark", "sql")
ROWS = """
import worm
db = worm.connect("./data")
rows = db.model("Customer").find_all(select=["name"])
"""
PROOFS = {
    "api": "import worm.api.app, worm.upkeep.workers.lambdas",
    "arrow": ROWS + "assert rows.to_arrow().num_rows == len(rows.to_pandas()) == 1",
    "fast": "import msgspec",
    "spark": "import pkgutil, importlib, worm.spark\n"
    "for one in pkgutil.walk_packages(worm.spark.__path__, 'worm.spark.'):\n    importlib.import_module(one.name)",
    "sql": ROWS + "assert list(db.sql('select name from Customer')) == [{'name': 'Acme Corp'}]\n"
    "assert db.model('Customer').to_duckdb().project('name').fetchall() == [('Acme Corp',)]",
}
"""A program that needs the extra and nothing else."""


@pytest.mark.parametrize("extra", ALL)
def test_the_first_example_of_the_readme_runs(extra: str, environment: Environments, tmp_path: Path) -> None:
    installed = environment(extra)
    ended = installed.run(installed.python, "-c", README[0].text, cwd=tmp_path)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, README[1].text, "")
    if extra in PROOFS:
        proved = installed.run(installed.python, "-c", PROOFS[extra], cwd=tmp_path)
        assert (proved.returncode, proved.stderr) == (0, "")


def test_the_core_alone_is_a_library_whose_command_says_what_to_install(
    environment: Environments, tmp_path: Path
) -> None:
    installed = environment("")
    ended = installed.run(installed.worm, "table", "list", cwd=tmp_path)
    told = "worm: the command is not installed, only the library; pip install 's3worm[cli]'\n"
    assert (ended.returncode, ended.stdout, ended.stderr) == (3, "", told)


def test_every_module_loads_or_says_what_to_install(environment: Environments, tmp_path: Path) -> None:
    """Rooms that need an extra are known; nothing else may need more than the core."""
    program = (
        "import pkgutil, importlib, worm\n"
        "for one in pkgutil.walk_packages(worm.__path__, 'worm.'):\n"
        "    try:\n        importlib.import_module(one.name)\n"
        "    except ModuleNotFoundError as error:\n        print(one.name, error.name)\n"
    )
    installed = environment("")
    ended = installed.run(installed.python, "-c", program, cwd=tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")
    modules = {line.split()[0] for line in ended.stdout.splitlines()} - {"worm.tables.typed"}  # queries go without it
    modules = {one for one in modules if not one.startswith("worm.upkeep.workers.")}
    assert {".".join(one.split(".")[:2]) for one in modules} == {"worm.api", "worm.cli", "worm.dev", "worm.spark"}


def test_the_command_works_with_cli_and_names_the_extra_that_a_subcommand_needs(
    environment: Environments, tmp_path: Path
) -> None:
    installed = environment("cli")
    assert installed.run(installed.python, "-c", README[0].text, cwd=tmp_path).returncode == 0
    listed = installed.run(installed.worm, "table", "query", "Customer", "--format", "json", cwd=tmp_path)
    assert (listed.returncode, listed.stderr) == (0, "")
    assert [row["name"] for row in json.loads(listed.stdout)] == ["Acme Corp"]
    for command in ("dev", "demo"):
        ended = installed.run(installed.worm, command, cwd=tmp_path)
        said = r"worm: this command needs the package \w+, which is not installed \(pip install 's3worm\[dev\]'\)\n"
        assert (ended.returncode, bool(re.fullmatch(said, ended.stderr))) == (3, True), ended.stderr


def test_the_demo_runs_in_an_empty_directory_and_leaves_nothing(environment: Environments, tmp_path: Path) -> None:
    installed = environment("dev")
    before = _sources(installed)
    ended = installed.run(installed.worm, "demo", "--quick", cwd=tmp_path, timeout=300)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "\n$ worm verify\n" in ended.stdout
    assert "\nno differences\n" in ended.stdout
    assert "\n--quick leaves out the rebuild with Spark\n" in ended.stdout
    assert list(tmp_path.iterdir()) == []
    assert _sources(installed) == before


def test_the_embedded_aws_serves_until_it_is_ended(environment: Environments, tmp_path: Path) -> None:
    installed = environment("dev")
    with _running(installed, tmp_path, "dev") as process:
        said = _said_until(process, r"^the console for this bucket: (\S+)$")
        assert "Customer" in _models(said)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0
    assert list(tmp_path.iterdir()) == []


def test_worm_serve_answers(environment: Environments, tmp_path: Path) -> None:
    installed = environment("cli")
    assert installed.run(installed.python, "-c", README[0].text, cwd=tmp_path).returncode == 0
    with _running(installed, tmp_path, "serve") as process:
        link = _said_until(process, r"^console: (\S+)$")
        assert _models(link) == ["Customer"]
        with urllib.request.urlopen(link.partition("#")[0], timeout=30) as page:
            assert b"<html" in page.read()
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0


def test_pip_installs_what_the_metadata_asks_for(built: Built, environment: Environments) -> None:
    """So an environment with links has what pip would install."""
    for extra in ("", "cli", "dev"):
        assert environment(extra).distributions() == {"s3worm", *required(built, extra)}


@pytest.mark.parametrize("extra", ALL)
def test_the_page_about_installing_tells_the_size(extra: str, environment: Environments) -> None:
    name = f"s3worm[{extra}]" if extra else "s3worm"
    told = re.search(rf"^\| `{re.escape(name)}` \|.*\| (\d+) MB \|$", INSTALL_PAGE.read_text(), re.MULTILINE)
    assert told is not None
    assert environment(extra).megabytes() == pytest.approx(int(told[1]), rel=0.25)


def _sources(installed: Installed) -> set[Path]:
    return {path for path in installed.site.rglob("*") if "__pycache__" not in path.parts}


@contextmanager
def _running(installed: Installed, folder: Path, command: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [installed.worm, command], cwd=folder, env=installed.variables(), stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _said_until(process: subprocess.Popen[str], pattern: str) -> str:
    """The group of the first line that matches."""
    assert process.stdout is not None
    said = []
    for line in process.stdout:
        said.append(line)
        found = re.search(pattern, line)
        if found:
            return found[1]
    raise AssertionError(f"it ended: {said}")


def _models(link: str) -> list[str]:
    url, _, token = link.partition("/#token=")
    asked = urllib.request.Request(f"{url}/v1/models", headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(asked, timeout=30) as answer:
        return [one["name"] for one in json.load(answer)["items"]]
