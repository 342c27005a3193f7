"""The rows that a backend stores, a commit with all its rows, and the names in rows.

Rows are tuples, because a transaction makes several of them. JSON is canonical text here: a backend never parses it.
Times are text that sorts (`2026-02-24 12:00:00.000`, UTC) and never decrease in the order of commits.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import NamedTuple

from worm.errors import Corrupt, Invalid, show
from worm.formats import type_name

ACTIVE = "active"
DELETED = "deleted"
MAIN = ""
"""The branch that always exists, as rows name it. Callers use `TRUNK`; the empty name means the same."""
TRUNK = "main"

SET = "set"
PATCH = "patch"
DELETE = "delete"


class Newest(NamedTuple):
    """Where the order of commits ends; seq 0 in a space without one."""

    seq: int
    created_at: str


class Pointer(NamedTuple):
    """A revision of an entity: the commit, and the operation in it."""

    seq: int
    op_index: int


class CommitRow(NamedTuple):
    seq: int
    branch: str
    session_id: str
    local_seq: int
    original: str
    resolution: str
    created_at: str


class RevisionRow(NamedTuple):
    """`data`: the document of a `set`, the list of a `patch`, None for a `delete`."""

    id: str
    seq: int
    op_index: int
    op: str
    data: str | None


class SnapshotRow(NamedTuple):
    """The document after all operations of commit `seq`."""

    branch: str
    id: str
    seq: int
    value: str


class BranchRow(NamedTuple):
    """`parent_branch` and `fork_seq` are None for the main branch."""

    name: str
    parent_branch: str | None
    fork_seq: int | None
    created_seq: int
    head_seq: int
    created_at: str
    status: str


class BlobRow(NamedTuple):
    hash: str
    content_type: str | None
    size: int
    created_at: str


@dataclass(frozen=True, slots=True)
class Batch:
    """One commit and all its rows, which belong to the commit's branch. It is written completely or not at all, and
    only right after commit `commit.seq - 1`. `is_undelete`: its branch was deleted, and becomes active again."""

    commit: CommitRow
    branch: BranchRow
    revisions: Sequence[RevisionRow] = ()
    snapshots: Sequence[SnapshotRow] = ()
    heads: dict[str, Pointer] = field(default_factory=dict)
    is_undelete: bool = False


def time_text(moment: datetime) -> str:
    """A time as rows have it, in whole milliseconds."""
    return moment.astimezone(UTC).isoformat(" ", "milliseconds")[: -len("+00:00")]


def moment_of(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC)
    except ValueError as error:
        raise Corrupt(f"{show(text)} is not a time") from error


ID_BYTES_MAX = 512
NAME_BYTES_MAX = 200
SEQ_MAX = 2**63 - 1
BLOB_META = "urn:blob-meta:"

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_HASH = re.compile(r"[0-9a-f]{64}")


def check_id(id: object, path: str | None = None) -> str:
    return _text(id, "an id", ID_BYTES_MAX, path)


def check_branch(name: object) -> str:
    """The branch as rows name it."""
    return MAIN if name in (MAIN, TRUNK) else _text(name, "the name of a branch", NAME_BYTES_MAX, None)


def check_session(session_id: object) -> str:
    return _text(session_id, "session_id", NAME_BYTES_MAX, None)


def check_seq(seq: object, what: str, path: str | None = None) -> int:
    if type(seq) is not int or not 0 <= seq <= SEQ_MAX:
        raise Invalid(f"{what} must be an integer from 0 to 2^63-1, not {show(seq)}", path=path)
    return seq


def check_flag(value: object, what: str) -> bool:
    if type(value) is not bool:
        raise Invalid(f"{what} must be true or false, not {show(value)}")
    return value


def check_list(values: object, what: str) -> Collection[object]:
    """Refuses a single string: its characters are not what the caller meant."""
    if isinstance(values, Collection) and not isinstance(values, str | bytes | Mapping):
        return values
    raise Invalid(f"{what} must be a list, not {type_name(values)}")


def check_ids(ids: object, what: str = "ids") -> Sequence[str]:
    return [check_id(one, f"{what}[{at}]") for at, one in enumerate(check_list(ids, what))]


def check_hash(hash: object) -> str:
    if not isinstance(hash, str) or not _HASH.fullmatch(hash):
        raise Invalid(
            f"{show(hash)} is not the hash of a blob", hint="use 64 lowercase hex digits, the SHA-256 of its bytes"
        )
    return hash


def blob_meta_id(hash: str) -> str:
    """The entity with the metadata of a blob."""
    return f"{BLOB_META}{check_hash(hash)}"


def branch_name(name: str) -> str:
    """A branch as callers see it."""
    return name or TRUNK


def branch_title(name: str) -> str:
    """A branch in messages."""
    return f"branch {branch_name(name)!r}"


def _text(value: object, what: str, bytes_max: int, path: str | None) -> str:
    if not isinstance(value, str):
        raise Invalid(f"{what} must be a string, not {type_name(value)}", path=path)
    try:
        size = len(value) if value.isascii() else len(value.encode())
    except UnicodeEncodeError as error:
        raise Invalid(f"{what} {show(value)} contains a lone surrogate", path=path) from error
    if not 1 <= size <= bytes_max or _CONTROL.search(value):
        raise Invalid(
            f"{what} must have 1 to {bytes_max} bytes and no control characters, not {show(value)}", path=path
        )
    return value
