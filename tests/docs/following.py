"""A tutorial, followed as its reader does: files saved, commands typed into a shell, Python into a session.

- A `python` block whose first line is a comment with a file name (`# crm.py`) is saved under that name. All others run
  in one Python process; like a notebook, it shows the value of a last expression.
- A `sh` block runs in bash, with the variables that earlier ones exported, and ends with the exit code 0 or that of the
  comment after it. `worm dev` and `worm serve` run until the page ends. A `setup` is a `sh` block that readers do not
  see (`markdown.py`).
- A `text` block is everything that the block before it prints. For a command that keeps running, some of its lines are
  enough. Times, ports, tokens and versions may differ.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.docs.markdown import ROOT, Block, blocks

KEEPS_RUNNING = ("worm dev", "worm serve")
START_SECONDS = 60.0
END_SECONDS = 20.0
_FILE = re.compile(r"# ([\w-]+\.py)\n")
_NOTHING = re.compile(r"(?!)")
_VARYING = (
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d"), "TIME"),
    (re.compile(r"(?<=TIME)\.\d{3}(?=Z)"), ".MMM"),
    (re.compile(r"127\.0\.0\.1:\d+"), "127.0.0.1:PORT"),
    (re.compile(r"#token=\S+"), "#token=TOKEN"),
    (re.compile(r"(?<=version )[0-9a-f-]{36}"), "VERSION"),
)
_SESSION = """
import ast, contextlib, io, json, sys
for _line in sys.stdin:
    _tree = ast.parse(json.loads(_line))
    _last = _tree.body.pop() if isinstance(_tree.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(io.StringIO()) as _printed:
        exec(compile(_tree, "tutorial", "exec"), globals())
        if _last is not None:
            _value = eval(compile(ast.Expression(_last.value), "tutorial", "eval"), globals())
            if _value is not None:
                print(repr(_value))
    sys.stdout.write(json.dumps(_printed.getvalue()) + "\\n")
    sys.stdout.flush()
"""


@dataclass(frozen=True)
class Desk:
    """Where a tutorial is followed. `replaces` maps words of the page to their values here. Lines that match `skips`
    are not run. If a block prints something other than the page shows, it is retried for `patience_seconds`."""

    folder: Path
    environment: Mapping[str, str]
    replaces: Mapping[str, str] = field(default_factory=dict)
    skips: re.Pattern[str] = _NOTHING
    patience_seconds: float = 0.0
    block_seconds_max: float = 100.0

    def here(self, text: str) -> str:
        for word, other in self.replaces.items():
            text = text.replace(word, other)
        return text


def clean_environment() -> dict[str, str]:
    """This checkout and its commands, and nothing of the developer's own settings."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("WORM_", "AWS_"))}
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return kept | {"PATH": programs, "PYTHONPATH": f"{ROOT / 'shared'}{os.pathsep}{ROOT}", "BROWSER": "true"}


def settled(text: str) -> str:
    """The text without what differs from run to run, and without the newline that a file may lack."""
    for pattern, by in _VARYING:
        text = pattern.sub(by, text)
    return text.rstrip("\n")


def follow(page: Path, desk: Desk) -> list[str]:
    """What each block printed. Asserts the output that the page shows."""
    listed = [Block(one.language, desk.here(one.text)) for one in blocks(page)]
    printed = []
    with _following(desk) as reader:
        for number, block in enumerate(listed):
            after = listed[number + 1 : number + 3]
            code = int(after.pop(0).text) if after and after[0].language == "exits" else 0
            shown = after[0].text if after and after[0].language == "text" else None
            if block.language == "python" and (name := _FILE.match(block.text)):
                (desk.folder / name[1]).write_text(block.text)
            elif block.language == "python":
                printed.append(reader.run_python(block.text, shown))
            elif block.language == "sh" and block.text.startswith(KEEPS_RUNNING):
                printed.append(reader.start(block.text, shown or ""))
            elif block.language == "setup":
                reader.run_commands(block.text, None, 0)
            elif block.language == "sh":
                printed.append(reader.run_commands(block.text, shown, code))
    return printed


@contextmanager
def _following(desk: Desk) -> Iterator[_Reader]:
    reader = _Reader(desk)
    try:
        yield reader
        for process in reversed(reader.processes):
            process.terminate()
            assert process.wait(END_SECONDS) in (0, -15)
    finally:
        for process in reader.processes:
            process.kill()
            process.communicate()


class _Reader:
    """The shells and the Python session of one reader."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._variables = desk.folder.parent / "variables"
        self._variables.touch()
        self._session: subprocess.Popen[str] | None = None
        self.processes: list[subprocess.Popen[str]] = []

    def _shell(self, text: str, *, is_last: bool = False) -> list[str]:
        keeps = "" if is_last else f"trap 'export -p > {self._variables}' EXIT\n"
        return ["bash", "-e", "-o", "pipefail", "-c", f". {self._variables}\n{keeps}{text}"]

    def _open(self, command: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            self._shell(f"exec {command}", is_last=True),
            cwd=self._desk.folder,
            env=dict(self._desk.environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.processes.append(process)
        return process

    def start(self, command: str, shown: str) -> str:
        """Returns when it has printed the lines that the page shows, in their order, and its console answers."""
        process, printed = self._open(command), ""
        assert process.stdout is not None
        wanted, deadline = settled(shown).splitlines(), time.monotonic() + START_SECONDS
        while wanted and time.monotonic() < deadline and (line := process.stdout.readline()):
            printed += line
            wanted = wanted[1:] if settled(line) == wanted[0] else wanted
        assert wanted == [], f"{command}\n{printed}"
        for console in re.findall(r"(http://\S+/)#token=", printed):
            with urllib.request.urlopen(console, timeout=10) as answer:
                assert b"<html" in answer.read()
        return printed

    def run_commands(self, text: str, shown: str | None, code: int) -> str:
        lines = [line for line in text.replace("\\\n", " ").splitlines() if not self._desk.skips.search(line)]
        if not lines:
            return ""
        deadline = time.monotonic() + self._desk.patience_seconds
        while True:
            ended = subprocess.run(
                self._shell("\n".join(lines)),
                cwd=self._desk.folder,
                env=dict(self._desk.environment),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=self._desk.block_seconds_max,
                check=False,
            )
            is_shown = shown is None or settled(ended.stdout) == settled(shown)
            if (is_shown and ended.returncode == code) or time.monotonic() >= deadline:
                break
            time.sleep(0.5)
        assert ended.returncode == code, f"{text}\n{ended.stdout}"
        _compare(text, ended.stdout, shown)
        return ended.stdout

    def run_python(self, text: str, shown: str | None) -> str:
        if self._session is None:
            self._session = self._open(f"python -c {shlex.quote(_SESSION)}")
        stdin, stdout = self._session.stdin, self._session.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps(text) + "\n")
        stdin.flush()
        answer = stdout.readline()
        assert answer != "", f"this fails (its error is on stderr):\n{text}"
        printed = str(json.loads(answer))
        _compare(text, printed, shown)
        return printed


def _compare(text: str, printed: str, shown: str | None) -> None:
    if shown is not None:
        assert settled(printed) == settled(shown), f"{text}\n\nprinted:\n{printed}"
