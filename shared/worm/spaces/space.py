"""A space: the class that programs use. Its verbs are in the neighboring modules, its rows in a backend."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext
from datetime import timedelta
from types import TracebackType
from typing import Self, TypeVar

from worm import forks
from worm.clock import Clock, Ids, SystemClock, attempts
from worm.errors import Invalid
from worm.formats import JsonObject, JsonValue, Position, same, type_name
from worm.spaces import blobs, branches, checking, merging, replay
from worm.spaces.backend import Backend, until_decided
from worm.spaces.blobs import Blob, History, Source
from worm.spaces.branches import BranchDifference
from worm.spaces.checking import SpaceReport
from worm.spaces.handing import handed_commits
from worm.spaces.merging import Merged, MergePlan, Policy
from worm.spaces.operations import Read, SpaceConfig, check_object, set_document
from worm.spaces.reading import StateCache, entities, forget, looking, main_entity, seq_of
from worm.spaces.replay import active_branch, branch_row, line_of
from worm.spaces.results import (
    BothChanged,
    Branch,
    BranchMoved,
    Committed,
    Entity,
    LogEntry,
    Maintained,
    ReadConflict,
    SpaceStat,
)
from worm.spaces.rows import (
    ACTIVE,
    MAIN,
    TRUNK,
    blob_meta_id,
    check_branch,
    check_flag,
    check_hash,
    check_id,
    check_ids,
    check_list,
    check_seq,
    moment_of,
)
from worm.spaces.transacting import Author, Committer, TransactionRequest, earlier_commit

At = Position | None
R = TypeVar("R")
_PAGE = 200
_MERGE_TRIES = 30


def checked_config(config: SpaceConfig | None) -> SpaceConfig:
    if config is None:
        return SpaceConfig()
    if not isinstance(config, SpaceConfig):
        raise Invalid(f"config must be a SpaceConfig, not {type_name(config)}")
    return config


class Space:
    """An open space; close it, or use it as a context manager. It is thread-safe.

    Calls that write take `session_id` and `local_seq`, which name the transaction forever: repeating it under the same
    name returns the first result and writes nothing. Without them, it gets a name that cannot be repeated.

    Examples:
        >>> from worm.spaces.operations import set_document
        >>> with worm.open_space("memory://bank", "main") as space:
        ...     _ = space.transact([set_document("a", {"value": {"balance": 10}})])
        ...     space.read("a").value
        {'value': {'balance': 10}}
    """

    def __init__(
        self,
        backend: Backend,
        config: SpaceConfig | None = None,
        *,
        clock: Clock | None = None,
        ids: Ids | None = None,
    ) -> None:
        self.config = checked_config(config)
        self._backend = backend
        self._look = looking(backend)
        self._seen = 0
        self._clock = clock or SystemClock()
        self._cache = StateCache(self.config.cache_bytes)
        self._committer = Committer(backend, self.config, self._clock, self._cache)
        self._handed = handed_commits(self._committer, backend)
        self._ids = ids or Ids.system(self._clock)
        self._numbering = forks.new_lock()
        self._take_name()
        forks.in_child(self._take_name)

    def _take_name(self) -> None:
        """The name of this space's own transactions. A forked child takes another one: a commit under a name that its
        parent has used would count as done."""
        self._session = self._ids.ulid()
        self._numbers = 0

    def __repr__(self) -> str:
        return f"<Space {self._backend}>"

    @property
    def seq(self) -> int:
        """The number of the newest commit; 0 before the first one."""
        return self._backend.newest().seq

    def transact(
        self,
        ops: Sequence[Mapping[str, JsonValue]],
        *,
        session_id: str | None = None,
        local_seq: int | None = None,
        branch: str = TRUNK,
        reads: Sequence[Read | Entity] = (),
        about: JsonObject | None = None,
        unchanged: int | None = None,
    ) -> Committed:
        """Commit all operations, or none. `ReadConflict` if something in `reads` has changed since then,
        `PatchConflict` if a patch does not fit, `Invalid` if a rule or a limit is broken. `about` is kept in the
        commit's record: who made it, and why. `unchanged`: `BranchMoved` if anything was committed to the branch after
        this commit."""
        seen = [read.as_read() if isinstance(read, Entity) else read for read in check_list(reads, "reads")]
        author = self._author(session_id, local_seq)
        extra: JsonObject | None = None if about is None else {"about": check_object(about, "about")}
        request = TransactionRequest.checked(author, branch, ops, seen, self.config, extra)
        if unchanged is not None:
            check_seq(unchanged, "unchanged")
            return self._until_decided(lambda: self._committer.commit(request, unchanged=unchanged))
        return self._until_decided(lambda: self._commit(request))

    def read(self, id: str, *, branch: str = TRUNK, at: At = None) -> Entity:
        """Read an entity on a branch: now, as of a commit, or as of a time."""
        if check_branch(branch) != MAIN or self._look is None:
            return self.read_many([id], branch=branch, at=at)[id]
        check_id(id)
        with self._look() as rows:
            return main_entity(rows, id, at, self._cache)

    def read_many(self, ids: Sequence[str], *, branch: str = TRUNK, at: At = None) -> dict[str, Entity]:
        """Read several entities as of the same commit."""
        branch, ids = check_branch(branch), check_ids(ids)
        with nullcontext(self._backend) if self._look is None else self._look() as rows:
            newest = self._seen = rows.newest().seq
            seq = seq_of(rows, at, newest)
            remember = self._cache.put if seq == newest else forget
            return entities(rows, branch, ids, seq, newest, self._cache.get, remember)

    def recall(self, id: str, at: int) -> Entity:
        """The entity on the main branch as of a commit that an earlier read returned. It does not look for newer
        commits, which saves two requests in a bucket. An entity that was written later is `NEVER` there."""
        if check_seq(at, "at") > self._seen:
            return self.read(id, at=at)
        return entities(self._backend, MAIN, [check_id(id)], at, at, self._cache.get)[id]

    def ids(self, *, branch: str = TRUNK, at: At = None) -> list[str]:
        """Every entity that was written by then, including deleted ones, sorted."""
        line = line_of(self._backend, check_branch(branch), self._seq(at))
        return sorted(set().union(*(self._backend.touched(level.branch, 0, level.upto) for level in line)))

    def log(self, *, after: Position = 0, limit: int | None = None) -> Iterator[LogEntry]:
        """Commits after a seq or a time, in order, up to the current newest."""
        upto = self.seq
        left = None if limit is None else check_seq(limit, "limit")
        return self._entries(seq_of(self._backend, after, upto, "after"), upto, left)

    def _entries(self, after: int, upto: int, left: int | None) -> Iterator[LogEntry]:
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
        parent: str = TRUNK,
        at: At = None,
        session_id: str | None = None,
        local_seq: int | None = None,
    ) -> Committed:
        """Create a branch that begins as its parent is now, or was at a commit or a time."""
        author = self._author(session_id, local_seq)
        seq = None if at is None else self._seq(at)
        return self._until_decided(lambda: branches.create_branch(self._committer, author, name, parent, seq))

    def delete_branch(self, name: str, *, session_id: str | None = None, local_seq: int | None = None) -> Committed:
        """The branch accepts no more commits, but can still be read. `Conflict` while it has active branches."""
        author = self._author(session_id, local_seq)
        return self._until_decided(lambda: branches.delete_branch(self._committer, author, name))

    def undelete_branch(self, name: str, *, session_id: str | None = None, local_seq: int | None = None) -> Committed:
        """Bring a deleted branch back: it accepts commits again."""
        author = self._author(session_id, local_seq)
        return self._until_decided(lambda: branches.undelete_branch(self._committer, author, name))

    def branch(self, name: str) -> Branch:
        """One branch; `NotFound` for a name that never existed."""
        return Branch.of(branch_row(self._backend, check_branch(name)))

    def branches(self) -> list[Branch]:
        """All branches, including deleted ones, in the order of their creation; the main branch first."""
        others = [row for row in self._backend.branches() if row.name != MAIN]
        return [Branch.of(row) for row in (branch_row(self._backend, MAIN), *others)]

    def diff(self, left: str, right: str, *, at: At = None) -> list[BranchDifference]:
        """The entities whose state differs between two branches, by id."""
        left, right = check_branch(left), check_branch(right)
        with self._backend.as_of_now() as rows:
            newest = rows.newest().seq
            return branches.diff(rows, left, right, seq_of(rows, at, newest), newest)

    def plan_merge(self, branch: str, into: str = TRUNK, policy: Policy = "fail") -> MergePlan:
        """What `merge` would do now. It writes nothing; conflicts that the policy does not decide stay in the plan."""
        return merging.plan_merge(self._backend, branch, into, policy)

    def commit_merge(
        self,
        plan: MergePlan,
        *,
        about: JsonObject | None = None,
        merge_id: str | None = None,
        session_id: str | None = None,
        local_seq: int | None = None,
        only: Collection[str] | None = None,
        is_last: bool = True,
        unchanged: int | None = None,
    ) -> Committed | None:
        """Commit all of a plan, or a chunk of it (`only`, from `plan.chunks(space.config)`); the last one needs
        `is_last`. `ReadConflict` if either branch has changed any of it since then, `BranchMoved` if something was
        merged into the branch since then, `MergeConflict` if anything is undecided. None if the plan is not needed: the
        branch has not changed since it was last merged."""
        if not isinstance(plan, MergePlan):
            raise Invalid(f"a plan must come from plan_merge, not {type_name(plan)}")
        check_flag(is_last, "is_last")
        if unchanged is not None:
            check_seq(unchanged, "unchanged")
        said = None if about is None else check_object(about, "about")
        author = self._author(session_id, local_seq)
        name = (plan.merge_id or self._ids.ulid()) if merge_id is None else check_id(merge_id, "merge_id")
        return self._until_decided(
            lambda: merging.commit_merge(
                self._committer,
                author,
                plan,
                name,
                about=said,
                only=only,
                is_last=is_last,
                unchanged=unchanged,
            )
        )

    def merge(
        self,
        branch: str,
        into: str = TRUNK,
        policy: Policy = "fail",
        *,
        about: JsonObject | None = None,
        session_id: str | None = None,
        local_seq: int | None = None,
    ) -> Merged:
        """Merge what `branch` changed since `into` last had it, as one commit on `into`, or as several if it is
        large. If both changed the same entity, it is a `MergeConflict`, or the policy decides: `ours` is the state on
        `into`."""
        author = self._author(session_id, local_seq)
        if session_id is not None:
            wanted = (check_branch(branch), check_branch(into), merging.policy_name(policy))
            earlier = merging.earlier_merge(self._backend, author, *wanted, about)
            if earlier is not None:
                return merging.merged_again(self._backend, earlier)
        decided: list[BothChanged] = []
        for attempt in attempts(_MERGE_TRIES, self._clock, self._ids, base_seconds=0.01, cap_seconds=1.0):
            try:
                return self._merge(self.plan_merge(branch, into, policy), author, about, decided)
            except (ReadConflict, BranchMoved):  # another process may be merging the same: give it time to finish
                if attempt + 1 == _MERGE_TRIES:
                    raise
        raise AssertionError("unreachable")

    def _merge(self, plan: MergePlan, author: Author, about: JsonObject | None, decided: list[BothChanged]) -> Merged:
        """Add what is committed to `decided`."""
        name = plan.merge_id or self._ids.ulid()
        chunks = plan.chunks(self.config)
        conflicts = {one.id: one for one in plan.conflicts}
        done: Committed | None = None
        for number, ids in enumerate(chunks, start=1):
            is_last = number == len(chunks)
            who = author if is_last else self._author(None, None)
            done = self.commit_merge(
                plan,
                about=about,
                merge_id=name,
                session_id=who.session_id,
                local_seq=who.local_seq,
                only=ids,
                is_last=is_last,
            )
            decided += [conflicts[one] for one in ids if one in conflicts]
        before = merging.chunks_before(self._backend, plan.chunk_seq)
        changed = {one for record in before for one in record.ids if one not in record.decided} | plan.changes.keys()
        return Merged(done, tuple(sorted(changed)) if done is not None else (), tuple(decided))

    def apart(self, branch: str = TRUNK, at: At = None, *, known: int) -> tuple[int, set[str]]:
        """The requested commit, and the entities that may differ there on `branch` from the main branch, as in a copy
        of commit `known` or any later one. The number of requests grows with the commits in between."""
        check_seq(known, "known")
        newest = self.seq
        seq = seq_of(self._backend, at, newest)
        main, there = line_of(self._backend, MAIN, newest), line_of(self._backend, check_branch(branch), seq)
        changed = branches.changed_between(self._backend, there, main)
        return seq, changed | (self._backend.touched(MAIN, known, newest) if known < newest else set())

    def fork(self, branch: str, at: int) -> int:
        """The last commit of the main branch that is visible on `branch` as of a commit."""
        return line_of(self._backend, check_branch(branch), check_seq(at, "at"))[-1].upto

    def changed(self, branch: str, after: int, upto: int) -> set[str]:
        """The entities that these commits wrote, on the branch or on the main one."""
        names = dict.fromkeys((check_branch(branch), MAIN))
        check_seq(after, "after")
        check_seq(upto, "upto")
        return set().union(*(self._backend.touched(one, after, upto) for one in names))

    def snapshot(self, *ids: str, branch: str = TRUNK, at: At = None) -> int:
        """Make snapshots on demand; returns how many of these entities have one now."""
        check_ids(ids)
        seq = self._seq(at)
        return replay.make_snapshots(self._backend, check_branch(branch), ids, seq, self._cache.get)

    def maintain(self, *, at_least: int | None = None) -> Maintained:
        """Everything that keeps a space fast: snapshots of entities that were written often since their last one
        (default: half of `snapshot_every`), then what the store needs. In a bucket, the log is applied, layers are
        merged, and unreachable objects are deleted. Call it from time to time if no functions are deployed."""
        depth = max(1, self.config.snapshot_every // 2) if at_least is None else check_seq(at_least, "at_least")
        made = replay.maintain_snapshots(self._backend, depth, self._cache.get)
        return Maintained(made, self._backend.upkeep())

    def verify(self) -> SpaceReport:
        """Read everything and compare it with the records of the commits. It changes nothing."""
        return checking.verify(self._backend)

    def repair(self) -> SpaceReport:
        """Drop wrong snapshots, and return the new report of `verify`. Nothing else can be rebuilt from other rows."""
        self._cache.clear()
        return checking.repair(self._backend)

    def stat(self) -> SpaceStat:
        """The size of the space. It lists entities and blobs, so it is only meant for people."""
        newest = self._backend.newest()
        rows, payloads = self._backend.branches(), self._backend.blobs()
        ended = sum(row.status != ACTIVE for row in rows)
        return SpaceStat(
            seq=newest.seq,
            last_commit=moment_of(newest.created_at) if newest.seq else None,
            branches=len({MAIN, *(row.name for row in rows)}) - ended,
            deleted_branches=ended,
            entities=len(self._backend.touched(MAIN, 0, newest.seq)),
            blobs=len(payloads),
            blob_bytes=sum(row.size for row in payloads),
            store=self._backend.figures(),
        )

    def gc(self, *, keep: int | None = None) -> int:
        """Drop all but the newest `keep` snapshots of every entity (default: `snapshots_kept`, which keeps all).
        Revisions stay, so every read stays right. Returns the number dropped."""
        kept = self.config.snapshots_kept if keep is None else check_seq(keep, "keep")
        if kept is None:
            return 0
        if kept < 1:
            raise Invalid("the newest snapshot is always kept", hint="pass keep=1 or more")
        return self._backend.drop_snapshots(kept)

    def put_blob(
        self,
        data: Source,
        *,
        content_type: str | None = None,
        metadata: JsonObject | None = None,
        branch: str = TRUNK,
        session_id: str | None = None,
        local_seq: int | None = None,
    ) -> Blob:
        """Store bytes, a file or chunks under their hash, once, and commit their metadata as an entity."""
        author = self._author(session_id, local_seq)
        more = None if metadata is None else check_object(metadata, "metadata")
        if session_id is None:
            active_branch(self._backend, check_branch(branch))
        with blobs.payload_of(data, self.config.blob_bytes_max) as payload:
            document, entity = blobs.metadata(payload, content_type, more), blob_meta_id(payload.hash)
            request = TransactionRequest.checked(author, branch, [set_document(entity, document)], [], self.config)
            if session_id is not None and earlier_commit(self._backend, request) is None:
                active_branch(self._backend, request.branch)

            def describe() -> None:
                there = self.read(entity, branch=branch)
                if not there.exists or not same(there.value, document) or session_id is not None:
                    self._until_decided(lambda: self._committer.commit(request, needs_blob=payload.hash))

            now = self._clock.now()
            return blobs.put(self._backend, payload, content_type, now, describe)

    def blob(self, hash: str) -> Blob:
        """The size and content type of a blob; `NotFound` if there is none."""
        return blobs.info(self._backend, hash)

    def read_blob(self, hash: str) -> bytes:
        return b"".join(blobs.stream(self._backend, hash))

    def stream_blob(self, hash: str) -> Iterator[bytes]:
        """Read a blob piece by piece. `Corrupt` at the end if the bytes do not match the hash."""
        check_hash(hash)
        return blobs.stream(self._backend, hash)

    def gc_blobs(self, *, older_than: timedelta = timedelta(hours=1), history: History = "keep") -> tuple[str, ...]:
        """Remove payloads that are at least this old and that nobody needs; returns their hashes. With
        `history="keep"`, a payload is needed if its metadata was ever committed. With `"drop"`, it is needed only if
        its metadata is on an active branch now; then the past may have metadata without payloads. Leftovers of
        interrupted uploads are removed, too."""
        now = self._clock.now()
        before = blobs.grace(now, older_than)
        gone = self._until_decided(lambda: blobs.collect(self._backend, before, history))
        self._backend.drop_parts(blobs.stray(self._backend, now, before))
        return gone

    def close(self) -> None:
        self._backend.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _commit(self, request: TransactionRequest) -> Committed:
        """Commit here, or through another process that is the writer."""
        handed = self._handed
        return self._committer.commit(request) if handed is None or handed.is_writer() else handed.commit(request)

    def _until_decided(self, work: Callable[[], R]) -> R:
        return until_decided(work, self._clock, self._ids)

    def _author(self, session_id: str | None, local_seq: int | None) -> Author:
        if (session_id is None) != (local_seq is None):
            raise Invalid("session_id and local_seq must be given together", hint="pass both, or neither")
        if session_id is not None:
            return Author.checked(session_id, local_seq)
        with self._numbering:
            self._numbers += 1
            return Author(self._session, self._numbers)

    def _seq(self, at: At) -> int:
        return seq_of(self._backend, at, self.seq)
