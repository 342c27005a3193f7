"""The file of `worm space write`: a transaction as JSON.

`{"ops": [OPERATION…], "reads": [READ…], "session": {"id", "localSeq"}}`; all but `ops` may be left out. A read is
`{"id", "seq"}` with or without `branch`, or `{"id", "localSeq"}` of what the same session wrote before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from worm.codec.strict_json import JsonObject, JsonValue, loads, type_name
from worm.errors import Invalid
from worm.spaces.operations import ConfirmedRead, PendingRead, Read

MEMBERS = ("ops", "reads", "session")


@dataclass(frozen=True, slots=True)
class Transaction:
    """What `Space.transact` takes; it checks the operations, names and numbers itself."""

    ops: list[Mapping[str, JsonValue]]
    reads: list[Read]
    session_id: str | None
    local_seq: int | None


def parse_transaction(body: bytes) -> Transaction:
    shape = _object(loads(body), "a transaction")
    unknown = sorted(shape.keys() - set(MEMBERS))
    if unknown or "ops" not in shape:
        what = f"has the unknown member {unknown[0]!r}" if unknown else "has no member 'ops'"
        raise Invalid(f"the transaction {what}", hint=f"its members are {', '.join(MEMBERS)}")
    ops = [_object(op, f"ops[{at}]") for at, op in enumerate(_array(shape["ops"], "ops"))]
    reads = [_read(read, f"reads[{at}]") for at, read in enumerate(_array(shape.get("reads", []), "reads"))]
    session_id, local_seq = _session(shape["session"]) if "session" in shape else (None, None)
    return Transaction([*ops], reads, session_id, local_seq)


def _session(value: JsonValue) -> tuple[str, int]:
    shape = _object(value, "session")
    if shape.keys() != {"id", "localSeq"}:
        raise Invalid("a session has the members id, localSeq", path="session")
    # Their types are checked where every session's are.
    return cast(str, shape["id"]), cast(int, shape["localSeq"])


def _read(value: JsonValue, place: str) -> Read:
    shape = _object(value, place)
    if shape.keys() == {"id", "localSeq"}:
        return PendingRead(cast(str, shape["id"]), cast(int, shape["localSeq"]))
    if shape.keys() in ({"id", "seq"}, {"id", "seq", "branch"}):
        return ConfirmedRead(cast(str, shape["id"]), cast(int, shape["seq"]), cast("str | None", shape.get("branch")))
    raise Invalid("a read has the members id, seq and perhaps branch; or id, localSeq", path=place)


def _object(value: JsonValue, what: str) -> JsonObject:
    if not isinstance(value, dict):
        raise Invalid(f"{what} must be an object, not {type_name(value)}")
    return value


def _array(value: JsonValue, what: str) -> list[JsonValue]:
    if not isinstance(value, list):
        raise Invalid(f"{what} must be an array, not {type_name(value)}")
    return value
