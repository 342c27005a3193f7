"""`worm token …`: create, list and revoke read tokens of the HTTP API."""

from __future__ import annotations

from typing import Annotated

import typer

from worm.api import tokens
from worm.cli.arguments import Models, chosen_models
from worm.cli.options import Session, Target
from worm.cli.output import RowFormat, Rows, echo, echo_rows, printable
from worm.clock import SystemClock, iso_seconds
from worm.formats import JsonObject, JsonValue

COLUMNS = ("id", "state", "expiresAt", "models", "createdAt", "createdBy", "note")
UNKNOWN = {"models": "all", "createdBy": "--", "note": "--"}


def create(
    session: Session,
    models: Models = None,
    days: Annotated[
        int, typer.Option("--days", metavar="N", min=1, max=tokens.DAYS_MAX, help="The token expires after N days.")
    ] = tokens.DAYS,
    note: Annotated[str | None, typer.Option("--note", metavar="TEXT", help="Who the token is for.")] = None,
) -> None:
    """Create a token for reading these models, or all. It is shown once; the bucket keeps a hash."""
    chosen = chosen_models(session, models) if models else None
    session.ensure_safe_store()
    actor = session.settings.actor
    token, text = tokens.create_token(session.store, session.ids, days=days, models=chosen, note=note, actor=actor)
    echo(text)
    about = "all models" if chosen is None else ", ".join(chosen)
    echo(f"worm: token {token.id} reads {about} until {iso_seconds(token.expires_at)}; it is shown only now", err=True)


def list_all(target: Target, format: Rows = RowFormat.table) -> None:
    """List the tokens: whether each is valid, what it can read, and who it is for."""
    now = SystemClock().now()
    rows = [_row(one, one.state(now)) for one in tokens.list_tokens(target.store())]
    if format is RowFormat.table:  # for people: "all" and "--"
        rows = [{**row, **{name: text for name, text in UNKNOWN.items() if row[name] is None}} for row in rows]
    echo_rows(COLUMNS, rows, format)


def revoke(
    target: Target,
    id: Annotated[str, typer.Argument(metavar="ID", help="Id of the token, as `worm token list` shows it.")],
) -> None:
    """Revoke a token. A process that has just checked it may accept it for another 30 seconds."""
    found = tokens.revoke_token(target.store(for_writing=True), id, SystemClock())
    echo(f"revoked {printable(found.id)}")


def _row(token: tokens.Token, state: str) -> JsonObject:
    return {
        "id": token.id,
        "state": state,
        "expiresAt": iso_seconds(token.expires_at),
        "models": None if token.models is None else list[JsonValue](sorted(token.models)),
        "createdAt": iso_seconds(token.created_at),
        "createdBy": token.created_by,
        "note": token.note,
    }
