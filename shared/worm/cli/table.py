"""`worm table list`, `inspect`, `rebuild`: list the tables, show the state of one, and rebuild them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated

import typer

from worm.cli.arguments import ModelName, complete_model
from worm.cli.options import Session, Target
from worm.cli.output import ReportFormat, State, count, echo, echo_json, echo_table, printable, progress_bar, size
from worm.errors import Corrupt, Invalid
from worm.formats import JsonObject, ModelDef
from worm.sdk import Worm
from worm.store import in_parallel
from worm.tables import IndexStatus, ManifestStatus

COLUMNS = ("Model", "Count", "Manifest", "Indexes", "Last Updated")
WIDTHS_MIN = (13, 8, 10, 20, 22)
SAMPLES = 20


def list_tables(session: Session, format: State = ReportFormat.table) -> None:
    """List all models with the state of their tables.

    A manifest is stale while it lacks a change of a document, fresh otherwise, and n/a if the model keeps none.
    """
    found = [_table_state(session, name) for name in session.schema.models]
    if format is ReportFormat.json:
        echo_json([*found])
    else:
        echo_table(COLUMNS, [_table_row(one) for one in found], right=["Count"], widths_min=WIDTHS_MIN)


def _table_state(session: Worm, name: str) -> JsonObject:
    definition, status = session.schema.model(name), session.model(name).get_manifest_status()
    kept = "fresh" if status.fresh else "stale"
    return {
        "model": name,
        "count": status.count,
        "manifest": kept if definition.keeps_manifest else "n/a",
        "indexes": [index.field for index in definition.indexes.values()],
        "lastUpdated": status.last_updated,
    }


def _table_row(state: JsonObject) -> list[str]:
    indexes = state["indexes"]
    return [
        str(state["model"]),
        f"{state['count']:,}",
        str(state["manifest"]),
        ", ".join(map(str, indexes)) if isinstance(indexes, list) and indexes else "--",
        str(state["lastUpdated"] or "--"),
    ]


@dataclass(frozen=True, slots=True)
class Inspected:
    """The state of a table. `bytes` is the size of the documents."""

    definition: ModelDef
    status: ManifestStatus
    indexes: list[IndexStatus]
    bytes: int
    is_estimated: bool

    @property
    def state(self) -> str:
        if not self.definition.keeps_manifest:
            return "n/a"
        if not self.status.exists:
            return "empty" if self.status.fresh else "missing"
        return "fresh" if self.status.fresh else "stale"

    @property
    def fields(self) -> Sequence[str]:
        return self.status.fields or self.definition.table_fields()


def inspect(session: Session, model: ModelName, format: State = ReportFormat.table) -> None:
    """Show a collection with the state of its manifest and its indexes."""
    found = _inspected(session, model)
    if format is ReportFormat.json:
        echo_json(_shape(found))
        return
    definition = found.definition
    _show([("Model", definition.name), ("Path", definition.path), ("Mode", definition.mode)])
    _section("Collection", _collection(found))
    _section("Manifest", _manifest(found))
    _section("Indexes", [(index.name, *_index(index)) for index in found.indexes])


def _inspected(session: Worm, name: str) -> Inspected:
    documents, definition = session.model(name), session.schema.model(name)
    status = documents.get_manifest_status()
    estimate = _estimated_bytes(session, name) if status.exists else None
    return Inspected(
        definition,
        status,
        documents.get_index_status() if definition.indexes else [],
        _listed_bytes(session, name) if estimate is None else estimate,
        estimate is not None,
    )


def _estimated_bytes(session: Worm, name: str) -> int | None:
    """The size of all documents, estimated from a sample of the manifest's ids; None if it has none."""
    state = session.model(name).table.view()
    ids = [] if state is None else list(state.rows)
    chosen = ids[:: max(1, len(ids) // SAMPLES)][:SAMPLES]
    heads = in_parallel(lambda one: session.store.head(session.resolver.document_key(name, one)), chosen)
    sizes = [head.size for head in heads if head is not None]
    return round(sum(sizes) / len(sizes) * len(ids)) if sizes else None


def _listed_bytes(session: Worm, name: str) -> int:
    versions = session.collection(name).latest_versions()
    return sum(version.size for _, version in versions if not version.is_delete_marker)


# For people

Line = tuple[str, ...]
"""A label and its columns."""


def _collection(found: Inspected) -> list[Line]:
    stored = size(found.bytes)
    return [
        ("Count", f"{found.status.count:,}"),
        ("Size", f"~{stored} (estimated from manifest)" if found.is_estimated else stored),
        ("Last Updated", found.status.last_updated or "--"),
    ]


def _manifest(found: Inspected) -> list[Line]:
    lines: list[Line] = [("Status", f"{found.state} ({_reason(found)})")]
    if not found.definition.keeps_manifest:
        return lines
    if found.status.exists:
        lines.append(("Size", size(found.status.size_bytes)))
    lines.append(("Fields", ", ".join(found.fields)))
    lines.append(("Auto-update", "enabled" if found.definition.manifest.auto_update else "disabled"))
    if found.status.partitioned:
        lines.append(("Partitions", f"{found.status.partitions:,}, {count(found.status.deltas, 'delta file')}"))
    return lines


def _reason(found: Inspected) -> str:
    if found.state == "stale" and any(not index.exists for index in found.indexes):
        return "an index is missing or damaged"
    return {
        "n/a": "not enabled",
        "empty": "no documents yet",
        "missing": f"or damaged: run `worm table rebuild {found.definition.name}`",
        "stale": "it lacks a change",
        "fresh": "checksum verified",
    }[found.state]


def _index(index: IndexStatus) -> Line:
    kind = f"{index.field} ({'unique' if index.unique else index.type})"
    if not index.exists:
        return kind, "missing or damaged"
    filled = count(index.values, "entry" if index.unique else "distinct value")
    return kind, f"{filled}, {count(index.conflicts, 'conflict')}" if index.conflicts else filled


def _section(title: str, lines: list[Line]) -> None:
    echo(f"\n{title}:")
    _show(lines or [("none",)], indent="  ")


def _show(lines: list[Line], indent: str = "") -> None:
    """Labels and columns aligned."""
    shown = [(f"{line[0]}:", *line[1:]) if len(line) > 1 else line for line in lines]
    widths = [max(len(line[at]) for line in shown if at < len(line)) for at in range(max(map(len, shown)))]
    for line in shown:
        text = "  ".join(part.ljust(width) for part, width in zip(line, widths, strict=False))
        echo(indent + printable(text.rstrip()))


# For programs


def _shape(found: Inspected) -> JsonObject:
    status, definition = found.status, found.definition
    return {
        "model": definition.name,
        "path": definition.path,
        "mode": definition.mode,
        "collection": {
            "count": status.count,
            "sizeBytes": found.bytes,
            "sizeEstimated": found.is_estimated,
            "lastUpdated": status.last_updated,
        },
        "manifest": {
            "status": found.state,
            **status.shape(),
            "fields": list(found.fields) if definition.keeps_manifest else [],
            "autoUpdate": definition.keeps_manifest and definition.manifest.auto_update,
            "partitions": status.partitions,
            "deltas": status.deltas,
        },
        "indexes": [_index_shape(index) for index in found.indexes],
    }


def _index_shape(index: IndexStatus) -> JsonObject:
    shape: JsonObject = asdict(index)
    shape["sizeBytes"] = shape.pop("size_bytes")
    return shape


def rebuild(
    target: Target,
    model: Annotated[
        str | None,
        typer.Argument(metavar="[MODEL]", help="Name of the model.", autocompletion=complete_model),
    ] = None,
    all_models: Annotated[bool, typer.Option("--all", help="All models with a table.")] = False,
    spark: Annotated[bool, typer.Option("--spark", help="Use a Spark session on this machine.")] = False,
) -> None:
    """Rebuild manifest and indexes from the documents and their history. Safe while workers run.

    Exit code 9 if the history of a document is damaged: its row then shows the stored document.
    """
    if all_models is (model is not None):
        raise Invalid("name a model, or pass --all", hint="worm table rebuild MODEL")
    session = target.connect()
    names = _kept(session) if model is None else [_keeping(session, model)]
    if spark:
        _rebuild_by_spark(session, names, target.endpoint_url)
        return
    damaged = 0
    for at, name in enumerate(names):
        if at:
            echo("")
        _rebuild(session, name)
        damaged += _show_damaged(session, name)
    if damaged:
        raise typer.Exit(Corrupt.exit_code)


def _kept(session: Worm) -> list[str]:
    return [name for name, definition in session.schema.models.items() if definition.keeps_manifest]


def _keeping(session: Worm, model: str) -> str:
    if not session.schema.model(model).keeps_manifest:
        hint = 'set "manifest": {"enabled": true} for it in schema.json, and push the schema'
        raise Invalid(f"{model} keeps no manifest", hint=hint)
    return model


def _rebuild_by_spark(session: Worm, names: list[str], endpoint_url: str | None) -> None:
    """Writes the same bytes as without Spark. The jobs import Spark, which no other command needs."""
    try:
        from worm.spark import rebuild_models
    except ImportError as error:
        hint = 'pip install "s3worm[spark]"; it needs Java 17 or newer'
        raise Invalid(f"Spark is not installed here ({error.name})", hint=hint) from error
    session.ensure_safe_store()
    reports = rebuild_models(session.store.url, endpoint_url, names)
    for report in reports:
        echo(report.summary())
        for entity_id, reason in report.damaged:
            echo(f"damaged  {printable(entity_id)}: the table has the stored document; {printable(reason)}")
    if any(report.damaged for report in reports):
        raise typer.Exit(Corrupt.exit_code)


def _rebuild(session: Worm, name: str) -> None:
    """A line is printed when its step is done, because a bar may be on the terminal until then."""
    documents, started = session.model(name), session.clock.monotonic()
    echo(f"Scanning collection: {session.resolver.collection_path(name)}")
    with progress_bar("Building manifest") as show:
        status = documents.build_manifest(progress=show)
    echo(f"Found {count(status.count, 'entity')}")
    echo(f"Building manifest... done ({size(status.size_bytes)})")
    for index in session.schema.model(name).indexes:
        built = documents.build_index(index)
        echo(f"Building index: {built.field}... done ({_filled(built)})")
    echo(f"Rebuild complete in {session.clock.monotonic() - started:.1f}s")


def _show_damaged(session: Worm, name: str) -> int:
    """The documents of which the table has only the stored state, and why."""
    damaged = session.model(name).table.damaged
    for entity_id, damage in sorted(damaged.items()):
        echo(f"damaged  {printable(entity_id)}: the table has the stored document; {printable(damage.for_shell())}")
    return len(damaged)


def _filled(index: IndexStatus) -> str:
    filled = count(index.values, "entry" if index.unique else "value")
    return f"{filled}, {count(index.conflicts, 'conflict')}" if index.conflicts else filled
