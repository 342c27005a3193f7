"""`worm log`, `worm db` and `worm space` have one grammar: the table in docs/cli.md, and every command of the three."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.docs.markdown import ROOT
from worm.cli.commands import COMMANDS, CommandGroup, CommandLeaf

GROUPS = ("log", "db", "space")
POSITIONS = {"--at", "--after"}
SECTION = (ROOT / "docs" / "cli.md").read_text().partition("### Logs, page stores and spaces")[2].partition("\n### ")[0]
ROWS = re.findall(r"^\| (`[^|]+) \| (\w*) ?\| (\w*) ?\| (\w*) ?\|", SECTION, re.MULTILINE)


def commands(tree: Any, above: str = "") -> Iterator[tuple[str, CommandLeaf]]:
    for name, one in tree.items():
        if isinstance(one, CommandGroup):
            yield from commands(one.commands, f"{above}{name} ")
        else:
            yield f"{above}{name}", one


def of(group: str) -> dict[str, CommandLeaf]:
    found = COMMANDS[group]
    assert isinstance(found, CommandGroup)
    return dict(commands(found.commands))


def test_the_table_says_what_there_is() -> None:
    assert len(ROWS) == 13
    for names, *cells in ROWS:
        for name in re.findall("`([^`]+)`", names):
            for group, cell in zip(GROUPS, cells, strict=True):
                assert (name in of(group)) is (cell == "yes"), (group, name)


@pytest.mark.parametrize("group", GROUPS)
def test_the_name_comes_first_and_places_are_options(group: str) -> None:
    for name, leaf in of(group).items():
        parameters = leaf.load(name.split()[-1]).params
        arguments = [str(one.metavar) for one in parameters if one.param_type_name == "argument"]
        options = {option for one in parameters for option in one.opts}
        assert "--url" in options, name
        assert arguments[:1] in ([[]] if name == "list" else [["NAME"], ["[NAME]"]]), (name, arguments)
        metavars = {one.opts[0]: str(one.metavar) for one in parameters if one.opts[0] in POSITIONS}
        assert [one for one in metavars.values() if not re.fullmatch(r"(SEQ|LSN|COMMIT)\|TIME", one)] == [], (
            name,
            metavars,
        )
