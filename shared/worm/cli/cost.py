"""`worm cost`: the monthly cost of a deployment, before you deploy it."""

from __future__ import annotations

import math
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from worm.cli.arguments import existing_file
from worm.cli.output import Report, ReportFormat, echo, echo_json, echo_table, printable
from worm.errors import Invalid
from worm.upkeep import costs

COLUMNS = ("Group", "What", "USD a Month")


class ChangeKind(StrEnum):
    """Kinds of changes that cost different requests; `CHANGES` has each."""

    create = "create"
    update = "update"
    sdk_update = "sdk-update"
    delete = "delete"
    rescued_delete = "rescued-delete"


class EventRoute(StrEnum):
    """How capture gets events about changes."""

    eventbridge = "eventbridge"
    sqs = "sqs"


class Address(StrEnum):
    """What brings calls to the HTTP API: IAM callers use a Function URL, tokens an HTTP API."""

    function_url = "function-url"
    http_api = "http-api"


def cost(
    changes: Annotated[float, typer.Option("--changes", metavar="N", help="Changes per month, such as 1e6.")] = 0,
    change: Annotated[ChangeKind, typer.Option("--change", help="Kind of changes.")] = ChangeKind.create,
    batch: Annotated[
        float, typer.Option("--batch", metavar="N", help="Changes to one model within 5 seconds, up to 100.")
    ] = costs.BATCH_MAX,
    queries: Annotated[float, typer.Option("--queries", metavar="N", help="Queries per month.")] = 0,
    requests_per_query: Annotated[
        float,
        typer.Option(
            "--requests-per-query", metavar="N", help="Requests per query, as `worm table query --explain` shows."
        ),
    ] = 1,
    calls: Annotated[float, typer.Option("--calls", metavar="N", help="Calls to the HTTP API per month.")] = 0,
    requests_per_call: Annotated[
        float,
        typer.Option(
            "--requests-per-call", metavar="N", help="Requests per call, as the header `Worm-Requests` shows."
        ),
    ] = 1,
    address: Annotated[
        Address, typer.Option("--address", help="What serves the calls; http-api for tokens.")
    ] = Address.function_url,
    documents: Annotated[float, typer.Option("--documents", metavar="N", help="Documents in the bucket.")] = 0,
    document_bytes: Annotated[
        float, typer.Option("--document-bytes", metavar="N", help="Average size of a document in bytes.")
    ] = 1_000,
    models: Annotated[float, typer.Option("--models", metavar="N", help="Models in the schema.")] = 1,
    sweeps: Annotated[
        float, typer.Option("--sweeps", metavar="N", help="Passes of the sweep per month.")
    ] = costs.PASSES_A_MONTH,
    rebuilds: Annotated[float, typer.Option("--rebuilds", metavar="N", help="Spark rebuilds per month.")] = 0,
    events: Annotated[
        EventRoute, typer.Option("--events", help="How capture gets events: the parameter Events of the template.")
    ] = EventRoute.eventbridge,
    prices: Annotated[
        Path | None, typer.Option("--prices", metavar="FILE", help="Your prices, in the format of docs/costs.md.")
    ] = None,
    format: Report = ReportFormat.table,
) -> None:
    """Estimate the monthly cost of a deployment from the requests that each change makes.

    Uses list prices, and excludes the requests of your own clients. Sends nothing to AWS.
    """
    table = costs.Prices.read(None if prices is None else existing_file(prices))
    usage = costs.Usage(
        changes=_number("--changes", changes),
        change=change.value,
        batch=_number("--batch", batch, 1, costs.BATCH_MAX),
        queries=_number("--queries", queries),
        requests_per_query=_number("--requests-per-query", requests_per_query),
        documents=_number("--documents", documents),
        document_bytes=_number("--document-bytes", document_bytes),
        models=_number("--models", models),
        sweeps=_number("--sweeps", sweeps),
        rebuilds=_number("--rebuilds", rebuilds),
        by_eventbridge=events is EventRoute.eventbridge,
        calls=_number("--calls", calls),
        requests_per_call=_number("--requests-per-call", requests_per_call),
        by_http_api=address is Address.http_api,
    )
    _show(usage, table, format)


def _number(option: str, value: float, least: float = 0, most: float = 1e15) -> float:
    if not math.isfinite(value) or not least <= value <= most:
        raise Invalid(f"{option} must be between {least:g} and {most:g}, not {value:g}")
    return value


def _show(usage: costs.Usage, prices: costs.Prices, format: ReportFormat) -> None:
    if format is ReportFormat.json:
        echo_json(costs.bill_shape(usage, prices))
        return
    lines = costs.bill(usage, prices)
    total = sum(one.usd for one in lines)
    shown = [one for one in lines if one.usd or one.group == "idle"]
    rows = [[one.group, one.what, dollars(one.usd)] for one in [*shown, costs.BillLine("all", "", total)]]
    echo_table(COLUMNS, rows, right=COLUMNS[2:])
    echo()
    for name, usd in costs.units(usage, prices).items():
        echo(f"{name}: {dollars(usd)}")
    echo(f"prices: {printable(prices.region)}, {printable(prices.date)}: {printable(prices.source)}")


def dollars(usd: float) -> str:
    return f"${usd:,.2f}"
