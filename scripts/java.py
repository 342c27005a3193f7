"""Java for Spark: finds it, or installs it from Debian's packages. `scripts/setup --java` calls it.

A `JAVA_HOME` is respected: nothing else is installed then. Only the standard library is used.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from scripts.debian import Program, ProgramMissing, Run, install, ran

JAVA_LEAST = 17
# The first is for Debian 12; newer releases have another default, which Spark also supports.
PACKAGES = ("openjdk-17-jre-headless", "default-jre-headless")
JAVA = Program(
    f"Spark needs Java {JAVA_LEAST} or newer",
    "Spark needs",
    PACKAGES,
    f"Install it (Debian: apt install {PACKAGES[0]}) or set JAVA_HOME.",
)


def major(java: str, run: Run = ran) -> int | None:
    """The version of a Java, 8 for `1.8.0`; None if it does not start."""
    done = run([java, "-version"])
    found = re.search(r'version "(?:1\.)?(\d+)', done.stdout)
    return int(found[1]) if done.returncode == 0 and found else None


def ensure_java(
    say: Callable[[str], None],
    *,
    environment: Mapping[str, str] = os.environ,
    run: Run = ran,
    which: Callable[[str], str | None] = shutil.which,
    is_root: bool | None = None,
) -> None:
    """Make sure that there is Java 17 or newer; `ProgramMissing` if that is not possible."""
    home = environment.get("JAVA_HOME")
    if not home:
        install(JAVA, lambda: (major("java", run) or 0) >= JAVA_LEAST, say, run=run, which=which, is_root=is_root)
        return
    version = major(str(Path(home) / "bin" / "java"), run)
    if version is None or version < JAVA_LEAST:
        what = "no Java that starts" if version is None else f"Java {version}"
        raise ProgramMissing(f"JAVA_HOME={home} is {what}; Spark needs {JAVA_LEAST} or newer. Change or unset it.")
