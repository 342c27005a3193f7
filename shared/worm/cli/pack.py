"""`worm pack`, `worm unpack`: the store of a directory as one file, and back."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from worm.cli.output import count, printable
from worm.journal import pack as archives


def pack(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The store's directory; it must not be open.")],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The archive to write; it must not exist.")],
) -> None:
    """Write a store into one archive file. The same store gives the same bytes."""
    _show("packed", archives.pack(directory, file))


def unpack(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The archive.")],
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A directory that does not exist, or is empty.")],
) -> None:
    """Make a store of an archive. Everything is checked first: the directory then has all of it, or nothing."""
    _show("unpacked", archives.unpack(file, directory))


def _show(done: str, report: archives.PackReport) -> None:
    figures = f"{count(report.files, 'file')}, {count(report.size, 'byte')}"
    content = f"{count(report.records, 'record')}, {count(report.documents, 'document')}"
    typer.echo(f"{done} {printable(report.path)}: {figures}; {content}")
