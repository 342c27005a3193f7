"""The linter of our English finds each kind of mistake where it is, and finds none in the repository."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import prose

PAGE = """\
# A page

The catalogue is built
anew. `anew` is code, and so is this:

```python
anew = 1
```

| anew | one |
"""

MODULE = '''\
"""A module that

is told everything.
"""

# It reads the file whoever asks.
NAME = "anew"
TEXT = (
    "the document, "
    f"{NAME} or {'whoever':>{10}}, lies there "
    f"and is "
    f"told of it"
)
app.command(
    help="Builds the table "
    "anew.",
)
'''


def _found(path: Path, text: str) -> list[tuple[int, str]]:
    path.write_text(text)
    return sorted((one.line, one.text) for one in prose.findings([path]))


def test_a_page_is_checked_line_by_line_without_its_code(tmp_path: Path) -> None:
    assert _found(tmp_path / "page.md", PAGE) == [(3, "catalogue"), (4, "anew"), (10, "anew")]


def test_docstrings_comments_f_strings_and_help_are_checked_and_names_are_not(tmp_path: Path) -> None:
    assert _found(tmp_path / "module.py", MODULE) == [(3, "is told"), (6, "whoever"), (11, "is told"), (16, "anew")]


@pytest.mark.parametrize("name", ["template.yaml", "view.js", "index.html"])
def test_templates_and_the_console_are_checked(tmp_path: Path, name: str) -> None:
    assert _found(tmp_path / name, "a\nDescription: The colour of the table\n") == [(2, "colour")]


def test_a_long_sentence_is_found_in_a_page_and_allowed_in_a_module(tmp_path: Path) -> None:
    long = "It goes on " * 20
    assert _found(tmp_path / "page.md", f"Short.\n\n{long}.\n") == [(3, "It goes on It goes on …")]
    assert _found(tmp_path / "module.py", f'"""{long}."""\n') == []


def test_each_rule_is_an_expression_with_advice() -> None:
    assert [rule for rule in prose.RULES["words"] if not (rule["find"] and rule["write"])] == []


def test_findings_are_printed_with_file_line_and_advice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.md"
    page.write_text("All the same.\n")
    assert prose.main([str(page)]) == 1
    assert capsys.readouterr().out == f"{page}:1: 'All the same': anyway, still\n"


@pytest.mark.slow
def test_the_whole_repository_is_clean() -> None:
    """`make check` knows it from scripts/lint."""
    assert [str(one) for one in prose.findings(prose.checked_files())] == []
