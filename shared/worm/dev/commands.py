"""`worm dev`: the embedded AWS, wired as template.yaml says, until Ctrl-C. `worm demo`: the whole path on it, once."""

from __future__ import annotations

import os
from enum import StrEnum
from typing import Annotated

import typer

from worm.cli import options
from worm.errors import Invalid

IS_WINDOWS = os.name == "nt"


class AwsKind(StrEnum):
    """The AWS emulator."""

    moto = "moto"
    localstack = "localstack"


def dev(
    context: typer.Context,
    target: options.EndpointTarget,
    aws: Annotated[AwsKind, typer.Option("--aws", help="Which AWS emulator to use.")] = AwsKind.moto,
    documents: Annotated[
        int, typer.Option("--documents", metavar="N", min=0, help="Upload N sample documents first.")
    ] = 0,
    fire: Annotated[
        str | None, typer.Option("--fire", metavar="SCHEDULE", help="Fire a schedule once, e.g. rebuild (a Spark job).")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option("--port", metavar="N", min=1, max=65535, help="Listen on this port; default: any free port."),
    ] = None,
    host: Annotated[
        str | None,
        typer.Option("--host", metavar="ADDRESS", help="Listen on this address, for containers; default: 127.0.0.1."),
    ] = None,
) -> None:
    """Run the deployed stack on this machine: bucket, queues, functions and schedules of template.yaml.

    Press Ctrl-C to stop. Nothing is kept.
    """
    _check_system()
    with options.needs_extra("dev"):
        from worm.dev.demo import serve
    where = target.endpoint_url if _is_named(context) else None
    if (port or host) and (where or aws is not AwsKind.moto):
        raise Invalid("--port and --host only work with moto, which this command starts", hint="leave them out")
    raise typer.Exit(serve(aws=aws.value, endpoint_url=where, documents=documents, fire=fire, port=port, host=host))


def demo(
    quick: Annotated[bool, typer.Option("--quick", help="Upload few documents, and do not start Spark.")] = False,
) -> None:
    """Show the whole path on this machine: upload documents, and look at the history and the tables that they get.

    Then Spark rebuilds the tables, if it is installed. Ends by itself. Nothing is kept.
    """
    _check_system()
    with options.needs_extra("dev"):
        from worm.dev.demo import DOCUMENTS, QUICK_DOCUMENTS, run
        from worm.dev.spark import spark_problem
    problem = "--quick leaves out the rebuild with Spark" if quick else spark_problem()
    raise typer.Exit(run(documents=QUICK_DOCUMENTS if quick else DOCUMENTS, without_spark=problem))


def _check_system() -> None:
    if IS_WINDOWS:
        raise Invalid("the embedded AWS needs process groups, which Windows lacks", hint="use WSL")


def _is_named(context: typer.Context) -> bool:
    """Whether the endpoint is on the command line. The one in the environment may be from a `worm dev` that has
    ended."""
    name, places = "endpoint_url", [one for one in (context, context.parent) if one is not None]
    sources = [one.get_parameter_source(name) for one in places if one.params.get(name)]
    return any(source is not None and source.name == "COMMANDLINE" for source in sources)
