"""`worm log …`: inspect, check, repair and compact a log. `worm pack`, `worm unpack`: convert the store of a directory
into one file, and back.

Records of a log are printed as lines that people can read and `grep` can search.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from worm.cli.options import Target
from worm.cli.output import GAP, Report, ReportFormat, count, echo, echo_json, echo_table, printable
from worm.clock import iso_millis
from worm.errors import Corrupt, Invalid
from worm.formats import JsonObject, JsonValue, dumps, frames
from worm.log import CommitLogTools, DbKeys, LogTools, databases
from worm.store import Store

if TYPE_CHECKING:
    from worm.log import PackReport

EXIT_DIFFERENCES = 1
COLUMNS = ("Records", "Bytes", "Documents", "Committed", "Aborted", "Dangling", "Torn Bytes")
MAIN = "main"
NONE = "-"
_HEADER = ("lsn", "ts", "txn", "op", "ns", "id")
_BARE = ("doc", "spec", "field")

LogName = Annotated[
    str | None,
    typer.Argument(
        metavar="[NAME]", help="The database that owns the log; without it, the log of the directory --url."
    ),
]
Named = Annotated[str, typer.Argument(metavar="NAME", help="The database that owns the log.")]
LogBranch = Annotated[str, typer.Option("--branch", metavar="NAME", help="The branch of a page store.")]
After = Annotated[
    str | None, typer.Option("--after", metavar="LSN|TIME", help="Only records after this LSN, or after this time.")
]
Raw = Annotated[bool, typer.Option("--raw", help="The lines as they are stored, with their CRCs.")]


def _tools(target: Target, name: str | None, branch: str = "", *, for_writing: bool = False) -> LogTools:
    """The tools for the log of a database, or without a name for the log of a store's directory. To write, a bucket
    must honor write conditions."""
    if name is not None:
        store = target.store(for_writing=for_writing)
        return CommitLogTools(store, _keys(store, name, branch))
    if "://" in target.url and not target.url.startswith("file://"):
        raise Invalid(f"{target.url!r} is not a directory", hint="name a database: `worm log … NAME --url URL`")
    from worm.log import DirectoryTools  # not on Windows, where the log of a bucket can be read

    return DirectoryTools(Path(target.url.removeprefix("file://")))


def _keys(store: Store, name: str, branch: str) -> DbKeys:
    if branch in ("", MAIN):
        return DbKeys(name)
    from worm.pages import PageTools

    return PageTools(store, name).log_keys(branch)


def list_logs(target: Target, format: Report = ReportFormat.table) -> None:
    """List the databases of a bucket and their kinds: a log of documents, a page store, a space."""
    store = target.store()
    rows: list[list[str]] = []
    for name in sorted(databases(store)):
        try:
            root = CommitLogTools(store, name, must_exist=False).root()
            kind = "no root" if root is None else f"{root.kind}, deleted" if root.deleted else root.kind
        except (Corrupt, Invalid) as damage:
            kind = f"damaged: {damage.message}"
        rows.append([name, kind])
    if format is ReportFormat.json:
        echo_json([{"name": name, "kind": kind} for name, kind in rows])
    else:
        echo_table(("Name", "Kind"), rows)


def stat(target: Target, name: Named, branch: LogBranch = "", format: Report = ReportFormat.table) -> None:
    """Show the range of a log, its size, and its newest writer."""
    store = target.store()
    shape = CommitLogTools(store, _keys(store, name, branch), must_exist=False).stat()
    if format is ReportFormat.json:
        echo_json(shape)
    else:
        echo_table(("What", "Value"), [[key, str(value)] for key, value in shape.items()])


def gc(
    target: Target,
    name: Named,
    before: Annotated[str, typer.Option("--before", metavar="LSN|TIME", help="Delete records before this.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be deleted.")] = False,
) -> None:
    """Delete old slots of a log of documents. For a page store or a space, use `worm db gc`, which knows what is
    needed."""
    store = target.store(for_writing=not dry_run)
    done = CommitLogTools(store, name, must_exist=False).collect(before, dry_run=dry_run)
    echo(f"{count(done.deleted, 'slot')}, {count(done.bytes, 'byte')}; the log begins after slot {done.boundary}")
    if dry_run:
        echo("nothing was changed")


def verify(target: Target, name: LogName = None, branch: LogBranch = "", format: Report = ReportFormat.table) -> None:
    """Read the whole log, check every record, fold it, and check that its minimal form gives the same state. Reads
    only.

    Exit code 9 if the log is damaged; the output names the position.
    """
    report = _tools(target, name, branch).verify()
    if format is ReportFormat.json:
        echo_json({"clean": report.is_clean} | _report_shape(asdict(report)))
    else:
        figures = (report.records, report.size, report.documents, report.committed, report.aborted, report.dangling)
        echo_table(COLUMNS, [[f"{one:,}" for one in (*figures, report.torn)]], right=COLUMNS)
        for problem in report.problems:
            echo(f"{problem.kind}  {printable(problem.key)}: {printable(problem.detail)}")
        if report.kept_from > 1:
            echo(f"the log is kept since LSN {report.kept_from}; earlier records are deleted")
        echo(count(len(report.problems), "problem") if report.problems else "no problems")
    if not report.is_clean:
        damaged = any(one.kind == "log-damaged" for one in report.problems)
        raise typer.Exit(Corrupt.exit_code if damaged else EXIT_DIFFERENCES)


def repair(
    target: Target,
    name: LogName = None,
    branch: LogBranch = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run/--no-dry-run", help="Only show what would be set aside (default).")
    ] = True,
    format: Report = ReportFormat.table,
) -> None:
    """Keep the intact beginning of a damaged log and set the rest aside. Nothing is deleted."""
    report = _tools(target, name, branch, for_writing=not dry_run).repair(dry_run=dry_run)
    if format is ReportFormat.json:
        echo_json({"dryRun": dry_run} | _report_shape(asdict(report)))
    elif report.reason is None:
        echo(f"nothing to repair: {count(report.kept, 'record')}")
    else:
        echo(printable(report.reason))
        verb = "would keep" if dry_run else "kept"
        aside = "" if report.side is None else f" in {printable(report.side)}"
        echo(f"{verb} {count(report.kept, 'record')}; {count(report.moved, 'byte')} aside{aside}")
        if dry_run:
            echo("nothing was changed; run it with --no-dry-run")


def compact(target: Target, name: LogName = None, branch: LogBranch = "", format: Report = ReportFormat.table) -> None:
    """Rewrite the log to its minimal form: the state stays the same, the intermediate steps are removed."""
    report = _tools(target, name, branch, for_writing=True).compact()
    if format is ReportFormat.json:
        echo_json(_report_shape(asdict(report)))
    else:
        before = f"{count(report.records_before, 'record')}, {count(report.size_before, 'byte')}"
        echo(f"{before} -> {count(report.records_after, 'record')}, {count(report.size_after, 'byte')}")


def cat(
    target: Target,
    name: LogName = None,
    branch: LogBranch = "",
    after: After = None,
    ns: Annotated[str | None, typer.Option("--ns", metavar="NAME", help="Only records of this namespace.")] = None,
    op: Annotated[str | None, typer.Option("--op", metavar="OP", help="Only records with this op.")] = None,
    raw: Raw = False,
) -> None:
    """Print the log, one line per record: lsn, time, transaction, op, namespace, id, content."""
    tools = _tools(target, name, branch)
    if tools.kept_from > 1:
        echo(f"note: the log is kept since LSN {tools.kept_from}; earlier records are deleted", err=True)
    for item in tools.cat(after=after):
        if isinstance(item, frames.Torn):
            show_torn(item)
        elif ns in (None, item.value.get("ns")) and op in (None, item.value.get("op")):
            echo(item.line if raw else show(item.lsn, item.value))


def tail(
    target: Target,
    name: LogName = None,
    branch: LogBranch = "",
    lines: Annotated[int, typer.Option("--lines", "-n", metavar="N", help="How many records.")] = 10,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep printing new records until Ctrl-C.")] = False,
    raw: Raw = False,
) -> None:
    """Print the last records of the log."""
    if lines < 0:
        raise Invalid("--lines must not be negative")
    for item in _tools(target, name, branch).tail(lines, follow=follow):
        if isinstance(item, frames.Torn):
            show_torn(item)
        else:
            echo(item.line if raw else show(item.lsn, item.value))


def _report_shape(report: Mapping[str, object]) -> JsonObject:
    """A report as JSON, its names in camelCase."""
    return {_camel(name): _json(value) for name, value in report.items()}


def _json(value: object) -> JsonValue:
    """Problems are the only values that are not text or a number."""
    if isinstance(value, tuple):
        return [{_camel(name): cast(JsonValue, member) for name, member in one.items()} for one in value]
    return cast(JsonValue, value)


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.title() for part in rest)


def show(lsn: int, record: JsonObject) -> str:
    """`lsn  time  txn  op  ns  id  content`, with `-` for missing parts."""
    value = _decoded(record)
    rest = {name: member for name, member in value.items() if name not in _HEADER}
    (only,) = rest.values() if len(rest) == 1 and next(iter(rest)) in _BARE else (rest,)
    texts = (
        str(lsn),
        _time(value.get("ts")),
        NONE if "txn" not in value else f"txn={dumps(value['txn']).decode()}",
        _text(value.get("op")),
        _text(value.get("ns")),
        dumps(value["id"]).decode() if "id" in value else NONE,
        _text(only) if isinstance(only, str) or not rest else dumps(only).decode(),
    )
    return printable(GAP.join(texts))


def _decoded(value: JsonObject) -> JsonObject:
    """A readable record of a page store or a space: the page and its contents, or the commit."""
    header: JsonObject = {name: member for name, member in value.items() if name in ("lsn", "ts", "txn", "op")}
    if value.get("op") == "page":
        data = value.get("data")
        size = len(b64decode(data)) if isinstance(data, str) else 0
        content = value.get("text", "deleted" if "delete" in value else f"{size} bytes")
        return {**header, "id": value.get("page"), "doc": content}
    if value.get("op") == "space":
        ns = value.get("branch") or MAIN
        return {**header, "ts": value.get("at"), "ns": ns, "id": value.get("seq"), "doc": value.get("ops", [])}
    return value


def show_torn(torn: frames.Torn) -> None:
    echo(f"note: {torn.size} torn bytes after byte {torn.offset}: an unfinished write", err=True)


def _text(value: JsonValue) -> str:
    return value if isinstance(value, str) and value else NONE


def _time(value: JsonValue) -> str:
    """ISO 8601; a number if it is beyond the calendar."""
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
    """Pack a store into one archive file. The same store gives the same bytes."""
    from worm.log import DirectoryTools

    _show_packed("packed", DirectoryTools.pack(directory, file))


def unpack_archive(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The archive.")],
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A directory that does not exist, or is empty.")],
) -> None:
    """Unpack an archive into a new store. Everything is checked first: the directory gets all of it, or nothing."""
    from worm.log import DirectoryTools

    _show_packed("unpacked", DirectoryTools.unpack(file, directory))


def _show_packed(done: str, report: PackReport) -> None:
    figures = f"{count(report.files, 'file')}, {count(report.size, 'byte')}"
    content = f"{count(report.records, 'record')}, {count(report.documents, 'document')}"
    echo(f"{done} {printable(report.path)}: {figures}; {content}")
