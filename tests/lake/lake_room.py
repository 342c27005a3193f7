"""A data path whose model is also a Delta table, and what deltalake reads there."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from tests.harness import DataPath, schema_of
from worm.store.base import Store
from worm.tables.lake.lake import Lake
from worm.tables.lake.publish import Publication

DIRECTORY = "org/customers/.worm.lake/"
LOG = f"{DIRECTORY}_delta_log/"
TIP = f"{DIRECTORY}_worm.json"
FIELDS: dict[str, object] = {
    "name": {"type": "string"},
    "status": {"type": "string"},
    "score": {"type": "number"},
    "visits": {"type": "integer"},
    "active": {"type": "boolean"},
    "since": {"type": "datetime"},
    "tags": {"type": "array", "items": "string"},
    "home": {"type": "object", "properties": {"city": {"type": "string"}, "zip": {"type": "integer"}}},
}
Rows = dict[str, dict[str, Any]]


def lake_path(*, threshold: int = 4, partitions: int = 3, every: str = "9000w", **customer: object) -> DataPath:
    """Nothing but `publish` adds a version after the first one, unless `every` is shorter."""
    manifest = {"enabled": True, "partitionThreshold": threshold, "maxPartitions": partitions}
    customer = {"fields": FIELDS, "manifest": manifest, "indexes": {}, "lake": {"every": every}, **customer}
    return DataPath(schema_of(storage=None, **customer))


def document(number: int) -> dict[str, Any]:
    return {"name": f"n{number}", "score": number / 2, "visits": number, "tags": [f"t{number % 3}"], "extra": [number]}


def fill(path: DataPath, count: int, *, first: int = 0) -> None:
    for number in range(first, first + count):
        path.put(f"c{number:03d}", document(number))
    path.settle()


def lake_of(path: DataPath) -> Lake:
    """That of a new process."""
    path.new_workers(path.store)
    path.workspace.refresh()
    return path.workspace.lake("Customer")


def publish(path: DataPath) -> Publication:
    return lake_of(path).publish()


def opened(store: Store, folder: Path, version: int | None = None) -> DeltaTable:
    """The table as deltalake sees it, in a copy of the objects."""
    shutil.rmtree(folder, ignore_errors=True)
    for one in store.list(DIRECTORY):
        found = store.get(one.key)
        assert found is not None
        file = folder / one.key.removeprefix(DIRECTORY)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(found.body)
    return DeltaTable(folder, version=version)


def published(table: DeltaTable) -> Rows:
    """The documents of the version, put together from typed columns and the rest."""
    rows: Rows = {}
    for row in table.to_pyarrow_table().to_pylist():
        rest = row.pop("_rest")
        entity_id = row.pop("id")
        del row["_seq"], row["_etag"]
        typed = {name: value for name, value in row.items() if value is not None}
        rows[entity_id] = shown(typed | (json.loads(rest) if rest is not None else {}))
    return rows


def shown(document: Mapping[str, Any]) -> dict[str, Any]:
    """Comparable: a time is a time, and a struct has no empty members."""
    return {name: _comparable(value) for name, value in document.items()}


def _comparable(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC)
    if isinstance(value, dict):
        return {name: one for name, one in value.items() if one is not None}
    if isinstance(value, str) and len(value) == len("2026-01-31T12:00:00Z") and value.endswith("Z"):
        return datetime.fromisoformat(value)
    return value


def current(path: DataPath) -> Rows:
    """The documents as they are now, without the table."""
    found: Rows = {}
    for one in path.store.list("org/customers/"):
        parts = one.key.split("/")
        if parts[-1] == "profile.json" and len(parts) == 4:
            body = path.store.get(one.key)
            assert body is not None
            found[parts[2]] = shown(json.loads(body.body))
    return found


def revision(path: DataPath) -> int:
    """From the histories alone."""
    return sum(seqs.last for seqs in path.collection.recorded_seqs().values())
