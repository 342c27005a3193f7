"""Parts of a new base from staged rows: which ranges they have, and the making of each.

The ranges are exactly those that a rebuild in one process gives (`spread.balanced_starts`). For that the ids at some
positions and the number of ids in each carried range must be known; each staged file tells its share (`survey`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Literal, cast

from worm.codec.strict_json import JsonValue, dumps
from worm.collections.collection import Collection
from worm.collections.heads import Heads
from worm.collections.id_ranges import IdRange
from worm.errors import Corrupt
from worm.store.parallel import in_parallel
from worm.tables.keyed import T
from worm.tables.manifest import Manifest
from worm.tables.rebuild import is_recorded
from worm.tables.spread import Piece, Spread, are_balanced, counts_between, cuts, may_carry
from worm.tables.staging import StagedFile, Staging, heads_part, manifest_part, overlapping
from worm.tables.table import Table
from worm.tables.tree import Tree

Kind = Literal["manifest", "heads"]


# Ranges


@dataclass(frozen=True, slots=True)
class Wish:
    """The ranges that a tree wants: where to cut, and the ranges that it has, which stay while they are balanced."""

    kind: Kind
    cuts: tuple[int, ...]
    carried: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Question:
    """What to find out from one staged file: for each wish the positions in the file that it cuts at."""

    file: str
    positions: tuple[tuple[int, ...], ...]
    carried: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """Per wish: the ids at the positions, and how many ids each carried range has."""

    ids: tuple[tuple[str, ...], ...]
    counts: tuple[tuple[int, ...], ...]


def wish(kind: Kind, tree: Tree[T], root: T | Spread | None, total: int) -> Wish:
    """`total`: how many ids there are."""
    wanted, maximum = tree.ranges(total)
    carried = tree.carried(root)
    kept = tuple(carried) if may_carry(total, wanted, maximum, carried) else ()
    return Wish(kind, tuple(cuts(total, wanted)), kept)


def questions(files: Sequence[StagedFile], wishes: Sequence[Wish]) -> list[Question]:
    ends = list(accumulate(one.count for one in files))
    positions: list[list[list[int]]] = [[[] for _ in wishes] for _ in files]
    for number, one in enumerate(wishes):
        for cut in one.cuts:
            at = bisect_right(ends, cut)
            positions[at][number].append(cut - (ends[at] - files[at].count))
    carried = tuple(one.carried for one in wishes)
    return [Question(file.file, tuple(tuple(each) for each in positions[at]), carried) for at, file in enumerate(files)]


def survey(staging: Staging, question: Question) -> Answer:
    ids = [row.id for row in staging.rows(question.file)]
    found = tuple(tuple(ids[at] for at in positions) for positions in question.positions)
    return Answer(found, tuple(tuple(counts_between(ids, starts)) if starts else () for starts in question.carried))


def starts_of(wishes: Sequence[Wish], answers: Sequence[Answer]) -> dict[Kind, list[str]]:
    """The first ids of the ranges. `answers` in the order of the files."""
    found: dict[Kind, list[str]] = {}
    for number, one in enumerate(wishes):
        counts = [sum(each) for each in zip(*(answer.counts[number] for answer in answers), strict=True)]
        if one.carried and are_balanced(counts):
            found[one.kind] = list(one.carried)
        else:
            found[one.kind] = ["", *(entity_id for answer in answers for entity_id in answer.ids[number])]
    return found


# Parts


@dataclass(frozen=True, slots=True)
class StoredFiles:
    """The files that have a range now: partitions, and all deltas."""

    partitions: tuple[str, ...]
    deltas: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PartPlan:
    """One file of a new base: where its rows are staged. `stored`: where it must be told whether anything changed (a
    model without oplog)."""

    kind: Kind
    number: int
    within: IdRange
    files: tuple[str, ...]
    stored: StoredFiles | None = None


@dataclass(frozen=True, slots=True)
class BuiltPart:
    """A file of a new base that was written. `revision`: the sum of its seqs; `differs`: from what is stored."""

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
    return [PartPlan(kind, number, one, overlapping(files, one), stored(one)) for number, one in enumerate(ranges)]


def stored_files(table: Table, root: Manifest | Spread | None, within: IdRange) -> StoredFiles | None:
    """The files of a range of a spread manifest."""
    if not isinstance(root, Spread):
        return None
    pieces = table.manifest.partitions(root)
    ends = [*(piece.start for piece in pieces[1:]), None]
    found = [
        piece.file
        for piece, end in zip(pieces, ends, strict=True)
        if (end is None or end > within.start) and (within.end is None or piece.start < within.end)
    ]
    return StoredFiles(tuple(found), tuple(piece.file for piece in root.deltas))


def build_part(staging: Staging, table: Table, plan: PartPlan) -> BuiltPart:
    """Write one file of a new base."""
    rows = list(staging.rows_within(plan.files, plan.within))
    last_updated = max((row.updated for row in rows), default="")
    start, revision = plan.within.start, sum(row.seq for row in rows)
    if plan.kind == "heads":
        piece = table.heads.put(f"{table.heads.stem}-{plan.number}", heads_part(staging.collection, rows), start=start)
        table.heads.pieces.keep(set())
        return BuiltPart(plan.kind, plan.number, piece, revision, last_updated)
    part = manifest_part(staging.collection, rows)
    piece = table.manifest.put(f"{table.manifest.stem}-{plan.number}", part, start=start)
    differs = plan.stored is None or _differs(table, plan.stored, plan.within, part)
    table.manifest.pieces.keep(set())
    return BuiltPart(plan.kind, plan.number, piece, revision, last_updated, differs)


def _differs(table: Table, files: StoredFiles, within: IdRange, part: Manifest) -> bool:
    """Does the table say something else of the range than the source?"""
    try:
        base = table.manifest.joined(table.manifest.pieces.get(files.partitions))
        stored = base.merged(table.manifest.pieces.get(files.deltas))
    except Corrupt:
        return True
    known = stored.part(entity_id for entity_id in stored.ids() if entity_id in within)
    same_rows = dumps(cast(JsonValue, known.entities)) == dumps(cast(JsonValue, part.entities))
    return not same_rows or known.etags != part.etags


# Catching up


@dataclass(frozen=True, slots=True)
class CatchUp:
    """What a table knows that is not staged: a delta with the newer rows, and the ids of documents that are other ones
    (of a model without oplog, where nothing tells which is newer)."""

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
            staged[row.id] = row.seq, row.etag
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
    """Documents that are not any more what was staged of them. The table does not know them: not yet, or because they
    were deleted meanwhile."""
    infos = in_parallel(lambda one: collection.store.head(collection.documents.key(one[0])), staged)
    return [one for (one, etag), info in zip(staged, infos, strict=True) if info is None or info.etag != etag]


def _seqs(stored: Manifest | Heads) -> Mapping[str, int]:
    if isinstance(stored, Manifest):
        return stored.seqs
    return {entity_id: head.seq for entity_id, head in stored.heads.items()}
