"""`worm repair`: record what no event reported, and rebuild what is derived. Safe beside running workers."""

from __future__ import annotations

import math
from typing import Annotated

import typer

from worm.cli.options import EndpointUrl, Url, chosen_models, target
from worm.cli.output import echo_table, printable
from worm.collections.claims import restore_claims
from worm.collections.collection import Collection
from worm.collections.companions import failure_of
from worm.errors import WormError
from worm.model import Worm
from worm.tables.verify import outdated
from worm.workers.materialize import Materializer
from worm.workers.settings import Settings
from worm.workers.sweep import Sweep
from worm.workers.workspace import Workspace

COLUMNS = ("Model", "Looked At", "Recorded", "Rows")


def repair(
    context: typer.Context,
    models: Annotated[
        list[str] | None, typer.Argument(metavar="MODEL", help="Models to repair; without one, all.")
    ] = None,
    url: Url = None,
    endpoint_url: EndpointUrl = None,
) -> None:
    """Write missing oplog entries from the documents, then time marks, manifests, indexes, heads and claims from the
    oplogs.

    Existing oplog entries are never changed, and documents only where their model is in a space: what its log has
    and they have not is brought. Run `worm verify` to see what is left.
    """
    session = target(context, url, endpoint_url).connect()
    names = chosen_models(session, models)
    session.ensure_safe_store()
    workspace = Workspace(session.store, Settings(bucket=session.store.url), ids=session.ids, clock=session.clock)
    rows, problems = [], dict[str, str]()
    for name in names:
        problems.update(_mend(workspace, name))
        report = Sweep(workspace).run(lambda: math.inf, [name], resume=False)[0]
        if report.error is not None:
            problems[report.error.key or name] = report.error.message
        table = workspace.table(name)
        problems.update(_mark(workspace, table.collection))
        manifest = table.rebuild()
        if manifest is not None:
            claimed = restore_claims(table.collection.claims, manifest.entities)
            problems.update({found.key: found.detail for found in claimed.conflicts})
        shown = "--" if manifest is None else f"{manifest.count:,}"
        rows.append([name, f"{report.listed:,}", f"{report.recorded:,}", shown])
        problems.update({_key(session, name, entity_id): reason for entity_id, reason in report.problems.items()})
    echo_table(COLUMNS, rows, right=COLUMNS[1:])
    for key, reason in sorted(problems.items()):
        typer.echo(f"left as it is  {printable(key)}: {printable(reason)}")


def _mend(workspace: Workspace, name: str) -> dict[str, str]:
    """Documents that are of an older commit than the log of their space has; the reason where that cannot be told."""
    workspace.refresh()
    materializer = Materializer.of(workspace)
    try:
        for entity_id, _, _ in outdated(workspace.table(name).collection):
            materializer.mend(name, entity_id)
    except WormError as error:
        return {error.key or name: error.message}
    return {}


def _mark(workspace: Workspace, collection: Collection) -> dict[str, str]:
    """Write the time marks that are missing; the reasons by key where one could not be."""

    def one(unmarked: tuple[str, int]) -> WormError | None:
        return failure_of(lambda: collection.mark(*unmarked))

    missing = collection.unmarked() if collection.definition.oplog else []
    failures = zip(missing, workspace.in_parallel(one, missing), strict=True)
    return {collection.oplog.key(*unmarked): f"no time mark: {error}" for unmarked, error in failures if error}


def _key(session: Worm, model: str, entity_id: str) -> str:
    return session.resolver.document_key(model, entity_id)
