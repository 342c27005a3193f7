"""`worm`: the entry, the options before a command's name, and the one place where errors become exit codes.

An error of the library is one line on stderr, with its hint, and the exit code of its class (`worm.errors`); a mistake
in the command line itself is exit code 2. Only a defect of this program shows a traceback.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from worm.cli import dev, history, importing, push, repair, table, verify
from worm.cli.options import ACTOR_HELP, DEFAULT_URL, ENDPOINT_HELP, URL_HELP, Target
from worm.cli.output import printable
from worm.errors import WormError
from worm.store.agent import VERSION


class WormGroup(TyperGroup):
    """The command group that turns the library's errors into a line and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except WormError as error:
            typer.echo(f"worm: {printable(' '.join(str(error).split()))}", err=True)
            raise typer.Exit(error.exit_code) from error


app = typer.Typer(
    name="worm",
    cls=WormGroup,
    help="Plain JSON documents in your own S3 bucket as a database: history, tables, audit.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(table.app, name="table")
app.command("push")(push.push)
app.command("import")(importing.import_documents)
app.command("history")(history.history)
app.command("verify")(verify.verify)
app.command("repair")(repair.repair)
app.command("dev")(dev.dev)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"worm {VERSION}")
        raise typer.Exit


@app.callback()
def shared_options(
    context: typer.Context,
    url: Annotated[str, typer.Option("--url", envvar="WORM_URL", metavar="URL", help=URL_HELP)] = DEFAULT_URL,
    endpoint_url: Annotated[
        str | None, typer.Option("--endpoint-url", envvar="AWS_ENDPOINT_URL", metavar="URL", help=ENDPOINT_HELP)
    ] = None,
    actor: Annotated[str | None, typer.Option("--actor", envvar="WORM_ACTOR", metavar="NAME", help=ACTOR_HELP)] = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    context.obj = Target(url, endpoint_url or None, actor or None)


def main() -> None:
    """The console script. Output into a pipe or a file is UTF-8 whatever the locale says."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None and not stream.isatty():
            reconfigure(encoding="utf-8", errors="backslashreplace")
    app()


if __name__ == "__main__":
    main()
