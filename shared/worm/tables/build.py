"""Builds a table from the source: one row from the recorded state of every entity.

For a model with an oplog, the source is the newest entry of each entity and the document version that it names. Uploads
that are not recorded yet are not in it (capture records them). So a build gives exactly the same bytes as folding every
recorded change. For a model without an oplog, the source is the current documents. The same holds for a damaged entity,
whose newest entry is unknown or unreadable: its document is served, and the change says why. Damage affects only one
entity.

Rebuilds run while folds go on: what was folded since the source was read stays (`manifest_anew`, `heads_anew`). A fold
brings *news* to a table: recorded changes of a model with an oplog, or current documents of a model without one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Generic

from worm.clock import iso_seconds
from worm.collections import Change, Collection, Document, Head, Heads, OplogEntry, Seqs
from worm.errors import Corrupt, Denied, Invalid
from worm.store import Object, Portions, Read
from worm.tables.layout import T
from worm.tables.manifest import Manifest, ReadRow, is_stale
from worm.values import dataclass

CHUNK = 500
ENTRY_SHARE = 4
"""An entry may hold its document three times: before, after, and whole."""
Progress = Callable[[int, int | None], None]
"""Called with the number of finished entities, and the total if it is known."""

Judge = Callable[[str, Object], Document | None]
"""The document of a stored object; None if it is not a valid one."""


def silent(done: int, total: int | None) -> None:
    """Reports nothing."""


def recorded_changes(collection: Collection, progress: Progress = silent) -> Iterator[Change]:
    """The newest state of every entity that has an oplog, ids ascending; for damaged ones, the state of their
    document."""
    recorded = collection.recorded_seqs()
    yield from newest_changes(collection, recorded, progress)
    progress(len(recorded), len(recorded))


def newest_changes(
    collection: Collection, recorded: Mapping[str, Seqs], progress: Progress = silent
) -> Iterator[Change]:
    """The same for the entities of a listing."""
    turns, done = Portions(most=CHUNK), 0
    for ids in turns.of(sorted(recorded)):
        progress(done, len(recorded))
        done += len(ids)
        yield from _changes_of(collection, {entity_id: recorded[entity_id] for entity_id in ids}, turns)


def _changes_of(collection: Collection, recorded: Mapping[str, Seqs], turns: Portions) -> Iterator[Change]:
    ids, oplog = list(recorded), collection.oplog
    newest = {entity_id: _newest(collection, entity_id, seqs) for entity_id, seqs in recorded.items()}
    keys = {one: oplog.key(one, seq) for one, seq in newest.items() if isinstance(seq, int)}
    entries = dict(zip(keys, _read_all(collection, list(keys.values()), turns, ENTRY_SHARE), strict=True))
    documents = _read_all(collection, [collection.documents.key(entity_id) for entity_id in ids], turns)
    for entity_id, document in zip(ids, documents, strict=True):
        seq = newest[entity_id]
        try:
            if not isinstance(seq, int):
                raise seq
            entry = oplog.newest_of(entity_id, recorded[entity_id], seq, entries[entity_id])
            row = collection.row(_state(collection, entity_id, entry, document))
        except Corrupt as damage:
            yield _served(collection, entity_id, damage, document)
        else:
            yield Change(entity_id, Head.of(entry), row)


def _newest(collection: Collection, entity_id: str, seqs: Seqs) -> int | Corrupt:
    """The seq of the newest entry, or why it is unknown. A listing of many pages may miss entries that were written or
    archived between two pages, so the entity is listed again."""
    try:
        return collection.oplog.newest_seq(entity_id, seqs)
    except Corrupt:
        again = collection.oplog.seqs(entity_id)
    try:
        return collection.oplog.newest_seq(entity_id, again)
    except Corrupt as damage:
        return damage


def _served(collection: Collection, entity_id: str, damage: Corrupt, found: Object | None) -> Change:
    """The table's state of a damaged entity: its document, if that is valid."""
    if found is None:
        return Change(entity_id, None, None, damage)
    row = collection.row(_valid(collection, entity_id, found))
    return Change(entity_id, None, row, damage, found.etag, iso_seconds(found.last_modified))


def entity_changes(collection: Collection, ids: Iterable[str]) -> list[Change]:
    """The same for some entities, as of now: a LIST and two reads each."""
    seqs = {entity_id: collection.oplog.seqs(entity_id) for entity_id in sorted(set(ids))}
    return list(newest_changes(collection, {one: found for one, found in seqs.items() if found.last}))


def build_manifest(
    collection: Collection,
    *,
    carry: Manifest | None = None,
    progress: Progress = silent,
    judge: Judge | None = None,
) -> Manifest:
    """The manifest from the source. `carry` is the stored one, whose revision a model without an oplog continues.
    `judge` sees every document of such a model."""
    if collection.definition.oplog:
        empty = empty_manifest(collection)
        return empty.folded(recorded_changes(collection, progress)) or empty
    return _build_from_documents(collection, carry or empty_manifest(collection), progress, judge)


def empty_manifest(collection: Collection) -> Manifest:
    definition = collection.definition
    return Manifest(collection.name, fields=definition.row_form, oplog=definition.oplog)


def read_rows(
    collection: Collection,
    ids: Iterable[str],
    progress: Progress = silent,
    judge: Judge | None = None,
    denied: dict[str, Denied] | None = None,
) -> dict[str, ReadRow]:
    """The rows of current documents. Those that may not be read go into `denied`; without it, one raises its error."""
    judge = judge or partial(_valid, collection)
    rows: dict[str, ReadRow] = {}
    wanted = sorted(set(ids))
    turns = Portions(most=CHUNK)
    for chunk in turns.of(wanted):
        progress(len(rows), len(wanted))
        keys = [collection.documents.key(entity_id) for entity_id in chunk]
        refused = dict[str, Denied]()
        found = _read_all(collection, keys, turns, denied=None if denied is None else refused)
        for entity_id, key, item in zip(chunk, keys, found, strict=True):
            if denied is not None and key in refused:
                denied[entity_id] = refused[key]
            elif item is None:
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
    """The document of the entry: the current object if it is the recorded one, otherwise that version, otherwise a
    replay."""
    if entry.op == "delete":
        return None
    document: Document | None = None
    if current is not None and (current.version_id, current.etag) == (entry.version_id, entry.etag):
        document = collection.documents.recorded(current)
    elif entry.version_id is not None:
        document = collection.documents.recorded_version(entity_id, entry.version_id)
    return document if document is not None else collection.oplog.state_at(entity_id, entry.seq)


def _valid(collection: Collection, entity_id: str, found: Object) -> Document | None:
    """A raw upload that violates the schema has no row; `worm verify` lists it with the reason."""
    try:
        return collection.document_of(entity_id, found)
    except Invalid:
        return None


def _read_all(
    collection: Collection, keys: list[str], turns: Portions, share: int = 1, denied: dict[str, Denied] | None = None
) -> list[Object | None]:
    """Concurrent reads. An object larger than the size limit times `share` counts as absent: it cannot be valid."""
    found: list[Object | None] = []
    items = collection.store.get_many([Read(key) for key in keys], max_bytes=share * collection.max_bytes)
    for key, item in zip(keys, items, strict=True):
        if isinstance(item, Denied) and denied is not None:
            denied[key] = item
        elif isinstance(item, Exception) and not isinstance(item, Invalid):
            raise item
        found.append(None if isinstance(item, Exception) else item)
        turns.took(len(item.body) if isinstance(item, Object) else 0)
    return found


# Rebuilds


def manifest_anew(collection: Collection, stored: Manifest | None, changes: Sequence[Change]) -> Manifest | None:
    """The rebuilt manifest with what was folded since the source was read; None if the stored one is the same."""
    built = empty_manifest(collection).folded(changes) or empty_manifest(collection)
    if stored is None or is_stale(collection.definition, stored):
        return built
    entities, seqs = dict(built.entities), dict(built.seqs)
    last_updated, damaged = built.last_updated, {change.id for change in changes if change.damage is not None}
    for entity_id, seq in stored.seqs.items():
        is_newer = seq > seqs.get(entity_id, 0) and entity_id not in damaged
        if is_newer and is_recorded(collection, entity_id, seq):
            seqs[entity_id] = seq
            entities.pop(entity_id, None)
            if entity_id in stored.entities:
                entities[entity_id] = stored.entities[entity_id]
            last_updated = max(last_updated, stored.last_updated)
    wanted = replace(built, entities=entities, seqs=seqs, last_updated=last_updated, revision=sum(seqs.values()))
    return None if wanted.encode() == stored.encode() else wanted


def heads_anew(collection: Collection, stored: Heads | None, changes: Sequence[Change]) -> Heads | None:
    """The rebuilt heads with what was folded since; None if the stored ones are the same."""
    built = Heads(collection.name).folded(changes) or Heads(collection.name)
    for entity_id, head in (stored.heads if stored is not None else {}).items():
        known = built.heads.get(entity_id)
        is_newer = (known is None or head.seq > known.seq) and entity_id not in built.damaged
        if is_newer and is_recorded(collection, entity_id, head.seq):
            built.heads[entity_id] = head
    return None if stored == built else built


def whole_heads(stored: Heads, changes: Sequence[Change]) -> Heads:
    """The heads after their file was lost, completed with the missing ones."""
    return replace(stored.folded(changes) or stored, partial=False)


def is_recorded(collection: Collection, entity_id: str, seq: int) -> bool:
    """Whether there is such an entry. A row with a seq that was never recorded has no source."""
    try:
        return collection.store.head(collection.oplog.key(entity_id, seq)) is not None
    except Invalid:  # the object is not an entry, or no entry can have this seq
        return False


# News


@dataclass(frozen=True, slots=True)
class RecordedNews(Generic[T]):
    """Changes that are in the oplog, for manifest or heads. Idempotent and independent of order: the newest seq of an
    id wins."""

    empty: T
    changes: Sequence[Change]

    def onto(self, stored: T) -> T | None:
        return stored.folded(self.changes)

    def delta(self, revision: int) -> T:
        return self.empty.folded(self.changes) or self.empty


@dataclass(frozen=True, slots=True)
class DocumentNews:
    """The rows of documents as they were read. A fold that loses a race reads them again."""

    model: str
    rows: dict[str, ReadRow]

    def onto(self, stored: Manifest) -> Manifest | None:
        return stored.with_documents(self.rows)

    def delta(self, revision: int) -> Manifest:
        return Manifest.of_documents(self.model, self.rows, revision)
