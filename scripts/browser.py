"""Chromium for the tests of the console: finds it, or installs it from Debian's packages. `scripts/setup --browser`
calls it. Playwright's own download of a browser is not used. Only the standard library is used.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable

from scripts.debian import Program, Run, install, ran

BROWSER = Program(
    "the tests of the console need Chromium",
    "the tests of the console need",
    ("chromium libatomic1",),
    "Install it (Debian: apt install chromium libatomic1).",
)

STARTS = (["chromium", "--version"], [sys.executable, "-c", "import ctypes; ctypes.CDLL('libatomic.so.1')"])


def ensure_browser(
    say: Callable[[str], None],
    *,
    run: Run = ran,
    which: Callable[[str], str | None] = shutil.which,
    is_root: bool | None = None,
) -> None:
    """Make sure that Chromium starts, and its driver, which needs libatomic; otherwise `ProgramMissing`."""

    def is_there() -> bool:
        return all(run(command).returncode == 0 for command in STARTS)

    install(BROWSER, is_there, say, run=run, which=which, is_root=is_root)
