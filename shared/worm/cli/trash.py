"""`worm trash …`: deleted documents of models with soft delete: list, restore and purge them."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated

import typer

from worm.cli.arguments import DryRun, EntityId, ModelName, Models, chosen_models, entity_id
from worm.cli.options import AuthorSessionOnBranch, Session, SessionOnBranch
from worm.cli.output import (
    Outcome,
    RowFormat,
    Rows,
    attempted,
    echo_document,
    echo_rows,
    note_dry_run,
    show_outcomes,
)
from worm.clock import iso_seconds
from worm.errors import Invalid, NotFound
from worm.formats import JsonObject
from worm.sdk import Worm

COLUMNS = ("model", "id", "deletedAt", "deletedBy", "expiresAt")
NOT_IN_TRASH = "not in trash"


def list_trash(session: SessionOnBranch, models: Models = None, format: Rows = RowFormat.table) -> None:
    """List the deleted documents that can be restored."""
    rows = [_shape(name, one) for name in _with_trash(session, models) for one in session.model(name).list_trashed()]
    echo_rows(COLUMNS, rows, format)


def restore(session: AuthorSessionOnBranch, model: ModelName, id: EntityId, format: Rows = RowFormat.json) -> None:
    """Restore a deleted document. Nothing is overwritten."""
    chosen = entity_id(session, model, id, "trash restore")
    echo_document(session.model(model).restore(chosen), format)


def purge(
    session: Session,
    model: ModelName,
    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="Ids of deleted documents; `_` for a singleton.")],
    dry_run: DryRun = None,
    format: Rows = RowFormat.table,
) -> None:
    """Remove deleted documents from trash permanently; their history stays. Several ids are a dry run by default."""
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


def expire(
    session: Session,
    models: Models = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run/--no-dry-run", help="Only show what would be purged (default).")
    ] = True,
    format: Rows = RowFormat.table,
) -> None:
    """Purge expired documents, as the function `purge` does on a schedule."""
    rows: list[JsonObject] = []
    for name in _with_trash(session, models):
        ids = _expired(session, name) if dry_run else session.model(name).purge_expired()
        rows += [{"model": name, "id": one, "result": "expired" if dry_run else "purged"} for one in ids]
    if dry_run:
        note_dry_run(len(rows), "purge")
    echo_rows(("model", "id", "result"), rows, format)


def _with_trash(session: Worm, names: list[str] | None) -> list[str]:
    """The models to check: the named ones, which must have trash, or all models with trash."""
    for name in chosen_models(session, names) if names else []:
        if not session.schema.model(name).soft_delete:
            raise Invalid(f"{name} has no trash", hint='set "softDelete": true in the schema and push it')
    return [name for name in chosen_models(session, names) if session.schema.model(name).soft_delete]


def _expired(session: Worm, name: str) -> list[str]:
    return [one.id for one in session.collection(name).trash.expired(session.clock.now())]


def _shape(model: str, trashed: JsonObject) -> JsonObject:
    """The row with its model and, unless it is kept forever, when it expires."""
    ttl, deleted = trashed["ttl"], datetime.fromisoformat(str(trashed["deletedAt"]))
    row: JsonObject = {"model": model, **trashed}
    if isinstance(ttl, int) and ttl > 0:
        try:
            row["expiresAt"] = iso_seconds(deleted + timedelta(days=ttl))
        except OverflowError:  # beyond the calendar: practically forever
            return row
    return row
