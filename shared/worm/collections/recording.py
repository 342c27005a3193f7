"""Records many writes at once: the entries for a unit of documents that the caller has just stored.

For each document, `reconcile` asks what the bucket holds and what is recorded. After a bulk write, most of the answers
are known: the caller wrote the version itself, over nothing or over the version recorded last. If nothing else can be
new, its entry is certain, and the entries of a whole unit are put together (`Store.put_many`). All other documents
(another version in between, a stale head, an entry that another writer added first, a failed request) are left to
`reconcile`, which trusts nothing.

How we know that nothing else is new
- with versions: a listing made after the writes shows the version, and right below it the version recorded last, or
  nothing at all. One listing of the range of keys serves a unit; keys that it does not reach get one each.
- without versions: the condition of the write says what it replaced. A document that did not exist before has no entry,
  according to the names around seq 1; otherwise the next seq is free. Somebody may delete or replace the document
  before its entry is written, and find nothing recorded. So the document is read again after the entry is written: a
  later change finds the entry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TypeVar

from worm.collections.collection import Collection
from worm.collections.entries import Document, Head, OplogEntry
from worm.collections.reconcile import Recorded, as_version, failure_of, is_same
from worm.errors import WormError
from worm.formats import loads_own
from worm.store import Object, Store, Version, in_chunks, in_parallel, is_remote

RECORDED_AT_ONCE = 500
T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class StoredWrite:
    """A version that the caller stored, and what it replaced (None: nothing; `before` None: not known)."""

    id: str
    found: Object
    parent_etag: str | None = None
    before: Document | None = None

    @cached_property
    def document(self) -> Document:
        """A private copy of the stored document."""
        return loads_own(self.found.body, self.found.key)

    @classmethod
    def record_all(
        cls, collection: Collection, writes: Iterable[StoredWrite], hints: Mapping[str, Head]
    ) -> Iterator[tuple[StoredWrite, Head]]:
        """The writes that are now recorded, with what is recorded about them. `hints`: what was recorded before, as far
        as it is known. It never raises errors of the store: writes that are missing from the result must be
        reconciled."""
        for unit in in_chunks(writes, RECORDED_AT_ONCE):
            yield from _record_unit(collection, unit, hints)


def _record_unit(
    collection: Collection, writes: Sequence[StoredWrite], hints: Mapping[str, Head]
) -> list[tuple[StoredWrite, Head]]:
    reconciler = collection.reconciler()
    entries: dict[str, tuple[StoredWrite, OplogEntry]] = {}
    try:
        for write in _certain(collection, writes, hints):
            entry = reconciler.entry_after(write.id, hints.get(write.id), write.found, write.before, write.document)
            if entry is not None:
                entries[write.id] = write, entry
        named = [(one, entry, hints.get(one)) for one, (_, entry) in entries.items()]
        appended = [entries[one] for one in collection.oplog.append_many(named)]
    except WormError:  # `reconcile` tries again and reports the problem
        return []

    def settled(one: tuple[StoredWrite, OplogEntry]) -> bool:
        write, entry = one
        recorded = Recorded(write.id, entry, hints.get(write.id), write.before, write.document)
        # as in reconcile: what cannot be written now is repaired when the version is seen again
        failure_of(partial(collection.oplog.marks.put, write.id, entry), partial(reconciler.follow, recorded))
        return _is_settled(collection.store, write)

    are_settled = each(collection.store, settled, appended)
    return [(write, Head.of(entry)) for (write, entry), is_it in zip(appended, are_settled, strict=True) if is_it]


def _certain(collection: Collection, writes: Sequence[StoredWrite], hints: Mapping[str, Head]) -> list[StoredWrite]:
    """The writes after which nothing else can be new."""
    known = [one for one in writes if _follows(one, hints.get(one.id))]
    plain = [one for one in known if one.found.version_id is None]
    versioned = [one for one in known if one.found.version_id is not None]
    listed = versions_of(collection.store, collection.path, [one.found.key for one in versioned])
    certain = [one for one in versioned if _is_only_news(one, hints.get(one.id), listed[one.found.key])]
    new = [one for one in plain if one.id not in hints]
    ends = each(collection.store, lambda one: collection.oplog.is_end(one.id, 0), new)
    unrecorded = {one.id for one, is_end in zip(new, ends, strict=True) if is_end}
    return [*certain, *(one for one in plain if one.id in hints or one.id in unrecorded)]


def _follows(write: StoredWrite, head: Head | None) -> bool:
    """Whether the write replaced the version recorded last."""
    if head is None or not head.live:
        return write.parent_etag is None
    return write.before is not None and head.etag == write.parent_etag


def _is_only_news(write: StoredWrite, head: Head | None, listed: Sequence[Version]) -> bool:
    if not listed or not is_same(listed[0], as_version(write.found)):
        return False
    return len(listed) == 1 if head is None else len(listed) > 1 and head.names(listed[1])


def _is_settled(store: Store, write: StoredWrite) -> bool:
    if write.found.version_id is not None:
        return True
    try:
        now = store.head(write.found.key)
    except WormError:
        return False
    return now is not None and now.etag == write.found.etag


def versions_of(store: Store, prefix: str, keys: Sequence[str]) -> dict[str, list[Version]]:
    """All versions of each key under the prefix, newest first. If the keys are close together, one listing of their
    range has them; it is abandoned if it shows too many other keys."""
    if not keys:
        return {}
    found: dict[str, list[Version]] = {key: [] for key in keys}
    order, at = sorted(keys, key=str.encode), 0
    left = 2 * len(keys) + 1000
    for version in store.list_versions(prefix, start_after=order[0][:-1]):
        while at < len(order) and order[at].encode() < version.key.encode():
            at += 1
        left -= 1
        if at == len(order) or left == 0:
            break
        if version.key in found:
            found[version.key].append(version)
    else:
        at = len(order)
    rest = order[at:]
    found |= zip(rest, each(store, lambda key: list(store.versions(key)), rest), strict=True)
    return found


def each(store: Store, work: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """Runs several at once if each is a request."""
    return in_parallel(work, items) if is_remote(store) else [work(one) for one in items]
