"""`worm verify`: recompute everything derived from the documents, and say what is not as it should be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from worm.cli.options import EndpointUrl, Url, chosen_models, target
from worm.cli.output import ReportFormat, count, echo_json, echo_table, printable
from worm.codec.strict_json import JsonValue
from worm.collections.collection import Collection
from worm.model import Worm
from worm.tables.verify import VerifyReport, verify_collection

EXIT_DIFFERENCES = 1
COLUMNS = ("Model", "Documents", "Entries", "Differences", "Rejected")


def verify(
    context: typer.Context,
    models: Annotated[
        list[str] | None, typer.Argument(metavar="MODEL", help="Models to verify; without one, all.")
    ] = None,
    format: Annotated[ReportFormat, typer.Option("--format", help="How to show the report.")] = ReportFormat.table,
    url: Url = None,
    endpoint_url: EndpointUrl = None,
) -> None:
    """Compare oplogs, manifests, indexes and heads with the documents. Reads only.

    Exit code 1 when there are differences. A document that breaks its schema is rejected, not different.
    """
    session = target(context, url, endpoint_url).connect()
    reports = verify_models(session, chosen_models(session, models))
    if format is ReportFormat.json:
        echo_json(report_shape(reports))
    else:
        show_verify(reports)
    if not all(report.is_clean for report in reports):
        raise typer.Exit(EXIT_DIFFERENCES)


def verify_models(session: Worm, names: Sequence[str]) -> list[VerifyReport]:
    reports = []
    for name in names:
        definition = session.schema.model(name)
        collection = Collection(session.store, session.resolver, name, definition, session.clock, session.ids)
        reports.append(verify_collection(collection))
    return reports


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
    echo_table(COLUMNS, rows, right=COLUMNS[1:])
    for report in reports:
        for key, reason in sorted(report.rejected.items()):
            typer.echo(f"rejected  {printable(key)}: {printable(reason)}")
    for report in reports:
        for found in report.differences:
            typer.echo(f"{found.kind}  {printable(found.key)}: {printable(found.detail)}")
    differences = sum(len(report.differences) for report in reports)
    typer.echo(f"{count(differences, 'difference')}" if differences else "no differences")


def report_shape(reports: Sequence[VerifyReport]) -> JsonValue:
    """The report for scripts. The kinds of differences are listed in docs/cli.md."""
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
            }
            for report in reports
        ],
    }
