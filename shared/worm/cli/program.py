"""`worm`: the options that precede a command, and the one place where errors become exit codes.

An error of the library becomes one line on stderr, with its hint, and the exit code of its class (`worm.errors`). For
rare errors, a second line links to the page that explains them. A mistake in the command line itself is exit code 2, a
failure to write output 1, an interrupt 130. If the reader closes the pipe (`| head`), the exit code is 0. Only a bug in
this program shows a traceback.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Annotated, Any

import typer

from worm.cli.commands import COMMANDS, LazyGroup
from worm.cli.options import ACTOR_HELP, DEFAULT_URL, ENDPOINT_HELP, URL_HELP, Target, opened_stores
from worm.errors import CommitStateUnknown, Corrupt, Denied, Expired, Fenced, UnsafeStore, WormError
from worm.version import VERSION

EXIT_INTERRUPTED = 130
HINTS = {
    "the bucket does not exist": "check --url (WORM_URL) and --endpoint-url, or create the bucket",
    " is read-only": 'its "mode" in the schema is readonly: change it there to write',
    " is append-only": 'its "mode" in the schema is append: documents can be created, but not changed or deleted',
}
"""Hints for errors with a fixed text that only says what happened."""
EXPLAINED = (Fenced, CommitStateUnknown, Denied, Corrupt, UnsafeStore, Expired)
"""Rare errors: a link to their page follows. For all others, the message and its hint are enough."""


class WormGroup(LazyGroup):
    """All commands; turns the library's errors into a line and an exit code."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(tree=COMMANDS, **settings)

    def main(self, *arguments: Any, **options: Any) -> Any:
        standalone_mode = options.pop("standalone_mode", True)
        opened_stores.clear()
        try:
            code = super().main(*arguments, **{**options, "standalone_mode": False})
        except Exception as error:
            # Its class is in the click that typer bundles; its attributes are public.
            describe = getattr(error, "format_message", None)
            if describe is None or not standalone_mode:
                raise
            code = _usage_error(error, describe())
        if standalone_mode:
            sys.exit(code if isinstance(code, int) else 0)
        return code

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        with _errors_as_exits():
            return super().make_context(*arguments, **options)

    def invoke(self, ctx: Any) -> Any:
        with _errors_as_exits():
            return super().invoke(ctx)


@contextmanager
def _errors_as_exits() -> Iterator[None]:
    try:
        yield
    except WormError as error:
        error.hint = error.hint or next((hint for end, hint in HINTS.items() if error.message.endswith(end)), None)
        _tell(error.for_shell())
        if isinstance(error, EXPLAINED):
            with suppress(OSError):
                typer.echo(f"more: {error.help_url}", err=True)
        raise typer.Exit(error.exit_code) from error
    except (KeyboardInterrupt, RuntimeError) as raised:
        # Python 3.11 wraps exceptions that are raised while it creates a class.
        interrupt = raised.__cause__ if isinstance(raised, RuntimeError) else raised
        if not isinstance(interrupt, KeyboardInterrupt):
            raise
        _tell_interrupted()
        raise typer.Exit(getattr(interrupt, "exit_code", EXIT_INTERRUPTED)) from interrupt
    except BrokenPipeError as error:
        _drop_output()
        raise typer.Exit(0) from error
    except OSError as error:
        _drop_output()
        _tell(f"{error.strerror or error}" + (f": {error.filename}" if error.filename else ""))
        raise typer.Exit(1) from error


def _usage_error(error: Any, message: str) -> int:
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
    else:
        path = "worm" if context is None else context.command_path
        _tell(f"{message.rstrip('.')} (see `{path} --help`)")
    return int(getattr(error, "exit_code", 2))


def _tell_interrupted() -> None:
    """A request may have been stored even without an answer."""
    sent = [store.requests.snapshot() for store in opened_stores]
    has_written = any(kind in one for one in sent for kind in ("PUT", "DELETE"))
    stored = "; changes that it has stored stay, and `worm repair` completes unfinished ones"
    _tell(f"interrupted{stored if has_written else ''}")


def _tell(message: str) -> None:
    from worm.cli.output import printable

    with suppress(OSError):
        typer.echo(f"worm: {printable(' '.join(message.split()))}", err=True)


def _drop_output() -> None:
    """The buffered rest cannot be written either. Without this the interpreter would try, and complain."""
    with suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


app = typer.Typer(
    name="worm",
    cls=WormGroup,
    help="Plain JSON documents in your own S3 bucket as a database: history, tables, audit.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


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


def run() -> int:
    """Runs the command in `sys.argv` and returns its exit code. Output into a pipe or a file is UTF-8 regardless of the
    locale."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None and not stream.isatty():
            reconfigure(encoding="utf-8", errors="backslashreplace")
    if sys.stdout is None:  # closed by the caller
        _tell("stdout is closed")
        return 1
    try:
        app()
    except SystemExit as ended:
        has_enough = isinstance(ended.__context__, BrokenPipeError)  # the reader of a help text
        return ended.code if isinstance(ended.code, int) and not has_enough else 0
    return 0
