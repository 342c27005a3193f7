"""Arguments that several commands share: model, document, moment, file, and whether to act at all.

A *bulk* removes anything other than one named document. It is a dry run unless you pass `--no-dry-run`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

import typer

from worm.cli.options import DEFAULT_URL, Target
from worm.cli.output import echo
from worm.errors import Invalid, NotFound, WormError, show
from worm.formats import SINGLETON_ID, ModelDef

if TYPE_CHECKING:
    from worm.sdk import Worm

MOMENT_HELP = "a seq of the history, or an ISO 8601 time such as 2026-02-24T12:00:00Z"

SEQ_DIGITS_MAX = 18


class MergePolicy(StrEnum):
    """Which side wins if both branches changed the same document."""

    fail = "fail"
    ours = "ours"
    theirs = "theirs"
    fields = "fields"
    fields_ours = "fields-ours"
    fields_theirs = "fields-theirs"


def complete_model(context: typer.Context, incomplete: str) -> list[str]:
    """Names of the pushed schema, for the shell. There are no completions if the schema cannot be read."""
    given = [one.params for one in (context, context.parent, context.find_root()) if one is not None]
    url = next((str(one["url"]) for one in given if one.get("url")), os.environ.get("WORM_URL") or DEFAULT_URL)
    endpoint = next((str(one["endpoint_url"]) for one in given if one.get("endpoint_url")), None)
    try:
        names = list(Target(url, endpoint or os.environ.get("AWS_ENDPOINT_URL") or None).connect().schema.models)
    except WormError:
        return []  # the shell shows nothing; running the command shows why
    return [name for name in names if name.startswith(incomplete)]


ModelName = Annotated[str, typer.Argument(metavar="MODEL", help="Name of the model.", autocompletion=complete_model)]
EntityId = Annotated[str, typer.Argument(metavar="ID", help="Id of the document; `_` for a singleton.")]
SingleId = Annotated[str, typer.Argument(metavar="[ID]", help="Id of the document; not needed for a singleton.")]
Models = Annotated[
    list[str] | None,
    typer.Argument(metavar="[MODEL]...", help="Models; all if you name none.", autocompletion=complete_model),
]
DryRun = Annotated[
    bool | None,
    typer.Option(
        "--dry-run/--no-dry-run", help="Only show what would be removed; the default for more than one document."
    ),
]


def entity_id(session: Worm, model: str, id: str, command: str) -> str:
    """The id. It may be left out only for a singleton."""
    if id == SINGLETON_ID and not session.schema.model(model).is_singleton:
        raise Invalid(f"{model} has many documents", hint=f"name one: worm {command} {model} ID")
    return id


def chosen_models(session: Worm, names: list[str] | None) -> list[str]:
    """The named models, each checked, or all of the schema."""
    for name in names or []:
        session.schema.model(name)
    if names and len(set(names)) != len(names):
        raise Invalid("a model is named twice")
    return list(names or session.schema.models)


def note_undeclared(definition: ModelDef, names: Iterable[str]) -> None:
    for note in definition.undeclared_notes(names):
        echo(f"worm: note: {note}", err=True)


def parse_moment(text: str) -> int | datetime:
    """A seq, or a time. Times without a zone are UTC; a date alone means its first moment."""
    if text.isascii() and text.isdigit():
        return parse_seq(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise Invalid(f"{show(text)} is neither a seq nor a time", hint=f"write {MOMENT_HELP}") from error
    try:
        return moment.astimezone(UTC) if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    except OverflowError as error:
        raise Invalid(f"{show(text)} is outside the calendar in UTC", hint=f"write {MOMENT_HELP}") from error


def parse_seq(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > SEQ_DIGITS_MAX or int(text) < 1:
        raise Invalid(f"{show(text)} is not a seq", hint="seqs start at 1; `worm history` shows them")
    return int(text)


def existing_file(path: Path) -> Path:
    if path.is_dir():
        raise Invalid(f"{path} is a directory", hint="name a file in it")
    if not path.exists():
        raise NotFound(f"the file {path} does not exist", hint="paths are relative to the current directory")
    return path


@contextmanager
def opened_input(file: str) -> Iterator[IO[bytes]]:
    """A file, or stdin (`-`)."""
    if file != "-":
        with existing_file(Path(file)).open("rb") as opened_file:
            yield opened_file
    elif sys.stdin is None:
        raise Invalid("stdin is closed", hint="name a file")
    else:
        yield sys.stdin.buffer


def read_input(file: str) -> bytes:
    with opened_input(file) as opened_file:
        return opened_file.read()


def output_path(name: str) -> Path | None:
    """The file to write; None is stdout (`-`)."""
    return None if name == "-" else checked_output(Path(name))


def checked_output(path: Path) -> Path:
    if path.is_dir():
        raise Invalid(f"{path} is a directory", hint="name a file in it")
    if not path.parent.is_dir():
        raise NotFound(f"the directory {path.parent} does not exist", hint="create it, or choose another --output")
    return path


@contextmanager
def opened_output(path: Path) -> Iterator[IO[bytes]]:
    """A file is written under another name next to it and renamed when complete: a reader sees the old file or the
    complete new one. If anything fails, no incomplete file stays."""
    if path.exists() and not path.is_file():  # a pipe or a device: nothing to rename
        with path.open("wb") as file:
            yield file
        return
    final = path.resolve()  # a link is followed, not replaced
    part = final.with_name(f".{final.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            yield file
        part.replace(final)
    finally:
        part.unlink(missing_ok=True)
