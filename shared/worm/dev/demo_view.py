"""What the demo prints: progress while it works, then what the workers made.

On a terminal the progress is a rich bar; elsewhere it is a plain line per phase, so that a log stays readable.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from worm.cli import table_lines
from worm.dev.environment import Counts
from worm.dev.environment import Progress as Backlog
from worm.dev.sample.documents import Workload

COLUMNS = ("Function", "Invocations", "Messages", "Failed", "Dead Letters", "S3 Requests", "Per Change")


class Display:
    """Prints for people."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console()

    def line(self, text: str = "", style: str | None = None) -> None:
        self.console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)

    def command(self, arguments: list[str]) -> None:
        """A command as you would type it."""
        shown = " ".join(f"'{one}'" if " " in one else one for one in arguments)
        self.line()
        self.line(f"$ worm {shown}", style="bold cyan")

    @contextmanager
    def loading(self, load: Workload) -> Iterator[Callable[[str, int], None]]:
        """Progress of the client; yields what counts its requests."""
        totals = {"upload": len(load.uploads), "overwrite": len(load.overwrites), "delete": len(load.deletes)}
        lock, done = threading.Lock(), dict.fromkeys(totals, 0)
        if not self.console.is_terminal:
            yield lambda phase, changes: None
            self.line(", ".join(f"{count} {phase}s" for phase, count in totals.items()) + " sent by plain boto3")
            return
        with self._bars() as bars:
            tasks = {phase: bars.add_task(phase, total=count) for phase, count in totals.items() if count}

            def tick(phase: str, changes: int) -> None:
                with lock:
                    done[phase] += changes
                    bars.update(tasks[phase], completed=done[phase])

            yield tick

    @contextmanager
    def working(self) -> Iterator[Callable[[Backlog], None]]:
        """Progress of the workers: how much of the largest backlog seen is done."""
        if not self.console.is_terminal:
            self.line("waiting until the queues are empty")
            yield lambda backlog: None
            return
        most = 1
        with self._bars() as bars:
            task = bars.add_task("workers", total=1)

            def show(backlog: Backlog) -> None:
                nonlocal most
                most = max(most, backlog.left)
                bars.update(task, total=most, completed=most - backlog.left)

            yield show

    def summary(self, counts: Counts, changes: int, dead_letters: Mapping[str, int]) -> None:
        """One row per function: its input, and its cost in S3 requests."""
        rows = []
        for name, found in counts.functions.items():
            requests = sum(counts.requests.get(name, {}).values())
            known = bool(counts.requests)
            rows.append(
                [
                    name,
                    f"{found.invocations:,}",
                    f"{found.records:,}",
                    f"{found.records_failed + found.errors:,}",
                    f"{dead_letters[name]:,}" if name in dead_letters else "--",
                    f"{requests:,}" if known else "--",
                    f"{requests / changes:.2f}" if known and changes else "--",
                ]
            )
        self.line()
        for line in table_lines(COLUMNS, rows, right=set(COLUMNS[1:])):
            self.line(line)
        total = sum(sum(counts.requests.get(name, {}).values()) for name in counts.functions)
        per_change = (
            f"; {total / changes:.2f} S3 requests by the workers per change" if counts.requests and changes else ""
        )
        self.line(f"{changes:,} changes{per_change}")

    def _bars(self) -> Progress:
        return Progress(
            TextColumn("{task.description:<10}"),
            BarColumn(bar_width=40),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self.console,
        )
