"""`worm table export`: the rows of a model into a file or a pipe, batch by batch.

A file is written under a temporary name beside it and renamed when it is complete: a reader sees the old one or the
whole new one.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from worm.cli.arguments import ModelName
from worm.cli.options import EndpointUrl, Url, target
from worm.cli.output import JsonRow, csv_text
from worm.cli.table_options import Choice, CsvRaw, Filters, Select, Sort, Where, choose
from worm.cli.table_progress import progress_bar
from worm.errors import Invalid, NotFound
from worm.model import Model


class ExportFormat(StrEnum):
    """How rows are written."""

    csv = "csv"
    json = "json"
    ndjson = "ndjson"


def export(
    context: typer.Context,
    model: ModelName,
    format: Annotated[ExportFormat, typer.Option("--format", help="How to write the rows.")] = ExportFormat.csv,
    filter: Filters = None,
    where: Where = None,
    sort: Sort = None,
    select: Select = None,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE", help="Write here, replacing it; `-` is stdout.")
    ] = "-",
    csv_raw: CsvRaw = False,
    url: Url = None,
    endpoint_url: EndpointUrl = None,
) -> None:
    """Write the rows of a model to stdout or a file: CSV, JSON or NDJSON.

    Rows are read and written in batches; only --sort holds all of them at once.
    """
    path = None if output == "-" else _checked(Path(output))
    session = target(context, url, endpoint_url).connect()
    choice = choose(session.schema.model(model), filter, where, sort=sort, select=select)
    batches = _batches(session.model(model), choice)
    with _opened(path) as write, progress_bar(f"Exporting {model}", is_hidden=path is None and _is_watched()) as show:
        done = 0
        for rows, text in export_chunks(format, choice.columns, batches, raw_csv=csv_raw):
            write(text)
            done += rows
            show(done, None)
    if path is not None:
        typer.echo(f"wrote {output}: {done:,} rows", err=True)


def export_chunks(
    format: ExportFormat, columns: Sequence[str], batches: Iterable[Sequence[JsonRow]], *, raw_csv: bool = False
) -> Iterator[tuple[int, str]]:
    """How many rows, and their text. JSON is one array with a row on each line; JSON and NDJSON keep every field."""
    if format is ExportFormat.csv:
        yield 0, csv_text(columns, [], raw=raw_csv)
        for batch in batches:
            yield len(batch), csv_text(columns, batch, raw=raw_csv, header=False)
    elif format is ExportFormat.ndjson:
        for batch in batches:
            yield len(batch), "".join(f"{_line(row)}\n" for row in batch)
    else:
        before = "["
        for batch in batches:
            if batch:
                yield len(batch), f"{before}\n" + ",\n".join(map(_line, batch))
                before = ","
        yield 0, "[]\n" if before == "[" else "\n]\n"


def _batches(documents: Model, choice: Choice) -> Iterable[Sequence[JsonRow]]:
    if choice.sort:
        return [documents.find_all(filter=choice.filter, sort=choice.sort, select=choice.select)]
    return documents.find_batches(filter=choice.filter, select=choice.select)


def _line(row: JsonRow) -> str:
    return json.dumps(dict(row), ensure_ascii=False)


def _checked(path: Path) -> Path:
    if path.is_dir():
        raise Invalid(f"{path} is a directory", hint="name a file in it")
    if not path.parent.is_dir():
        raise NotFound(f"there is no directory {path.parent}", hint="make it, or choose another --output")
    return path


@contextmanager
def _opened(path: Path | None) -> Iterator[Callable[[str], object]]:
    """How to write. Whatever goes wrong, an incomplete file does not stay."""
    if path is None:
        yield lambda text: typer.echo(text, nl=False)
        return
    if path.exists() and not path.is_file():  # a pipe or a device: nothing to rename
        with path.open("w", encoding="utf-8", newline="") as file:
            yield file.write
        return
    final = path.resolve()  # a link is followed, not replaced
    part = final.with_name(f".{final.name}.{os.getpid()}.part")
    try:
        with part.open("w", encoding="utf-8", newline="") as file:
            yield file.write
        part.replace(final)
    finally:
        part.unlink(missing_ok=True)


def _is_watched() -> bool:
    """Rows on the terminal and a bar on the terminal would mix."""
    return sys.stdout.isatty()
