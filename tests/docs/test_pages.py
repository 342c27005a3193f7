"""The pages under docs/ name what the code has: commands, options, keys, kinds of differences; their JSON is JSON."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator

import pytest
import typer.main
from typer.testing import CliRunner

from tests.docs.markdown import ROOT, blocks
from worm import errors
from worm.cli.program import app
from worm.collections import layout
from worm.formats.definition import IndexDef, LakeDef, ManifestDef, ModelDef, Schema, SnapshotsDef, StorageDef
from worm.formats.fields import FieldDef
from worm.formats.members import Definition
from worm.tables import verify

DOCS = ROOT / "docs"
DECISIONS = sorted((DOCS / "decisions").glob("[0-9]*.md"))
CLI, FORMATS = (DOCS / "cli.md").read_text(), (DOCS / "formats.md").read_text()


def _commands(command: object, name: str) -> Iterator[tuple[str, list[str]]]:
    """Every command with its options."""
    options = [option for one in getattr(command, "params", []) for option in one.opts if option.startswith("--")]
    yield name, options
    children: dict[str, object] = getattr(command, "commands", {})
    for child in sorted(children):
        yield from _commands(children[child], f"{name} {child}")


COMMANDS = dict(_commands(typer.main.get_command(app), "worm"))


def _section(title: str) -> str:
    """A command's part of the page; the root's options stand under 'Everywhere'."""
    found = re.search(rf"^## {re.escape(title)}$(.*?)(?=^## |\Z)", CLI, flags=re.MULTILINE | re.DOTALL)
    return found[1] if found else ""


GROUPS = (
    "worm",
    "worm table",
    "worm lake",
    "worm branch",
    "worm dlq",
    "worm schema",
    "worm snapshot",
    "worm trash",
    "worm token",
    "worm log",
    "worm db",
    "worm db branch",
    "worm space",
    "worm space branch",
    "worm space blob",
)


@pytest.mark.parametrize("command", [name for name in COMMANDS if name not in GROUPS])
def test_every_option_of_a_command_is_in_its_section(command: str) -> None:
    section = _section(command)
    assert section != ""
    shared = {"--url", "--endpoint-url", "--help"}
    missing = [one for one in COMMANDS[command] if one not in shared and not re.search(rf"{one}\b", section)]
    assert missing == []


def test_the_shared_options_are_described() -> None:
    section = _section("Everywhere")
    assert [one for one in COMMANDS["worm"] if f"`{one}" not in section] == []


def test_no_command_is_described_that_does_not_exist() -> None:
    described = re.findall(r"^## (worm .*)$", CLI, flags=re.MULTILINE)
    assert sorted(described) == sorted(name for name in COMMANDS if name not in GROUPS)


def test_every_kind_of_error_has_the_exit_code_of_the_table() -> None:
    """Scripts decide by these numbers: they are fixed, and each kind has its own."""
    told = {name: int(code) for code, name in re.findall(r"^\| (\d+) \| `(\w+)` \|", CLI, flags=re.MULTILINE)}
    kinds = {
        name: kind.exit_code
        for name, kind in inspect.getmembers(errors, inspect.isclass)
        if issubclass(kind, errors.WormError)
    }
    assert told == kinds
    assert len(set(kinds.values())) == len(kinds)


def test_every_kind_of_difference_is_described() -> None:
    kinds = set(
        re.findall(
            r'"((?:oplog|version|document|deletion|replay|manifest|index|heads)-[a-z]+)"', inspect.getsource(verify)
        )
    )
    assert kinds != set()
    assert sorted(kind for kind in kinds if f"`{kind}`" not in CLI) == []


def test_every_system_name_is_in_the_formats() -> None:
    names = {value for name, value in vars(layout).items() if name.endswith(("_DIR", "_FILE", "_KEY", "SENTINEL"))}
    assert sorted(name for name in names if f"{name}" not in FORMATS) == []


@pytest.mark.parametrize(
    "definition", [Schema, StorageDef, ModelDef, FieldDef, SnapshotsDef, ManifestDef, LakeDef, IndexDef]
)
def test_every_member_of_the_schema_is_in_the_formats(definition: type[Definition]) -> None:
    members = [one.alias for one in definition.members.values()]
    assert [member for member in members if not re.search(rf"[`.]{member}[`.]", FORMATS)] == []


@pytest.mark.parametrize("page", sorted(path.name for path in DOCS.glob("*.md")))
def test_json_blocks_are_json(page: str) -> None:
    for block in blocks(DOCS / page):
        if block.language == "json":
            json.loads(block.text)


def test_every_decision_says_what_it_costs_and_what_was_rejected() -> None:
    for page in DECISIONS:
        titles = re.findall(r"^## (.*)$", page.read_text(), flags=re.MULTILINE)
        assert titles == ["Context", "Decision", "Consequences", "Rejected", "S3 requests"], page.name
        assert re.match(rf"# {page.name[:4]}: ", page.read_text()), page.name


def test_the_index_names_every_decision_with_its_title() -> None:
    index = (DOCS / "decisions" / "README.md").read_text()
    listed = dict(re.findall(r"^- \[(.*)\]\((\d{4}-.*\.md)\)$", index, re.MULTILINE))
    titles = {page.read_text().partition("\n")[0].removeprefix("# "): page.name for page in DECISIONS}
    assert listed == titles


def test_every_command_shows_its_help() -> None:
    """Rich takes brackets for markup: `[/prefix]` in a help text was a traceback."""
    shown = {name: CliRunner().invoke(app, [*name.split()[1:], "--help"]) for name in COMMANDS}
    assert [name for name, ended in shown.items() if ended.exit_code != 0 or "Usage: worm" not in ended.stdout] == []
