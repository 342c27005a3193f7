"""What `worm space` needs besides `Space`: a transaction from a file, times of commits, and which blobs are unused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import cast

from worm.clock import Clock, SystemClock, iso_millis
from worm.errors import Invalid, show
from worm.formats import JsonObject, JsonValue, loads, type_name
from worm.spaces import blobs
from worm.spaces.blobs import History
from worm.spaces.operations import ConfirmedRead, PendingRead, Read
from worm.spaces.reading import seq_of
from worm.spaces.results import Committed
from worm.spaces.rows import TRUNK, moment_of
from worm.spaces.space import Space

MEMBERS = ("ops", "reads", "session")


class SpaceTools:
    """The tools of an open space."""

    def __init__(self, space: Space, *, clock: Clock | None = None) -> None:
        self._space, self._backend = space, space._backend
        self._clock = clock or SystemClock()

    def seq_at(self, moment: datetime) -> int:
        """The last commit at or before a time; 0 before the first one."""
        return seq_of(self._backend, moment, self._space.seq)

    def blobs(self) -> list[JsonObject]:
        """The stored blobs by hash."""
        return [
            {
                "hash": row.hash,
                "size": row.size,
                "contentType": row.content_type,
                "createdAt": iso_millis(moment_of(row.created_at)),
            }
            for row in self._backend.blobs()
        ]

    def collect_blobs(self, older_than: timedelta, history: History, *, dry_run: bool) -> tuple[list[str], list[str]]:
        """Remove blobs that nobody needs, like `Space.gc_blobs`. Returns their hashes, and those of interrupted uploads
        whose leftovers are removed. With `dry_run`, what would be removed."""
        now = self._clock.now()
        before = blobs.grace(now, older_than)
        left = [place.partition("/")[0] for place in blobs.stray(self._backend, now, before)]
        if dry_run:
            return list(blobs.unneeded(self._backend, before, history)), left
        return list(self._space.gc_blobs(older_than=older_than, history=history)), left


@dataclass(frozen=True, slots=True)
class SpaceTransaction:
    """The arguments of `Space.transact`, which checks the operations, names and numbers."""

    ops: list[Mapping[str, JsonValue]]
    reads: list[Read]
    session_id: str | None
    local_seq: int | None

    @classmethod
    def parse(cls, body: bytes) -> SpaceTransaction:
        """`{"ops": [OPERATION…], "reads": [READ…], "session": {"id", "localSeq"}}`; only `ops` is required. A read is
        `{"id", "seq"}` with or without `branch`, or `{"id", "localSeq"}` for an earlier write of the same session."""
        shape = _object(loads(body), "a transaction")
        unknown = sorted(shape.keys() - set(MEMBERS))
        if unknown or "ops" not in shape:
            what = f"has the unknown member {show(unknown[0])}" if unknown else "has no member 'ops'"
            raise Invalid(f"the transaction {what}", hint=f"its members are {', '.join(MEMBERS)}")
        ops = [_object(op, f"ops[{at}]") for at, op in enumerate(_array(shape["ops"], "ops"))]
        reads = [_read(read, f"reads[{at}]") for at, read in enumerate(_array(shape.get("reads", []), "reads"))]
        session_id, local_seq = _session(shape["session"]) if "session" in shape else (None, None)
        return cls([*ops], reads, session_id, local_seq)

    def commit(self, space: Space, branch: str = TRUNK) -> Committed:
        return space.transact(
            self.ops, session_id=self.session_id, local_seq=self.local_seq, branch=branch, reads=self.reads
        )


def _session(value: JsonValue) -> tuple[str, int]:
    shape = _object(value, "session")
    if shape.keys() != {"id", "localSeq"}:
        raise Invalid("a session needs the members id and localSeq", path="session")
    # `Space.transact` checks their types.
    return cast(str, shape["id"]), cast(int, shape["localSeq"])


def _read(value: JsonValue, place: str) -> Read:
    shape = _object(value, place)
    if shape.keys() == {"id", "localSeq"}:
        return PendingRead(cast(str, shape["id"]), cast(int, shape["localSeq"]))
    if shape.keys() in ({"id", "seq"}, {"id", "seq", "branch"}):
        return ConfirmedRead(cast(str, shape["id"]), cast(int, shape["seq"]), cast("str | None", shape.get("branch")))
    raise Invalid("a read needs the members id, seq and optionally branch; or id and localSeq", path=place)


def _object(value: JsonValue, what: str) -> JsonObject:
    if not isinstance(value, dict):
        raise Invalid(f"{what} must be an object, not {type_name(value)}")
    return value


def _array(value: JsonValue, what: str) -> list[JsonValue]:
    if not isinstance(value, list):
        raise Invalid(f"{what} must be an array, not {type_name(value)}")
    return value
