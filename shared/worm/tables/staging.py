"""Staged rows: what a rebuild by many processes has read from the source, in immutable files beside the table.

Each process reads the entities of one range of ids and writes their rows, sorted by id, to files named by their content
(`stage-<hash>.json`, one row per line). From then on nothing is read from the source again, which moves on: partitions,
heads and indexes are made of the staged files alone, so whoever repeats a part of the work gets the same bytes. No root
names staged files; they are deleted like any file that no root names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import cast

from worm.codec.strict_json import JsonValue, dumps, loads_own
from worm.collections.changes import Change, Row, decode_head, encode_head
from worm.collections.collection import Collection
from worm.collections.entries import Head
from worm.collections.heads import Heads
from worm.collections.id_ranges import IdRange
from worm.tables.build import CHUNK, read_rows, recorded_changes
from worm.tables.manifest import Manifest, ReadRow
from worm.tables.pieces import Pieces

ROWS_MAX = 20_000
BYTES_MAX = 8 << 20
STEM = "stage"


@dataclass(frozen=True, slots=True)
class StagedRow:
    """An entity as the source said it. With oplog: `head`, and `row` None when it is deleted. Without: `etag` and
    `modified` of the document, and `row` None when that is invalid."""

    id: str
    row: Row | None
    head: Head | None = None
    etag: str | None = None
    modified: str = ""

    @property
    def seq(self) -> int:
        return 0 if self.head is None else self.head.seq

    @property
    def updated(self) -> str:
        return self.modified if self.head is None else self.head.ts

    @property
    def change(self) -> Change:
        return Change(self.id, self.head, self.row)

    @property
    def read(self) -> ReadRow:
        return ReadRow(self.row, self.etag, self.modified)

    def encode(self) -> bytes:
        """Without members that say nothing: a null costs canonical JSON a second look at the row."""
        shape: dict[str, JsonValue] = {"id": self.id}
        if self.row is not None:
            shape["row"] = self.row
        if self.head is not None:
            shape["head"] = encode_head(self.head)
        if self.etag is not None:
            shape |= {"etag": self.etag, "modified": self.modified}
        return dumps(shape)

    @classmethod
    def decode(cls, line: bytes, key: str) -> StagedRow:
        shape = loads_own(line, key=key)
        head = cast("list[JsonValue] | None", shape.get("head"))
        return cls(
            id=cast(str, shape["id"]),
            row=cast("Row | None", shape.get("row")),
            head=None if head is None else decode_head(head),
            etag=cast("str | None", shape.get("etag")),
            modified=cast(str, shape.get("modified", "")),
        )


@dataclass(frozen=True, slots=True)
class StagedFile:
    """What a plan has to know of a file: its ids from `first` to `last`, how many, and how many of them have a row."""

    file: str
    first: str
    last: str
    count: int
    live: int

    def is_in(self, within: IdRange) -> bool:
        return self.last >= within.start and (within.end is None or self.first < within.end)


class Staging:
    """The staged files of one collection. One instance per thread."""

    def __init__(self, collection: Collection) -> None:
        resolver, name = collection.resolver, collection.name
        keeps_manifest = collection.definition.keeps_manifest
        directory = resolver.manifest_dir(name) if keeps_manifest else resolver.heads_dir(name)
        self.collection = collection
        self._pieces: Pieces[list[StagedRow]] = Pieces(collection.store, directory, _decode)

    def stage(self, within: IdRange) -> list[StagedFile]:
        """Read the range from the source and write its files."""
        staged: list[StagedFile] = []
        rows: list[StagedRow] = []
        lines: list[bytes] = []
        size = 0
        for row in source_rows(self.collection, within):
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
        piece = self._pieces.put(STEM, b"\n".join(lines), rows, count=len(rows))
        self._pieces.keep(set())
        live = sum(row.row is not None for row in rows)
        return StagedFile(piece.file, rows[0].id, rows[-1].id, len(rows), live)


def source_rows(collection: Collection, within: IdRange) -> Iterator[StagedRow]:
    """The state of every entity of the range, ids ascending."""
    if collection.definition.oplog:
        for change in recorded_changes(collection, within=within):
            yield StagedRow(change.id, change.row, change.head)
        return
    ids = iter(sorted(collection.current_ids(within)))
    while chunk := list(islice(ids, CHUNK)):
        read = read_rows(collection, chunk)
        for entity_id in chunk:
            found = read[entity_id]
            if found.etag is not None:  # else it was deleted since it was listed
                yield StagedRow(entity_id, found.row, None, found.etag, found.modified)


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
    return Heads(collection.name, {one.id: one.head for one in rows if one.head is not None})


def overlapping(files: Sequence[StagedFile], within: IdRange) -> tuple[str, ...]:
    return tuple(one.file for one in files if one.is_in(within))


def _decode(body: bytes, key: str) -> list[StagedRow]:
    return [StagedRow.decode(line, key) for line in body.split(b"\n")]
