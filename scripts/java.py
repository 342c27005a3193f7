"""Java for Spark: found, or installed from the packages of Debian. `scripts/setup --java` calls it.

A `JAVA_HOME` is respected: nothing is installed beside it. Only the standard library is used.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from scripts.debian import Program, ProgramMissing, Run, install, ran

JAVA_LEAST = 17
# The first is that of Debian 12; newer ones have another default, which Spark runs on as well.
PACKAGES = ("openjdk-17-jre-headless", "default-jre-headless")
JAVA = Program(
    f"Spark needs Java {JAVA_LEAST} or newer",
    "Spark needs",
    PACKAGES,
    f"Install it (Debian: apt install {PACKAGES[0]}) or set JAVA_HOME.",
)


def major(java: str, run: Run = ran) -> int | None:
    """The version of a Java, 8 for `1.8.0`; None where it does not start."""
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
    """Java 17 or newer is there afterwards; `ProgramMissing` where it could not be had."""
    home = environment.get("JAVA_HOME")
    if not home:
        install(JAVA, lambda: (major("java", run) or 0) >= JAVA_LEAST, say, run=run, which=which, is_root=is_root)
        return
    version = major(str(Path(home) / "bin" / "java"), run)
    if version is None or version < JAVA_LEAST:
        what = "no Java that starts" if version is None else f"Java {version}"
        raise ProgramMissing(f"JAVA_HOME={home} is {what}; Spark needs {JAVA_LEAST} or newer. Change or unset it.")
