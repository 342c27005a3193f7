"""`worm log …`: look at a log, check it, repair it, make it small."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, cast

import typer

from worm.cli.log_lines import show_torn, shown
from worm.cli.log_target import Database, LogTarget, open_tools
from worm.cli.options import EndpointUrl
from worm.cli.options import target as shared_target
from worm.cli.output import ReportFormat, count, echo_json, echo_table, printable
from worm.codec.frames import Torn
from worm.codec.strict_json import JsonObject, JsonValue
from worm.errors import Corrupt, Invalid
from worm.journal.tools import CompactReport, LogTools, RepairReport, VerifyReport

EXIT_DIFFERENCES = 1
COLUMNS = ("Records", "Bytes", "Documents", "Committed", "Aborted", "Dangling", "Torn Bytes")

Format = Annotated[ReportFormat, typer.Option("--format", help="How to show the report.")]
Raw = Annotated[bool, typer.Option("--raw", help="The lines as they are stored, with their CRCs.")]

app = typer.Typer(help="Logs: verify, repair, compact and read them.", no_args_is_help=True)


def _tools(
    context: typer.Context, target: str, db: str | None, endpoint_url: str | None, *, for_writing: bool = False
) -> LogTools:
    endpoint_url = shared_target(context, None, endpoint_url).endpoint_url
    return open_tools(target, db, endpoint_url, for_writing=for_writing)


@app.command("verify")
def verify(
    context: typer.Context,
    target: LogTarget,
    db: Database = None,
    format: Format = ReportFormat.table,
    endpoint_url: EndpointUrl = None,
) -> None:
    """Read the whole log, check every record, fold it, and check that its minimal form says the same. Reads only.

    Exit code 9 when the log is damaged; the place is named.
    """
    report = _tools(context, target, db, endpoint_url).verify()
    if format is ReportFormat.json:
        echo_json({"clean": report.is_clean} | _shape(report))
    else:
        _show_verify(report)
    if not report.is_clean:
        damaged = any(one.kind == "log-damaged" for one in report.problems)
        raise typer.Exit(Corrupt.exit_code if damaged else EXIT_DIFFERENCES)


def _show_verify(report: VerifyReport) -> None:
    figures = (report.records, report.size, report.documents, report.committed, report.aborted, report.dangling)
    echo_table(COLUMNS, [[f"{one:,}" for one in (*figures, report.torn)]], right=COLUMNS)
    for problem in report.problems:
        typer.echo(f"{problem.kind}  {printable(problem.key)}: {printable(problem.detail)}")
    typer.echo(count(len(report.problems), "problem") if report.problems else "no problems")


@app.command("repair")
def repair(
    context: typer.Context,
    target: LogTarget,
    db: Database = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run/--no-dry-run", help="Only say what would be put aside (default).")
    ] = True,
    format: Format = ReportFormat.table,
    endpoint_url: EndpointUrl = None,
) -> None:
    """Keep the intact beginning of a damaged log and put the rest aside. Nothing is deleted."""
    report = _tools(context, target, db, endpoint_url, for_writing=not dry_run).repair(dry_run=dry_run)
    if format is ReportFormat.json:
        echo_json({"dryRun": dry_run} | _shape(report))
    elif report.reason is None:
        typer.echo(f"nothing to repair: {count(report.kept, 'record')}")
    else:
        typer.echo(printable(report.reason))
        verb = "would keep" if dry_run else "kept"
        aside = "" if report.side is None else f" in {printable(report.side)}"
        typer.echo(f"{verb} {count(report.kept, 'record')}; {count(report.moved, 'byte')} aside{aside}")
        if dry_run:
            typer.echo("nothing was changed; run it with --no-dry-run")


@app.command("compact")
def compact(
    context: typer.Context,
    target: LogTarget,
    db: Database = None,
    format: Format = ReportFormat.table,
    endpoint_url: EndpointUrl = None,
) -> None:
    """Rewrite the log to its minimal form: the state stays the same, what led to it goes."""
    report = _tools(context, target, db, endpoint_url, for_writing=True).compact()
    if format is ReportFormat.json:
        echo_json(_shape(report))
    else:
        before = f"{count(report.records_before, 'record')}, {count(report.size_before, 'byte')}"
        typer.echo(f"{before} -> {count(report.records_after, 'record')}, {count(report.size_after, 'byte')}")


@app.command("cat")
def cat(
    context: typer.Context,
    target: LogTarget,
    db: Database = None,
    after: Annotated[int | None, typer.Option("--after", metavar="LSN", help="Only records after this one.")] = None,
    ns: Annotated[str | None, typer.Option("--ns", metavar="NAME", help="Only records of this namespace.")] = None,
    op: Annotated[str | None, typer.Option("--op", metavar="OP", help="Only records with this op.")] = None,
    raw: Raw = False,
    endpoint_url: EndpointUrl = None,
) -> None:
    """Print the log, a line for each record: lsn, time, transaction, op, namespace, id, content."""
    for item in _tools(context, target, db, endpoint_url).cat(after=after):
        if isinstance(item, Torn):
            show_torn(item)
        elif ns in (None, item.value.get("ns")) and op in (None, item.value.get("op")):
            typer.echo(shown(item, raw=raw))


@app.command("tail")
def tail(
    context: typer.Context,
    target: LogTarget,
    db: Database = None,
    lines: Annotated[int, typer.Option("--lines", "-n", metavar="N", help="How many records.")] = 10,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what is appended, until Ctrl-C.")] = False,
    raw: Raw = False,
    endpoint_url: EndpointUrl = None,
) -> None:
    """Print the last records of the log."""
    if lines < 0:
        raise Invalid("--lines must not be negative")
    for item in _tools(context, target, db, endpoint_url).tail(lines, follow=follow):
        if isinstance(item, Torn):
            show_torn(item)
        else:
            typer.echo(shown(item, raw=raw))


def _shape(report: VerifyReport | RepairReport | CompactReport) -> JsonObject:
    """A report as JSON, its names in camelCase."""
    return {_camel(name): _json(value) for name, value in asdict(report).items()}


def _json(value: object) -> JsonValue:
    """Problems are the only values that are more than a text or a number."""
    if isinstance(value, tuple):
        return [{_camel(name): cast(JsonValue, member) for name, member in one.items()} for one in value]
    return cast(JsonValue, value)


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.title() for part in rest)
