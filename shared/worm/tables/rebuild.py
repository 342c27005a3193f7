"""Rebuilding manifest and heads from the source beside live folds: nothing that is folded meanwhile is lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from worm.collections.changes import Change
from worm.collections.collection import Collection
from worm.collections.heads import Heads
from worm.tables.build import Progress, build_manifest, empty_manifest, is_stale, silent
from worm.tables.manifest import Manifest


def documents_anew(collection: Collection, stored: Manifest | None, progress: Progress = silent) -> Manifest | None:
    """The rebuilt manifest of a model without oplog; None when that is what is stored."""
    built = build_manifest(collection, carry=stored, progress=progress)
    return None if built is stored else built


def manifest_anew(collection: Collection, stored: Manifest | None, changes: Sequence[Change]) -> Manifest | None:
    """The rebuilt manifest with what was folded since the source was read; None when that is what is stored."""
    built = empty_manifest(collection).folded(changes) or empty_manifest(collection)
    if stored is None or is_stale(collection, stored):
        return built
    entities, seqs = dict(built.entities), dict(built.seqs)
    last_updated = built.last_updated
    for entity_id, seq in stored.seqs.items():
        if seq > seqs.get(entity_id, 0) and is_recorded(collection, entity_id, seq):
            seqs[entity_id] = seq
            entities.pop(entity_id, None)
            if entity_id in stored.entities:
                entities[entity_id] = stored.entities[entity_id]
            last_updated = max(last_updated, stored.last_updated)
    wanted = replace(built, entities=entities, seqs=seqs, last_updated=last_updated, revision=sum(seqs.values()))
    return None if wanted.encode() == stored.encode() else wanted


def heads_anew(collection: Collection, stored: Heads | None, changes: Sequence[Change]) -> Heads | None:
    """The rebuilt heads with what was folded since; None when that is what is stored."""
    heads = {change.id: change.head for change in changes if change.head is not None}
    for entity_id, head in (stored.heads if stored is not None else {}).items():
        known = heads.get(entity_id)
        if (known is None or head.seq > known.seq) and is_recorded(collection, entity_id, head.seq):
            heads[entity_id] = head
    return None if stored is not None and stored.heads == heads else Heads(collection.name, heads)


def is_recorded(collection: Collection, entity_id: str, seq: int) -> bool:
    """Is there such an entry? A row of a seq that nobody recorded has no source."""
    return collection.store.head(collection.oplog.key(entity_id, seq)) is not None
