"""`worm table rebuild`: the manifest and the indexes of a model anew from the documents and their history."""

from __future__ import annotations

from typing import Annotated

import typer

from worm.cli.arguments import complete_model
from worm.cli.options import EndpointUrl, Url, target
from worm.cli.output import count, size
from worm.cli.table_progress import progress_bar
from worm.errors import Invalid
from worm.model import Worm
from worm.sdk.tabling import IndexStatus


def rebuild(
    context: typer.Context,
    model: Annotated[
        str | None,
        typer.Argument(metavar="[MODEL]", help="Name of the model.", autocompletion=complete_model),
    ] = None,
    all_models: Annotated[bool, typer.Option("--all", help="Every model that keeps a table.")] = False,
    spark: Annotated[bool, typer.Option("--spark", help="By a Spark session on this machine.")] = False,
    url: Url = None,
    endpoint_url: EndpointUrl = None,
) -> None:
    """Rebuild manifest and indexes from the documents and their history. Safe beside running workers."""
    if all_models is (model is not None):
        raise Invalid("name a model or say --all", hint="worm table rebuild MODEL")
    chosen = target(context, url, endpoint_url)
    session = chosen.connect()
    names = _kept(session) if model is None else [_checked(session, model)]
    if spark:
        _rebuild_by_spark(session, names, chosen.endpoint_url)
        return
    for at, name in enumerate(names):
        if at:
            typer.echo("")
        _rebuild(session, name)


def _kept(session: Worm) -> list[str]:
    return [name for name, definition in session.schema.models.items() if definition.keeps_manifest]


def _checked(session: Worm, model: str) -> str:
    if not session.schema.model(model).keeps_manifest:
        hint = 'set "manifest": {"enabled": true} for it in schema.json, and push'
        raise Invalid(f"{model} keeps no manifest", hint=hint)
    return model


def _rebuild_by_spark(session: Worm, names: list[str], endpoint_url: str | None) -> None:
    """The same bytes as without. The jobs import Spark, which nothing else of the command line needs."""
    try:
        from spark_jobs.rebuild import rebuild_models
    except ImportError as error:
        hint = 'pip install "s3worm[spark]"; it comes with the jobs and asks for Java 17 or newer'
        raise Invalid(f"the Spark jobs are not installed here ({error.name})", hint=hint) from error
    session.ensure_safe_store()
    for report in rebuild_models(session.store.url, endpoint_url, names):
        typer.echo(report.summary())


def _rebuild(session: Worm, name: str) -> None:
    """A line is printed when its step is done: a bar may be on the terminal meanwhile."""
    documents, started = session.model(name), session.clock.monotonic()
    typer.echo(f"Scanning collection: {session.resolver.collection_path(name)}")
    with progress_bar("Building manifest") as show:
        status = documents.build_manifest(progress=show)
    typer.echo(f"Found {count(status.count, 'entity')}")
    typer.echo(f"Building manifest... done ({size(status.size_bytes)})")
    for index in session.schema.model(name).indexes:
        built = documents.build_index(index)
        typer.echo(f"Building index: {built.field}... done ({_filled(built)})")
    typer.echo(f"Rebuild complete in {session.clock.monotonic() - started:.1f}s")


def _filled(index: IndexStatus) -> str:
    filled = count(index.values, "entry" if index.unique else "value")
    return f"{filled}, {count(index.conflicts, 'conflict')}" if index.conflicts else filled
