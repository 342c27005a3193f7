"""Bars as SVG, made of text and rectangles: a row for each name, a bar for each of its values, a line for the goal."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from xml.sax.saxutils import escape

WIDTH, LEFT, RIGHT, TOP = 760, 260, 70, 58
BAR, GAP = 14, 10
COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#7f7f7f")
LOG_FROM = 30
"""Values that differ by more than this factor are drawn on a logarithmic scale."""

Rows = Mapping[str, Mapping[str, float]]


def bars(title: str, rows: Rows, *, goal: float | None = None) -> str:
    """The picture. Rows may have different value names; a name has the same color everywhere."""
    names = list(dict.fromkeys(name for values in rows.values() for name in values))
    known = [value for values in rows.values() for value in values.values()] + ([] if goal is None else [goal])
    positive = [value for value in known if value > 0]
    top, low = max(positive, default=1.0), min(positive, default=1.0)
    is_log = top / low > LOG_FROM
    lines, y = _heading(title + (", logarithmic scale" if is_log else ""), names), TOP

    def length(value: float) -> float:
        share = math.log(value / low * 2) / math.log(top / low * 2) if is_log and value > 0 else value / top
        return max(0.0, share) * (WIDTH - LEFT - RIGHT)

    for row, values in rows.items():
        lines.append(_text(LEFT - 8, y + BAR * len(values) / 2 + 4, row, anchor="end"))
        for name, value in values.items():
            wide = round(length(value), 1)
            colour = COLOURS[names.index(name) % len(COLOURS)]
            lines.append(f'<rect x="{LEFT}" y="{y}" width="{wide}" height="{BAR - 2}" fill="{colour}"/>')
            lines.append(_text(LEFT + wide + 4, y + BAR - 4, f"{value:,.4g}", size=10))
            y += BAR
        y += GAP
    if goal is not None:
        x = round(LEFT + length(goal), 1)
        lines.append(f'<line x1="{x}" y1="{TOP - 4}" x2="{x}" y2="{y}" stroke="#000" stroke-dasharray="4 3"/>')
        lines.append(_text(x, y + 10, f"goal {goal:,.4g}", size=10, anchor="middle"))
    size = f'width="{WIDTH}" height="{y + 16}" viewBox="0 0 {WIDTH} {y + 16}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif">'
    return "\n".join([head, f'<rect width="{WIDTH}" height="{y + 16}" fill="#fff"/>', *lines, "</svg>"]) + "\n"


def _heading(title: str, names: list[str]) -> list[str]:
    lines, x = [_text(10, 20, title, size=14)], 10
    for at, name in enumerate(names):
        lines.append(f'<rect x="{x}" y="32" width="10" height="10" fill="{COLOURS[at % len(COLOURS)]}"/>')
        lines.append(_text(x + 14, 41, name, size=11))
        x += 30 + 7 * len(name)
    return lines


def _text(x: float, y: float, words: str, *, size: int = 12, anchor: str = "start") -> str:
    place = f'x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}"'
    return f'<text {place} fill="#222">{escape(words)}</text>'


def save_charts(folder: Path | None, charts: Mapping[str, str]) -> None:
    """Save pictures by name; does nothing without a folder."""
    if folder is not None:
        for name, picture in charts.items():
            (folder / f"{name}.svg").write_text(picture)
