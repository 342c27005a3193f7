"""The indexes of a new base, made by many tasks: pairs of a value and an id from staged rows, parts from sorted pairs.

Whatever sorts the pairs must order text by its UTF-8 bytes, which is the order of Python's strings. Then the parts are
cut at the same values as in `index.new_index`: at certain positions among all distinct entry keys, in order. No task
sees all of them. The keys are divided into *buckets*, whose borders are keys from a sample; each bucket is counted, so
that the position of its first key is known; then each finds the keys at the positions that fall into it. The sample
decides only how large the buckets are, not where the parts begin.

An index is named by its number: its place in `Table.indexes`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from worm.collections import Collection, division
from worm.errors import Corrupt
from worm.formats import IndexDef
from worm.tables.index import (
    COMMON_IDS,
    PART_POSTINGS_MAX,
    Index,
    IndexEntries,
    entry_keys,
    new_part,
    part_step,
    parts_wanted,
)
from worm.tables.root import IndexPieces, Piece, cuts, heavy_keys
from worm.tables.table import Table
from worm.tables.tasks.staging import Staging
from worm.tables.verify import explain_index

KEYS_PER_BUCKET = 50_000
SAMPLES_PER_BUCKET = 16
COUNTING_TASKS = 200
Pair = tuple[int, str, str]
"""The number of an index, an entry key, an id."""
KeyId = tuple[str, str | None]
"""An entry key, and an id that has it. A common value has no ids."""


def key_buckets(keys: int) -> int:
    """How many ranges the keys of an index are divided into to find out where its parts begin."""
    return max(1, -(-keys // KEYS_PER_BUCKET))


@dataclass(frozen=True, slots=True)
class SeveralParts:
    """An index with several parts: how many keys it has, the weight of its heaviest key, and the positions of the keys
    that its parts start with, unless one of these would be too heavy. Then they start about every `step` pairs."""

    keys: int
    heaviest: int
    positions: Sequence[int]
    step: int
    most: int

    @classmethod
    def of(cls, keys: int, pairs: int, most_common: int, parts_max: int) -> SeveralParts | None:
        """None for an index with one part. `most_common`: how many documents have the most common value."""
        positions = cuts(keys, parts_wanted(pairs, parts_max))
        heaviest = min(most_common, COMMON_IDS)
        return cls(keys, heaviest, positions, part_step(), PART_POSTINGS_MAX) if positions else None

    @property
    def buckets(self) -> int:
        return key_buckets(self.keys)

    @property
    def sample_step(self) -> int:
        """One key of so many is in the sample that decides where the buckets begin."""
        return max(1, self.keys // (self.buckets * SAMPLES_PER_BUCKET))

    @property
    def may_be_uneven(self) -> bool:
        longest = -(-self.keys // (len(self.positions) + 1))
        return longest * self.heaviest > self.most

    def even_starts(self, keys: Iterable[str], weights: Iterable[int], before: int) -> list[str]:
        """The keys of a sorted bucket that start parts with about equal numbers of pairs. `before`: the weight of all
        earlier buckets."""
        return heavy_keys(keys, weights, self.step, before)


class IndexTasks:
    """What tasks do for the indexes of a collection. One instance per thread."""

    def __init__(self, collection: Collection) -> None:
        self._collection = collection
        self._table = Table(collection)
        self._indexes = self._table.indexes

    @staticmethod
    def writing(parts: int, pairs: int, most: int) -> int:
        """How many tasks sort and write the parts of indexes. A part is never divided, and large ones share no task."""
        return max(1, parts if pairs > PART_POSTINGS_MAX else min(parts, division.tasks_for(pairs, most)))

    @staticmethod
    def counting(pairs: int) -> int:
        """How many tasks count the documents of each value."""
        return division.tasks_for(pairs, COUNTING_TASKS)

    def staged_pairs(self, files: Iterable[str]) -> Iterator[Pair]:
        """The pairs of staged files."""
        staging = Staging(self._collection)
        for file in files:
            for row in staging.rows(file):
                for number, one in enumerate(self._indexes) if row.row is not None else ():
                    yield from ((number, key, row.id) for key in entry_keys(one.definition, row.row or {}))

    def stored_pairs(self, files: Iterable[str]) -> Iterator[Pair]:
        """The pairs of partitions of the manifest. A damaged one has none: the check of its range reports it."""
        pieces = self._table.manifest.pieces
        for file in files:
            try:
                (part,) = pieces.get([file])
            except Corrupt:
                continue
            pieces.keep(set())
            for number, one in enumerate(self._indexes):
                for entity_id, row in part.entities.items():
                    yield from ((number, key, entity_id) for key in entry_keys(one.definition, row))

    def write(self, number: int, part: tuple[int, str], pairs: Iterable[KeyId], common: Mapping[str, int]) -> Piece:
        """Write a part, given by its number and start, from its sorted pairs. `common`: the entry keys of common
        values, with the number of their documents."""
        files = self._indexes[number]
        piece = files.pieces.put(new_part(*part, self._gathered(number, pairs, common)))
        files.pieces.keep(set())
        return piece

    def difference(
        self, number: int, file: str, pairs: Iterable[KeyId], common: Mapping[str, int]
    ) -> tuple[str, str, str] | None:
        """How the file of a part differs from its sorted pairs: kind, key and details."""
        files, wanted = self._indexes[number], self._gathered(number, pairs, common)
        try:
            (stored,) = files.pieces.get([file])
        except Corrupt as damage:
            return "index-damaged", damage.key or files.key, damage.message
        files.pieces.keep(set())
        if stored.encode() == wanted.encode():
            return None
        return "index-differs", files.pieces.key(file), explain_index(stored, wanted)

    def pieces(self, written: Mapping[int, Sequence[tuple[str, int, int, str]]]) -> dict[str, IndexPieces]:
        """What a root says about the indexes, of which these parts are written: the file, count, size and start of
        each. One without entries has one part."""
        found: dict[str, IndexPieces] = {}
        for number, one in enumerate(self._indexes):
            definition = one.definition
            empty = Index(self._collection.name, definition.field, definition.type, definition.unique, "", 0, {})
            parts = [Piece(*part) for part in written.get(number, ())] or [one.pieces.put(new_part(0, "", empty))]
            found[definition.field] = IndexPieces(definition.type, definition.unique, tuple(parts))
        return found

    def _gathered(self, number: int, pairs: Iterable[KeyId], common: Mapping[str, int]) -> Index:
        return gathered(self._collection.name, self._indexes[number].definition, pairs, common)


def gathered(model: str, definition: IndexDef, pairs: Iterable[KeyId], common: Mapping[str, int]) -> Index:
    """A part from its sorted pairs."""
    entries = IndexEntries(definition)
    for key, entity_id in pairs:
        if entity_id is not None:
            entries.put(key, entity_id)
        elif key in common:
            entries.put_common(key, common[key])
    return entries.index(model, "", 0)
