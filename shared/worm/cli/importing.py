"""`worm import`: infer a schema from the documents that a bucket already holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from worm.cli.options import EndpointUrl, Url, target
from worm.cli.output import count
from worm.cli.push import show_push
from worm.collections.infer import SAMPLES_MAX, CollectionReport, InferReport, infer_schema
from worm.errors import Conflict, Invalid, NotFound
from worm.model import push as push_all
from worm.schema import Schema
from worm.store.probe import ensure_safe

_SHOWN_MAX = 5


def import_documents(
    context: typer.Context,
    prefix: Annotated[str, typer.Option("--prefix", metavar="KEY", help="Look only at keys that start so.")] = "",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write the schema here, not to stdout.")
    ] = None,
    do_push: Annotated[bool, typer.Option("--push", help="Push the inferred schema at once.")] = False,
    samples: Annotated[
        int, typer.Option("--samples", metavar="N", min=1, help="Documents read of each collection.")
    ] = SAMPLES_MAX,
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite the output file; push even if documents are left behind.")
    ] = False,
    url: Url = None,
    endpoint_url: EndpointUrl = None,
) -> None:
    """Infer a schema from existing JSON documents. What was found is told on stderr, the schema goes to stdout."""
    if output is not None and not output.parent.is_dir():
        raise NotFound(f"there is no directory {output.parent}", hint="make it, or choose another --output")
    if output is not None and output.is_dir():
        raise Invalid(f"{output} is a directory", hint="name a file in it")
    if output is not None and output.exists() and not force:
        raise Conflict(f"{output} exists already", hint="choose another --output, or --force to overwrite it")
    store = target(context, url, endpoint_url).store()
    inferred = infer_schema(store, prefix, samples_max=samples)
    _show_report(inferred.report)
    if output is not None:
        output.write_text(_pretty(inferred.schema), encoding="utf-8")
        typer.echo(f"wrote {output}", err=True)
    elif not do_push:
        typer.echo(_pretty(inferred.schema), nl=False)
    if do_push:
        ensure_safe(store)
        show_push(store, inferred.schema, push_all(store, inferred.schema, force=force), err=True)


def _pretty(schema: Schema) -> str:
    return json.dumps(json.loads(schema.to_json()), indent=2, ensure_ascii=False) + "\n"


def _show_report(report: InferReport) -> None:
    for collection in report.collections:
        _show_collection(collection)
    if report.skipped:
        _note("  left out", f"{count(report.skipped, 'key')} that belong to no collection", report.skipped_examples)


def _show_collection(found: CollectionReport) -> None:
    typer.echo(
        f"{found.model}: {found.path}, {found.file}, {count(found.documents, 'document')}, {found.sampled:,} read",
        err=True,
    )
    if found.unreadable:
        reasons = [f"{key} ({reason})" for key, reason in found.unreadable]
        _note("  unreadable", count(len(reasons), "document"), reasons)
    if found.left_out:
        _note("  not declared", f"{count(len(found.left_out), 'field')} without a common type", found.left_out)
    if found.foreign_ids:
        what = f"{count(len(found.foreign_ids), 'document')} whose field id is not the id of the key"
        _note("  foreign ids", what, found.foreign_ids)


def _note(label: str, what: str, examples: tuple[str, ...] | list[str]) -> None:
    shown = ", ".join(examples[:_SHOWN_MAX]) + (", …" if len(examples) > _SHOWN_MAX else "")
    typer.echo(f"{label}: {what}: {shown}", err=True)
