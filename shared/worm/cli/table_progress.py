"""A bar on stderr for what takes long, where somebody looks at it: only on a terminal, gone when the work is done."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Progress = Callable[[int, int | None], None]
"""Given how many are done, and of how many where that is known."""


@contextmanager
def progress_bar(title: str, *, is_hidden: bool = False) -> Iterator[Progress]:
    """`is_hidden`: not even on a terminal."""
    if is_hidden or not sys.stderr.isatty():
        yield _nothing
        return
    from rich import progress as bars
    from rich.console import Console

    columns = (
        bars.TextColumn("{task.description}"),
        bars.BarColumn(),
        bars.MofNCompleteColumn(),
        bars.TimeElapsedColumn(),
    )
    with bars.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=None)

        def show(done: int, total: int | None = None) -> None:
            bar.update(task, completed=done, total=total)

        yield show


def _nothing(done: int, total: int | None = None) -> None:
    """Nobody looks."""
