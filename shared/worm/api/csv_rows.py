"""Rows as CSV (RFC 4180). Missing and null are empty; lists and objects are JSON. A text that a spreadsheet would run
as a formula gets an apostrophe, unless `raw` is set."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import IO

from worm.formats import JsonValue, dumps

JsonRow = Mapping[str, JsonValue]
SPOOL_ROWS = 1000
_FORMULA = re.compile(r"'*[=+\-@\t\r\n\uff1d\uff0b\uff0d\uff20]")  # the last four: their wide forms


def text(columns: Sequence[str], rows: Iterable[JsonRow], *, raw: bool = False, header: bool = True) -> str:
    """RFC 4180. Missing and null are empty; lists and objects are JSON."""
    import csv

    target = io.StringIO()
    writer = csv.writer(target, lineterminator="\r\n")
    if header:
        writer.writerow([_csv_cell(name, raw) for name in columns])
    for row in rows:
        writer.writerow([_csv_cell(row.get(name), raw) for name in columns])
    return target.getvalue()


def _csv_cell(value: JsonValue, raw: bool) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        return dumps(value).decode()
    return f"'{value}" if not raw and _FORMULA.match(value) else value


def with_others(columns: Sequence[str], rows: Iterable[JsonRow]) -> list[str]:
    """The columns, followed by the other fields of the rows."""
    others = {name for row in rows for name in row}.difference(columns)
    return [*columns, *sorted(others)]


def chunks(
    columns: list[str], batches: Iterable[Sequence[JsonRow]], *, is_closed: bool, raw: bool = False
) -> Iterator[tuple[int, str]]:
    """The number of rows, and their text. `is_closed`: rows have no fields beside the columns. Otherwise the header
    line, which names all columns, is only known after the last row, so the rows wait in a temporary file."""
    from tempfile import TemporaryFile  # slow to import, and most processes write no CSV

    with TemporaryFile("w+", encoding="utf-8", newline="\n") as spool:
        known = columns
        if not is_closed:
            known = yield from spooled(spool, columns, batches)
            batches = unspooled(spool)
        yield 0, text(known, [], raw=raw)
        for batch in batches:
            yield len(batch) if is_closed else 0, text(known, batch, raw=raw, header=False)


def spooled(
    spool: IO[str], columns: list[str], batches: Iterable[Sequence[JsonRow]]
) -> Generator[tuple[int, str], None, list[str]]:
    """Writes the rows to the file and counts them; returns all their columns."""
    known = columns
    for batch in batches:
        spool.writelines(f"{json_line(row)}\n" for row in batch)
        known = [*columns, *sorted({*known[len(columns) :], *with_others(columns, batch)[len(columns) :]})]
        yield len(batch), ""
    return known


def unspooled(spool: IO[str]) -> Iterator[Sequence[JsonRow]]:
    spool.seek(0)
    while lines := list(islice(spool, SPOOL_ROWS)):
        yield [json.loads(line) for line in lines]


def json_line(row: JsonRow) -> str:
    return json.dumps(dict(row), ensure_ascii=False)
