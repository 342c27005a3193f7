"""The root of a table: the one mutable file of a manifest or of heads, changed only by compare-and-swap.

A small table is inside its root (`Root.whole`). A large one is spread over immutable files that the root names:

- *partitions*: the rows of balanced, disjoint ranges of ids; together the *base*.
- *deltas*: changes folded since then. The newest seq of an id wins, in whichever file it is.
- *indexes*: the index entries of the base, by ranges of values.
- *directory*: if there are many partitions, a file that lists them, so that the root stays small.

Folding writes one delta and a new root, however large the table is. Files are named by their content, so equal content
is written once, and two workers that do the same work write the same bytes.

`check` has the invariants of every change of a root; a change that breaks one is not written (`InvariantBroken`).
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from itertools import chain, repeat
from operator import lt
from typing import Generic, Literal, Protocol, TypeVar, cast

from worm.collections import REBUILT
from worm.errors import Corrupt
from worm.formats import JsonValue, shapes
from worm.store import InvariantBroken
from worm.tables.sealed import seal, unseal
from worm.values import dataclass

FILE = re.compile(r"[a-z]+(-[0-9]+)?-[0-9a-f]{16}\.json")
LEVEL_MAX = 64
PIECE = shapes.record(
    "a file of a table",
    {
        "file": shapes.text_that("the name of a file such as delta-6d7643d746089e71.json", FILE.fullmatch),
        "count": shapes.WHOLE,
        "bytes": shapes.WHOLE,
    },
    {
        "from": shapes.TEXT,
        "level": shapes.whole_number(0, LEVEL_MAX),
        "parquetBytes": shapes.WHOLE,
        "cut": shapes.WHOLE,
    },
)
DIRECTORY = shapes.record(
    "a directory that this version of worm reads",
    {"version": shapes.one_of(1), "model": shapes.TEXT, "partitions": shapes.list_of(PIECE)},
)
ROOT = shapes.record(
    "the root of a partitioned table",
    {
        "version": shapes.one_of(1),
        "model": shapes.TEXT,
        "count": shapes.WHOLE,
        "sizeBytes": shapes.WHOLE,
        "lastUpdated": shapes.TEXT,
        "revision": shapes.WHOLE,
        "deltas": shapes.list_of(PIECE),
    },
    {
        "partitions": shapes.list_of(PIECE),
        "directory": PIECE,
        "indexes": shapes.object_of(
            shapes.record("an index", {"type": shapes.TEXT, "unique": shapes.FLAG, "parts": shapes.list_of(PIECE)})
        ),
        "fields": shapes.list_of(shapes.TEXT),
        "oplog": shapes.FLAG,
    },
)


@dataclass(frozen=True, slots=True)
class Piece:
    """One immutable file. `start`: the first key of its range (partitions and index parts). `level`: of a delta.
    `parquet`: bytes of its Parquet file, 0 if there is none. `cut`: rows that lack values of their documents. For a
    directory, both are sums over the files that it lists."""

    file: str
    count: int
    size: int
    start: str = ""
    level: int = 0
    parquet: int = 0
    cut: int = 0

    def shape(self) -> dict[str, JsonValue]:
        shape: dict[str, JsonValue] = {"file": self.file, "count": self.count, "bytes": self.size}
        if self.level:
            shape["level"] = self.level
        if self.start:
            shape["from"] = self.start
        if self.parquet:
            shape["parquetBytes"] = self.parquet
        if self.cut:
            shape["cut"] = self.cut
        return shape

    @property
    def scan_size(self) -> int:
        """The bytes that a scan reads of it."""
        return self.parquet or self.size

    @classmethod
    def of_shape(cls, shape: JsonValue) -> Piece:
        found = cast("dict[str, JsonValue]", shape)
        return cls(
            file=cast(str, found["file"]),
            count=cast(int, found["count"]),
            size=cast(int, found["bytes"]),
            start=cast(str, found.get("from", "")),
            level=cast(int, found.get("level", 0)),
            parquet=cast(int, found.get("parquetBytes", 0)),
            cut=cast(int, found.get("cut", 0)),
        )


@dataclass(frozen=True, slots=True)
class IndexPieces:
    """The parts of one index."""

    type: str
    unique: bool
    parts: tuple[Piece, ...]

    def shape(self) -> dict[str, JsonValue]:
        return {"type": self.type, "unique": self.unique, "parts": [part.shape() for part in self.parts]}


class Counted(Protocol):
    """What every form of a table knows about itself."""

    @property
    def count(self) -> int: ...
    @property
    def revision(self) -> int: ...
    @property
    def last_updated(self) -> str: ...


T_co = TypeVar("T_co", bound=Counted, covariant=True)
W = TypeVar("W", bound=Counted)


@dataclass(frozen=True, slots=True)
class Root(Generic[T_co]):
    """A root. `whole`: the table itself; None if it is partitioned. For a partitioned table, `count`, `base_size`
    (bytes), `revision` and the indexes describe the base; `last_updated` describes everything. A model without an oplog
    counts its folds in `revision`. `fields` and `oplog` say how rows were made; heads have no fields."""

    model: str
    count: int
    base_size: int
    revision: int
    last_updated: str
    partitions: tuple[Piece, ...] = ()
    deltas: tuple[Piece, ...] = ()
    directory: Piece | None = None
    indexes: Mapping[str, IndexPieces] = field(default_factory=dict)
    fields: tuple[str, ...] = ()
    oplog: bool = True
    whole: T_co | None = None

    @property
    def is_spread(self) -> bool:
        return self.whole is None

    @property
    def base(self) -> tuple[tuple[Piece, ...], Piece | None]:
        """What distinguishes one base from another."""
        return self.partitions, self.directory

    @property
    def partition_count(self) -> int:
        return len(self.partitions) if self.directory is None else self.directory.count

    @property
    def delta_size(self) -> int:
        return sum(piece.size for piece in self.deltas)

    @property
    def size(self) -> int:
        """The bytes of all files with rows, without the root."""
        return self.base_size + self.delta_size

    @property
    def cut(self) -> int:
        """How many rows of its files lack values of their documents; a row that is also in a delta counts twice."""
        base = self.partitions if self.directory is None else (self.directory,)
        return sum(piece.cut for piece in (*base, *self.deltas))

    @property
    def scan_size(self) -> int:
        """The bytes that a scan reads of its files."""
        if self.directory is not None:
            return self.directory.size + (self.directory.parquet or self.base_size) + self.delta_size
        return sum(piece.scan_size for piece in self.partitions) + self.delta_size

    def files(self) -> set[str]:
        """All files that it names itself (without those that a directory lists)."""
        named = {piece.file for piece in (*self.partitions, *self.deltas)}
        if self.directory is not None:
            named.add(self.directory.file)
        return named

    def index_files(self, field: str) -> set[str]:
        pieces = self.indexes.get(field)
        return set() if pieces is None else {part.file for part in pieces.parts}

    def with_delta(self, delta: Piece, last_updated: str, revision: int) -> Root[T_co] | None:
        """The root with this delta; None if it already has it."""
        if any(delta.file == known.file for known in self.deltas):
            return None
        newest = max(self.last_updated, last_updated)
        return replace(self, deltas=(*self.deltas, delta), last_updated=newest, revision=revision)

    def full_level(self, deltas_max: int) -> list[Piece]:
        """The deltas of the lowest level that is full; empty if no level is."""
        for level in range(max((piece.level for piece in self.deltas), default=0) + 1):
            same = [piece for piece in self.deltas if piece.level == level]
            if len(same) >= deltas_max:
                return same
        return []

    def encode(self) -> bytes:
        """The bytes of the root of a partitioned table."""
        shape: dict[str, JsonValue] = {
            "version": 1,
            "model": self.model,
            "partitioned": True,
            "count": self.count,
            "sizeBytes": self.base_size,
            "lastUpdated": self.last_updated,
            "revision": self.revision,
            "fields": list(self.fields),
            "deltas": [piece.shape() for piece in self.deltas],
        }
        if self.directory is None:
            shape["partitions"] = [piece.shape() for piece in self.partitions]
        else:
            shape["directory"] = self.directory.shape()
        if not self.oplog:
            shape["oplog"] = False
        if self.indexes:
            shape["indexes"] = {name: pieces.shape() for name, pieces in self.indexes.items()}
        return seal(shape)

    @classmethod
    def of_shape(cls, shape: Mapping[str, JsonValue], key: str) -> Root[T_co]:
        """The root of a partitioned table. One that breaks the invariants of roots is damaged."""
        shapes.check(shape, ROOT, key, hint=REBUILT)
        indexes = cast("dict[str, dict[str, JsonValue]]", shape.get("indexes", {}))
        directory = shape.get("directory")
        found = cls(
            model=cast(str, shape["model"]),
            count=cast(int, shape["count"]),
            base_size=cast(int, shape["sizeBytes"]),
            revision=cast(int, shape["revision"]),
            last_updated=cast(str, shape["lastUpdated"]),
            partitions=_pieces(shape.get("partitions", [])),
            deltas=_pieces(shape["deltas"]),
            directory=None if directory is None else Piece.of_shape(directory),
            indexes={
                name: IndexPieces(cast(str, one["type"]), cast(bool, one["unique"]), _pieces(one["parts"]))
                for name, one in indexes.items()
            },
            fields=tuple(cast("list[str]", shape.get("fields", []))),
            oplog=shape.get("oplog") is not False,
        )
        broken = broken_in(found, found.partitions)
        if broken:
            raise Corrupt(f"not the root of a partitioned table: it breaks {', '.join(broken)}", key=key, hint=REBUILT)
        return found


def whole_root(model: str, whole: W, fields: tuple[str, ...] = (), oplog: bool = True) -> Root[W]:
    """The root of a table that is one file."""
    return Root(model, whole.count, 0, whole.revision, whole.last_updated, fields=fields, oplog=oplog, whole=whole)


def is_spread(shape: Mapping[str, JsonValue]) -> bool:
    return shape.get("partitioned") is True


def encode_directory(model: str, partitions: Sequence[Piece]) -> bytes:
    return seal({"version": 1, "model": model, "partitions": [piece.shape() for piece in partitions]})


def decode_directory(body: bytes, key: str) -> tuple[Piece, ...]:
    shape = unseal(body, key)
    shapes.check(shape, DIRECTORY, key, hint=REBUILT)
    pieces = _pieces(shape["partitions"])
    if not pieces or not _cover_every_key_once(pieces):
        raise Corrupt("its partitions do not cover every key once", key=key, hint=REBUILT)
    return pieces


def _pieces(shape: JsonValue) -> tuple[Piece, ...]:
    return tuple(Piece.of_shape(item) for item in cast("list[JsonValue]", shape))


# Ranges


def covering(pieces: Sequence[Piece], keys: Iterable[str]) -> list[Piece]:
    """The pieces whose ranges hold these keys, in order, each once."""
    starts = [piece.start for piece in pieces]
    wanted = {max(0, bisect_right(starts, key) - 1) for key in keys}
    return [pieces[at] for at in sorted(wanted)] if pieces else []


def balanced_starts(keys: Sequence[str], wanted: int, maximum: int, carried: Sequence[str] = ()) -> list[str]:
    """The first keys of `wanted` balanced ranges over the sorted keys; the carried ones while they are still balanced.

    Carrying them keeps unchanged files, and makes a rebuild give the existing ranges.
    """
    if may_carry(len(keys), wanted, maximum, carried) and are_balanced(counts_between(keys, carried)):
        return list(carried)
    return ["", *(keys[at] for at in cuts(len(keys), wanted))]


def fitting_starts(
    balanced: Balanced, carried: Sequence[str], of_carried: Sequence[int], heavy: Sequence[str], most: int
) -> list[str]:
    """The first keys of ranges that weigh at most `most` each: those of `balanced` if they fit; otherwise the carried
    ones, if they fit and are not too many; otherwise ranges of about half the weight, which start at `heavy`."""
    if max(balanced.weights, default=0) <= most:
        return list(balanced.starts)
    wanted = -(-sum(balanced.weights) // (most // 2))
    if carried and min(of_carried) > 0 and max(of_carried) <= most and len(carried) <= 2 * wanted:
        return list(carried)
    return ["", *heavy[1:]]


@dataclass(frozen=True, slots=True)
class Balanced:
    """Ranges with about equal numbers of keys, and what the keys of each weigh."""

    starts: Sequence[str]
    weights: Sequence[int]


def heavy_keys(keys: Iterable[str], weights: Iterable[int], step: int, before: int = 0) -> list[str]:
    """The keys at which the running weight passes a multiple of `step`: each starts a range of that weight plus one key
    at most. `before`: the weight of all keys before the first. Parts of the keys can be processed separately."""
    found = []
    for key, weight in zip(keys, weights, strict=True):
        if -(-before // step) * step < before + weight:
            found.append(key)
        before += weight
    return found


def may_carry(total: int, wanted: int, maximum: int, carried: Sequence[str]) -> bool:
    """Whether there are about as many ranges as this many keys should have."""
    wanted = max(1, min(wanted, total))
    return bool(carried) and wanted / 2 <= len(carried) <= min(2 * wanted, maximum)


def cuts(total: int, wanted: int) -> list[int]:
    """The positions of the keys that start the second and the following ranges."""
    wanted = max(1, min(wanted, total))
    return [at * total // wanted for at in range(1, wanted)]


def counts_between(keys: Iterable[str], starts: Sequence[str]) -> list[int]:
    """The number of keys in each range."""
    return weights_between(keys, repeat(1), starts)


def weights_between(keys: Iterable[str], weights: Iterable[int], starts: Sequence[str]) -> list[int]:
    """The weight of the keys in each range."""
    sums = [0] * len(starts)
    for key, weight in zip(keys, weights, strict=False):
        sums[bisect_right(starts, key) - 1] += weight
    return sums


def are_balanced(counts: Sequence[int]) -> bool:
    return max(counts) <= 2 * sum(counts) / len(counts) and min(counts) > 0


def cut(keys: Sequence[str], starts: Sequence[str]) -> list[Sequence[str]]:
    """The sorted keys, one slice per range."""
    edges = [0, *(bisect_left(keys, start) for start in starts[1:]), len(keys)]
    return [keys[edges[at] : edges[at + 1]] for at in range(len(starts))]


# Invariants

By = Literal["fold", "folds", "merge", "base", "source"]
"""What a change does: fold rows in (`folds`: as several deltas), merge deltas with each other, make a new base from
base and deltas (also: split, or become one file again), or make the table from its source."""
Listed = Sequence[Piece]


def check(old: Root[Counted] | None, new: Root[Counted], by: By, *, listed: Listed = (), key: str = "") -> None:
    """Called before every swap. `listed`: the partitions that its directory lists, if they are known. No request."""
    broken = broken_in(new, listed or new.partitions)
    changes = [] if old is None else [one.__name__ for one in OF_A_CHANGE if not one(old, new, by)]
    if broken or changes:
        raise InvariantBroken(", ".join((*broken, *changes)), key)


def broken_in(root: Root[Counted], listed: Listed) -> list[str]:
    """The broken invariants of a root, by name."""
    return [one.__name__ for one in OF_A_ROOT if not one(root, listed)]


def has_one_form(new: Root[Counted], listed: Listed) -> bool:
    """The root holds the table, lists its partitions, or names the directory that lists them."""
    forms = (not new.is_spread, bool(new.partitions), new.directory is not None)
    return sum(forms) == 1 and (new.is_spread or not (new.deltas or new.indexes))


def covers_every_key_once(new: Root[Counted], listed: Listed) -> bool:
    """The ranges of partitions, and of the parts of each index, start at "" and ascend."""
    return all(_cover_every_key_once(pieces) for pieces in (listed, *_parts(new)) if pieces)


def _cover_every_key_once(pieces: Listed) -> bool:
    starts = [piece.start for piece in pieces]
    return starts[0] == "" and all(map(lt, starts, starts[1:]))


def names_each_file_once(new: Root[Counted], listed: Listed) -> bool:
    every = [[piece.file for piece in pieces] for pieces in ((*listed, *new.deltas), *_parts(new))]
    return all(len(files) == len(set(files)) for files in every)


def adds_up(new: Root[Counted], listed: Listed) -> bool:
    """No number is negative, and those of the base are the sums over its partitions, if they are known."""
    figures = [new.count, new.base_size, new.revision]
    for one in (*listed, *new.deltas, *chain(*_parts(new))):
        figures += (one.count, one.size, one.parquet, one.cut)
    sums = (len(listed), sum(one.count for one in listed), sum(one.size for one in listed))
    return min(figures) >= 0 and (not listed or sums == (new.partition_count, new.count, new.base_size))


def _parts(new: Root[Counted]) -> list[tuple[Piece, ...]]:
    return [one.parts for one in new.indexes.values()]


def keeps_the_model(old: Root[Counted], new: Root[Counted], by: By) -> bool:
    """The name may be wrong, or the model may have been renamed: the source decides."""
    return by == "source" or new.model == old.model


def keeps_how_rows_are_made(old: Root[Counted], new: Root[Counted], by: By) -> bool:
    """Rows with other fields come only from the source."""
    return by == "source" or (new.fields, new.oplog) == (old.fields, old.oplog)


def revision_does_not_fall(old: Root[Counted], new: Root[Counted], by: By) -> bool:
    """A table made from its source may lose rows without a source, and their seqs with them."""
    return by == "source" or new.revision >= old.revision


def keeps_the_base(old: Root[Counted], new: Root[Counted], by: By) -> bool:
    """Folds and merges of deltas do not change the form or the base."""
    if by in ("base", "source") or not (old.is_spread or new.is_spread):
        return True
    return (new.count, new.base_size, new.base, new.indexes) == (old.count, old.base_size, old.base, old.indexes)


def loses_no_delta(old: Root[Counted], new: Root[Counted], by: By) -> bool:
    """A fold adds one delta, or several in one step. A merge replaces several deltas of one level by one of the next
    level. A new base adds no delta that the root did not have."""
    gone, came = set(old.deltas) - set(new.deltas), set(new.deltas) - set(old.deltas)
    if by == "folds":
        return not gone
    if by == "fold":
        return not gone and len(came) <= 1
    if by == "merge":
        return len(came) == 1 and {one.level for one in gone} == {one.level - 1 for one in came}
    return by == "source" or not came


OF_A_ROOT = (has_one_form, covers_every_key_once, names_each_file_once, adds_up)
OF_A_CHANGE = (keeps_the_model, keeps_how_rows_are_made, revision_does_not_fall, keeps_the_base, loses_no_delta)
