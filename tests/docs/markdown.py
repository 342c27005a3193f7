"""Fenced blocks of a markdown file."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """`language` is what stands after the fence."""

    language: str
    text: str


def blocks(page: Path) -> list[Block]:
    return [Block(language, text) for language, text in _FENCE.findall(page.read_text())]
