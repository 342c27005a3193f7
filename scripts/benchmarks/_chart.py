"""A line chart as PNG with nothing but zlib: steps over time, axes with numbers, a legend."""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Mapping, Sequence

WIDTH, HEIGHT, SCALE = 900, 420, 2
LEFT, RIGHT, TOP, BOTTOM, PARTS = 60, 40, 60, 50, 4
COLOURS = (
    (255, 255, 255),
    (60, 60, 60),
    (225, 225, 225),
    (31, 119, 180),
    (214, 39, 40),
    (44, 160, 44),
    (148, 103, 189),
)
INK, GRID, FIRST = 1, 2, 3
LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ./,-"
DOTS = (
    "7555726227717477171755711747177475771111757577571725755656563444365556747477474434553557557222711152"
    "5565544447577556555525552656442557365655342167222255557555525577555255552227124700002112440002400700"
)
GLYPHS = {letter: DOTS[5 * at : 5 * at + 5] for at, letter in enumerate(LETTERS)}
"""Five rows of three dots each, as octal digits."""


class Chart:
    """Every dot is a number of `COLOURS`."""

    def __init__(self) -> None:
        self._rows = [bytearray(WIDTH) for _ in range(HEIGHT)]

    def box(self, left: int, top: int, width: int, height: int, colour: int) -> None:
        for y in range(max(0, top), min(HEIGHT, top + height)):
            low, high = max(0, left), min(WIDTH, left + width)
            self._rows[y][low:high] = bytes((colour,)) * (high - low)

    def text(self, left: int, top: int, words: str, colour: int = INK) -> None:
        for at, letter in enumerate(words.upper()):
            for row, digit in enumerate(GLYPHS.get(letter, "00000")):
                for column in range(3):
                    if int(digit) >> (2 - column) & 1:
                        self.box(left + (at * 4 + column) * SCALE, top + row * SCALE, SCALE, SCALE, colour)

    def png(self) -> bytes:
        raw = b"".join(b"\0" + row for row in self._rows)
        palette = bytes(part for colour in COLOURS for part in colour)
        head = struct.pack(">IIBBBBB", WIDTH, HEIGHT, 8, 3, 0, 0, 0)
        chunks = ((b"IHDR", head), (b"PLTE", palette), (b"IDAT", zlib.compress(raw, 9)), (b"IEND", b""))
        return b"\x89PNG\r\n\x1a\n" + b"".join(
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
            for kind, body in chunks
        )


def steps_chart(title: str, across: str, xs: Sequence[float], lines: Mapping[str, Sequence[float]]) -> bytes:
    """Each line stays at its value until the next."""
    chart, wide, high = Chart(), WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    x_top, y_top = max(xs), math.ceil(max(map(max, lines.values())) / 10 / PARTS) * 10 * PARTS or 1

    def x_of(value: float) -> int:
        return LEFT + round(value / x_top * wide)

    def y_of(value: float) -> int:
        return TOP + high - round(value / y_top * high)

    for part in range(PARTS + 1):
        x, y = x_top * part / PARTS, y_top * part / PARTS
        chart.box(LEFT, y_of(y), wide, 1, GRID)
        chart.text(LEFT - 45, y_of(y) - 5, f"{y:.0f}")
        chart.text(x_of(x) - 8, HEIGHT - BOTTOM + 10, f"{x:.1f}")
    chart.box(LEFT, TOP, 1, high, INK)
    chart.text(LEFT, 10, title)
    chart.text(LEFT + wide // 2 - 20, HEIGHT - 18, across)
    for number, (name, values) in enumerate(lines.items()):
        colour = FIRST + number
        chart.text(LEFT + number * wide // len(lines), 34, name, colour)
        for at in range(1, len(xs)):
            x, before, now = x_of(xs[at]), y_of(values[at - 1]), y_of(values[at])
            chart.box(x_of(xs[at - 1]), before - 1, x - x_of(xs[at - 1]) + 2, 2, colour)
            chart.box(x, min(before, now), 2, abs(before - now) + 1, colour)
    return chart.png()
