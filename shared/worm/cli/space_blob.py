"""`worm space blob …`: bytes of a space by their hash."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import IO, Annotated

import typer

from worm.cli.arguments import existing_file
from worm.cli.options import EndpointUrl
from worm.cli.output import RowFormat, count, echo_rows
from worm.cli.space_target import BranchOption, SpaceFormat, SpaceName, SpaceUrl, opened
from worm.clock import SystemClock, iso_millis
from worm.codec.strict_json import loads_document
from worm.errors import Invalid, NotFound
from worm.spaces import blobs
from worm.spaces.rows import moment_of

COLUMNS = ("hash", "size", "contentType")

app = typer.Typer(help="Blobs: put, get and list them, and collect those that nothing needs.", no_args_is_help=True)


@app.command("put")
def put(
    context: typer.Context,
    name: SpaceName,
    file: Annotated[str, typer.Argument(metavar="FILE", help="The bytes; `-` is stdin.")],
    content_type: Annotated[
        str | None, typer.Option("--content-type", metavar="TYPE", help="Such as image/png.")
    ] = None,
    metadata: Annotated[
        str | None, typer.Option("--metadata", metavar="JSON", help="An object that is kept beside hash and size.")
    ] = None,
    branch: BranchOption = "",
    format: SpaceFormat = RowFormat.table,
    url: SpaceUrl = None,
    endpoint_url: EndpointUrl = None,
) -> None:
    """Store bytes once under their SHA-256, and commit what is known of them. Makes the space where it is not there."""
    more = None if metadata is None else loads_document(metadata.encode(errors="surrogateescape"))
    with _input(file) as data, opened(context, name, url, endpoint_url, for_writing=True, create=True) as on:
        done = on.space.put_blob(data, content_type=content_type, metadata=more, branch=branch)
    echo_rows(COLUMNS, [{"hash": done.hash, "size": done.size, "contentType": done.content_type}], format)


@app.command("get")
def get(
    context: typer.Context,
    name: SpaceName,
    hash: Annotated[str, typer.Argument(metavar="HASH", help="SHA-256 of the bytes, in hex.")],
    output: Annotated[str, typer.Option("--output", "-o", metavar="FILE", help="Write here; `-` is stdout.")] = "-",
    url: SpaceUrl = None,
    endpoint_url: EndpointUrl = None,
) -> None:
    """Write the bytes of a blob. They are checked against the hash: a file has all of them, or is not written."""
    with opened(context, name, url, endpoint_url) as on:
        on.space.blob(hash)  # before a file is touched
        with _output(output) as file:
            for chunk in on.space.stream_blob(hash):
                file.write(chunk)
            file.flush()


@app.command("list")
def list_blobs(
    context: typer.Context,
    name: SpaceName,
    format: SpaceFormat = RowFormat.table,
    url: SpaceUrl = None,
    endpoint_url: EndpointUrl = None,
) -> None:
    """List the stored blobs by hash."""
    with opened(context, name, url, endpoint_url) as on:
        rows = on.backend.blobs()
    shapes = [
        {
            "hash": row.hash,
            "size": row.size,
            "contentType": row.content_type,
            "createdAt": iso_millis(moment_of(row.created_at)),
        }
        for row in rows
    ]
    echo_rows((*COLUMNS, "createdAt"), shapes, format)


@app.command("gc")
def gc(
    context: typer.Context,
    name: SpaceName,
    older_than: Annotated[
        float, typer.Option("--older-than", metavar="HOURS", min=0, max=1_000_000, help="Only those stored before.")
    ] = 1.0,
    dry_run: Annotated[
        bool, typer.Option("--dry-run/--no-dry-run", help="Only say what would be removed (default).")
    ] = True,
    format: SpaceFormat = RowFormat.table,
    url: SpaceUrl = None,
    endpoint_url: EndpointUrl = None,
) -> None:
    """Remove the payloads whose metadata is on no active branch."""
    age = timedelta(hours=older_than)
    with opened(context, name, url, endpoint_url, for_writing=not dry_run) as on:
        if dry_run:
            gone = blobs.unneeded(on.backend, blobs.grace(SystemClock().now(), age))
            typer.echo(f"worm: dry run; --no-dry-run will remove {count(len(gone), 'blob')}", err=True)
        else:
            gone = list(on.space.gc_blobs(older_than=age))
    result = "unneeded" if dry_run else "removed"
    echo_rows(("hash", "result"), [{"hash": one, "result": result} for one in gone], format)


@contextmanager
def _input(file: str) -> Iterator[IO[bytes]]:
    if file != "-":
        with existing_file(Path(file)).open("rb") as opened_file:
            yield opened_file
    elif sys.stdin is None:
        raise Invalid("stdin is closed", hint="name a file")
    else:
        yield sys.stdin.buffer


@contextmanager
def _output(name: str) -> Iterator[IO[bytes]]:
    """A file is written under another name, and renamed when it is complete."""
    if name == "-":
        yield sys.stdout.buffer
        return
    path = Path(name)
    if path.is_dir():
        raise Invalid(f"{path} is a directory", hint="name a file in it")
    if not path.parent.is_dir():
        raise NotFound(f"there is no directory {path.parent}", hint="make it, or choose another --output")
    if path.exists() and not path.is_file():  # a pipe or a device: nothing to rename
        with path.open("wb") as file:
            yield file
        return
    final = path.resolve()
    part = final.with_name(f".{final.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            yield file
        part.replace(final)
    finally:
        part.unlink(missing_ok=True)
