"""`worm table query`: rows of a model, or how they would be found."""

from __future__ import annotations

from decimal import Decimal
from enum import StrEnum
from typing import Annotated

import typer

from worm.cli.arguments import ModelName
from worm.cli.options import EndpointUrl, Url, target
from worm.cli.output import RowFormat, cell, echo_document, echo_rows, echo_table
from worm.cli.table_options import CsvRaw, Filters, Select, Sort, Where, choose
from worm.codec.strict_json import JsonObject, JsonValue
from worm.model import Model
from worm.query.plan import Plan


class Strategy(StrEnum):
    """Ways to find rows, for `--strategy`."""

    index_lookup = "index_lookup"
    manifest_scan = "manifest_scan"
    manifest_targeted = "manifest_targeted"
    full_scan = "full_scan"


def query(
    context: typer.Context,
    model: ModelName,
    filter: Filters = None,
    where: Where = None,
    sort: Sort = None,
    select: Select = None,
    limit: Annotated[int | None, typer.Option("--limit", metavar="N", min=0, help="At most N rows.")] = None,
    offset: Annotated[int, typer.Option("--offset", metavar="N", min=0, help="Leave out the first N rows.")] = 0,
    cursor: Annotated[
        str | None, typer.Option("--cursor", metavar="CURSOR", help="Go on after the page that gave this cursor.")
    ] = None,
    strategy: Annotated[
        Strategy | None, typer.Option("--strategy", help="Find the rows this way, not the cheapest.")
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Show how the rows would be found and what that costs.")
    ] = False,
    analyze: Annotated[
        bool, typer.Option("--analyze", help="Explain, run the query, and show what it really took.")
    ] = False,
    format: Annotated[RowFormat, typer.Option("--format", help="How to show the rows.")] = RowFormat.table,
    csv_raw: CsvRaw = False,
    url: Url = None,
    endpoint_url: EndpointUrl = None,
) -> None:
    """Query the rows of a model."""
    session = target(context, url, endpoint_url).connect()
    choice = choose(session.schema.model(model), filter, where, sort=sort, select=select)
    documents, forced = session.model(model), None if strategy is None else strategy.value
    if explain or analyze:
        plan = documents.explain(
            filter=choice.filter,
            sort=choice.sort,
            select=choice.select,
            limit=limit,
            offset=offset,
            cursor=cursor,
            strategy=forced,
            analyze=analyze,
        )
        show_plan(plan.shape(), format)
        note_no_manifest(documents, plan)
        return
    rows = documents.find_all(
        filter=choice.filter,
        sort=choice.sort,
        select=choice.select,
        limit=limit,
        offset=offset,
        cursor=cursor,
        strategy=forced,
    )
    echo_rows(choice.columns, rows, format, raw_csv=csv_raw)
    note_no_manifest(documents, rows.plan)
    if rows.cursor is not None:
        typer.echo(f"worm: note: more rows follow: --cursor {rows.cursor}", err=True)


def note_no_manifest(documents: Model, plan: Plan) -> None:
    """Say on stderr that queries are slow for want of the manifest; where there are no documents none is wanted."""
    is_kept = documents.table.collection.definition.keeps_manifest
    if not is_kept or plan.strategy.startswith("manifest") or documents.table.state() is not None:
        return
    status = documents.get_manifest_status()
    if not status.exists and not status.fresh:
        name = documents.name
        told = f"{name} has no manifest, or a damaged one; documents are read. `worm table rebuild {name}` builds it"
        typer.echo(f"worm: note: {told}", err=True)


def show_plan(plan: JsonObject, format: RowFormat) -> None:
    """The plan by the names that programs see; amounts of money as people write them."""
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
