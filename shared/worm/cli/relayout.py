"""`worm relayout`: move oplog, snapshots and trash of a bucket to another layout."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated

import typer

from worm.cli.options import EndpointUrl, Url, target
from worm.cli.output import ReportFormat, count, echo_json, echo_table, printable
from worm.codec.strict_json import JsonValue
from worm.collections.collection import Collection
from worm.collections.layout import StorageResolver
from worm.collections.relayout import Relayout, RelayoutReport, Step, layouts, told
from worm.schema import Schema
from worm.schema.definition import StorageDef
from worm.store.base import Store
from worm.tables.verify import verify_collection

EXIT_PROBLEMS = 1
COLUMNS = ("Model", "Directory", "Objects")
OPLOG_KINDS = ("oplog-gap", "oplog-corrupt", "archive-differs")


class LayoutName(StrEnum):
    """Where a directory lies."""

    root = "root"
    collection = "collection"
    inline = "inline"


def relayout(
    context: typer.Context,
    to: Annotated[LayoutName, typer.Option("--to", help="The new layout.")],
    oplog: Annotated[LayoutName | None, typer.Option("--oplog", help="Another layout for oplogs.")] = None,
    snapshots: Annotated[LayoutName | None, typer.Option("--snapshots", help="Another layout for snapshots.")] = None,
    trash: Annotated[LayoutName | None, typer.Option("--trash", help="Another layout for trash.")] = None,
    delete_old: Annotated[
        bool, typer.Option("--delete-old", help="Delete the old objects after their copies were verified.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run/--no-dry-run", help="Only count what would be moved (default).")
    ] = True,
    format: Annotated[ReportFormat, typer.Option("--format", help="How to show the report.")] = ReportFormat.table,
    url: Url = None,
    endpoint_url: EndpointUrl = None,
) -> None:
    """Move oplog, snapshots and trash to another layout, verified. Pause capture first (docs/relayout.md).

    Run it again after an interruption: it goes on. Exit code 1 when the moved oplogs have gaps or damage.
    """
    overrides = {"oplog": oplog, "snapshots": snapshots, "trash": trash}
    wanted = {"layout": to.value} | {name: chosen.value for name, chosen in overrides.items() if chosen is not None}
    storage = StorageDef.model_validate(wanted)
    store = target(context, url, endpoint_url).store(for_writing=not dry_run)
    work = Relayout(store, storage, check=lambda schema: oplog_problems(store, schema), progress=_show_progress)
    report = work.plan() if dry_run else work.run(delete_old=delete_old)
    if format is ReportFormat.json:
        echo_json(_shape(report, dry_run))
    else:
        _show(report, dry_run)
    if report.problems:
        raise typer.Exit(EXIT_PROBLEMS)


def oplog_problems(store: Store, schema: Schema) -> list[str]:
    """Gaps and damage of the oplogs where the schema says that they are. What waits for capture is no problem."""
    resolver = StorageResolver(schema)
    found: list[str] = []
    for name, definition in schema.models.items():
        if definition.oplog:
            differences = verify_collection(Collection(store, resolver, name, definition)).differences
            found += [f"{one.kind}  {one.key}: {one.detail}" for one in differences if one.kind in OPLOG_KINDS]
    return found


def _show_progress(step: Step, number: int) -> None:
    typer.echo(f"{step}: {count(number, 'object')}", err=True)


def _show(report: RelayoutReport, dry_run: bool) -> None:
    if report.is_nothing:
        typer.echo(f"everything lies in the layout {told(report.target)} already")
        return
    rows = [[model, directory, f"{number:,}"] for (model, directory), number in sorted(report.objects.items())]
    echo_table(COLUMNS, rows, right=["Objects"])
    if report.foreign:
        typer.echo(f"{count(report.foreign, 'foreign object')} in these directories will stay where they are")
    if dry_run:
        total = sum(report.objects.values())
        typer.echo(f"would move {count(total, 'object')}, {count(report.size, 'byte')}, to {told(report.target)}")
        typer.echo("nothing was changed; pause capture, then run it with --no-dry-run")
        return
    for line in _done(report):
        typer.echo(line)


def _done(report: RelayoutReport) -> Sequence[str]:
    lines = [
        f"copied {report.copied:,}, there already {report.present:,}, written meanwhile {report.late:,}",
        f"verified {report.verified:,}, changed since {report.superseded:,}, deleted {report.deleted:,}",
    ]
    lines += [printable(problem) for problem in report.problems]
    if report.problems:
        lines.append(f"{count(len(report.problems), 'problem')}: no old object was deleted")
    left = sum(report.objects.values()) + report.late - report.deleted
    if left > 0 and not report.problems:
        lines.append(f"{count(left, 'old object')} left; --delete-old deletes them")
    return lines


def _shape(report: RelayoutReport, dry_run: bool) -> JsonValue:
    objects: list[JsonValue] = [
        {"model": model, "directory": directory, "objects": number}
        for (model, directory), number in sorted(report.objects.items())
    ]
    problems: list[JsonValue] = [*report.problems]
    return {
        "dryRun": dry_run,
        "from": {**layouts(report.source)},
        "to": {**layouts(report.target)},
        "objects": objects,
        "bytes": report.size,
        "foreign": report.foreign,
        "copied": report.copied,
        "present": report.present,
        "late": report.late,
        "withdrawn": report.withdrawn,
        "verified": report.verified,
        "superseded": report.superseded,
        "deleted": report.deleted,
        "problems": problems,
    }
