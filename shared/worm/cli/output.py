"""Shows results: as an aligned table for people, as JSON, NDJSON or CSV for programs; one by one if a command acts on
many documents; and a progress bar.

- Every line goes through `echo`. On a terminal it escapes control characters and text direction marks, so that a
  document cannot move the cursor or change colors. In a pipe or a file, JSON and CSV are exact.
- A table escapes them everywhere. Columns are cut to the terminal's width, and a cut value ends in `…`; columns that do
  not fit at all are left out and listed on stderr. In a pipe or a file nothing is cut.
- Rows may have fields that the schema does not declare. Their columns follow the declared ones, sorted by name.
- JSON output is UTF-8 and complete on any terminal.
- CSV is quoted as in RFC 4180. Text that a spreadsheet would run as a formula gets a leading apostrophe unless `raw`.
  Text that already starts with apostrophes gets one more, so removing one restores the text.
- With many documents, each one is tried and shown; the first failure decides the exit code.
- The bar is on stderr, only on a terminal, and disappears when the work is done.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, cast

import typer

from worm.api import csv_rows
from worm.errors import NotFound, WormError
from worm.formats import JsonObject, JsonValue, dumps
from worm.values import dataclass

if TYPE_CHECKING:
    from worm.spaces import Branch

JsonRow = Mapping[str, JsonValue]
GAP = "  "
COLUMN_MIN = 8
BRANCH_COLUMNS = ("name", "parent", "forkSeq", "createdSeq", "headSeq", "status")
OUTCOME_COLUMNS = ("id", "result", "reason")

# Control characters except tab and newline, text direction marks, and Unicode line separators.
_ACTING = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]|\r(?!\n)")


class RowFormat(StrEnum):
    """How rows are shown."""

    table = "table"
    json = "json"
    ndjson = "ndjson"
    csv = "csv"


class ReportFormat(StrEnum):
    """How a report is shown."""

    table = "table"
    json = "json"


Rows = Annotated[RowFormat, typer.Option("--format", help="How to show it.")]
State = Annotated[ReportFormat, typer.Option("--format", help="How to show it.")]
Report = Annotated[ReportFormat, typer.Option("--format", help="How to show the report.")]


def echo(text: object = "", *, err: bool = False, nl: bool = True) -> None:
    """All output goes through this. On a terminal, documents cannot control it; a pipe or a file gets the text as it
    is."""
    stream = sys.stderr if err else sys.stdout
    typer.echo(neutral(str(text)) if stream.isatty() else text, err=err, nl=nl)


def neutral(text: str) -> str:
    """The text with everything that a terminal might act on escaped as in JSON: JSON stays the same JSON."""
    return _ACTING.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def echo_json(value: JsonValue) -> None:
    """Indented, in the order given."""
    echo(json.dumps(value, indent=2, ensure_ascii=False))


def echo_json_lines(values: Iterable[JsonValue]) -> None:
    """One value per line."""
    for value in values:
        echo(json.dumps(value, ensure_ascii=False))


def echo_document(document: JsonRow, format: RowFormat) -> None:
    """One document: as a JSON object, as a table of its fields, as the only row of a CSV."""
    if format is RowFormat.json:
        echo_json(dict(document))
    elif format is RowFormat.table:
        echo_table(("Field", "Value"), [[name, cell(value)] for name, value in document.items()])
    else:
        echo_rows(list(document), [document], format)


def echo_rows(columns: Sequence[str], rows: Sequence[JsonRow], format: RowFormat, *, raw_csv: bool = False) -> None:
    """Rows of a query. JSON and NDJSON keep every field; table and CSV show the columns."""
    if format is RowFormat.json:
        echo_json([dict(row) for row in rows])
    elif format is RowFormat.ndjson:
        echo_json_lines(dict(row) for row in rows)
    elif format is RowFormat.csv:
        echo(csv_rows.text(columns, rows, raw=raw_csv), nl=False)
    else:
        fitting = fitting_columns(columns, shutil.get_terminal_size().columns if sys.stdout.isatty() else None)
        echo_table(fitting, [[cell(row.get(name)) if name in row else "" for name in fitting] for row in rows])
        left_out = columns[len(fitting) :]
        if left_out:
            names = printable(", ".join(left_out))
            echo(f"worm: note: {count(len(left_out), 'column')} left out (use --format json): {names}", err=True)


def echo_branches(branches: Iterable[Branch], format: RowFormat) -> None:
    """Branches of a space. The main branch has no parent: `--` in a table, null in JSON."""
    none = "--" if format is RowFormat.table else None
    rows: list[JsonObject] = [
        {
            "name": one.name,
            "parent": one.parent or none,
            "forkSeq": none if one.fork_seq is None else one.fork_seq,
            "createdSeq": one.created_seq,
            "headSeq": one.head_seq,
            "status": "active" if one.is_active else "deleted",
        }
        for one in branches
    ]
    echo_rows(BRANCH_COLUMNS, rows, format)


def fitting_columns(columns: Sequence[str], width_max: int | None) -> Sequence[str]:
    """The first columns that fit into a line of this width; at least one."""
    if width_max is None:
        return columns
    room = (width_max + len(GAP)) // (COLUMN_MIN + len(GAP))
    return columns[: max(room, 1)]


def echo_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    right: Iterable[str] = (),
    widths_min: Sequence[int] | None = None,
) -> None:
    """An aligned table; `right` names the columns that are aligned to the right."""
    width_max = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    listed = [list(row) for row in rows]
    for line in table_lines(columns, listed, right=set(right), width_max=width_max, widths_min=widths_min):
        echo(line)


def table_lines(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: set[str] | None = None,
    width_max: int | None = None,
    widths_min: Sequence[int] | None = None,
) -> list[str]:
    """Header, a line of dashes, and the rows. Columns are as wide as their widest text, and at least `widths_min`."""
    shown = [[printable(text) for text in row] for row in rows]
    least = widths_min or [0] * len(columns)
    texts = zip(columns, *shown, strict=True)
    widths = [max(low, *(cell_len(text) for text in column)) for low, column in zip(least, texts, strict=True)]
    widths = _fitted(widths, width_max)
    to_right = [name in (right or set()) for name in columns]
    lines = [list(columns), ["-" * width for width in widths], *shown]
    return [
        GAP.join(
            _padded(text, width, ahead) for text, width, ahead in zip(line, widths, to_right, strict=True)
        ).rstrip()
        for line in lines
    ]


def cell(value: JsonValue) -> str:
    """A value in a table: text as it is, everything else as JSON; the items of a plain list joined by commas."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return ", ".join(cast("list[str]", value))
    return dumps(value).decode()


def printable(text: str) -> str:
    """The text with everything escaped that a terminal might act on."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode("ascii") for one in text)


def count(number: int, noun: str) -> str:
    """`1 document`, `2 documents`, `2 entries`, `2 keys`, `2 indexes`."""
    if noun.endswith("y") and noun[-2:-1] not in "aeiou":
        plural = f"{noun[:-1]}ies"
    else:
        plural = f"{noun}es" if noun.endswith(("s", "x", "z", "ch", "sh")) else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"


def size(number: int) -> str:
    """`812 B`, `847 KB`, `2.1 MB`: a kilobyte is 1,000 bytes."""
    if number < 1000:
        return f"{number} B"
    amount, units = number / 1000, ["KB", "MB", "GB", "TB"]
    while round(amount) >= 1000 and len(units) > 1:
        amount /= 1000
        units.pop(0)
    return f"{amount:,.0f} {units[0]}" if round(amount, 1) >= 100 else f"{amount:.1f} {units[0]}"


def cell_len(text: str) -> int:
    """How many columns a terminal needs for it. Plain ASCII, which most texts are, needs no tables of widths."""
    if text.isascii():
        return len(text)
    from rich import cells

    return cells.cell_len(text)


def _padded(text: str, width: int, ahead: bool) -> str:
    size = cell_len(text)
    if size > width:
        from rich.cells import set_cell_size

        return set_cell_size(text, width - 1) + "…"
    return " " * (width - size) + text if ahead else text + " " * (width - size)


def _fitted(widths: list[int], width_max: int | None) -> list[int]:
    """Shrink the widest columns until the line fits, but keep each one readable."""
    fitted = list(widths)
    if width_max is None:
        return fitted
    while sum(fitted) + len(GAP) * (len(fitted) - 1) > width_max:
        widest = max(range(len(fitted)), key=lambda at: fitted[at])
        if fitted[widest] <= COLUMN_MIN:
            break
        fitted[widest] -= 1
    return fitted


# A result for each document


UNCHANGED = "unchanged"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result for one document. `id` is empty if it has none yet."""

    id: str
    result: str
    error: WormError | None = None

    @classmethod
    def missing(cls, id: str, reason: str) -> Outcome:
        return cls(id, "not found", NotFound(reason))

    def row(self) -> dict[str, JsonValue]:
        shape: dict[str, JsonValue] = {"id": self.id, "result": self.result}
        return shape if self.error is None else {**shape, "reason": " ".join(self.error.for_shell().split())}


def attempted(id: str, act: Callable[[str], bool], done: str, reason: str) -> Outcome:
    """Act on one id; False means that there was nothing to do, for this reason."""
    try:
        return Outcome(id, done) if act(id) else Outcome.missing(id, reason)
    except WormError as error:
        return Outcome(id, "failed", error)


def show_outcomes(outcomes: Sequence[Outcome], format: RowFormat) -> None:
    """A row for each; the exit code is that of the first failure, if any."""
    failures = [outcome.error for outcome in outcomes if outcome.error is not None]
    echo_rows(OUTCOME_COLUMNS if failures else OUTCOME_COLUMNS[:2], [outcome.row() for outcome in outcomes], format)
    if failures:
        echo(f"worm: {len(failures):,} of {count(len(outcomes), 'document')} failed", err=True)
        raise typer.Exit(failures[0].exit_code)


def note_dry_run(number: int, verb: str) -> None:
    """On stderr, before the list of what would be done."""
    echo(f"worm: dry run; --no-dry-run will {verb} {count(number, 'document')}", err=True)


def note_unchanged(outcomes: Sequence[Outcome]) -> None:
    """On stderr: a command that is run again, for instance after it was killed, continues where it stopped."""
    number = sum(outcome.result == UNCHANGED for outcome in outcomes)
    if number:
        verb = "was" if number == 1 else "were"
        echo(f"worm: {number:,} of {count(len(outcomes), 'document')} {verb} already stored", err=True)


# Progress

Progress = Callable[[int, int | None], None]
"""Called with the number done, and the total if known."""


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
