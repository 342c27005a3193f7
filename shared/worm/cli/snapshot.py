"""`worm snapshot …`: full copies of a document: take one, list them, go back to one."""

from __future__ import annotations

from typing import Annotated

import typer

from worm.cli.arguments import EntityId, ModelName, Rows, SingleId, entity_id
from worm.cli.options import Actor, EndpointUrl, Url, target
from worm.cli.output import RowFormat, echo_document, echo_rows
from worm.collections.ids import SINGLETON_ID

COLUMNS = ("ts", "size")

app = typer.Typer(help="Snapshots: take, list and restore full copies of a document.", no_args_is_help=True)


@app.command("take")
def take(
    context: typer.Context,
    model: ModelName,
    id: SingleId = SINGLETON_ID,
    format: Rows = RowFormat.table,
    url: Url = None,
    endpoint_url: EndpointUrl = None,
) -> None:
    """Keep a full copy of the document as it is now."""
    session = target(context, url, endpoint_url).connect()
    taken = session.model(model).snapshot(entity_id(session, model, id, "snapshot take"))
    echo_rows((*COLUMNS, "seq"), [taken], format)


@app.command("list")
def list_snapshots(
    context: typer.Context,
    model: ModelName,
    id: SingleId = SINGLETON_ID,
    format: Rows = RowFormat.table,
    url: Url = None,
    endpoint_url: EndpointUrl = None,
) -> None:
    """List the snapshots of a document, oldest first."""
    session = target(context, url, endpoint_url).connect()
    found = session.model(model).list_snapshots(entity_id(session, model, id, "snapshot list"))
    echo_rows(COLUMNS, found, format)


@app.command("restore")
def restore(
    context: typer.Context,
    model: ModelName,
    id: EntityId,
    ts: Annotated[str, typer.Argument(metavar="TS", help="Name of the snapshot, as `worm snapshot list` shows it.")],
    actor: Actor = None,
    format: Rows = RowFormat.json,
    url: Url = None,
    endpoint_url: EndpointUrl = None,
) -> None:
    """Save the document of a snapshot again. History is not rewritten: this appends an entry."""
    session = target(context, url, endpoint_url, actor).connect()
    chosen = entity_id(session, model, id, "snapshot restore")
    echo_document(session.model(model).restore_snapshot(chosen, ts), format)
