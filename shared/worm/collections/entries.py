"""Oplog entries: the immutable JSON objects `NNNN.json` that say what happened to one entity.

`metadata.etag` and `metadata.versionId` name the object version an entry records. They are the idempotency record: a
worker that finds its version already named under a seq knows that the work is done.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, cast

from worm.codec.diff import apply as apply_diff
from worm.codec.strict_json import JsonObject, JsonValue, dumps, loads_own
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
    def is_base(self) -> bool:
        """Does it tell the document after it without the entries before it?"""
        return self.op == "delete" or self.snapshot is not None

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
