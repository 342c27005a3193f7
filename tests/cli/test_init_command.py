"""`worm init`: with or without questions, it writes a file that works, and prints commands that work."""

from __future__ import annotations

import json
import keyword
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cli.company import Command
from tests.cli.terminal import on_terminal
from tests.examples import examples
from worm.cli.init import EXAMPLES, PROGRAM, InitFormat, _name_check, _program, _schema_shape, _taken_names
from worm.cli.options import Target
from worm.errors import Invalid
from worm.formats import load_schema
from worm.sdk.class_schema import schema_of
from worm.sdk.database import connect

BIN = Path(sys.executable).parent


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def environment() -> dict[str, str]:
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("WORM_", "AWS_"))}
    return {**variables, "PATH": f"{BIN}{os.pathsep}{variables['PATH']}", "COLUMNS": "200"}


def run_literally(line: str) -> str:
    """The output of a printed command, pasted into a shell."""
    ended = subprocess.run(
        line, shell=True, capture_output=True, text=True, env=environment(), timeout=120, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, ""), (line, ended)
    return ended.stdout


def next_commands(stdout: str) -> list[str]:
    return [line.strip() for line in stdout.partition("next:\n")[2].splitlines()]


def answered(*answers: str, arguments: Sequence[str] = ()) -> tuple[int, str]:
    """The exit code and the screen of a user who types these answers."""
    command, typed = [str(BIN / "worm"), "init", *arguments], "".join(f"{one}\n" for one in answers)
    code, shown = on_terminal(command, environment(), typed)
    return code, shown.replace("\r\n", "\n")


def test_without_a_terminal_it_takes_the_defaults(worm: Command) -> None:
    ended = worm("init")
    assert (ended.exit_code, ended.stderr) == (0, "")
    assert ended.stdout.splitlines() == [
        "stored 3 example documents in ./data",
        "wrote app.py",
        "next:",
        "  python app.py",
        "  worm table query Customer",
        "  worm history Customer acme",
    ]
    assert [dict(row)["name"] for row in connect("./data").model("Customer").find_all(sort="id")] == [
        one["name"] for one in EXAMPLES
    ]


@pytest.mark.slow
@pytest.mark.parametrize("url", ["./data", "some dir/d'ata"])
@pytest.mark.parametrize("example", ["--example", "--no-example"])
@pytest.mark.parametrize("format", ["python", "json"])
def test_the_printed_commands_run_literally(worm: Command, format: str, example: str, url: str) -> None:
    ended = worm("init", "--url", url, "--model", "OrderLine", example, "--format", format)
    commands = next_commands(ended.stdout)
    assert len(commands) == 3
    shown = {command: run_literally(command) for command in commands}
    (query,) = [text for command, text in shown.items() if " table query " in command]
    assert "Acme Corp" in query
    assert len(query.splitlines()) == 2 + (3 if example == "--example" else 1)


def test_the_program_says_what_there_is_and_adds_what_you_name(worm: Command) -> None:
    worm("init")
    assert [line.split() for line in run_literally("python app.py").splitlines()[:3]] == [
        ["acme", "Acme", "Corp", "active"],
        ["globex", "Globex", "lead"],
        ["initech", "Initech", "active"],
    ]
    *_, added, last = run_literally("python app.py 'Wayne & Söhne'").splitlines()
    assert added.endswith("Wayne & Söhne  lead")
    assert last.startswith("Customer: 4 in file://")


@pytest.mark.slow
def test_on_a_terminal_it_asks_three_questions(place: Path) -> None:
    code, shown = answered("", "Order", "n")
    assert code == 0
    assert shown.count("?") == 3
    assert not (place / "data").exists()
    assert "class Order(worm.Document):" in (place / "app.py").read_text()
    assert next_commands(shown)[0] == 'python app.py "Acme Corp"'


@pytest.mark.slow
def test_a_wrong_answer_is_explained_and_asked_for_again(place: Path) -> None:
    code, shown = answered("s3://B", "./there", "two words", "Order", "perhaps", "y")
    assert code == 0
    assert "'B' is not a valid bucket name" in shown
    assert "'two words' cannot be the name of a model" in shown
    assert "'perhaps' is neither yes nor no" in shown
    assert (place / "there" / "orders" / "acme" / "data.json").is_file()


@pytest.mark.slow
def test_an_option_is_not_asked_for_and_ctrl_d_is_no_answer(place: Path) -> None:
    arguments = ["--url", "./there", "--model", "Order", "--no-example"]
    assert "?" not in answered(arguments=arguments)[1]
    (place / "app.py").unlink()
    code, shown = answered("\x04", arguments=arguments[:-1])
    assert code == 2
    assert "a question has no answer" in shown
    assert not (place / "app.py").exists()


def test_an_existing_file_stays_unless_forced(worm: Command, place: Path) -> None:
    (place / "app.py").write_text("mine")
    ended = worm("init")
    assert (ended.exit_code, ended.stdout) == (4, "")
    assert "app.py exists already" in ended.stderr
    assert "--force" in ended.stderr
    assert [one.name for one in place.iterdir()] == ["app.py"]
    assert worm("init", "--force").exit_code == 0
    assert "class Customer" in (place / "app.py").read_text()
    assert worm("init", "--force").stdout.startswith("stored 0 example documents")


def test_a_place_with_another_schema_is_left_alone(worm: Command, place: Path, schema_file: Path) -> None:
    schema_file.rename(place / "other.json")
    worm("push", "other.json", "--url", "./data")
    for example in ("--example", "--no-example"):
        ended = worm("init", example)
        assert ended.exit_code == 4
        assert "./data has another schema already: Customer, OrgSettings" in ended.stderr
    assert not (place / "app.py").exists()
    assert connect("./data").schema == load_schema(place / "other.json")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--url", "s3://"], "does not name a bucket"),
        (["--url", "s3:/bucket"], "neither a URL nor a path"),
        (["--url", "https://bucket.s3.amazonaws.com/crm"], "write s3://bucket/crm"),
        (["--url", "memory://x"], "ends with the program"),
        (["--url", " "], "is not a URL or a path"),
        (["--model", ""], "cannot be the name of a model"),
        (["--model", "2nd"], "a letter followed by letters, digits or _"),
        (["--model", "Kunde ö"], "a letter followed by letters, digits or _"),
        (["--model", "class"], "another meaning in a Python program"),
        (["--model", "worm"], "another meaning in a Python program"),
    ],
)
def test_a_wrong_option_is_refused_and_nothing_is_written(
    worm: Command, place: Path, arguments: list[str], reason: str
) -> None:
    ended = worm("init", *arguments)
    assert (ended.exit_code, ended.stdout) == (2, "")
    assert reason in ended.stderr
    assert list(place.iterdir()) == []


def test_a_schema_may_have_a_name_that_python_uses(worm: Command, place: Path) -> None:
    assert worm("init", "--format", "json", "--model", "class").exit_code == 0
    written = json.loads((place / "schema.json").read_text())
    assert written["$schema"].startswith("https://")
    assert worm("push", "schema.json").stdout.splitlines()[0].endswith("already has this schema")


def test_a_bucket_gets_no_example_data_unless_asked(worm: Command, place: Path) -> None:
    """Nobody is there to agree to it, and nothing answers at this endpoint."""
    arguments = ["--url", "s3://my-bucket/crm", "--endpoint-url", "http://127.0.0.1:9"]
    ended = worm("init", *arguments)
    assert ended.exit_code == 0
    assert next_commands(ended.stdout) == [
        'python app.py "Acme Corp"',
        f"worm table query Customer {shlex.join(arguments)}",
        f"worm history Customer {shlex.join(arguments)}",
    ]
    assert 'worm.connect("s3://my-bucket/crm", endpoint_url="http://127.0.0.1:9", ' in (place / "app.py").read_text()


@pytest.mark.parametrize("name", sorted({*_taken_names(), *keyword.kwlist, "Document", "Customer", "document", "dict"}))
def test_every_accepted_name_gives_a_program_that_pushes_its_schema(name: str) -> None:
    try:
        _name_check(InitFormat.python)(name)
    except Invalid:
        assert name in _taken_names() or keyword.iskeyword(name)
    else:
        check_program(name)


@settings(max_examples=examples(50), deadline=None)
@given(st.from_regex(r"[A-Za-z][A-Za-z0-9_]{0,99}", fullmatch=True).filter(lambda name: not keyword.iskeyword(name)))
def test_any_other_name_does_too(name: str) -> None:
    if name not in _taken_names():
        check_program(name)


def check_program(name: str) -> None:
    """The class in the program says what the schema says, and its text is Python whatever the url is."""
    found: dict[str, object] = {"__name__": "app"}
    exec(_program(name, Target(url='a"b\\c{x}')), found)
    cls = found[name]
    assert isinstance(cls, type)
    assert schema_of([cls]) == load_schema(_schema_shape(name))


def test_the_program_is_formatted_as_ours_are() -> None:
    text = PROGRAM.format(model="Customer", place='"./data"')
    ended = subprocess.run(
        [str(BIN / "ruff"), "format", "--diff", "-"], input=text, capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout) == (0, ""), ended
