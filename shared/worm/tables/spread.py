"""The root of a table that is spread over many files: which files make it up. Small, and changed by compare-and-swap.

- *partitions*: immutable files with the rows of balanced, disjoint ranges of ids; together the *base*.
- *deltas*: immutable files with what was folded since. The newest seq of an id wins, wherever it stands.
- *indexes*: immutable files with the index entries of the base, by ranges of values.
- *directory*: where there are many partitions, the file that lists them, so that the root stays small.

Folding writes one delta and a new root, whatever the size of the table. All files are named by their content, so equal
content is written once, and two workers that do the same work write the same bytes.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

from worm.codec.sealed import seal, unseal
from worm.codec.strict_json import JsonValue
from worm.errors import Corrupt

INLINE_PARTITIONS = 64


@dataclass(frozen=True, slots=True)
class Piece:
    """One immutable file. `start`: the first key of its range (partitions and index parts); `level`: of a delta;
    `columns`: bytes of the column file beside it, 0 where there is none (of a directory: of all that it lists)."""

    file: str
    count: int
    size: int
    start: str = ""
    level: int = 0
    columns: int = 0

    def shape(self) -> dict[str, JsonValue]:
        shape: dict[str, JsonValue] = {"file": self.file, "count": self.count, "bytes": self.size}
        if self.level:
            shape["level"] = self.level
        if self.start:
            shape["from"] = self.start
        if self.columns:
            shape["columnBytes"] = self.columns
        return shape

    @property
    def scan_size(self) -> int:
        """Bytes that a scan reads of it."""
        return self.columns or self.size

    @classmethod
    def of_shape(cls, shape: JsonValue) -> Piece:
        found = cast("dict[str, JsonValue]", shape)
        return cls(
            file=cast(str, found["file"]),
            count=cast(int, found["count"]),
            size=cast(int, found["bytes"]),
            start=cast(str, found.get("from", "")),
            level=cast(int, found.get("level", 0)),
            columns=cast(int, found.get("columnBytes", 0)),
        )


@dataclass(frozen=True, slots=True)
class IndexPieces:
    """The parts of one index."""

    type: str
    unique: bool
    parts: tuple[Piece, ...]

    def shape(self) -> dict[str, JsonValue]:
        return {"type": self.type, "unique": self.unique, "parts": [part.shape() for part in self.parts]}


@dataclass(frozen=True, slots=True)
class Spread:
    """A root. `count`, `base_size` (bytes), `revision` and the indexes are of the base; `last_updated` is of
    everything. A model without oplog counts its folds in `revision`."""

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

    @property
    def delta_size(self) -> int:
        return sum(piece.size for piece in self.deltas)

    @property
    def scan_size(self) -> int:
        """Bytes that a scan reads of its files."""
        if self.directory is not None:
            return self.directory.size + (self.directory.columns or self.base_size) + self.delta_size
        return sum(piece.scan_size for piece in self.partitions) + self.delta_size

    def files(self) -> set[str]:
        """All files that it names itself (those of a directory come beside)."""
        named = {piece.file for piece in (*self.partitions, *self.deltas)}
        if self.directory is not None:
            named.add(self.directory.file)
        return named

    def with_delta(self, delta: Piece, last_updated: str, revision: int) -> Spread | None:
        """None when it is in it already."""
        if any(delta.file == known.file for known in self.deltas):
            return None
        newest = max(self.last_updated, last_updated)
        return replace(self, deltas=(*self.deltas, delta), last_updated=newest, revision=revision)

    def encode(self) -> bytes:
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
    def of_shape(cls, shape: Mapping[str, JsonValue], key: str) -> Spread:
        try:
            indexes = cast("dict[str, dict[str, JsonValue]]", shape.get("indexes") or {})
            directory = shape.get("directory")
            return cls(
                model=cast(str, shape["model"]),
                count=cast(int, shape["count"]),
                base_size=cast(int, shape["sizeBytes"]),
                revision=cast(int, shape["revision"]),
                last_updated=cast(str, shape["lastUpdated"]),
                partitions=_pieces(shape.get("partitions")),
                deltas=_pieces(shape["deltas"]),
                directory=None if directory is None else Piece.of_shape(directory),
                indexes={
                    name: IndexPieces(cast(str, one["type"]), bool(one["unique"]), _pieces(one["parts"]))
                    for name, one in indexes.items()
                },
                fields=tuple(cast("list[str]", shape.get("fields") or [])),
                oplog=shape.get("oplog") is not False,
            )
        except (KeyError, TypeError) as error:
            raise Corrupt(f"not the root of a partitioned table: {error}", key=key) from error


def is_spread(shape: Mapping[str, JsonValue]) -> bool:
    return shape.get("partitioned") is True


def encode_directory(model: str, partitions: Sequence[Piece]) -> bytes:
    return seal({"version": 1, "model": model, "partitions": [piece.shape() for piece in partitions]})


def decode_directory(body: bytes, key: str) -> tuple[Piece, ...]:
    return _pieces(unseal(body, key).get("partitions"))


def _pieces(shape: JsonValue) -> tuple[Piece, ...]:
    return tuple(Piece.of_shape(item) for item in cast("list[JsonValue]", shape or []))


# Ranges


def covering(pieces: Sequence[Piece], keys: Iterable[str]) -> list[Piece]:
    """The pieces whose ranges hold these keys, in order, each once."""
    starts = [piece.start for piece in pieces]
    wanted = {max(0, bisect_right(starts, key) - 1) for key in keys}
    return [pieces[at] for at in sorted(wanted)] if pieces else []


def balanced_starts(keys: Sequence[str], wanted: int, maximum: int, carried: Sequence[str] = ()) -> list[str]:
    """The first keys of `wanted` balanced ranges over the sorted keys; the carried ones while they are balanced still.

    Carrying them keeps files that did not change, and makes a rebuild give the ranges that stand.
    """
    if may_carry(len(keys), wanted, maximum, carried) and are_balanced(counts_between(keys, carried)):
        return list(carried)
    return ["", *(keys[at] for at in cuts(len(keys), wanted))]


def may_carry(total: int, wanted: int, maximum: int, carried: Sequence[str]) -> bool:
    """Are there about as many ranges as so many keys want?"""
    wanted = max(1, min(wanted, total))
    return bool(carried) and wanted / 2 <= len(carried) <= min(2 * wanted, maximum)


def cuts(total: int, wanted: int) -> list[int]:
    """The positions of the keys that start the second and the following ranges."""
    wanted = max(1, min(wanted, total))
    return [at * total // wanted for at in range(1, wanted)]


def counts_between(keys: Iterable[str], starts: Sequence[str]) -> list[int]:
    """How many of the keys each range has."""
    counts = [0] * len(starts)
    for key in keys:
        counts[bisect_right(starts, key) - 1] += 1
    return counts


def are_balanced(counts: Sequence[int]) -> bool:
    return max(counts) <= 2 * sum(counts) / len(counts) and min(counts) > 0


def cut(keys: Sequence[str], starts: Sequence[str]) -> list[Sequence[str]]:
    """The sorted keys, one slice per range."""
    edges = [0, *(bisect_left(keys, start) for start in starts[1:]), len(keys)]
    return [keys[edges[at] : edges[at + 1]] for at in range(len(starts))]
