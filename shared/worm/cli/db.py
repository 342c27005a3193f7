"""`worm db …`: page stores."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, cast

import typer
from pydantic import ValidationError

from worm.cli.options import Target
from worm.cli.output import Report, ReportFormat, State, count, echo, echo_json, echo_table, printable, size
from worm.errors import Invalid, NotFound, show
from worm.formats import JsonObject, JsonValue, loads
from worm.pages import PageConfig, PageDb, PageReader, PageTools
from worm.store import Store

EXIT_DIFFERENCES = 1
MAIN = "main"
STAT_COLUMNS = ("Layers", "Count", "Versions", "Size")
BRANCH_COLUMNS = ("Branch", "Parent", "Forked At", "LSN", "Layers", "Size", "Created")

Page = Annotated[str, typer.Argument(metavar="PAGE", help="Id of the page.")]
Branching = Annotated[str, typer.Argument(metavar="BRANCH", help="The branch.")]
Db = Annotated[str, typer.Argument(metavar="NAME", help="Name of the page store.")]
Force = Annotated[bool, typer.Option("--force", help="Also allow it on a space.")]
BranchName = Annotated[str, typer.Option("--branch", metavar="BRANCH", help="The branch.")]
At = Annotated[str | None, typer.Option("--at", metavar="LSN|TIME", help="A past state: an LSN or an ISO 8601 time.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A setting, such as pitr_window_seconds=86400. May be repeated."),
]


def guard_space(store: Store, db: str, force: bool, breaks: str) -> None:
    """A space keeps its own order in its pages: the error says what the command would break."""
    tools = PageTools(store, db)
    if tools.kind() == "space" and not force:
        key = tools.log_keys().root
        raise Invalid(f"{db!r} is a space: {breaks}", key=key, hint="pass --force to do it anyway")


def configured(before: PageConfig, settings: list[str] | None) -> PageConfig:
    """The configuration with `--set` options; options of the log are `log.<name>`."""
    shape: JsonObject = before.model_dump(mode="json")
    for text in settings or []:
        name, equals, value = text.partition("=")
        *outer, last = name.split(".")
        inner = shape.get("log") if outer == ["log"] else shape if not outer else None
        if not equals or not isinstance(inner, dict) or last not in inner or last == "log":
            known = ", ".join(sorted({*shape, *(f"log.{one}" for one in before.log.model_dump())} - {"log"}))
            raise Invalid(f"--set {show(text)} does not name a setting", hint=f"write NAME=VALUE with one of: {known}")
        inner[last] = value if name == "cache_tier" else loads(value.encode())
    try:
        return PageConfig.model_validate(shape)
    except ValidationError as error:
        first = error.errors()[0]
        raise Invalid(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error


def create(target: Target, db: Db, settings: Settings = None) -> None:
    """Create a page store."""
    PageTools(target.store(for_writing=True), db).create(configured(PageConfig(), settings))
    echo(f"created {printable(db)}")


def configure(target: Target, db: Db, settings: Settings = None) -> None:
    """Show the settings of a page store, or change some with --set."""
    tools = PageTools(target.store(for_writing=bool(settings)), db)
    config = tools.configure((lambda before: configured(before, settings)) if settings else None)
    echo_json(config.model_dump(mode="json"))


def stat(target: Target, db: Db, branch: BranchName = MAIN, format: Report = ReportFormat.table) -> None:
    """Show sizes, a picture of the layers, and the costs of a read and a write."""
    found = PageTools(target.store(), db).stat(branch)
    if format is ReportFormat.json:
        echo_json(found.shape())
        return
    origin = "" if found.parent is None else f", forked from {printable(found.parent)} at LSN {found.base:,}"
    echo(f"branch {printable(found.name)}{origin}")
    echo(f"LSN {found.head_lsn:,}, in layers up to {found.lsn:,}, readable since {found.horizon:,}")
    rows = [[one.kind, f"{one.layers:,}", f"{one.versions:,}", size(one.bytes)] for one in found.kinds]
    rows.append(["log", f"{found.log_slots:,}", "-", size(found.log_bytes)])
    echo_table(STAT_COLUMNS, rows, right=STAT_COLUMNS[1:])
    echo(f"a read checks up to {found.read_max} layers, {found.read_mean:.1f} on average, before filters")
    if found.page_bytes:
        echo(f"{found.write_amplification:.2f} bytes stored per byte of pages ({size(found.page_bytes)})")
    for line in found.picture():
        echo(line)


def get(target: Target, db: Db, page: Page, at: At = None, branch: BranchName = MAIN) -> None:
    """Print the bytes of a page, now or at a past LSN or time."""
    store = target.store()
    reader = PageReader.open(store, db, branch=branch)
    data = reader.get_page(page, at)
    if data is None:
        raise NotFound(f"the page {show(page)} does not exist" + ("" if at is None else f" at {at}"))
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def put(
    target: Target,
    db: Db,
    page: Page,
    file: Annotated[str | None, typer.Argument(metavar="[FILE]", help="A file; `-` is stdin.")] = None,
    delete: Annotated[bool, typer.Option("--delete", help="Delete the page.")] = False,
    branch: BranchName = MAIN,
    force: Force = False,
) -> None:
    """Write a page, or delete it. This fences the current writer of the branch."""
    if delete == (file is not None):
        raise Invalid("name a FILE, or --delete")
    data = None if file is None else sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    store = target.store(for_writing=True)
    guard_space(store, db, force, "a page that the space did not write makes its documents and its log disagree")
    with PageDb.open(store, db, branch=branch, name="worm db put", kind=None) as writer:
        echo(f"LSN {writer.write({page: data})}")


def apply(target: Target, db: Db, branch: BranchName = MAIN) -> None:
    """Move what is only in the log into layers, as the function `apply` does."""
    store = target.store(for_writing=True)
    done = PageTools(store, db).apply(branch)
    echo(f"{count(done.segments, 'segment')} applied, up to LSN {done.lsn}")


def compact(
    target: Target,
    db: Db,
    branch: BranchName = MAIN,
    force: Annotated[bool, typer.Option("--force", help="Merge everything, not only what is due.")] = False,
) -> None:
    """Merge flushed layers, and create images where they are due."""
    store = target.store(for_writing=True)
    done = PageTools(store, db).compact(branch, force=force)
    made = f"{count(done.deltas, 'merged layer')}, {count(done.images, 'image')}"
    echo(f"{count(done.merged, 'layer')} merged: {made}; read {size(done.bytes_read)}")
    if not done.is_done:
        echo("there is more to do: run it again")


def gc(
    target: Target,
    db: Db,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be deleted.")] = False,
    force: Force = False,
    format: Report = ReportFormat.table,
) -> None:
    """Delete what can no longer be read: layers, old slots of the log, unreferenced objects."""
    store = target.store(for_writing=not dry_run)
    breaks = "its log before the window is deleted, and readers that follow the log from there must start over"
    guard_space(store, db, force or dry_run, breaks)
    done = PageTools(store, db).collect(dry_run=dry_run)
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
        echo("nothing was changed")


def verify(target: Target, db: Db, format: Report = ReportFormat.table) -> None:
    """Check every byte that a read could use: root, layers and logs on all branches. Reads only.

    Exit code 1 if something is wrong; each problem names its object.
    """
    found = [asdict(one) for one in PageTools(target.store(), db).verify()]
    if format is ReportFormat.json:
        echo_json({"clean": not found, "problems": cast(JsonValue, found)})
    else:
        for one in found:
            echo(f"{one['kind']}  {printable(one['key'])}: {printable(one['detail'])}")
        echo(count(len(found), "problem") if found else "no problems")
    if found:
        raise typer.Exit(EXIT_DIFFERENCES)


def repair(
    target: Target,
    db: Db,
    dry_run: Annotated[
        bool, typer.Option("--dry-run/--no-dry-run", help="Only show what would be rebuilt (default).")
    ] = True,
) -> None:
    """Rebuild a lost or damaged root from the other objects. For a log, a page store or a space."""
    done = PageTools(target.store(for_writing=not dry_run), db).repair(dry_run=dry_run)
    if done.source is None and not done.logs:
        echo(f"nothing to repair: the root of this {done.kind} database is intact")
        return
    if done.source is not None:
        origin = {"version": "its newest version", "backup": "its copy and the log", "log": "the log"}[done.source]
        echo(f"{'would rebuild' if dry_run else 'rebuilt'} the root ({done.kind}) from {origin}")
    for name in done.branches:
        echo(f"branch {printable(name)} is restored from its log")
    for name in done.logs:
        echo(f"the root of the log of branch {printable(name)} was missing")
    for what in done.lost:
        echo(f"lost: {what}")
    if dry_run:
        echo("nothing was changed; run it with --no-dry-run")


def maintain(target: Target, db: Db, format: Report = ReportFormat.table) -> None:
    """Apply, compact and collect everything that is due, on all branches, as the function `compact` does."""
    done = PageTools(target.store(for_writing=True), db).maintain()
    if format is ReportFormat.json:
        echo_json(cast(JsonObject, done.summary()))
        return
    made = f"{count(done.merged, 'layer')} merged, {count(done.images, 'image')}"
    echo(f"{count(done.applied, 'segment')} applied, {made}")
    freed = f"{count(done.deleted, 'object')} and {count(done.slots, 'log slot')} deleted, {size(done.bytes_freed)}"
    echo(f"{freed}; {count(done.dropped, 'layer')} dropped")


def pack(
    target: Target,
    db: Db,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The archive to write; it must not exist.")],
) -> None:
    """Pack a database of any kind into one archive file. Its writers can continue."""
    done = PageTools(target.store(), db).pack(file)
    echo(f"packed {printable(db)} ({done.kind}): {count(done.objects, 'object')}, {size(done.bytes)}")


def unpack(
    target: Target,
    db: Db,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The archive.")],
) -> None:
    """Unpack an archive into a new database. No database of this name may exist."""
    done = PageTools(target.store(for_writing=True), db).unpack(file)
    echo(f"unpacked {printable(db)} ({done.kind}): {count(done.objects, 'object')}, {size(done.bytes)}")


def delete(target: Target, db: Db) -> None:
    """Delete a database of any kind. Its writers are fenced. You can undelete it until maintenance removes it."""
    PageTools(target.store(for_writing=True), db).delete()
    echo(f"deleted {printable(db)}; `worm db undelete` restores it until maintenance removes it")


def undelete(target: Target, db: Db) -> None:
    """Restore a deleted database, as long as its objects still exist."""
    PageTools(target.store(for_writing=True), db).undelete()
    echo(f"{printable(db)} is back")


def restore(
    target: Target,
    db: Db,
    at: Annotated[str, typer.Option("--at", metavar="LSN|TIME", help="The state to restore.")],
    branch: BranchName = MAIN,
    to: Annotated[
        str | None, typer.Option("--to", metavar="NAME", help="Restore to a new branch of this name.")
    ] = None,
    in_place: Annotated[bool, typer.Option("--in-place", help="Restore on the branch itself, by new commits.")] = False,
    force: Force = False,
) -> None:
    """Restore a past state: as a new branch, or with --in-place by new commits. History stays either way."""
    if in_place == (to is not None):
        raise Invalid("name a new branch with --to NAME, or pass --in-place")
    store = target.store(for_writing=True)
    if to is not None:
        made = PageTools(store, db).branches().create(to, parent=branch, at=at)
        echo(f"branch {printable(to)} at LSN {made.base}")
        return
    guard_space(store, db, force, "commits since then are discarded, and their numbers are used again")
    lsn, changed = PageTools(store, db).restore(at, branch=branch, name="worm db restore")
    echo(f"{count(changed, 'page')} as at LSN {lsn}")


# Branches


def list_branches(target: Target, db: Db, format: State = ReportFormat.table) -> None:
    """All branches."""
    found = PageTools(target.store(), db).branches().list()
    if format is ReportFormat.json:
        echo_json([asdict(one) for one in found])
        return
    rows = [
        [one.name, one.parent or "-", f"{one.base:,}", f"{one.lsn:,}", f"{one.layers:,}", size(one.bytes), one.created]
        for one in found
    ]
    echo_table(BRANCH_COLUMNS, rows, right=BRANCH_COLUMNS[2:6])


def create_branch(
    target: Target,
    db: Db,
    name: Branching,
    parent: Annotated[str, typer.Option("--from", metavar="NAME", help="The branch to fork.")] = MAIN,
    at: At = None,
) -> None:
    """Fork a branch, now or at a past LSN or time."""
    store = target.store(for_writing=True)
    made = PageTools(store, db).branches().create(name, parent=parent, at=at)
    echo(f"branch {printable(name)} of {printable(made.parent or '')} at LSN {made.base}")


def delete_branch(target: Target, db: Db, name: Branching) -> None:
    """Delete a branch and the data that only it has. This fences its current writer."""
    PageTools(target.store(for_writing=True), db).branches().delete(name)
    echo(f"deleted {printable(name)}")


def undelete_branch(target: Target, db: Db, name: Branching) -> None:
    """Always fails, with the reason: a page store does not keep deleted branches."""
    PageTools(target.store(), db).branches().undelete(name)


def reset_branch(target: Target, db: Db, name: Branching, at: At = None, force: Force = False) -> None:
    """Discard what was written on a branch, and fork it from its parent again."""
    store = target.store(for_writing=True)
    guard_space(store, db, force, "commits of this branch are discarded, and their numbers are used again")
    made = PageTools(store, db).branches().reset(name, at=at)
    echo(f"branch {printable(name)} of {printable(made.parent or '')} at LSN {made.base}")


def diff_branches(
    target: Target,
    db: Db,
    before: Annotated[str, typer.Argument(metavar="BRANCH", help="The first branch.")],
    after: Annotated[str, typer.Argument(metavar="OTHER", help="The branch to compare it with.")] = MAIN,
) -> None:
    """List the pages that differ between two branches: `+` only on the other, `-` only on the first, `~` on both."""
    found = 0
    for one in PageTools(target.store(for_writing=True), db).differences(before, after):
        sign = "+" if one.before is None else "-" if one.after is None else "~"
        echo(f"{sign} {printable(one.page)}  {len(one.before or b''):,} -> {len(one.after or b''):,} bytes")
        found += 1
    echo(f"{count(found, 'page')} different")
