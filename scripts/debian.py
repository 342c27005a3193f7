"""Finds programs that are not Python packages, or installs them from Debian's packages. `scripts/setup` calls it.

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
    """The message says what to do."""


def ran(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """The finished command with its output; exit code 127 if there is no such program."""
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        return subprocess.run(
            command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
        )
    except OSError as error:
        return subprocess.CompletedProcess(command, 127, str(error))


@dataclass(frozen=True)
class Program:
    """What is needed, by which task, and the packages that provide it; the first ones that install are used. Names
    separated by a space are installed together."""

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
    """Install the program; `ProgramMissing` if that is not possible."""
    if is_there():
        return
    root = os.geteuid() == 0 if is_root is None else is_root
    if which("apt-get") is None or not (root or which("sudo")):
        reason = "there is no apt-get" if which("apt-get") is None else "this user is not root, and there is no sudo"
        raise ProgramMissing(f"{program.needed}, but it cannot be installed: {reason}. {program.by_hand}")
    # `-n`: never ask for a password in the middle of a script.
    apt = [*([] if root else ["sudo", "-n"]), "apt-get"]
    say(f"installing {program.packages[0]}, which {program.package_for}")
    printed = _install(apt, program.packages, run)
    if not is_there():
        tail = "\n".join(printed.splitlines()[-15:])
        raise ProgramMissing(f"{tail}\n{program.needed}, but apt-get could not install it. {program.by_hand}")


def _install(apt: Sequence[str], packages: Sequence[str], run: Run) -> str:
    """Try the packages, then again with updated package lists; returns the output of the last attempt."""
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
