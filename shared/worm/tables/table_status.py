"""Whether a table is up to date, decided from a listing of versions, the manifest, the indexes and the heads.

Fresh: everything in the listing is recorded, and everything recorded is folded into manifest and indexes. A document
that violates its schema is never recorded; it is read to distinguish it from one that is still waiting.
"""

from __future__ import annotations

from dataclasses import replace

from worm.clock import iso_seconds
from worm.collections import Collection, Heads
from worm.errors import Corrupt, Invalid
from worm.formats import JsonValue, ModelDef
from worm.store import Version
from worm.tables.index import CUT_KEY, NULL_KEY, Index, IndexFiles
from worm.tables.manifest import Manifest
from worm.tables.table import Table
from worm.values import dataclass


@dataclass(frozen=True, slots=True)
class IndexStatus:
    """One index. `values`: the number of distinct values, without null. `conflicts`: values of a unique index that
    several documents have. `exists` False: missing or damaged."""

    name: str
    field: str
    type: str
    unique: bool
    values: int
    size_bytes: int
    conflicts: int
    exists: bool = True

    @classmethod
    def of(cls, table: Table, name: str, files: IndexFiles) -> IndexStatus:
        """For a partitioned table: as of the last merge."""
        definition, root = files.definition, table.manifest.root()
        index, size = None, 0
        if root is not None and root.is_spread:
            pieces = root.indexes.get(definition.field)
            size = 0 if pieces is None else sum(part.size for part in pieces.parts)
            try:
                index = files.joined(root)
            except Corrupt:
                index = None  # reported by `exists`
        else:
            index = files.file.read()
            size = files.file.held.size
        found = index or Index(
            root.model if root else "", definition.field, definition.type, definition.unique, "", 0, {}
        )
        return cls(
            name,
            definition.field,
            definition.type,
            definition.unique,
            len(found.keys - {NULL_KEY, CUT_KEY}),
            size,
            len(found.conflicts),
            index is not None,
        )


@dataclass(frozen=True, slots=True)
class ManifestStatus:
    """A manifest and what it says. `fields` are the fields of its rows; `partitions` is 0 while it is one file."""

    exists: bool
    fresh: bool
    count: int
    last_updated: str | None
    size_bytes: int
    partitioned: bool
    fields: tuple[str, ...]
    partitions: int = 0
    deltas: int = 0

    def shape(self) -> dict[str, JsonValue]:
        return {
            "exists": self.exists,
            "fresh": self.fresh,
            "count": self.count,
            "lastUpdated": self.last_updated,
            "sizeBytes": self.size_bytes,
            "partitioned": self.partitioned,
            "fields": list(self.fields),
        }

    @classmethod
    def of(cls, table: Table) -> ManifestStatus:
        """Requests: one listing page per 1,000 versions, and one GET per derived file and per unrecorded document.
        Without a manifest, the documents are counted. If the manifest is not fresh, later queries of this session that
        use it say so, until it changes."""
        collection = table.collection
        latest = dict(collection.latest_versions())
        manifest = table.manifest.read() if collection.definition.keeps_manifest else None
        if manifest is None:
            live = sum(not version.is_delete_marker for version in latest.values())
            newest = max((iso_seconds(version.last_modified) for version in latest.values()), default=None)
            is_empty = collection.definition.keeps_manifest and not latest
            return cls(False, is_empty, live, newest, 0, False, ())
        root, size = table.manifest.held_spread, table.manifest.file.held.size
        fresh = not table.manifest.is_stale(manifest) and _is_fresh(table, manifest, latest)
        table.told_behind = None if fresh else table.manifest.file.etag
        updated = manifest.last_updated or None
        fields = ModelDef.named_in(manifest.fields)
        status = cls(True, fresh, manifest.count, updated, size, False, fields)
        if root is None:
            return status
        partitions, deltas = len(table.manifest.partitions(root)), len(root.deltas)
        return replace(status, size_bytes=size + root.size, partitioned=True, partitions=partitions, deltas=deltas)


def _is_fresh(table: Table, manifest: Manifest, latest: dict[str, Version]) -> bool:
    root = table.manifest.held_spread
    if root is not None:
        if not table.manifest.has_all_indexes(root):
            return False
    elif not all(
        (index := files.file.read()) is not None
        and index.is_current(Index.of(manifest, files.definition), files.definition)
        for files in table.indexes
    ):
        return False
    if table.collection.definition.oplog:
        return _follows_oplog(table, manifest, latest)
    return manifest.etags == {one: version.etag for one, version in latest.items() if not version.is_delete_marker}


def _follows_oplog(table: Table, manifest: Manifest, latest: dict[str, Version]) -> bool:
    heads = (table.heads.read() or Heads(table.collection.name)).heads
    served = manifest.etags  # the documents of damaged entities
    if {one: head.seq for one, head in heads.items() if one not in served} != manifest.seqs:
        return False
    gone = any(head.live and one not in latest for one, head in heads.items())
    waiting = (
        (one, version)
        for one, version in latest.items()
        if not ((head := heads.get(one)) is not None and head.names(version))
        and served.get(one) != version.etag
        and not (version.is_delete_marker and (head is None or not head.live))
    )
    return not gone and not any(_is_valid(table.collection, one, version) for one, version in waiting)


def _is_valid(collection: Collection, entity_id: str, version: Version) -> bool:
    """Whether the newest version will be recorded: a deletion, or a document that fits the schema."""
    if version.is_delete_marker:
        return True
    try:
        found = collection.documents.version(version)
        if found is not None:
            collection.document_of(entity_id, found)
    except Invalid:
        return False
    return True
