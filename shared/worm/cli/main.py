"""The console script: how the process handles signals, from start to end.

Ctrl-C ends the command at any moment with exit code 130, SIGTERM with 143, and neither shows a traceback. (Until this
module is loaded, some hundredths of a second after the start, the interpreter handles signals.)

- While the program loads and after the command is done, a signal ends the process at once.
- While a command works, the first signal raises `KeyboardInterrupt`: files are closed, and the cursor comes back. A
  signal during code where Python cannot raise it (a finalizer), and every further signal, ends the process at once.
- After an interrupt nothing waits for threads that still talk to a store.

A signal that the caller ignores (`nohup`, a job in the background) stays ignored.

It must be loaded before everything that is slow to load.
"""

from __future__ import annotations

import gc
import os
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import NoReturn

SIGNALS = (signal.SIGINT, signal.SIGTERM)
COLLECTED_AFTER = 100_000
"""New objects between two garbage collections. Loaded modules stay; scanning them repeatedly took a tenth of the
startup time."""

NOT_INSTALLED = 3
"""As `NotFound`: the exit code of a command whose extra is not installed."""


class Interrupted(KeyboardInterrupt):
    """A signal asked the command to end."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.exit_code = 128 + number


def main() -> None:
    heeded = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    for number in heeded:
        signal.signal(number, _leave)
    code = _run(heeded)
    for number in heeded:
        signal.signal(number, _leave)
    if code >= 128:
        os._exit(code)
    sys.exit(code)


def _run(heeded: list[signal.Signals]) -> int:
    gc.set_threshold(COLLECTED_AFTER)
    try:
        from worm.cli.program import run
    except ModuleNotFoundError as error:
        if error.name != "typer":
            raise
        sys.stderr.write("worm: the command is not installed, only the library; pip install 's3worm[cli]'\n")
        return NOT_INSTALLED

    sys.unraisablehook = _unraisable
    try:
        for number in heeded:
            signal.signal(number, _interrupt)
        return run()
    except Interrupted as interrupt:  # before or after the command itself
        return interrupt.exit_code


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    os._exit(128 + number)


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    for one in SIGNALS:
        if signal.getsignal(one) is _interrupt:
            signal.signal(one, _leave)
    raise Interrupted(number)


def _unraisable(found: sys.UnraisableHookArgs) -> None:
    if isinstance(found.exc_value, Interrupted):
        os._exit(found.exc_value.exit_code)
    sys.__unraisablehook__(found)


if __name__ == "__main__":
    main()
