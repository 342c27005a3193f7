"""Field indexes: value → ids, one JSON file per indexed field. An index is a pure function of the manifest.

Because it is computed whole from one manifest and carries that manifest's `revision`, an index is never half updated:
it is written only if its stored revision is lower, and so it can lag behind the manifest but not contradict it.

Entry keys: a string stands for itself unless it starts with `=`; every other value is `=` followed by its canonical
JSON (`=1`, `=true`, `=null`, `="=x"`), so `1`, `"1"`, `true` and `"true"` never collide. Whole floats are written as
integers, because equality of numbers does not look at their type.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import cast

from worm.codec.sealed import seal, unseal
from worm.codec.strict_json import JsonValue, dumps
from worm.errors import Corrupt
from worm.schema import IndexDef
from worm.tables.manifest import Manifest

Entries = dict[str, list[str] | str]


def entry_key(value: JsonValue) -> str:
    """The collision-free name of a value among an index's entries."""
    if isinstance(value, str) and not value.startswith("="):
        return value
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        value = int(value)
    return "=" + dumps(value).decode()


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

    @classmethod
    def of(cls, manifest: Manifest, definition: IndexDef) -> Index:
        name = definition.field
        grouped: dict[str, list[str]] = {}
        for entity_id in sorted(manifest.entities):
            row = manifest.entities[entity_id]
            if name not in row:
                continue
            value = row[name]
            if definition.type == "multiValue" and isinstance(value, list):
                for key in dict.fromkeys(entry_key(item) for item in value):
                    grouped.setdefault(key, []).append(entity_id)
            else:
                grouped.setdefault(entry_key(value), []).append(entity_id)
        entries: Entries = dict(grouped)
        conflicts: dict[str, list[str]] = {}
        if definition.unique:
            entries = {key: holders[0] for key, holders in grouped.items()}
            conflicts = {key: holders for key, holders in grouped.items() if len(holders) > 1}
        return cls(
            manifest.model,
            name,
            definition.type,
            definition.unique,
            manifest.last_updated,
            manifest.revision,
            entries,
            conflicts,
        )

    def is_current(self, wanted: Index, definition: IndexDef) -> bool:
        """Is it of the manifest that `wanted` is of, or of a newer one?"""
        same_definition = (self.type, self.unique) == (definition.type, definition.unique)
        return same_definition and self.revision >= wanted.revision

    def ids(self, value: JsonValue) -> list[str]:
        """The ids of the documents that have this value."""
        key = entry_key(value)
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
        )
