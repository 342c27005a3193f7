"""`worm table query`, `aggregate`, `distinct`, `export`: the rows of a model or of a SQL statement, their totals, the
values of a field, or all rows into a file.

The options that choose rows are the same for all four, and are checked against the schema. `export` reads and writes
batch by batch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from decimal import Decimal
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import Annotated, TypedDict, cast

import typer

from worm.api import csv_rows
from worm.cli.arguments import ModelName, complete_model, note_undeclared, opened_output, output_path
from worm.cli.options import SessionOnBranch, TargetOnBranch, needs_extra
from worm.cli.output import (
    JsonRow,
    RowFormat,
    Rows,
    cell,
    echo,
    echo_document,
    echo_json,
    echo_rows,
    echo_table,
    progress_bar,
)
from worm.errors import Invalid
from worm.formats import JsonObject, JsonValue, ModelDef
from worm.query import Plan, request_text
from worm.sdk import CHANGED_MAX, Model, SqlRows, Worm, json_row
from worm.values import dataclass

Filters = Annotated[
    list[str] | None,
    typer.Option(
        "--filter",
        metavar="CONDITIONS",
        help="status=active, 'amount>100', tags~vip, name=~/^a/i, …; with commas or repeated, all must hold.",
    ),
]
Where = Annotated[
    list[str] | None,
    typer.Option("--where", metavar="JSON", help="A filter in the full query language; combined with --filter."),
]
Sort = Annotated[
    list[str] | None,
    typer.Option(
        "--sort", metavar="FIELDS", help="name or name:asc, -name or name:desc; separate several with commas."
    ),
]
Select = Annotated[
    list[str] | None,
    typer.Option(
        "--select", metavar="FIELDS", help="Only these fields, separated by commas; the id is always included."
    ),
]
At = Annotated[
    str | None,
    typer.Option("--at", metavar="COMMIT|TIME", help="The state at a time, or at a commit of the model's space."),
]
MaxChanged = Annotated[
    int | None,
    typer.Option(
        "--max-changed",
        metavar="N",
        min=0,
        help="With --at: fail if more documents have changed since.  [default: 10,000]",
    ),
]
CsvRaw = Annotated[
    bool,
    typer.Option("--csv-raw", help="CSV without the apostrophe that keeps spreadsheets from running formulas."),
]
GroupBy = Annotated[
    list[str] | None,
    typer.Option("--group-by", metavar="FIELDS", help="Group by these fields; separate several with commas."),
]
Count = Annotated[bool, typer.Option("--count", help="Count the rows; the default if you ask for nothing else.")]
Sum = Annotated[
    list[str] | None,
    typer.Option("--sum", metavar="FIELDS", help="Sum of a number; separate several fields with commas."),
]
Avg = Annotated[list[str] | None, typer.Option("--avg", metavar="FIELDS", help="Average of a number.")]
Min = Annotated[list[str] | None, typer.Option("--min", metavar="FIELDS", help="Smallest number, time or text.")]
Max = Annotated[list[str] | None, typer.Option("--max", metavar="FIELDS", help="Largest number, time or text.")]
Percentiles = Annotated[
    list[str] | None,
    typer.Option(
        "--percentiles",
        metavar="FIELD:P:P",
        help="Percentiles, such as total:50:95; separate several fields with commas.",
    ),
]
Having = Annotated[
    list[str] | None,
    typer.Option("--having", metavar="CONDITIONS", help="Only groups that match: 'count>3,sum>=100'."),
]


@dataclass(frozen=True, slots=True)
class Choice:
    """Which rows and fields of a model, in which order."""

    filter: request_text.JsonFilter = field(default_factory=dict)
    sort: list[dict[str, str]] = field(default_factory=list)
    select: list[str] | None = None
    columns: list[str] = field(default_factory=list)
    is_closed: bool = False
    """Rows have only the selected columns."""

    def columns_of(self, rows: Iterable[JsonRow]) -> list[str]:
        """The declared fields, then any others of the rows."""
        return self.columns if self.is_closed else csv_rows.with_others(self.columns, rows)


def choose(
    definition: ModelDef,
    filters: list[str] | None,
    where: list[str] | None,
    *,
    sort: list[str] | None = None,
    select: list[str] | None = None,
    others: list[str] | None = None,
) -> Choice:
    """The options, checked against the schema. An undeclared field is noted on stderr and read from the documents;
    `others` are further fields of the command."""
    one_where = once(where, "--where", 'combine them: {"$and": [{…}, {…}]} or {"$or": [{…}, {…}]}')
    chosen = request_text.both(
        request_text.parse_filter(definition, filters or []), request_text.parse_where(one_where)
    )
    orders = request_text.parse_sort(once(sort, "--sort", "separate fields with commas: --sort name:asc,score:desc"))
    selected = request_text.parse_select(once(select, "--select", "separate fields with commas: --select name,score"))
    named = [
        *request_text.filter_fields(chosen),
        *(order["field"] for order in orders),
        *(selected or []),
        *(others or []),
    ]
    note_undeclared(definition, named)
    columns = request_text.columns_of(definition, selected)
    return Choice(chosen, orders, selected, columns, is_closed=selected is not None)


def once(given: list[str] | None, option: str, hint: str) -> str | None:
    """The only value of an option. Repeating it is refused; otherwise the last one would silently win."""
    if given and len(given) > 1:
        raise Invalid(f"{option} is given {len(given)} times, but only once is allowed", hint=hint)
    return given[0] if given else None


class MomentOptions(TypedDict):
    """The moment."""

    at: str | None
    max_changed: int | None


def moment(at: str | None, max_changed: int | None) -> MomentOptions:
    """The two options; the second needs the first."""
    if at is None and max_changed is not None:
        raise Invalid("--max-changed needs --at", hint="leave it out, or add --at")
    return {"at": at, "max_changed": CHANGED_MAX if max_changed is None else max_changed}


class QueryOptions(TypedDict):
    """The arguments for `find_all` and `explain`."""

    filter: request_text.JsonFilter
    sort: list[dict[str, str]]
    select: list[str] | None
    limit: int | None
    offset: int
    cursor: str | None
    strategy: str | None
    at: str | None
    max_changed: int | None


class SqlOptions(TypedDict, total=False):
    """What a statement may take, if not the default."""

    timeout: float
    memory_limit: str


class Strategy(StrEnum):
    """Ways to find rows, for `--strategy`."""

    index_lookup = "index_lookup"
    manifest_scan = "manifest_scan"
    manifest_targeted = "manifest_targeted"
    full_scan = "full_scan"


def query(
    session: SessionOnBranch,
    model: Annotated[
        str | None, typer.Argument(metavar="[MODEL]", help="Name of the model.", autocompletion=complete_model)
    ] = None,
    sql: Annotated[
        list[str] | None,
        typer.Option("--sql", metavar="STATEMENT", help="A SELECT over any models, instead of MODEL and filters."),
    ] = None,
    filter: Filters = None,
    where: Where = None,
    sort: Sort = None,
    select: Select = None,
    limit: Annotated[int | None, typer.Option("--limit", metavar="N", min=0, help="At most N rows.")] = None,
    offset: Annotated[int, typer.Option("--offset", metavar="N", min=0, help="Skip the first N rows.")] = 0,
    cursor: Annotated[
        str | None, typer.Option("--cursor", metavar="CURSOR", help="Continue after the page with this cursor.")
    ] = None,
    strategy: Annotated[
        Strategy | None, typer.Option("--strategy", help="Use this strategy, not the cheapest one.")
    ] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Show how the rows would be found, and the cost.")] = False,
    analyze: Annotated[
        bool, typer.Option("--analyze", help="Explain, run the query, and show the actual cost.")
    ] = False,
    at: At = None,
    max_changed: MaxChanged = None,
    timeout: Annotated[
        int | None, typer.Option("--timeout", metavar="SECONDS", min=1, help="With --sql: how long it may run.")
    ] = None,
    memory_limit: Annotated[
        str | None, typer.Option("--memory-limit", metavar="SIZE", help="With --sql: how much memory, such as 4GB.")
    ] = None,
    format: Annotated[RowFormat, typer.Option("--format", help="How to show the rows.")] = RowFormat.table,
    csv_raw: CsvRaw = False,
) -> None:
    """Query the rows of a model, or of several with SQL."""
    statement = once(sql, "--sql", "one statement can name several models")
    if statement is not None:
        others: dict[str, object] = {"MODEL": model, "--filter": filter, "--where": where, "--sort": sort}
        others |= {"--select": select, "--limit": limit is not None, "--offset": offset, "--cursor": cursor}
        others |= {"--strategy": strategy, "--explain": explain, "--analyze": analyze}
        _check_alone(others)
        limits: SqlOptions = {}
        if timeout is not None:
            limits["timeout"] = timeout
        if memory_limit:
            limits["memory_limit"] = memory_limit
        found = _by_sql(session, statement, limits, moment(at, max_changed))
        echo_rows(found.columns, [json_row(row) for row in found], format, raw_csv=csv_raw)
        return
    if model is None:
        raise Invalid("name a model, or pass --sql", hint="worm table query MODEL")
    if timeout is not None or memory_limit is not None:
        raise Invalid("--timeout and --memory-limit need --sql", hint="leave them out")
    choice = choose(session.schema.model(model), filter, where, sort=sort, select=select)
    documents = session.model(model)
    asked: QueryOptions = {
        "filter": choice.filter,
        "sort": choice.sort,
        "select": choice.select,
        "limit": limit,
        "offset": offset,
        "cursor": cursor,
        "strategy": None if strategy is None else strategy.value,
        **moment(at, max_changed),
    }
    if explain or analyze:
        plan = documents.explain(**asked, analyze=analyze)
        show_plan(plan.shape(), format)
        note_no_manifest(documents, plan)
        return
    rows = documents.find_all(**asked)
    echo_rows(choice.columns_of(rows), rows, format, raw_csv=csv_raw)
    note_no_manifest(documents, rows.plan)
    if rows.cursor is not None:
        echo(f"worm: note: more rows follow: --cursor {rows.cursor}", err=True)


def _check_alone(others: Mapping[str, object]) -> None:
    """`others`: what a statement says itself."""
    for option in [name for name, one in others.items() if one]:
        hint = "say it in the statement: FROM, WHERE, ORDER BY, LIMIT, OFFSET, EXPLAIN"
        raise Invalid(f"{option} and --sql cannot be combined", hint=hint)


def _by_sql(session: Worm, statement: str, limits: SqlOptions, at: MomentOptions) -> SqlRows:
    with needs_extra("sql"):
        import_module("duckdb")
    return session.sql(statement, **limits, **at)


def note_no_manifest(documents: Model, plan: Plan) -> None:
    """Note on stderr that queries are slow without the manifest; not if there are no documents."""
    is_kept = documents.table.collection.definition.keeps_manifest
    if not is_kept or plan.strategy.startswith("manifest") or documents.table.view() is not None:
        return
    status = documents.get_manifest_status()
    if not status.exists and not status.fresh:
        name = documents.name
        told = f"{name} has no valid manifest, so documents are read. Build it with `worm table rebuild {name}`"
        echo(f"worm: note: {told}", err=True)


def show_plan(plan: JsonObject, format: RowFormat) -> None:
    """The plan with the names that programs see; amounts of money as people write them."""
    if format is RowFormat.table:
        echo_table(("Plan", "Value"), [[name, _plan_cell(name, value)] for name, value in plan.items()])
    else:
        echo_document(plan, format)


def _plan_cell(name: str, value: JsonValue) -> str:
    if name.endswith("Usd") and isinstance(value, int | float):
        return f"{Decimal(f'{value:.3g}'):f}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return cell(value)


def aggregate(
    session: SessionOnBranch,
    model: ModelName,
    group_by: GroupBy = None,
    count: Count = False,
    sum: Sum = None,
    avg: Avg = None,
    min: Min = None,
    max: Max = None,
    percentiles: Percentiles = None,
    having: Having = None,
    filter: Filters = None,
    where: Where = None,
    at: At = None,
    max_changed: MaxChanged = None,
    format: Rows = RowFormat.table,
    csv_raw: CsvRaw = False,
) -> None:
    """Count rows, or compute sums, averages, minimums and maximums of fields, overall or by group."""
    groups = _listed(group_by, "--group-by")
    asked = {"sum": sum, "avg": avg, "min": min, "max": max}
    fields = {name: _listed(given, f"--{name}") for name, given in asked.items()}
    ranks = request_text.parse_percentiles(
        once(percentiles, "--percentiles", "separate several with commas: total:50:95,tax:50")
    )
    named = [*groups, *(field for listed in fields.values() for field in listed), *ranks]
    if "" in named:
        raise Invalid("a field has an empty name", hint=f"worm table aggregate {model} --sum FIELD")
    choice = choose(session.schema.model(model), filter, where, others=named)
    is_json = format is RowFormat.json
    found = session.model(model).aggregate(
        count=count or not (any(fields.values()) or ranks),
        sum=_one_or_several(fields["sum"]),
        avg=_one_or_several(fields["avg"]),
        min=_one_or_several(fields["min"]),
        max=_one_or_several(fields["max"]),
        percentiles=ranks,
        # with one field, JSON has groups by name, as in the SDK; a table shows the values
        group_by=_one_or_several(groups) if is_json else groups or None,
        having=request_text.parse_having(having),
        filter=choice.filter,
        **moment(at, max_changed),
    )
    if is_json:
        echo_json(found)
        return
    rows = aggregate_rows(found, groups, {name: listed[0] for name, listed in fields.items() if len(listed) == 1})
    echo_rows(list(dict.fromkeys((*groups, *(name for row in rows for name in row)))), rows, format, raw_csv=csv_raw)


def _listed(given: list[str] | None, option: str) -> list[str]:
    return request_text.parse_names(once(given, option, f"separate fields with commas: {option} name,score"), option)


def _one_or_several(fields: list[str]) -> str | list[str] | None:
    """One field gives a value, several give a value per field."""
    return (fields[0] if len(fields) == 1 else fields) if fields else None


def aggregate_rows(found: JsonObject, groups: list[str], fields: dict[str, str]) -> list[JsonObject]:
    """One row per group: its values, then `count`, `sum(amount)`, `p95(amount)` and so on. `fields`: the fields of
    totals over one field."""
    totals = cast("list[JsonObject]", found["groups"]) if groups else [found]
    rows: list[JsonObject] = []
    for one in totals:
        row = dict(cast(JsonObject, one.get("key", {})))
        for name, value in one.items():
            for label, number in _labelled(name, value, fields) if name != "key" else ():
                row[f"{label}(*)" if label in groups else label] = number
        rows.append(row)
    return rows


def _labelled(name: str, value: JsonValue, fields: dict[str, str]) -> Iterator[tuple[str, JsonValue]]:
    if name in fields:
        yield f"{name}({fields[name]})", value
    elif not isinstance(value, dict):
        yield name, value
    else:
        for field_name, inner in value.items():
            if name != "percentiles":
                yield f"{name}({field_name})", inner
                continue
            for rank, number in cast(JsonObject, inner).items():
                yield f"p{rank}({field_name})", number


def distinct(
    session: SessionOnBranch,
    model: ModelName,
    field: Annotated[str, typer.Argument(metavar="FIELD", help="Name of the field; use dots to reach into objects.")],
    filter: Filters = None,
    where: Where = None,
    at: At = None,
    max_changed: MaxChanged = None,
    format: Rows = RowFormat.table,
    csv_raw: CsvRaw = False,
) -> None:
    """List the distinct values of a field, sorted; for arrays, their elements."""
    choice = choose(session.schema.model(model), filter, where, others=[field])
    values = session.model(model).distinct(field, choice.filter, **moment(at, max_changed))
    if format is RowFormat.json:
        echo_json(values)
    else:
        echo_rows([field], [{field: value} for value in values], format, raw_csv=csv_raw)


class ExportFormat(StrEnum):
    """How rows are written."""

    csv = "csv"
    json = "json"
    ndjson = "ndjson"


def export(
    target: TargetOnBranch,
    model: ModelName,
    format: Annotated[ExportFormat, typer.Option("--format", help="How to write the rows.")] = ExportFormat.csv,
    filter: Filters = None,
    where: Where = None,
    sort: Sort = None,
    select: Select = None,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE", help="Write to this file, replacing it; `-` is stdout.")
    ] = "-",
    at: At = None,
    max_changed: MaxChanged = None,
    csv_raw: CsvRaw = False,
) -> None:
    """Write the rows of a model to stdout or a file: CSV, JSON or NDJSON.

    Rows are read and written in batches; only --sort holds all of them in memory.
    """
    path = output_path(output)
    session = target.connect()
    choice = choose(session.schema.model(model), filter, where, sort=sort, select=select)
    batches = _batches(session.model(model), choice, moment(at, max_changed))
    with _writing(path) as write, progress_bar(f"Exporting {model}", is_hidden=path is None and _is_watched()) as show:
        done = 0
        for rows, text in export_chunks(format, choice, batches, raw_csv=csv_raw):
            write(text)
            done += rows
            if rows:
                show(done, None)
    if path is not None:
        echo(f"wrote {output}: {done:,} {'row' if done == 1 else 'rows'}", err=True)


def export_chunks(
    format: ExportFormat, choice: Choice, batches: Iterable[Sequence[JsonRow]], *, raw_csv: bool = False
) -> Iterator[tuple[int, str]]:
    """The number of rows, and their text. JSON is one array with one row per line; JSON and NDJSON keep every
    field. The first line of CSV names all columns: unless they are known, the rows go to a temporary file until
    all are read."""
    if format is ExportFormat.csv:
        yield from csv_rows.chunks(choice.columns, batches, is_closed=choice.is_closed, raw=raw_csv)
    elif format is ExportFormat.ndjson:
        for batch in batches:
            yield len(batch), "".join(f"{csv_rows.json_line(row)}\n" for row in batch)
    else:
        before = "["
        for batch in batches:
            if batch:
                yield len(batch), f"{before}\n" + ",\n".join(map(csv_rows.json_line, batch))
                before = ","
        yield 0, "[]\n" if before == "[" else "\n]\n"


def _batches(documents: Model, choice: Choice, when: MomentOptions) -> Iterable[Sequence[JsonRow]]:
    if choice.sort:
        return [documents.find_all(filter=choice.filter, sort=choice.sort, select=choice.select, **when)]
    return documents.find_batches(filter=choice.filter, select=choice.select, **when)


@contextmanager
def _writing(path: Path | None) -> Iterator[Callable[[str], object]]:
    if path is None:
        yield lambda text: echo(text, nl=False)
        return
    with opened_output(path) as file:
        yield lambda text: file.write(text.encode())


def _is_watched() -> bool:
    """Rows and a bar would mix on a terminal."""
    return sys.stdout.isatty()
