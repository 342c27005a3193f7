"""What a listing shows of a range of ids: the entries of their histories, or their current documents.

A listing by requests is *complete*: an object that it lacks is not there. One from an inventory is not: it shows an
earlier moment, so what it lacks has to be read. It is held in memory. If a range has far more entities than planned,
because the table that gave the plan does not know them, it ends with `Crowded`.

For a model with an oplog, only the oplog counts: the row of an entity follows from its newest entry, whatever has been
uploaded since (`tables/build.py`). Its listing has all versions of every entry. An entry is never written again, so one
with several versions was changed by somebody, and its entity is *doubtful*: only reading shows what it is now.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

from worm.clock import iso_seconds
from worm.collections import Collection, IdRange, KeyInfo, KeyKind, Seqs, division
from worm.store import Listed, Version

HISTORY = (KeyKind.OPLOG, KeyKind.ARCHIVE)
NEWEST = 2


class Crowded(Exception):
    """A range has more entities than a task may hold."""


@dataclass
class Shown:
    """What a listing shows of one entity. `seqs`: its archives and its newest entries, of which there may be very many.
    `changed`: the seqs of entries with several versions, unless a newer entry is known. `etag` and `modified`: of its
    document; None if there is none."""

    seqs: Seqs = field(default_factory=Seqs)
    changed: set[int] = field(default_factory=set)
    etag: str | None = None
    modified: str = ""

    @staticmethod
    def entity(collection: Collection, info: KeyInfo) -> str | None:
        """The id of the entity, if the key counts for the rows of the collection."""
        kinds = HISTORY if collection.definition.oplog else (KeyKind.DOCUMENT,)
        return info.id or None if info.model == collection.name and info.kind in kinds else None

    def add(self, info: KeyInfo, version: Version | Listed) -> None:
        """Add one object."""
        is_latest = isinstance(version, Listed) or version.is_latest
        is_there = is_latest and not (isinstance(version, Version) and version.is_delete_marker)
        if info.kind is KeyKind.DOCUMENT:
            if is_there:
                self.etag, self.modified = version.etag, iso_seconds(version.last_modified)
        elif is_there:
            self.seqs.add(info)
            self._forget()
        elif not is_latest and info.kind is KeyKind.OPLOG and info.seq is not None:
            self.changed.add(info.seq)

    def join(self, other: Shown) -> None:
        """Add what another part of the listing shows of the entity."""
        self.seqs.single.update(other.seqs.single)
        self.seqs.archives.extend(other.seqs.archives)
        self.changed.update(other.changed)
        if other.etag is not None:
            self.etag, self.modified = other.etag, other.modified
        self._forget()

    def _forget(self) -> None:
        """Keep only the newest entry and its predecessor, which proves that no entry is missing before it."""
        single = self.seqs.single
        while len(single) > NEWEST:
            single.remove(min(single))
        newest = max(single, default=0)
        self.changed = {seq for seq in self.changed if seq >= newest}


@dataclass(frozen=True)
class Listing:
    """By id, what is shown. Only entities with at least one object are in it."""

    shown: dict[str, Shown]
    is_complete: bool

    @cached_property
    def _ids(self) -> list[str]:
        return sorted(self.shown)

    def ids(self, within: IdRange) -> list[str]:
        end = len(self._ids) if within.end is None else bisect_left(self._ids, within.end)
        return self._ids[bisect_left(self._ids, within.start) : end]


def listed_now(collection: Collection, within: IdRange) -> Listing:
    """By requests: LIST of the documents, or of all versions in the oplog."""
    shown: dict[str, Shown] = {}
    for found in _objects(collection, within):
        info = collection.resolver.parse(found.key)
        entity_id = Shown.entity(collection, info)
        if entity_id is not None and entity_id in within:
            _of(shown, entity_id).add(info, found)
    return _listing(shown, is_complete=True)


def _objects(collection: Collection, within: IdRange) -> Iterator[Version | Listed]:
    definition, store = collection.definition, collection.store
    root = collection.resolver.oplog_root(collection.name) if definition.oplog else collection.path
    apart = root == collection.path and not (definition.oplog and definition.is_singleton)
    for scan in within.scans(root, beside_system_keys=apart):
        for found in (store.list_versions if definition.oplog else store.list)(scan.prefix, start_after=scan.after):
            if scan.is_over(found.key):
                break
            yield found


def joined(parts: Iterable[tuple[str, Shown]]) -> Listing:
    """From the rows of an inventory, which may have an entity in several parts."""
    shown: dict[str, Shown] = {}
    for entity_id, what in parts:
        _of(shown, entity_id).join(what)
    return _listing(shown, is_complete=False)


def _of(shown: dict[str, Shown], entity_id: str) -> Shown:
    known = shown.get(entity_id)
    if known is None:
        if len(shown) >= division.IDS_OF_A_TASK_MAX:
            raise Crowded
        known = shown[entity_id] = Shown()
    return known


def _listing(shown: dict[str, Shown], *, is_complete: bool) -> Listing:
    return Listing({one: what for one, what in shown.items() if what.etag or what.seqs.last}, is_complete)
