"""`worm dev`: the embedded AWS, wired as template.yaml says, until Ctrl-C."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from worm.cli.options import EndpointUrl, target
from worm.errors import NotFound


class AwsKind(StrEnum):
    """What stands in for AWS."""

    moto = "moto"
    localstack = "localstack"


def dev(
    context: typer.Context,
    aws: Annotated[AwsKind, typer.Option("--aws", help="What stands in for AWS.")] = AwsKind.moto,
    endpoint_url: EndpointUrl = None,
    documents: Annotated[
        int, typer.Option("--documents", metavar="N", min=0, help="Upload N sample documents first.")
    ] = 0,
    fire: Annotated[
        str | None, typer.Option("--fire", metavar="SCHEDULE", help="Fire a schedule once, e.g. rebuild (a Spark job).")
    ] = None,
) -> None:
    """Run the deployed wiring on this machine: bucket, queues, functions and schedules of template.yaml.

    Ctrl-C ends it. Nothing is kept.
    """
    try:
        from worm_dev.demo import serve
    except ModuleNotFoundError as error:
        hint = "pip install 's3worm[local]'"
        raise NotFound(f"the embedded AWS is not installed (no module {error.name})", hint=hint) from error
    where = endpoint_url or _given(context)
    raise typer.Exit(serve(aws=aws.value, endpoint_url=where, documents=documents, fire=fire))


def _given(context: typer.Context) -> str | None:
    """The endpoint before the command's name. The one in the environment may be of a `worm dev` that has ended."""
    source = None if context.parent is None else context.parent.get_parameter_source("endpoint_url")
    return target(context).endpoint_url if source is not None and source.name == "COMMANDLINE" else None
