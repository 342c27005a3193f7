"""Which space a `worm space` command works on, and its results as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

import typer

from worm.cli.arguments import parse_moment
from worm.cli.options import Target, target
from worm.cli.output import RowFormat
from worm.clock import iso_millis
from worm.codec.strict_json import JsonObject, JsonValue
from worm.errors import NotFound
from worm.spaces.backend import Backend
from worm.spaces.opening import open_backend
from worm.spaces.results import Committed, Entity
from worm.spaces.space import Space

SPACE_URL_HELP = "Where the space is: s3://bucket/prefix, a directory, memory://name, or sqlite:///absolute/path."
COMMIT_COLUMNS = ("seq", "branch", "sessionId", "localSeq", "createdAt", "isRepeat")

SpaceName = Annotated[str, typer.Argument(metavar="NAME", help="Name of the space.")]
SpaceUrl = Annotated[str | None, typer.Option("--url", metavar="URL", help=SPACE_URL_HELP)]
BranchOption = Annotated[str, typer.Option("--branch", metavar="B", help="The branch; the main one is ''.")]
AtOption = Annotated[
    str | None, typer.Option("--at", metavar="SEQ|TIME", help="As of this commit, or the last one by this time.")
]
SpaceFormat = Annotated[RowFormat, typer.Option("--format", help="How to show it.")]


@dataclass(frozen=True, slots=True)
class Opened:
    """A space, and its rows for what only commands ask for."""

    space: Space
    backend: Backend


@contextmanager
def opened(
    context: typer.Context,
    name: str,
    url: str | None,
    endpoint_url: str | None,
    *,
    for_writing: bool = False,
    create: bool = False,
) -> Iterator[Opened]:
    """For writing, a store must keep write conditions."""
    chosen = target(context, url, endpoint_url)
    if for_writing:
        check_store(chosen)
    with as_space(chosen.url, name):
        backend = open_backend(chosen.url, name, create=create, endpoint_url=chosen.endpoint_url)
    with Space(backend) as space:
        yield Opened(space, backend)


@contextmanager
def as_space(url: str, name: str) -> Iterator[None]:
    """A page store that is missing is a space that is missing, for whoever asked for a space."""
    try:
        yield
    except NotFound as error:
        if not error.message.startswith("there is no page store"):
            raise
        hint = "look at --url; `worm space write` makes one"
        raise NotFound(f"there is no space {name!r}", key=url, hint=hint) from error


def check_store(chosen: Target) -> None:
    if not chosen.url.startswith("sqlite:"):
        chosen.store(for_writing=True)


def moment(text: str | None) -> int | datetime | None:
    """A seq, from 0 on, or a time."""
    if text is not None and text.isascii() and text.isdigit():
        return int(text[:40])  # more digits than a seq can have are refused where all seqs are
    return None if text is None else parse_moment(text)


def commit_shape(done: Committed) -> JsonObject:
    pending: list[JsonValue] = [{"localSeq": local, "seq": seq} for local, seq in done.resolved_pending_reads]
    return {
        "seq": done.seq,
        "branch": done.branch,
        "sessionId": done.session_id,
        "localSeq": done.local_seq,
        "resolvedPendingReads": pending,
        "createdAt": iso_millis(done.created_at),
        "isRepeat": done.is_repeat,
    }


def entity_shape(entity: Entity) -> JsonObject:
    return {
        "id": entity.id,
        "branch": entity.branch,
        "at": entity.at,
        "presence": entity.presence.value,
        "seq": entity.seq,
        "value": entity.value,
    }
