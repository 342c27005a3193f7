"""docs/reference/errors.md: every error and every problem has its place there, and its examples run."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import io
import pkgutil
import re
from pathlib import Path

import pytest

import worm
from tests.docs.markdown import ROOT, anchors, blocks
from tests.project.source_tree import WORM, python_files
from worm import errors
from worm.api.problems import problem_of
from worm.errors import NotFound, Unavailable, UniqueViolation, WormError
from worm.log.journal.file import Locked
from worm.version import DOCS_URL

PAGE = ROOT / "docs" / "reference" / "errors.md"
TEXT = PAGE.read_text()
TABLE = {
    name: (int(code), int(status), kind)
    for name, code, status, kind in re.findall(
        r"^\| \[`(\w+)`\]\(#\w+\) \| (\d+) \| (\d+) \| `urn:worm:([\w-]+)` \|", TEXT, re.MULTILINE
    )
}
PROBLEMS = {
    slug: int(status) for status, slug in re.findall(r"^\| (\d{3}) \| `urn:worm:([\w-]+)` \|", TEXT, re.MULTILINE)
}


def all_errors() -> dict[str, type[WormError]]:
    """Every class of the library, wherever it is."""
    names = [one.name for one in pkgutil.walk_packages(worm.__path__, "worm.")]
    modules = [importlib.import_module(one) for one in names if one.split(".")[1] not in ("dev", "spark", "cli")]
    classes = dict(pair for module in modules for pair in inspect.getmembers(module, inspect.isclass))
    return {name: one for name, one in classes.items() if issubclass(one, WormError) and not one.explained_as}


def made(kind: type[WormError]) -> WormError:
    return UniqueViolation("a", 1, "x", shown="1") if kind is UniqueViolation else kind("it failed")


def test_every_error_has_a_section_that_its_link_leads_to() -> None:
    known = anchors(PAGE)
    assert Locked(Path("data"), None).help_url == Unavailable("no").help_url
    for name in all_errors():
        assert name.lower() in known, name
    for name in ("SchemaDiffers", "EditKept"):
        assert name.lower() in known
    assert NotFound("no").help_url == f"{DOCS_URL}reference/errors.html#notfound"


@pytest.mark.parametrize("name", sorted(all_errors()))
def test_a_section_has_message_cause_cure_and_an_example(name: str) -> None:
    section = TEXT.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
    for part in ("- **Message**: ", "- **Cause**: ", "- **Cure**: ", "```python\n", "```text\n"):
        assert part in section, part


def test_the_table_has_every_public_kind_with_exit_code_and_status() -> None:
    kinds = {name: one for name, one in inspect.getmembers(errors, inspect.isclass) if issubclass(one, WormError)}
    problems = {name: problem_of(made(one)) for name, one in kinds.items()}
    assert {name: (one.exit_code, problems[name].status, problems[name].slug) for name, one in kinds.items()} == TABLE


def test_every_problem_that_the_api_makes_is_listed_with_its_status() -> None:
    source = "\n".join(path.read_text() for path in python_files(WORM / "api"))
    by_code = re.findall(r'HttpProblem\(\s*(\d{3}),\s*"([a-z-]+)"', source)
    by_code += re.findall(r'Refused\(\s*(\d{3}), [^\n]*"([a-z-]+)"\)', source)
    more = {"test-failed": 422, "patch-failed": 422, "stored-document-invalid": 500, "bad-request": 400}
    assert {slug: int(status) for status, slug in by_code} | more == PROBLEMS


def test_the_examples_run_and_print_what_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One program, from the top of the page to its end."""
    monkeypatch.chdir(tmp_path)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_ENDPOINT_URL", "WORM_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    names: dict[str, object] = {}
    printed = ""
    for block in blocks(PAGE):
        if block.language == "python":
            with contextlib.redirect_stdout(io.StringIO()) as output:
                exec(compile(block.text, str(PAGE), "exec"), names)
            printed = output.getvalue()
        elif block.language == "text":
            assert printed == block.text
