"""`worm db …`: page stores."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from worm.cli import db_branch
from worm.cli.db_stat import show_stat, stat_shape
from worm.cli.db_target import At, BranchName, Db, DbTarget, Settings, configured
from worm.cli.options import EndpointUrl, Url
from worm.cli.options import target as shared_target
from worm.cli.output import ReportFormat, count, echo_json, echo_table, printable, size
from worm.clock import Ids, SystemClock
from worm.errors import Invalid, NotFound
from worm.pages.apply import Applier, databases
from worm.pages.branches import Branches
from worm.pages.collect import PageCollector
from worm.pages.compact import Compactor
from worm.pages.config import PageConfig
from worm.pages.db import PageDb, create_database
from worm.pages.manifest import MAIN, PagesRoot
from worm.pages.reader import PageReader
from worm.pages.stat import branch_stat

Format = Annotated[ReportFormat, typer.Option("--format", help="How to show the report.")]
Page = Annotated[str, typer.Argument(metavar="PAGE", help="The page's id.")]

app = typer.Typer(help="Page stores: pages with all their versions, branches, the past.", no_args_is_help=True)
app.add_typer(db_branch.app, name="branch")


@app.command("list")
def list_databases(context: typer.Context, url: Url = None, endpoint_url: EndpointUrl = None) -> None:
    """The databases of a bucket."""
    store = shared_target(context, url, endpoint_url).store()
    for db_id in sorted(databases(store)):
        typer.echo(printable(db_id))


@app.command("create")
def create(
    context: typer.Context, db: Db, settings: Settings = None, url: Url = None, endpoint_url: EndpointUrl = None
) -> None:
    """Make a page store."""
    chosen = DbTarget.of(context, db, url, endpoint_url, for_writing=True)
    create_database(chosen.store, db, configured(PageConfig(), settings))
    typer.echo(f"created {printable(db)}")


@app.command("configure")
def configure(
    context: typer.Context, db: Db, settings: Settings = None, url: Url = None, endpoint_url: EndpointUrl = None
) -> None:
    """Show the settings of a page store, or change some with --set."""
    chosen = DbTarget.of(context, db, url, endpoint_url, for_writing=bool(settings))
    clock = SystemClock()
    root = PagesRoot(chosen.store, db, clock=clock, ids=Ids.system(clock))
    pages = root.read()
    if settings:
        pages = root.change(
            lambda now: (
                now.model_copy(update={"config": configured(now.config, settings)})
                if configured(now.config, settings) != now.config
                else None
            )
        )
    echo_json(pages.config.model_dump(mode="json"))


@app.command("stat")
def stat(
    context: typer.Context,
    db: Db,
    branch: BranchName = MAIN,
    format: Format = ReportFormat.table,
    url: Url = None,
    endpoint_url: EndpointUrl = None,
) -> None:
    """Sizes, the layers as a picture, what a read asks and what a write costs."""
    chosen = DbTarget.of(context, db, url, endpoint_url)
    found = branch_stat(chosen.store, db, branch)
    if format is ReportFormat.json:
        echo_json(stat_shape(found))
    else:
        show_stat(found, PageReader.open(chosen.store, db, branch=branch).pages.branch(branch))


@app.command("get")
def get(
    context: typer.Context,
    db: Db,
    page: Page,
    at: At = None,
    branch: BranchName = MAIN,
    url: Url = None,
    endpoint_url: EndpointUrl = None,
) -> None:
    """The bytes of a page, now or at a past LSN or time."""
    chosen = DbTarget.of(context, db, url, endpoint_url)
    reader = PageReader.open(chosen.store, db, branch=branch)
    data = reader.get_page(page, chosen.lsn(at, branch))
    if data is None:
        raise NotFound(f"there is no page {page!r}" + ("" if at is None else f" at {at}"))
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


@app.command("put")
def put(
    context: typer.Context,
    db: Db,
    page: Page,
    file: Annotated[str | None, typer.Argument(metavar="[FILE]", help="A file; `-` is the standard input.")] = None,
    delete: Annotated[bool, typer.Option("--delete", help="Delete the page.")] = False,
    branch: BranchName = MAIN,
    url: Url = None,
    endpoint_url: EndpointUrl = None,
) -> None:
    """Write a page, or delete it. Whoever writes this branch at the moment is fenced."""
    if delete == (file is not None):
        raise Invalid("name a FILE, or --delete")
    data = None if file is None else sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    chosen = DbTarget.of(context, db, url, endpoint_url, for_writing=True)
    with PageDb.open(chosen.store, db, branch=branch, name="worm db put") as writer:
        typer.echo(f"LSN {writer.write({page: data})}")


@app.command("apply")
def apply(
    context: typer.Context, db: Db, branch: BranchName = MAIN, url: Url = None, endpoint_url: EndpointUrl = None
) -> None:
    """Put what is only in the log into layers, as the function `apply` does."""
    chosen = DbTarget.of(context, db, url, endpoint_url, for_writing=True)
    done = Applier(chosen.store, db).run(branch)
    typer.echo(f"{count(done.segments, 'segment')} applied, up to LSN {done.lsn}")


@app.command("compact")
def compact(
    context: typer.Context,
    db: Db,
    branch: BranchName = MAIN,
    force: Annotated[bool, typer.Option("--force", help="Whatever there is, not only what is due.")] = False,
    url: Url = None,
    endpoint_url: EndpointUrl = None,
) -> None:
    """Merge flushed layers, and make images where they are due."""
    chosen = DbTarget.of(context, db, url, endpoint_url, for_writing=True)
    done = Compactor(chosen.store, db).run(branch, force=force)
    made = f"{count(done.deltas, 'merged layer')}, {count(done.images, 'image')}"
    typer.echo(f"{count(done.merged, 'layer')} merged: {made}; read {size(done.bytes_read)}")
    if not done.is_done:
        typer.echo("there is more to do: run it again")


@app.command("gc")
def gc(
    context: typer.Context,
    db: Db,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    format: Format = ReportFormat.table,
    url: Url = None,
    endpoint_url: EndpointUrl = None,
) -> None:
    """Delete what nobody can read any more: layers, old slots of the log, objects that were never named."""
    chosen = DbTarget.of(context, db, url, endpoint_url, for_writing=not dry_run)
    done = PageCollector(chosen.store, db).run(dry_run=dry_run)
    if format is ReportFormat.json:
        shape = asdict(done)
        echo_json(
            {"dryRun": dry_run, **{name: list(one) if isinstance(one, tuple) else one for name, one in shape.items()}}
        )
        return
    columns = ("Layers Dropped", "Objects Deleted", "Never Named", "Log Slots", "Bytes", "Waiting")
    figures = (len(done.dropped), len(done.deleted), len(done.orphans), done.slots, done.bytes + done.slot_bytes)
    echo_table(columns, [[f"{one:,}" for one in (*figures, done.waiting)]], right=columns)
    if dry_run:
        typer.echo("nothing was changed")


@app.command("restore")
def restore(
    context: typer.Context,
    db: Db,
    at: Annotated[str, typer.Option("--at", metavar="LSN|TIME", help="The state to bring back.")],
    branch: BranchName = MAIN,
    to: Annotated[str | None, typer.Option("--to", metavar="NAME", help="As a new branch of this name.")] = None,
    in_place: Annotated[bool, typer.Option("--in-place", help="On the branch itself, by new commits.")] = False,
    url: Url = None,
    endpoint_url: EndpointUrl = None,
) -> None:
    """Bring a past state back: as a new branch, or with --in-place by new commits; history stays either way."""
    if in_place == (to is not None):
        raise Invalid("name a new branch with --to NAME, or say --in-place")
    chosen = DbTarget.of(context, db, url, endpoint_url, for_writing=True)
    lsn = chosen.lsn(at, branch) or 0
    if to is not None:
        made = Branches(chosen.store, db).create(to, parent=branch, at=lsn)
        typer.echo(f"branch {printable(to)} at LSN {made.base}")
        return
    with PageDb.open(chosen.store, db, branch=branch, name="worm db restore") as writer:
        changed = chosen.past.restore(writer, lsn)
    typer.echo(f"{count(changed, 'page')} as at LSN {lsn}")
