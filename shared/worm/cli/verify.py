"""`worm verify`, `worm repair`, `worm prune`: recompute all derived data from the documents; report differences, or
repair them; and remove expired data.

`repair` also records changes that no event reported. It is safe while workers run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from worm.cli.arguments import chosen_models
from worm.cli.options import Session
from worm.cli.output import Report, ReportFormat, count, echo, echo_json, echo_table, printable, progress_bar
from worm.errors import Corrupt, Invalid, WormError
from worm.formats import JsonValue
from worm.store import irregular_files
from worm.tables import VerifyReport
from worm.upkeep import PurgeReport, Unseen, put_aside, record_verify, repair_model, verify_model

EXIT_DIFFERENCES = 1
VERIFY_COLUMNS = ("Model", "Documents", "Entries", "Differences", "Rejected")
PRUNE_COLUMNS = ("Model", "Trash", "Snapshots", "Table Files")
REPAIR_COLUMNS = ("Model", "Looked At", "Recorded", "Rows")


def verify(
    session: Session,
    models: Annotated[
        list[str] | None, typer.Argument(metavar="MODEL", help="Models to verify; all if you name none.")
    ] = None,
    record: Annotated[
        bool, typer.Option("--record", help="Record the result in the bucket, for `worm doctor`.")
    ] = False,
    format: Report = ReportFormat.table,
) -> None:
    """Compare oplogs, manifests, indexes and heads with the documents. Reads only, unless you pass --record.

    Exit code 1 if there are differences. A document that breaks its schema counts as rejected, not as a difference; one
    that was valid when it was written is only mentioned. An upload that is not a document is a warning, and so is
    anything in a directory that is not a regular file.
    """
    if record and models:
        raise Invalid("--record needs all models", hint="leave out the names, or leave out --record")
    names = chosen_models(session, models)
    reports = []
    for name in names:
        with progress_bar(f"verifying {name}", is_hidden=format is ReportFormat.json) as bar:
            reports.append(verify_model(session, name, bar))
    unseen = [Unseen.of(session, name) for name in names]
    if format is ReportFormat.json:
        echo_json(report_shape(reports, unseen, irregular_files(session.store)))
    else:
        show_unseen(unseen)
        for path in irregular_files(session.store):
            echo(f"worm: warning: irregular  {printable(path)}: not a regular file, so not a document", err=True)
        show_verify(reports)
    if record:
        record_verify(session, reports)
    if not all(report.is_clean for report in reports):
        raise typer.Exit(EXIT_DIFFERENCES)


def show_verify(reports: Sequence[VerifyReport]) -> None:
    rows = [
        [
            report.model,
            f"{report.documents:,}",
            f"{report.entries:,}",
            f"{len(report.differences):,}",
            f"{len(report.rejected):,}",
        ]
        for report in reports
    ]
    echo_table(VERIFY_COLUMNS, rows, right=VERIFY_COLUMNS[1:])
    for report in reports:
        for key, reason in sorted(report.rejected.items()):
            echo(f"rejected  {printable(key)}: {printable(reason)}")
        for key, reason in sorted(report.outgrown.items()):
            echo(f"outgrown  {printable(key)}: no longer fits the schema: {printable(reason)}")
        for key, reason in sorted(report.kept.items()):
            echo(f"kept  {printable(key)}: {printable(reason)}")
    for report in reports:
        for found in report.differences:
            echo(f"{found.kind}  {printable(found.key)}: {printable(found.detail)}")
    differences = sum(len(report.differences) for report in reports)
    echo(f"{count(differences, 'difference')}" if differences else "no differences")


def show_unseen(unseen: Sequence[Unseen]) -> None:
    """Warnings on stderr: the stored data is fine."""
    for one in unseen:
        for key, reason in one.first:
            echo(f"worm: warning: unseen  {printable(key)}: {printable(reason)}", err=True)
        if one.count > len(one.first):
            echo(f"worm: warning: {count(one.count, 'unseen upload')} of {one.model} in all", err=True)


def report_shape(
    reports: Sequence[VerifyReport], unseen: Sequence[Unseen] = (), irregular: Sequence[str] = ()
) -> JsonValue:
    """The report for scripts. The kinds of differences are listed in docs/cli.md."""
    by_model = {one.model: one for one in unseen}
    return {
        "clean": all(report.is_clean for report in reports),
        "models": [
            {
                "model": report.model,
                "documents": report.documents,
                "entries": report.entries,
                "differences": [
                    {"kind": found.kind, "key": found.key, "detail": found.detail} for found in report.differences
                ],
                "rejected": [{"key": key, "reason": reason} for key, reason in sorted(report.rejected.items())],
                "outgrown": [{"key": key, "reason": reason} for key, reason in sorted(report.outgrown.items())],
                "kept": [{"key": key, "reason": reason} for key, reason in sorted(report.kept.items())],
                "unseen": _unseen_shape(by_model.get(report.model)),
            }
            for report in reports
        ],
        "irregular": list(irregular),
    }


def _unseen_shape(unseen: Unseen | None) -> JsonValue:
    if unseen is None:
        return {"count": 0, "first": []}
    return {"count": unseen.count, "first": [{"key": key, "reason": reason} for key, reason in unseen.first]}


def repair(
    session: Session,
    models: Annotated[
        list[str] | None, typer.Argument(metavar="MODEL", help="Models to repair; all if you name none.")
    ] = None,
    set_aside: Annotated[
        list[str] | None,
        typer.Option(
            "--set-aside", metavar="KEY", help="First move this object out of its oplog, if `worm why` says so."
        ),
    ] = None,
) -> None:
    """Record changes that have no oplog entry, then rebuild time marks, manifests, indexes, heads and claims.

    Existing oplog entries are never changed, and gaps between them never filled. Documents are changed only if their
    model is in a space and its log is ahead of them. Run `worm verify` to see what is left. A document with a damaged
    history is listed, and everything else is repaired; the exit code is then 9.
    """
    names = chosen_models(session, models)
    session.ensure_safe_store()
    for key in set_aside or []:
        echo(f"set aside  {printable(key)}: now {printable(put_aside(session, key))}")
    rows, problems, code = [], dict[str, str](), 0
    for name in names:
        try:
            with progress_bar(f"repairing {name}") as bar:
                report = repair_model(session, name, bar)
        except WormError as error:  # one broken model must not stop the others
            problems[error.key or name] = f"{name} could not be repaired: {error.for_shell()}"
            code = code or error.exit_code
            continue
        problems.update(report.problems)
        code = code or (Corrupt.exit_code if report.damaged else 0)
        shown = "--" if report.rows is None else f"{report.rows:,}"
        rows.append([name, f"{report.listed:,}", f"{report.recorded:,}", shown])
    echo_table(REPAIR_COLUMNS, rows, right=REPAIR_COLUMNS[1:])
    for key, reason in sorted(problems.items()):
        echo(f"left as it is  {printable(key)}: {printable(reason)}")
    if code:
        raise typer.Exit(code)


def prune(
    session: Session,
    models: Annotated[
        list[str] | None, typer.Argument(metavar="MODEL", help="Models to prune; all if you name none.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run/--no-dry-run", help="Only show what would be removed (default).")
    ] = True,
    format: Report = ReportFormat.table,
) -> None:
    """Remove expired trash, snapshots beyond maxAge and maxCount, and replaced table files, as `purge` does.

    Exit code 1 if something could not be removed.
    """
    reports = session.prune(chosen_models(session, models) if models else None, dry_run=dry_run)
    if format is ReportFormat.json:
        echo_json(_prune_shape(reports, dry_run))
    else:
        rows = [[one.model, *(f"{each:,}" for each in _removed(one))] for one in reports]
        echo_table(PRUNE_COLUMNS, rows, right=PRUNE_COLUMNS[1:])
        for one in reports:
            for name, reason in sorted(one.problems.items()):
                echo(f"left as it is  {printable(name)}: {printable(reason)}")
        if dry_run and any(any(_removed(one)) for one in reports):
            echo("nothing was removed; pass --no-dry-run to remove it")
        elif dry_run:
            echo("there is nothing to remove")
    if any(one.problems for one in reports):
        raise typer.Exit(EXIT_DIFFERENCES)


def _removed(report: PurgeReport) -> tuple[int, int, int]:
    return len(report.purged), len(report.pruned), report.table_files


def _prune_shape(reports: Sequence[PurgeReport], dry_run: bool) -> JsonValue:
    return {
        "dryRun": dry_run,
        "models": [
            {
                "model": one.model,
                "trash": list(one.purged),
                "snapshots": list(one.pruned),
                "tableFiles": one.table_files,
                "problems": [{"key": key, "reason": reason} for key, reason in sorted(one.problems.items())],
            }
            for one in reports
        ],
    }
