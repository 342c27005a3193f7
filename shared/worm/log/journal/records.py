"""The records of a log: eight ops, and the header that every record has.

    {"doc":{"_id":1,"v":"row-1"},"id":1,"lsn":0,"ns":"c","op":"insert","ts":{"$date":0}}

- *lsn*: the number of a record, counted from 0 without gaps (`formats/frames.py` checks that). *ts*: when it was
  appended, milliseconds since 1970; written as `{"$date": ms}`, a plain integer is read as well. *txn*: the transaction
  that it belongs to.
- *ns*: a namespace, that is, a collection of documents. *id*: any JSON value; two ids are the same if their canonical
  bytes are.
- Reading accepts members in any order and refuses everything else that is not exactly as described: an extra member, a
  missing one, an unknown op. Half-understood records would fold into a state that nobody wrote.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from worm.errors import Invalid, show
from worm.formats import JsonObject, JsonValue, dumps, frames, type_name
from worm.log.common import check_name

_DATE = "$date"


@dataclass(frozen=True, slots=True)
class Insert:
    """A new document, `_id` included."""

    ns: str
    id: JsonValue
    doc: JsonObject


@dataclass(frozen=True, slots=True)
class Replace:
    """The whole new document, replacing the one with this `_id`."""

    ns: str
    id: JsonValue
    doc: JsonObject


@dataclass(frozen=True, slots=True)
class Delete:
    """A tombstone; the records before it stay."""

    ns: str
    id: JsonValue


@dataclass(frozen=True, slots=True)
class Define:
    """The validation spec of a namespace from here on."""

    ns: str
    spec: JsonObject


@dataclass(frozen=True, slots=True)
class CreateIndex:
    """A secondary index on a field."""

    ns: str
    field: str


@dataclass(frozen=True, slots=True)
class Begin:
    """A transaction starts: records with its `txn` take effect at its commit, or never."""


@dataclass(frozen=True, slots=True)
class Commit:
    """All of a transaction becomes visible."""


@dataclass(frozen=True, slots=True)
class Abort:
    """Nothing of a transaction ever becomes visible."""


Change: TypeAlias = "Insert | Replace | Delete | Define | CreateIndex"
Marker: TypeAlias = "Begin | Commit | Abort"
Op: TypeAlias = "Change | Marker"

TOKENS: dict[type, str] = {
    Insert: "insert",
    Replace: "replace",
    Delete: "delete",
    Define: "define",
    CreateIndex: "create_index",
    Begin: "begin",
    Commit: "commit",
    Abort: "abort",
}
_HEADER = frozenset(("lsn", "ts", "op"))
_MEMBERS: dict[str, frozenset[str]] = {
    "insert": frozenset(("ns", "id", "doc")),
    "replace": frozenset(("ns", "id", "doc")),
    "delete": frozenset(("ns", "id")),
    "define": frozenset(("ns", "spec")),
    "create_index": frozenset(("ns", "field")),
    "begin": frozenset(),
    "commit": frozenset(),
    "abort": frozenset(),
}


@dataclass(frozen=True, slots=True)
class Record:
    """One line of a log."""

    lsn: int
    ts: int
    op: Op
    txn: int | None = None

    def to_json(self) -> JsonObject:
        value: JsonObject = {"lsn": self.lsn, "ts": {_DATE: self.ts}, "op": TOKENS[type(self.op)]}
        if self.txn is not None:
            value["txn"] = self.txn
        op = self.op
        if isinstance(op, Insert | Replace):
            value |= {"ns": op.ns, "id": op.id, "doc": op.doc}
        elif isinstance(op, Delete):
            value |= {"ns": op.ns, "id": op.id}
        elif isinstance(op, Define):
            value |= {"ns": op.ns, "spec": op.spec}
        elif isinstance(op, CreateIndex):
            value |= {"ns": op.ns, "field": op.field}
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, JsonValue]) -> Record:
        """The record, or `Invalid` saying what is wrong with it."""
        token = value.get("op")
        build = _BUILD.get(token) if isinstance(token, str) else None
        if build is None:
            raise Invalid(f"unknown op {show(token)}" if "op" in value else "op is missing")
        _check_members(value, str(token))
        lsn = _natural(value["lsn"], "lsn")
        txn = _natural(value["txn"], "txn") if "txn" in value else None
        op = build(value)
        if txn is None and isinstance(op, Begin | Commit | Abort):
            raise Invalid(f"{token} does not name a txn")
        return cls(lsn, _milliseconds(value["ts"]), op, txn)


def record_of(frame: frames.Frame, key: str) -> Record:
    """The record of a frame; `Corrupt` with object, line and offset if it is not a record."""
    try:
        return Record.from_json(frame.value)
    except Invalid as error:
        raise frames.damage(f"is not a record: {error.message}", key, frame) from error


def _check_members(value: Mapping[str, JsonValue], token: str) -> None:
    needed = _HEADER | _MEMBERS[token]
    missing = needed.difference(value)
    if missing:
        raise Invalid(f"{token} lacks {', '.join(sorted(missing))}")
    unknown = set(value) - needed - {"txn"}
    if unknown:
        raise Invalid(f"{token} has unknown fields: {', '.join(sorted(unknown))}")


def _natural(value: JsonValue, what: str) -> int:
    if type(value) is not int or value < 0:
        raise Invalid(f"{what} must be a whole number from 0 up, not {show(value)}")
    return value


def _milliseconds(value: JsonValue) -> int:
    if isinstance(value, dict) and value.keys() == {_DATE}:
        value = value[_DATE]
    if type(value) is not int:
        raise Invalid(f"ts must be a time in milliseconds, not {show(value)}")
    return value


def _document(value: Mapping[str, JsonValue]) -> JsonObject:
    doc = value["doc"]
    if not isinstance(doc, dict):
        raise Invalid(f"doc must be an object, not {type_name(doc)}")
    if "_id" not in doc or not _same(doc["_id"], value["id"]):
        raise Invalid("id differs from the _id of doc")
    return doc


def _same(one: JsonValue, other: JsonValue) -> bool:
    kind = type(one)
    if kind is type(other) and (kind is str or kind is int):
        return one == other
    return dumps(one) == dumps(other)


def _spec(value: Mapping[str, JsonValue]) -> JsonObject:
    spec = value["spec"]
    if not isinstance(spec, dict):
        raise Invalid(f"spec must be an object, not {type_name(spec)}")
    return spec


def _ns(value: Mapping[str, JsonValue]) -> str:
    return check_name(value["ns"], "ns")


_BUILD: dict[str, Callable[[Mapping[str, JsonValue]], Op]] = {
    "insert": lambda value: Insert(_ns(value), value["id"], _document(value)),
    "replace": lambda value: Replace(_ns(value), value["id"], _document(value)),
    "delete": lambda value: Delete(_ns(value), value["id"]),
    "define": lambda value: Define(_ns(value), _spec(value)),
    "create_index": lambda value: CreateIndex(_ns(value), check_name(value["field"], "field")),
    "begin": lambda _: Begin(),
    "commit": lambda _: Commit(),
    "abort": lambda _: Abort(),
}


def id_order(id: JsonValue) -> tuple[int, object, bytes]:
    """The order of documents in a minimal log: null, false, true, numbers by value, strings by their UTF-8 bytes, then
    lists and objects by their canonical bytes. Numbers of equal value (1 and 1.0) are in the order of their bytes."""
    canonical = dumps(id)
    if id is None:
        return (0, 0, canonical)
    if isinstance(id, bool):
        return (1, id, canonical)
    if isinstance(id, int | float):
        return (2, id, canonical)
    if isinstance(id, str):
        return (3, id.encode(), canonical)
    return (4 if isinstance(id, list) else 5, canonical, canonical)
