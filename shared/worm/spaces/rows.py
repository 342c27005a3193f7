"""The rows that a backend keeps, and one commit with all its rows.

Tuples, for a transaction makes several of them. JSON is canonical text here: whoever keeps rows never parses it.
Times are text that sorts (`2026-02-24 12:00:00.000`, UTC) and never fall along the order of commits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import NamedTuple

from worm.errors import Corrupt

ACTIVE = "active"
DELETED = "deleted"
MAIN = ""
"""The name of the branch that is always there."""

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
    """`data`: the document of a `set`, the list of a `patch`, None of a `delete`."""

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
    """`parent_branch` and `fork_seq` are None for the branch that is always there."""

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
    """One commit and all its rows, which are of the commit's branch. It counts whole or not at all, and only right
    behind commit `commit.seq - 1`."""

    commit: CommitRow
    branch: BranchRow
    revisions: Sequence[RevisionRow] = ()
    snapshots: Sequence[SnapshotRow] = ()
    heads: dict[str, Pointer] = field(default_factory=dict)


def time_text(moment: datetime) -> str:
    """A time as rows have it, in whole milliseconds."""
    return moment.astimezone(UTC).isoformat(" ", "milliseconds")[: -len("+00:00")]


def moment_of(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC)
    except ValueError as error:
        raise Corrupt(f"{text!r} is not a time") from error
