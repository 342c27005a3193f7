"""Walks through the ids of a range, in ascending order and in bounded parts, however the ids are distributed.

A *source* is what a job lists: the documents of a collection, or the objects of its oplog. It makes one value of what a
listing shows of an id.

A *walk* hands out these values, a part at a time. After `TASK_IDS_MAX` ids it stops, and says what is left of the
range, in several parts. So with enough rounds, no process handles more, whatever divided the collection among them.

Ids with an escape in their keys are in another part of a listing, and a few keys come late (`id_ranges.py`). So a part
is what both have up to the id at which one of them has enough.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, count, groupby
from typing import Generic, TypeVar

from worm.collections.collection import Collection
from worm.collections.id_ranges import IdRange, Scan, split_range
from worm.collections.layout import KeyInfo, KeyKind
from worm.collections.oplog import Seqs
from worm.store import Listed
from worm.values import dataclass

T = TypeVar("T")
KEYS_PER_ID = 10
"""So many further objects of an id (entries, time marks, versions) count as one more id."""
SPLIT = 32
Objects = Iterator[tuple[KeyInfo, Listed]]


@dataclass(frozen=True, slots=True)
class ListedId(Generic[T]):
    """What a listing shows of one id. `keys`: how many objects."""

    id: str
    what: T
    keys: int

    @property
    def weight(self) -> int:
        """In tenths of an id."""
        return KEYS_PER_ID - 1 + self.keys


@dataclass(frozen=True, slots=True)
class IdSource(Generic[T]):
    """`is_beside`: whether the root also has keys that start with a dot. `found`: what scans of a range show. A
    singleton has no ranges."""

    collection: Collection
    root: str
    is_beside: bool
    found: Callable[[IdRange, Sequence[Scan]], Iterator[ListedId[T]]]

    def plain(self, within: IdRange) -> Iterator[ListedId[T]]:
        return self.found(within, within.plain_scans(self.root, beside_system_keys=self.is_beside))

    def escaped(self, within: IdRange) -> Iterator[ListedId[T]]:
        return self.found(within, [within.escaped_scan(self.root)])

    def late(self, within: IdRange) -> Iterator[ListedId[T]]:
        return self.found(within, within.late_scans(self.root))

    def every(self) -> Iterator[ListedId[T]]:
        within = IdRange()
        return self.found(within, within.scans(self.root, beside_system_keys=self.is_beside))

    def divided(self, within: IdRange) -> tuple[IdRange, ...]:
        return tuple(split_range(self.collection.store, self.root, within, SPLIT))


def documents_of(collection: Collection) -> IdSource[None]:
    """The documents that exist."""

    def found(within: IdRange, scans: Sequence[Scan]) -> Iterator[ListedId[None]]:
        return (ListedId(one, None, 1) for one in collection.current_ids(within, scans))

    return IdSource(collection, collection.path, True, found)


def versions_of(collection: Collection) -> IdSource[None]:
    """The documents with their versions, also of deleted ones, only to count them."""

    def found(within: IdRange, scans: Sequence[Scan]) -> Iterator[ListedId[None]]:
        for entity_id, versions in groupby(collection.listed_versions(scans, within), key=lambda one: one[0]):
            yield ListedId(entity_id, None, sum(1 for _ in versions))

    return IdSource(collection, collection.path, True, found)


def oplogs_of(collection: Collection, make: Callable[[str, Objects], T]) -> IdSource[T]:
    """The oplogs; `make` reads all objects of one."""

    def found(within: IdRange, scans: Sequence[Scan]) -> Iterator[ListedId[T]]:
        for entity_id, objects in groupby(collection.oplog_objects(within, scans), key=lambda one: one[0].id or ""):
            keys = count()
            what = make(entity_id, (one for one, _ in zip(objects, keys, strict=False)))
            yield ListedId(entity_id, what, next(keys))

    root = collection.resolver.oplog_root(collection.name)
    return IdSource(collection, root, root == collection.path and not collection.definition.is_singleton, found)


def histories_of(collection: Collection) -> IdSource[Seqs | None]:
    """The entries of each id, archived or not; None if it has only time marks."""
    return oplogs_of(collection, _seqs)


def keys_of(collection: Collection) -> IdSource[None]:
    """The oplogs, only to count their keys."""
    return oplogs_of(collection, _passed)


def _seqs(_: str, objects: Objects) -> Seqs | None:
    seqs: Seqs | None = None
    for info, _listed in objects:
        if info.kind is not KeyKind.TIME_MARK:
            seqs = Seqs() if seqs is None else seqs
            seqs.add(info)
    return seqs


def _passed(_: str, objects: Objects) -> None:
    for _one in objects:
        pass


class IdWalk(Generic[T]):
    """Iterates over the parts of a range: what there is of each id, ids ascending. At the end, `rest` is what is left:
    nothing, unless the range has more than `most` ids."""

    PART_IDS = 10_000
    TASK_IDS_MAX = 140_000
    """More than a plan gives to a task (`IDS_PER_RANGE_MAX`), so that little is left if the plan was nearly right."""

    def __init__(self, source: IdSource[T], within: IdRange, most: int | None = None) -> None:
        self._source = source
        self._within = within
        self._most = self.TASK_IDS_MAX if most is None else most
        self.rest: tuple[IdRange, ...] = ()

    @staticmethod
    def of_documents(collection: Collection, within: IdRange) -> IdWalk[None]:
        """Through the documents that exist."""
        return IdWalk(documents_of(collection), within)

    @staticmethod
    def of_histories(collection: Collection, within: IdRange) -> IdWalk[Seqs | None]:
        """Through the entries of each id, archived or not; None if it has only time marks."""
        return IdWalk(histories_of(collection), within)

    def __iter__(self) -> Iterator[dict[str, T]]:
        if self._source.collection.definition.is_singleton:
            yield {one.id: one.what for one in self._source.every()}
            return
        left, room = self._within, self._most * KEYS_PER_ID
        while True:
            part, found = _first(self._source, left, min(self.PART_IDS * KEYS_PER_ID, room))
            yield {one.id: one.what for one in found}
            if part.end == self._within.end:
                return
            left = IdRange(part.end or "", self._within.end)
            room -= sum(one.weight for one in found)
            if room <= 0:
                self.rest = self._source.divided(left)
                return


def _first(source: IdSource[T], within: IdRange, most: int) -> tuple[IdRange, list[ListedId[T]]]:
    """The first ids of a range, of about this weight together, and the range that they fill."""
    plain, end = _until(source.plain(within), within.start, most)
    part = within.up_to(end)
    escaped, end = _until(source.escaped(part), part.start, most)
    part = part.up_to(end)
    found = (one for one in chain(plain, escaped, source.late(part)) if one.id in part)
    return part, sorted({one.id: one for one in found}.values(), key=lambda one: one.id)


def _until(found: Iterable[ListedId[T]], start: str, most: int) -> tuple[list[ListedId[T]], str | None]:
    """The first of them, up to the id at which there is enough. It is after the start, so that every step gets
    further."""
    kept, weight = list[ListedId[T]](), 0
    for one in found:
        if weight >= most and one.id > start:
            return kept, one.id
        weight += one.weight
        kept.append(one)
    return kept, None
