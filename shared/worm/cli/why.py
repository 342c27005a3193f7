"""`worm why`: what happened to an upload, where it stopped, and what to do; or what an internal object is."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from worm.cli.options import Target
from worm.cli.output import Report, ReportFormat, count, echo, echo_json, printable, size
from worm.clock import iso_seconds
from worm.sdk import Worm
from worm.upkeep import Verdict, Why, explain_key

EXIT_NOT_RECORDED = 1
WIDTH = 13
UNTOLD = "not checked: name the queue with --dlq or WORM_DLQ_URL"
FINE = (Verdict.RECORDED, Verdict.SYSTEM, Verdict.DELETED)


def why(
    target: Target,
    key: Annotated[str, typer.Argument(metavar="KEY", help="Key of an object, its s3:// URL, or the path of a file.")],
    dlq: Annotated[
        str | None, typer.Option("--dlq", metavar="URL", help="Look for dead letters in this SQS queue.")
    ] = None,
    format: Report = ReportFormat.table,
) -> None:
    """Explain what happened to an upload: its model, history entry and table row, or why it has none.

    For an internal object (under .oplog/, .worm.index/, …) it says what it is, what it belongs to, and whether it is
    healthy. Reads only, and only a few objects. Exit code 1 unless the upload, or its deletion, is recorded, or the
    internal object is healthy.
    """
    found = _explained(target.connect(), key, dlq, target.endpoint_url)
    if format is ReportFormat.json:
        echo_json(found.shape())
    else:
        for name, text in lines(found):
            echo(f"{name + ':':{WIDTH}}{printable(text)}".rstrip())
    if found.verdict not in FINE:
        raise typer.Exit(EXIT_NOT_RECORDED)


def _explained(session: Worm, key: str, dlq: str | None, endpoint_url: str | None) -> Why:
    url = dlq or os.environ.get("WORM_DLQ_URL")
    if not url:
        return explain_key(session, key)
    from worm.upkeep import Aws, dead_letters  # slow to import

    queue = dead_letters.DeadLetterQueue(Aws(endpoint_url), url.rpartition("/")[2], url)
    return explain_key(session, key, dead_letters=dead_letters.find_letters([queue], session.store.url))


def lines(found: Why) -> list[tuple[str, str]]:
    """The report for people: pairs of a name and a text."""
    matched = "none" if found.model is None else found.model
    if found.verdict is Verdict.UNMATCHED and found.model is not None:
        matched = f"none; {found.model} is the closest"
    shown = [("Key", found.key), ("Verdict", found.verdict.value), ("Model", matched)]
    if found.rule is not None:
        shown.append(("Rule", found.rule))
    if found.id is not None:
        shown.append(("Id", found.id))
    shown.append(("Object", _object(found)))
    if found.rule is not None and found.verdict is not Verdict.UNMATCHED:
        shown += [("Entry", _entry(found)), ("Row", _row(found))]
    if found.rejection is not None:
        shown.append(("Rejection", found.rejection))
    if found.dead_letters is not None:
        shown += [("Dead letter", f"{one.sent}: {one.reason}") for one in found.dead_letters] or [
            ("Dead letter", "none")
        ]
    elif found.verdict in (Verdict.WAITING, Verdict.REJECTED):
        shown.append(("Dead letter", UNTOLD))
    return [*shown, ("Why", found.explanation), ("Next", found.next_step)]


def _object(found: Why) -> str:
    if found.object is None:
        return "none"
    version = f", version {found.object.version_id}" if found.object.version_id else ""
    return f"{size(found.object.size)}, {iso_seconds(found.object.modified)}{version}"


def _entry(found: Why) -> str:
    if found.entry is None:
        return "unknown" if found.verdict is Verdict.DAMAGED else "none"
    by = f" by {found.entry.actor}" if found.entry.actor else ""
    is_older = found.object is not None and not found.entry.is_of_object
    return f"{found.entry.seq} ({found.entry.op}) at {found.entry.ts}{by}" + (
        ", of another version" if is_older else ""
    )


def _row(found: Why) -> str:
    if found.row is None:
        return "none kept"
    seq = "" if found.row.seq is None else f" of entry {found.row.seq}"
    behind = f", {count(found.row.behind, 'entry')} behind" if found.row.behind else ""
    return ("there" if found.row.is_there else "none") + seq + behind
