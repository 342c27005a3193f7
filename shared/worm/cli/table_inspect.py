"""`worm table inspect`: one collection, its manifest and its indexes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated

import typer

from worm.cli.arguments import ModelName
from worm.cli.options import EndpointUrl, Url, target
from worm.cli.output import ReportFormat, count, echo_json, printable, size
from worm.codec.strict_json import JsonObject
from worm.collections.collection import Collection
from worm.model import Worm
from worm.schema import ModelDef
from worm.sdk.tabling import IndexStatus, ManifestStatus
from worm.store.parallel import in_parallel

SAMPLES = 20


@dataclass(frozen=True, slots=True)
class Inspected:
    """What there is to say. `bytes` are those of the documents."""

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


def inspect(
    context: typer.Context,
    model: ModelName,
    format: Annotated[ReportFormat, typer.Option("--format", help="How to show it.")] = ReportFormat.table,
    url: Url = None,
    endpoint_url: EndpointUrl = None,
) -> None:
    """Show a collection with the state of its manifest and its indexes."""
    session = target(context, url, endpoint_url).connect()
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
    """Bytes of all documents by some of them, evenly spread over the manifest's ids; None where it names none."""
    state = session.model(name).table.state()
    ids = [] if state is None else list(state.rows)
    chosen = ids[:: max(1, len(ids) // SAMPLES)][:SAMPLES]
    heads = in_parallel(lambda one: session.store.head(session.resolver.document_key(name, one)), chosen)
    sizes = [head.size for head in heads if head is not None]
    return round(sum(sizes) / len(sizes) * len(ids)) if sizes else None


def _listed_bytes(session: Worm, name: str) -> int:
    definition = session.schema.model(name)
    collection = Collection(session.store, session.resolver, name, definition, session.clock, session.ids)
    return sum(version.size for _, version in collection.latest_versions() if not version.is_delete_marker)


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
        "stale": "a change is not in it yet",
        "fresh": "checksum verified",
    }[found.state]


def _index(index: IndexStatus) -> Line:
    kind = f"{index.field} ({'unique' if index.unique else index.type})"
    if not index.exists:
        return kind, "missing or damaged"
    filled = count(index.values, "entry" if index.unique else "distinct value")
    return kind, f"{filled}, {count(index.conflicts, 'conflict')}" if index.conflicts else filled


def _section(title: str, lines: list[Line]) -> None:
    typer.echo(f"\n{title}:")
    _show(lines or [("none",)], indent="  ")


def _show(lines: list[Line], indent: str = "") -> None:
    """Labels and columns aligned."""
    shown = [(f"{line[0]}:", *line[1:]) if len(line) > 1 else line for line in lines]
    widths = [max(len(line[at]) for line in shown if at < len(line)) for at in range(max(map(len, shown)))]
    for line in shown:
        text = "  ".join(part.ljust(width) for part, width in zip(line, widths, strict=False))
        typer.echo(indent + printable(text.rstrip()))


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
