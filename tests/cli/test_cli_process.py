"""The command as its own process: start-up, pipes, locales."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.company import Command
from worm.model import Worm
from worm.version import VERSION

WORM = Path(sys.executable).with_name("worm")


def _run(*arguments: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[bytes]:
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("WORM_", "AWS_", "LC_"))}
    variables |= environment or {}
    return subprocess.run([str(WORM), *arguments], capture_output=True, env=variables, timeout=60, check=False)


def test_output_into_a_pipe_is_utf_8_in_every_locale_and_never_cut(url: str, session: Worm) -> None:
    arguments = ("table", "query", "Customer", "--filter", "status=inactive", "--select", "name")
    found = _run(*arguments, environment={"WORM_URL": url, "PYTHONIOENCODING": "ascii", "COLUMNS": "10"})
    assert (found.returncode, found.stderr) == (0, b"")
    assert found.stdout.decode() == "id    name\n----  ------\nkobe  神戸紙\n"


@pytest.mark.slow
def test_an_error_is_one_line_on_stderr_and_no_traceback(url: str, session: Worm) -> None:
    found = _run("history", "Customer", "nobody", environment={"WORM_URL": url})
    assert (found.returncode, found.stdout) == (3, b"")
    assert found.stderr == b"worm: Customer 'nobody' has no history [org/customers/nobody/data.json]\n"


def test_starting_the_command_imports_neither_boto3_nor_moto_nor_obstore() -> None:
    """They cost a third of a second and more; most commands on a directory need none of them."""
    program = (
        "import sys, worm.cli.main\n"
        "print([one for one in ('boto3', 'moto', 'obstore', 'worm_dev', 'pyarrow') if one in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert found.stdout == "[]\n"


def test_importing_worm_alone_imports_nothing_of_it() -> None:
    """Every Lambda handler pays for what `import worm` pulls in."""
    program = "import sys, worm; print(sorted(one for one in sys.modules if one.startswith(('worm', 'pydantic'))))"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert found.stdout == "['worm']\n"


def test_the_package_offers_its_public_names() -> None:
    import worm
    from worm import errors
    from worm.model import Model, connect
    from worm.model import Worm as Session

    assert (worm.connect, worm.Worm, worm.Model, worm.errors) == (connect, Session, Model, errors)
    assert worm.__version__ == VERSION
    assert set(worm.__all__) <= set(dir(worm))
    with pytest.raises(AttributeError, match="module 'worm' has no attribute 'nothing'"):
        worm.nothing  # noqa: B018


def test_version_and_unknown_commands(worm: Command) -> None:
    assert worm("--version").stdout == f"worm {VERSION}\n"
    assert worm("nothing").exit_code == 2


@pytest.mark.slow
def test_shells_can_complete_the_command() -> None:
    found = _run(environment={"_WORM_COMPLETE": "complete_bash", "COMP_WORDS": "worm ta", "COMP_CWORD": "1"})
    assert found.stdout.decode().split() == ["table"]


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("worm get C", ["Customer"]),
        ("worm trash list ", ["Customer", "OrgSettings"]),
        ("worm snapshot t", ["take"]),
        ("worm table inspect C", ["Customer"]),
        ("worm table rebuild Or", ["OrgSettings"]),
        ("worm table query Customer --strategy m", ["manifest_scan", "manifest_targeted"]),
        ("worm get --url ./nowhere C", []),
    ],
)
def test_shells_can_complete_models_and_groups(
    worm: Command, url: str, session: Worm, monkeypatch: pytest.MonkeyPatch, words: str, completed: list[str]
) -> None:
    variables = {"_WORM_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    for name, value in {**variables, "WORM_URL": url}.items():
        monkeypatch.setenv(name, value)
    found = worm()
    assert (found.stdout.split(), found.stderr) == (completed, "")
