"""The log of a Delta table as values: actions, the state after a version, and checkpoints. No requests.

A commit is a file of *actions*, one JSON object per line: `add` and `remove` name Parquet files, `metaData` has the
schema, `txn` the revision of the collection, `commitInfo` what people want to know. Replaying all commits gives the
state; a *checkpoint* is the state as a Parquet file, so that readers need not replay from the beginning. See the Delta
transaction log protocol; we write what reader version 1 and writer version 2 understand.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from io import BytesIO
from typing import TYPE_CHECKING, cast

from worm.errors import Corrupt, Invalid
from worm.formats import JsonObject, JsonValue, dumps, loads_own, shapes
from worm.tables.parquet import ETAG, ID, REST, SEQ, ColumnKind, LakeColumn
from worm.values import dataclass

if TYPE_CHECKING:
    from arro3.core import Schema

APP = "worm"
READER, WRITER = 1, 2
CHECKPOINT_EVERY = 10
DAY_MS = 86_400_000
RETENTION_DAYS, LOG_DAYS = 7, 30
"""How long files that no version needs any more stay, and how long old versions can be read."""
PROTOCOL: JsonObject = {"minReaderVersion": READER, "minWriterVersion": WRITER}
CONFIGURATION: JsonObject = {
    "delta.checkpointInterval": str(CHECKPOINT_EVERY),
    "delta.deletedFileRetentionDuration": f"interval {RETENTION_DAYS} days",
    "delta.logRetentionDuration": f"interval {LOG_DAYS} days",
}
RENEW = "run `worm repair` for this model: its versions start again at 0, and no row is lost"

_PATHS = {"path": shapes.TEXT}
_KINDS = {
    "add": shapes.record("an add action", {**_PATHS, "size": shapes.WHOLE}),
    "remove": shapes.record("a remove action", _PATHS),
    "metaData": shapes.record("a metaData action", {"id": shapes.TEXT, "schemaString": shapes.TEXT}),
    "protocol": shapes.record(
        "a protocol action", {"minReaderVersion": shapes.WHOLE, "minWriterVersion": shapes.WHOLE}
    ),
    "txn": shapes.record("a txn action", {"appId": shapes.TEXT, "version": shapes.whole_number(-(2**63))}),
    "commitInfo": shapes.OBJECT,
}


# The schema


def schema_string(columns: Sequence[LakeColumn]) -> str:
    """The columns as the log declares them. Files have more: `_exact_…`, which only our readers need."""
    declared = [(column.name, column.kind) for column in columns]
    fixed = [(SEQ, ColumnKind("long")), (ETAG, ColumnKind("string")), (REST, ColumnKind("string"))]
    fields: list[JsonValue] = [_field(ID, ColumnKind("string"), nullable=False)]
    fields += [_field(name, kind) for name, kind in (*declared, *fixed)]
    return dumps({"type": "struct", "fields": fields}).decode()


def _field(name: str, kind: ColumnKind, *, nullable: bool = True) -> JsonObject:
    return {"name": name, "type": _type(kind), "nullable": nullable, "metadata": {}}


def _type(kind: ColumnKind) -> JsonValue:
    if kind.items is not None:
        return {"type": "array", "elementType": _type(kind.items), "containsNull": True}
    if kind.members:
        return {"type": "struct", "fields": [_field(name, one) for name, one in kind.members]}
    return "string" if kind.type == "json" else kind.type


# The state


@dataclass(frozen=True, slots=True)
class LogState:
    """What the log says as of a version. Removed files count until their retention is over."""

    version: int
    adds: Mapping[str, JsonObject] = field(default_factory=dict)
    removes: Mapping[str, JsonObject] = field(default_factory=dict)
    txns: Mapping[str, JsonObject] = field(default_factory=dict)
    metadata: JsonObject | None = None
    protocol: JsonObject | None = None
    info: JsonObject | None = None

    def after(self, version: int, actions: Iterable[JsonObject]) -> LogState:
        adds, removes, txns = dict(self.adds), dict(self.removes), dict(self.txns)
        metadata, protocol, info = self.metadata, self.protocol, None
        for action in actions:
            if (add := _of(action, "add")) is not None:
                path = cast(str, add["path"])
                adds[path] = add
                removes.pop(path, None)
            elif (remove := _of(action, "remove")) is not None:
                path = cast(str, remove["path"])
                adds.pop(path, None)
                removes[path] = remove
            elif (txn := _of(action, "txn")) is not None:
                txns[cast(str, txn["appId"])] = txn
            metadata = _of(action, "metaData") or metadata
            protocol = _of(action, "protocol") or protocol
            info = _of(action, "commitInfo") or info
        return LogState(version, adds, removes, txns, metadata, protocol, info)

    def kept(self, now_ms: int) -> LogState:
        """Without removed files whose retention is over."""
        since = now_ms - RETENTION_DAYS * DAY_MS
        young = {path: one for path, one in self.removes.items() if _deleted(one) > since}
        return LogState(self.version, self.adds, young, self.txns, self.metadata, self.protocol, self.info)

    def recently_removed(self, since_ms: int) -> set[str]:
        return {path for path, one in self.removes.items() if _deleted(one) > since_ms}

    def check_ours(self, key: str) -> None:
        """`Invalid` if another program changed what a writer must understand."""
        found = self.protocol or PROTOCOL
        if (found["minReaderVersion"], found["minWriterVersion"]) != (READER, WRITER):
            raise Invalid(f"another program changed the protocol of the Delta table to {found}", key=key, hint=RENEW)


def _of(action: JsonObject, name: str) -> JsonObject | None:
    found = action.get(name)
    return found if isinstance(found, dict) else None


def _deleted(remove: JsonObject) -> int:
    at = remove.get("deletionTimestamp")
    return at if isinstance(at, int) else 0


# Commits and checkpoints


def encode_commit(actions: Iterable[JsonObject]) -> bytes:
    return b"".join(dumps(action) + b"\n" for action in actions)


def decode_commit(body: bytes, key: str) -> list[JsonObject]:
    try:
        actions = [loads_own(line, key) for line in body.splitlines() if line.strip()]
    except Corrupt as damage:
        raise Corrupt(damage.message, key=key, hint=RENEW) from damage
    for action in actions:
        for name, kind in _KINDS.items():
            if action.get(name) is not None:
                shapes.check(action[name], kind, key, hint=RENEW)
    return actions


def encode_checkpoint(state: LogState) -> tuple[bytes, int]:
    """The Parquet file of a checkpoint, and the number of its actions. Nothing in a checkpoint changes data."""
    from arro3.io import read_json, write_parquet

    actions: list[JsonObject] = [{"protocol": state.protocol or PROTOCOL}, {"metaData": state.metadata or {}}]
    actions += [{"txn": txn} for txn in state.txns.values()]
    actions += [{"add": {**add, "dataChange": False}} for add in state.adds.values()]
    actions += [{"remove": {**remove, "dataChange": False}} for remove in state.removes.values()]
    file = BytesIO()
    write_parquet(read_json(encode_commit(actions), _checkpoint_schema(), batch_size=len(actions)), file)
    return file.getvalue(), len(actions)


def decode_checkpoint(bodies: Iterable[bytes], key: str) -> list[JsonObject]:
    from arro3.io import read_parquet, write_ndjson

    lines = BytesIO()
    try:
        for body in bodies:
            write_ndjson(read_parquet(body), lines)
    except Exception as error:  # arro3 raises bare exceptions
        raise Corrupt(f"not a checkpoint of a Delta table: {error}", key=key, hint=RENEW) from error
    return decode_commit(lines.getvalue(), key)


def _checkpoint_schema() -> Schema:
    from arro3.core import DataType, Field, Schema

    text, long, flag, number = DataType.string(), DataType.int64(), DataType.bool(), DataType.int32()
    texts = DataType.map(Field("key", text, nullable=False), Field("value", text, nullable=True), False)

    def struct(**members: DataType) -> DataType:
        return DataType.struct([Field(name, one, nullable=True) for name, one in members.items()])

    names = DataType.list(Field("element", text, nullable=True))
    file = {"path": text, "partitionValues": texts, "size": long}
    columns = {
        "txn": struct(appId=text, version=long, lastUpdated=long),
        "add": struct(**file, modificationTime=long, dataChange=flag, stats=text, tags=texts),
        "remove": struct(**file, deletionTimestamp=long, dataChange=flag, extendedFileMetadata=flag),
        "metaData": struct(
            id=text,
            name=text,
            description=text,
            format=struct(provider=text, options=texts),
            schemaString=text,
            partitionColumns=names,
            configuration=texts,
            createdTime=long,
        ),
        "protocol": struct(minReaderVersion=number, minWriterVersion=number),
    }
    return Schema([Field(name, kind, nullable=True) for name, kind in columns.items()])


# The tip


TIP = shapes.record(
    "what a publisher remembers of the log",
    {
        "version": shapes.whole_number(1, 1),
        "delta": shapes.WHOLE,
        "files": shapes.object_of(shapes.WHOLE),
        "gains": shapes.object_of(shapes.whole_number(-(2**63))),
        "schema": shapes.TEXT,
        "id": shapes.TEXT,
        "created": shapes.WHOLE,
        "revision": shapes.WHOLE,
        "lastUpdated": shapes.TEXT,
        "published": shapes.WHOLE,
        "lastCheckpoint": shapes.whole_number(-1),
        "etag": shapes.TEXT,
    },
)


@dataclass(frozen=True, slots=True)
class Tip:
    """What a publisher needs to know of the newest version; -1: there is none. `files`: bytes by name. `gains`: by how
    much a file that this version merged with deltas raises the revision of the root's base (see `publish`). Times are
    in milliseconds."""

    version: int = -1
    files: Mapping[str, int] = field(default_factory=dict)
    gains: Mapping[str, int] = field(default_factory=dict)
    schema: str = ""
    id: str = ""
    created: int = 0
    revision: int = 0
    last_updated: str = ""
    published: int = 0
    checkpoint: int = -1
    etag: str = ""
    """Of the commit: another log may have the same version."""

    def shape(self) -> JsonObject:
        return {
            "version": 1,
            "delta": self.version,
            "files": dict(self.files),
            "gains": dict(self.gains),
            "schema": self.schema,
            "id": self.id,
            "created": self.created,
            "revision": self.revision,
            "lastUpdated": self.last_updated,
            "published": self.published,
            "lastCheckpoint": self.checkpoint,
            "etag": self.etag,
        }

    @classmethod
    def of_shape(cls, shape: JsonObject, key: str) -> Tip:
        shapes.check(shape, TIP, key)
        return cls(
            version=cast(int, shape["delta"]),
            files=cast("dict[str, int]", shape["files"]),
            gains=cast("dict[str, int]", shape["gains"]),
            schema=cast(str, shape["schema"]),
            id=cast(str, shape["id"]),
            created=cast(int, shape["created"]),
            revision=cast(int, shape["revision"]),
            last_updated=cast(str, shape["lastUpdated"]),
            published=cast(int, shape["published"]),
            checkpoint=cast(int, shape["lastCheckpoint"]),
            etag=cast(str, shape["etag"]),
        )

    @classmethod
    def of_state(cls, state: LogState, checkpoint: int, etag: str) -> Tip:
        """Without `gains`: the files that have one are looked at again."""
        metadata, info = state.metadata or {}, state.info or {}
        created, revision = metadata.get("createdTime"), state.txns.get(APP, {}).get("version")
        published, updated = info.get("timestamp"), info.get("lastUpdated")
        return cls(
            version=state.version,
            files={path: cast(int, add["size"]) for path, add in state.adds.items()},
            schema=cast(str, metadata.get("schemaString", "")),
            id=cast(str, metadata.get("id", "")),
            created=created if isinstance(created, int) else 0,
            revision=revision if isinstance(revision, int) else 0,
            last_updated=updated if isinstance(updated, str) else "",
            published=published if isinstance(published, int) else 0,
            checkpoint=checkpoint,
            etag=etag,
        )
