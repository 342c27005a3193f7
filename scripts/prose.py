"""Checks our English: words that read as if translated, British spelling, and sentences that are too long.

    .venv/bin/python -m scripts.prose [FILE …]

The rules are in prose.toml beside this file. Checked are the pages of docs/, README.md, and of Python files the
docstrings, comments and texts (errors, help). Code in a page is not: neither blocks nor `spans`.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RULES = tomllib.loads((ROOT / "scripts" / "prose.toml").read_text())
FOLDERS = ("docs", "functions", "scripts", "shared", "spark_jobs")
LENGTH_MAX: int = RULES["sentence"]["words_max"]
FENCE = re.compile(r"^( *)(```+|~~~+).*?^\1\2\s*?$", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)
LINK = re.compile(r"\]\([^)\s]*\)|<https?:[^>]*>|https?://\S+")
HTML = re.compile(r"<!--.*?-->|<[^>\n]+>", re.DOTALL)
TABLE_ROW = re.compile(r"^\s*\|.*$", re.MULTILINE)
SENTENCE_END = re.compile(r"(?<=[.!?:;])[\"')*_]*\s+|\n\s*\n|\n\s*(?:[-*+]|\d+\.|#+|>|!!!|:)\s+")


@dataclass(frozen=True)
class Finding:
    """One place, and what to write instead."""

    path: Path
    line: int
    text: str
    advice: str

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}: {self.text!r}: {self.advice}"


@dataclass(frozen=True)
class Passage:
    """Prose of a file, and the line that it starts at."""

    line: int
    text: str


def blanked(pattern: re.Pattern[str], text: str, by: str = " ") -> str:
    """The text with matches replaced, and as many lines as before."""
    return pattern.sub(lambda found: by + "\n" * found.group().count("\n"), text)


def page(text: str) -> list[Passage]:
    for pattern, by in ((FENCE, ""), (HTML, ""), (SPAN, "x"), (LINK, "]")):
        text = blanked(pattern, text, by)
    return [Passage(1, text)]


def module(text: str) -> Iterator[Passage]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and not token.string.startswith("#!"):
            yield Passage(token.start[0], blanked(SPAN, token.string.lstrip("# "), "x"))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield Passage(node.lineno, blanked(SPAN, node.value, "x"))


def passages(path: Path) -> Iterator[Passage]:
    text = path.read_text()
    yield from page(text) if path.suffix == ".md" else module(text)


def words_of(path: Path) -> Iterator[Finding]:
    for passage in passages(path):
        for rule in RULES["words"]:
            for found in re.finditer(rule["find"], passage.text, re.IGNORECASE):
                line = passage.line + passage.text.count("\n", 0, found.start())
                yield Finding(path, line, " ".join(found.group().split()), rule["write"])


def long_sentences(path: Path) -> Iterator[Finding]:
    """Of a page. What is in a table is no sentence."""
    for passage in passages(path):
        text, start = blanked(TABLE_ROW, passage.text, "\n"), 0
        for end in (*(one.end() for one in SENTENCE_END.finditer(text)), len(text)):
            words = re.findall(r"[A-Za-z][\w'-]*", text[start:end])
            if len(words) > LENGTH_MAX:
                line = passage.line + text.count("\n", 0, start)
                yield Finding(path, line, " ".join(words[:6]) + " …", f"a sentence of {len(words)} words: split it")
            start = end


def checked_files() -> list[Path]:
    found = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in (".md", ".py")]
    skipped = {(ROOT / name) for name in RULES["skip"]["files"]}
    return sorted(path for path in [*found, ROOT / "README.md"] if path not in skipped)


def findings(paths: Sequence[Path]) -> list[Finding]:
    found = [finding for path in paths for finding in words_of(path)]
    return found + [finding for path in paths if path.suffix == ".md" for finding in long_sentences(path)]


def main(arguments: Sequence[str]) -> int:
    found = findings([Path(one).resolve() for one in arguments] or checked_files())
    for finding in found:
        print(finding)
    if found:
        print(f"prose: {len(found)} findings", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
