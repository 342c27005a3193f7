"""Arguments that several commands share: which model, which document, which moment, and whether to act at all.

*Bulk* is whatever removes more than the one document that was named. It is a dry run unless `--no-dry-run` is said.
"""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from worm.cli.options import DEFAULT_URL, Target
from worm.cli.output import RowFormat
from worm.collections.ids import SINGLETON_ID
from worm.errors import Invalid, NotFound, WormError
from worm.model import Worm

MOMENT_HELP = "a seq of the history, or an ISO 8601 time such as 2026-02-24T12:00:00Z"

SEQ_DIGITS_MAX = 18


def complete_model(context: typer.Context, incomplete: str) -> list[str]:
    """Names of the pushed schema, for the shell. A place that cannot be read completes to nothing."""
    given = [context.params, *([context.parent.params] if context.parent is not None else []), _root_params(context)]
    url = next((str(one["url"]) for one in given if one.get("url")), os.environ.get("WORM_URL") or DEFAULT_URL)
    endpoint = next((str(one["endpoint_url"]) for one in given if one.get("endpoint_url")), None)
    try:
        names = list(Target(url, endpoint or os.environ.get("AWS_ENDPOINT_URL") or None).connect().schema.models)
    except WormError:
        return []  # the shell shows nothing; running the command tells why
    return [name for name in names if name.startswith(incomplete)]


ModelName = Annotated[str, typer.Argument(metavar="MODEL", help="Name of the model.", autocompletion=complete_model)]
EntityId = Annotated[str, typer.Argument(metavar="ID", help="Id of the document; of a singleton `_`.")]
SingleId = Annotated[str, typer.Argument(metavar="[ID]", help="Id of the document; a singleton needs none.")]
Rows = Annotated[RowFormat, typer.Option("--format", help="How to show it.")]
DryRun = Annotated[
    bool | None,
    typer.Option("--dry-run/--no-dry-run", help="Only say what would be removed; the default for more than one."),
]


def entity_id(session: Worm, model: str, id: str, command: str) -> str:
    """The id, which only a singleton may leave out."""
    if id == SINGLETON_ID and not session.schema.model(model).is_singleton:
        raise Invalid(f"{model} has many documents", hint=f"name one: worm {command} {model} ID")
    return id


def read_input(file: str) -> bytes:
    """The bytes of a file, or of stdin (`-`)."""
    if file != "-":
        return existing_file(Path(file)).read_bytes()
    if sys.stdin is None:
        raise Invalid("stdin is closed", hint="name a file")
    return sys.stdin.buffer.read()


def existing_file(path: Path) -> Path:
    if path.is_dir():
        raise Invalid(f"{path} is a directory", hint="name a file in it")
    if not path.exists():
        raise NotFound(f"there is no file {path}", hint="paths are taken from the current directory")
    return path


def parse_moment(text: str) -> int | datetime:
    """A seq, or a time. Times without a zone are UTC; a date alone is its first moment."""
    if text.isascii() and text.isdigit():
        return parse_seq(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise Invalid(f"{_short(text)!r} is neither a seq nor a time", hint=f"write {MOMENT_HELP}") from error
    try:
        return moment.astimezone(UTC) if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    except OverflowError as error:
        raise Invalid(f"{text!r} is outside the calendar in UTC", hint=f"write {MOMENT_HELP}") from error


def parse_seq(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > SEQ_DIGITS_MAX or int(text) < 1:
        raise Invalid(f"{_short(text)!r} is no seq", hint="seqs count from 1; see them with `worm history`")
    return int(text)


def _short(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:40]}…"


def _root_params(context: typer.Context) -> dict[str, object]:
    return dict(context.find_root().params)
