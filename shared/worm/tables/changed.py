"""What changed in a collection between two moments, exactly and without a clock.

Vocabulary
- *state*: what the heads said at one moment, by reference: the names of the immutable files of a partitioned table, or
  the seqs themselves for a small one. It is a small JSON value that any process can keep.
- *difference*: for each document whose head is newer in the second state, its seq in the first one (0: none) and in the
  second one. Entries of a document are numbered without gaps, so its changes are the entries in between.

Why nothing is lost or repeated: heads only move forward, by compare-and-swap, and a state never changes. So the
differences between consecutive states give every entry once, whatever the order in which change sets and sessions fold
them, and computing a difference again gives the same answer. A late or repeated change set moves no head.

Costs: planning reads the directory and the new deltas. A difference reads the partitions whose name differs, in both
states, and the deltas of both. Unchanged partitions are skipped by name. Memory holds a few partitions and what the
deltas say about one range.

What a failure means: `Expired`: a file of a state is gone, so the difference is unknown. Replaced files are kept for
`pieces.KEPT`. Nothing was reported.

Limit: a damaged history has no head. If it is repaired later, the difference has the whole history of that document
again.
"""

from __future__ import annotations

import zlib
from base64 import b64decode, b64encode
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import ClassVar, Self, TypeVar, cast

from worm.collections import Collection, Head, Heads, IdRange
from worm.errors import Corrupt, Expired, Invalid
from worm.formats import JsonObject, JsonValue, dumps, loads, shapes
from worm.store import in_chunks
from worm.tables.pieces import KEPT, Pieces
from worm.tables.root import Piece, decode_directory
from worm.tables.tree import HeadsTree
from worm.values import dataclass

T = TypeVar("T")
EMBEDDED_MAX = 64 << 10
"""A table in one file is part of the state if its compressed seqs are not larger; otherwise a copy of it is stored."""
RANGE_IDS = 100_000
"""About how many ids a range of a plan has."""
FILES_AT_ONCE = 8
_LEAST = 100  # deleted documents are not counted in a partition, but take memory, too

STATE = shapes.record(
    "a state of heads",
    {"updated": shapes.TEXT},
    {
        "partitions": shapes.list_of(
            shapes.tuple_of("a partition", file=shapes.TEXT, count=shapes.WHOLE, start=shapes.TEXT)
        ),
        "directory": shapes.TEXT,
        "deltas": shapes.list_of(shapes.TEXT),
        "seqs": shapes.TEXT,
    },
)


@dataclass(frozen=True, slots=True)
class HeadsState:
    """The heads at one moment. `updated`: the newest time of an entry, for people. `embedded`: the compressed seqs of a
    small table, which has no files; a negative seq is a deletion, and times are left out."""

    updated: str = ""
    partitions: tuple[Piece, ...] = ()
    directory: str | None = None
    deltas: tuple[str, ...] = ()
    embedded: str | None = None

    embedded_max: ClassVar[int] = EMBEDDED_MAX

    @classmethod
    def nothing(cls) -> HeadsState:
        """The state before the first entry."""
        return cls(embedded=b64encode(zlib.compress(b"{}", 9)).decode())

    @classmethod
    def now(cls, tree: HeadsTree, *, embedded_max: int = EMBEDDED_MAX) -> HeadsState | None:
        """What the heads say now: one conditional GET, and one or two more after their base changed. None: there are no
        heads yet, or they are lost or damaged. They are complete again after the next sweep; until then, nothing can be
        said about what changed. `embedded_max`: a larger table in one file is stored a second time, which is one
        PUT."""
        return _state_now(tree, embedded_max)

    def since(self, before: HeadsState | None, collection: Collection) -> HeadsDifference:
        """What changed after another state."""
        return HeadsDifference(collection, before, self)

    def shape(self) -> JsonObject:
        shape: JsonObject = {"updated": self.updated}
        if self.embedded is not None:
            return {**shape, "seqs": self.embedded}
        if self.directory is not None:
            shape["directory"] = self.directory
        else:
            shape["partitions"] = [[one.file, one.count, one.start] for one in self.partitions]
        return {**shape, "deltas": list(self.deltas)}

    @classmethod
    def of_shape(cls, given: Mapping[str, JsonValue]) -> Self:
        shapes.check(given, STATE, "the state of a stream", hint="the value must be one that this library made")
        pieces = cast("list[tuple[str, int, str]]", given.get("partitions", []))
        return cls(
            updated=cast(str, given["updated"]),
            partitions=tuple(Piece(file, count, 0, start) for file, count, start in pieces),
            directory=cast("str | None", given.get("directory")),
            deltas=tuple(cast("list[str]", given.get("deltas", []))),
            embedded=cast("str | None", given.get("seqs")),
        )

    def heads(self) -> dict[str, Head]:
        """Of a small table."""
        if self.embedded is None:
            return {}
        try:
            seqs = cast("dict[str, int]", loads(zlib.decompress(b64decode(self.embedded, validate=True))))
        except (ValueError, zlib.error, Invalid) as damage:
            raise Corrupt("the seqs of a state are damaged", hint="start again with a new checkpoint") from damage
        return {one: Head(abs(seq), None, None, seq > 0, "") for one, seq in seqs.items()}


@dataclass(frozen=True, slots=True)
class Changed:
    """A document with entries after `before` (0: it is new) up to the seq of `head`. In a small table, a head has
    only its seq, and whether the document is live."""

    id: str
    before: int
    head: Head

    @property
    def seq(self) -> int:
        return self.head.seq

    @property
    def is_live(self) -> bool:
        """Whether the document is not deleted at the end."""
        return self.head.live

    @property
    def count(self) -> int:
        return self.seq - self.before


def _state_now(tree: HeadsTree, embedded_max: int) -> HeadsState | None:
    root = tree.root()
    if root is None:
        return None
    if root.whole is not None:
        return None if root.whole.partial else _of_whole(tree, root.whole, root.last_updated, embedded_max)
    try:
        partitions = tree.partitions(root)
        (first,) = tree.pieces.get([partitions[0].file])
    except Corrupt as damage:
        tree.damage = damage
        return None
    tree.keep(root, {partitions[0].file})
    if first.partial:
        return None
    deltas = tuple(piece.file for piece in root.deltas)
    directory = None if root.directory is None else root.directory.file
    listed = () if directory else tuple(Piece(one.file, one.count, 0, one.start) for one in partitions)
    return HeadsState(root.last_updated, listed, directory, deltas)


def _of_whole(tree: HeadsTree, whole: Heads, updated: str, embedded_max: int) -> HeadsState:
    seqs: JsonObject = {one: head.seq if head.live else -head.seq for one, head in sorted(whole.heads.items())}
    packed = b64encode(zlib.compress(dumps(seqs), 9)).decode()
    if len(packed) <= embedded_max:
        return HeadsState(updated, embedded=packed)
    piece = tree.put("heads-0", whole)
    return HeadsState(updated, (Piece(piece.file, piece.count, 0),))


class HeadsDifference:
    """The difference between two states of one collection. `before` None: every document with a history counts as new.
    It can be made again anywhere from the two states, and gives the same answers. Not thread-safe."""

    def __init__(self, collection: Collection, before: HeadsState | None, after: HeadsState) -> None:
        directory = collection.resolver.heads_dir(collection.name)
        self._before, self._after = before, after
        self._heads = _KeptFiles(collection.store, directory, Heads.decode)
        self._directories = _KeptFiles(collection.store, directory, decode_directory)
        self._read: list[tuple[tuple[str, ...], dict[str, Head]]] = []

    def ranges(self, start: str = "") -> list[IdRange]:
        """The ranges of ids from `start` in which the states may differ, in order. Each has about `RANGE_IDS` ids in
        changed partitions; unchanged ones in between cost nothing."""
        if self._after == self._before:
            return []
        pieces = self._partitions(self._after)
        if not pieces:
            return [IdRange(start)]
        touched, starts = self._touched(pieces), [one.start for one in pieces]
        found, first, weight = list[IdRange](), None, 0
        for at, piece in enumerate(pieces):
            if at not in touched or (at + 1 < len(starts) and starts[at + 1] <= start):
                continue
            if first is not None and weight + piece.count > RANGE_IDS:
                found.append(IdRange(first, piece.start))
                first, weight = None, 0
            first = max(piece.start, start) if first is None else first
            weight += max(piece.count, _LEAST)
        return found if first is None else [*found, IdRange(first)]

    def within(self, some: IdRange, *, lost: bool = False) -> Iterator[Changed]:
        """The documents of a range that changed, ids ascending. `lost`: also those whose head is gone or older now,
        because somebody removed their history, or because it is damaged. Without a head, it is unknown whether the
        document is there: it counts as live."""
        older, newer, fresh = self._deltas(some)
        same = {one.file for one in self._partitions(self._before)}
        for piece, ids in _overlapping(self._partitions(self._after), some):
            if piece.file in same and not any(one in ids for one in fresh):
                continue
            now = _newest(self._base(self._after, ids), newer, ids)
            was = _newest(self._base(self._before, ids), older, ids)
            for one in sorted(now.keys() | was.keys() if lost else now):
                before = was[one].seq if one in was else 0
                head = now.get(one) or Head(0, None, None, live=True, ts="")
                if head.seq > before or (lost and head.seq < before):
                    yield Changed(one, before, head)

    # Files

    def _partitions(self, state: HeadsState | None) -> Sequence[Piece]:
        """Empty for a small table, which is part of its state."""
        if state is None or state.directory is None:
            return () if state is None else state.partitions
        return self._directories.get([state.directory])[0]

    def _touched(self, pieces: Sequence[Piece]) -> set[int]:
        """The positions of the partitions that are new, or about whose ids a new delta says something."""
        starts, same = [one.start for one in pieces], {one.file for one in self._partitions(self._before)}
        found = {at for at, piece in enumerate(pieces) if piece.file not in same}
        old = set() if self._before is None else set(self._before.deltas)
        for _, heads in self._each(one for one in self._after.deltas if one not in old):
            found.update(bisect_right(starts, one) - 1 for one in heads.heads)
        return found

    def _deltas(self, some: IdRange) -> tuple[dict[str, Head], dict[str, Head], set[str]]:
        """What the deltas of both states say about a range, and the ids in deltas that only the second one has."""
        older, newer, fresh = dict[str, Head](), dict[str, Head](), set[str]()
        old = set() if self._before is None else set(self._before.deltas)
        new = set(self._after.deltas)
        for file, heads in self._each(sorted(old | new)):
            found = {one: head for one, head in heads.heads.items() if one in some}
            if file in old:
                _add(older, found)
            if file in new:
                _add(newer, found)
            if file not in old:
                fresh.update(found)
        return older, newer, fresh

    def _each(self, files: Iterable[str]) -> Iterator[tuple[str, Heads]]:
        """The content of files, a few at a time."""
        for some in in_chunks(files, FILES_AT_ONCE):
            yield from zip(some, self._heads.get(some), strict=True)
            self._heads.keep(set())

    def _base(self, state: HeadsState | None, ids: IdRange) -> dict[str, Head]:
        """The heads in the partitions of a state that overlap a range. The last two answers stay in memory: both states
        may have the same partitions, or consecutive ranges."""
        if state is None or state.embedded is not None:
            return {} if state is None else state.heads()
        files = tuple(piece.file for piece, _ in _overlapping(self._partitions(state), ids))
        known = next((heads for one, heads in self._read if one == files), None)
        if known is None:
            known = {one: head for _, part in self._each(files) for one, head in part.heads.items()}
            self._read = [*self._read[-1:], (files, known)]
        return known


class _KeptFiles(Pieces[T]):
    """Files of earlier states, which may be gone."""

    def gone(self, file: str) -> Expired:
        return Expired(
            "a file of an earlier state of the heads is gone, so it is unknown what changed since",
            key=self.key(file),
            hint=f"replaced files are kept for {KEPT.days} days; start again from a time",
        )


def _overlapping(pieces: Sequence[Piece], some: IdRange) -> Iterator[tuple[Piece, IdRange]]:
    """The partitions that overlap a range, with the common part. A table without partitions is one."""
    pieces = pieces or (Piece("", 0, 0),)
    starts = [one.start for one in pieces]
    for at in range(max(0, bisect_right(starts, some.start) - 1), len(pieces)):
        start, end = max(starts[at], some.start), starts[at + 1] if at + 1 < len(starts) else None
        if some.end is not None and start >= some.end:
            return
        yield pieces[at], IdRange(start, min((one for one in (end, some.end) if one is not None), default=None))


def _add(heads: dict[str, Head], others: Mapping[str, Head]) -> None:
    for one, head in others.items():
        known = heads.get(one)
        if known is None or head.seq > known.seq:
            heads[one] = head


def _newest(base: Mapping[str, Head], deltas: Mapping[str, Head], ids: IdRange) -> dict[str, Head]:
    found = {one: head for one, head in base.items() if one in ids}
    _add(found, {one: head for one, head in deltas.items() if one in ids})
    return found
