"""Fenced blocks of a markdown file, and what it has in comments for the test that runs it.

`<!-- setup … -->` holds commands that readers need not see: they bring about what a section is about.
`<!-- exits 9 -->` is the exit code of the block before it.
`<!-- file schema.json -->` is the file that the block before it is saved as, instead of being run.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$|^<!-- (setup|exits|file)\s(.*?)\s?-->$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """`language` is what follows the fence, or the first word of a comment."""

    language: str
    text: str


def anchors(page: Path) -> set[str]:
    """What links to the headings of a page end with."""
    titles = re.findall(r"^#+ (.*)$", _BLOCK.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def blocks(page: Path) -> list[Block]:
    found = _BLOCK.finditer(page.read_text())
    return [Block(one[3] or one[1], one[4] if one[3] else one[2]) for one in found]
