"""The reference is what the code says: generated pages are up to date, every public name has an example."""

from __future__ import annotations

import doctest
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import worm
from scripts.site_reference import REFERENCE, described, pages
from tests.docs.markdown import blocks

PYTHON = REFERENCE / "python.md"
BEGIN = next(block.text for block in blocks(PYTHON) if block.language == "python")
INTERNAL = {
    worm.Model: {"check_removing"},
    worm.Worm: {
        "collection",
        "ensure_safe_store",
        "in_parallel",
        "is_new",
        "lake",
        "look_for_abandoned",
        "refresh",
        "submit",
        "table",
        "table_lock",
    },
}
"""Methods for other parts of the package."""
DATA = {"MISSING", "__version__"}
"""They have no docstring; their examples are on the page itself."""


@pytest.mark.parametrize("name", ["settings.md", "metrics.md", "http-api.md"])
def test_a_generated_page_is_what_the_script_writes(name: str) -> None:
    assert (REFERENCE / name).read_text() == pages()[name], "run scripts/site_reference.py"


def test_a_new_name_without_a_meaning_fails_the_script() -> None:
    with pytest.raises(SystemExit, match=r"the list differs from the code: \['NEW'\]"):
        described(["OLD", "NEW"], {"OLD": "known"}, "the list")


def test_every_public_name_is_on_the_page_once() -> None:
    text = PYTHON.read_text().replace("\\", "")
    listed = re.findall(r"^(?:::: worm\.|### )(\w+)$", text, flags=re.MULTILINE)
    assert sorted(listed) == sorted(worm.__all__)


def _documented() -> Iterator[tuple[str, object]]:
    """Public names, and the verbs of sessions and models."""
    for name in sorted({*worm.__all__} - DATA):
        yield name, getattr(worm, name)
    for cls, internal in INTERNAL.items():
        for name, verb in inspect.getmembers(cls, inspect.isfunction):
            if not name.startswith("_") and name not in internal:
                yield f"{cls.__name__}.{name}", verb


DOCUMENTED = {name: inspect.getdoc(one) or "" for name, one in _documented()}


def test_every_public_name_has_an_example() -> None:
    assert [name for name, text in DOCUMENTED.items() if "\nExamples:\n    >>> " not in text] == []


def _run(example: doctest.DocTest, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    for name in ("WORM_URL", "WORM_ACTOR", "WORM_MAINTENANCE", "WORM_DURABILITY"):
        monkeypatch.delenv(name, raising=False)
    module = ModuleType("begin")
    monkeypatch.setitem(sys.modules, module.__name__, module)  # where pydantic looks for annotations
    exec(compile(BEGIN, PYTHON.name, "exec", dont_inherit=True), module.__dict__)
    example.globs = module.__dict__
    runner, printed = doctest.DocTestRunner(verbose=False), list[str]()
    assert runner.run(example, out=printed.append, clear_globs=False).failed == 0, "".join(printed)
    example.globs["db"].close()


@pytest.mark.parametrize("cls", ["Model", "Worm"])
def test_the_page_lists_every_verb_of_a_class_once(cls: str) -> None:
    [listed] = re.findall(
        rf"^::: worm\.{cls}\n(?:    .*\n)*?      members: \[([^\]]*)\]", PYTHON.read_text(), re.MULTILINE
    )
    verbs = [name.partition(".")[2] for name in DOCUMENTED if name.startswith(f"{cls}.")]
    assert sorted(re.findall(r"\w+", listed)) == sorted(verbs)


@pytest.mark.slow
@pytest.mark.parametrize("name", DOCUMENTED)
def test_the_example_of_a_name_runs_as_it_says(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _run(doctest.DocTestParser().get_doctest(DOCUMENTED[name], {}, name, None, None), tmp_path, monkeypatch)


def test_the_examples_of_the_page_itself_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "\n".join(block.text for block in blocks(PYTHON) if block.language == "pycon")
    _run(doctest.DocTestParser().get_doctest(text, {}, "page", None, None), tmp_path, monkeypatch)
