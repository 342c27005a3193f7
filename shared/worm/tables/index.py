"""Field indexes: value → ids, one JSON file per indexed field. An index depends only on the manifest.

An index is computed completely from one manifest and has that manifest's `revision`, so it is never half updated. It is
written only if its stored revision is lower, so it can lag behind the manifest, but not contradict it.

Entry keys: a string is its own key unless it starts with `=`; the key of every other value is `=` followed by its
canonical JSON (`=1`, `=true`, `=null`, `="=x"`), so `1`, `"1"`, `true` and `"true"` never collide. Whole floats are
written as integers, because numbers are equal whatever their type. A key of more than `KEY_BYTES_MAX` bytes is replaced
by `=#` and its SHA-256. Rows that lack the field because it is too large are under `=cut`: a lookup returns them for
any value, and their documents decide. JSON starts neither with `#` nor with `c`.

If a table is spread over files (`root.py`), its index is divided into parts by ranges of entry keys, and the root names
the parts. The file of the index is then a *stub* that only says that it is `partitioned`. The stub is written before
the root names parts, so no reader trusts entries that are no longer kept up to date.

A value is *common* if more than `COMMON_IDS` documents have it. A part has only their number: a scan finds so many
documents sooner than a lookup, and no reader, worker or task has to hold all of their ids.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import cast

from worm.collections import REBUILT, Collection, Row, is_cut
from worm.formats import IndexDef, JsonValue, dumps, normal, shapes
from worm.store import CasFile
from worm.tables.manifest import Manifest
from worm.tables.pieces import NewFile, Pieces, new_file
from worm.tables.root import IndexPieces, Piece, Root, balanced_starts, cut, heavy_keys, weights_between
from worm.tables.sealed import seal, unseal
from worm.values import dataclass

Entries = dict[str, list[str] | str]
NULL_KEY = "=null"
CUT_KEY = "=cut"
KEY_BYTES_MAX = 1024
POSTINGS_PER_PART = 20_000
POSTINGS_PER_PART_MAX = 200_000
"""Parts have about this many pairs of value and id on average, whatever `maxPartitions` says."""
PART_POSTINGS_MAX = 250_000
"""If some values are on so many more documents than others that a part would have more pairs, parts are cut by their
pairs instead of by their values."""
COMMON_IDS = 100_000
"""A value on more documents is common."""
PART = "part"
INDEX = shapes.record(
    "an index that this version of worm reads",
    {
        "version": shapes.one_of(1),
        "model": shapes.TEXT,
        "field": shapes.TEXT,
        "type": shapes.TEXT,
        "unique": shapes.FLAG,
        "lastUpdated": shapes.TEXT,
        "revision": shapes.WHOLE,
        "entries": shapes.object_of(shapes.one_or_list_of(shapes.TEXT)),
    },
    {
        "conflicts": shapes.object_of(shapes.list_of(shapes.TEXT)),
        "common": shapes.object_of(shapes.WHOLE),
        "partitioned": shapes.FLAG,
    },
)


def exact_key(value: JsonValue) -> str:
    """A text that equal values share, and no others: the value itself, or `=` and its JSON."""
    if isinstance(value, str) and not value.startswith("="):
        return value
    return "=" + dumps(normal(value)).decode()


def entry_key(value: JsonValue) -> str:
    """The name of a value among an index's entries: free of collisions, and of limited size."""
    key = exact_key(value)
    text = key.encode("utf-8", "surrogatepass")
    return key if len(text) <= KEY_BYTES_MAX else f"=#{sha256(text).hexdigest()}"


def entry_keys(definition: IndexDef, row: Row) -> list[str]:
    """The entry keys of a row."""
    if definition.field not in row:
        return [CUT_KEY] if is_cut(row, definition.field) else []
    value = row[definition.field]
    if definition.type == "multiValue" and isinstance(value, list):
        return list(dict.fromkeys(entry_key(item) for item in value))
    return [entry_key(value)]


@dataclass(frozen=True, slots=True)
class Index:
    """The index of one field as of one manifest revision. `common`: how many documents have each common value, in a
    part."""

    model: str
    field: str
    type: str
    unique: bool
    last_updated: str
    revision: int
    entries: Entries
    conflicts: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    partitioned: bool = False
    common: dict[str, int] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, manifest: Manifest, definition: IndexDef) -> Index:
        gathered = IndexEntries(definition)
        gathered.add(manifest.entities)
        return gathered.index(manifest.model, manifest.last_updated, manifest.revision)

    def is_current(self, wanted: Index, definition: IndexDef) -> bool:
        """Whether it belongs to the same manifest as `wanted`, or to a newer one."""
        same_definition = (self.type, self.unique) == (definition.type, definition.unique)
        return same_definition and self.revision >= wanted.revision

    def stub(self) -> Index:
        """What replaces the index while its entries are in parts, which the table's root names."""
        return dataclasses.replace(self, entries={}, conflicts={}, common={}, partitioned=True)

    def without_common(self) -> Index:
        """As parts have it: common values without ids."""
        common = {key: number for key in self.entries if (number := len(self.ids_under(key))) > COMMON_IDS}
        return dataclasses.replace(
            self,
            entries={key: ids for key, ids in self.entries.items() if key not in common},
            conflicts={key: [] if key in common else ids for key, ids in self.conflicts.items()},
            common=common,
        )

    def part(self, keys: Sequence[str]) -> Index:
        """Some of its entries. The root has the times and revisions, so an unchanged part stays the same."""
        return dataclasses.replace(
            self,
            last_updated="",
            revision=0,
            entries={key: self.entries[key] for key in keys if key in self.entries},
            conflicts={key: self.conflicts[key] for key in keys if key in self.conflicts},
            common={key: self.common[key] for key in keys if key in self.common},
        )

    @property
    def keys(self) -> set[str]:
        """Of all values, also of common ones."""
        return {*self.entries, *self.common}

    def ids(self, value: JsonValue) -> list[str]:
        """The ids of the documents that have this value."""
        return self.ids_under(entry_key(value))

    def ids_under(self, key: str) -> list[str]:
        if key in self.conflicts:
            return self.conflicts[key]
        found = self.entries.get(key, [])
        return [found] if isinstance(found, str) else found

    def encode(self) -> bytes:
        shape: dict[str, JsonValue] = {
            "version": 1,
            "model": self.model,
            "field": self.field,
            "type": self.type,
            "unique": self.unique,
            "lastUpdated": self.last_updated,
            "revision": self.revision,
            "entries": cast("dict[str, JsonValue]", self.entries),
        }
        if self.partitioned:
            shape["partitioned"] = True
        if self.common:
            shape["common"] = cast("dict[str, JsonValue]", self.common)
        if self.conflicts:
            shape["conflicts"] = cast("dict[str, JsonValue]", self.conflicts)
        return seal(shape)

    @classmethod
    def decode(cls, body: bytes, key: str) -> Index:
        shape = unseal(body, key)
        shapes.check(shape, INDEX, key, hint=REBUILT)
        return cls(
            model=cast(str, shape["model"]),
            field=cast(str, shape["field"]),
            type=cast(str, shape["type"]),
            unique=cast(bool, shape["unique"]),
            last_updated=cast(str, shape["lastUpdated"]),
            revision=cast(int, shape["revision"]),
            entries=cast(Entries, shape["entries"]),
            conflicts=cast("dict[str, list[str]]", shape.get("conflicts", {})),
            partitioned=shape.get("partitioned") is True,
            common=cast("dict[str, int]", shape.get("common", {})),
        )


class IndexEntries:
    """The entries of an index, collected from batches of rows in the order of their ids."""

    def __init__(self, definition: IndexDef) -> None:
        self.definition = definition
        self._ids: dict[str, list[str]] = {}
        self._common: dict[str, int] = {}

    def add(self, rows: Mapping[str, Row]) -> None:
        for entity_id in sorted(rows):
            for key in entry_keys(self.definition, rows[entity_id]):
                self.put(key, entity_id)

    def put(self, key: str, entity_id: str) -> None:
        self._ids.setdefault(key, []).append(entity_id)

    def put_common(self, key: str, number: int) -> None:
        """A common value, of which no id is put."""
        self._common[key] = number

    def index(self, model: str, last_updated: str, revision: int) -> Index:
        entries: Entries = dict(self._ids)
        conflicts: dict[str, list[str]] = {}
        if self.definition.unique:
            conflicts = {key: holders for key, holders in self._ids.items() if len(holders) > 1}
            # null is not a value, and a cut value may be any: any number of documents may have them
            several = {key: conflicts.pop(key) for key in (NULL_KEY, CUT_KEY) if key in conflicts}
            entries = {key: holders[0] for key, holders in self._ids.items()}
            entries.update(several)
            conflicts.update({key: [] for key in self._common if key not in (NULL_KEY, CUT_KEY)})
        kind, unique = self.definition.type, self.definition.unique
        return Index(
            model,
            self.definition.field,
            kind,
            unique,
            last_updated,
            revision,
            entries,
            conflicts,
            common=self._common,
        )


# Files


@dataclass(frozen=True, slots=True)
class NewIndex:
    """An index of a partitioned table before it is stored. `parts` is empty if they are already stored. `is_split`: the
    table was one file or is new."""

    index: Index
    is_split: bool
    parts: tuple[NewFile[Index], ...] = ()

    @property
    def pieces(self) -> IndexPieces:
        return IndexPieces(self.index.type, self.index.unique, tuple(file.piece for file in self.parts))


def new_index(index: Index, parts_max: int, *, is_split: bool) -> NewIndex:
    """The index divided into parts."""
    index = index.without_common()
    keys = sorted(index.keys)
    starts = _part_starts(keys, [max(1, len(index.ids_under(key))) for key in keys], parts_max)
    cut_keys = enumerate(zip(starts, cut(keys, starts), strict=True))
    return NewIndex(index, is_split, tuple(new_part(at, start, index.part(some)) for at, (start, some) in cut_keys))


def new_part(number: int, start: str, part: Index) -> NewFile[Index]:
    return new_file(f"{PART}-{number}", part.encode(), part, count=len(part.keys), start=start)


def _part_starts(keys: Sequence[str], weights: Sequence[int], parts_max: int) -> list[str]:
    """The first keys of the parts. A common value weighs as much as one pair. Spark finds the same ones without seeing
    all keys (`spark/rebuild_index.py`)."""
    starts = balanced_starts(keys, parts_wanted(sum(weights), parts_max), parts_max)
    if max(weights_between(keys, weights, starts)) <= PART_POSTINGS_MAX:
        return starts
    return ["", *heavy_keys(keys, weights, part_step())[1:]]


def part_step() -> int:
    """Parts that are cut by their pairs have about as many. One has at most those of one value more."""
    return PART_POSTINGS_MAX - COMMON_IDS


def parts_wanted(postings: int, parts_max: int) -> int:
    """How many parts an index with this many pairs of value and id has: `parts_max` of them, unless each would be too
    large."""
    return max(min(parts_max, -(-postings // POSTINGS_PER_PART)), -(-postings // POSTINGS_PER_PART_MAX))


class IndexFiles:
    """One index: its file, and the parts of its entries while the table is partitioned."""

    def __init__(self, collection: Collection, definition: IndexDef) -> None:
        store, key = collection.store, collection.resolver.index_key(collection.name, definition.field)
        self.definition = definition
        self.file: CasFile[Index] = CasFile(
            store, key, Index.decode, Index.encode, ids=collection.ids, clock=collection.clock
        )
        self.pieces: Pieces[Index] = Pieces(store, key.removesuffix(".json") + "/", Index.decode)
        self._conflicts: set[str] = set()
        self._of_delta: tuple[Manifest, Index] | None = None

    @property
    def key(self) -> str:
        return self.file.key

    def conflicts(self) -> set[str]:
        """Entry keys that several documents have, as of the last write. No request."""
        held = self.file.held.value
        return self._conflicts if held is None or held.partitioned else set(held.conflicts)

    def is_whole(self) -> bool:
        """Whether its file holds entries. For a partitioned table it must not: readers would trust them."""
        stored = self.file.read()
        return stored is not None and not stored.partitioned

    # A table in one file

    def fold(self, manifest: Manifest) -> None:
        """Write the file unless it belongs to this manifest or a newer one."""
        wanted = Index.of(manifest, self.definition)
        self.file.update(
            lambda stored: None if stored is not None and stored.is_current(wanted, self.definition) else wanted
        )

    def replace(self, manifest: Manifest) -> None:
        """Write the file unless it is the same, even with a lower revision."""
        wanted = Index.of(manifest, self.definition)
        self.file.update(lambda stored: None if stored == wanted else wanted)

    # A partitioned table

    def put(self, new: NewIndex) -> None:
        """Write the stub, then the parts."""
        self.stub(new.index, is_split=new.is_split)
        if new.parts:
            self._conflicts = set(new.index.conflicts)
            self.pieces.keep({self.pieces.put(part).file for part in new.parts})

    def stub(self, index: Index, *, is_split: bool = True) -> None:
        """Called before the table is split, or before an index of a partitioned one is made: from now on, readers of
        the index go to the table's root. A split raises the revision, so that no earlier fold brings the entries
        back."""

        def change(stored: Index | None) -> Index | None:
            is_stub = stored is not None and stored.partitioned
            is_newer = stored is not None and stored.revision >= index.revision
            return None if is_stub and (is_newer or not is_split) else index.stub()

        self.file.update(change)

    def index_of_delta(self, delta: Manifest) -> Index:
        """The entries of the deltas, computed once per delta."""
        if self._of_delta is None or self._of_delta[0] is not delta:
            self._of_delta = delta, Index.of(delta, self.definition)
        return self._of_delta[1]

    def read_parts(self, pieces: Sequence[Piece]) -> list[Index]:
        return self.pieces.get([piece.file for piece in pieces])

    def joined(self, root: Root[Manifest]) -> Index | None:
        """The index of the base, combined from its parts."""
        known = root.indexes.get(self.definition.field)
        if known is None:
            return None
        whole = Index(root.model, self.definition.field, known.type, known.unique, "", 0, {})
        for part in self.read_parts(known.parts):
            whole.entries.update(part.entries)
            whole.conflicts.update(part.conflicts)
            whole.common.update(part.common)
        return whole
