"""The audit of append mode: every document was written once and is still there.

The store's conditions alone cannot promise that (a put-if-absent succeeds again behind a delete marker), so the audit
looks at what really happened. Reads listings only: one of all versions, and for a model with oplog one of the entries.
- `append-overwritten`: a document has more than one version, or its oplog more than one entry.
- `append-deleted`: a delete marker lies on a document, on top or between versions.
- `append-removed`: the oplog knows a document of which no version is left.
On a store without versions only the oplog tells of an overwrite, once it is recorded.
"""

from __future__ import annotations

from collections.abc import Iterator

from worm.collections.collection import Collection
from worm.collections.id_ranges import IdRange
from worm.store.base import Version
from worm.tables.difference import Difference


def audit_append(collection: Collection, within: IdRange | None = None) -> list[Difference]:
    """What contradicts write-once, keys ascending; nothing for a model that is not in append mode. Reads only."""
    if collection.definition.mode != "append":
        return []
    versions = collection.all_versions(within or IdRange())
    seqs = collection.recorded_seqs(within or IdRange()) if collection.definition.oplog else {}
    found: list[Difference] = []
    for entity_id in sorted({*versions, *seqs}):
        key = collection.documents.key(entity_id)
        for kind, detail in _findings(versions.get(entity_id, []), len(seqs.get(entity_id, ()))):
            found.append(Difference(kind, collection.name, key, detail))
    return found


def _findings(versions: list[Version], entries: int) -> Iterator[tuple[str, str]]:
    bodies = [version for version in versions if not version.is_delete_marker]
    markers = len(versions) - len(bodies)
    if len(bodies) > 1:
        yield "append-overwritten", f"{len(bodies)} versions instead of one"
    elif entries > 1:
        yield "append-overwritten", f"{entries} oplog entries instead of one"
    if markers:
        yield "append-deleted", f"{markers} delete marker{'s' if markers > 1 else ''}"
    if not bodies:
        yield "append-removed", "no version is left"
