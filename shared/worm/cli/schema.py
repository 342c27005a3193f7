"""`worm push`, `worm import`, `worm relayout`: make a schema file the bucket's schema, infer one from documents, and
move oplog, snapshots and trash to another layout."""

from __future__ import annotations

import json
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from worm.cli.arguments import checked_output, existing_file
from worm.cli.options import Target
from worm.cli.output import Report, ReportFormat, count, echo_json, echo_table, printable
from worm.codec.strict_json import JsonValue
from worm.collections.infer import SAMPLES_MAX, CollectionReport, InferReport, infer_schema
from worm.collections.push import PushReport
from worm.collections.relayout import Relayout, RelayoutReport, Step, layouts, told
from worm.errors import Conflict
from worm.model import push
from worm.schema import Schema, load_schema
from worm.schema.definition import StorageDef
from worm.session import Session
from worm.store.base import Store
from worm.store.probe import ensure_safe
from worm.tables.verify import verify_collection

EXAMPLES_MAX = 5
EXIT_PROBLEMS = 1
RELAYOUT_COLUMNS = ("Model", "Directory", "Objects")
OPLOG_KINDS = ("oplog-gap", "oplog-corrupt", "archive-differs")


def push_schema(
    target: Target,
    schema: Annotated[Path, typer.Argument(metavar="SCHEMA", help="The schema file, usually schema.json.")],
    force: Annotated[
        bool, typer.Option("--force", help="Push even if existing documents or their history are left behind.")
    ] = False,
) -> None:
    """Upload a schema and write the sentinels that describe the bucket and its collections."""
    definition = load_schema(existing_file(schema))
    store = target.store(for_writing=True)
    show_push(store, definition, push(store, definition, force=force))


def show_push(store: Store, schema: Schema, report: PushReport, *, err: bool = False) -> None:
    """What a push did, in a few lines; with `err` as a note beside another result."""
    if report.schema_changed:
        typer.echo(f"pushed the schema to {store.url}", err=err)
    else:
        typer.echo(f"{store.url} has this schema already", err=err)
    for word, names in (("added", report.added), ("changed", report.changed), ("removed", report.removed)):
        for name in names:
            place = f"  {schema.models[name].path}" if name in schema.models else "  (its documents stay)"
            typer.echo(f"  {word:<8} {name}{place}", err=err)
    for key in report.sentinels_written:
        typer.echo(f"  sentinel {key}", err=err)


def import_documents(
    target: Target,
    prefix: Annotated[str, typer.Option("--prefix", metavar="KEY", help="Look only at keys that start so.")] = "",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write the schema here, not to stdout.")
    ] = None,
    do_push: Annotated[bool, typer.Option("--push", help="Push the inferred schema at once.")] = False,
    samples: Annotated[
        int, typer.Option("--samples", metavar="N", min=1, help="Documents read of each collection.")
    ] = SAMPLES_MAX,
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite the output file; push even if documents are left behind.")
    ] = False,
) -> None:
    """Infer a schema from existing JSON documents. The findings go to stderr, the schema to stdout."""
    if output is not None and checked_output(output).exists() and not force:
        raise Conflict(f"{output} exists already", hint="choose another --output, or --force to overwrite it")
    store = target.store()
    inferred = infer_schema(store, prefix, samples_max=samples)
    _show_report(inferred.report)
    if output is not None:
        output.write_text(_pretty(inferred.schema), encoding="utf-8")
        typer.echo(f"wrote {output}", err=True)
    elif not do_push:
        typer.echo(_pretty(inferred.schema), nl=False)
    if do_push:
        ensure_safe(store)
        show_push(store, inferred.schema, push(store, inferred.schema, force=force), err=True)


def _pretty(schema: Schema) -> str:
    return json.dumps(json.loads(schema.to_json()), indent=2, ensure_ascii=False) + "\n"


def _show_report(report: InferReport) -> None:
    for collection in report.collections:
        _show_collection(collection)
    if report.skipped:
        _note("  left out", f"{count(report.skipped, 'key')} that belong to no collection", report.skipped_examples)


def _show_collection(found: CollectionReport) -> None:
    typer.echo(
        f"{found.model}: {found.path}, {found.file}, {count(found.documents, 'document')}, {found.sampled:,} read",
        err=True,
    )
    if found.unreadable:
        reasons = [f"{key} ({reason})" for key, reason in found.unreadable]
        _note("  unreadable", count(len(reasons), "document"), reasons)
    if found.left_out:
        _note("  not declared", f"{count(len(found.left_out), 'field')} without a common type", found.left_out)
    if found.foreign_ids:
        what = f"{count(len(found.foreign_ids), 'document')} whose field id is not the id of the key"
        _note("  foreign ids", what, found.foreign_ids)


def _note(label: str, what: str, examples: tuple[str, ...] | list[str]) -> None:
    shown = ", ".join(examples[:EXAMPLES_MAX]) + (", …" if len(examples) > EXAMPLES_MAX else "")
    typer.echo(f"{label}: {what}: {shown}", err=True)


class LayoutName(StrEnum):
    """Where a directory lies."""

    root = "root"
    collection = "collection"
    inline = "inline"


def relayout(
    target: Target,
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
    format: Report = ReportFormat.table,
) -> None:
    """Move oplog, snapshots and trash to another layout, verified. Pause capture first (docs/relayout.md).

    Run it again after an interruption: it goes on. Exit code 1 when the moved oplogs have gaps or damage.
    """
    overrides = {"oplog": oplog, "snapshots": snapshots, "trash": trash}
    wanted = {"layout": to.value} | {name: chosen.value for name, chosen in overrides.items() if chosen is not None}
    storage = StorageDef.model_validate(wanted)
    store = target.store(for_writing=not dry_run)
    work = Relayout(store, storage, check=lambda schema: oplog_problems(store, schema), progress=_show_progress)
    report = work.plan() if dry_run else work.run(delete_old=delete_old)
    if format is ReportFormat.json:
        echo_json(_relayout_shape(report, dry_run))
    else:
        _show_relayout(report, dry_run)
    if report.problems:
        raise typer.Exit(EXIT_PROBLEMS)


def oplog_problems(store: Store, schema: Schema) -> list[str]:
    """Gaps and damage of the oplogs where the schema says that they are. What waits for capture is no problem."""
    session = Session(store, schema=schema)
    found: list[str] = []
    for name, definition in schema.models.items():
        if definition.oplog:
            differences = verify_collection(session.collection(name)).differences
            found += [f"{one.kind}  {one.key}: {one.detail}" for one in differences if one.kind in OPLOG_KINDS]
    return found


def _show_progress(step: Step, number: int) -> None:
    typer.echo(f"{step}: {count(number, 'object')}", err=True)


def _show_relayout(report: RelayoutReport, dry_run: bool) -> None:
    if report.is_nothing:
        typer.echo(f"everything lies in the layout {told(report.target)} already")
        return
    rows = [[model, directory, f"{number:,}"] for (model, directory), number in sorted(report.objects.items())]
    echo_table(RELAYOUT_COLUMNS, rows, right=["Objects"])
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


def _relayout_shape(report: RelayoutReport, dry_run: bool) -> JsonValue:
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
