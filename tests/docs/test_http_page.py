"""docs/http.md: its calls run in their order against a served directory, and it names every path and every setting."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.docs.markdown import ROOT, Block, blocks
from worm.api.app import ROUTES
from worm.api.local import LocalApi
from worm.cli.program import app
from worm.sdk.database import connect

PAGE = ROOT / "docs" / "http.md"
TOKEN = "a-token-of-the-docs"
END = "----- end of the block"
ANYTHING = "…"


def _as_shown(printed: str, shown: str) -> bool:
    """`…` stands for anything within a line."""
    return re.fullmatch(".*".join(map(re.escape, shown.split(ANYTHING))), printed) is not None


def _bash(script: str, folder: Path) -> str:
    done = subprocess.run(["bash", "-euo", "pipefail", "-c", script], cwd=folder, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def _calls(text: str) -> str:
    """A call ends with a line break, which curl leaves out."""
    return re.sub(r"^(curl (?:[^\n]|\n  )*)\n", r"\1; echo\n", text, flags=re.MULTILINE)


def test_the_calls_run_as_they_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (start, _), *calls = _examples()
    making, _, pushing = start.rstrip().rpartition("\n")
    _bash(making, tmp_path)
    assert CliRunner().invoke(app, shlex.split(pushing)[1:]).exit_code == 0
    with LocalApi(connect(str(tmp_path / "data"), probe=False), token=TOKEN) as api:
        script = "".join(f"{_calls(text)}echo '{END}'\n" for text, _ in calls)
        script = script.replace("http://127.0.0.1:8765", api.url).replace("3e1f…", TOKEN)
        printed = _bash(script, tmp_path).split(f"{END}\n")
    different = [
        (text, found)
        for (text, shown), found in zip(calls, printed, strict=False)
        if not _as_shown("\n".join(filter(None, found.splitlines())), "\n".join(shown))
    ]
    assert different == []


def _examples() -> list[tuple[str, list[str]]]:
    """Each block of commands, and the lines that it prints."""
    shown = [one for one in blocks(PAGE) if one.language in ("sh", "text")]
    pairs = zip(shown, [*shown[1:], Block("", "")], strict=True)
    return [
        (one.text, after.text.splitlines() if after.language == "text" else [])
        for one, after in pairs
        if one.language == "sh"
    ]


def test_every_path_is_in_the_list_with_its_scope() -> None:
    page = PAGE.read_text()
    listed = [f"| `{one.method} {one.path}` | {one.scope} |" for one in ROUTES if one.is_described]
    assert [one for one in listed if one not in page] == []


def test_every_setting_is_described() -> None:
    sources = [path.read_text() for path in (ROOT / "shared" / "worm" / "api").glob("*.py")]
    names = {name for source in sources for name in re.findall(r"WORM_API_[A-Z_]+", source)}
    page = PAGE.read_text()
    assert names
    assert [name for name in names if f"`{name}`" not in page] == []
