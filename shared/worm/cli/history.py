"""`worm history`, `worm diff`, `worm rollback`, `worm snapshot …`: the past of one document, and going back to it.
Without an id, `worm history` searches all histories. `worm restore` restores whole models."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from worm.cli.arguments import EntityId, ModelName, Models, SingleId, complete_model, entity_id
from worm.cli.options import AuthorSession, AuthorSessionOnBranch, Session, SessionOnBranch
from worm.cli.output import (
    RowFormat,
    Rows,
    cell,
    count,
    echo,
    echo_document,
    echo_rows,
    echo_table,
    note_dry_run,
    progress_bar,
)
from worm.collections import Diff, OplogEntry
from worm.errors import Invalid, show
from worm.formats import SINGLETON_ID, JsonValue, loads
from worm.sdk import CHANGED_MAX, NO_FIELD, change_text

if TYPE_CHECKING:
    from worm.sdk import HistoryEntry, HistoryRows, Worm

COLUMNS = ("Seq", "Op", "Time", "Actor", "Reason", "Change")
FOUND_COLUMNS = ("Model", "Id", *COLUMNS)
LIMIT = 100
MEMBERS = ("seq", "op", "ts", "actor", "snapshot", "diff", "absent", "metadata")
DIFF_MEMBERS = ("field", "before", "after")
SNAPSHOT_COLUMNS = ("ts", "size")
RESTORED = ("model", "id", "result", "fields", "reason")

Seq = Annotated[int, typer.Argument(metavar="SEQ", min=1, help="Number of an entry, as `worm history` shows it.")]


class EntryOp(StrEnum):
    """The kinds of entries, for `--op`."""

    create = "create"
    update = "update"
    delete = "delete"
    restore = "restore"


def history(
    session: SessionOnBranch,
    model: Annotated[
        str | None, typer.Argument(metavar="[MODEL]", help="Name of the model.", autocompletion=complete_model)
    ] = None,
    id: SingleId = SINGLETON_ID,
    actor: Annotated[
        str | None, typer.Option("--actor", metavar="NAME", help="Search: only changes by this actor.")
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help="Search: only entries since this time.")
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", metavar="TIME", help="Search: only entries until this time.")
    ] = None,
    op: Annotated[EntryOp | None, typer.Option("--op", help="Search: only entries of this kind.")] = None,
    reason: Annotated[
        str | None, typer.Option("--reason", metavar="TEXT", help="Search: only entries whose reason contains this.")
    ] = None,
    metadata: Annotated[
        list[str] | None,
        typer.Option(
            "--metadata", metavar="NAME=VALUE", help="Search: only entries with this metadata. May be repeated."
        ),
    ] = None,
    cursor: Annotated[
        str | None, typer.Option("--cursor", metavar="CURSOR", help="Search: continue after the page with this cursor.")
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", metavar="N", min=1, help="Only the newest N entries.")] = None,
    before: Annotated[
        int | None,
        typer.Option("--before", metavar="SEQ", min=1, help="One document: only entries before this one."),
    ] = None,
    format: Rows = RowFormat.table,
) -> None:
    """Show the history of a document, or search the histories of all documents.

    For one document, the oldest entry is first. Without an id, you get all entries that match, newest first.
    """
    asked = {"actor": actor, "since": since, "until": until, "op": op, "reason": reason, "cursor": cursor}
    given = [f"--{name}" for name, value in {**asked, "metadata": metadata}.items() if value is not None]
    is_single = id != SINGLETON_ID or (model is not None and not given and session.schema.model(model).is_singleton)
    if is_single and given:
        hint = "leave out either the id or the option"
        raise Invalid(f"{given[0]} searches the histories of all documents", hint=hint)
    if not is_single and before is not None:
        raise Invalid("--before needs the id of a document", hint="in a search, use --cursor or --until")
    if is_single:
        _show_one(session, model or "", id, limit, before, format)
        return
    wanted = _metadata(metadata or [])
    texts = {name: None if value is None else str(value) for name, value in asked.items()}
    _show_found(session.history(model=model, metadata=wanted, limit=limit or LIMIT, **texts), format)


def _show_one(session: Worm, model: str, id: str, limit: int | None, before: int | None, format: RowFormat) -> None:
    entries = session.model(model).get_history(id, limit=limit, before_seq=before)
    if format is RowFormat.table:
        echo_table(COLUMNS, [_row(entry) for entry in entries], right=["Seq"])
    else:
        echo_rows(MEMBERS, [_shape(entry) for entry in entries], format)


def _show_found(found: HistoryRows[HistoryEntry], format: RowFormat) -> None:
    """Prints the entries; on stderr, how to continue, and what could not be read."""
    if format is RowFormat.table:
        echo_table(FOUND_COLUMNS, [[one.model, one.id, *_row(one)] for one in found], right=["Seq"])
    else:
        echo_rows(
            ("model", "id", *MEMBERS), [{"model": one.model, "id": one.id, **_shape(one)} for one in found], format
        )
    if found.cursor is not None:
        echo(f"worm: note: more entries follow: --cursor {found.cursor}", err=True)
    for damage in found.damages:
        echo(f"worm: {damage.for_shell()}", err=True)
    if found.damages:
        raise typer.Exit(found.damages[0].exit_code)


def _metadata(texts: list[str]) -> dict[str, JsonValue]:
    """`NAME=VALUE`: the value is parsed as JSON if possible, else it is text."""
    wanted: dict[str, JsonValue] = {}
    for text in texts:
        name, is_pair, value = text.partition("=")
        if not is_pair or not name:
            raise Invalid(
                f"{show(text)} is not of the form NAME=VALUE", path="--metadata", hint="write --metadata job=7"
            )
        try:
            wanted[name] = loads(value.encode())
        except Invalid:
            wanted[name] = value
    return wanted


def diff(
    session: SessionOnBranch, model: ModelName, id: EntityId, seq_a: Seq, seq_b: Seq, format: Rows = RowFormat.table
) -> None:
    """Show the fields that differ between two entries of a document's history."""
    found = session.model(model).diff_between(entity_id(session, model, id, "diff"), seq_a, seq_b)
    rows = [_sides(name, found) for name in sorted(found.diff)]
    if format is RowFormat.table:
        cells = [[cell(row.get(name, NO_FIELD)) for name in DIFF_MEMBERS] for row in rows]
        echo_table(("Field", f"Seq {seq_a}", f"Seq {seq_b}"), cells)
    else:
        echo_rows(DIFF_MEMBERS, rows, format)


def rollback(
    session: AuthorSessionOnBranch,
    model: ModelName,
    id: EntityId,
    to: Annotated[int, typer.Option("--to", metavar="SEQ", min=1, help="The entry to go back to.")],
    format: Rows = RowFormat.json,
) -> None:
    """Save the document of an earlier entry again. History is not rewritten: this appends an entry."""
    chosen = entity_id(session, model, id, "rollback")
    echo_document(session.model(model).rollback(chosen, to_seq=to), format)


def restore(
    session: AuthorSessionOnBranch,
    at: Annotated[str, typer.Option("--at", metavar="COMMIT|TIME", help="A time, or a commit of the models' space.")],
    models: Models = None,
    max_changed: Annotated[
        int | None,
        typer.Option(
            "--max-changed", metavar="N", min=0, help="Fail if more documents have changed since.  [default: 10,000]"
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run/--no-dry-run", help="Only show what would change (default).")
    ] = True,
    format: Rows = RowFormat.table,
) -> None:
    """Restore whole models to a moment, each document by a save with history. Run it again if it was interrupted."""
    most = CHANGED_MAX if max_changed is None else max_changed
    with progress_bar("Restoring", is_hidden=dry_run or format is not RowFormat.table) as step:
        report = session.restore(at=at, models=models or None, dry_run=dry_run, max_changed=most, progress=step)
    if dry_run:
        note_dry_run(len(report.changes), "restore")
    rows: list[dict[str, JsonValue]] = []
    for one in report.changes:
        why = {} if one.error is None else {"result": "failed", "reason": " ".join(one.error.for_shell().split())}
        rows.append({"model": one.model, "id": one.id, "result": one.what, "fields": list(one.fields), **why})
    echo_rows(RESTORED if report.failed else RESTORED[:-1], rows, format)
    if report.failed:
        echo(f"worm: {len(report.failed):,} of {count(len(rows), 'document')} failed", err=True)
        raise typer.Exit(next(one.error.exit_code for one in report.failed if one.error is not None))


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
    """A field before and after; a side without the field lacks the member."""
    sides = zip(("before", "after"), found.diff[name], strict=True)
    return {"field": name, **{side: value for side, value in sides if name not in found.absent[side]}}


def _shape(entry: OplogEntry) -> dict[str, JsonValue]:
    """The entry as it is stored, members in the order of the format."""
    shape: dict[str, JsonValue] = json.loads(entry.to_bytes())
    return {name: shape[name] for name in MEMBERS if name in shape}


def _row(entry: OplogEntry) -> list[str]:
    return [str(entry.seq), entry.op, entry.ts, entry.actor or "--", entry.reason or "--", change_text(entry, cell)]
