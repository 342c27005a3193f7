"""One object of the commit log: framed lines (`formats/frames.py`), the first of which identifies the segment.

    {"epoch":3,"lsn":17,"op":"segment","records":2,"slot":5,"ts":{"$date":1767225600000},"writer":"01JG…"}
    {"lsn":18,"op":"insert",…,"txn":"01JH…"}
    {"lsn":19,"op":"insert",…,"txn":"01JH…"}

Every line has an *lsn*, including the header; over the whole log, they count up by one. The lines of one transaction
are adjacent, and a segment is one PutObject: so the log has all of a transaction or nothing. A *fence* is a segment
with only a header; a new writer uses it to shut out the old one. A *void* replaces a segment that was damaged and
repaired on request. Nobody knows how many LSNs that segment had used. So anything after a void only has to be higher,
and a new writer skips as many LSNs as there may have been (`skip`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal, NamedTuple

import orjson

from worm.errors import Corrupt, Invalid, show
from worm.formats import JsonObject, JsonValue, dumps, frames, type_name
from worm.log.common import check_name
from worm.log.hints import VERIFY

Kind = Literal["data", "fence", "void"]
RESERVED = frozenset(("lsn", "txn"))
HEADER = "segment"
FRAME_ROOM = 64
"""The bytes of a line without its record and its transaction's id: names, lsn, CRC."""


class LogTransaction:
    """Records that are committed together. The caller chooses the id: a retry after an unknown outcome is recognized by
    it.

    It has its own copy of the records. Records that cannot be written are `Invalid` here, before they can hold up
    others. `size` is an upper estimate of its bytes in a segment."""

    __slots__ = ("id", "records", "size")

    def __init__(self, id: str, records: Iterable[JsonObject]) -> None:
        given: object = records
        if not isinstance(given, Iterable):
            raise Invalid(f"the records of a transaction must be a list, not {type_name(given)}")
        bodies = [dumps(_checked(record)) for record in given]
        if not bodies:
            raise Invalid("a transaction needs at least one record")
        self.id = check_name(id, "the id of a transaction")
        self.records: Sequence[JsonObject] = tuple(orjson.loads(body) for body in bodies)
        self.size = sum(map(len, bodies)) + len(bodies) * (len(orjson.dumps(id)) + FRAME_ROOM)


def _checked(record: object) -> JsonObject:
    if not isinstance(record, dict):
        raise Invalid(f"a record must be a JSON object, not {type_name(record)}")
    taken = RESERVED & record.keys()
    if taken or record.get("op") == HEADER:
        what = f"{show(min(taken))}" if taken else f"the op {show(HEADER)}"
        raise Invalid(f"a record must not have {what}: it is reserved for the log")
    return record


class Entry(NamedTuple):
    """One record of the log."""

    lsn: int
    txn: str
    record: JsonObject


@dataclass(frozen=True, slots=True)
class Segment:
    """The content of one slot. `ts` is milliseconds since 1970, for people; `skip` is the number of LSNs that a void
    skips."""

    slot: int
    epoch: int
    writer: str
    lsn: int
    ts: int
    kind: Kind = "data"
    entries: Sequence[Entry] = ()
    skip: int = 0

    @property
    def end_lsn(self) -> int:
        """The last LSN that it is known to have."""
        return self.entries[-1].lsn if self.entries else self.lsn

    @property
    def last_lsn(self) -> int:
        """The last LSN that is taken: a new writer begins after it."""
        return self.end_lsn + self.skip

    def transactions(self) -> Iterator[LogTransaction]:
        for txn, entries in groupby(self.entries, key=lambda entry: entry.txn):
            yield LogTransaction(txn, [entry.record for entry in entries])

    @classmethod
    def of(cls, header: Segment, transactions: Sequence[LogTransaction]) -> Segment:
        """The header with these transactions after it."""
        records = [(one.id, record) for one in transactions for record in one.records]
        entries = [Entry(lsn, txn, record) for lsn, (txn, record) in enumerate(records, start=header.lsn + 1)]
        return cls(header.slot, header.epoch, header.writer, header.lsn, header.ts, "data", entries)

    def encode(self) -> bytes:
        if (self.kind == "data") != bool(self.entries):
            raise Invalid(f"a segment of kind {self.kind} with {len(self.entries)} records")
        header: JsonObject = {
            "lsn": self.lsn,
            "ts": {"$date": self.ts},
            "op": HEADER,
            "slot": self.slot,
            "epoch": self.epoch,
            "writer": self.writer,
        }
        if self.kind == "data":
            header["records"] = len(self.entries)
        else:
            header[self.kind] = True
        if self.skip:
            header["skip"] = self.skip
        lines = [frames.encode_parsed({"lsn": entry.lsn, "txn": entry.txn, **entry.record}) for entry in self.entries]
        return b"".join((frames.encode(header), *lines))

    @classmethod
    def decode(cls, body: bytes, slot: int, key: str) -> Segment:
        """`Corrupt`, with line and offset where there is one, unless it is a complete segment of this slot."""
        lines = frames.decode_whole(body, key=key)
        if not lines or lines[0].value.get("op") != HEADER:
            raise Corrupt("is not a segment of a commit log: its first line is not a header", key=key, hint=VERIFY)
        header = lines[0].value
        first = _number(header, "lsn", key)
        if _number(header, "slot", key) != slot:
            raise Corrupt(f"is the segment of slot {header['slot']}, but its name says {slot}", key=key, hint=VERIFY)
        entries: list[Entry] = []
        for expected, line in enumerate(lines[1:], start=first + 1):
            record = dict(line.value)
            lsn, txn = record.pop("lsn", None), record.pop("txn", None)
            if type(lsn) is not int or lsn != expected or not isinstance(txn, str):
                what = f"has lsn {show(lsn)} instead of {expected}" if lsn != expected else f"has txn {show(txn)}"
                raise Corrupt(f"line {line.line} (byte {line.offset}) {what}", key=key, hint=VERIFY)
            entries.append(Entry(lsn, txn, record))
        kind: Kind = "fence" if header.get("fence") is True else "void" if header.get("void") is True else "data"
        said = _number(header, "records", key) if kind == "data" else 0
        if len(entries) != said or (kind == "data") != bool(entries):
            what = f"is a segment of kind {kind} with {len(entries)} records, but its header says {said}"
            raise Corrupt(what, key=key, hint=VERIFY)
        epoch, writer, ts = _number(header, "epoch", key), str(header.get("writer", "")), _time(header.get("ts"))
        skip = _number(header, "skip", key) if "skip" in header else 0
        return cls(slot, epoch, writer, first, ts, kind, entries, skip)

    def follows(self, before: Segment, key: str) -> None:
        """`Corrupt` unless this segment comes right after the other."""
        due = before.end_lsn + 1
        if self.slot != before.slot + 1 or self.epoch < before.epoch:
            raise Corrupt(
                f"epoch {self.epoch} in slot {self.slot} follows epoch {before.epoch} in slot {before.slot}", key=key
            )
        if self.lsn != due and not (before.kind == "void" and self.lsn > due):
            raise Corrupt(f"begins with lsn {self.lsn} instead of {due}", key=key, hint=VERIFY)


def _number(header: JsonObject, name: str, key: str) -> int:
    value = header.get(name)
    if type(value) is not int or value < 0:
        raise Corrupt(f"line 1 (byte 0) has {name} {show(value)}, which must be a number", key=key, hint=VERIFY)
    return value


def _time(value: JsonValue) -> int:
    found = value.get("$date") if isinstance(value, dict) else value
    return found if type(found) is int else 0
