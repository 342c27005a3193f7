"""Which log a `worm log` command works on: the directory of a store, or with `--db` a commit log in a bucket."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from worm.cli.options import Target
from worm.errors import Invalid
from worm.journal.file_tools import DirectoryTools
from worm.journal.s3_tools import StoreTools
from worm.journal.tools import LogTools

LogTarget = Annotated[
    str,
    typer.Argument(metavar="TARGET", help="A store's directory; with --db where the database is: s3://bucket/prefix."),
]
Database = Annotated[str | None, typer.Option("--db", metavar="ID", help="The commit log of this database.")]


def open_tools(target: str, db: str | None, endpoint_url: str | None, *, for_writing: bool = False) -> LogTools:
    """The tools for the target. For writing, a store must keep write conditions."""
    if db is not None:
        return StoreTools(Target(target, endpoint_url).store(for_writing=for_writing), db)
    if "://" in target:
        raise Invalid(f"{target!r} is no directory", hint="name the database with --db ID")
    return DirectoryTools(Path(target))
