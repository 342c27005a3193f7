"""Commands with a result per document: each is tried, each is shown, the first failure decides the exit code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import typer

from worm.cli.output import RowFormat, count, echo_rows
from worm.codec.strict_json import JsonValue
from worm.errors import NotFound, WormError

COLUMNS = ("id", "result", "reason")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one document. `id` is empty for one that has none yet."""

    id: str
    result: str
    error: WormError | None = None

    @classmethod
    def missing(cls, id: str, reason: str) -> Outcome:
        return cls(id, "not found", NotFound(reason))

    def row(self) -> dict[str, JsonValue]:
        shape: dict[str, JsonValue] = {"id": self.id, "result": self.result}
        return shape if self.error is None else {**shape, "reason": " ".join(str(self.error).split())}


def attempted(id: str, act: Callable[[str], bool], done: str, reason: str) -> Outcome:
    """Act on one id; False means that there was nothing to act on, for this reason."""
    try:
        return Outcome(id, done) if act(id) else Outcome.missing(id, reason)
    except WormError as error:
        return Outcome(id, "failed", error)


def show_outcomes(outcomes: Sequence[Outcome], format: RowFormat) -> None:
    """A row for each; ends the command with the exit code of the first failure, if there is one."""
    failures = [outcome.error for outcome in outcomes if outcome.error is not None]
    echo_rows(COLUMNS if failures else COLUMNS[:2], [outcome.row() for outcome in outcomes], format)
    if failures:
        typer.echo(f"worm: {len(failures):,} of {count(len(outcomes), 'document')} failed", err=True)
        raise typer.Exit(failures[0].exit_code)


def note_dry_run(number: int, verb: str) -> None:
    """On stderr, before what would be done."""
    typer.echo(f"worm: dry run; --no-dry-run will {verb} {count(number, 'document')}", err=True)
