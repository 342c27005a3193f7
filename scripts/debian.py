"""Programs that are no Python packages: found, or installed from the packages of Debian. `scripts/setup` calls it.

Only the standard library is used.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Run = Callable[[Sequence[str]], subprocess.CompletedProcess[str]]


class ProgramMissing(Exception):
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


@dataclass(frozen=True)
class Program:
    """What is needed, by whom, and the packages that have it; the first ones that install are taken. Names with a space
    between them are installed together."""

    needed: str
    package_for: str
    packages: tuple[str, ...]
    by_hand: str


def install(
    program: Program,
    is_there: Callable[[], bool],
    say: Callable[[str], None],
    *,
    run: Run = ran,
    which: Callable[[str], str | None] = shutil.which,
    is_root: bool | None = None,
) -> None:
    """The program is there afterwards; `ProgramMissing` where it could not be had."""
    if is_there():
        return
    root = os.geteuid() == 0 if is_root is None else is_root
    if which("apt-get") is None or not (root or which("sudo")):
        reason = "there is no apt-get" if which("apt-get") is None else "this user is not root, and there is no sudo"
        raise ProgramMissing(f"{program.needed}, but it cannot be installed: {reason}. {program.by_hand}")
    # `-n`: a password is never asked for in the middle of a script.
    apt = [*([] if root else ["sudo", "-n"]), "apt-get"]
    say(f"installing {program.packages[0]}, which {program.package_for}")
    printed = _install(apt, program.packages, run)
    if not is_there():
        tail = "\n".join(printed.splitlines()[-15:])
        raise ProgramMissing(f"{tail}\n{program.needed}, but apt-get could not install it. {program.by_hand}")


def _install(apt: Sequence[str], packages: Sequence[str], run: Run) -> str:
    """Tries the packages, then once more with fresh lists; what the last attempt printed."""
    printed = ""
    for prepare in (None, [*apt, "update", "--quiet"]):
        if prepare is not None:
            run(prepare)
        for package in packages:
            done = run([*apt, "install", "--yes", "--quiet", "--no-install-recommends", *package.split()])
            printed = done.stdout
            if done.returncode == 0:
                return printed
    return printed
