"""`worm push`: make a schema file the bucket's schema."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from worm.cli.options import EndpointUrl, Url, target
from worm.collections.push import PushReport
from worm.errors import NotFound
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
    if not schema.is_file():
        raise NotFound(f"there is no file {schema}")
    definition = load_schema(schema)
    store = target(context, url, endpoint_url).store(for_writing=True)
    show_push(store, definition, push_all(store, definition, force=force))


def show_push(store: Store, schema: Schema, report: PushReport) -> None:
    """What a push did, in a few lines."""
    if report.schema_changed:
        typer.echo(f"pushed the schema to {store.url}")
    else:
        typer.echo(f"{store.url} has this schema already")
    for word, names in (("added", report.added), ("changed", report.changed), ("removed", report.removed)):
        for name in names:
            place = f"  {schema.models[name].path}" if name in schema.models else "  (its documents stay)"
            typer.echo(f"  {word:<8} {name}{place}")
    for key in report.sentinels_written:
        typer.echo(f"  sentinel {key}")
