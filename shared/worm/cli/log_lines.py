"""Records of a log as lines that people read and `grep` finds things in."""

from __future__ import annotations

from datetime import UTC, datetime

import typer

from worm.cli.output import GAP, printable
from worm.clock import iso_millis
from worm.codec.frames import Torn
from worm.codec.strict_json import JsonValue, dumps
from worm.journal.tools import LogLine

NONE = "-"
_HEADER = ("lsn", "ts", "txn", "op", "ns", "id")
_BARE = ("doc", "spec", "field")


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
