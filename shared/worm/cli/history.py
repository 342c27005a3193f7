"""`worm history`, `worm diff`, `worm rollback`, `worm snapshot …`: the past of one document, and going back to it."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from worm.cli.arguments import EntityId, ModelName, SingleId, entity_id
from worm.cli.options import AuthorSession, Session
from worm.cli.output import RowFormat, Rows, cell, echo_document, echo_rows, echo_table
from worm.codec.diff import Diff
from worm.codec.strict_json import JsonValue
from worm.collections.entries import OplogEntry
from worm.schema.fields import SINGLETON_ID

COLUMNS = ("Seq", "Op", "Time", "Actor", "Change")
MEMBERS = ("seq", "op", "ts", "actor", "snapshot", "diff", "absent", "metadata")
DIFF_MEMBERS = ("field", "before", "after")
SNAPSHOT_COLUMNS = ("ts", "size")
NO_FIELD = "(none)"

Seq = Annotated[int, typer.Argument(metavar="SEQ", min=1, help="Number of an entry, as `worm history` shows it.")]


def history(
    session: Session,
    model: ModelName,
    id: SingleId = SINGLETON_ID,
    limit: Annotated[int | None, typer.Option("--limit", metavar="N", min=1, help="Only the newest N entries.")] = None,
    before: Annotated[
        int | None, typer.Option("--before", metavar="SEQ", min=1, help="Only entries before this one.")
    ] = None,
    format: Rows = RowFormat.table,
) -> None:
    """Show the oplog of a document, oldest entry first."""
    chosen = entity_id(session, model, id, "history")
    entries = session.model(model).get_history(chosen, limit=limit, before_seq=before)
    if format is RowFormat.table:
        echo_table(COLUMNS, [_row(entry) for entry in entries], right=["Seq"])
    else:
        echo_rows(MEMBERS, [_shape(entry) for entry in entries], format)


def diff(
    session: Session, model: ModelName, id: EntityId, seq_a: Seq, seq_b: Seq, format: Rows = RowFormat.table
) -> None:
    """Show the fields that differ between the documents after two entries."""
    found = session.model(model).diff_between(entity_id(session, model, id, "diff"), seq_a, seq_b)
    rows = [_sides(name, found) for name in sorted(found.diff)]
    if format is RowFormat.table:
        shown = [[cell(row.get(name, NO_FIELD)) for name in DIFF_MEMBERS] for row in rows]
        echo_table(("Field", f"Seq {seq_a}", f"Seq {seq_b}"), shown)
    else:
        echo_rows(DIFF_MEMBERS, rows, format)


def rollback(
    session: AuthorSession,
    model: ModelName,
    id: EntityId,
    to: Annotated[int, typer.Option("--to", metavar="SEQ", min=1, help="The entry to go back to.")],
    format: Rows = RowFormat.json,
) -> None:
    """Save the document of an earlier entry again. History is not rewritten: this appends an entry."""
    chosen = entity_id(session, model, id, "rollback")
    echo_document(session.model(model).rollback(chosen, to_seq=to), format)


def take_snapshot(
    session: Session, model: ModelName, id: SingleId = SINGLETON_ID, format: Rows = RowFormat.table
) -> None:
    """Keep a full copy of the document as it is now."""
    taken = session.model(model).snapshot(entity_id(session, model, id, "snapshot take"))
    echo_rows((*SNAPSHOT_COLUMNS, "seq"), [taken], format)


def list_snapshots(
    session: Session, model: ModelName, id: SingleId = SINGLETON_ID, format: Rows = RowFormat.table
) -> None:
    """List the snapshots of a document, oldest first."""
    found = session.model(model).list_snapshots(entity_id(session, model, id, "snapshot list"))
    echo_rows(SNAPSHOT_COLUMNS, found, format)


def restore_snapshot(
    session: AuthorSession,
    model: ModelName,
    id: EntityId,
    ts: Annotated[str, typer.Argument(metavar="TS", help="Name of the snapshot, as `worm snapshot list` shows it.")],
    format: Rows = RowFormat.json,
) -> None:
    """Save the document of a snapshot again. History is not rewritten: this appends an entry."""
    chosen = entity_id(session, model, id, "snapshot restore")
    echo_document(session.model(model).restore_snapshot(chosen, ts), format)


def _sides(name: str, found: Diff) -> dict[str, JsonValue]:
    """A field before and after; a side that has no such field lacks the member."""
    sides = zip(("before", "after"), found.diff[name], strict=True)
    return {"field": name, **{side: value for side, value in sides if name not in found.absent[side]}}


def _shape(entry: OplogEntry) -> dict[str, JsonValue]:
    """The entry as it is stored, members in the order of the format."""
    shape: dict[str, JsonValue] = json.loads(entry.to_bytes())
    return {name: shape[name] for name in MEMBERS if name in shape}


def _row(entry: OplogEntry) -> list[str]:
    return [str(entry.seq), entry.op, entry.ts, entry.actor or "--", _change(entry)]


def _change(entry: OplogEntry) -> str:
    if entry.diff is None:
        names = ", ".join(entry.snapshot or {})
        return f"{len(entry.snapshot or {})} fields: {names}"
    absent = entry.absent or {}
    parts = []
    for name, (before, after) in sorted(entry.diff.items()):
        old = NO_FIELD if name in absent.get("before", ()) else cell(before)
        new = NO_FIELD if name in absent.get("after", ()) else cell(after)
        parts.append(f"{name}: {old} → {new}")
    return "; ".join(parts) or "no field changed"
