"""Checks our English: words that read as if translated, British spelling, and sentences that are too long.

    .venv/bin/python -m scripts.prose [FILE …]

The rules are in prose.toml next to this file. In Markdown pages, code blocks and `spans` are skipped. In Python files,
docstrings, comments and strings (errors, help) are checked, f-strings included. In templates and in the files of the
console, the whole text is checked. Only pages have a limit on the length of a sentence.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RULES = tomllib.loads((ROOT / "scripts" / "prose.toml").read_text())
FOLDERS = ("docs", "functions", "scripts", "shared", "spark_jobs")
SUFFIXES = (".md", ".py", ".yaml", ".js", ".html")
WORDS = [(re.compile(one["find"].replace(" ", r"\s+"), re.IGNORECASE), one["write"]) for one in RULES["words"]]
ANY_WORDS = re.compile("|".join(f"(?:{pattern.pattern})" for pattern, _ in WORDS), re.IGNORECASE)
LENGTH_MAX: int = RULES["sentence"]["words_max"]
FENCE = re.compile(r"^( *)(```+|~~~+).*?^\1\2\s*?$", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)
LINK = re.compile(r"\]\([^)\s]*\)|<https?:[^>]*>|https?://\S+")
JOIN = re.compile(r"""(["'])\s*\n\s*[frbFRB]{0,2}\1""")
FIELD = re.compile(r"\{\{|\}\}|\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}")
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
        shown = self.path.relative_to(ROOT) if self.path.is_relative_to(ROOT) else self.path
        return f"{shown}:{self.line}: {self.text!r}: {self.advice}"


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


def strings(tree: ast.AST) -> Iterator[ast.Constant | ast.JoinedStr]:
    """Every string of a module once: not the parts of an f-string, whose positions Python 3.11 does not know."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str)):
            yield node
        else:
            yield from strings(node)


def written(lines: Sequence[bytes], node: ast.Constant | ast.JoinedStr) -> str:
    """The text of a string as the file has it, so that lines can be counted: strings on several lines are joined."""
    last = lines[(node.end_lineno or node.lineno) - 1][: node.end_col_offset]
    source = b"".join([*lines[node.lineno - 1 : (node.end_lineno or node.lineno) - 1], last])
    text = blanked(JOIN, source[node.col_offset :].decode(), "")
    return blanked(FIELD, text, "x") if isinstance(node, ast.JoinedStr) else text


def module(text: str) -> Iterator[Passage]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and not token.string.startswith("#!"):
            yield Passage(token.start[0], blanked(SPAN, token.string.lstrip("# "), "x"))
    lines = text.encode().splitlines(keepends=True)
    for node in strings(ast.parse(text)):
        if " " in (prose := written(lines, node)):
            yield Passage(node.lineno, blanked(SPAN, prose, "x"))


READERS: dict[str, Callable[[str], Iterable[Passage]]] = {".md": page, ".py": module}


def passages(path: Path) -> Iterable[Passage]:
    read, text = READERS.get(path.suffix), path.read_text()
    return [Passage(1, text)] if read is None else read(text)


def words_of(path: Path) -> Iterator[Finding]:
    for passage in passages(path):
        if not ANY_WORDS.search(passage.text):
            continue
        for pattern, advice in WORDS:
            for found in pattern.finditer(passage.text):
                line = passage.line + passage.text.count("\n", 0, found.start())
                yield Finding(path, line, " ".join(found.group().split()), advice)


def long_sentences(path: Path) -> Iterator[Finding]:
    """Of a page. Rows of a table are not sentences."""
    for passage in passages(path):
        text, start = blanked(TABLE_ROW, passage.text, "\n"), 0
        for end in (*(one.end() for one in SENTENCE_END.finditer(text)), len(text)):
            words = re.findall(r"[A-Za-z][\w'-]*", text[start:end])
            if len(words) > LENGTH_MAX:
                line = passage.line + text.count("\n", 0, start)
                yield Finding(path, line, " ".join(words[:6]) + " …", f"a sentence of {len(words)} words: split it")
            start = end


def checked_files() -> list[Path]:
    found = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in SUFFIXES]
    skipped = [ROOT / name for name in RULES["skip"]["files"]]
    return sorted(
        path
        for path in [*found, ROOT / "README.md", ROOT / "template.yaml"]
        if not any(path.is_relative_to(one) for one in skipped)
    )


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
