"""Java for Spark: found, or installed from the packages of Debian. `scripts/setup --java` calls it.

A `JAVA_HOME` is respected: nothing is installed beside it. Only the standard library is used.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

JAVA_LEAST = 17
# The first is that of Debian 12; newer ones have another default, which Spark runs on as well.
PACKAGES = ("openjdk-17-jre-headless", "default-jre-headless")
Run = Callable[[Sequence[str]], subprocess.CompletedProcess[str]]


class JavaMissing(Exception):
    """The message tells what to do."""


def ran(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """The finished command with all that it printed; 127 where there is no such program."""
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        return subprocess.run(
            command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
        )
    except OSError as error:
        return subprocess.CompletedProcess(command, 127, str(error))


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
    """Java 17 or newer is there afterwards; `JavaMissing` where it could not be had."""
    home = environment.get("JAVA_HOME")
    if home:
        version = major(str(Path(home) / "bin" / "java"), run)
        if version is None or version < JAVA_LEAST:
            what = "no Java that starts" if version is None else f"Java {version}"
            raise JavaMissing(f"JAVA_HOME={home} is {what}; Spark needs {JAVA_LEAST} or newer. Change or unset it.")
        return
    if (major("java", run) or 0) >= JAVA_LEAST:
        return
    by_hand = f"Install it (Debian: apt install {PACKAGES[0]}) or set JAVA_HOME."
    root = os.geteuid() == 0 if is_root is None else is_root
    if which("apt-get") is None or not (root or which("sudo")):
        reason = "there is no apt-get" if which("apt-get") is None else "not root, and there is no sudo"
        raise JavaMissing(f"Spark needs Java {JAVA_LEAST} or newer, and it cannot be installed: {reason}. {by_hand}")
    # `-n`: a password is never asked for in the middle of a script.
    apt = [*([] if root else ["sudo", "-n"]), "apt-get"]
    say(f"installing {PACKAGES[0]}, which Spark needs")
    printed = _install(apt, run)
    if (major("java", run) or 0) < JAVA_LEAST:
        tail = "\n".join(printed.splitlines()[-15:])
        raise JavaMissing(
            f"{tail}\nSpark needs Java {JAVA_LEAST} or newer, and apt-get could not install it. {by_hand}"
        )


def _install(apt: Sequence[str], run: Run) -> str:
    """Tries the packages, then once more with fresh lists; what the last attempt printed."""
    printed = ""
    for prepare in (None, [*apt, "update", "--quiet"]):
        if prepare is not None:
            run(prepare)
        for package in PACKAGES:
            done = run([*apt, "install", "--yes", "--quiet", "--no-install-recommends", package])
            printed = done.stdout
            if done.returncode == 0:
                return printed
    return printed
