"""Committing: everything between reading the head of a space and writing one batch after it.

In one turn: a repeated transaction is recognized, reads are compared with the heads, patches are applied, and commit,
revisions, heads, due snapshots and the branch are written together. Anything that can be refused without reading is
refused before the turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from worm.clock import Clock
from worm.errors import Invalid, NotFound, show
from worm.formats import JsonObject, JsonValue, dumps, loads_own, same
from worm.spaces.backend import Backend, Reads, Turn
from worm.spaces.json_patch import Misfit, apply_patches
from worm.spaces.operations import (
    ConfirmedRead,
    Operation,
    PendingRead,
    Read,
    SpaceConfig,
    check_operations,
    check_reads,
    check_size,
    client_commit,
)
from worm.spaces.reading import StateCache
from worm.spaces.replay import UNKNOWN, EntityState, Line, active_branch, branch_row, line_of, load, visible_heads
from worm.spaces.results import (
    BranchMoved,
    Committed,
    PatchConflict,
    ReadConflict,
    StaleRead,
    nothing_resolved,
    parsed_document,
)
from worm.spaces.rows import (
    ACTIVE,
    DELETE,
    PATCH,
    Batch,
    BranchRow,
    CommitRow,
    Newest,
    Pointer,
    RevisionRow,
    SnapshotRow,
    branch_name,
    branch_title,
    check_branch,
    check_seq,
    check_session,
    time_text,
)


@dataclass(frozen=True, slots=True)
class Author:
    """Who commits, and under which number: the name of a transaction."""

    session_id: str
    local_seq: int

    @classmethod
    def checked(cls, session_id: object, local_seq: object) -> Author:
        return cls(check_session(session_id), check_seq(local_seq, "local_seq"))


@dataclass(frozen=True, slots=True)
class TransactionRequest:
    """A checked transaction. `original` is its record."""

    author: Author
    branch: str
    operations: Sequence[Operation]
    reads: Sequence[Read]
    original: str

    @classmethod
    def checked(
        cls,
        author: Author,
        branch: str,
        ops: Sequence[Mapping[str, JsonValue]],
        reads: Sequence[object],
        config: SpaceConfig,
        extra: JsonObject | None = None,
    ) -> TransactionRequest:
        branch = check_branch(branch)
        operations = check_operations(ops, config)
        seen = check_reads(reads, author.local_seq, config)
        original = client_commit(operations, seen, author.local_seq, extra)
        check_bytes(original, config)
        return cls(author, branch, operations, seen, original)


@dataclass(slots=True)
class _Working:
    """An entity in the course of a transaction; `document` is parsed when a patch needs it."""

    body: bytes | None
    document: JsonObject | None
    patches: int
    depth: int

    def patch(self, op: Operation, op_index: int) -> None:
        if self.document is None:
            self.document = {} if self.body is None else parsed_document(self.body, op.id)
        try:
            self.document = apply_patches(self.document, op.patches or [])
        except Misfit as error:
            raise PatchConflict(op.id, op_index, str(error)) from error
        self.patches += 1

    def replace(self, body: bytes | None) -> None:
        self.body, self.document, self.patches = body, None, 0

    def finished(self) -> bytes | None:
        """The document after all operations, as text."""
        if self.document is not None:
            self.body, self.document = dumps(self.document), None
        return self.body


class Decided(NamedTuple):
    """A commit, and the resulting entities; empty if the commit already existed."""

    row: CommitRow
    states: dict[str, EntityState]


class Committer:
    """Writes commits of one space."""

    def __init__(self, backend: Backend, config: SpaceConfig, clock: Clock, cache: StateCache) -> None:
        self.backend = backend
        self.config = config
        self._clock = clock
        self._cache = cache

    def commit(
        self, request: TransactionRequest, *, needs_blob: str | None = None, unchanged: int | None = None
    ) -> Committed:
        """Commit in its own turn. `NotFound` if its payload was collected in the meantime; `BranchMoved` if the branch
        has a commit after `unchanged`."""
        with self.backend.turn() as turn:
            decided = self.decide(turn, request, needs_blob=needs_blob, unchanged=unchanged)
        return self.finish(decided)

    def decide(
        self,
        turn: Turn,
        request: TransactionRequest,
        *,
        needs_blob: str | None = None,
        unchanged: int | None = None,
    ) -> Decided:
        """Write it, unless it was already written."""
        earlier = earlier_commit(turn, request)
        if earlier is not None:
            return Decided(earlier, {})
        if needs_blob is not None and turn.blob(needs_blob) is None:
            raise NotFound(f"there is no blob {needs_blob}")
        check_still(turn, request.branch, unchanged)
        return Decided(*self.write(turn, request))

    def finish(self, decided: Decided) -> Committed:
        """Called after the turn ended without an error."""
        if decided.states:
            self.remember(decided.row.seq, decided.states)
        return Committed.of(decided.row, is_repeat=not decided.states)

    def remember(self, seq: int, states: Mapping[str, EntityState]) -> None:
        """Remember what a commit wrote, after the turn ended without an error."""
        self._cache.put_commit(seq, states)

    def write(self, turn: Turn, request: TransactionRequest) -> tuple[CommitRow, dict[str, EntityState]]:
        """Decide and write; the states must be remembered once the turn is over."""
        newest = turn.newest()
        branch = active_branch(turn, request.branch)
        line = line_of(turn, request.branch, newest.seq)
        resolved = self._check_reads(turn, request, line, newest)
        seq = newest.seq + 1
        work = self._apply(turn, request, line)
        revisions, heads = [], {}
        for op_index, op in enumerate(request.operations):
            revisions.append(RevisionRow(op.id, seq, op_index, op.op, op.data))
            heads[op.id] = Pointer(seq, op_index)
        snapshots, states = self._finish(request.branch, work, heads)
        commit = self.record(newest, request.branch, request.author, request.original, resolved)
        branch = branch._replace(head_seq=seq, created_at=branch.created_at or commit.created_at)
        turn.write(Batch(commit, branch, revisions, snapshots, heads))
        return commit, states

    def write_branch(self, turn: Turn, author: Author, branch: BranchRow, original: JsonObject) -> CommitRow:
        """The commit of a branch's creation, end or return: it has no revisions."""
        newest = turn.newest()
        commit = self.record(newest, branch.name, author, dumps(original).decode(), [])
        created_at = branch.created_at or commit.created_at
        is_undelete = branch.status == ACTIVE and branch.created_seq != commit.seq
        turn.write(Batch(commit, branch._replace(created_at=created_at), is_undelete=is_undelete))
        return commit

    def record(
        self, newest: Newest, branch: str, author: Author, original: str, resolved: Sequence[tuple[int, int]]
    ) -> CommitRow:
        """Times never decrease in the order of commits, whatever the clock does: so "as of a time" has one answer."""
        seq = newest.seq + 1
        resolution = nothing_resolved(seq)
        if resolved:
            pairs: list[JsonValue] = [{"localSeq": local, "seq": at} for local, at in resolved]
            resolution = dumps({"seq": seq, "resolvedPendingReads": pairs}).decode()
        created_at = max(time_text(self._clock.now()), newest.created_at)
        return CommitRow(seq, branch, author.session_id, author.local_seq, original, resolution, created_at)

    def _apply(self, turn: Turn, request: TransactionRequest, line: Line) -> dict[str, _Working]:
        """Apply all operations in order, on copies."""
        firsts: dict[str, str] = {}
        for op in request.operations:
            firsts.setdefault(op.id, op.op)
        work = self._begin(turn, line, firsts)
        for op_index, op in enumerate(request.operations):
            working = work[op.id]
            working.depth += 1
            if op.op == PATCH:
                working.patch(op, op_index)
            else:
                working.replace(None if op.op == DELETE else (op.data or "").encode())
        return work

    def _begin(self, turn: Turn, line: Line, firsts: Mapping[str, str]) -> dict[str, _Working]:
        """The state before the first operation on each entity: documents are only read if they are patched. Heads are
        only read if others may have written."""
        branch, upto = line[0]
        states: dict[str, EntityState | None] = {**self._cache.current(branch, firsts, upto)}
        if doubtful := [entity for entity in firsts if entity not in states]:
            states |= self._cache.get_all(branch, turn.heads(branch, doubtful, upto))
        unread = [entity for entity, op in firsts.items() if op == PATCH and states.get(entity) is None]
        if len(line) == 1:  # nothing is inherited
            unread = [entity for entity in unread if entity in states]
        loaded = load(turn, line, unread, self._cache.get) if unread else {}
        uncounted = [entity for entity, state in states.items() if state is None or state.depth == UNKNOWN]
        depths = turn.depths(branch, uncounted) if uncounted else {}
        return {
            entity: _working(states.get(entity) or loaded.get(entity), depths.get(entity), entity in states)
            for entity in firsts
        }

    def _finish(
        self, branch: str, work: Mapping[str, _Working], heads: Mapping[str, Pointer]
    ) -> tuple[list[SnapshotRow], dict[str, EntityState]]:
        """Check sizes, and snapshot entities whose replay became long."""
        snapshots, states = [], {}
        for entity, working in work.items():
            is_patched = working.document is not None
            body = working.finished()
            if is_patched and body is not None:
                check_size(body, entity, self.config)
            state = EntityState(branch, heads[entity], body, working.patches, working.depth)
            if body is not None and self._is_due(state):
                snapshots.append(SnapshotRow(branch, entity, heads[entity].seq, body.decode()))
                state = state._replace(patches=0, depth=0)
            states[entity] = state
        return snapshots, states

    def _is_due(self, state: EntityState) -> bool:
        return state.depth >= self.config.snapshot_every or state.patches > self.config.replay_depth_max

    def _check_reads(
        self, turn: Turn, request: TransactionRequest, line: Line, newest: Newest
    ) -> list[tuple[int, int]]:
        """The pending reads with their commits; `ReadConflict` naming every stale one."""
        if not request.reads:
            return []
        resolved = self._resolve(turn, request)
        wanted: dict[str, list[str]] = {}
        for read in request.reads:
            wanted.setdefault(_branch_of(read, request.branch), []).append(read.id)
        heads = {
            branch: visible_heads(
                turn, line if branch == request.branch else line_of(turn, branch, newest.seq), list(dict.fromkeys(ids))
            )
            for branch, ids in wanted.items()
        }
        stale = []
        for read in request.reads:
            branch = _branch_of(read, request.branch)
            found = heads[branch].get(read.id, Pointer(0, 0)).seq
            if isinstance(read, PendingRead):
                stale += _stale_pending(read, branch, resolved[read.local_seq], found)
            elif read.seq > newest.seq:
                raise Invalid(f"{show(read.id)} was read at seq {read.seq}, but the newest commit is {newest.seq}")
            elif found > read.seq:
                stale.append(StaleRead(read.id, branch_name(branch), read.seq, found))
        if stale:
            raise ReadConflict(stale)
        return [(local, seq) for local, seq in sorted(resolved.items()) if seq is not None]

    def _resolve(self, turn: Turn, request: TransactionRequest) -> dict[int, int | None]:
        """The commits of the session's own transactions that were read from."""
        resolved: dict[int, int | None] = {}
        for read in request.reads:
            if isinstance(read, PendingRead) and read.local_seq not in resolved:
                row = turn.commit_of(request.author.session_id, read.local_seq)
                resolved[read.local_seq] = None if row is None else row.seq
        return resolved


def check_still(turn: Turn, branch: str, unchanged: int | None) -> None:
    """`BranchMoved` if the branch has a commit after this one."""
    head = 0 if unchanged is None else branch_row(turn, branch).head_seq
    if unchanged is not None and head > unchanged:
        raise BranchMoved(branch, unchanged, head)


def check_bytes(original: str, config: SpaceConfig) -> None:
    size = len(original) if original.isascii() else len(original.encode())
    if size > config.commit_bytes_max:
        raise Invalid(
            f"the transaction has {size} bytes; the limit is {config.commit_bytes_max}",
            hint="split it, or raise `commit_bytes_max`",
        )


def repeated(reads: Reads, author: Author, branch: str) -> CommitRow | None:
    """The commit that already has this author's number."""
    row = reads.commit_of(author.session_id, author.local_seq)
    if row is not None and row.branch != branch:
        raise used_twice(author)
    return row


def earlier_commit(reads: Reads, request: TransactionRequest) -> CommitRow | None:
    """The commit that this transaction has already made. What its author has read does not matter: after a crash, it
    may have read again, and wants the same."""
    row = repeated(reads, request.author, request.branch)
    if row is None or row.original == request.original:
        return row
    one, other = (loads_own(text.encode(), f"commit {row.seq}") for text in (row.original, request.original))
    if not same({**one, "reads": None}, {**other, "reads": None}):
        raise used_twice(request.author)
    return row


def used_twice(author: Author) -> Invalid:
    return Invalid(
        f"session {show(author.session_id)} already used local_seq {author.local_seq} for another transaction",
        hint="repeat the same transaction, or give the new one a new number",
    )


def same_record(row: CommitRow, wanted: Mapping[str, JsonValue]) -> bool:
    """Whether a commit's record has these members; None means that it must not have a member of that name."""
    original = loads_own(row.original.encode(), f"commit {row.seq}")
    return all(same(original.get(name), value) for name, value in wanted.items())


def _working(state: EntityState | None, depth: int | None, is_own: bool) -> _Working:
    """`depth` is the backend's count; None if it was not requested: the state knows it, or there is no entity."""
    if depth is None:
        depth = state.depth if state is not None and is_own else 0
    if state is None:
        return _Working(None, None, 0, depth)
    return _Working(state.body, None, state.patches, depth)


def _branch_of(read: Read, own: str) -> str:
    return read.branch if isinstance(read, ConfirmedRead) and read.branch is not None else own


def _stale_pending(read: PendingRead, branch: str, resolved: int | None, found: int) -> list[StaleRead]:
    """Only right while the newest revision is from that transaction."""
    if resolved is None:
        return [StaleRead(read.id, branch_name(branch), read.local_seq, None, is_pending=True)]
    if found < resolved:
        raise Invalid(
            f"transaction {read.local_seq} did not write {show(read.id)} on {branch_title(branch)}",
            hint="use a confirmed read for documents that others wrote",
        )
    return [StaleRead(read.id, branch_name(branch), resolved, found, is_pending=True)] if found > resolved else []
