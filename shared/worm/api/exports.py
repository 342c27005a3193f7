"""All rows of a model as a file: CSV, NDJSON, Parquet and Arrow.

Rows are read in batches and streamed. CSV, Parquet and Arrow name all columns at the start: unless the caller selects
some, rows go to a temporary file until all are read. A function returns everything at once, so it refuses larger
results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import IO, TYPE_CHECKING, Any, cast
from urllib.parse import quote

from worm.api import csv_rows
from worm.api.call import Call, HttpAnswer
from worm.api.queries import ALLOW_SCAN, AT, FILTER, SELECT, AskedRows, filter_of, spoken, within
from worm.api.routes import BRANCH, Parameter, Route
from worm.errors import Invalid, show
from worm.formats import JsonValue, ModelDef
from worm.query import request_text
from worm.sdk import DocumentDict, Rows
from worm.values import dataclass

if TYPE_CHECKING:
    from arro3.core import RecordBatchReader, Table

MEDIA_TYPES = {
    "csv": "text/csv; charset=utf-8",
    "ndjson": "application/x-ndjson",
    "parquet": "application/vnd.apache.parquet",
    "arrow": "application/vnd.apache.arrow.stream",
}
CHUNK_BYTES = 1 << 20
Batches = Iterable[Rows[DocumentDict]]


@dataclass(frozen=True, slots=True)
class Exported:
    """The export: rows in batches, the known columns, and whether there are no others."""

    definition: ModelDef
    columns: list[str]
    is_closed: bool
    batches: Batches


def export_documents(call: Call) -> HttpAnswer:
    kind = call.query.one("format") or "csv"
    if kind not in MEDIA_TYPES:
        raise Invalid(f"must be one of {', '.join(MEDIA_TYPES)}, not {show(kind)}", path="format")
    pieces = iter(_WRITERS[kind](_exported(call)))
    first = next(pieces, b"")  # errors in the request surface before the answer begins
    name = quote(f"{call.parameters['model']}.{kind}", safe="")
    headers = {"Content-Type": MEDIA_TYPES[kind], "Content-Disposition": f"attachment; filename*=UTF-8''{name}"}
    return HttpAnswer(200, headers, chain([first], pieces))


def _exported(call: Call) -> Exported:
    model = call.model
    definition = call.session.schema.model(model.name)
    allow_scan = call.query.flag("allowScan")
    with spoken():
        select = request_text.parse_select(call.query.one("select"))
        chosen = filter_of(definition, call.query.all("filter"))
    most = AskedRows(allow_scan=allow_scan).max_changed(call.settings.max_requests)
    with within(call, allow_scan=allow_scan):
        found = model.find_batches(
            filter=chosen, select=cast("list[str]", select), at=call.query.one("at"), max_changed=most
        )
    return Exported(definition, request_text.columns_of(definition, select), select is not None, found)


def _csv(exported: Exported) -> Iterator[bytes]:
    chunks = csv_rows.chunks(exported.columns, exported.batches, is_closed=exported.is_closed)
    return (text.encode() for _, text in chunks if text)


def _ndjson(exported: Exported) -> Iterator[bytes]:
    return ("".join(f"{csv_rows.json_line(row)}\n" for row in rows).encode() for rows in exported.batches)


def _tables(exported: Exported, spool: IO[str]) -> Iterator[Table]:
    """Arrow tables with the same columns; at least one."""
    known: Iterable[Sequence[Mapping[str, JsonValue]]] = exported.batches
    columns = exported.columns
    if not exported.is_closed:
        counting = csv_rows.spooled(spool, columns, exported.batches)
        while True:
            try:
                next(counting)
            except StopIteration as ended:
                columns = cast("list[str]", ended.value)
                break
        known = csv_rows.unspooled(spool)
    is_empty = True
    for rows in known:
        is_empty = False
        yield _arrow(exported.definition, columns, rows)
    if is_empty:
        yield _arrow(exported.definition, columns, [])


def _arrow(definition: ModelDef, columns: list[str], rows: Sequence[Mapping[str, JsonValue]]) -> Table:
    made = Rows([DocumentDict(row) for row in rows], definition=definition, plan=cast("Any", None), select=columns)
    return made.to_arrow()


def _written(write: Callable[[RecordBatchReader, IO[bytes]], None], exported: Exported) -> Iterator[bytes]:
    from tempfile import TemporaryFile

    from arro3.core import RecordBatch, RecordBatchReader

    failures: list[Exception] = []

    def batches(first: Table, others: Iterator[Table]) -> Iterator[RecordBatch]:
        try:
            for table in chain([first], others):
                yield from table.to_batches()
        except Exception as error:
            failures.append(error)
            raise

    with TemporaryFile("w+", encoding="utf-8", newline="\n") as spool, TemporaryFile() as target:
        tables = _tables(exported, spool)
        first = next(tables)
        try:
            write(RecordBatchReader.from_batches(first.schema, batches(first, tables)), target)
        except Exception:
            if failures:  # arro3 turns an error of the rows into one of its own
                raise failures[0] from None
            raise
        target.seek(0)
        while piece := target.read(CHUNK_BYTES):
            yield piece


def _parquet(exported: Exported) -> Iterator[bytes]:
    from arro3.io import write_parquet

    return _written(partial(write_parquet, compression="snappy"), exported)


def _arrow_stream(exported: Exported) -> Iterator[bytes]:
    from arro3.io import write_ipc_stream

    return _written(partial(write_ipc_stream, compression=None), exported)


_WRITERS: dict[str, Callable[[Exported], Iterator[bytes]]] = {
    "csv": _csv,
    "ndjson": _ndjson,
    "parquet": _parquet,
    "arrow": _arrow_stream,
}

ROUTES = (
    Route(
        "GET",
        "/v1/models/{model}/export",
        export_documents,
        "Export all documents that match, as a file",
        parameters=(
            Parameter("format", "The file format.", {"enum": list(MEDIA_TYPES), "default": "csv"}),
            FILTER,
            SELECT,
            AT,
            BRANCH,
            ALLOW_SCAN,
        ),
        media_types=tuple(MEDIA_TYPES.values()),
        problems=(400, 404, 413),
        tag="queries",
    ),
)
