"""A table: the manifest, indexes and heads of one collection, and the fold that keeps them true.

Order of writes: manifest, indexes, heads. Each is one compare-and-swap per batch, each idempotent by itself:
- manifest and heads apply a change only if its seq is newer than theirs;
- an index is computed from a manifest and written only if its stored revision is lower;
- heads come last: what stands in them has reached manifest and indexes.
A crash between two of them leaves the batch's messages in the queue, and folding them again finishes the work.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from worm.collections.changes import Change
from worm.collections.collection import Collection
from worm.collections.heads import Heads
from worm.collections.sentinels import collection_sentinel
from worm.errors import Unavailable
from worm.schema import IndexDef
from worm.store.cas_file import CasFile
from worm.tables.build import build_manifest, empty_manifest, is_stale, read_rows, recorded_changes
from worm.tables.index import Index
from worm.tables.manifest import Manifest

ROUNDS_MAX = 10


class Table:
    """Derived files of one collection, cached by etag. One instance per worker thread."""

    def __init__(self, collection: Collection) -> None:
        self.collection = collection
        self._definition = collection.definition
        store, resolver, name = collection.store, collection.resolver, collection.name
        ids, clock = collection.ids, collection.clock
        self.manifest: CasFile[Manifest] = CasFile(
            store, resolver.manifest_key(name), Manifest.decode, Manifest.encode, ids=ids, clock=clock
        )
        self.heads: CasFile[Heads] = CasFile(
            store, resolver.heads_key(name), Heads.decode, Heads.encode, ids=ids, clock=clock
        )
        self.sentinel: CasFile[bytes] = CasFile(
            store,
            resolver.collection_sentinel_key(name),
            lambda body, _: body,
            lambda body: body,
            ids=ids,
            clock=clock,
        )
        self.indexes: list[tuple[IndexDef, CasFile[Index]]] = [
            (index, CasFile(store, key, Index.decode, Index.encode, ids=ids, clock=clock))
            for index in self._definition.indexes.values()
            if (key := resolver.index_key(name, index.field))
        ]

    def fold(self, changes: Sequence[Change]) -> None:
        """Fold recorded changes of a model with oplog."""
        if self._definition.keeps_manifest:
            self._fold_indexes(self._fold_manifest(changes))
        self._fold_sentinel(self.heads.update(lambda stored: (stored or Heads(self.collection.name)).folded(changes)))

    def fold_documents(self, ids: Iterable[str]) -> None:
        """Fold current documents of a model without oplog. What changed while we wrote is folded once more."""
        pending = set(ids)
        if not self._definition.keeps_manifest:
            return
        for _ in range(ROUNDS_MAX):
            pending = self._fold_current(pending)
            if not pending:
                return
        raise Unavailable(
            f"documents changed during each of {ROUNDS_MAX} folds", key=self.manifest.key, hint="retried by the queue"
        )

    def rebuild(self) -> Manifest | None:
        """Manifest, indexes and heads from the source, beside live folds; rows that no source has vanish."""
        if not self._definition.oplog:
            return self._rebuild_from_documents()
        changes = list(recorded_changes(self.collection))
        manifest: Manifest | None = None
        if self._definition.keeps_manifest:
            manifest = self.manifest.update(lambda stored: self._replacing(stored, changes))
            assert manifest is not None
            self._replace_indexes(manifest)
        self._fold_sentinel(self.heads.update(lambda stored: self._replacing_heads(stored, changes)))
        return manifest

    def complete(self) -> None:
        """Make what is missing or damaged; what is there is left to the folds."""
        if self._definition.keeps_manifest:
            manifest = self.manifest.read()
            if manifest is None or is_stale(self.collection, manifest):
                self.rebuild()
            else:
                self._fold_indexes(manifest)

    # Manifest and indexes

    def _fold_manifest(self, changes: Sequence[Change]) -> Manifest:
        def change(stored: Manifest | None) -> Manifest | None:
            if stored is not None and not is_stale(self.collection, stored):
                return stored.folded(changes)
            built = build_manifest(self.collection)  # lost, damaged or of other fields: the source has everything
            return built.folded(changes) or built

        stored = self.manifest.update(change)
        assert stored is not None
        return stored

    def _fold_indexes(self, manifest: Manifest) -> None:
        for definition, file in self.indexes:
            wanted = Index.of(manifest, definition)

            def newer(stored: Index | None, wanted: Index = wanted, definition: IndexDef = definition) -> Index | None:
                return None if stored is not None and stored.is_current(wanted, definition) else wanted

            file.update(newer)

    def _replace_indexes(self, manifest: Manifest) -> None:
        """After a rebuild an index may even have to go back (a row without a source raised its revision). A fold that
        went on meanwhile may have written a newer index before us, so the manifest is looked at again."""
        for definition, file in self.indexes:
            wanted = Index.of(manifest, definition)

            def differing(stored: Index | None, wanted: Index = wanted) -> Index | None:
                return None if stored == wanted else wanted

            file.update(differing)
        newest = self.manifest.read()
        if newest is not None and newest.revision != manifest.revision:
            self._fold_indexes(newest)

    def _fold_sentinel(self, counted: Heads | Manifest | None) -> None:
        """Count and time for people who look into the bucket; nothing decides by them."""
        if counted is not None:
            wanted = collection_sentinel(
                self._definition, count=counted.count, last_modified=counted.last_updated or None
            )
            self.sentinel.update(lambda stored: None if stored == wanted else wanted)

    # A model without oplog

    def _fold_current(self, ids: set[str]) -> set[str]:
        """Fold the documents as they are now; returns the ids that changed meanwhile."""
        etags: dict[str, str | None] = {}
        is_new = False

        def change(stored: Manifest | None) -> Manifest | None:
            nonlocal is_new
            is_new = stored is None or is_stale(self.collection, stored)
            rows = read_rows(self.collection, ids)
            etags.update({entity_id: found.etag for entity_id, found in rows.items()})
            base = build_manifest(self.collection, carry=stored) if stored is None or is_new else stored
            return base.with_documents(rows) or (base if is_new else None)

        stored = self.manifest.update(change)
        assert stored is not None
        # A manifest made anew counts its revisions from the start: an old index would seem newer than it is.
        (self._replace_indexes if is_new else self._fold_indexes)(stored)
        self._fold_sentinel(stored)
        return {entity_id for entity_id, etag in etags.items() if self._etag(entity_id) != etag}

    def _etag(self, entity_id: str) -> str | None:
        info = self.collection.store.head(self.collection.documents.key(entity_id))
        return None if info is None else info.etag

    def _rebuild_from_documents(self) -> Manifest | None:
        if not self._definition.keeps_manifest:
            return None

        def change(stored: Manifest | None) -> Manifest | None:
            built = build_manifest(self.collection, carry=stored)
            return None if built is stored else built

        manifest = self.manifest.update(change)
        assert manifest is not None
        self._replace_indexes(manifest)
        return manifest

    # Rebuilding beside live folds

    def _replacing(self, stored: Manifest | None, changes: Sequence[Change]) -> Manifest | None:
        """The rebuilt manifest with what was folded since the source was read; None when that is what is stored."""
        built = empty_manifest(self.collection).folded(changes) or empty_manifest(self.collection)
        if stored is None or is_stale(self.collection, stored):
            return built
        entities, seqs = dict(built.entities), dict(built.seqs)
        last_updated = built.last_updated
        for entity_id, seq in stored.seqs.items():
            if seq > seqs.get(entity_id, 0) and self._is_recorded(entity_id, seq):
                seqs[entity_id] = seq
                entities.pop(entity_id, None)
                if entity_id in stored.entities:
                    entities[entity_id] = stored.entities[entity_id]
                last_updated = max(last_updated, stored.last_updated)
        wanted = Manifest(built.model, entities, seqs, last_updated, sum(seqs.values()), fields=built.fields)
        return None if wanted.encode() == stored.encode() else wanted

    def _replacing_heads(self, stored: Heads | None, changes: Sequence[Change]) -> Heads | None:
        heads = {change.id: change.head for change in changes if change.head is not None}
        for entity_id, head in (stored.heads if stored is not None else {}).items():
            known = heads.get(entity_id)
            if (known is None or head.seq > known.seq) and self._is_recorded(entity_id, head.seq):
                heads[entity_id] = head
        wanted = Heads(self.collection.name, heads)
        return None if stored is not None and stored.heads == heads else wanted

    def _is_recorded(self, entity_id: str, seq: int) -> bool:
        return self.collection.store.head(self.collection.oplog.key(entity_id, seq)) is not None
