"""The manifest: one JSON file per collection with a row for every live document.

`seqs` holds the newest folded oplog seq of every entity, including deleted ones. A change applies only if its seq is
newer. So folding is idempotent and independent of order, and a late, older change cannot bring back a deleted row.
`revision` is the sum of the seqs; it grows with every change, so a manifest's bytes never repeat. `lastUpdated` is the
time of the newest folded change, never the current time, so that a rebuild gives the same bytes.

A row may lack values that are too large for it, and says so (`entries.CUT`). `cut` is the number of such rows. It is
absent if there are none, so that readers need not check the rows.

`fields` are the fields that the rows were made with (`ModelDef.row_form`); `oplog` says whether they come from the
oplog. If a push changes either, the manifest is stale: queries read the documents, and the next fold or sweep rebuilds
it.

A model without an oplog has no seqs. Instead it has the `etags` of the documents that its rows were read from, so that
a sweep finds changes without an event by listing alone. Its `revision` counts the writes of the manifest, and a rebuild
continues it.

The same holds for a *damaged* entity of a model with an oplog, whose history cannot be continued: its row comes from
its document, and it has an etag instead of a seq. As soon as its history is complete again, its newest entry counts
again.

A large table is spread over partitions and deltas (`root.py`). Each of them is a manifest too: of a range of ids, or of
the ids that one fold touched. In a delta of a model without an oplog, the number of the fold takes the place of the
seq.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from typing import Protocol, TypeVar, cast

from worm.collections import CUT, REBUILT, Change, OplogEntry, Row
from worm.formats import JsonValue, ModelDef, dumps, shapes
from worm.tables.sealed import seal, unseal
from worm.values import dataclass

V = TypeVar("V")
SEQS, ETAGS = shapes.object_of(shapes.whole_number(1, OplogEntry.SEQ_MAX)), shapes.object_of(shapes.TEXT)
MANIFEST = shapes.record(
    "a manifest that this version of worm reads",
    {
        "version": shapes.one_of(1),
        "model": shapes.TEXT,
        "entities": shapes.object_of(shapes.OBJECT),
        "seqs": SEQS,
        "lastUpdated": shapes.TEXT,
        "revision": shapes.WHOLE,
    },
    {"etags": ETAGS, "fields": shapes.list_of(shapes.TEXT), "oplog": shapes.FLAG, "cut": shapes.WHOLE},
)


@dataclass(frozen=True, slots=True)
class ReadRow:
    """A document's row as it was read: `etag` is None if there is no document; `row` is also None if the document is
    invalid."""

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
    oplog: bool = True

    @property
    def count(self) -> int:
        return len(self.entities)

    @property
    def cut(self) -> int:
        """The number of rows that lack values of their documents."""
        return sum(CUT in row for row in self.entities.values())

    @property
    def known(self) -> int:
        """The number of known ids, including deleted ones."""
        both = len(self.seqs.keys() | self.etags.keys()) if self.seqs and self.etags else len(self.seqs or self.etags)
        return max(len(self.entities), both)

    def weight(self, entity_id: str) -> int:
        return Change.weight_of(entity_id, self.entities.get(entity_id))

    def folded(self, changes: Iterable[Change]) -> Manifest | None:
        """The manifest with the newer changes; None if all of them are already folded."""
        entities, seqs, etags = dict(self.entities), dict(self.seqs), dict(self.etags)
        last_updated, revision, is_changed = self.last_updated, self.revision, False
        for change in changes:
            head, known = change.head, seqs.get(change.id, 0)
            if change.damage is not None:
                if known == 0 and _is_served(change, entities, etags):
                    continue
                seqs.pop(change.id, None)
            elif head is None or head.seq <= known:
                continue
            else:
                seqs[change.id] = head.seq
            is_changed = True
            revision += seqs.get(change.id, 0) - known
            last_updated = max(last_updated, change.modified if head is None else head.ts)
            _take(entities, change.id, {} if change.row is None else {change.id: change.row})
            _take(etags, change.id, {} if change.etag is None else {change.id: change.etag})
        if not is_changed:
            return None
        return Manifest(self.model, entities, seqs, last_updated, revision, etags, self.fields, self.oplog)

    def with_documents(self, read: Mapping[str, ReadRow]) -> Manifest | None:
        """For a model without an oplog: the manifest with the rows of documents as they were read. None if nothing
        differs."""
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
        return Manifest(self.model, entities, {}, last_updated, self.revision + 1, etags, self.fields, oplog=False)

    @classmethod
    def of_documents(cls, model: str, read: Mapping[str, ReadRow], fold: int) -> Manifest:
        """The delta of one fold of a model without oplog."""
        found = {entity_id: one for entity_id, one in read.items() if one.etag is not None}
        return cls(
            model,
            entities={entity_id: one.row for entity_id, one in found.items() if one.row is not None},
            seqs=dict.fromkeys(read, fold),
            last_updated=max((one.modified for one in found.values()), default=""),
            etags={entity_id: one.etag for entity_id, one in found.items() if one.etag is not None},
        )

    def ids(self) -> list[str]:
        """All known ids, including deleted ones, in order."""
        return sorted({*self.entities, *self.seqs, *self.etags})

    def merged(self, others: Iterable[Manifest]) -> Manifest:
        """This manifest with newer rows from the others."""
        entities, seqs, etags = dict(self.entities), dict(self.seqs), dict(self.etags)
        last_updated, revision = self.last_updated, self.revision
        for other in others:
            last_updated = max(last_updated, other.last_updated)
            for entity_id, seq in other.seqs.items():
                known = seqs.get(entity_id, 0)
                if seq <= known:
                    continue
                revision += seq - known
                seqs[entity_id] = seq
                _take(entities, entity_id, other.entities)
                _take(etags, entity_id, other.etags)
        return Manifest(self.model, entities, seqs, last_updated, revision, etags, self.fields)

    @classmethod
    def joined(cls, model: str, parts: Iterable[Manifest]) -> Manifest:
        """Combines parts with disjoint ranges."""
        whole = cls(model)
        for part in parts:
            whole.entities.update(part.entities)
            whole.seqs.update(part.seqs)
            whole.etags.update(part.etags)
        return replace(whole, revision=sum(whole.seqs.values()))

    def part(self, ids: Iterable[str]) -> Manifest:
        """The part with these ids. The root has the times and revisions, so an unchanged part stays the same."""
        part = Manifest(self.model)
        for entity_id in ids:
            _take(part.entities, entity_id, self.entities)
            _take(part.seqs, entity_id, self.seqs)
            _take(part.etags, entity_id, self.etags)
        return part

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
        if cut := self.cut:
            shape["cut"] = cut
        if not self.oplog:
            shape["oplog"] = False
        if self.etags:
            shape["etags"] = cast("dict[str, JsonValue]", self.etags)
        return seal(shape)

    @classmethod
    def decode(cls, body: bytes, key: str) -> Manifest:
        return cls.of_shape(unseal(body, key), key)

    @classmethod
    def of_shape(cls, shape: Mapping[str, JsonValue], key: str) -> Manifest:
        shapes.check(shape, MANIFEST, key, hint=REBUILT)
        return cls(
            model=cast(str, shape["model"]),
            entities=cast("dict[str, Row]", shape["entities"]),
            seqs=cast("dict[str, int]", shape["seqs"]),
            last_updated=cast(str, shape["lastUpdated"]),
            revision=cast(int, shape["revision"]),
            etags=cast("dict[str, str]", shape.get("etags", {})),
            fields=tuple(cast("list[str]", shape.get("fields", []))),
            oplog=shape.get("oplog") is not False,
        )


def _is_served(change: Change, entities: Mapping[str, Row], etags: Mapping[str, str]) -> bool:
    """Whether the table has the current document of a damaged entity."""
    row: JsonValue = change.row
    return etags.get(change.id) == change.etag and dumps(entities.get(change.id)) == dumps(row)


class MadeRows(Protocol):
    """Says how rows were made."""

    @property
    def fields(self) -> tuple[str, ...]: ...
    @property
    def oplog(self) -> bool: ...


def is_stale(definition: ModelDef, root: MadeRows) -> bool:
    """Whether its rows were made with other fields than the schema has today, or from another source."""
    return (root.fields, root.oplog) != (definition.row_form, definition.oplog)


def _take(target: dict[str, V], entity_id: str, source: Mapping[str, V]) -> None:
    """Copy what the source has under the id, if it has anything."""
    if entity_id in source:
        target[entity_id] = source[entity_id]
    else:
        target.pop(entity_id, None)
