"""`worm table …`: what tables there are, and queries on them."""

from __future__ import annotations

from typing import Annotated

import typer

from worm.cli.filters import columns_of, parse_filter, parse_select, parse_sort, undeclared
from worm.cli.options import EndpointUrl, Url, target
from worm.cli.output import ReportFormat, RowFormat, echo_json, echo_rows, echo_table
from worm.cli.table_status import TableStatus, table_status

COLUMNS = ("Model", "Count", "Manifest", "Indexes", "Last Updated")

app = typer.Typer(help="Tables: list them, query them.", no_args_is_help=True)


@app.command("list")
def list_tables(
    context: typer.Context,
    format: Annotated[ReportFormat, typer.Option("--format", help="How to show it.")] = ReportFormat.table,
    url: Url = None,
    endpoint_url: EndpointUrl = None,
) -> None:
    """List all models with the state of their tables.

    A manifest is stale while a change of a document is not in it yet, fresh otherwise, n/a where the model keeps none.
    """
    session = target(context, url, endpoint_url).connect()
    found = [table_status(session, name) for name in session.schema.models]
    if format is ReportFormat.json:
        echo_json([status.shape() for status in found])
    else:
        echo_table(COLUMNS, [_row(status) for status in found], right=["Count"])


@app.command("query")
def query(
    context: typer.Context,
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Name of the model.")],
    filter: Annotated[
        list[str] | None,
        typer.Option(
            "--filter", metavar="FIELD=VALUE", help="Only rows with this value; commas or repeating: all hold."
        ),
    ] = None,
    sort: Annotated[
        str | None, typer.Option("--sort", metavar="FIELD:ORDER", help="asc or desc; several with commas.")
    ] = None,
    select: Annotated[
        str | None,
        typer.Option("--select", metavar="FIELDS", help="Only these fields, with commas; the id is always there."),
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", metavar="N", min=0, help="At most N rows.")] = None,
    offset: Annotated[int, typer.Option("--offset", metavar="N", min=0, help="Leave out the first N rows.")] = 0,
    format: Annotated[RowFormat, typer.Option("--format", help="How to show the rows.")] = RowFormat.table,
    csv_raw: Annotated[
        bool,
        typer.Option("--csv-raw", help="CSV without the apostrophe that keeps spreadsheets from running formulas."),
    ] = False,
    url: Url = None,
    endpoint_url: EndpointUrl = None,
) -> None:
    """Query the rows of a model."""
    session = target(context, url, endpoint_url).connect()
    definition = session.schema.model(model)
    conditions, orders, selected = parse_filter(definition, filter or []), parse_sort(sort), parse_select(select)
    named = [*conditions, *(order["field"] for order in orders), *(selected or [])]
    for name in undeclared(definition, named):
        typer.echo(f"worm: note: the schema of {model} declares no field {name!r}", err=True)
    rows = session.model(model).find_all(filter=conditions, sort=orders, select=selected, limit=limit, offset=offset)
    echo_rows(columns_of(definition, selected), rows, format, raw_csv=csv_raw)


def _row(status: TableStatus) -> list[str]:
    return [
        status.model,
        f"{status.count:,}",
        status.manifest,
        ", ".join(status.indexes) or "--",
        status.last_updated or "--",
    ]
