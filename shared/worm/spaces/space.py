"""A space: what programs touch. Its verbs are in the modules beside it, its rows in a backend."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from datetime import datetime, timedelta
from types import TracebackType
from typing import Self, TypeVar

from worm.clock import Clock, Ids, SystemClock
from worm.codec.diff import same
from worm.codec.strict_json import JsonObject, JsonValue
from worm.errors import Invalid
from worm.spaces import blobs, branches, replay
from worm.spaces.backend import Backend, until_decided
from worm.spaces.blobs import Blob, Source
from worm.spaces.branches import BranchDifference, Merged, Policy
from worm.spaces.operations import Read, SpaceConfig, set_document
from worm.spaces.reading import StateCache, entities, forget, looking, main_entity, seq_of
from worm.spaces.replay import active_branch, branch_row, line_of
from worm.spaces.results import Branch, Committed, Entity, LogEntry
from worm.spaces.rows import MAIN, blob_meta_id, check_branch, check_id, check_seq
from worm.spaces.transacting import Author, Committer, TransactionRequest

At = int | datetime | None
R = TypeVar("R")
_PAGE = 200


class Space:
    """An open space; close it, or use it as a context manager. Any thread may use it.

    Calls that write take `session_id` and `local_seq`, which name the transaction for ever: doing it again under the
    same name returns the first result and writes nothing. Without them it gets a name that nobody can repeat.
    """

    def __init__(
        self,
        backend: Backend,
        config: SpaceConfig | None = None,
        *,
        clock: Clock | None = None,
        ids: Ids | None = None,
    ) -> None:
        self.config = config or SpaceConfig()
        self._backend = backend
        self._look = looking(backend)
        self._seen = 0
        self._clock = clock or SystemClock()
        self._cache = StateCache(self.config.cache_bytes)
        self._committer = Committer(backend, self.config, self._clock, self._cache)
        self._ids = ids or Ids.system(self._clock)
        self._session = self._ids.ulid()
        self._numbers = 0
        self._numbering = threading.Lock()

    def __repr__(self) -> str:
        return f"<Space {self._backend}>"

    @property
    def seq(self) -> int:
        """The newest commit; 0 before the first one."""
        return self._backend.newest().seq

    def transact(
        self,
        ops: Sequence[Mapping[str, JsonValue]],
        *,
        session_id: str | None = None,
        local_seq: int | None = None,
        branch: str = MAIN,
        reads: Sequence[Read | Entity] = (),
        about: JsonObject | None = None,
    ) -> Committed:
        """All operations, or none. `ReadConflict` if something in `reads` has changed since, `PatchConflict` if a patch
        does not fit, `Invalid` for what breaks a rule or a limit. `about` is kept in the commit's record: who it is of,
        and why."""
        seen = [read.as_read() if isinstance(read, Entity) else read for read in reads]
        author = self._author(session_id, local_seq)
        extra: JsonObject | None = None if about is None else {"about": about}
        request = TransactionRequest.checked(author, branch, ops, seen, self.config, extra)
        return self._until_decided(lambda: self._committer.commit(request))

    def read(self, id: str, *, branch: str = MAIN, at: At = None) -> Entity:
        """The entity on a branch, now, as of a commit, or as of a time."""
        if branch != MAIN or self._look is None:
            return self.read_many([id], branch=branch, at=at)[id]
        check_id(id)
        with self._look() as rows:
            return main_entity(rows, id, at, self._cache)

    def read_many(self, ids: Sequence[str], *, branch: str = MAIN, at: At = None) -> dict[str, Entity]:
        """All as of the same commit."""
        check_branch(branch)
        for entity in ids:
            check_id(entity)
        with nullcontext(self._backend) if self._look is None else self._look() as rows:
            newest = self._seen = rows.newest().seq
            seq = seq_of(rows, at, newest)
            remember = self._cache.put if seq == newest else forget
            return entities(rows, branch, ids, seq, newest, self._cache.get, remember)

    def recall(self, id: str, at: int) -> Entity:
        """The entity on the main branch as of a commit that a read has told: nothing newer is looked for, which saves
        two requests in a bucket. What was written only later is `NEVER` there."""
        if at > self._seen:
            return self.read(id, at=at)
        return entities(self._backend, MAIN, [check_id(id)], check_seq(at, "at"), at, self._cache.get)[id]

    def ids(self, *, branch: str = MAIN, at: At = None) -> list[str]:
        """Every entity that was written by then, deleted ones too, sorted."""
        line = line_of(self._backend, check_branch(branch), self._seq(at))
        return sorted(set().union(*(self._backend.touched(level.branch, 0, level.upto) for level in line)))

    def log(self, *, after: int = 0, limit: int | None = None) -> Iterator[LogEntry]:
        """Commits after a seq, in order, up to the newest of now."""
        check_seq(after, "after")
        upto, left = self.seq, limit
        while left is None or left > 0:
            rows = self._backend.commits(after, upto, _PAGE if left is None else min(left, _PAGE))
            if not rows:
                return
            yield from map(LogEntry.of, rows)
            after = rows[-1].seq
            left = None if left is None else left - len(rows)

    def create_branch(
        self,
        name: str,
        *,
        parent: str = MAIN,
        at: At = None,
        session_id: str | None = None,
        local_seq: int | None = None,
    ) -> Committed:
        """A branch that begins as its parent is now, or was at a commit or a time."""
        author = self._author(session_id, local_seq)
        seq = None if at is None else self._seq(at)
        return self._until_decided(lambda: branches.create_branch(self._committer, author, name, parent, seq))

    def delete_branch(self, name: str, *, session_id: str | None = None, local_seq: int | None = None) -> Committed:
        """It takes no more commits, and can still be read."""
        author = self._author(session_id, local_seq)
        return self._until_decided(lambda: branches.delete_branch(self._committer, author, name))

    def branch(self, name: str) -> Branch:
        """`NotFound` for a name that never was."""
        return Branch.of(branch_row(self._backend, check_branch(name)))

    def branches(self) -> list[Branch]:
        """All in the order of their making, the main branch first, deleted ones too."""
        others = [row for row in self._backend.branches() if row.name != MAIN]
        return [Branch.of(row) for row in (branch_row(self._backend, MAIN), *others)]

    def diff(self, left: str, right: str, *, at: At = None) -> list[BranchDifference]:
        """The entities that two branches do not have in the same state, by id."""
        newest = self.seq
        seq = seq_of(self._backend, at, newest)
        return branches.diff(self._backend, check_branch(left), check_branch(right), seq, newest)

    def merge(
        self,
        branch: str,
        into: str = MAIN,
        policy: Policy = "fail",
        *,
        session_id: str | None = None,
        local_seq: int | None = None,
    ) -> Merged:
        """What `branch` changed since the two were last the same, as one commit on `into`. What both changed is a
        `MergeConflict`, or the policy decides: `ours` is what `into` has."""
        author = self._author(session_id, local_seq)
        return self._until_decided(lambda: branches.merge(self._committer, author, branch, into, policy))

    def snapshot(self, *ids: str, branch: str = MAIN, at: At = None) -> int:
        """Snapshots on demand; how many there are now of these."""
        for entity in ids:
            check_id(entity)
        seq = self._seq(at)
        return replay.make_snapshots(self._backend, check_branch(branch), ids, seq, self._cache.get)

    def maintain(self, *, at_least: int | None = None) -> int:
        """Snapshots of what has been written often since its last one (default: half of `snapshot_every`)."""
        depth = max(1, self.config.snapshot_every // 2) if at_least is None else at_least
        return replay.maintain_snapshots(self._backend, depth, self._cache.get)

    def gc(self, *, keep: int | None = None) -> int:
        """Drops all but the newest `keep` snapshots of every entity (default: `snapshots_kept`, which keeps all).
        Revisions stay, so every read stays right. How many went."""
        kept = self.config.snapshots_kept if keep is None else keep
        if kept is None:
            return 0
        if kept < 1:
            raise Invalid("the newest snapshot is always kept", hint="keep=1 or more")
        return self._backend.drop_snapshots(kept)

    def put_blob(
        self,
        data: Source,
        *,
        content_type: str | None = None,
        metadata: JsonObject | None = None,
        branch: str = MAIN,
        session_id: str | None = None,
        local_seq: int | None = None,
    ) -> Blob:
        """Stores bytes, a file or chunks under their hash, once, and commits what is known of them as an entity."""
        author = self._author(session_id, local_seq)
        active_branch(self._backend, check_branch(branch))
        with blobs.payload_of(data, self.config.blob_bytes_max) as payload:
            document, entity = blobs.metadata(payload, content_type, metadata), blob_meta_id(payload.hash)
            request = TransactionRequest.checked(author, branch, [set_document(entity, document)], [], self.config)

            def describe() -> None:
                there = self.read(entity, branch=branch)
                if not there.exists or not same(there.value, document) or session_id is not None:
                    self._until_decided(lambda: self._committer.commit(request, needs_blob=payload.hash))

            now = self._clock.now()
            return blobs.put(self._backend, payload, content_type, now, describe)

    def blob(self, hash: str) -> Blob:
        """Size and content type; `NotFound`."""
        return blobs.info(self._backend, hash)

    def read_blob(self, hash: str) -> bytes:
        return b"".join(blobs.stream(self._backend, hash))

    def stream_blob(self, hash: str) -> Iterator[bytes]:
        """A piece at a time. `Corrupt` at the end if the bytes are not those of the hash."""
        return blobs.stream(self._backend, hash)

    def gc_blobs(self, *, older_than: timedelta = timedelta(hours=1)) -> tuple[str, ...]:
        """Removes payloads that were stored so long ago and whose metadata is on no active branch; their hashes."""
        before = blobs.grace(self._clock.now(), older_than)
        return self._until_decided(lambda: blobs.collect(self._backend, before))

    def close(self) -> None:
        self._backend.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _until_decided(self, work: Callable[[], R]) -> R:
        return until_decided(work, self._clock, self._ids)

    def _author(self, session_id: str | None, local_seq: int | None) -> Author:
        if (session_id is None) != (local_seq is None):
            raise Invalid("session_id and local_seq name a transaction together", hint="give both, or neither")
        if session_id is not None:
            return Author.checked(session_id, local_seq)
        with self._numbering:
            self._numbers += 1
            return Author(self._session, self._numbers)

    def _seq(self, at: At) -> int:
        return seq_of(self._backend, at, self.seq)
