"""Runs the command on a terminal of its own."""

from __future__ import annotations

import os
import pty
import subprocess
from collections.abc import Mapping, Sequence


def on_terminal(command: Sequence[str], env: Mapping[str, str], typed: str | None = None) -> tuple[int, str]:
    """The exit code, and everything that the terminal gets from stdout and stderr. Without `typed`, stdin is empty."""
    ours, theirs = pty.openpty()
    stdin = subprocess.DEVNULL if typed is None else theirs
    process = subprocess.Popen(command, stdin=stdin, stdout=theirs, stderr=theirs, env=env)
    os.close(theirs)
    os.write(ours, (typed or "").encode())
    shown = b""
    try:
        while piece := os.read(ours, 1 << 16):
            shown += piece
    except OSError:  # the other side is closed
        pass
    finally:
        os.close(ours)
    return process.wait(timeout=60), shown.decode()
