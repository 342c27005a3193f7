"""An incremental rebuild of one range of ids: compare a listing with the table, and read only what differs.

A row is *taken over* from the table if the listing shows the state that the table has recorded:

- With an oplog: the newest entry that is listed has the seq of the entity in the manifest and in the heads, no entry is
  missing before it, and nobody has changed it. Entries never change, so reading it would give the same head, and the
  row that was made from it.
- Without an oplog: the listed document has the etag of the row, and is not newer than the table (`lastUpdated`).

Everything else is *read*, as in a full rebuild: other seqs, entities that the table does not know, damaged ones. An id
of the table that a complete listing lacks is *gone*. If the listing is not complete (`listings.py`), such an id is
read, and entities whose listed state differs are listed again, as of now. So an old or false inventory costs requests,
but never a row.

The rows that were read are staged (`staging.py`). If all of them can be folded, that is all that has to be done: they
become deltas of the table, as if the workers had folded them. If not (*rewrite*: a row without a source must vanish, or
a damaged entity changes), the whole range is staged: the rows of the table with those that were read in between.

A table that cannot be used (`Unsound`: none, stale, damaged) is rebuilt in full; so is one that lacks so many entities
that it gave a bad plan (`Crowded`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import merge
from operator import attrgetter
from typing import Generic, Literal

from worm.collections import Collection, Heads, IdRange
from worm.errors import Corrupt
from worm.formats import JsonValue, dumps
from worm.store import in_chunks, in_parallel
from worm.tables.build import CHUNK, newest_changes, read_rows
from worm.tables.layout import T
from worm.tables.manifest import Manifest
from worm.tables.root import Root, cut
from worm.tables.table import Table
from worm.tables.tasks.listings import Crowded, Listing, Shown, joined, listed_now
from worm.tables.tasks.staging import Kind, SourceRows, StagedFile, StagedRow, Staging, overlapping
from worm.tables.tree import Tree

Verdict = Literal["same", "fold", "rewrite"]


class Unsound(Exception):
    """The table cannot be used: there is none, it is stale, or one of its files is gone or damaged."""


# What the table has


class _StoredRange(Generic[T]):
    """The part of one tree in a range of ids. `deltas`: the rows of its deltas in the range, if somebody has read them
    already; otherwise all deltas are read, one at a time."""

    def __init__(self, tree: Tree[T], within: IdRange, deltas: Sequence[T] | None) -> None:
        root = tree.root()
        if root is None or tree.is_stale(root):
            raise Unsound
        self._tree = tree
        self._root: Root[T] = root
        self._within = within
        self._partitions = tree.partitions(root) if root.is_spread else ()
        self._delta = tree.layout.joined(()).merged(self._deltas() if deltas is None else deltas)
        self._touched = self._delta.ids()
        self.last_updated = root.last_updated

    def _deltas(self) -> Iterator[T]:
        for piece in self._root.deltas:
            (delta,) = self._tree.pieces.get([piece.file])
            yield delta.part(_between(delta.ids(), self._within))
            self._tree.pieces.keep(set())

    def ranges(self) -> list[IdRange]:
        """The range, divided where partitions begin: each part can be held in memory."""
        inside = [piece.start for piece in self._partitions if piece.start > self._within.start]
        cuts = [start for start in inside if start in self._within]
        return [
            IdRange(start, end)
            for start, end in zip([self._within.start, *cuts], [*cuts, self._within.end], strict=True)
        ]

    def part(self, within: IdRange) -> T:
        whole = self._root.whole
        if whole is None:
            files = [piece.file for piece in overlapping(self._partitions, within)]
            whole = self._tree.layout.joined(self._tree.pieces.get(files))
            self._tree.pieces.keep(set())
        part = whole.part(_between(whole.ids(), within))
        return part.merged([self._delta.part(_between(self._touched, within))])


@dataclass(frozen=True, slots=True)
class StoredPart:
    """What the table has of a range of ids. `manifest` is None if the model keeps none, `heads` if it has no oplog."""

    within: IdRange
    manifest: Manifest | None
    heads: Heads | None
    last_updated: str

    def ids(self) -> list[str]:
        found = set() if self.manifest is None else {*self.manifest.entities, *self.manifest.seqs, *self.manifest.etags}
        if self.heads is not None:
            found |= {*self.heads.heads, *self.heads.damaged}
        elif self.manifest is not None:  # without an oplog, a seq is the number of a fold, also of deleted documents
            found = {*self.manifest.entities, *self.manifest.etags}
        return sorted(found)

    def row(self, entity_id: str) -> StagedRow:
        """The row of an entity that is taken over. `modified` is unknown, but not newer than the table. A model without
        a manifest needs no rows."""
        manifest, heads = self.manifest, self.heads
        if heads is None:
            assert manifest is not None
            return StagedRow(entity_id, manifest.entities.get(entity_id), None, manifest.etags.get(entity_id))
        head = heads.heads.get(entity_id)
        if manifest is None:
            return StagedRow(entity_id, {} if head is not None and head.live else None, head)
        return StagedRow(entity_id, manifest.entities.get(entity_id), head)

    def has(self, collection: Collection, entity_id: str, shown: Shown) -> bool:
        """Whether the row can be taken over."""
        if self.heads is None:
            assert self.manifest is not None
            is_old = shown.modified <= self.last_updated
            return is_old and shown.etag is not None and self.manifest.etags.get(entity_id) == shown.etag
        head = self.heads.heads.get(entity_id)
        if head is None or head.seq in shown.changed or not _is_newest(collection, entity_id, head.seq, shown):
            return False
        return self.agrees(entity_id)

    def agrees(self, entity_id: str) -> bool:
        """Whether manifest and heads have the same state of an entity. They are read one after the other, so a fold in
        between may be in one of them only."""
        if self.heads is None:
            return True
        head, manifest = self.heads.heads.get(entity_id), self.manifest
        if head is None or manifest is None:
            return head is not None
        return manifest.seqs.get(entity_id) == head.seq and (entity_id in manifest.entities) is head.live

    def verdict(self, row: StagedRow) -> Verdict:
        """What has to be done with a row that was read."""
        if self.heads is None:
            return self._verdict_without_oplog(row)
        if row.damage is not None:
            is_known = row.id in self.heads.damaged and (self.manifest is None or self._is_same(self.manifest, row))
            return "same" if is_known else "rewrite"
        if row.head is None:
            return "rewrite"
        known = self.heads.heads.get(row.id)
        is_new = known is None or row.seq > known.seq
        if not is_new and known != row.head:
            return "rewrite"
        if self.manifest is not None and row.seq <= self.manifest.seqs.get(row.id, 0):
            return "rewrite" if not self._is_same(self.manifest, row) else "fold" if is_new else "same"
        return "fold" if is_new or self.manifest is not None else "same"

    def _verdict_without_oplog(self, row: StagedRow) -> Verdict:
        assert self.manifest is not None
        is_same = self._is_same(self.manifest, row) and row.modified <= self.last_updated
        return "same" if is_same else "fold"

    def _is_same(self, manifest: Manifest, row: StagedRow) -> bool:
        """Whether the manifest has this row."""
        same_seq = self.heads is None or manifest.seqs.get(row.id, 0) == row.seq
        known: JsonValue = manifest.entities.get(row.id)
        return same_seq and manifest.etags.get(row.id) == row.etag and dumps(known) == dumps(row.row)


def _is_newest(collection: Collection, entity_id: str, seq: int, shown: Shown) -> bool:
    """Whether a listing proves that this entry is the newest one, as `Oplog.newest` would."""
    try:
        newest = collection.oplog.newest_seq(entity_id, shown.seqs)
    except Corrupt:
        return False
    return newest == seq and all(name.last < seq for name in shown.seqs.archives)


def _between(ids: Sequence[str], within: IdRange) -> Sequence[str]:
    end = len(ids) if within.end is None else bisect_left(ids, within.end)
    return ids[bisect_left(ids, within.start) : end]


@dataclass(frozen=True, slots=True)
class Slices:
    """The rows of all deltas in one range, if they were divided before."""

    manifest: tuple[Manifest, ...]
    heads: tuple[Heads, ...]


def stored_parts(table: Table, within: IdRange, slices: Slices | None = None) -> Iterator[StoredPart]:
    """What the table has now of a range, part by part, ids ascending. `Unsound` if it cannot be used."""
    definition = table.collection.definition
    try:
        manifest = heads = None
        if definition.keeps_manifest:
            manifest = _StoredRange(table.manifest, within, None if slices is None else slices.manifest)
        if definition.oplog:
            heads = _StoredRange(table.heads, within, None if slices is None else slices.heads)
        ranges = manifest.ranges() if manifest is not None else heads.ranges() if heads is not None else []
        last_updated = "" if manifest is None else manifest.last_updated
        for one in ranges:
            of_heads = None if heads is None else heads.part(one)
            if of_heads is not None and of_heads.partial:
                raise Unsound
            yield StoredPart(one, None if manifest is None else manifest.part(one), of_heads, last_updated)
    except Corrupt as damage:
        raise Unsound from damage


# Comparing


@dataclass(frozen=True, slots=True)
class ComparedRange:
    """The result for one range, or for all. `files`: the staged rows that were read, and the ids that are gone.
    `entities`, `live`: how many the source has, as far as the listing shows. `changed`: how many of the rows that were
    read, or are gone, differ from the table."""

    files: tuple[StagedFile, ...] = ()
    entities: int = 0
    live: int = 0
    read: int = 0
    changed: int = 0
    needs_rewrite: bool = False
    is_unsound: bool = False

    @property
    def taken(self) -> int:
        return self.entities - self.read

    @property
    def weight(self) -> int:
        return sum(file.weight for file in self.files)

    @classmethod
    def total(cls, parts: Sequence[ComparedRange]) -> ComparedRange:
        return cls(
            tuple(file for one in parts for file in one.files),
            sum(one.entities for one in parts),
            sum(one.live for one in parts),
            sum(one.read for one in parts),
            sum(one.changed for one in parts),
            any(one.needs_rewrite for one in parts),
            any(one.is_unsound for one in parts),
        )


@dataclass
class Comparing:
    """The comparison of one range: `rows` yields what must be staged, and the rest counts. `listing`: what an inventory
    shows; None: the range is listed."""

    table: Table
    within: IdRange
    listing: Listing | None = None
    slices: Slices | None = None
    entities: int = field(default=0, init=False)
    live: int = field(default=0, init=False)
    read: int = field(default=0, init=False)
    changed: int = field(default=0, init=False)
    needs_rewrite: bool = field(default=False, init=False)

    def run(self, staging: Staging) -> ComparedRange:
        try:
            files = tuple(staging.put_all(self.rows()))
        except (Unsound, Crowded):
            return ComparedRange(is_unsound=True)
        return ComparedRange(files, self.entities, self.live, self.read, self.changed, self.needs_rewrite)

    def rows(self) -> Iterator[StagedRow]:
        """The rows that were read, and the ids that are gone."""
        for part in stored_parts(self.table, self.within, self.slices):
            for row in self._fresh(part, self.listing or listed_now(self.table.collection, part.within)):
                verdict = part.verdict(row)
                self.changed += verdict != "same"
                self.needs_rewrite = self.needs_rewrite or verdict == "rewrite"
                if not row.is_gone:
                    self.entities += 1
                    self.read += 1
                    self.live += row.row is not None
                yield row

    def _fresh(self, part: StoredPart, listing: Listing) -> Iterator[StagedRow]:
        collection, listed = self.table.collection, listing.ids(part.within)
        wanted: list[str] = []
        for entity_id in listed:
            if not part.has(collection, entity_id, listing.shown[entity_id]):
                wanted.append(entity_id)
            else:
                self.entities += 1
                self.live += part.row(entity_id).row is not None
        unlisted = [one for one in part.ids() if one not in listing.shown]
        if not listing.is_complete:
            yield from _read_again(collection, sorted([*wanted, *unlisted]), set(part.ids()))
            return
        found = _read(collection, wanted, listing)
        yield from merge(found, (StagedRow(one, None) for one in unlisted), key=attrgetter("id"))


def _read(collection: Collection, ids: Sequence[str], listing: Listing) -> Iterator[StagedRow]:
    """From the source, as the listing shows it."""
    if collection.definition.oplog:
        yield from map(StagedRow.of, newest_changes(collection, {one: listing.shown[one].seqs for one in ids}))
    else:
        yield from (row for row in _read_documents(collection, ids) if not row.is_gone)


def _read_again(collection: Collection, ids: Sequence[str], known: set[str]) -> Iterator[StagedRow]:
    """From the source as it is now. Ids that are gone come only if the table knows them."""
    if not collection.definition.oplog:
        yield from (row for row in _read_documents(collection, ids) if row.id in known or not row.is_gone)
        return
    for chunk in in_chunks(ids, CHUNK):
        listed = zip(chunk, in_parallel(collection.oplog.seqs, chunk), strict=True)
        found = newest_changes(collection, {one: seqs for one, seqs in listed if seqs.last})
        rows = {change.id: StagedRow.of(change) for change in found}
        yield from (rows.get(one, StagedRow(one, None)) for one in chunk if one in rows or one in known)


def _read_documents(collection: Collection, ids: Sequence[str]) -> Iterator[StagedRow]:
    for chunk in in_chunks(ids, CHUNK):
        read = read_rows(collection, chunk)
        for entity_id in chunk:
            found = read[entity_id]
            yield StagedRow(entity_id, found.row, None, found.etag, found.modified)


# Staging a whole range


def overlaid(table: Table, within: IdRange, fresh: Iterable[StagedRow], slices: Slices | None) -> Iterator[StagedRow]:
    """All rows of a range: those of the table, and in their place those that a comparison has read. Entities that were
    damaged or folded since then may have no row that belongs to their head: these are read now."""
    following = iter(fresh)
    newer = next(following, None)
    for part in stored_parts(table, within, slices):
        torn = {one for one in part.ids() if not part.agrees(one)}
        again = {row.id: row for row in _read_again(table.collection, sorted(torn), torn)}
        for entity_id in part.ids():
            while newer is not None and newer.id < entity_id:
                yield newer
                newer = next(following, None)
            if newer is None or newer.id != entity_id:
                yield again.get(entity_id) or part.row(entity_id)
    while newer is not None:
        yield newer
        newer = next(following, None)


def staged_whole(
    staging: Staging, table: Table, within: IdRange, files: Sequence[str], slices: Slices | None
) -> list[StagedFile] | None:
    """The staged files of a whole range after its comparison; None if the table cannot be used any more."""
    fresh = staging.rows_within(files, within)
    try:
        return staging.put_all(row for row in overlaid(table, within, fresh, slices) if not row.is_gone)
    except Unsound:
        return None


# Tasks


@dataclass(frozen=True, slots=True)
class StagedRange:
    """What a task staged of its range, and what it left of it."""

    files: tuple[StagedFile, ...]
    rest: tuple[IdRange, ...]


DeltaFile = tuple[Kind, str]
"""The name of a delta."""
Hint = tuple[Literal["shown"], str, Shown] | tuple[Kind, bytes] | tuple[Literal["unsound"]]
"""What a task gets for its range: what an inventory shows of an entity, a part of a delta, or that a delta is gone or
damaged."""


def delta_files(roots: Iterable[tuple[Kind, Root[Manifest] | Root[Heads] | None]], most: int) -> list[DeltaFile]:
    """All deltas, if they are larger than this: then they should be divided instead of being read by each task."""
    found = [(kind, root) for kind, root in roots if root is not None]
    if sum(root.delta_size for _, root in found) <= most:
        return []
    return [(kind, piece.file) for kind, root in found for piece in root.deltas]


class RangeTasks:
    """What tasks do for one range of ids of a collection. `is_listed`, `is_sliced`: whether there are hints in place of
    a listing, and in place of deltas."""

    def __init__(self, collection: Collection) -> None:
        self._collection = collection

    def stage(self, within: IdRange) -> StagedRange:
        """Stage the rows of the source."""
        rows = SourceRows(self._collection, within)
        return StagedRange(tuple(Staging(self._collection).put_all(rows)), rows.rest)

    def compare(self, within: IdRange, hints: Iterable[Hint], *, is_listed: bool, is_sliced: bool) -> ComparedRange:
        try:
            listing, slices = _sorted_out(hints)
        except (Unsound, Crowded):
            return ComparedRange(is_unsound=True)
        table = Table(self._collection)
        comparing = Comparing(table, within, listing if is_listed else None, slices if is_sliced else None)
        return comparing.run(Staging(self._collection))

    def stage_compared(
        self, within: IdRange, files: Sequence[str], hints: Iterable[Hint], *, is_sliced: bool
    ) -> list[StagedFile] | None:
        """Stage a whole range after its comparison, which has staged these files."""
        try:
            _, slices = _sorted_out(hints)
        except Unsound:
            return None
        staging, table = Staging(self._collection), Table(self._collection)
        return staged_whole(staging, table, within, files, slices if is_sliced else None)

    def divide_delta(
        self, delta: DeltaFile, starts: Sequence[str], *, with_empty: bool = False
    ) -> Iterator[tuple[int, bytes]]:
        """What a delta has of each range, with the number of the range. `Corrupt` if it is gone or damaged."""
        kind, file = delta
        table = Table(self._collection)
        tree: Tree[Manifest] | Tree[Heads] = table.manifest if kind == "manifest" else table.heads
        (part,) = tree.pieces.get([file])
        tree.pieces.keep(set())
        for number, ids in enumerate(cut(part.ids(), starts)):
            if ids or with_empty:
                yield number, part.part(ids).encode()

    def delta_hints(self, delta: DeltaFile, starts: Sequence[str]) -> Iterator[tuple[int, Hint]]:
        """The same as hints."""
        try:
            for number, body in self.divide_delta(delta, starts):
                yield number, (delta[0], body)
        except Corrupt:
            yield 0, ("unsound",)


def _sorted_out(hints: Iterable[Hint]) -> tuple[Listing, Slices]:
    manifest, heads = list[Manifest](), list[Heads]()

    def shown() -> Iterator[tuple[str, Shown]]:
        for hint in hints:
            if hint[0] == "shown":
                yield hint[1], hint[2]
            elif hint[0] == "unsound":
                raise Unsound
            elif hint[0] == "manifest":
                manifest.append(Manifest.decode(hint[1], "a slice of a delta"))
            else:
                heads.append(Heads.decode(hint[1], "a slice of a delta"))

    return joined(shown()), Slices(tuple(manifest), tuple(heads))
