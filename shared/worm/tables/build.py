"""Building a table from the source: the rows that the recorded state of every entity gives.

For a model with oplog the source is the newest entry of each entity and the document version that it names; what is
uploaded but not yet recorded is not in it (capture's business), so a build equals what folding every recorded change
gives, byte for byte. For a model without oplog the source is the current documents.

Rebuilds run beside live folds: what was folded since the source was read stays (`manifest_anew`, `heads_anew`). A fold
brings news to a table: recorded changes of a model with oplog, or current documents of a model without.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Generic

from worm.clock import iso_seconds
from worm.collections.collection import Collection
from worm.collections.entries import Change, Document, Head, Heads, OplogEntry
from worm.collections.id_ranges import IdRange
from worm.errors import Corrupt, Invalid
from worm.store.base import Object, Read
from worm.store.parallel import chunked
from worm.tables.layout import T
from worm.tables.manifest import Manifest, ReadRow, is_stale

CHUNK = 500
Progress = Callable[[int, int | None], None]
"""Called with how many entities are done, and of how many where that is known."""

Judge = Callable[[str, Object], Document | None]
"""The document of a stored object that counts; None where it is none."""


def silent(done: int, total: int | None) -> None:
    """Nobody looks."""


def recorded_changes(
    collection: Collection, progress: Progress = silent, within: IdRange | None = None
) -> Iterator[Change]:
    """The newest state of every entity that has an oplog, ids ascending."""
    recorded = collection.recorded_seqs(within or IdRange())
    tails = {entity_id: max(seqs) for entity_id, seqs in recorded.items()}
    for number, ids in enumerate(chunked(sorted(tails), CHUNK)):
        progress(number * CHUNK, len(tails))
        keys = [collection.oplog.key(entity_id, tails[entity_id]) for entity_id in ids]
        found = _read_all(collection, [*keys, *(collection.documents.key(entity_id) for entity_id in ids)])
        for entity_id, tail, document in zip(ids, found[: len(ids)], found[len(ids) :], strict=True):
            key = collection.oplog.key(entity_id, tails[entity_id])
            if tail is None:
                raise Corrupt("an oplog entry was listed but is gone", key=key)
            entry = OplogEntry.from_bytes(tail.body, key)
            yield Change(entity_id, Head.of(entry), collection.row(_state(collection, entity_id, entry, document)))
    progress(len(tails), len(tails))


def build_manifest(
    collection: Collection,
    *,
    carry: Manifest | None = None,
    progress: Progress = silent,
    judge: Judge | None = None,
) -> Manifest:
    """The manifest from the source. `carry` is the stored one, whose revision a model without oplog carries on, and
    `judge` sees every document of such a model."""
    if collection.definition.oplog:
        empty = empty_manifest(collection)
        return empty.folded(recorded_changes(collection, progress)) or empty
    return _build_from_documents(collection, carry or empty_manifest(collection), progress, judge)


def empty_manifest(collection: Collection) -> Manifest:
    definition = collection.definition
    return Manifest(collection.name, fields=definition.row_form, oplog=definition.oplog)


def read_rows(
    collection: Collection, ids: Iterable[str], progress: Progress = silent, judge: Judge | None = None
) -> dict[str, ReadRow]:
    """The rows of current documents."""
    judge = judge or partial(_valid, collection)
    rows: dict[str, ReadRow] = {}
    wanted = sorted(set(ids))
    for chunk in chunked(wanted, CHUNK):
        progress(len(rows), len(wanted))
        found = _read_all(collection, [collection.documents.key(entity_id) for entity_id in chunk])
        for entity_id, item in zip(chunk, found, strict=True):
            if item is None:
                rows[entity_id] = ReadRow(None, None)
            else:
                row = collection.row(judge(entity_id, item))
                rows[entity_id] = ReadRow(row, item.etag, iso_seconds(item.last_modified))
    progress(len(wanted), len(wanted))
    return rows


def _build_from_documents(collection: Collection, carry: Manifest, progress: Progress, judge: Judge | None) -> Manifest:
    live = [entity_id for entity_id, version in collection.latest_versions() if not version.is_delete_marker]
    known = {*carry.entities, *carry.etags}
    if is_stale(collection.definition, carry):
        carry = replace(empty_manifest(collection), revision=carry.revision, last_updated=carry.last_updated)
    return carry.with_documents(read_rows(collection, {*live, *known}, progress, judge)) or carry


def _state(collection: Collection, entity_id: str, entry: OplogEntry, current: Object | None) -> Document | None:
    """The document of the entry: the current object if it is the one recorded, else that version, else a replay."""
    if entry.op == "delete":
        return None
    document: Document | None = None
    if current is not None and (current.version_id, current.etag) == (entry.version_id, entry.etag):
        document = collection.documents.recorded(current)
    elif entry.version_id is not None:
        document = collection.documents.recorded_version(entity_id, entry.version_id)
    return document if document is not None else collection.oplog.state_at(entity_id, entry.seq)


def _valid(collection: Collection, entity_id: str, found: Object) -> Document | None:
    """A raw upload that breaks the schema has no row; `worm verify` lists it with the reason."""
    try:
        return collection.document_of(entity_id, found)
    except Invalid:
        return None


def _read_all(collection: Collection, keys: list[str]) -> list[Object | None]:
    """Concurrent reads. An object over the size limit reads as absent: it cannot be a valid document."""
    found: list[Object | None] = []
    for item in collection.store.get_many([Read(key) for key in keys], max_bytes=collection.max_bytes):
        if isinstance(item, Exception) and not isinstance(item, Invalid):
            raise item
        found.append(None if isinstance(item, Exception) else item)
    return found


# Rebuilds


def manifest_anew(collection: Collection, stored: Manifest | None, changes: Sequence[Change]) -> Manifest | None:
    """The rebuilt manifest with what was folded since the source was read; None when that is what is stored."""
    built = empty_manifest(collection).folded(changes) or empty_manifest(collection)
    if stored is None or is_stale(collection.definition, stored):
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


# News


@dataclass(frozen=True, slots=True)
class RecordedNews(Generic[T]):
    """Changes that are in the oplog, for manifest or heads. Idempotent and order-free: the newest seq of an id wins."""

    empty: T
    changes: Sequence[Change]

    def onto(self, stored: T) -> T | None:
        return stored.folded(self.changes)

    def delta(self, revision: int) -> T:
        return self.empty.folded(self.changes) or self.empty


@dataclass(frozen=True, slots=True)
class DocumentNews:
    """The rows of documents as they were read. A fold that lost its race reads them again."""

    model: str
    rows: dict[str, ReadRow]

    def onto(self, stored: Manifest) -> Manifest | None:
        return stored.with_documents(self.rows)

    def delta(self, revision: int) -> Manifest:
        return Manifest.of_documents(self.model, self.rows, revision)
