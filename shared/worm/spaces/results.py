"""What callers get: commits, entities as of a seq, branches; and the conflicts that refuse a transaction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

import orjson

from worm.clock import iso_millis
from worm.errors import Conflict, Corrupt, Hint, show
from worm.formats import JsonObject, JsonValue, loads_own
from worm.spaces.operations import ConfirmedRead
from worm.spaces.rows import ACTIVE, BranchRow, CommitRow, branch_name, branch_title, moment_of


def nothing_resolved(seq: int) -> str:
    """The resolution of a commit without pending reads: canonical JSON."""
    return f'{{"resolvedPendingReads":[],"seq":{seq}}}'


class Presence(StrEnum):
    """Whether an entity exists on a branch at a seq."""

    PRESENT = "present"
    DELETED = "deleted"
    EMPTY = "empty"
    """Not written yet at that seq, but later."""
    NEVER = "never"
    """Never written there."""


@dataclass(frozen=True, slots=True)
class Entity:
    """An entity on `branch` as of commit `at`. `seq` is the commit of its last revision by then, 0 without one."""

    id: str
    branch: str
    at: int
    presence: Presence
    seq: int
    value: JsonObject | None

    @property
    def exists(self) -> bool:
        return self.presence is Presence.PRESENT

    @property
    def value_or_reason(self) -> JsonObject | str:
        """The document, or why it is missing, for a table."""
        return f"({self.presence.value})" if self.value is None else self.value

    def shape(self) -> JsonObject:
        """The entity as JSON."""
        return {
            "id": self.id,
            "branch": self.branch,
            "at": self.at,
            "presence": self.presence.value,
            "seq": self.seq,
            "value": self.value,
        }

    def as_read(self) -> ConfirmedRead:
        """The read to pass to a transaction that depends on this state."""
        return ConfirmedRead(self.id, self.at, self.branch)


@dataclass(frozen=True, slots=True)
class Committed:
    """`is_repeat`: it was already committed under the same session and number; nothing was written now."""

    seq: int
    branch: str
    session_id: str
    local_seq: int
    resolved_pending_reads: tuple[tuple[int, int], ...]
    created_at: datetime
    is_repeat: bool = False

    @classmethod
    def of(cls, row: CommitRow, *, is_repeat: bool = False) -> Committed:
        moment = moment_of(row.created_at)
        if row.resolution == nothing_resolved(row.seq):  # as most are
            return cls(row.seq, branch_name(row.branch), row.session_id, row.local_seq, (), moment, is_repeat)
        resolution = loads_own(row.resolution.encode(), f"commit {row.seq}")
        resolved = resolution.get("resolvedPendingReads")
        pairs: list[tuple[int, int]] = []
        for one in resolved if isinstance(resolved, list) else []:
            if not isinstance(one, dict):
                raise Corrupt("the resolution of a commit is damaged", key=f"commit {row.seq}")
            local, seq = one.get("localSeq"), one.get("seq")
            if not isinstance(local, int) or not isinstance(seq, int):
                raise Corrupt("the resolution of a commit is damaged", key=f"commit {row.seq}")
            pairs.append((local, seq))
        branch = branch_name(row.branch)
        return cls(row.seq, branch, row.session_id, row.local_seq, tuple(pairs), moment, is_repeat)

    def shape(self) -> JsonObject:
        """The commit as JSON."""
        pending: list[JsonValue] = [{"localSeq": local, "seq": seq} for local, seq in self.resolved_pending_reads]
        return {
            "seq": self.seq,
            "branch": self.branch,
            "sessionId": self.session_id,
            "localSeq": self.local_seq,
            "resolvedPendingReads": pending,
            "createdAt": iso_millis(self.created_at),
            "isRepeat": self.is_repeat,
        }


@dataclass(frozen=True, slots=True)
class LogEntry:
    """A commit with its record: what its author requested, and what was decided."""

    seq: int
    branch: str
    session_id: str
    local_seq: int
    original: JsonObject
    resolution: JsonObject
    created_at: datetime

    @classmethod
    def of(cls, row: CommitRow) -> LogEntry:
        key = f"commit {row.seq}"
        original, resolution = loads_own(row.original.encode(), key), loads_own(row.resolution.encode(), key)
        moment = moment_of(row.created_at)
        branch = branch_name(row.branch)
        return cls(row.seq, branch, row.session_id, row.local_seq, original, resolution, moment)

    @property
    def summary(self) -> str:
        """The commit in one line: `set a, delete b`, or the command that created or deleted a branch."""
        operations = self.original.get("operations")
        if not isinstance(operations, list):
            return str(self.original.get("cmd", ""))
        return ", ".join(f"{one.get('op')} {one.get('id')}" for one in operations if isinstance(one, dict))

    def shape(self) -> JsonObject:
        """The commit as JSON."""
        return {
            "seq": self.seq,
            "createdAt": iso_millis(self.created_at),
            "branch": self.branch,
            "sessionId": self.session_id,
            "localSeq": self.local_seq,
            "original": self.original,
            "resolution": self.resolution,
        }


@dataclass(frozen=True, slots=True)
class Branch:
    """`head_seq`: the newest change of an entity on it, or its creation."""

    name: str
    parent: str | None
    fork_seq: int | None
    created_seq: int
    head_seq: int
    is_active: bool

    @classmethod
    def of(cls, row: BranchRow) -> Branch:
        name, parent = branch_name(row.name), row.parent_branch
        parent = None if parent is None else branch_name(parent)
        return cls(name, parent, row.fork_seq, row.created_seq, row.head_seq, row.status == ACTIVE)


@dataclass(frozen=True, slots=True)
class Maintained:
    """The number of snapshots made, and what was done to the store, by name."""

    snapshots: int
    store: dict[str, int]


@dataclass(frozen=True, slots=True)
class SpaceStat:
    """`entities` counts those ever written on the main branch; `store` has numbers about the underlying store."""

    seq: int
    last_commit: datetime | None
    branches: int
    deleted_branches: int
    entities: int
    blobs: int
    blob_bytes: int
    store: dict[str, int]


@dataclass(frozen=True, slots=True)
class StaleRead:
    """`found` is the commit that changed the entity since; None if the transaction that was read from was not
    committed."""

    id: str
    branch: str
    read: int
    found: int | None
    is_pending: bool = False


@dataclass(frozen=True, slots=True)
class BothChanged:
    """An entity that two branches changed differently since they were last equal. `fields`: with a policy that combines
    fields, the paths of those that both changed."""

    id: str
    base: Entity
    ours: Entity
    theirs: Entity
    fields: tuple[str, ...] = ()


class ReadConflict(Conflict):
    """What the author read has changed; nothing was written. `stale` lists every such read."""

    def __init__(self, stale: Sequence[StaleRead]) -> None:
        first = stale[0]
        if first.found is None:
            what = f"{show(first.id)} was read from transaction {first.read} of this session, which was not committed"
        else:
            since = "its own transaction" if first.is_pending else "the read"
            what = f"{show(first.id)} on {branch_title(first.branch)} was changed by commit {first.found} after {since}"
        more = f" (and {len(stale) - 1} more)" if len(stale) > 1 else ""
        found = None if first.found is None else str(first.found)
        super().__init__(what + more, expected=str(first.read), found=found, hint="read again, then decide again")
        self.stale = tuple(stale)


class BranchMoved(Conflict):
    """Something was committed to the branch since it was read; nothing was written."""

    def __init__(self, branch: str, seen: int, head: int) -> None:
        what = f"commit {head} changed {branch_title(branch)} after commit {seen}"
        super().__init__(what, expected=str(seen), found=str(head), hint="read again, then decide again")


class PatchConflict(Conflict):
    """A patch does not fit the current document; nothing was written."""

    def __init__(self, id: str, op_index: int, reason: str) -> None:
        super().__init__(
            f"operation {op_index} on {show(id)}: {reason}", hint="read the document, then patch its current content"
        )
        self.id = id
        self.op_index = op_index


class MergeConflict(Conflict):
    """Both branches changed the same entities, and the policy refuses that; nothing was written.

    Examples:
        >>> db.create_branch("draft")
        >>> _ = db.branch("draft").model("Note").patch("n1", {"text": "theirs"})
        >>> _ = db.model("Note").patch("n1", {"text": "ours"})
        >>> try:
        ...     db.merge("draft")
        ... except worm.MergeConflict:
        ...     _ = db.merge("draft", policy="ours")
        >>> db.model("Note").get("n1")["text"]
        'ours'
    """

    def __init__(self, conflicts: Sequence[BothChanged]) -> None:
        names = ", ".join(_conflict(one) for one in conflicts[:3])
        more = f" and {len(conflicts) - 3} more" if len(conflicts) > 3 else ""
        named = "merge with a policy: `fields`, `ours`, `theirs`, `fields-ours`, `fields-theirs`"
        hint = Hint(f"{named}, or a function", f"{named}, or a function", named)
        super().__init__(f"both branches changed {names}{more}", hint=hint)
        self.conflicts = tuple(conflicts)


def _conflict(one: BothChanged) -> str:
    return f"{one.id!r} ({', '.join(one.fields[:3])})" if one.fields else repr(one.id)


def parsed_document(body: bytes | str, key: str) -> JsonObject:
    """A document that was written by this library."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise Corrupt(f"not valid JSON: {error}", key=key) from error
    if not isinstance(value, dict):
        raise Corrupt("a document must be an object", key=key)
    return value
