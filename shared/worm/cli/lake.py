"""`worm lake publish`, `status`, `vacuum`, `ddl`: the Delta table of a model."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from worm.cli.arguments import ModelName
from worm.cli.options import Session
from worm.cli.output import Report, ReportFormat, State, count, echo, echo_json, printable, size
from worm.formats import JsonObject
from worm.tables import Lake


class Engine(StrEnum):
    """Who reads the table."""

    athena = "athena"
    glue = "glue"
    duckdb = "duckdb"
    spark = "spark"
    trino = "trino"


def publish(session: Session, model: ModelName, format: Report = ReportFormat.table) -> None:
    """Publish the table of a model as the next version of its Delta table, unless nothing has changed.

    Files of the newest version that somebody deleted are written again.
    """
    found = session.model(model).publish()
    shape: JsonObject = {
        "version": found.version,
        "revision": found.revision,
        "added": found.added,
        "removed": found.removed,
    }
    if format is ReportFormat.json:
        echo_json(shape)
    elif found.added or found.removed:
        files = f"{count(found.added, 'file')} added, {found.removed} removed"
        echo(f"Published version {found.version} (revision {found.revision}): {files}")
    else:
        echo(f"Version {found.version} (revision {found.revision}) is up to date")


def status(session: Session, model: ModelName, format: State = ReportFormat.table) -> None:
    """Show where the Delta table of a model is, its newest version, and whether it is up to date.

    Exit code 1 if a file of the newest version is missing: `worm lake publish` writes it again.
    """
    found = session.model(model).get_lake_status()
    if format is ReportFormat.json:
        echo_json(found.shape())
    else:
        version = "none yet" if found.version is None else f"{found.version} (revision {found.revision})"
        echo(f"Location:  {printable(found.location)}")
        echo(f"Version:   {version}")
        if found.version is not None:
            behind = "no" if found.behind_seconds == 0 else f"at most {found.behind_seconds:,} s"
            echo(f"Published: {found.published}")
            echo(f"Behind:    {behind}")
            echo(f"Files:     {found.files:,} ({size(found.size_bytes)})")
        for file in found.missing:
            echo(f"missing    {printable(file)}: run `worm lake publish {model}`")
    if found.missing:
        raise typer.Exit(1)


def vacuum(
    session: Session,
    model: ModelName,
    retention_days: Annotated[
        int, typer.Option("--retention-days", min=0, help="Keep what versions of so many days need.")
    ] = Lake.RETENTION_DAYS,
    dry_run: Annotated[
        bool, typer.Option("--dry-run/--no-dry-run", help="Only show what would be deleted (default).")
    ] = True,
    format: Report = ReportFormat.table,
) -> None:
    """Delete files of the Delta table that no recent version needs, as the function `purge` does on a schedule."""
    keys = session.model(model).vacuum(retention_days=retention_days, dry_run=dry_run)
    told = (
        f"dry run; --no-dry-run will delete {count(len(keys), 'file')}"
        if dry_run
        else f"deleted {count(len(keys), 'file')}"
    )
    echo(f"worm: {told}", err=True)
    if format is ReportFormat.json:
        echo_json({"deleted": 0 if dry_run else len(keys), "keys": [*keys]})
        return
    for key in keys:
        echo(printable(key))


def ddl(
    session: Session,
    engine: Annotated[Engine, typer.Argument(metavar="ENGINE", help="athena, glue, duckdb, spark or trino.")],
    model: ModelName,
) -> None:
    """Print the statement that makes the Delta table of a model known to an engine."""
    echo(session.lake(model).ddl(engine.value))
