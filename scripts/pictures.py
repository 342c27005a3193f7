#!/usr/bin/env python3
"""Draws the diagrams of the docs: `docs/img/{change-path,collection-files,branches}.svg`.

Each picture has its own panel, which follows the color scheme of the reader's system, so it can be read on any page.
Keys come from the code that makes them. tests/docs/test_pictures.py compares the files with what this script draws.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from html import escape
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "shared"), str(ROOT)]

import worm  # noqa: E402 - after the path is set

IMAGES = ROOT / "docs" / "img"
STYLE = """
  text { font: 14px system-ui, "Segoe UI", Helvetica, Arial, sans-serif; fill: #1d2a2c; }
  .title { font-weight: 600; }
  .small { font-size: 12.5px; fill: #4b5b5e; }
  .code { font: 12.5px ui-monospace, "SF Mono", Menlo, Consolas, monospace; }
  .number { font-size: 12px; font-weight: 600; fill: #ffffff; }
  .panel { fill: #ffffff; stroke: #d5dddd; }
  .box { fill: #f1f5f5; stroke: #b4c3c4; }
  .yours { fill: #fdf3df; stroke: #d9a13a; }
  .worker { fill: #dff1f3; stroke: #0f6a73; }
  .dot { fill: #0f6a73; }
  .gold { fill: #c98a1b; stroke: none; }
  .line { fill: none; stroke: #5d7275; stroke-width: 1.8; }
  .main { fill: none; stroke: #0f6a73; stroke-width: 3; }
  .draft { fill: none; stroke: #c98a1b; stroke-width: 3; }
  .head { fill: #5d7275; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e4ecec; }
    .small { fill: #a9babc; }
    .panel { fill: #1a2224; stroke: #344144; }
    .box { fill: #242f32; stroke: #4a5c60; }
    .yours { fill: #3a2f18; stroke: #d9a13a; }
    .worker { fill: #12383d; stroke: #5cc7d1; }
    .line { stroke: #91a5a8; }
    .head { fill: #91a5a8; }
    .main { stroke: #5cc7d1; }
    .dot { fill: #2b8f9a; }
  }
"""


class Drawing:
    """Shapes one after the other; the later ones are on top."""

    def __init__(self, width: int, height: int, title: str, description: str) -> None:
        self._size = width, height
        self._about = title, description
        self._parts: list[str] = []
        self.box(0.5, 0.5, width - 1, height - 1, "panel", radius=10)

    def box(self, x: float, y: float, width: float, height: float, kind: str = "box", radius: float = 8) -> None:
        self._parts.append(f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="{radius}"/>')

    def text(self, x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> None:
        names = f' class="{kind}"' if kind else ""
        self._parts.append(f'<text x="{x}" y="{y}"{names} text-anchor="{anchor}">{escape(text)}</text>')

    def number(self, x: float, y: float, number: int) -> None:
        self.dot(x, y, 11)
        self.text(x, y + 4.5, str(number), "number", "middle")

    def dot(self, x: float, y: float, radius: float, kind: str = "dot") -> None:
        self._parts.append(f'<circle class="{kind}" cx="{x}" cy="{y}" r="{radius}"/>')

    def path(self, points: str, kind: str = "line", *, arrow: bool = False) -> None:
        end = ' marker-end="url(#head)"' if arrow else ""
        self._parts.append(f'<path class="{kind}" d="{points}"{end}/>')

    def svg(self) -> str:
        (width, height), (title, description) = self._size, self._about
        head = '<marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto">'
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img"',
                f'  width="{width}" height="{height}" aria-labelledby="title description">',
                f'<title id="title">{escape(title)}</title>',
                f'<desc id="description">{escape(description)}</desc>',
                f"<style>{STYLE}</style>",
                f'<defs>{head}<path class="head" d="M0 0 L10 5 L0 10 z"/></marker></defs>',
                *self._parts,
                "</svg>\n",
            ]
        )


def keys() -> worm.StorageResolver:
    fields = {"name": {"type": "string"}}
    model = {"path": "@customers/(id:string)", "file": "data.json", "oplog": True, "softDelete": True, "fields": fields}
    return worm.StorageResolver(worm.load_schema({"models": {"Customer": model}}))


# The path of a change

WIDTH, HEIGHT, GAP = 208, 86, 36
LEFT, TOP = 24, 28


def change_path() -> str:
    key = keys()
    document = key.document_key("Customer", "acme")
    steps: Sequence[tuple[str, str, tuple[str, ...]]] = [
        ("Any S3 client", "box", ("PUT", document)),
        ("The document", "yours", ("a new version of", document)),
        ("Event", "box", ("EventBridge puts it", "into a queue (SQS)")),
        ("capture", "worker", ("a Lambda function: what", "is not recorded yet?")),
        (
            "History, change set",
            "box",
            (key.oplog_path("Customer", "acme"), key.change_set_path("Customer")),
        ),
        ("Event", "box", ("of the change set,", "into a second queue")),
        ("tables", "worker", ("a Lambda function: adds", "the change to the table")),
        ("Table", "box", (_name(key.manifest_key("Customer")), _name(key.index_key("Customer", "email"), 2))),
        ("You query it", "yours", ("Python, command line,", "HTTP, SQL, console")),
    ]
    described = "; ".join(
        f"{number}. {title}: {' '.join(lines)}" for number, (title, _, lines) in enumerate(steps, start=1)
    )
    drawing = Drawing(744, 416, "The path of a change", described)
    places = [_place(number) for number in range(len(steps))]
    for number, ((title, kind, lines), (x, y)) in enumerate(zip(steps, places, strict=True), start=1):
        drawing.box(x, y, WIDTH, HEIGHT, kind)
        drawing.number(x + 20, y + 22, number)
        drawing.text(x + 38, y + 27, title, "title")
        for line, text in enumerate(lines):
            drawing.text(x + 14, y + 51 + 19 * line, text, "code" if ".json" in text or "/" in text else "small")
    for (x, y), (after_x, after_y) in pairwise(places):
        drawing.path(_between(x, y, after_x, after_y), arrow=True)
    drawing.text(LEFT, 396, "Once a day, the sweep looks for changes that no event reported.", "small")
    return drawing.svg()


def _name(key: str, parts: int = 1) -> str:
    """The end of a key, which fits into a box."""
    return "/".join(key.split("/")[-parts:])


def _place(number: int) -> tuple[int, int]:
    """Three rows, of which the second runs from right to left."""
    row, column = divmod(number, 3)
    column = 2 - column if row == 1 else column
    return LEFT + column * (WIDTH + GAP), TOP + row * (HEIGHT + GAP)


def _between(x: int, y: int, after_x: int, after_y: int) -> str:
    if y != after_y:
        return f"M{x + WIDTH // 2} {y + HEIGHT} V{after_y - 3}"
    middle = y + HEIGHT // 2
    return f"M{x + WIDTH} {middle} H{after_x - 3}" if after_x > x else f"M{x} {middle} H{after_x + WIDTH + 3}"


# The files of a collection


def collection_files() -> str:
    key = keys()
    mine = [(key.document_key("Customer", name), "a document, as you wrote it") for name in ("acme", "globex")]
    made = [
        (key.oplog_key("Customer", "acme", 1), "history: the first change of acme"),
        (key.oplog_key("Customer", "acme", 2), "history: the second one"),
        (key.snapshot_key("Customer", "acme", "2026-02-24T12:00:00Z"), "a full copy of one moment"),
        (key.trash_key("Customer", "initech"), "a deleted document, to restore"),
        (key.change_set_key("Customer", "01KJ8M3V7ZQ4N9T2B6W1X5Y8RC"), "what a batch changed; expires"),
        (key.manifest_key("Customer"), "the table: one row per document"),
        (key.index_key("Customer", "email"), "an index of the table"),
        (key.heads_key("Customer"), "the newest entry of each document"),
    ]
    described = "; ".join(f"{name}: {text}" for name, text in [*mine, *made])
    drawing = Drawing(744, 454, "The files of a collection", described)
    _files(drawing, 24, "Yours: any S3 client may write these", "yours", mine)
    _files(drawing, 142, "Written by S3WORM: history, trash and tables", "worker", made)
    return drawing.svg()


def _files(drawing: Drawing, y: int, title: str, kind: str, files: Sequence[tuple[str, str]]) -> None:
    drawing.box(24, y, 696, 40 + 31 * len(files), kind)
    drawing.text(40, y + 25, title, "title")
    for number, (name, text) in enumerate(files):
        drawing.text(40, y + 55 + 31 * number, name, "code")
        drawing.text(470, y + 55 + 31 * number, text, "small")


# Branches


def branches() -> str:
    described = (
        'main has commits 1 to 4. create_branch("draft") after commit 2 makes a branch that begins with everything'
        ' main has. Changes on the branch do not show on main. diff("draft") lists them; merge("draft") brings them'
        " into main as commit 5."
    )
    drawing = Drawing(744, 262, "Branches: fork, change, merge", described)
    drawing.path("M60 80 H700", "main", arrow=False)
    drawing.path("M210 80 C260 80 250 180 300 180 H510 C560 180 550 80 600 80", "draft")
    drawing.text(24, 46, "main", "title")
    drawing.text(300, 214, 'db.branch("draft"): its own changes, its own queries', "small")
    drawing.text(255, 172, "draft", "title", "end")
    for number, x in enumerate((90, 210, 330, 450, 600), start=1):
        drawing.number(x, 80, number)
    for x in (320, 410, 500):
        drawing.dot(x, 180, 9, "gold")
    drawing.text(210, 56, 'create_branch("draft")', "code", "middle")
    drawing.text(600, 56, 'merge("draft")', "code", "middle")
    drawing.text(390, 118, "main goes on", "small", "middle")
    drawing.text(24, 244, "A branch begins with everything that main has, and copies nothing.", "small")
    return drawing.svg()


PICTURES: dict[str, Callable[[], str]] = {
    "change-path.svg": change_path,
    "collection-files.svg": collection_files,
    "branches.svg": branches,
}


def main() -> int:
    for name, draw in PICTURES.items():
        (IMAGES / name).write_text(draw())
        print(f"docs/img/{name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
