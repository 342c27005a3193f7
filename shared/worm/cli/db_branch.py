"""`worm db branch …`: branches of a page store."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from worm.cli.db_target import At, Db, DbTarget
from worm.cli.options import EndpointUrl, Url
from worm.cli.output import ReportFormat, count, echo_json, echo_table, printable, size
from worm.pages.branches import Branches
from worm.pages.manifest import MAIN

Format = Annotated[ReportFormat, typer.Option("--format", help="How to show it.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="The branch.")]
COLUMNS = ("Branch", "Parent", "Forked At", "LSN", "Layers", "Size", "Created")

app = typer.Typer(help="Branches: list, create, delete, reset, compare.", no_args_is_help=True)


@app.command("list")
def list_branches(
    context: typer.Context,
    db: Db,
    format: Format = ReportFormat.table,
    url: Url = None,
    endpoint_url: EndpointUrl = None,
) -> None:
    """All branches."""
    found = Branches(DbTarget.of(context, db, url, endpoint_url).store, db).list()
    if format is ReportFormat.json:
        echo_json([asdict(one) for one in found])
        return
    rows = [
        [one.name, one.parent or "-", f"{one.base:,}", f"{one.lsn:,}", f"{one.layers:,}", size(one.bytes), one.created]
        for one in found
    ]
    echo_table(COLUMNS, rows, right=COLUMNS[2:6])


@app.command("create")
def create(
    context: typer.Context,
    db: Db,
    name: Name,
    parent: Annotated[str, typer.Option("--from", metavar="NAME", help="The branch to fork.")] = MAIN,
    at: At = None,
    url: Url = None,
    endpoint_url: EndpointUrl = None,
) -> None:
    """Fork a branch, now or at a past LSN or time."""
    chosen = DbTarget.of(context, db, url, endpoint_url, for_writing=True)
    made = Branches(chosen.store, db).create(name, parent=parent, at=chosen.lsn(at, parent))
    typer.echo(f"branch {printable(name)} of {printable(made.parent or '')} at LSN {made.base}")


@app.command("delete")
def delete(context: typer.Context, db: Db, name: Name, url: Url = None, endpoint_url: EndpointUrl = None) -> None:
    """Delete a branch and what only it has. Whoever writes it is fenced."""
    Branches(DbTarget.of(context, db, url, endpoint_url, for_writing=True).store, db).delete(name)
    typer.echo(f"deleted {printable(name)}")


@app.command("reset")
def reset(
    context: typer.Context, db: Db, name: Name, at: At = None, url: Url = None, endpoint_url: EndpointUrl = None
) -> None:
    """Throw away what was written on a branch, and fork it from its parent again."""
    chosen = DbTarget.of(context, db, url, endpoint_url, for_writing=True)
    branches = Branches(chosen.store, db)
    parent = branches.root.read().branch(name).parent or MAIN
    made = branches.reset(name, at=chosen.lsn(at, parent))
    typer.echo(f"branch {printable(name)} of {printable(made.parent or '')} at LSN {made.base}")


@app.command("diff")
def diff(
    context: typer.Context,
    db: Db,
    before: Annotated[str, typer.Argument(metavar="BRANCH", help="The one side.")],
    after: Annotated[str, typer.Argument(metavar="OTHER", help="The other side.")] = MAIN,
    url: Url = None,
    endpoint_url: EndpointUrl = None,
) -> None:
    """The pages that are different on two branches: `+` only on the other, `-` only on the first, `~` on both."""
    past = DbTarget.of(context, db, url, endpoint_url, for_writing=True).past
    found = 0
    for one in past.differences(past.state(before), past.state(after)):
        sign = "+" if one.before is None else "-" if one.after is None else "~"
        typer.echo(f"{sign} {printable(one.page)}  {len(one.before or b''):,} -> {len(one.after or b''):,} bytes")
        found += 1
    typer.echo(f"{count(found, 'page')} different")
