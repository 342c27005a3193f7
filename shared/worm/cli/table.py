"""`worm table …`: what tables there are; the other commands have modules of their own."""

from __future__ import annotations

from typing import Annotated

import typer

from worm.cli import table_aggregate, table_export, table_inspect, table_query, table_rebuild
from worm.cli.options import EndpointUrl, Url, target
from worm.cli.output import ReportFormat, echo_json, echo_table
from worm.codec.strict_json import JsonObject
from worm.model import Worm

COLUMNS = ("Model", "Count", "Manifest", "Indexes", "Last Updated")
WIDTHS_MIN = (13, 8, 10, 20, 22)

app = typer.Typer(help="Tables: list, inspect, query, aggregate, export and rebuild them.", no_args_is_help=True)


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
    found = [_state(session, name) for name in session.schema.models]
    if format is ReportFormat.json:
        echo_json([*found])
    else:
        echo_table(COLUMNS, [_row(one) for one in found], right=["Count"], widths_min=WIDTHS_MIN)


def _state(session: Worm, name: str) -> JsonObject:
    definition, status = session.schema.model(name), session.model(name).get_manifest_status()
    kept = "fresh" if status.fresh else "stale"
    return {
        "model": name,
        "count": status.count,
        "manifest": kept if definition.keeps_manifest else "n/a",
        "indexes": [index.field for index in definition.indexes.values()],
        "lastUpdated": status.last_updated,
    }


def _row(state: JsonObject) -> list[str]:
    indexes = state["indexes"]
    return [
        str(state["model"]),
        f"{state['count']:,}",
        str(state["manifest"]),
        ", ".join(map(str, indexes)) if isinstance(indexes, list) and indexes else "--",
        str(state["lastUpdated"] or "--"),
    ]


app.command("inspect")(table_inspect.inspect)
app.command("query")(table_query.query)
app.command("aggregate")(table_aggregate.aggregate)
app.command("rebuild")(table_rebuild.rebuild)
app.command("export")(table_export.export)
