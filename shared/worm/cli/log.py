"""`worm log …`: look at a log, check it, repair it, make it small. `worm pack`, `worm unpack`: the store of a directory
as one file, and back.

Records of a log are printed as lines that people read and `grep` finds things in.
"""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, cast

import typer

from worm.cli.options import EndpointTarget, Target
from worm.cli.output import GAP, Report, ReportFormat, count, echo_json, echo_table, printable
from worm.clock import iso_millis
from worm.codec.frames import Torn
from worm.codec.logs import LogCompactReport, LogLine, LogRepairReport, LogTools, LogVerifyReport
from worm.codec.strict_json import JsonObject, JsonValue, dumps
from worm.errors import Corrupt, Invalid
from worm.journal.pack import PackReport, pack, unpack
from worm.journal.tools import DirectoryTools
from worm.log.tools import CommitLogTools

EXIT_DIFFERENCES = 1
COLUMNS = ("Records", "Bytes", "Documents", "Committed", "Aborted", "Dangling", "Torn Bytes")
NONE = "-"
_HEADER = ("lsn", "ts", "txn", "op", "ns", "id")
_BARE = ("doc", "spec", "field")

Place = Annotated[
    str,
    typer.Argument(metavar="TARGET", help="A store's directory; with --db where the database is: s3://bucket/prefix."),
]
Database = Annotated[str | None, typer.Option("--db", metavar="ID", help="The commit log of this database.")]
Raw = Annotated[bool, typer.Option("--raw", help="The lines as they are stored, with their CRCs.")]


def _tools(target: Target, place: str, db: str | None, *, for_writing: bool = False) -> LogTools:
    """The tools for a store's directory or, with `--db`, for a commit log in a bucket. For writing, a bucket must keep
    write conditions."""
    if db is not None:
        return CommitLogTools(target.overridden(place).store(for_writing=for_writing), db)
    if "://" in place:
        raise Invalid(f"{place!r} is no directory", hint="name the database with --db ID")
    return DirectoryTools(Path(place))


def verify(target: EndpointTarget, place: Place, db: Database = None, format: Report = ReportFormat.table) -> None:
    """Read the whole log, check every record, fold it, and check that its minimal form says the same. Reads only.

    Exit code 9 when the log is damaged; the place is named.
    """
    report = _tools(target, place, db).verify()
    if format is ReportFormat.json:
        echo_json({"clean": report.is_clean} | _report_shape(report))
    else:
        _show_verify(report)
    if not report.is_clean:
        damaged = any(one.kind == "log-damaged" for one in report.problems)
        raise typer.Exit(Corrupt.exit_code if damaged else EXIT_DIFFERENCES)


def _show_verify(report: LogVerifyReport) -> None:
    figures = (report.records, report.size, report.documents, report.committed, report.aborted, report.dangling)
    echo_table(COLUMNS, [[f"{one:,}" for one in (*figures, report.torn)]], right=COLUMNS)
    for problem in report.problems:
        typer.echo(f"{problem.kind}  {printable(problem.key)}: {printable(problem.detail)}")
    typer.echo(count(len(report.problems), "problem") if report.problems else "no problems")


def repair(
    target: EndpointTarget,
    place: Place,
    db: Database = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run/--no-dry-run", help="Only say what would be put aside (default).")
    ] = True,
    format: Report = ReportFormat.table,
) -> None:
    """Keep the intact beginning of a damaged log and put the rest aside. Nothing is deleted."""
    report = _tools(target, place, db, for_writing=not dry_run).repair(dry_run=dry_run)
    if format is ReportFormat.json:
        echo_json({"dryRun": dry_run} | _report_shape(report))
    elif report.reason is None:
        typer.echo(f"nothing to repair: {count(report.kept, 'record')}")
    else:
        typer.echo(printable(report.reason))
        verb = "would keep" if dry_run else "kept"
        aside = "" if report.side is None else f" in {printable(report.side)}"
        typer.echo(f"{verb} {count(report.kept, 'record')}; {count(report.moved, 'byte')} aside{aside}")
        if dry_run:
            typer.echo("nothing was changed; run it with --no-dry-run")


def compact(target: EndpointTarget, place: Place, db: Database = None, format: Report = ReportFormat.table) -> None:
    """Rewrite the log to its minimal form: the state stays the same, what led to it goes."""
    report = _tools(target, place, db, for_writing=True).compact()
    if format is ReportFormat.json:
        echo_json(_report_shape(report))
    else:
        before = f"{count(report.records_before, 'record')}, {count(report.size_before, 'byte')}"
        typer.echo(f"{before} -> {count(report.records_after, 'record')}, {count(report.size_after, 'byte')}")


def cat(
    target: EndpointTarget,
    place: Place,
    db: Database = None,
    after: Annotated[int | None, typer.Option("--after", metavar="LSN", help="Only records after this one.")] = None,
    ns: Annotated[str | None, typer.Option("--ns", metavar="NAME", help="Only records of this namespace.")] = None,
    op: Annotated[str | None, typer.Option("--op", metavar="OP", help="Only records with this op.")] = None,
    raw: Raw = False,
) -> None:
    """Print the log, a line for each record: lsn, time, transaction, op, namespace, id, content."""
    for item in _tools(target, place, db).cat(after=after):
        if isinstance(item, Torn):
            show_torn(item)
        elif ns in (None, item.value.get("ns")) and op in (None, item.value.get("op")):
            typer.echo(shown(item, raw=raw))


def tail(
    target: EndpointTarget,
    place: Place,
    db: Database = None,
    lines: Annotated[int, typer.Option("--lines", "-n", metavar="N", help="How many records.")] = 10,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what is appended, until Ctrl-C.")] = False,
    raw: Raw = False,
) -> None:
    """Print the last records of the log."""
    if lines < 0:
        raise Invalid("--lines must not be negative")
    for item in _tools(target, place, db).tail(lines, follow=follow):
        if isinstance(item, Torn):
            show_torn(item)
        else:
            typer.echo(shown(item, raw=raw))


def _report_shape(report: LogVerifyReport | LogRepairReport | LogCompactReport) -> JsonObject:
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


def shown(item: LogLine, *, raw: bool) -> str | bytes:
    """`lsn  time  txn  op  ns  id  content`, with `-` for what a record has not; raw is the stored line."""
    if raw:
        return item.line
    value = item.value
    rest = {name: member for name, member in value.items() if name not in _HEADER}
    (only,) = rest.values() if len(rest) == 1 and next(iter(rest)) in _BARE else (rest,)
    texts = (
        str(item.lsn),
        _time(value.get("ts")),
        NONE if "txn" not in value else f"txn={dumps(value['txn']).decode()}",
        _text(value.get("op")),
        _text(value.get("ns")),
        dumps(value["id"]).decode() if "id" in value else NONE,
        _text(only) if isinstance(only, str) or not rest else dumps(only).decode(),
    )
    return printable(GAP.join(texts))


def show_torn(torn: Torn) -> None:
    typer.echo(f"note: {torn.size} torn bytes after byte {torn.offset}: a write that was not finished", err=True)


def _text(value: JsonValue) -> str:
    return value if isinstance(value, str) and value else NONE


def _time(value: JsonValue) -> str:
    """ISO 8601; a number where it is beyond the calendar."""
    number = value.get("$date") if isinstance(value, dict) else value
    if not isinstance(number, int):
        return NONE
    try:
        return iso_millis(datetime.fromtimestamp(number // 1000, UTC).replace(microsecond=number % 1000 * 1000))
    except (ValueError, OverflowError, OSError):
        return str(number)


def pack_directory(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The store's directory; it must not be open.")],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The archive to write; it must not exist.")],
) -> None:
    """Write a store into one archive file. The same store gives the same bytes."""
    _show_packed("packed", pack(directory, file))


def unpack_archive(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The archive.")],
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A directory that does not exist, or is empty.")],
) -> None:
    """Make a store of an archive. Everything is checked first: the directory then has all of it, or nothing."""
    _show_packed("unpacked", unpack(file, directory))


def _show_packed(done: str, report: PackReport) -> None:
    figures = f"{count(report.files, 'file')}, {count(report.size, 'byte')}"
    content = f"{count(report.records, 'record')}, {count(report.documents, 'document')}"
    typer.echo(f"{done} {printable(report.path)}: {figures}; {content}")
