"""`worm push`: make a schema file the bucket's schema."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from worm.cli.arguments import existing_file
from worm.cli.options import EndpointUrl, Url, target
from worm.collections.push import PushReport
from worm.model import push as push_all
from worm.schema import Schema, load_schema
from worm.store.base import Store


def push(
    context: typer.Context,
    schema: Annotated[Path, typer.Argument(metavar="SCHEMA", help="The schema file, usually schema.json.")],
    force: Annotated[
        bool, typer.Option("--force", help="Push even if existing documents or their history are left behind.")
    ] = False,
    url: Url = None,
    endpoint_url: EndpointUrl = None,
) -> None:
    """Upload a schema and write the sentinels that describe the bucket and its collections."""
    definition = load_schema(existing_file(schema))
    store = target(context, url, endpoint_url).store(for_writing=True)
    show_push(store, definition, push_all(store, definition, force=force))


def show_push(store: Store, schema: Schema, report: PushReport, *, err: bool = False) -> None:
    """What a push did, in a few lines; with `err` as a note beside another result."""
    if report.schema_changed:
        typer.echo(f"pushed the schema to {store.url}", err=err)
    else:
        typer.echo(f"{store.url} has this schema already", err=err)
    for word, names in (("added", report.added), ("changed", report.changed), ("removed", report.removed)):
        for name in names:
            place = f"  {schema.models[name].path}" if name in schema.models else "  (its documents stay)"
            typer.echo(f"  {word:<8} {name}{place}", err=err)
    for key in report.sentinels_written:
        typer.echo(f"  sentinel {key}", err=err)
