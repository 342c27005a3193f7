"""What is recorded of an entity: oplog entries, heads, and the change sets that carry news of them to the tables.

- *entry*: the immutable JSON object `NNNN.json` that says what happened. `metadata.etag` and `metadata.versionId` name
  the object version that it records. They are the idempotency record: a worker that finds its version already named
  under a seq knows that the work is done.
- *heads*: `.worm.heads.json` beside the manifest, one line per entity. Only a hint: it saves capture the search for
  the tail and, for a write of ours, the version listing. Missing or stale heads cost requests, never correctness. It is
  written after manifest and indexes, so they know every head that it names.
- *change set*: what one batch of capture tells the tables worker, in one object: entities whose newest entry is newer
  than the table knows, with the row of each. It is written after the entries, so everything it says is recorded
  already; folding it twice does no harm, because a row applies only if its seq is newer. A model without oplog has no
  seq: its changes only name the entity, and the fold reads the document itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, cast

from worm.codec.diff import apply as apply_diff
from worm.codec.strict_json import JsonObject, JsonValue, Missing, dumps, field_value, loads_own
from worm.errors import Corrupt
from worm.store.base import NULL_VERSION, Version, same_version

Op = Literal["create", "update", "delete", "restore"]
Document = dict[str, JsonValue]

OPS: frozenset[str] = frozenset({"create", "update", "delete", "restore"})


@dataclass(frozen=True, slots=True)
class OplogEntry:
    """One change. `snapshot` is the whole document (create, delete, restore; of an update only at a checkpoint), `diff`
    the changed fields (update); `absent` says which nulls of `diff` mean 'no such field'."""

    seq: int
    op: Op
    ts: str
    actor: str | None = None
    snapshot: Document | None = None
    diff: Mapping[str, list[JsonValue]] | None = None
    absent: Mapping[str, list[str]] | None = None
    metadata: Mapping[str, JsonValue] = field(default_factory=dict)

    @property
    def version_id(self) -> str | None:
        return cast("str | None", self.metadata.get("versionId"))

    @property
    def etag(self) -> str | None:
        return cast("str | None", self.metadata.get("etag"))

    @property
    def reason(self) -> str | None:
        """Why, as the writer said it."""
        said = self.metadata.get("reason")
        return said if isinstance(said, str) else None

    @property
    def is_base(self) -> bool:
        """Does it tell the document after it without the entries before it?"""
        return self.op == "delete" or self.snapshot is not None

    def __repr__(self) -> str:
        by = f" by {self.actor}" if self.actor else ""
        named = self.diff if self.diff is not None else self.snapshot
        fields = f": {', '.join(named)}" if named else ""
        return f"<{type(self).__name__} {self.about()}seq {self.seq}, {self.op} at {self.ts}{by}{fields}>"

    def about(self) -> str:
        """Of which document, where it is known."""
        return ""

    def to_bytes(self) -> bytes:
        shape: dict[str, JsonValue] = {"seq": self.seq, "op": self.op, "ts": self.ts}
        optional: dict[str, object] = {
            "actor": self.actor,
            "snapshot": self.snapshot,
            "diff": self.diff,
            "absent": self.absent,
        }
        shape.update({name: cast(JsonValue, value) for name, value in optional.items() if value is not None})
        if self.metadata:
            shape["metadata"] = dict(self.metadata)
        return dumps(shape)

    @classmethod
    def from_bytes(cls, body: bytes, key: str) -> OplogEntry:
        return cls.from_shape(loads_own(body, key=key), key)

    @classmethod
    def from_shape(cls, shape: JsonObject, key: str) -> OplogEntry:
        if shape.get("op") not in OPS or not isinstance(shape.get("seq"), int):
            raise Corrupt("not an oplog entry", key=key, hint="see docs/formats.md for the shape")
        return cls(
            seq=cast(int, shape["seq"]),
            op=cast(Op, shape["op"]),
            ts=str(shape.get("ts", "")),
            actor=cast("str | None", shape.get("actor")),
            snapshot=cast("Document | None", shape.get("snapshot")),
            diff=cast("Mapping[str, list[JsonValue]] | None", shape.get("diff")),
            absent=cast("Mapping[str, list[str]] | None", shape.get("absent")),
            metadata=cast("Mapping[str, JsonValue]", shape.get("metadata") or {}),
        )

    def applied_to(self, before: Document | None, key: str) -> Document | None:
        """The document after this entry; `before` is the one that the entries up to here gave."""
        if self.op == "delete":
            return None
        if self.snapshot is not None:
            return self.snapshot
        if self.op != "update":
            raise Corrupt(f"a {self.op} entry carries no snapshot", key=key)
        if before is None:
            raise Corrupt("an update entry follows no document", key=key)
        return apply_diff(before, self.diff or {}, self.absent or {})


@dataclass(frozen=True, slots=True)
class Head:
    """What is recorded last of an entity: the newest entry's seq and the object version that it names."""

    seq: int
    etag: str | None
    version_id: str | None
    live: bool
    ts: str

    @classmethod
    def of(cls, entry: OplogEntry) -> Head:
        return cls(entry.seq, entry.etag, entry.version_id, entry.op != "delete", entry.ts)

    def names(self, version: Version) -> bool:
        """Does this head record the version? Without a version id the etag tells, as far as it can."""
        if not same_version(self.version_id, version.version_id):
            return False
        if version.version_id not in (None, NULL_VERSION):
            return True
        return self.live is not version.is_delete_marker and (self.etag or "") == version.etag


@dataclass(frozen=True, slots=True)
class Heads:
    """The heads of a model's entities, deleted ones included."""

    model: str
    heads: dict[str, Head] = field(default_factory=dict)

    @property
    def revision(self) -> int:
        """Sum of all seqs: grows with every recorded change, so content never repeats."""
        return sum(head.seq for head in self.heads.values())

    @property
    def count(self) -> int:
        return sum(head.live for head in self.heads.values())

    @property
    def known(self) -> int:
        """How many entities it knows of, deleted ones too."""
        return len(self.heads)

    @property
    def last_updated(self) -> str:
        return max((head.ts for head in self.heads.values()), default="")

    def get(self, entity_id: str) -> Head | None:
        return self.heads.get(entity_id)

    def folded(self, changes: Iterable[Change]) -> Heads | None:
        """With the newer ones of the changes; None when all are known."""
        newer = {
            change.id: change.head
            for change in changes
            if change.head is not None and change.head.seq > self._seq(change.id)
        }
        return Heads(self.model, self.heads | newer) if newer else None

    def ids(self) -> list[str]:
        return sorted(self.heads)

    def merged(self, others: Iterable[Heads]) -> Heads:
        """With what the others know newer of an entity."""
        heads = dict(self.heads)
        for other in others:
            for entity_id, head in other.heads.items():
                known = heads.get(entity_id)
                if known is None or head.seq > known.seq:
                    heads[entity_id] = head
        return Heads(self.model, heads)

    @classmethod
    def joined(cls, model: str, parts: Iterable[Heads]) -> Heads:
        """Parts of disjoint ranges, together."""
        return cls(model, {entity_id: head for part in parts for entity_id, head in part.heads.items()})

    def part(self, ids: Iterable[str]) -> Heads:
        return Heads(self.model, {entity_id: self.heads[entity_id] for entity_id in ids})

    def _seq(self, entity_id: str) -> int:
        head = self.heads.get(entity_id)
        return 0 if head is None else head.seq

    def encode(self) -> bytes:
        heads: dict[str, JsonValue] = {entity_id: encode_head(head) for entity_id, head in self.heads.items()}
        return dumps({"version": 1, "model": self.model, "revision": self.revision, "heads": heads})

    @classmethod
    def decode(cls, body: bytes, key: str) -> Heads:
        return cls.of_shape(loads_own(body, key=key), key)

    @classmethod
    def of_shape(cls, shape: Mapping[str, JsonValue], key: str) -> Heads:
        if shape.get("version") != 1 or not isinstance(shape.get("heads"), dict):
            raise Corrupt("not a heads file of a version this code reads", key=key, hint="`worm repair` rebuilds it")
        heads = cast("dict[str, list[JsonValue]]", shape["heads"])
        return cls(str(shape["model"]), {entity_id: decode_head(head) for entity_id, head in heads.items()})


Row = dict[str, JsonValue]


@dataclass(frozen=True, slots=True)
class Change:
    """The newest state of one entity. `head` is None for a model without oplog; `row` is None when deleted."""

    id: str
    head: Head | None
    row: Row | None


def project(document: Document, fields: Sequence[str]) -> Row:
    """The manifest row of a document: the table's fields that it has. A dotted field keeps its dotted name."""
    row: Row = {}
    for name in fields:
        value = field_value(document, name)
        if not isinstance(value, Missing):
            row[name] = value
    return row


APART = "."
"""The member of a row that holds the fields of its document that have a dot in their own names: elsewhere in a row a
dotted name is a path."""


def table_row(document: Document, fields: Sequence[str]) -> Row:
    """The row of a document that holds all its fields; the named ones may be paths into it. Without the paths, and with
    what is apart put back, it is the document again."""
    row = project(document, fields)
    row |= {name: value for name, value in document.items() if "." not in name and name != "id"}
    apart: Row = {name: value for name, value in document.items() if "." in name}
    if apart:
        row[APART] = apart
    return row


def encode_changes(model: str, changes: Sequence[Change]) -> bytes:
    shapes: list[JsonValue] = []
    for change in changes:
        shape: dict[str, JsonValue] = {"id": change.id}
        if change.head is not None:
            shape["head"] = encode_head(change.head)
            shape["row"] = change.row
        shapes.append(shape)
    return dumps({"version": 1, "model": model, "changes": shapes})


def decode_changes(body: bytes, key: str) -> tuple[str, list[Change]]:
    """The model's name and its changes."""
    shape = loads_own(body, key=key)
    if shape.get("version") != 1 or not isinstance(shape.get("model"), str):
        raise Corrupt("not a change set of a version this code reads", key=key, hint="see docs/formats.md")
    listed = cast("list[Mapping[str, JsonValue]]", shape.get("changes") or [])
    return cast(str, shape["model"]), [_decode_change(item) for item in listed]


def _decode_change(shape: Mapping[str, JsonValue]) -> Change:
    head = shape.get("head")
    return Change(
        id=cast(str, shape["id"]),
        head=None if head is None else decode_head(cast("list[JsonValue]", head)),
        row=cast("Row | None", shape.get("row")),
    )


def encode_head(head: Head) -> list[JsonValue]:
    return [head.seq, head.etag, head.version_id, head.live, head.ts]


def decode_head(shape: list[JsonValue]) -> Head:
    seq, etag, version_id, live, ts = shape
    return Head(cast(int, seq), cast("str | None", etag), cast("str | None", version_id), bool(live), cast(str, ts))
