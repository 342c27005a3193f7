"""What a document, an id or a key holds is shown on a terminal, and never acts on it."""

from __future__ import annotations

import ast
import json
import os
import re
import sys
from pathlib import Path

import pytest

from tests.cli.company import Command
from tests.cli.terminal import on_terminal
from worm.cli import output
from worm.cli.output import neutral
from worm.sdk.database import Worm

WORM = Path(sys.executable).with_name("worm")
ACTING = "\x1b\x9b\x00\x07\x08\x7f\x85\r\u061c\u200e\u200f\u2028\u2029\u202a\u202e\u2066\u2069"
HOSTILE = f"A{ACTING}[31mB"
BAD = re.compile("[\x00-\x08\x0b-\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
WALK = [
    ("get", "Customer", "evil"),
    ("get", "Customer", "evil", "--format", "table"),
    ("get", "Customer", "evil", "--format", "csv"),
    ("table", "query", "Customer"),
    ("table", "query", "Customer", "--format", "json"),
    ("table", "query", "Customer", "--format", "ndjson"),
    ("table", "query", "Customer", "--format", "csv"),
    ("table", "query", "Customer", "--filter", f"name={HOSTILE}".replace("\x00", ""), "--select", "name,x\x9by"),
    ("table", "export", "Customer", "--format", "csv"),
    ("table", "inspect", "Customer"),
    ("history", "Customer", "evil"),
    ("history", "Customer", "evil", "--format", "json"),
    ("diff", "Customer", "evil", "1", "2"),
    ("verify",),
    ("verify", "--format", "json"),
    ("repair",),
    ("why", "org/customers/x\x9by/data.json"),
    ("get", "Customer", "no\x9bbody"),
    ("get", "Cust\x9bomer", "evil"),
    ("rm", "Customer", "evil", "zz\u202e"),
    ("put", "Customer", "--id", "x\u202ey"),
    ("import", "--prefix", "org/"),
]


@pytest.fixture
def hostile(url: str, session: Worm) -> str:
    """Documents with hostile values and field names, and a raw upload that breaks the schema."""
    customers = session.model("Customer")
    for name in (HOSTILE, f"{HOSTILE}2"):
        customers.upsert({"id": "evil", "name": name, f"field{HOSTILE}": [HOSTILE], "status": HOSTILE})
    raw = Path(url) / "org" / "customers" / "raw" / "data.json"
    raw.parent.mkdir(parents=True)
    raw.write_text(json.dumps({"name": "x", "status": 1, HOSTILE: 1}))
    return url


def shown_by(url: str, *arguments: str) -> str:
    """What the command sends to a terminal."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("WORM_", "AWS_"))}
    return on_terminal([str(WORM), *arguments], {**variables, "WORM_URL": url, "PYTHONUTF8": "1"})[1]


def acting(shown: str) -> set[str]:
    without_bar = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown) if "\x1b[?25l" in shown else shown
    return set(BAD.findall(without_bar.replace("\r\n", "\n")))


def test_a_document_does_not_act_on_the_terminal(hostile: str) -> None:
    """U+009B begins an escape sequence as ESC [ does, and JSON does not escape it by itself."""
    shown = shown_by(hostile, "get", "Customer", "evil")
    assert acting(shown) == set()
    assert json.loads(shown)["name"] == f"{HOSTILE}2"


@pytest.mark.slow
@pytest.mark.parametrize("arguments", WALK, ids=lambda one: " ".join(one).encode("unicode_escape").decode())
def test_no_command_lets_data_act_on_the_terminal(arguments: tuple[str, ...], hostile: str) -> None:
    shown = shown_by(hostile, *arguments)
    assert shown != ""
    assert acting(shown) == set(), shown
    assert "Traceback" not in shown


def test_json_in_a_pipe_is_exact(worm: Command, hostile: str) -> None:
    found = worm("get", "Customer", "evil", "--url", hostile)
    assert json.loads(found.stdout)["name"] == f"{HOSTILE}2"
    assert "\x9b" in found.stdout


def test_what_acts_on_a_terminal_is_escaped_as_json_does_it() -> None:
    assert {neutral(one) for one in ACTING} == {f"\\u{ord(one):04x}" for one in ACTING}
    assert json.loads(neutral(json.dumps(HOSTILE, ensure_ascii=False))) == HOSTILE
    assert neutral("a\tb\r\nc 神戸 é\u00a0x") == "a\tb\r\nc 神戸 é\u00a0x"


def test_all_output_of_commands_goes_through_one_function() -> None:
    """A line that is printed past it could carry anything to the terminal."""
    found = set()
    for module in Path(output.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(module.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("typer.echo", "typer.secho", "print"):
                found.add(module.name)
    assert found == {"program.py", "output.py"}  # program.py tells errors, with what they name escaped


@pytest.mark.slow
@pytest.mark.parametrize(("command", "title"), [("repair", "repairing Customer"), ("verify", "verifying Customer")])
def test_long_work_shows_on_a_terminal_how_far_it_is(command: str, title: str, worm: Command, hostile: str) -> None:
    """A first repair of many documents takes minutes, and looked as if it had stopped."""
    shown = shown_by(hostile, command)
    assert title in shown
    assert re.search(r"[1-9]/[1-9]", shown)
    assert worm(command, "--url", hostile).stderr == ""
