#!/usr/bin/env python3
"""Records the first five minutes in a terminal: `docs/img/first-minutes.svg`.

Runs the program of the README and then real commands, in an empty directory. Times are replaced by a fixed one, so
every run draws the same picture; tests/docs/test_pictures.py compares. The lines appear one command after the other,
and stay; for readers who prefer less motion they are there at once.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import SVG_EXPORT_THEME
from rich.text import Text

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "img" / "first-minutes.svg"
TITLE = "The first five minutes"
COMMANDS = (
    "python app.py",
    "worm table query Customer --select name,status",
    """echo '{"id": "acme", "name": "Acme", "status": "lost"}' | worm put Customer --reason "wrong file\"""",
    "worm history Customer acme | cut -c 1-64",
    "worm rollback Customer acme --to 2 --reason undo",
    "worm verify",
)
WIDTH = 100
SECONDS = 2.5
"""From one command to the next."""
_TIME = re.compile(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
_FONTS = re.compile(r"@font-face {.*?}\s*", re.DOTALL)
_LINE = re.compile(
    r'<text class="([\w-]+)" (x="[\d.]+" y="[\d.]+" textLength="[\d.]+" clip-path="url\(#[\w-]+line-(\d+)\)")'
)


def program() -> str:
    """The README's."""
    found = re.search(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), flags=re.MULTILINE | re.DOTALL)
    if found is None:
        raise SystemExit("README.md has no program")
    return found[1]


def session(folder: Path) -> list[tuple[str, list[str]]]:
    """Each command with the lines that it prints. The first one that fails ends the recording."""
    (folder / "app.py").write_text(program())
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("WORM_", "AWS_"))}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = kept | {"PATH": path, "WORM_ACTOR": "user:bob", "PYTHONPATH": str(ROOT / "shared")}
    shown = []
    for command in COMMANDS:
        line = f"set -euo pipefail; {command}"
        done = subprocess.run(["bash", "-c", line], cwd=folder, env=environment, text=True, capture_output=True)
        if done.returncode != 0 or done.stderr:
            raise SystemExit(f"{command}\n{done.stdout}{done.stderr}")
        shown.append((command, _TIME.sub("2026-02-24T12:00:00Z", done.stdout).splitlines()))
    return shown


def draw(shown: Sequence[tuple[str, Sequence[str]]]) -> str:
    console = Console(record=True, width=WIDTH, file=StringIO(), force_terminal=True, color_system="truecolor")
    starts: list[float] = []
    for number, (command, lines) in enumerate(shown):
        console.print(Text("$ ", style="bold cyan") + Text(command, style="bold"), no_wrap=True, crop=False)
        for line in [*lines, ""]:
            console.print(Text(line), no_wrap=True, crop=False)
        starts += [number * SECONDS, *(number * SECONDS + 0.8 for _ in [*lines, ""])]
    svg = console.export_svg(title=TITLE, theme=SVG_EXPORT_THEME, unique_id="first")
    svg = _FONTS.sub("", svg).replace("Fira Code, monospace", "ui-monospace, Menlo, Consolas, monospace")
    return _described(_animated(svg, starts), shown)


def _animated(svg: str, starts: Sequence[float]) -> str:
    """Every line of the terminal is shown at its time."""

    def timed(found: re.Match[str]) -> str:
        return f'<text class="{found[1]} line" style="animation-delay: {starts[int(found[3])]:.1f}s" {found[2]}'

    motion = """
    @media (prefers-reduced-motion: no-preference) {
        .line { animation: appear 0.2s both; }
        @keyframes appear { from { opacity: 0; } }
    }
    </style>"""
    return _LINE.sub(timed, svg).replace("</style>", motion.lstrip("\n"), 1)


def _described(svg: str, shown: Sequence[tuple[str, Sequence[str]]]) -> str:
    text = Text("\n".join(command for command, _ in shown)).plain.replace("&", "&amp;").replace("<", "&lt;")
    about = f'width="860" role="img"><title>{TITLE}</title><desc>A terminal session: {text}</desc>'
    lines = svg.replace(">", f" {about}", 1).splitlines()
    return "\n".join(line.rstrip() for line in lines) + "\n"


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        PICTURE.write_text(draw(session(Path(folder))))
    print(PICTURE.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
