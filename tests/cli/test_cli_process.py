"""The command as its own process: start-up, pipes, locales."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.cli.company import Command
from tests.journal.log_room import store_at
from worm.cli.commands import COMMANDS, CommandGroup, CommandLeaf
from worm.sdk.database import Worm
from worm.version import VERSION

pytestmark = pytest.mark.slow  # together more than a few seconds

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


def test_an_error_is_one_line_on_stderr_and_no_traceback(url: str, session: Worm) -> None:
    found = _run("history", "Customer", "nobody", environment={"WORM_URL": url})
    assert (found.returncode, found.stdout) == (3, b"")
    assert found.stderr == b"worm: Customer 'nobody' has no history [org/customers/nobody/data.json]\n"


def test_starting_the_command_imports_neither_boto3_nor_moto_nor_obstore() -> None:
    """They cost a third of a second and more; most commands on a directory need none of them."""
    program = (
        "import sys, worm.cli.program\n"
        "print([one for one in ('boto3', 'moto', 'obstore', 'worm.dev', 'pyarrow') if one in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert found.stdout == "[]\n"


STARTED = {
    "worm",
    "worm.cli",
    "worm.cli.program",
    "worm.cli.commands",
    "worm.cli.main",
    "worm.cli.options",
    "worm.doors",
    "worm.errors",
    "worm.version",
}
HEAVY = {"boto3", "moto", "obstore", "orjson", "pyarrow", "pydantic"}


def _loaded(*arguments: str) -> set[str]:
    """What is imported when the command has ended."""
    program = (
        "import atexit, sys\n"
        "atexit.register(lambda: print(*sys.modules, file=sys.stderr))\n"
        "from worm.cli.main import main\n"
        "sys.argv = ['worm', *sys.argv[1:]]\n"
        "main()"
    )
    command = [sys.executable, "-c", program, *arguments]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert found.stdout != ""
    return set(found.stderr.split())


def test_a_table_query_imports_nothing_that_only_other_commands_need(url: str, session: Worm) -> None:
    """Maintenance, spaces and migrations were a large part of its start; scripts/bench coldstart measures it."""
    loaded = _loaded("--url", url, "table", "query", "Customer", "--filter", "status=active")
    assert {name for name in loaded if name.startswith(("worm.spaces.", "worm.pages.", "worm.log."))} == set()
    assert {name for name in loaded if name.startswith("worm.upkeep.")} == {
        "worm.upkeep.folding",
        "worm.upkeep.pushed_schema",
        "worm.upkeep.session",
    }
    assert loaded & {f"worm.sdk.{name}" for name in ("class_schema", "classes", "migrating", "transacting")} == set()
    assert loaded & ((HEAVY - {"orjson"}) | {"asyncio", "html", "http.client", "rich"}) == set()


@pytest.mark.parametrize(
    "arguments",
    [
        ("table", "query", "Customer", "--limit", "3", "--sort", "name", "--select", "name", "--format", "csv"),
        ("table", "aggregate", "Customer", "--count", "--group-by", "status"),
        ("table", "list", "--format", "json"),
        ("get", "Customer", "zeta"),
        ("history", "Customer", "zeta"),
    ],
)
def test_reading_commands_do_without_pydantic(url: str, session: Worm, arguments: tuple[str, ...]) -> None:
    """typer imports it to convert values: text, numbers, choices and what nobody gave need no conversion."""
    assert "pydantic" not in _loaded("--url", url, *arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--limit", "x"), "unable to parse string as an integer"),
        (("--limit", "-1"), "greater than or equal to 0"),
        (("--format", "JSON"), "'JSON' is not one of"),
        (("--strategy",), "requires an argument"),
    ],
)
def test_values_that_need_a_look_are_refused_as_typer_does(
    worm: Command, url: str, session: Worm, arguments: tuple[str, ...], message: str
) -> None:
    refused = worm("--url", url, "table", "query", "Customer", *arguments)
    assert refused.exit_code == 2
    assert message in refused.stderr


def test_an_argument_that_is_required_is_missed(worm: Command, url: str, session: Worm) -> None:
    refused = worm("--url", url, "table", "aggregate")
    assert (refused.exit_code, "Missing argument 'MODEL'" in refused.stderr) == (2, True)


@pytest.mark.parametrize("argument", ["--version", "--help"])
def test_version_and_list_of_commands_import_no_command(argument: str) -> None:
    """`worm --version` may take 3 times `python -c pass` and typer's import; scripts/bench coldstart measures it."""
    loaded = _loaded(argument)
    assert {name for name in loaded if name.startswith("worm")} == {*STARTED, "worm.values", "worm.version"}
    assert loaded & HEAVY == set()
    assert ("rich" in loaded) is (argument == "--help")


def test_a_command_imports_its_own_module_only(tmp_path: Path) -> None:
    with store_at(tmp_path / "store") as store:
        store.insert("notes", {"_id": 1})
    loaded = _loaded("log", "cat", "--url", str(tmp_path / "store"))
    commands = {name for name in loaded if name.startswith("worm.cli.")}
    assert commands == {name for name in ("worm.cli.log", "worm.cli.output", *STARTED) if name.startswith("worm.cli.")}
    rooms = {".".join(name.split(".")[:2]) for name in loaded if name.startswith("worm.")}
    assert rooms & {"worm.collections", "worm.pages", "worm.sdk", "worm.tables", "worm.upkeep"} == set()
    assert loaded & (HEAVY - {"orjson", "pydantic"}) == set()


def test_the_list_of_commands_says_what_each_says_of_itself() -> None:
    told = {name: one.help for name, one in COMMANDS.items() if isinstance(one, CommandLeaf)}
    assert told == {name: " ".join(str(COMMANDS[name].load(name).help).partition("\n\n")[0].split()) for name in told}


def _commands(tree: Mapping[str, CommandLeaf | CommandGroup], path: str = "") -> Iterator[tuple[str, CommandLeaf]]:
    for name, one in tree.items():
        if isinstance(one, CommandGroup):
            yield from _commands(one.commands, f"{path}{name} ")
        else:
            yield path + name, one


def test_every_command_takes_the_shared_options() -> None:
    """`worm space pull`, `attach` and `detach` name their places by arguments; `worm cost` and `demo` look at none."""
    taken = {
        name: {option for one in leaf.load(name).params for option in one.opts} for name, leaf in _commands(COMMANDS)
    }
    without_place = {"cost", "demo", "pack", "unpack", "schema export", "schema json-schema"}
    without_url = {"attach", "detach", "dev", *without_place}
    assert {name for name, options in taken.items() if "--url" not in options} == without_url
    assert {name for name, options in taken.items() if "--endpoint-url" not in options} == without_place
    writers = {"branch merge", "migrate", "put", "restore", "rm", "rollback", "snapshot restore", "trash restore"}
    assert {name for name, options in taken.items() if "--actor" in options} == {*writers, "history"}  # which filters


def test_a_shared_option_may_precede_or_follow_the_command(
    worm: Command, url: str, session: Worm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The later one wins, then the variable."""
    nowhere = str(tmp_path / "nowhere")
    monkeypatch.setenv("WORM_URL", nowhere)
    monkeypatch.setenv("WORM_ACTOR", "by-variable")
    one, two, three = (f'{{"name": "New {at}"}}' for at in range(3))  # what did not change has no history
    assert worm("put", "Customer", "--id", "new", stdin=one).exit_code == 3
    before, after = ("--url", url, "--actor", "before"), ("--url", url, "--actor", "after")
    assert worm("--url", url, "put", "Customer", "--id", "new", stdin=one).exit_code == 0
    assert worm(*before, "put", "Customer", "--id", "new", stdin=two).exit_code == 0
    assert worm("--url", nowhere, *before[2:], "put", "Customer", "--id", "new", *after, stdin=three).exit_code == 0
    entries = json.loads(worm("history", "Customer", "new", "--format", "json", "--url", url).stdout)
    assert [entry["actor"] for entry in entries] == ["by-variable", "before", "after"]


def test_importing_worm_alone_imports_nothing_of_it() -> None:
    """Every Lambda handler pays for what `import worm` pulls in; two modules of a few lines are its door."""
    program = "import sys, worm; print(sorted(one for one in sys.modules if one.startswith(('worm', 'pydantic'))))"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert found.stdout == "['worm', 'worm.doors', 'worm.version']\n"


def test_the_package_offers_its_public_names() -> None:
    import worm
    from worm import errors
    from worm.sdk.database import Model, connect
    from worm.sdk.database import Worm as Session

    assert (worm.connect, worm.Worm, worm.Model, worm.errors) == (connect, Session, Model, errors)
    assert worm.__version__ == VERSION
    assert set(worm.__all__) <= set(dir(worm))
    with pytest.raises(AttributeError, match="module 'worm' has no attribute 'nothing'"):
        worm.nothing  # type: ignore[attr-defined]  # noqa: B018


def test_every_public_name_is_there_and_errors_have_theirs() -> None:
    import worm
    from worm import errors

    kinds = {name for name, one in vars(errors).items() if isinstance(one, type) and issubclass(one, Exception)}
    assert kinds <= set(worm.__all__)
    for name in worm.__all__:
        assert getattr(worm, name) is not None
    assert worm.Conflict is errors.Conflict
    wanted = {"StorageResolver", "DocumentDict", "Rows", "Result", "open_space", "open_store", "Schema", "load_schema"}
    assert {*wanted, "push", "HistoryRows"} <= set(worm.__all__)


def test_an_error_of_the_package_costs_no_more_than_the_errors() -> None:
    program = "import sys, worm; worm.Conflict; print(sorted(one for one in sys.modules if one.startswith('worm')))"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert found.stdout == "['worm', 'worm.doors', 'worm.errors', 'worm.version']\n"


def test_version_and_unknown_commands(worm: Command) -> None:
    assert worm("--version").stdout == f"worm {VERSION}\n"
    assert worm("nothing").exit_code == 2


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
