"""`worm trash …`: deleted documents of models with soft delete: see them, bring them back, remove them for good."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated

import typer

from worm.cli.arguments import DryRun, EntityId, ModelName, Rows, complete_model, entity_id
from worm.cli.bulk import Outcome, attempted, note_dry_run, show_outcomes
from worm.cli.options import Actor, EndpointUrl, Url, chosen_models, target
from worm.cli.output import RowFormat, echo_document, echo_rows
from worm.clock import iso_seconds
from worm.codec.strict_json import JsonObject
from worm.collections.collection import Collection
from worm.errors import Invalid, NotFound
from worm.model import Worm

COLUMNS = ("model", "id", "deletedAt", "deletedBy", "expiresAt")
NOT_IN_TRASH = "not in trash"

Models = Annotated[
    list[str] | None,
    typer.Argument(metavar="[MODEL]...", help="Models; without one, all.", autocompletion=complete_model),
]

app = typer.Typer(help="Trash: list, restore and purge deleted documents.", no_args_is_help=True)


@app.command("list")
def list_trash(
    context: typer.Context,
    models: Models = None,
    format: Rows = RowFormat.table,
    url: Url = None,
    endpoint_url: EndpointUrl = None,
) -> None:
    """List the deleted documents that can be restored."""
    session = target(context, url, endpoint_url).connect()
    rows = [_shape(name, one) for name in _with_trash(session, models) for one in session.model(name).list_trashed()]
    echo_rows(COLUMNS, rows, format)


@app.command("restore")
def restore(
    context: typer.Context,
    model: ModelName,
    id: EntityId,
    actor: Actor = None,
    format: Rows = RowFormat.json,
    url: Url = None,
    endpoint_url: EndpointUrl = None,
) -> None:
    """Bring a deleted document back. Nothing is overwritten."""
    session = target(context, url, endpoint_url, actor).connect()
    chosen = entity_id(session, model, id, "trash restore")
    echo_document(session.model(model).restore(chosen), format)


@app.command("purge")
def purge(
    context: typer.Context,
    model: ModelName,
    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="Ids of deleted documents; of a singleton `_`.")],
    dry_run: DryRun = None,
    format: Rows = RowFormat.table,
    url: Url = None,
    endpoint_url: EndpointUrl = None,
) -> None:
    """Remove deleted documents from trash for good; their history stays. More than one id is a dry run by default."""
    session = target(context, url, endpoint_url).connect()
    chosen = list(dict.fromkeys(ids))
    documents = session.model(model)
    _with_trash(session, [model])
    documents.check_removing()
    if dry_run or (dry_run is None and len(chosen) > 1):
        there = {one["id"] for one in documents.list_trashed()}
        outcomes = [Outcome(one, "in trash") if one in there else Outcome.missing(one, NOT_IN_TRASH) for one in chosen]
        note_dry_run(sum(outcome.error is None for outcome in outcomes), "purge")
        show_outcomes(outcomes, format)
    elif len(chosen) == 1:
        if not documents.purge(chosen[0]):
            raise NotFound(f"{model} '{chosen[0]}' is {NOT_IN_TRASH}")
        show_outcomes([Outcome(chosen[0], "purged")], format)
    else:
        show_outcomes([attempted(one, documents.purge, "purged", NOT_IN_TRASH) for one in chosen], format)


@app.command("expire")
def expire(
    context: typer.Context,
    models: Models = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run/--no-dry-run", help="Only say what would be purged (default).")
    ] = True,
    format: Rows = RowFormat.table,
    url: Url = None,
    endpoint_url: EndpointUrl = None,
) -> None:
    """Purge what is past its time, as the function `purge` does by schedule."""
    session = target(context, url, endpoint_url).connect()
    rows: list[JsonObject] = []
    for name in _with_trash(session, models):
        ids = _expired(session, name) if dry_run else session.model(name).purge_expired()
        rows += [{"model": name, "id": one, "result": "expired" if dry_run else "purged"} for one in ids]
    if dry_run:
        note_dry_run(len(rows), "purge")
    echo_rows(("model", "id", "result"), rows, format)


def _with_trash(session: Worm, names: list[str] | None) -> list[str]:
    """The models to look at: those named, which must have trash, or all that have."""
    for name in chosen_models(session, names) if names else []:
        if not session.schema.model(name).soft_delete:
            raise Invalid(f"{name} has no trash", hint='set "softDelete": true in the schema and push it')
    return [name for name in chosen_models(session, names) if session.schema.model(name).soft_delete]


def _expired(session: Worm, name: str) -> list[str]:
    definition = session.schema.model(name)
    collection = Collection(session.store, session.resolver, name, definition, session.clock, session.ids)
    return [one.id for one in collection.trash.expired(session.clock.now())]


def _shape(model: str, trashed: JsonObject) -> JsonObject:
    """The row with its model and, unless it is kept for ever, when it expires."""
    ttl, deleted = trashed["ttl"], datetime.fromisoformat(str(trashed["deletedAt"]))
    row: JsonObject = {"model": model, **trashed}
    if isinstance(ttl, int) and ttl > 0:
        try:
            row["expiresAt"] = iso_seconds(deleted + timedelta(days=ttl))
        except OverflowError:  # beyond the calendar: as good as for ever
            return row
    return row
