"""verify, for many processes: what each checks of a range of ids, and what is checked once (`VerifyTasks.root`).

Together they check everything that `verify.py` checks.

The rows of a range are compared with the files that hold it. A process takes its range in portions: it holds the rows
of one portion, a partition of the manifest, and what the deltas have of its range (`StoredTables`). Checks of the table
as a whole (its time, its indexes, claims) are left to the caller, which sees all ranges."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, TypeVar, cast

from worm.collections import Collection, Heads, IdRange, Row, division
from worm.errors import Corrupt
from worm.formats import JsonValue, dumps
from worm.tables.build import read_rows
from worm.tables.index import Index
from worm.tables.layout import T
from worm.tables.manifest import Manifest
from worm.tables.root import Root
from worm.tables.table import Table
from worm.tables.tasks.incremental import DeltaFile, delta_files
from worm.tables.tasks.staging import overlapping
from worm.tables.tree import Tree
from worm.tables.verify import (
    DETAILS_MAX,
    VerifyReport,
    absence,
    audit_append,
    beside_parts,
    differing,
    verify_entities,
    verify_index,
    wrong_heads,
)

V = TypeVar("V")


@dataclass
class RangeReport:
    """The result of verifying a range. `rows` come from the source, `revision` is the sum of their seqs."""

    report: VerifyReport
    rows: dict[str, Row] = field(default_factory=dict)
    last_updated: str = ""
    revision: int = 0
    damaged: frozenset[str] = frozenset()


def verify_range(collection: Collection, within: IdRange, stored: StoredTables | None = None) -> RangeReport:
    """Verify one range. It only reads. `stored`: what the tables have of a larger range."""
    found = RangeReport(VerifyReport(collection.name))
    stored = stored or StoredTables(collection, within)
    stored.prepare(within)
    table = stored.table
    expected = _recorded(collection, within, found) if collection.definition.oplog else _read(collection, within, found)
    found.rows = expected.manifest.entities
    if table.is_kept:
        _verify_rows(stored, within, expected.manifest, found.report)
    if collection.definition.oplog:
        _verify_heads(stored, within, expected.heads, found.report)
    if collection.definition.soft_delete:
        for kind, key, detail in _trash_findings(collection, within):
            found.report.differ(kind, key, detail)
    found.report.differences += audit_append(collection, within)
    return found


@dataclass(frozen=True, slots=True)
class _Expected:
    manifest: Manifest
    heads: Heads


def _recorded(collection: Collection, within: IdRange, found: RangeReport) -> _Expected:
    changes = verify_entities(collection, found.report, within)
    manifest = Manifest(collection.name).folded(changes) or Manifest(collection.name)
    found.last_updated, found.revision = manifest.last_updated, manifest.revision
    heads = Heads(collection.name).folded(changes) or Heads(collection.name)
    found.damaged = heads.damaged
    return _Expected(manifest, heads)


def _read(collection: Collection, within: IdRange, found: RangeReport) -> _Expected:
    judge = partial(found.report.judged, collection)
    read = read_rows(collection, collection.current_ids(within), judge=judge)
    manifest = Manifest(collection.name).with_documents(read) or Manifest(collection.name)
    found.last_updated = manifest.last_updated
    found.report.documents = len(manifest.etags)
    return _Expected(manifest, Heads(collection.name))


def _verify_rows(tables: StoredTables, within: IdRange, expected: Manifest, report: VerifyReport) -> None:
    table = tables.table
    try:
        stored = tables.manifest.part(within)
    except Corrupt as damage:
        key = damage.key or table.manifest.key
        if key not in tables.damaged:  # several portions are in one partition
            tables.damaged.add(key)
            report.differ("manifest-damaged", key, damage.message)
        return
    if stored is None:
        return  # reported once, by the caller that sees all ranges
    wrong = [
        *_unlike(stored.entities, expected.entities),
        *_unlike(stored.etags, expected.etags),
        *(_unlike(stored.seqs, expected.seqs) if table.collection.definition.oplog else ()),
    ]
    if wrong:
        report.differ("manifest-differs", table.manifest.key, _shown("row", wrong))


def _verify_heads(tables: StoredTables, within: IdRange, expected: Heads, report: VerifyReport) -> None:
    table = tables.table
    try:
        stored = tables.heads.part(within) or Heads(table.collection.name)
    except Corrupt:
        stored = Heads(table.collection.name)  # only hints: all of them differ then
    wrong = wrong_heads(stored, expected)
    if wrong:
        report.differ("heads-differ", table.heads.key, _shown("head", wrong))


class StoredTables:
    """What manifest and heads have of one range, read portion by portion. `slices`: what some deltas, by the names of
    their files, have of the range; the others are read."""

    def __init__(self, collection: Collection, within: IdRange, slices: Mapping[str, bytes] | None = None) -> None:
        self.table = Table(collection)
        self.manifest = StoredRange(self.table.manifest, within, slices or {})
        self.heads = StoredRange(self.table.heads, within, slices or {})
        self.damaged: set[str] = set()
        """The files whose damage was reported."""

    def prepare(self, portion: IdRange) -> None:
        """Read the files of a portion before the source is read: parsing takes the most memory. They are immutable; if
        the root changes until they are needed, others are read then."""
        for one in (self.manifest, self.heads):
            with suppress(Corrupt):  # reported when the part is needed
                one.part(portion)


class StoredRange(Generic[T]):
    """One of them. Deltas are read once, one at a time, and only their share of the range is kept; a partition is kept
    as long as portions are in it."""

    def __init__(self, tree: Tree[T], within: IdRange, slices: Mapping[str, bytes]) -> None:
        self._tree = tree
        self._within = within
        self._slices = slices
        self._delta: tuple[tuple[str, ...], T] | None = None

    def part(self, portion: IdRange) -> T | None:
        """The table's content in a portion; None if there is no table."""
        tree = self._tree
        root = tree.root()
        if root is None:
            return None
        if root.whole is not None:
            return _part(root.whole, portion)
        delta = self._deltas(tuple(piece.file for piece in root.deltas))
        files = [piece.file for piece in overlapping(tree.partitions(root), portion)]
        tree.pieces.keep(set(files))
        base = tree.layout.joined([_part(one, portion) for one in tree.pieces.get(files)])
        return base.merged([_part(delta, portion)])

    def _deltas(self, files: tuple[str, ...]) -> T:
        if self._delta is None or self._delta[0] != files:
            tree = self._tree
            whole = tree.layout.joined(())
            for file in files:
                whole = whole.merged([self._slice(file)])
                tree.pieces.keep(set())
            self._delta = files, whole
        return self._delta[1]

    def _slice(self, file: str) -> T:
        tree = self._tree
        if file in self._slices:
            return tree.layout.decode(self._slices[file], tree.pieces.key(file))
        (delta,) = tree.pieces.get([file])
        return _part(delta, self._within)


def _part(whole: T, within: IdRange) -> T:
    return whole.part([one for one in whole.ids() if one in within])


def _unlike(stored: Mapping[str, V], expected: Mapping[str, V]) -> Iterator[str]:
    for one in {*stored, *expected}:
        if one not in stored or one not in expected or _bytes(stored[one]) != _bytes(expected[one]):
            yield one


def _bytes(value: object) -> bytes:
    return dumps(cast(JsonValue, value))  # 1 is not true here


def _shown(what: str, wrong: Iterable[str]) -> str:
    ids = sorted(set(wrong))
    return f"{differing(len(ids), what)}: {', '.join(ids[:DETAILS_MAX])}"


def _trash_findings(collection: Collection, within: IdRange) -> Iterator[tuple[str, str, str]]:
    """Tombstones that cannot be read, and those whose document is gone with nothing left to restore. A tombstone of an
    existing document belongs to a deletion or a restore in progress, and so does one that changes while we look."""
    for entity_id in collection.trashed_ids(within):
        try:
            if _is_lost(collection, entity_id):
                yield "trash-copy-missing", collection.trash.copy_key(entity_id), "neither a copy nor a version is left"
        except Corrupt as damage:
            yield "trash-damaged", collection.trash.tombstone_key(entity_id), damage.message


def _is_lost(collection: Collection, entity_id: str) -> bool:
    tombstone = collection.trash.tombstone(entity_id)
    if tombstone is None or tombstone.state is not None:
        return False
    if collection.store.head(collection.documents.key(entity_id)) is not None:
        return False
    if _is_restorable(collection, entity_id, tombstone.version_id):
        return False
    return collection.trash.tombstone(entity_id) == tombstone  # a restore or a purge changes it before the copy goes


def _is_restorable(collection: Collection, entity_id: str, version_id: str | None) -> bool:
    store = collection.store
    if store.head(collection.trash.copy_key(entity_id)) is not None:
        return True
    key = collection.documents.key(entity_id)
    return version_id is not None and store.head(key, version_id=version_id) is not None


# The table as a whole


@dataclass(frozen=True, slots=True)
class StoredIndexes:
    """What the root of a partitioned table says about its indexes, for tasks that compare their parts with the
    partitions. By the number of an index: the first keys of its parts; by that and the number of the part: its file.
    `count`: how many rows there are."""

    partitions: tuple[str, ...]
    count: int
    starts: Mapping[int, Sequence[str]]
    files: Mapping[tuple[int, int], str]


def _is_older(root: Root[Manifest], updated: str, damaged: int) -> bool:
    """Whether its time differs from the source. If documents of damaged entities are served, it may be later: from a
    document that was served before."""
    return root.last_updated < updated if damaged else root.last_updated != updated


def _stored_indexes(table: Table, root: Root[Manifest], report: VerifyReport) -> StoredIndexes | None:
    found: dict[tuple[int, int], str] = {}
    starts: dict[int, list[str]] = {}
    for number, files in enumerate(table.indexes):
        known, definition = root.indexes.get(files.definition.field), files.definition
        if known is None or (known.type, known.unique) != (definition.type, definition.unique):
            report.differ(*absence("index", files.key, None))
            continue
        if files.is_whole():
            report.differ(*beside_parts(files))
            continue
        starts[number] = [piece.start for piece in known.parts]
        found.update({(number, at): piece.file for at, piece in enumerate(known.parts)})
    if not found:
        return None
    partitions = tuple(piece.file for piece in table.manifest.partitions(root))
    return StoredIndexes(partitions, root.count, starts, found)


# What tasks do, and who plans them


class VerifyTasks:
    """The verification of one collection, in parts."""

    def __init__(self, collection: Collection) -> None:
        self._collection = collection

    def portions(self, share: division.Share, slices: Mapping[str, bytes] | None = None) -> Iterator[RangeReport]:
        """Verify one portion after the other. `slices`: what some deltas, by the names of their files, have of the
        share."""
        stored = StoredTables(self._collection, share.within, slices)
        return (verify_range(self._collection, portion, stored) for portion in share.portions)

    def large_deltas(self, most: int) -> list[DeltaFile]:
        """The deltas of both tables if they are larger than this."""
        table = Table(self._collection)
        return delta_files(
            [
                ("manifest", table.manifest.root() if table.is_kept else None),
                ("heads", table.heads.root() if self._collection.definition.oplog else None),
            ],
            most,
        )

    def root(self, updated: str, revision: int, damaged: int) -> tuple[VerifyReport, StoredIndexes | None]:
        """Check what belongs to the table as a whole. `updated`, `revision` and `damaged` are those of the source: the
        newest time, the sum of all seqs, and how many entities are damaged."""
        table, report = Table(self._collection), VerifyReport(self._collection.name)
        root = table.manifest.root() if table.is_kept else None
        if root is None:
            if table.is_kept:
                report.differ(*absence("manifest", table.manifest.key, table.manifest.damage))
                for files in table.indexes:
                    if files.file.read() is None:
                        report.differ(*absence("index", files.key, files.file.held.damage))
            return report, None
        if table.manifest.is_stale(root):
            report.differ("manifest-differs", table.manifest.key, "its fields differ from the schema")
            return report, None
        is_older = self._collection.definition.oplog and _is_older(root, updated, damaged)
        if root.whole is None:
            if is_older:
                detail = f"lastUpdated {root.last_updated} differs from the rebuilt one"
                report.differ("manifest-differs", table.manifest.key, detail)
            return report, _stored_indexes(table, root, report)
        if is_older or (self._collection.definition.oplog and root.revision != revision):
            detail = f"lastUpdated {root.last_updated}, revision {root.revision} differ from the rebuilt ones"
            report.differ("manifest-differs", table.manifest.key, detail)
        for files in table.indexes:
            verify_index(files, Index.of(root.whole, files.definition), report)
        return report, None
