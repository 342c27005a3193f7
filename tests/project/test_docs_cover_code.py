"""Documentation that cannot lag: the code enumerates functions, settings, commands and errors, docs must name each."""

from __future__ import annotations

import inspect
import re
from functools import cache
from pathlib import Path

import typer.main

import worm.errors
from tests.docs.markdown import anchors
from tests.project.source_tree import ROOT, python_files
from worm.cli.program import app
from worm.dev.cfn import load

SETTING = re.compile(r"[\"'](WORM_[A-Z_]*[A-Z])[\"']")


@cache
def documentation() -> str:
    paths = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return "\n".join(path.read_text() for path in paths)


def _functions() -> list[str]:
    return sorted(path.parent.name for path in ROOT.glob("functions/*/handler.py"))


def _settings() -> list[str]:
    """Environment variables named in the code, and those that the template sets."""
    code = [path.read_text() for folder in ("shared", "functions") for path in python_files(ROOT / folder)]
    found = {name for text in code for name in SETTING.findall(text)}
    template = load((ROOT / "template.yaml").read_text())
    found |= set(template["Globals"]["Function"]["Environment"]["Variables"])
    return sorted(found)


def _commands() -> list[str]:
    """`worm push`, `worm table query`, …"""

    def walk(command: object, name: str) -> list[str]:
        children: dict[str, object] = getattr(command, "commands", {})
        leaves = [leaf for child in sorted(children) for leaf in walk(children[child], f"{name} {child}")]
        return leaves or [name]

    return walk(typer.main.get_command(app), "worm")


def _errors() -> list[str]:
    classes = inspect.getmembers(worm.errors, inspect.isclass)
    return sorted(name for name, one in classes if issubclass(one, worm.errors.WormError))


def _parameters() -> list[str]:
    return sorted(load((ROOT / "template.yaml").read_text())["Parameters"])


def _scripts() -> list[str]:
    return sorted(path.name for path in (ROOT / "scripts").iterdir() if path.is_file() and not path.suffix)


def _undocumented(names: list[str], pattern: str = "`{}`") -> list[str]:
    assert names != []
    return [name for name in names if not re.search(pattern.format(re.escape(name)), documentation())]


def test_every_function_is_described() -> None:
    assert _undocumented(_functions()) == []


def test_every_setting_is_described() -> None:
    assert _undocumented(_settings(), r"`{}\b") == []


def test_every_command_is_described() -> None:
    assert _undocumented(_commands(), r"\b{}\b") == []


def test_every_error_is_described() -> None:
    assert _undocumented(_errors()) == []


def test_every_parameter_of_the_template_is_described() -> None:
    assert _undocumented(_parameters()) == []


def test_every_script_is_described() -> None:
    assert _undocumented(_scripts(), r"scripts/{}\b") == []


def test_links_between_pages_lead_somewhere() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    broken = [f"{page.name}: {target}" for page in pages for target in _targets(page) if not _exists(page, target)]
    assert broken == []


def _targets(page: Path) -> list[str]:
    links = re.findall(r"\]\(([^)\s]+)\)", page.read_text())
    return [link for link in links if not re.match(r"[a-z]+:", link)]


def _exists(page: Path, target: str) -> bool:
    name, _, anchor = target.partition("#")
    path = page.parent / name if name else page
    return path.exists() and (not anchor or anchor in anchors(path))


def test_the_glossary_is_short_and_gives_each_word_one_meaning() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text().partition("## Glossary")[2].partition("\n## ")[0]
    terms = re.findall(r"^\| (\*.+?\*) \|", text, re.MULTILINE)
    words = [word for term in terms for word in re.findall(r"\*([^*]+)\*", term)]
    assert len(terms) <= 60
    assert len(words) == len({*words}) > 40
