"""The README as PyPI shows it: hatchling calls this hook for sdist and wheel.

Links in README.md are relative, so that they work in a checkout and on GitHub. PyPI has no files beside the text: there
links lead to GitHub.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

PAGES = "https://github.com/s3worm/s3worm-python/blob/main/"
FILES = "https://raw.githubusercontent.com/s3worm/s3worm-python/main/"
_RELATIVE = re.compile(r"(?P<image>!?)(?P<text>\[[^\]]*\])\((?![a-z]+:|#)(?P<target>[^)\s]+)\)")


class LongDescription(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": for_pypi(text)}


def for_pypi(text: str) -> str:
    """The text with absolute links; pictures lead to the file itself."""

    def absolute(found: re.Match[str]) -> str:
        return f"{found['image']}{found['text']}({FILES if found['image'] else PAGES}{found['target']})"

    return _RELATIVE.sub(absolute, text)
