"""What one task reads: the documents, the history, the changes or the trash of one range of ids, in chunks.

Documents are read as in queries: if a raw upload broke a document, its last valid state counts, if one is recorded;
`reason` then says what is wrong. This library writes history and trash, so damage there stops the read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import TypeVar

from worm.collections import Collection, Document, IdRange, KeyKind, OplogEntry, Seqs, Trashed
from worm.errors import Corrupt, Invalid
from worm.formats import JsonObject, JsonValue, dumps, loads_document
from worm.spark.source.options import At
from worm.store import Object, Read, in_chunks, in_parallel

CHUNK = 500
AT_ONCE = 64
"""The number of entities whose past is looked up at the same time; each takes a few requests, one by one."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Found:
    """A future row. Filters use `document`; None: there is no valid one. `extra` has the other columns."""

    id: str
    document: Document | None
    extra: JsonObject
    reason: str | None = None


Source = Callable[[Collection, IdRange], Iterator[list[Found]]]


def documents(collection: Collection, within: IdRange) -> Iterator[list[Found]]:
    """The current documents."""
    for ids in in_chunks(collection.current_ids(within), CHUNK):
        yield list(documents_of(collection, ids))


def documents_at(at: At) -> Source:
    """The documents after an entry or at a time. An entity without such an entry, or deleted then, has no row."""

    def state(collection: Collection, entity_id: str, seqs: Seqs) -> Found | None:
        oplog = collection.oplog
        if at.time is not None:
            seq, found = oplog.at_time(entity_id, at.time)
            if seq < seqs.last and seq + 1 not in seqs and oplog.read(entity_id, seq + 1) is None:
                raise _gap(collection, entity_id, seq + 1)  # its time is unknown
        else:
            seq = at.seq or 0
            entry = oplog.read(entity_id, seq)
            if entry is None and seq < seqs.last:
                raise _gap(collection, entity_id, seq)
            found = None if entry is None else oplog.state_at(entity_id, entry.seq, [entry])
        return None if found is None else Found(entity_id, collection.as_row(entity_id, found), {})

    def read(collection: Collection, within: IdRange) -> Iterator[list[Found]]:
        for recorded in in_chunks(sorted(collection.recorded_seqs(within).items()), AT_ONCE):
            states = in_parallel(lambda one: state(collection, *one), recorded)
            yield [one for one in states if one is not None]

    return read


def history(at: At | None) -> Source:
    """One row per entry, up to a seq or a time. `until` is the time of the next one, null for the last."""

    def read(collection: Collection, within: IdRange) -> Iterator[list[Found]]:
        rows = (
            row
            for entity_id, entries in _histories(collection, within)
            for row in _replayed(collection, entity_id, _up_to(entries, at))
        )
        yield from in_chunks(rows, CHUNK)

    return read


def trash(now: datetime) -> Source:
    """What can be restored as of `now`."""

    def read(collection: Collection, within: IdRange) -> Iterator[list[Found]]:
        for ids in in_chunks(_trashed_ids(collection, within), CHUNK):
            yield _trashed(collection, ids, now)

    return read


# Documents


def documents_of(collection: Collection, ids: Sequence[str]) -> Iterator[Found]:
    """The current documents of these ids, as far as there are any."""
    reads = [Read(collection.documents.key(one)) for one in ids]
    answers = collection.store.get_many(reads, max_bytes=collection.max_bytes)
    for entity_id, answer in zip(ids, answers, strict=True):
        if isinstance(answer, Exception) and not isinstance(answer, Invalid):
            raise answer
        if answer is not None:
            yield _document(collection, entity_id, answer)


def _document(collection: Collection, entity_id: str, answer: Object | Invalid) -> Found:
    try:
        if isinstance(answer, Invalid):
            raise answer
        document = collection.document_of(entity_id, answer)
    except Invalid as mistake:
        try:
            valid = _last_valid(collection, entity_id)
        except Corrupt as damage:
            return Found(entity_id, None, {}, f"{mistake.message}; its last valid state is unknown: {damage}")
        row = None if valid is None else collection.as_row(entity_id, valid)
        return Found(entity_id, row, {}, mistake.message)
    return Found(entity_id, collection.as_row(entity_id, document), {})


def _last_valid(collection: Collection, entity_id: str) -> Document | None:
    tail = collection.oplog.tail(entity_id) if collection.definition.oplog else None
    return None if tail is None else collection.oplog.state_at(entity_id, tail.seq)


# History and changes


@dataclass(frozen=True, slots=True)
class Span:
    """Entries of one entity, from `first` to `last`."""

    id: str
    first: int
    last: int

    def __len__(self) -> int:
        return self.last - self.first + 1


def changes_of(collection: Collection, spans: Iterable[Span], *, with_documents: bool) -> Iterator[list[Found]]:
    """One row per entry, with the document before and after it if somebody needs them."""
    rows = (
        row
        for some in _together(spans)
        for span, before, entries in _read(collection, some, with_documents)
        for row in _changes(collection, span.id, before, entries, with_documents)
    )
    yield from in_chunks(rows, CHUNK)


def _together(spans: Iterable[Span]) -> Iterator[list[Span]]:
    """Spans with up to `CHUNK` entries in all, or a longer one alone."""
    some: list[Span] = []
    for span in spans:
        if some and sum(map(len, some)) + len(span) > CHUNK:
            yield some
            some = []
        some.append(span)
    if some:
        yield some


def _read(
    collection: Collection, spans: Sequence[Span], with_documents: bool
) -> Iterator[tuple[Span, Document | None, Iterable[OplogEntry]]]:
    """Each with the document before it."""

    def before(span: Span) -> Document | None:
        is_needed = with_documents and span.first > 1
        return collection.oplog.state_at(span.id, span.first - 1) if is_needed else None

    earlier = in_parallel(before, spans, AT_ONCE)
    yield from zip(spans, earlier, _entries(collection, spans), strict=True)


def _changes(
    collection: Collection,
    entity_id: str,
    before: Document | None,
    entries: Iterable[OplogEntry],
    with_documents: bool,
) -> Iterator[Found]:
    for entry in entries:
        after = entry.applied_to(before, collection.oplog.key(entity_id, entry.seq)) if with_documents else None
        seen = after if after is not None else entry.snapshot or before
        shown = {} if seen is None else collection.as_row(entity_id, seen)
        extra: JsonObject = {**_about(entry), "before": before, "after": after}
        yield Found(entity_id, shown, extra)
        before = after


def _about(entry: OplogEntry) -> JsonObject:
    """The columns that history and changes share."""
    return {
        "seq": entry.seq,
        "op": entry.op,
        "ts": entry.ts,
        "actor": entry.actor,
        "diff": None if entry.diff is None else _json(dict(entry.diff)),
        "metadata": _json(dict(entry.metadata)) if entry.metadata else None,
    }


def _histories(collection: Collection, within: IdRange) -> Iterator[tuple[str, Iterable[OplogEntry]]]:
    """The entries of each entity. Short histories are read many at a time; a long one, or one that is partly archived,
    is read alone."""
    waiting: list[Span] = []
    for entity_id, seqs in sorted(collection.recorded_seqs(within).items()):
        span = Span(entity_id, 1, seqs.last)
        if len(seqs) > CHUNK or seqs.last != len(seqs):
            yield entity_id, _whole(collection, span)
            continue
        if sum(map(len, waiting)) + len(span) > CHUNK:
            yield from zip((one.id for one in waiting), _entries(collection, waiting), strict=True)
            waiting = []
        waiting.append(span)
    yield from zip((one.id for one in waiting), _entries(collection, waiting), strict=True)


def _entries(collection: Collection, spans: Sequence[Span]) -> Iterator[Iterable[OplogEntry]]:
    """The entries of each span, read together; a long span is read as it is used."""
    if len(spans) == 1 and len(spans[0]) > CHUNK:
        yield _whole(collection, spans[0])
        return
    oplog = collection.oplog
    names = [(span.id, seq) for span in spans for seq in range(span.first, span.last + 1)]
    answers = iter(collection.store.get_many([Read(oplog.key(*name)) for name in names]))
    for span in spans:
        entries = list[OplogEntry]()
        for answer in islice(answers, len(span)):
            if isinstance(answer, Exception):
                raise answer
            if answer is not None:
                entries.append(OplogEntry.from_bytes(answer.body, answer.key))
        is_whole = [entry.seq for entry in entries] == list(range(span.first, span.last + 1))
        yield entries if is_whole else _whole(collection, span)


def _whole(collection: Collection, span: Span) -> Iterator[OplogEntry]:
    """All entries of a span. `Corrupt` if one of them is gone: otherwise those after it would be left out."""
    seq = span.first - 1
    for entry in collection.oplog.entries(span.id, first=span.first, last=span.last):
        seq = entry.seq
        yield entry
    if seq < span.last:
        raise _gap(collection, span.id, seq + 1)


def _gap(collection: Collection, entity_id: str, seq: int) -> Corrupt:
    return Corrupt("a gap in the oplog", key=collection.oplog.key(entity_id, seq), hint="run `worm verify`")


def _up_to(entries: Iterable[OplogEntry], at: At | None) -> Iterator[OplogEntry]:
    for entry in entries:
        if at is not None and (entry.seq > at.seq if at.seq is not None else entry.ts > (at.time or "")):
            return
        yield entry


def _replayed(collection: Collection, entity_id: str, entries: Iterator[OplogEntry]) -> Iterator[Found]:
    before: Document | None = None
    entry = next(entries, None)
    while entry is not None:
        following = next(entries, None)
        after = entry.applied_to(before, collection.oplog.key(entity_id, entry.seq))
        seen = after if after is not None else entry.snapshot or before
        extra: JsonObject = {
            **_about(entry),
            "until": None if following is None else following.ts,
            "document": after,
        }
        yield Found(entity_id, None if seen is None else collection.as_row(entity_id, seen), extra)
        before, entry = after, following


def _json(value: JsonValue) -> str:
    return dumps(value).decode()


# Trash


def _trashed_ids(collection: Collection, within: IdRange) -> Iterator[str]:
    root = collection.resolver.trash_root(collection.name)
    apart = root == collection.path and not collection.definition.is_singleton
    for scan in within.scans(root, beside_system_keys=apart):
        for listed in collection.store.list(scan.prefix, start_after=scan.after):
            if scan.is_over(listed.key):
                break
            info = collection.resolver.parse(listed.key)
            if info.kind is KeyKind.TOMBSTONE and info.model == collection.name and info.id and info.id in within:
                yield info.id


def _trashed(collection: Collection, ids: Sequence[str], now: datetime) -> list[Found]:
    keys = [Read(collection.trash.tombstone_key(one)) for one in ids]
    read = [Trashed.of(one, found) for one, found in zip(ids, _got(collection, keys), strict=True) if found is not None]
    shown = [one for one in read if one.tombstone.state != "purging" and not one.is_expired(now)]
    live = _got(collection, [Read(collection.documents.key(one.id)) for one in shown])
    gone = [one for one, document in zip(shown, live, strict=True) if document is None]
    copies = _got(collection, [Read(collection.trash.copy_key(one.id)) for one in gone])
    return [_trashed_row(collection, one, copy) for one, copy in zip(gone, copies, strict=True)]


def _got(collection: Collection, reads: Sequence[Read]) -> list[Object | None]:
    found: list[Object | None] = []
    for answer in collection.store.get_many(reads):
        if isinstance(answer, Exception):
            raise answer
        found.append(answer)
    return found


def _trashed_row(collection: Collection, trashed: Trashed, copy: Object | None) -> Found:
    tombstone = trashed.tombstone
    if copy is None and tombstone.version_id is not None:
        copy = collection.store.get(collection.documents.key(trashed.id), version_id=tombstone.version_id)
    document, reason = None, None if copy is not None else "the trash has no copy of it"
    if copy is not None:
        try:
            document = loads_document(copy.body, max_bytes=len(copy.body))
        except Invalid as mistake:
            reason = mistake.message
    extra: JsonObject = {
        "deletedAt": tombstone.deleted_at,
        "deletedBy": tombstone.deleted_by,
        "ttl": tombstone.ttl,
        "restorePath": tombstone.restore_path,
        "document": document,
    }
    return Found(trashed.id, None if document is None else collection.as_row(trashed.id, document), extra, reason)
