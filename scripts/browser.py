"""Chromium for the tests of the console: found, or installed from the packages of Debian. `scripts/setup --browser`
calls it. Playwright's own download of a browser is not used. Only the standard library is used.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable

from scripts.debian import Program, Run, install, ran

BROWSER = Program(
    "the tests of the console need Chromium",
    "the tests of the console need",
    ("chromium",),
    "Install it (Debian: apt install chromium).",
)


def ensure_browser(
    say: Callable[[str], None],
    *,
    run: Run = ran,
    which: Callable[[str], str | None] = shutil.which,
    is_root: bool | None = None,
) -> None:
    """`chromium` starts afterwards; `ProgramMissing` where it could not be had."""
    install(BROWSER, lambda: run(["chromium", "--version"]).returncode == 0, say, run=run, which=which, is_root=is_root)
