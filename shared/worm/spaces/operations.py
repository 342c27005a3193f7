"""The checked parts of a transaction: operations on entities, the reads of its author, and its limits.

Operations are JSON objects, as the commit record keeps them:
`{"op": "set", "id", "value"}`, `{"op": "patch", "id", "patches"}`, `{"op": "delete", "id"}`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, TypeAlias

import orjson
from pydantic import BaseModel, ConfigDict, Field

from worm.errors import Invalid, show
from worm.formats import MAX_DEPTH, JsonObject, JsonValue, check_json, dumps, type_name
from worm.spaces.json_patch import check_patches
from worm.spaces.rows import DELETE, PATCH, SET, check_branch, check_id, check_list, check_seq

MIB = 1024 * 1024


class SpaceConfig(BaseModel):
    """Limits of a transaction, and when snapshots are made. Writers of one space may have different settings: none of
    them affects what reads return."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    operations_max: Annotated[int, Field(ge=1, le=100_000)] = 1_000
    merge_operations_max: Annotated[int, Field(ge=1, le=100_000)] = 10_000
    reads_max: Annotated[int, Field(ge=0, le=1_000_000)] = 10_000
    commit_bytes_max: Annotated[int, Field(ge=1024, le=256 * MIB)] = 16 * MIB
    document_bytes_max: Annotated[int, Field(ge=64, le=64 * MIB)] = 10 * MIB
    branch_depth_max: Annotated[int, Field(ge=1, le=1_000)] = 32
    blob_bytes_max: Annotated[int, Field(ge=1, le=900_000_000)] = 512 * MIB
    snapshot_every: Annotated[int, Field(ge=1)] = 100
    replay_depth_max: Annotated[int, Field(ge=1)] = 50
    snapshots_kept: Annotated[int, Field(ge=1)] | None = None
    cache_bytes: Annotated[int, Field(ge=0)] = 16 * MIB


_SCALARS = frozenset((str, int, float, bool, type(None)))
_DATA = {SET: '"value"', PATCH: '"patches"'}
_NO_READS = '"reads":{"confirmed":[],"pending":[]}'
_MEMBERS = {SET: {"op", "id", "value"}, PATCH: {"op", "id", "patches"}, DELETE: {"op", "id"}}


@dataclass(frozen=True, slots=True)
class ConfirmedRead:
    """The author saw the entity as of commit `seq`. A stale read refuses the transaction. `branch` None: the
    transaction's branch."""

    id: str
    seq: int
    branch: str | None = None


@dataclass(frozen=True, slots=True)
class PendingRead:
    """The author saw what its own transaction `local_seq` wrote, before it knew whether that was committed."""

    id: str
    local_seq: int


Read: TypeAlias = ConfirmedRead | PendingRead


class Operation(NamedTuple):
    """`data` is the canonical text that the revision keeps; `patches` the list of a `patch`."""

    op: str
    id: str
    data: str | None
    patches: list[JsonObject] | None


def set_document(id: str, value: JsonObject) -> JsonObject:
    """Write the whole document, replacing any existing one."""
    return {"op": SET, "id": id, "value": value}


def patch_document(id: str, patches: Sequence[JsonObject]) -> JsonObject:
    """RFC 6902, with paths from the root of the document. If there is no document, it starts as `{}`."""
    return {"op": PATCH, "id": id, "patches": list(patches)}


def delete_document(id: str) -> JsonObject:
    return {"op": DELETE, "id": id}


def check_operations(
    ops: Sequence[Mapping[str, JsonValue]], config: SpaceConfig, *, count_max: int | None = None
) -> list[Operation]:
    """All operations, or `Invalid` with the place of the first error."""
    count_max = config.operations_max if count_max is None else count_max
    if not check_list(ops, "ops"):
        raise Invalid("a transaction needs at least one operation")
    if len(ops) > count_max:
        raise Invalid(
            f"the transaction has {len(ops)} operations; the limit is {count_max}",
            hint="split it, or raise `operations_max`",
        )
    return [_plain_set(raw, config) or _operation(raw, f"ops[{at}]", config) for at, raw in enumerate(ops)]


def check_reads(reads: Sequence[object], local_seq: int, config: SpaceConfig) -> list[Read]:
    """The reads, with their branches as rows name them."""
    if len(reads) > config.reads_max:
        raise Invalid(
            f"the transaction has {len(reads)} reads; the limit is {config.reads_max}",
            hint="split it, or raise `reads_max`",
        )
    checked: list[Read] = []
    for at, read in enumerate(reads):
        place = f"reads[{at}]"
        if isinstance(read, ConfirmedRead):
            branch = None if read.branch is None else check_branch(read.branch)
            checked.append(ConfirmedRead(check_id(read.id, place), check_seq(read.seq, "seq", place), branch))
        elif not isinstance(read, PendingRead):
            what = "an entity that was read, a ConfirmedRead or a PendingRead"
            raise Invalid(f"a read must be {what}, not {type_name(read)}", path=place)
        elif check_seq(read.local_seq, "local_seq", place) >= local_seq:
            raise Invalid(f"local_seq {read.local_seq} must be lower than this transaction's {local_seq}", path=place)
        else:
            checked.append(PendingRead(check_id(read.id, place), read.local_seq))
    return checked


def client_commit(
    operations: Sequence[Operation], reads: Sequence[Read], local_seq: int, extra: JsonObject | None = None
) -> str:
    """The record of a transaction as its author sent it: canonical JSON, built from canonical parts."""
    members = [
        f'"localSeq":{local_seq}',
        f'"operations":[{",".join(map(_record, operations))}]',
        f'"reads":{dumps(_reads(reads)).decode()}' if reads else _NO_READS,
    ]
    if extra:
        members = sorted([*members, *(dumps({name: value})[1:-1].decode() for name, value in extra.items())])
    return f"{{{','.join(members)}}}"


def _record(operation: Operation) -> str:
    op, id, data, _ = operation  # noqa: A001  # as the record has it
    name = orjson.dumps(id).decode()
    return f'{{"id":{name},"op":"{op}"}}' if data is None else f'{{"id":{name},"op":"{op}",{_DATA[op]}:{data}}}'


def _reads(reads: Sequence[Read]) -> JsonObject:
    confirmed: list[JsonValue] = []
    pending: list[JsonValue] = []
    for read in reads:
        if isinstance(read, PendingRead):
            pending.append({"id": read.id, "localSeq": read.local_seq})
        elif read.branch is None:
            confirmed.append({"id": read.id, "seq": read.seq})
        else:
            confirmed.append({"branch": read.branch, "id": read.id, "seq": read.seq})
    return {"confirmed": confirmed, "pending": pending}


def _plain_set(raw: Mapping[str, JsonValue], config: SpaceConfig) -> Operation | None:
    """A `set` without an error, as most operations are; all others are checked in detail."""
    if type(raw) is not dict or len(raw) != 3 or raw.get("op") != SET:
        return None
    id, value = raw.get("id"), raw.get("value")  # noqa: A001  # as the record has it
    if type(id) is not str or type(value) is not dict or not _is_exact(value, MAX_DEPTH):
        return None
    try:
        body = dumps(value)
        check_id(id)
    except Invalid:  # the detailed check reports it with its place
        return None
    return None if len(body) > config.document_bytes_max else Operation(SET, id, body.decode(), None)


def _operation(raw: Mapping[str, JsonValue], place: str, config: SpaceConfig) -> Operation:
    if type(raw) is not dict and not isinstance(raw, Mapping):  # the first check is faster
        raise Invalid(f"an operation must be an object, not {type_name(raw)}", path=place)
    op = raw.get("op")
    if not isinstance(op, str) or op not in _MEMBERS:
        raise Invalid(f"must be one of set, patch, delete, not {show(op)}", path=f"{place}.op")
    if raw.keys() != _MEMBERS[op]:
        raise Invalid(f"a {op} must have exactly the members {', '.join(sorted(_MEMBERS[op]))}", path=place)
    id = check_id(raw["id"], f"{place}.id")  # noqa: A001  # as the record has it
    if op == DELETE:
        return Operation(op, id, None, None)
    if op == PATCH:
        body = _canonical(raw["patches"], f"{place}.patches")
        return Operation(op, id, body.decode(), check_patches(raw["patches"], f"{place}.patches"))
    value = raw["value"]
    body = _canonical(value, f"{place}.value")
    if not isinstance(value, dict):
        raise Invalid(f"a document must be an object, not {type_name(value)}", path=f"{place}.value")
    check_size(body, id, config)
    return Operation(op, id, body.decode(), None)


def _canonical(value: JsonValue, place: str) -> bytes:
    """The bytes of exact JSON. Only a refused value is searched for the error."""
    try:
        return dumps(value if _is_exact(value, MAX_DEPTH) else check_json(value))
    except Invalid as error:
        raise _located(value, place, error) from error


def _located(value: JsonValue, place: str, refusal: Invalid) -> Invalid:
    try:
        check_json(value)
    except Invalid as error:
        refusal = error
    return Invalid(refusal.message, path=place, hint=refusal.hint)


def _is_exact(value: Any, depth_left: int) -> bool:
    """Whether it has only JSON types and is not too deep. `dumps` checks numbers and strings."""
    kind = type(value)
    if kind in _SCALARS:
        return True
    if depth_left <= 0:
        return False
    if kind is dict:
        for name, child in value.items():
            if type(name) is not str or not (type(child) in _SCALARS or _is_exact(child, depth_left - 1)):
                return False
        return True
    if kind is not list:
        return False
    return _SCALARS.issuperset(map(type, value)) or all(_is_exact(child, depth_left - 1) for child in value)


def check_object(value: object, what: str) -> JsonObject:
    """Exact JSON, and an object."""
    if not isinstance(value, dict):
        raise Invalid(f"{what} must be an object, not {type_name(value)}", path=what)
    _canonical(value, what)
    return value


def check_size(body: bytes, id: str, config: SpaceConfig) -> None:
    if len(body) > config.document_bytes_max:
        raise Invalid(
            f"the document {show(id)} has {len(body)} bytes; the limit is {config.document_bytes_max}",
            hint="split it, store a blob, or raise `document_bytes_max`",
        )
