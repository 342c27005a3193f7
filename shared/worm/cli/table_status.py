"""Is a model's table up to date? Decided from a listing of versions, the manifest, the indexes and the heads.

Fresh: everything that the listing shows is recorded, and what is recorded has been folded into manifest and indexes. A
document that breaks its schema is recorded by nobody; it is read to tell it from one that is merely waiting.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from worm.clock import iso_seconds
from worm.codec.strict_json import JsonValue
from worm.collections.collection import Collection
from worm.collections.heads import Heads
from worm.errors import Invalid
from worm.model import Worm
from worm.store.base import Version
from worm.tables.index import Index
from worm.tables.manifest import Manifest
from worm.tables.table import Table

ManifestState = Literal["fresh", "stale", "n/a"]


@dataclass(frozen=True, slots=True)
class TableStatus:
    """One row of `worm table list`."""

    model: str
    count: int
    manifest: ManifestState
    indexes: tuple[str, ...]
    last_updated: str | None

    def shape(self) -> JsonValue:
        return {
            "model": self.model,
            "count": self.count,
            "manifest": self.manifest,
            "indexes": list(self.indexes),
            "lastUpdated": self.last_updated,
        }


def table_status(session: Worm, name: str) -> TableStatus:
    """Requests: one listing page per 1,000 versions, one GET per derived file and per unrecorded document."""
    definition = session.schema.model(name)
    collection = Collection(session.store, session.resolver, name, definition, session.clock, session.ids)
    table = Table(collection)
    latest = dict(collection.latest_versions())
    indexes = tuple(index.field for index in definition.indexes.values())
    manifest = table.manifest.read() if definition.keeps_manifest else None
    if manifest is not None:
        state: ManifestState = "fresh" if _is_fresh(table, manifest, latest) else "stale"
        return TableStatus(name, manifest.count, state, indexes, manifest.last_updated or None)
    live = [version for version in latest.values() if not version.is_delete_marker]
    newest = max((iso_seconds(version.last_modified) for version in latest.values()), default=None)
    is_missing = definition.keeps_manifest and bool(latest)
    empty: ManifestState = "fresh" if definition.keeps_manifest else "n/a"
    return TableStatus(name, len(live), "stale" if is_missing else empty, indexes, newest)


def _is_fresh(table: Table, manifest: Manifest, latest: dict[str, Version]) -> bool:
    indexes_follow = all(
        (index := file.read()) is not None and index.is_current(Index.of(manifest, definition), definition)
        for definition, file in table.indexes
    )
    if not indexes_follow:
        return False
    if table.collection.definition.oplog:
        return _follows_oplog(table, manifest, latest)
    return manifest.etags == {one: version.etag for one, version in latest.items() if not version.is_delete_marker}


def _follows_oplog(table: Table, manifest: Manifest, latest: dict[str, Version]) -> bool:
    heads = (table.heads.read() or Heads(table.collection.name)).heads
    if {one: head.seq for one, head in heads.items()} != manifest.seqs:
        return False
    gone = any(head.live and one not in latest for one, head in heads.items())
    waiting = (
        (one, version)
        for one, version in latest.items()
        if not ((head := heads.get(one)) is not None and head.names(version))
        and not (version.is_delete_marker and (head is None or not head.live))
    )
    return not gone and not any(_is_valid(table.collection, one, version) for one, version in waiting)


def _is_valid(collection: Collection, entity_id: str, version: Version) -> bool:
    """Whether the newest version will be recorded: a deletion, or a document that keeps the schema."""
    if version.is_delete_marker:
        return True
    try:
        found = collection.documents.version(version)
        if found is not None:
            collection.documents.parse(entity_id, found)
    except Invalid:
        return False
    return True
