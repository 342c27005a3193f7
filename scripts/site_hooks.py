"""What mkdocs calls while it builds the site (mkdocs.yml, `hooks`).

Pages are plain Markdown that GitHub shows as well. So anchors are those of GitHub, and a list may follow a paragraph
without a blank line. A link that leaves `docs/` (to a script, a template, the change log) leads into the repository.
"""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path
from typing import Any, Protocol

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
log = logging.getLogger("mkdocs.site_hooks")  # mkdocs counts the warnings of its children: strict builds fail
_LIST = re.compile(r"(?:[-*]|1\.) ")
_LINK = re.compile(r"(\]\()(?![a-z]+:|#)([^)\s#]+)")


class Page(Protocol):
    @property
    def file(self) -> Any: ...


def on_config(config: Any) -> Any:
    config.mdx_configs["toc"]["slugify"] = anchor
    _list_decisions(config.nav)
    return config


def on_page_markdown(markdown: str, page: Page, config: Any, files: object) -> str:
    folder = (DOCS / page.file.src_uri).parent
    linked = _LINK.sub(lambda found: found[1] + link(folder, found[2], config.extra["repository"]), markdown)
    return separate_lists(linked)


def anchor(title: str, separator: str) -> str:
    """What GitHub makes of a heading."""
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", separator)


def link(folder: Path, target: str, repository: str) -> str:
    """The target as it is, or where the repository has it when it is outside of the docs."""
    path = Path(os.path.normpath(folder / target))
    if path.is_relative_to(DOCS):
        return target
    if not path.exists():
        log.warning("%s: %s does not exist", folder.relative_to(ROOT), target)
    kind = "tree" if path.is_dir() else "blob"
    return f"{repository}/{kind}/main/{path.relative_to(ROOT).as_posix()}"


def separate_lists(markdown: str) -> str:
    """A blank line before each list that interrupts a paragraph, which mkdocs would take for more of its text."""
    lines: list[str] = []
    in_code = in_list = False
    for line in markdown.splitlines():
        starts = _LIST.match(line) is not None and not in_code
        if starts and not in_list and lines and lines[-1].strip():
            lines.append("")
        in_code ^= line.lstrip().startswith("```")
        in_list = starts or (in_list and bool(line.strip()))
        lines.append(line)
    return "\n".join(lines) + "\n"


def _list_decisions(nav: list[dict[str, Any]]) -> None:
    """Below their index, in their order."""
    sections = [section for part in nav for section in part.get("Explanation", ()) if "Decisions" in section]
    for section in sections:
        section["Decisions"] += [f"decisions/{path.name}" for path in sorted((DOCS / "decisions").glob("[0-9]*.md"))]
