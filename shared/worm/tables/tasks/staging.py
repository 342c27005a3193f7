"""A rebuild by many processes: rows staged from the source, the parts of a new base made from them, and the flip.

*Staged rows* are what was read from the source, in immutable files beside the table (`stage-<hash>.json`, one row per
line, sorted by id). Each process reads one range of ids and writes their rows. After that, nothing is read from the
source again, which moves on: partitions, heads and indexes are made only from the staged files, so repeating a part of
the work gives the same bytes. No root names staged files; they are deleted like any file that no root names.

The *ranges* of the parts are exactly those of a rebuild in one process (`root.balanced_starts`). For that, the ids at
some positions and the number of ids in each carried range must be known; each staged file gives its share (`survey`).

The *flip* is one compare-and-swap that makes the new base the table. Changes folded since the job started are not in
the base, and must not be lost:
- deltas that the root did not have at the start stay deltas;
- if the base itself has changed since the start (deltas were merged into it, or the table was one file), its rows that
  are newer than the staged ones are added as a delta;
- a model without an oplog has no seqs that show which of two rows is newer: documents that were folded in the meantime
  are folded again after the flip;
- if the root was removed in the meantime, or now has another schema, nothing shows what was folded: `Overtaken`, and
  the rebuild starts again.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from typing import Generic, Literal, cast

from worm.collections import Change, Collection, Head, Heads, IdRange, IdWalk, OplogEntry, Row
from worm.errors import Corrupt
from worm.formats import JsonValue, dumps, loads_own, shapes
from worm.store import in_chunks, in_parallel
from worm.tables.build import CHUNK, empty_manifest, is_recorded, newest_changes, read_rows
from worm.tables.index import Index, NewIndex
from worm.tables.layout import PARTITION_BYTES, Edit, Layout, NewFiles, T, of_pieces
from worm.tables.manifest import Manifest, ReadRow
from worm.tables.pieces import Pieces, new_file
from worm.tables.root import (
    Balanced,
    IndexPieces,
    Piece,
    Root,
    are_balanced,
    counts_between,
    cuts,
    fitting_starts,
    heavy_keys,
    may_carry,
    weights_between,
)
from worm.tables.table import Table
from worm.tables.tree import Tree

ROWS_MAX = 20_000
BYTES_MAX = 8 << 20
DAMAGED_MAX = 20
"""Damaged entities that a file reports with the reason; of the others, only the number."""
STEM = "stage"
STAGED = shapes.record(
    "a staged row",
    {"id": shapes.TEXT},
    {
        "row": shapes.nullable(shapes.OBJECT),
        "head": shapes.nullable(Head.SHAPE),
        "etag": shapes.nullable(shapes.TEXT),
        "modified": shapes.TEXT,
        "damage": shapes.nullable(shapes.tuple_of("what is damaged", reason=shapes.TEXT, key=shapes.TEXT)),
    },
)


@dataclass(frozen=True, slots=True)
class StagedRow:
    """An entity as it was in the source. With an oplog: `head`, and `row` None if it is deleted. Without, and for a
    damaged entity: `etag` and `modified` of the document, and `row` None if that is invalid. `damage`: why it is
    damaged."""

    id: str
    row: Row | None
    head: Head | None = None
    etag: str | None = None
    modified: str = ""
    damage: tuple[str, str] | None = None

    @classmethod
    def of(cls, change: Change) -> StagedRow:
        damage = None if change.damage is None else (change.damage.message, change.damage.key or "")
        return cls(change.id, change.row, change.head, change.etag, change.modified, damage)

    @property
    def is_gone(self) -> bool:
        """Whether the source has nothing of the entity. Only a comparison finds such ids (`incremental.py`)."""
        return self.row is None and self.head is None and self.etag is None and self.damage is None

    @property
    def seq(self) -> int:
        return 0 if self.head is None else self.head.seq

    @property
    def weight(self) -> int:
        return Change.weight_of(self.id, self.row)

    @property
    def updated(self) -> str:
        return self.modified if self.head is None else self.head.ts

    @property
    def change(self) -> Change:
        if self.damage is None:
            return Change(self.id, self.head, self.row)
        reason, key = self.damage
        return Change(self.id, None, self.row, Corrupt(reason, key=key), self.etag, self.modified)

    @property
    def read(self) -> ReadRow:
        return ReadRow(self.row, self.etag, self.modified)

    def encode(self) -> bytes:
        """Without empty members: a null makes canonical JSON check the row a second time."""
        shape: dict[str, JsonValue] = {"id": self.id}
        if self.row is not None:
            shape["row"] = self.row
        if self.head is not None:
            shape["head"] = self.head.encode()
        if self.etag is not None:
            shape |= {"etag": self.etag, "modified": self.modified}
        if self.damage is not None:
            shape["damage"] = [*self.damage]
        return dumps(shape)

    @classmethod
    def decode(cls, line: bytes, key: str) -> StagedRow:
        shape = loads_own(line, key=key)
        shapes.check(shape, STAGED, key)
        head = cast("list[JsonValue] | None", shape.get("head"))
        damage = cast("list[str] | None", shape.get("damage"))
        return cls(
            id=cast(str, shape["id"]),
            row=cast("Row | None", shape.get("row")),
            head=None if head is None else Head.decode(head),
            etag=cast("str | None", shape.get("etag")),
            modified=cast(str, shape.get("modified", "")),
            damage=None if damage is None else (damage[0], damage[1]),
        )


@dataclass(frozen=True, slots=True)
class StagedFile:
    """What a plan has to know about a file: its ids from `first` to `last`, their number, how many of them have a row,
    and their weight in a manifest; also the first damaged ones with the reason, and how many there are."""

    file: str
    first: str
    last: str
    count: int
    live: int
    weight: int = 0
    damaged: tuple[tuple[str, str], ...] = ()
    damages: int = 0


class Staging:
    """The staged files of one collection. One instance per thread."""

    def __init__(self, collection: Collection) -> None:
        resolver, name = collection.resolver, collection.name
        keeps_manifest = collection.definition.keeps_manifest
        directory = resolver.manifest_dir(name) if keeps_manifest else resolver.heads_dir(name)
        self.collection = collection
        self._pieces: Pieces[list[StagedRow]] = Pieces(collection.store, directory, _decode)

    @staticmethod
    def within(files: Sequence[StagedFile], within: IdRange) -> tuple[str, ...]:
        """The files that have ids of a range. Their own ranges are disjoint, and in order: there may be very many."""
        start = bisect_left(files, within.start, key=lambda one: one.last)
        end = len(files) if within.end is None else bisect_left(files, within.end, key=lambda one: one.first)
        return tuple(one.file for one in files[start:end])

    def put_all(self, given: Iterable[StagedRow]) -> list[StagedFile]:
        """Write rows, ids ascending."""
        staged: list[StagedFile] = []
        rows: list[StagedRow] = []
        lines: list[bytes] = []
        size = 0
        for row in given:
            rows.append(row)
            lines.append(row.encode())
            size += len(lines[-1])
            if len(rows) >= ROWS_MAX or size >= BYTES_MAX:
                staged.append(self._put(rows, lines))
                rows, lines, size = [], [], 0
        if rows:
            staged.append(self._put(rows, lines))
        return staged

    def rows(self, file: str) -> list[StagedRow]:
        """The rows of a file; the last file is remembered."""
        (found,) = self._pieces.get([file])
        self._pieces.keep({file})
        return found

    def rows_within(self, files: Iterable[str], within: IdRange) -> Iterator[StagedRow]:
        """The rows of a range, from the files that have any of it, ids ascending."""
        for file in files:
            yield from (row for row in self.rows(file) if row.id in within)

    def _put(self, rows: list[StagedRow], lines: list[bytes]) -> StagedFile:
        piece = self._pieces.put(new_file(STEM, b"\n".join(lines), rows, count=len(rows)))
        self._pieces.keep(set())
        live = sum(row.row is not None for row in rows)
        weight = sum(row.weight for row in rows)
        damaged = [row for row in rows if row.damage is not None]
        told = tuple((row.id, str(row.change.damage)) for row in damaged[:DAMAGED_MAX])
        return StagedFile(piece.file, rows[0].id, rows[-1].id, len(rows), live, weight, told, len(damaged))


class SourceRows:
    """Reads the state of every entity of the range, ids ascending. At the end, `rest` is what is left of the range (see
    `IdWalk`)."""

    def __init__(self, collection: Collection, within: IdRange) -> None:
        self._collection = collection
        self._within = within
        self.rest: tuple[IdRange, ...] = ()

    def __iter__(self) -> Iterator[StagedRow]:
        return self._recorded() if self._collection.definition.oplog else self._documents()

    def _recorded(self) -> Iterator[StagedRow]:
        walk = IdWalk.of_histories(self._collection, self._within)
        for part in walk:
            recorded = {one: seqs for one, seqs in part.items() if seqs is not None}
            yield from map(StagedRow.of, newest_changes(self._collection, recorded))
        self.rest = walk.rest

    def _documents(self) -> Iterator[StagedRow]:
        walk = IdWalk.of_documents(self._collection, self._within)
        for part in walk:
            for chunk in in_chunks(part, CHUNK):
                for entity_id, found in read_rows(self._collection, chunk).items():
                    if found.etag is not None:  # otherwise it was deleted after the listing
                        yield StagedRow(entity_id, found.row, None, found.etag, found.modified)
        self.rest = walk.rest


def manifest_part(collection: Collection, rows: Iterable[StagedRow]) -> Manifest:
    """A partition of the manifest."""
    part = Manifest(collection.name)
    for one in rows:
        if one.row is not None:
            part.entities[one.id] = one.row
        if one.head is not None:
            part.seqs[one.id] = one.head.seq
        if one.etag is not None:
            part.etags[one.id] = one.etag
    return part


def heads_part(collection: Collection, rows: Iterable[StagedRow]) -> Heads:
    """A partition of the heads."""
    listed = list(rows)
    damaged = frozenset(one.id for one in listed if one.damage is not None)
    return Heads(collection.name, {one.id: one.head for one in listed if one.head is not None}, damaged)


def _decode(body: bytes, key: str) -> list[StagedRow]:
    return [StagedRow.decode(line, key) for line in body.split(b"\n")]


Kind = Literal["manifest", "heads"]


# Ranges


@dataclass(frozen=True, slots=True)
class Wish:
    """The ranges that a tree wants: where to cut, and its existing ranges, which stay while they are balanced.
    `may_carry`: whether there are about as many of them as wanted. `is_heavy`: ranges may be too large, so the weight
    of the rows is needed, too."""

    kind: Kind
    cuts: tuple[int, ...]
    carried: tuple[str, ...]
    may_carry: bool
    is_heavy: bool


@dataclass(frozen=True, slots=True)
class Question:
    """What to find out from one staged file: for each wish, the positions in the file where it cuts, and the carried
    starts that are in the range of the file, of which the first is number `first`. `before`: the weight of the rows of
    all earlier files; None if nobody needs it."""

    file: str
    positions: tuple[tuple[int, ...], ...]
    carried: tuple[tuple[str, ...], ...]
    before: int | None
    first: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Measurement:
    """For each wish: the ids at the positions, the weight of the rows up to each of them and after the last, and the
    number of ids and the weight of each carried range of the question. `heavy`: see `root.heavy_keys`."""

    ids: tuple[tuple[str, ...], ...]
    weights: tuple[tuple[int, ...], ...]
    counts: tuple[tuple[int, ...], ...]
    of_carried: tuple[tuple[int, ...], ...]
    heavy: tuple[str, ...]
    first: tuple[int, ...] = ()


def wish(kind: Kind, tree: Tree[T], root: Root[T] | None, files: Sequence[StagedFile]) -> Wish:
    total = sum(one.count for one in files)
    wanted, maximum = tree.layout.ranges(total)
    carried = tree.carried(root)
    may = may_carry(total, wanted, maximum, carried)
    is_heavy = kind == "manifest" and sum(one.weight for one in files) > PARTITION_BYTES
    return Wish(kind, tuple(cuts(total, wanted)), tuple(carried) if may or is_heavy else (), may, is_heavy)


def questions(files: Sequence[StagedFile], wishes: Sequence[Wish]) -> list[Question]:
    ends = list(accumulate(one.count for one in files))
    positions: list[list[list[int]]] = [[[] for _ in wishes] for _ in files]
    for number, one in enumerate(wishes):
        for cut in one.cuts:
            at = bisect_right(ends, cut)
            positions[at][number].append(cut - (ends[at] - files[at].count))
    is_heavy = any(one.is_heavy for one in wishes)
    before = accumulate((one.weight for one in files), initial=0)
    asked = []
    for at, (file, weight) in enumerate(zip(files, before, strict=False)):
        first = tuple(max(0, bisect_right(one.carried, file.first) - 1) for one in wishes)
        carried = (
            one.carried[lo : bisect_right(one.carried, file.last)] for one, lo in zip(wishes, first, strict=True)
        )
        at_cuts = tuple(tuple(each) for each in positions[at])
        asked.append(Question(file.file, at_cuts, tuple(carried), weight if is_heavy else None, first))
    return asked


def survey(staging: Staging, question: Question) -> Measurement:
    return answered(question, staging.rows(question.file))


def answered(question: Question, rows: Sequence[StagedRow]) -> Measurement:
    ids = [row.id for row in rows]
    weights = [0 if question.before is None else row.weight for row in rows]
    return Measurement(
        tuple(tuple(ids[at] for at in positions) for positions in question.positions),
        tuple(_between(weights, positions) for positions in question.positions),
        tuple(tuple(counts_between(ids, starts)) if starts else () for starts in question.carried),
        tuple(tuple(weights_between(ids, weights, starts)) if starts else () for starts in question.carried),
        () if question.before is None else tuple(heavy_keys(ids, weights, PARTITION_BYTES // 2, question.before)),
        question.first,
    )


def _between(weights: Sequence[int], positions: Sequence[int]) -> tuple[int, ...]:
    edges = (0, *positions, len(weights))
    return tuple(sum(weights[start:end]) for start, end in pairwise(edges))


def starts_of(wishes: Sequence[Wish], answers: Sequence[Measurement]) -> dict[Kind, list[str]]:
    """The first ids of the ranges, as in `Layout.starts`. `answers` are in the order of the files."""
    found: dict[Kind, list[str]] = {}
    for number, one in enumerate(wishes):
        counts, of_carried = [0] * len(one.carried), [0] * len(one.carried)
        for answer in answers:
            for sums, found_here in ((counts, answer.counts[number]), (of_carried, answer.of_carried[number])):
                for at, some in enumerate(found_here, start=answer.first[number]):
                    sums[at] += some
        starts, weights = ["", *(entity_id for answer in answers for entity_id in answer.ids[number])], [0]
        for first, *others in (answer.weights[number] for answer in answers):
            weights[-1] += first
            weights += others
        if one.carried and one.may_carry and are_balanced(counts):
            starts, weights = list(one.carried), of_carried
        if one.is_heavy:
            heavy = [entity_id for answer in answers for entity_id in answer.heavy]
            starts = fitting_starts(Balanced(starts, weights), one.carried, of_carried, heavy, PARTITION_BYTES)
        found[one.kind] = starts
    return found


# Parts


@dataclass(frozen=True, slots=True)
class StoredFiles:
    """The files that currently hold a range: partitions, and all deltas."""

    partitions: tuple[str, ...]
    deltas: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PartPlan:
    """One file of a new base: where its rows are staged. `stored`: set if it must be known whether anything changed (a
    model without an oplog)."""

    kind: Kind
    number: int
    within: IdRange
    files: tuple[str, ...]
    stored: StoredFiles | None = None


@dataclass(frozen=True, slots=True)
class BuiltPart:
    """A written file of a new base. `revision`: the sum of its seqs; `differs`: from what is stored."""

    kind: Kind
    number: int
    piece: Piece
    revision: int
    last_updated: str
    differs: bool = True


def part_plans(
    kind: Kind, starts: Sequence[str], files: Sequence[StagedFile], stored: Callable[[IdRange], StoredFiles | None]
) -> list[PartPlan]:
    ranges = [IdRange(start, end) for start, end in zip(starts, [*starts[1:], None], strict=True)]
    return [PartPlan(kind, number, one, Staging.within(files, one), stored(one)) for number, one in enumerate(ranges)]


def overlapping(pieces: Sequence[Piece], within: IdRange) -> list[Piece]:
    """The pieces whose ranges overlap this range."""
    start = max(0, bisect_right(pieces, within.start, key=lambda one: one.start) - 1)
    end = len(pieces) if within.end is None else bisect_left(pieces, within.end, key=lambda one: one.start)
    return list(pieces[start:end])


def stored_files(table: Table, root: Root[Manifest] | None, within: IdRange) -> StoredFiles | None:
    """The files of a range of a partitioned manifest."""
    if root is None or not root.is_spread:
        return None
    found = overlapping(table.manifest.partitions(root), within)
    return StoredFiles(tuple(piece.file for piece in found), tuple(piece.file for piece in root.deltas))


def build_part(staging: Staging, table: Table, plan: PartPlan) -> BuiltPart:
    """Write one file of a new base. One of heads has more ids than one of rows, and needs no rows."""
    found = staging.rows_within(plan.files, plan.within)
    rows = [replace(row, row=None) for row in found] if plan.kind == "heads" else list(found)
    last_updated = max((row.updated for row in rows), default="")
    start, revision = plan.within.start, sum(row.seq for row in rows)
    if plan.kind == "heads":
        heads = table.heads.layout.partition(plan.number, start, heads_part(staging.collection, rows))
        piece = table.heads.put_file(heads)
        table.heads.pieces.keep(set())
        return BuiltPart(plan.kind, plan.number, piece, revision, last_updated)
    part = manifest_part(staging.collection, rows)
    piece = table.manifest.put_file(table.manifest.layout.partition(plan.number, start, part))
    differs = plan.stored is None or _differs(table, plan.stored, plan.within, part)
    table.manifest.pieces.keep(set())
    return BuiltPart(plan.kind, plan.number, piece, revision, last_updated, differs)


def _differs(table: Table, files: StoredFiles, within: IdRange, part: Manifest) -> bool:
    """Whether the table differs from the source in this range."""
    try:
        base = table.manifest.layout.joined(table.manifest.pieces.get(files.partitions))
        stored = base.merged(table.manifest.pieces.get(files.deltas))
    except Corrupt:
        return True
    known = stored.part(entity_id for entity_id in stored.ids() if entity_id in within)
    same_rows = dumps(cast(JsonValue, known.entities)) == dumps(cast(JsonValue, part.entities))
    return not same_rows or known.etags != part.etags


# Catching up


@dataclass(frozen=True, slots=True)
class CatchUp:
    """What a table knows that is not staged: a delta with the newer rows, and the ids of documents that differ (for a
    model without an oplog, where nothing shows which is newer)."""

    deltas: tuple[Piece, ...] = ()
    ids: tuple[str, ...] = ()


_NOTHING: tuple[int, str | None] = (0, None)


def catch_up(
    staging: Staging, table: Table, stored: Manifest | Heads, files: Sequence[str], within: IdRange
) -> CatchUp:
    """Compare a part of the table with the staged files of its range, and write what is newer as a delta."""
    ids = set(stored.ids())
    staged: dict[str, tuple[int, str | None]] = {}
    unknown: list[tuple[str, str | None]] = []
    for row in staging.rows_within(files, within):
        if row.id in ids:
            # For a damaged entity, no entry counts; if somebody repairs it in the meantime, the next sweep notices.
            staged[row.id] = OplogEntry.SEQ_MAX if row.damage is not None else row.seq, row.etag
        elif row.head is None:
            unknown.append((row.id, row.etag))
    if isinstance(stored, Manifest) and not staging.collection.definition.oplog:
        changed = [one for one in ids if stored.etags.get(one) != staged.get(one, _NOTHING)[1]]
        return CatchUp(ids=tuple(sorted([*changed, *_replaced(staging.collection, unknown)])))
    newer = [
        entity_id
        for entity_id, seq in _seqs(stored).items()
        if seq > staged.get(entity_id, _NOTHING)[0] and is_recorded(staging.collection, entity_id, seq)
    ]
    if not newer:
        return CatchUp()
    if isinstance(stored, Manifest):
        part = replace(stored.part(newer), last_updated=stored.last_updated)
        return CatchUp((table.manifest.put("delta", part),))
    return CatchUp((table.heads.put("delta", stored.part(newer)),))


def _replaced(collection: Collection, staged: Sequence[tuple[str, str | None]]) -> list[str]:
    """Documents that differ from their staged rows by now. The table does not know them: not yet, or because they were
    deleted in the meantime."""
    infos = in_parallel(lambda one: collection.store.head(collection.documents.key(one[0])), staged)
    return [one for (one, etag), info in zip(staged, infos, strict=True) if info is None or info.etag != etag]


def _seqs(stored: Manifest | Heads) -> Mapping[str, int]:
    if isinstance(stored, Manifest):
        return stored.seqs
    return {entity_id: head.seq for entity_id, head in stored.heads.items()}


def staged_base(
    layout: Layout[T], parts: Sequence[BuiltPart], indexes: dict[str, IndexPieces] | None = None
) -> Edit[T]:
    """The root that names these files; for a model without an oplog, it has no revision yet."""
    ordered = sorted(parts, key=lambda part: part.number)
    last_updated = max((part.last_updated for part in ordered), default="")
    revision = sum(part.revision for part in ordered)
    root, directory = of_pieces(layout, [part.piece for part in ordered], revision, last_updated)
    return Edit(replace(root, indexes=indexes or {}), "source", NewFiles(directory=directory))


def flipped(
    layout: Layout[T], base: Edit[T], root: Root[T] | None, deltas: Iterable[Piece], *, differs: bool
) -> Edit[T]:
    """The new base in place of `root`, with what was folded in the meantime. `differs`: whether its content differs
    from the root. From before the flip on, readers of an index file are sent to the root."""
    kept = tuple({piece.file: piece for piece in deltas}.values())
    newest = base.root.last_updated
    if root is not None and (kept or not layout.keeps_seqs):
        newest = max(newest, root.last_updated)
    revision = base.root.revision
    if not layout.keeps_seqs:  # continued, and counted if something changes
        is_new = root is None or differs or root.last_updated < newest
        revision = is_new + (0 if root is None else root.revision)
    wanted = replace(base.root, deltas=kept, last_updated=newest, revision=revision)
    stubs = index_stubs(layout, base.root, is_split=root is None or not root.is_spread)
    return Edit(wanted, "source", replace(base.files, indexes=stubs))


def index_stubs(layout: Layout[T], base: Root[T], *, is_split: bool) -> list[NewIndex]:
    """The files of the indexes without entries; their parts are stored."""
    revision = base.revision if layout.keeps_seqs else 0
    return [
        NewIndex(Index(base.model, one.field, one.type, one.unique, base.last_updated, revision, {}), is_split)
        for one in layout.indexes
    ]


class Overtaken(Exception):
    """It is unknown what was folded since the job started."""


@dataclass
class Flip(Generic[T]):
    """One flip. `start`: the root when the job started, before anything was read from the source. `catch_up` compares a
    whole table, or the partitions of a root, with what is staged."""

    tree: Tree[T]
    base: Edit[T]
    start: Root[T] | None
    catch_up: Callable[[Root[T]], CatchUp]
    differs: bool = True
    refold: set[str] = field(default_factory=set)
    _caught: tuple[object, CatchUp] | None = None

    def run(self) -> Root[T]:
        """Afterward, `refold` has the ids of documents that must be folded again."""
        stored = self.tree.publish(self._change)
        assert stored is not None
        return stored

    def _change(self, root: Root[T] | None) -> Edit[T]:
        rest, caught = self._meanwhile(root)
        self.refold = {*rest.ids, *caught.ids}
        differs = self.differs or root != self.start
        return flipped(self.tree.layout, self.base, root, (*rest.deltas, *caught.deltas), differs=differs)

    def _meanwhile(self, root: Root[T] | None) -> tuple[CatchUp, CatchUp]:
        """Deltas that came since the start, and newer rows from a base that replaced the original one."""
        if root == self.start:
            return CatchUp(), CatchUp()
        if root is None or self.tree.is_stale(root):
            raise Overtaken
        if not root.is_spread:
            return CatchUp(), self._compared(root, root)
        if self.start is not None and root.base == self.start.base:
            return self._kept(root, {piece.file for piece in self.start.deltas}), CatchUp()
        return self._kept(root, set()), self._compared(root, root.base)

    def _kept(self, root: Root[T], known: set[str]) -> CatchUp:
        rest = tuple(piece for piece in root.deltas if piece.file not in known)
        if self.tree.layout.keeps_seqs:
            return CatchUp(rest)
        ids = (one for delta in self.tree.pieces.get([piece.file for piece in rest]) for one in delta.ids())
        return CatchUp(rest, tuple(ids))

    def _compared(self, root: Root[T], base: object) -> CatchUp:
        if self._caught is None or self._caught[0] != base:
            self._caught = base, self.catch_up(root)
        return self._caught[1]


def rebuild_documents(table: Table, start: Root[Manifest] | None, rows: Iterable[StagedRow]) -> None:
    """A manifest in one file of a model without an oplog, from staged rows. Changes folded since they were read are
    folded again."""
    read = {row.id: row.read for row in rows}
    collection, refold = table.collection, set[str]()

    def anew(stored: Manifest | None) -> Manifest | None:
        refold.clear()
        carry = stored or empty_manifest(collection)
        known = {*carry.entities, *carry.etags}
        if table.manifest.file.held.value != start:
            refold.update(one for one in {*known, *read} if carry.etags.get(one) != read.get(one, ABSENT).etag)
        if table.manifest.is_stale(carry):
            carry = replace(empty_manifest(collection), revision=carry.revision, last_updated=carry.last_updated)
        built = carry.with_documents({**dict.fromkeys(known, ABSENT), **read}) or carry
        return None if built is stored else built

    table.manifest.update(anew)
    table.follow()
    if refold:
        table.fold_documents(refold)


ABSENT = ReadRow(None, None)
