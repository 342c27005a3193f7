"""The manifest: one JSON file per collection with a row for every live document.

`seqs` holds the newest folded oplog seq of every entity, deleted ones too: a change applies only if its seq is newer,
so folding is idempotent and order-free, and a late older change cannot bring a deleted row back. `revision` is the sum
of the seqs; it grows with every change, so a manifest's bytes never repeat. `lastUpdated` is the time of the newest
folded change, never the clock's, so that a rebuild gives the same bytes.

`fields` are those that the rows were made with. When a push changes them, the manifest is stale: queries read the
documents, and the next fold or sweep builds it anew.

A model without oplog has no seqs. It has the `etags` that its rows were read at instead, so that a sweep finds what no
event reported by listing alone; its `revision` counts the writes of the manifest, and a rebuild carries it on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import cast

from worm.codec.sealed import seal, unseal
from worm.codec.strict_json import JsonValue, dumps
from worm.collections.changes import Change, Row
from worm.errors import Corrupt


@dataclass(frozen=True, slots=True)
class ReadRow:
    """A document's row as it was read: `etag` None when there is no document, `row` None also when it is invalid."""

    row: Row | None
    etag: str | None
    modified: str = ""


@dataclass(frozen=True, slots=True)
class Manifest:
    """Rows by id, and what was folded into them."""

    model: str
    entities: dict[str, Row] = field(default_factory=dict)
    seqs: dict[str, int] = field(default_factory=dict)
    last_updated: str = ""
    revision: int = 0
    etags: dict[str, str] = field(default_factory=dict)
    fields: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        return len(self.entities)

    def folded(self, changes: Iterable[Change]) -> Manifest | None:
        """With the newer ones of the changes; None when all of them are folded already."""
        entities, seqs = dict(self.entities), dict(self.seqs)
        last_updated, revision = self.last_updated, self.revision
        for change in changes:
            head = change.head
            if head is None or head.seq <= seqs.get(change.id, 0):
                continue
            revision += head.seq - seqs.get(change.id, 0)
            seqs[change.id] = head.seq
            last_updated = max(last_updated, head.ts)
            if change.row is None:
                entities.pop(change.id, None)
            else:
                entities[change.id] = change.row
        if revision == self.revision:
            return None
        return Manifest(self.model, entities, seqs, last_updated, revision, fields=self.fields)

    def with_documents(self, read: Mapping[str, ReadRow]) -> Manifest | None:
        """For a model without oplog: the rows of documents as they were read. None when nothing differs."""
        entities, etags, last_updated = dict(self.entities), dict(self.etags), self.last_updated
        for entity_id, found in read.items():
            entities.pop(entity_id, None)
            etags.pop(entity_id, None)
            if found.etag is not None:
                etags[entity_id] = found.etag
                last_updated = max(last_updated, found.modified)
            if found.row is not None:
                entities[entity_id] = found.row
        same_rows = dumps(cast(JsonValue, entities)) == dumps(cast(JsonValue, self.entities))  # 1 is not true here
        if same_rows and etags == self.etags and last_updated == self.last_updated:
            return None
        return Manifest(self.model, entities, {}, last_updated, self.revision + 1, etags, self.fields)

    def encode(self) -> bytes:
        shape: dict[str, JsonValue] = {
            "version": 1,
            "model": self.model,
            "count": self.count,
            "lastUpdated": self.last_updated,
            "revision": self.revision,
            "fields": list(self.fields),
            "entities": cast("dict[str, JsonValue]", self.entities),
            "seqs": cast("dict[str, JsonValue]", self.seqs),
        }
        if self.etags:
            shape["etags"] = cast("dict[str, JsonValue]", self.etags)
        return seal(shape)

    @classmethod
    def decode(cls, body: bytes, key: str) -> Manifest:
        shape = unseal(body, key)
        if shape.get("version") != 1:
            raise Corrupt(f"manifest version {shape.get('version')!r}; this code reads version 1", key=key)
        return cls(
            model=cast(str, shape["model"]),
            entities=cast("dict[str, Row]", shape["entities"]),
            seqs=cast("dict[str, int]", shape["seqs"]),
            last_updated=cast(str, shape["lastUpdated"]),
            revision=cast(int, shape["revision"]),
            etags=cast("dict[str, str]", shape.get("etags") or {}),
            fields=tuple(cast("list[str]", shape.get("fields") or [])),
        )
