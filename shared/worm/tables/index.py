"""Field indexes: value → ids, one JSON file per indexed field. An index is a pure function of the manifest.

Because it is computed whole from one manifest and carries that manifest's `revision`, an index is never half updated:
it is written only if its stored revision is lower, and so it can lag behind the manifest but not contradict it.

Entry keys: a string stands for itself unless it starts with `=`; every other value is `=` followed by its canonical
JSON (`=1`, `=true`, `=null`, `="=x"`), so `1`, `"1"`, `true` and `"true"` never collide. Whole floats are written as
integers, because equality of numbers does not look at their type.

The index of a table that is spread over files (`spread.py`) is cut into parts by ranges of entry keys; the file of the
index then only says that it is `partitioned`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import cast

from worm.codec.sealed import seal, unseal
from worm.codec.strict_json import JsonValue, dumps
from worm.collections.changes import Row
from worm.errors import Corrupt
from worm.schema import IndexDef
from worm.tables.manifest import Manifest

Entries = dict[str, list[str] | str]
NULL_KEY = "=null"


def entry_key(value: JsonValue) -> str:
    """The collision-free name of a value among an index's entries."""
    if isinstance(value, str) and not value.startswith("="):
        return value
    if isinstance(value, float) and value.is_integer() and -(2**63) <= value < 2**64:
        value = int(value)
    return "=" + dumps(value).decode()


def entry_keys(definition: IndexDef, row: Row) -> list[str]:
    """The entries under which a row stands."""
    if definition.field not in row:
        return []
    value = row[definition.field]
    if definition.type == "multiValue" and isinstance(value, list):
        return list(dict.fromkeys(entry_key(item) for item in value))
    return [entry_key(value)]


@dataclass(frozen=True, slots=True)
class Index:
    """The index of one field as of one manifest revision."""

    model: str
    field: str
    type: str
    unique: bool
    last_updated: str
    revision: int
    entries: Entries
    conflicts: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    partitioned: bool = False

    @classmethod
    def of(cls, manifest: Manifest, definition: IndexDef) -> Index:
        gathered = IndexEntries(definition)
        gathered.add(manifest.entities)
        return gathered.index(manifest.model, manifest.last_updated, manifest.revision)

    def is_current(self, wanted: Index, definition: IndexDef) -> bool:
        """Is it of the manifest that `wanted` is of, or of a newer one?"""
        same_definition = (self.type, self.unique) == (definition.type, definition.unique)
        return same_definition and self.revision >= wanted.revision

    def stub(self) -> Index:
        """What stands in the index's place while its entries lie in parts, which the table's root names."""
        return dataclasses.replace(self, entries={}, conflicts={}, partitioned=True)

    def part(self, keys: Iterable[str]) -> Index:
        """Some of its entries. Times and revisions are the root's business: an unchanged part stays as it is."""
        entries = {key: self.entries[key] for key in keys}
        conflicts = {key: self.conflicts[key] for key in entries if key in self.conflicts}
        return dataclasses.replace(self, last_updated="", revision=0, entries=entries, conflicts=conflicts)

    @property
    def postings(self) -> int:
        """How many pairs of a value and an id it holds."""
        return sum(len(self.ids_under(key)) for key in self.entries)

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
        if self.conflicts:
            shape["conflicts"] = cast("dict[str, JsonValue]", self.conflicts)
        return seal(shape)

    @classmethod
    def decode(cls, body: bytes, key: str) -> Index:
        shape = unseal(body, key)
        if shape.get("version") != 1:
            raise Corrupt(f"index version {shape.get('version')!r}; this code reads version 1", key=key)
        return cls(
            model=cast(str, shape["model"]),
            field=cast(str, shape["field"]),
            type=cast(str, shape["type"]),
            unique=bool(shape["unique"]),
            last_updated=cast(str, shape["lastUpdated"]),
            revision=cast(int, shape["revision"]),
            entries=cast(Entries, shape["entries"]),
            conflicts=cast("dict[str, list[str]]", shape.get("conflicts") or {}),
            partitioned=shape.get("partitioned") is True,
        )


class IndexEntries:
    """The entries of an index, gathered from rows that come in the order of their ids, some at a time."""

    def __init__(self, definition: IndexDef) -> None:
        self.definition = definition
        self._ids: dict[str, list[str]] = {}

    def add(self, rows: Mapping[str, Row]) -> None:
        for entity_id in sorted(rows):
            for key in entry_keys(self.definition, rows[entity_id]):
                self.put(key, entity_id)

    def put(self, key: str, entity_id: str) -> None:
        self._ids.setdefault(key, []).append(entity_id)

    def index(self, model: str, last_updated: str, revision: int) -> Index:
        entries: Entries = dict(self._ids)
        conflicts: dict[str, list[str]] = {}
        if self.definition.unique:
            conflicts = {key: holders for key, holders in self._ids.items() if len(holders) > 1}
            nulls = conflicts.pop(NULL_KEY, None)  # null is no value: any number of documents may have it
            entries = {key: holders[0] for key, holders in self._ids.items()}
            entries.update({} if nulls is None else {NULL_KEY: nulls})
        kind, unique = self.definition.type, self.definition.unique
        return Index(model, self.definition.field, kind, unique, last_updated, revision, entries, conflicts)
