"""`worm history`: what happened to one document."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from worm.cli.options import EndpointUrl, Url, target
from worm.cli.output import EntryFormat, cell, echo_json, echo_json_lines, echo_table
from worm.codec.strict_json import JsonValue
from worm.collections.entries import OplogEntry
from worm.collections.ids import SINGLETON_ID
from worm.errors import Invalid

COLUMNS = ("Seq", "Op", "Time", "Actor", "Change")


def history(
    context: typer.Context,
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Name of the model.")],
    id: Annotated[str, typer.Argument(metavar="ID", help="Id of the document; a singleton needs none.")] = SINGLETON_ID,
    limit: Annotated[int | None, typer.Option("--limit", metavar="N", min=1, help="Only the newest N entries.")] = None,
    format: Annotated[EntryFormat, typer.Option("--format", help="How to show it.")] = EntryFormat.table,
    url: Url = None,
    endpoint_url: EndpointUrl = None,
) -> None:
    """Show the oplog of a document, oldest entry first."""
    session = target(context, url, endpoint_url).connect()
    if id == SINGLETON_ID and not session.schema.model(model).is_singleton:
        raise Invalid(f"{model} has many documents", hint=f"name one: worm history {model} ID")
    entries = session.model(model).get_history(id, limit=limit)
    if format is EntryFormat.table:
        echo_table(COLUMNS, [_row(entry) for entry in entries], right=["Seq"])
    elif format is EntryFormat.json:
        echo_json([_shape(entry) for entry in entries])
    else:
        echo_json_lines(_shape(entry) for entry in entries)


def _shape(entry: OplogEntry) -> JsonValue:
    """The entry as it is stored, members in the order of the format."""
    shape: dict[str, JsonValue] = json.loads(entry.to_bytes())
    order = ("seq", "op", "ts", "actor", "snapshot", "diff", "absent", "metadata")
    return {name: shape[name] for name in order if name in shape}


def _row(entry: OplogEntry) -> list[str]:
    return [str(entry.seq), entry.op, entry.ts, entry.actor or "--", _change(entry)]


def _change(entry: OplogEntry) -> str:
    if entry.diff is None:
        names = ", ".join(entry.snapshot or {})
        return f"{len(entry.snapshot or {})} fields: {names}"
    absent = entry.absent or {}
    parts = []
    for name, (before, after) in sorted(entry.diff.items()):
        old = "(none)" if name in absent.get("before", ()) else cell(before)
        new = "(none)" if name in absent.get("after", ()) else cell(after)
        parts.append(f"{name}: {old} → {new}")
    return "; ".join(parts) or "no field changed"
