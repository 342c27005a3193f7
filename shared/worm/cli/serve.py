"""`worm serve`: the HTTP API and the console on this machine, until Ctrl-C."""

from __future__ import annotations

from typing import Annotated

import typer

from worm.cli.options import Target, needs_extra, opened_stores
from worm.cli.output import echo, printable


def serve(
    target: Target,
    port: Annotated[
        int | None,
        typer.Option("--port", metavar="N", min=1, max=65535, help="Listen on this port; a free one if you name none."),
    ] = None,
    host: Annotated[
        str, typer.Option("--host", metavar="ADDRESS", help="Listen on this address of this machine.")
    ] = "127.0.0.1",
    token: Annotated[
        str | None,
        typer.Option(
            "--token", metavar="TOKEN", envvar="WORM_TOKEN", help="Require this token; a random one if you name none."
        ),
    ] = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="Refuse every write.")] = False,
    open: Annotated[bool, typer.Option("--open", help="Open the console in the browser.")] = False,
) -> None:
    """Serve the HTTP API and the console on this machine, for anyone with the token that it prints. Stop it with
    Ctrl-C."""
    with needs_extra("api"):
        from worm.api import LocalApi
    from worm.sdk import connect

    session = connect(
        target.url,
        endpoint_url=target.endpoint_url,
        actor=target.actor,
        maintenance="events" if read_only else None,  # a read-only server leaves maintenance to others
    )
    opened_stores.append(session.store)
    local = LocalApi(session, host=host, port=port or 0, token=token, is_readonly=read_only)
    try:
        echo(f"serving {printable(target.url)}{' (read-only)' if read_only else ''} at {local.url}/v1")
        echo(f"console: {local.link}")
        echo("stop it with Ctrl-C")
        if open and not _opened(local.link):
            echo("worm: cannot open a browser; use the link", err=True)
        local.serve()
    except KeyboardInterrupt:
        echo("stopping", err=True)
    finally:
        local.close()


def _opened(link: str) -> bool:
    import webbrowser

    return webbrowser.open(link)
