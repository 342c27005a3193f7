"""`worm push`, `worm import`, `worm relayout`: push a schema file, infer a schema from documents, and move oplog,
snapshots and trash to another layout.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from worm.cli.arguments import checked_output, existing_file
from worm.cli.infer import SAMPLES_MAX, CollectionReport, InferReport, infer_schema
from worm.cli.options import Target
from worm.cli.output import Progress, Report, ReportFormat, count, echo, echo_json, echo_table, printable, progress_bar
from worm.cli.relayout import Relayout, RelayoutReport, Step, layouts, told
from worm.errors import Conflict, Corrupt
from worm.formats import JsonObject, JsonValue, Schema, StorageDef, load_schema
from worm.store import Store, ensure_safe
from worm.tables import verify_collection
from worm.upkeep import ModelPlan, ModelProgress, PushPlan, PushReport, Session, push

EXAMPLES_MAX = 5
EXIT_PROBLEMS = 1
RELAYOUT_COLUMNS = ("Model", "Directory", "Objects")
OPLOG_KINDS = ("oplog-gap", "oplog-corrupt", "archive-differs")


def push_schema(
    target: Target,
    schema: Annotated[Path, typer.Argument(metavar="SCHEMA", help="The schema file, usually schema.json.")],
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Push even if existing documents or their history are left behind, or no longer fit."
        ),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what the push would do.")] = False,
    sample: Annotated[
        int | None,
        typer.Option("--sample", metavar="N", min=1, help="Check only N documents of each model."),
    ] = None,
    adopt: Annotated[
        bool, typer.Option("--adopt/--no-adopt", help="Record and index existing documents (default).")
    ] = True,
    format: Report = ReportFormat.table,
) -> None:
    """Push a schema: show what changes, upload it, and adopt existing documents.

    Exit code 2 if documents would be left behind or would not fit the new schema, unless you pass --force.
    """
    definition = load_schema(existing_file(schema))
    is_json = format is ReportFormat.json
    if dry_run:
        with progress_bar("checking", is_hidden=is_json) as bar:
            plan = PushPlan.of(target.store(), definition, sample=sample, progress=_shown_in(bar))
        _show_dry_run(plan, is_json=is_json)
        return
    store, plans = target.store(for_writing=True), list[PushPlan]()

    def planned(plan: PushPlan) -> None:
        plans.append(plan)
        for line in () if is_json else _alterations(plan):
            echo(line)

    with progress_bar("documents", is_hidden=is_json) as bar:
        options = {"force": force, "adopt": adopt}
        report = push(store, definition, **options, sample=sample, planned=planned, progress=_shown_in(bar))
    if is_json:
        echo_json({"dryRun": False, "plan": plans[0].to_json() if plans else None, **push_shape(report)})
    else:
        show_push(store, definition, report)
    exit_if_damaged(report)


def _shown_in(bar: Progress) -> ModelProgress:
    return lambda model, done, total: bar(done, total)


def _show_dry_run(plan: PushPlan, *, is_json: bool) -> None:
    refusal = plan.refusal()
    if is_json:
        echo_json({"dryRun": True, "needsForce": refusal is not None, "plan": plan.to_json()})
        return
    for line in _plan_lines(plan):
        echo(line)
    echo("nothing would change" if plan.is_nothing else "nothing was changed")
    if refusal is not None:
        echo("the push needs --force")


def _plan_lines(plan: PushPlan) -> Iterator[str]:
    """What a push does, model by model."""
    for one in plan.models:
        if one.change != "same":
            renamed = "" if one.was is None else f"  (was {one.was})"
            place = "  (its documents stay)" if one.change == "removed" else f"  {one.path}"
            yield f"  {one.change:<8} {one.model}{renamed}{place}"
        yield from (f"    {line}" for line in _change_lines(one))
    yield from (f"  left behind: {printable(text)}" for text in plan.stranded)


def _alterations(plan: PushPlan) -> Iterator[str]:
    """What a push does to existing models."""
    for one in plan.models:
        lines = list(_change_lines(one)) if one.change in ("changed", "renamed") else []
        if lines:
            yield f"{one.model}:"
            yield from (f"  {line}" for line in lines)


def _change_lines(one: ModelPlan) -> Iterator[str]:
    for label, names in (
        ("fields added", one.fields_added),
        ("fields removed", one.fields_removed),
        ("fields changed", one.fields_changed),
        ("indexes to build", one.indexes_built),
        ("indexes dropped", one.indexes_dropped),
    ):
        if names:
            yield f"{label}: {printable(', '.join(names))}"
    yield from (f"set: {printable(text)}" for text in one.settings)
    found = one.examined
    if found.source != "nothing":
        place = "rows of the table" if found.source == "table" else "documents"
        yield f"checked {found.checked:,} of {found.documents:,} {place}: {found.misfits:,} would not fit"
    yield from (f"'{example.id}': {printable(example.reason)}" for example in found.examples)
    if found.misfits > len(found.examples):
        yield f"and {found.misfits - len(found.examples):,} more"
    yield from (f"conflict: {printable(text)}" for text in found.conflicts)


def show_push(store: Store, schema: Schema, report: PushReport, *, err: bool = False) -> None:
    """What a push did, in a few lines; with `err`, as a note next to another result."""
    if report.schema_changed:
        echo(f"pushed the schema to {store.url}", err=err)
    else:
        echo(f"{store.url} already has this schema", err=err)
    for word, names in (("added", report.added), ("changed", report.changed), ("removed", report.removed)):
        for name in names:
            place = f"  {schema.models[name].path}" if name in schema.models else "  (its documents stay)"
            echo(f"  {word:<8} {name}{place}", err=err)
    for key in report.sentinels_written:
        echo(f"  sentinel {key}", err=err)
    _show_adopted(report, err=err)


def exit_if_damaged(report: PushReport) -> None:
    """The push is done, but some documents have a damaged history."""
    if any(adopted.damaged for adopted in report.adopted):
        raise typer.Exit(Corrupt.exit_code)


def _show_adopted(report: PushReport, *, err: bool) -> None:
    """What happened to existing documents, if anything did."""
    for adopted in report.adopted:
        is_new = adopted.model in (*report.added, *report.changed)
        if adopted.recorded or adopted.claimed or (is_new and adopted.documents):
            parts = [count(adopted.documents, "document"), f"{adopted.recorded:,} recorded"]
            parts += [] if adopted.rows is None else [f"{adopted.rows:,} in the table"]
            parts += [f"{count(adopted.claimed, 'unique value')} claimed"] if adopted.claimed else []
            echo(f"  adopted  {adopted.model}: {', '.join(parts)}", err=err)
        for key, reason in sorted(adopted.problems.items()):
            echo(f"  left as it is  {printable(key)}: {printable(reason)}", err=err)
        for text in adopted.conflicts:
            echo(f"  conflict  {adopted.model}: {printable(text)}", err=err)


def push_shape(report: PushReport) -> JsonObject:
    return {
        "schemaChanged": report.schema_changed,
        "added": list(report.added),
        "changed": list(report.changed),
        "removed": list(report.removed),
        "sentinels": list(report.sentinels_written),
        "adopted": [
            {
                "model": one.model,
                "documents": one.documents,
                "recorded": one.recorded,
                "rows": one.rows,
                "claimed": one.claimed,
                "conflicts": list(one.conflicts),
                "problems": [{"key": key, "reason": reason} for key, reason in sorted(one.problems.items())],
                "damaged": [*sorted(one.damaged)],
            }
            for one in report.adopted
        ],
    }


def import_documents(
    target: Target,
    prefix: Annotated[str, typer.Option("--prefix", metavar="KEY", help="Only keys with this prefix.")] = "",
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write the schema to this file, not to stdout."),
    ] = None,
    do_push: Annotated[bool, typer.Option("--push", help="Push the inferred schema.")] = False,
    samples: Annotated[
        int, typer.Option("--samples", metavar="N", min=1, help="Number of documents to read per collection.")
    ] = SAMPLES_MAX,
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite the output file; push even if documents are left behind.")
    ] = False,
) -> None:
    """Infer a schema from existing JSON documents. Findings go to stderr, the schema to stdout."""
    if output is not None and checked_output(output).exists() and not force:
        raise Conflict(f"{output} already exists", hint="choose another --output, or pass --force to overwrite it")
    store = target.store()
    inferred = infer_schema(store, prefix, samples_max=samples)
    _show_report(inferred.report)
    if output is not None:
        output.write_text(_pretty(inferred.schema), encoding="utf-8")
        echo(f"wrote {output}", err=True)
    elif not do_push:
        echo(_pretty(inferred.schema), nl=False)
    if do_push:
        ensure_safe(store)
        with progress_bar("documents") as bar:
            report = push(store, inferred.schema, force=force, progress=_shown_in(bar))
        show_push(store, inferred.schema, report, err=True)
        exit_if_damaged(report)


def _pretty(schema: Schema) -> str:
    return json.dumps(json.loads(schema.to_json()), indent=2, ensure_ascii=False) + "\n"


def _show_report(report: InferReport) -> None:
    for collection in report.collections:
        _show_collection(collection)
    if report.skipped:
        _note("  left out", f"{count(report.skipped, 'key')} outside any collection", report.skipped_examples)


def _show_collection(found: CollectionReport) -> None:
    echo(
        f"{found.model}: {found.path}, {found.file}, {count(found.documents, 'document')}, {found.sampled:,} read",
        err=True,
    )
    if found.unreadable:
        reasons = [f"{key} ({reason})" for key, reason in found.unreadable]
        _note("  unreadable", count(len(reasons), "document"), reasons)
    if found.left_out:
        _note("  not declared", f"{count(len(found.left_out), 'field')} without a common type", found.left_out)
    if found.foreign_ids:
        what = f"{count(len(found.foreign_ids), 'document')} whose field id differs from the id in the key"
        _note("  foreign ids", what, found.foreign_ids)


def _note(label: str, what: str, examples: tuple[str, ...] | list[str]) -> None:
    shown = ", ".join(examples[:EXAMPLES_MAX]) + (", …" if len(examples) > EXAMPLES_MAX else "")
    echo(f"{label}: {what}: {shown}", err=True)


class LayoutName(StrEnum):
    """Where a directory lies."""

    root = "root"
    collection = "collection"
    inline = "inline"


def relayout(
    target: Target,
    to: Annotated[LayoutName, typer.Option("--to", help="The new layout.")],
    oplog: Annotated[LayoutName | None, typer.Option("--oplog", help="A different layout for oplogs.")] = None,
    snapshots: Annotated[
        LayoutName | None, typer.Option("--snapshots", help="A different layout for snapshots.")
    ] = None,
    trash: Annotated[LayoutName | None, typer.Option("--trash", help="A different layout for trash.")] = None,
    delete_old: Annotated[
        bool, typer.Option("--delete-old", help="Delete the old objects after their copies are verified.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run/--no-dry-run", help="Only count what would be moved (default).")
    ] = True,
    format: Report = ReportFormat.table,
) -> None:
    """Move oplog, snapshots and trash to another layout, and verify them. Pause capture first (docs/relayout.md).

    Run it again after an interruption: it continues. Exit code 1 if the moved oplogs have gaps or damage.
    """
    overrides = {"oplog": oplog, "snapshots": snapshots, "trash": trash}
    wanted: JsonObject = {name: chosen.value for name, chosen in overrides.items() if chosen is not None}
    storage = StorageDef.of({"layout": to.value, **wanted})
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
    """Gaps and damage of the oplogs at the location that the schema names. Documents that wait for capture are not a
    problem."""
    session = Session(store, schema=schema)
    found: list[str] = []
    for name, definition in schema.models.items():
        if definition.oplog:
            differences = verify_collection(session.collection(name)).differences
            found += [f"{one.kind}  {one.key}: {one.detail}" for one in differences if one.kind in OPLOG_KINDS]
    return found


def _show_progress(step: Step, number: int) -> None:
    echo(f"{step}: {count(number, 'object')}", err=True)


def _show_relayout(report: RelayoutReport, dry_run: bool) -> None:
    if report.is_nothing:
        echo(f"everything is already in the layout {told(report.target)}")
        return
    rows = [[model, directory, f"{number:,}"] for (model, directory), number in sorted(report.objects.items())]
    echo_table(RELAYOUT_COLUMNS, rows, right=["Objects"])
    if report.foreign:
        echo(f"{count(report.foreign, 'foreign object')} in these directories will stay where they are")
    if dry_run:
        total = sum(report.objects.values())
        echo(f"would move {count(total, 'object')}, {count(report.size, 'byte')}, to {told(report.target)}")
        echo("nothing was changed; pause capture, then run it with --no-dry-run")
        return
    for line in _done(report):
        echo(line)


def _done(report: RelayoutReport) -> Sequence[str]:
    lines = [
        f"copied {report.copied:,}, already there {report.present:,}, written in the meantime {report.late:,}",
        f"verified {report.verified:,}, changed since {report.superseded:,}, deleted {report.deleted:,}",
    ]
    lines += [printable(problem) for problem in report.problems]
    if report.problems:
        lines.append(f"{count(len(report.problems), 'problem')}: no old object was deleted")
    left = sum(report.objects.values()) + report.late - report.deleted
    if left > 0 and not report.problems:
        lines.append(f"{count(left, 'old object')} left; pass --delete-old to delete them")
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
