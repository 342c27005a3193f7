"""A collection: one model of the schema on one store, with everything that belongs to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from worm.clock import Clock, Ids, SystemClock
from worm.collections.changes import Row, project
from worm.collections.documents import MAX_DOCUMENT_BYTES, Documents
from worm.collections.entries import Document
from worm.collections.layout import KeyKind, StorageResolver
from worm.collections.oplog import Oplog
from worm.collections.reconcile import Reconciler
from worm.schema import ModelDef
from worm.store.base import Store, Version

# Document ids never start with a dot, and "." sorts before letters and digits: what follows this marker is documents.
_AFTER_SYSTEM_KEYS = ".~"
_BEFORE_SYSTEM_KEYS = "-"


@dataclass
class Collection:
    """Documents, oplog and keys of one model."""

    store: Store
    resolver: StorageResolver
    name: str
    definition: ModelDef
    clock: Clock = field(default_factory=SystemClock)
    ids: Ids = field(default_factory=Ids.system)
    max_bytes: int = MAX_DOCUMENT_BYTES

    @cached_property
    def documents(self) -> Documents:
        return Documents(self.store, self.resolver, self.name, self.definition, self.max_bytes)

    @cached_property
    def oplog(self) -> Oplog:
        return Oplog(self.store, self.resolver, self.name)

    @cached_property
    def path(self) -> str:
        return self.resolver.collection_path(self.name)

    def reconciler(self, known: Mapping[str, Document] | None = None) -> Reconciler:
        return Reconciler(self.documents, self.oplog, self.clock, known or {})

    def row(self, document: Document | None) -> Row | None:
        return None if document is None else project(document, self.definition.table_fields())

    def latest_versions(self, after: str | None = None) -> Iterator[tuple[str, Version]]:
        """Id and newest version (or delete marker) of every document key that has any, keys ascending."""
        previous: str | None = None
        for version in self._versions(after or ""):
            if version.key == previous:
                continue
            previous = version.key
            info = self.resolver.parse(version.key)
            if info.kind is KeyKind.DOCUMENT and info.model == self.name and info.id is not None:
                yield info.id, version

    def _versions(self, after: str) -> Iterator[Version]:
        before_system, after_system = self.path + _BEFORE_SYSTEM_KEYS, self.path + _AFTER_SYSTEM_KEYS
        if after < after_system:
            yield from self.store.list_versions(before_system, start_after=after or None)
        yield from self.store.list_versions(self.path, start_after=max(after, after_system))

    def recorded_seqs(self) -> dict[str, set[int]]:
        """The seqs of every entity that has an oplog, from a listing (no entry is read)."""
        seqs: dict[str, set[int]] = {}
        for listed in self.store.list(self.resolver.oplog_root(self.name)):
            info = self.resolver.parse(listed.key)
            if info.kind is KeyKind.OPLOG and info.model == self.name and info.id is not None and info.seq is not None:
                seqs.setdefault(info.id, set()).add(info.seq)
        return seqs
