"""A model of a space on a branch: documents and their history come only from the log.

What the branch has not changed is inherited from the main branch as of the fork. If the main branch still has that
state, a document that somebody changed by hand counts on the branch, too, as in the table.

A branch has no claims: unique values are looked up on the branch, and a commit that adds one is refused if the branch
has changed since the lookup (`BranchMoved`), so that it is looked up again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from worm.clock import attempts, iso_seconds
from worm.collections import (
    ArchiveView,
    Claiming,
    Collection,
    Diff,
    Document,
    DocumentVersion,
    Holders,
    Oplog,
    OplogEntry,
    StateAt,
    UniqueValue,
)
from worm.formats import JsonValue, dumps_document
from worm.query import OtherStates
from worm.spaces.bridge.commits import (
    CommitOutcome,
    KnownDocument,
    SpaceModel,
    Write,
    about_commit,
    operation,
    reads_of,
    refuse_twins,
)
from worm.spaces.bridge.origins import actor_of_commit, commit_in, commit_metadata, entity_name, note_in
from worm.spaces.bridge.states import SpaceStates
from worm.spaces.results import BranchMoved, Entity
from worm.spaces.rows import check_id
from worm.spaces.space import Space
from worm.store import Object, ObjectInfo

COMMIT_ATTEMPTS = 30
OPLOG_STATES_MAX = 100_000

Lookup = Callable[[UniqueValue], Sequence[tuple[str, Document]]]
"""The documents of a model on the branch that have a value in a field."""


class BranchModel(SpaceModel):
    """One model of one session on a branch. `holders` finds documents there."""

    def __init__(
        self,
        collection: Collection,
        claiming: Claiming,
        space: Callable[[], Space],
        *,
        branch: str,
        holders: Lookup,
    ) -> None:
        super().__init__(collection, _NothingRemembered(), claiming, space, branch=branch)
        self._holders = holders
        self._states = SpaceStates(collection, self._origins, branch)

    @staticmethod
    def check_id(model: str, entity_id: str) -> None:
        """`Invalid` for an id that a log cannot have."""
        check_id(entity_name(model, entity_id), "id")

    @staticmethod
    def history(collection: Collection, branch: str, space: Callable[[], Space]) -> Oplog:
        """The history of a model on a branch."""
        return BranchOplog(collection.oplog, collection.name, branch, space)

    def now(self) -> OtherStates:
        """The collection on the branch."""
        return self._states.now(self.space)

    def known(self, entity_id: str, at: int | None = None) -> KnownDocument:
        space, entity = self.space, entity_name(self.collection.name, entity_id)
        state = space.read(entity, branch=self.branch, at=at)
        main = space.read(entity)
        is_inherited = main.seq == state.seq
        if is_inherited and (main.seq == 0 or self._origins.is_by_hand(entity_id, main, self._head(entity_id))):
            return self._stored(entity_id, state)
        if state.seq == 0:
            document = self._states.before_commits(entity_id, space.fork(self.branch, state.at))
            version = None if document is None else DocumentVersion("", commit=0)
            return KnownDocument(state.at, 0, document, version)
        version = DocumentVersion("", commit=state.seq) if state.exists else None
        return KnownDocument(state.at, state.seq, state.value, version)

    def latest(self, entity_id: str, found: Object | None) -> Object | None:
        """The state on the branch; the stored object does not matter."""
        known = self.known(entity_id)
        if known.is_stored:
            return self.collection.documents.current(entity_id)
        if known.document is None:
            return None
        body, now = dumps_document(known.document), self.collection.clock.now()
        metadata = commit_metadata(entity_name(self.collection.name, entity_id), known.seq)
        return Object(self._key(entity_id), "", len(body), now, metadata=metadata, body=body)

    def exists(self, entity_id: str, found: ObjectInfo | None) -> bool:
        return self.known(entity_id).version is not None

    def commit(
        self,
        writes: Sequence[Write],
        seen: Mapping[str, int],
        actor: str | None,
        holders: Holders | None = None,
    ) -> CommitOutcome:
        """All writes in one commit on the branch."""
        space = self.space
        refuse_twins(writes)
        operations = [operation(write.entity, write.after) for write in writes]
        reads = list(dict.fromkeys([*(write.read for write in writes), *reads_of(seen)]))
        about = about_commit(writes, actor)
        for attempt in attempts(COMMIT_ATTEMPTS, self.collection.clock, self.collection.ids):
            unchanged = self._checked_values(writes)
            try:
                done = space.transact(operations, branch=self.branch, reads=reads, about=about, unchanged=unchanged)
                return CommitOutcome(done)
            except BranchMoved:
                if attempt == COMMIT_ATTEMPTS - 1:
                    raise
        raise AssertionError("unreachable")

    def _checked_values(self, writes: Sequence[Write]) -> int | None:
        """`UniqueViolation` if a value is taken on the branch. Returns the commit up to which that was checked; None:
        no write adds a unique value."""
        new = [
            (write, value)
            for write in writes
            for value in write.model.collection.claims.values(write.after)
            if not value.is_in(write.before)
        ]
        if not new:
            return None
        upto, after = self.space.seq, {write.entity: write.after for write in writes}
        for write, value in new:
            model = write.model
            assert isinstance(model, BranchModel)
            for holder, document in model._holders(value):
                name = entity_name(model.collection.name, holder)
                if name != write.entity and value.is_in(after.get(name, document)):
                    raise value.taken_by(holder)
        return upto


class _NothingRemembered:
    """A branch's queries read its commits; there is nothing to remember."""

    def committed(self, entity_id: str, seq: int, document: Document | None, over: Document | None) -> None:
        pass

    def forget(self, entity_id: str) -> None:
        pass


class BranchOplog(Oplog):
    """The history of documents on a branch: entries of the main branch up to the fork, then the branch's commits. It
    only reads."""

    def __init__(self, oplog: Oplog, model: str, branch: str, space: Callable[[], Space]) -> None:
        self.__dict__.update(oplog.__dict__)
        self._main = oplog
        self._model_name = model
        self._branch = branch
        self._open_space = space

    def read(self, entity_id: str, seq: int) -> OplogEntry | None:
        shared, own = self._both(entity_id)
        return self._main.read(entity_id, seq) if seq <= shared else next((one for one in own if one.seq == seq), None)

    def tail(self, entity_id: str, *, at_least: int = 0) -> OplogEntry | None:
        shared, own = self._both(entity_id)
        return own[-1] if own else self._main.read(entity_id, shared) if shared else None

    def is_end(self, entity_id: str, last: int) -> bool:
        return True

    def entries(
        self, entity_id: str, *, first: int = 1, last: int | None = None, view: ArchiveView | None = None
    ) -> Iterator[OplogEntry]:
        shared, own = self._both(entity_id)
        end = shared if last is None else min(last, shared)
        if first <= end:
            yield from self._main.entries(entity_id, first=first, last=end)
        yield from (one for one in own if first <= one.seq and (last is None or one.seq <= last))

    def newest_first(self, entity_id: str, tail: int, view: ArchiveView | None = None) -> Iterator[OplogEntry]:
        shared, own = self._both(entity_id)
        yield from (one for one in reversed(own) if one.seq <= tail)
        if shared:
            yield from self._main.newest_first(entity_id, min(tail, shared))

    def at_seq(self, entity_id: str, seq: int) -> StateAt | None:
        shared, own = self._both(entity_id)
        if seq <= shared:
            return self._main.at_seq(entity_id, seq)
        if not any(one.seq == seq for one in own):
            return None
        return StateAt(self.state_at(entity_id, seq))

    def state_at(
        self, entity_id: str, seq: int, read: Sequence[OplogEntry] = (), view: ArchiveView | None = None
    ) -> Document | None:
        shared, own = self._both(entity_id)
        document = self._main.state_at(entity_id, min(seq, shared)) if shared else None
        for entry in own:
            if entry.seq <= seq:
                document = entry.applied_to(document, self.key(entity_id, entry.seq))
        return document

    def at_time(self, entity_id: str, ts: str, *, before: int | None = None) -> tuple[int, Document | None]:
        shared, own = self._both(entity_id)
        last = max((one.seq for one in own if one.ts <= ts), default=0)
        if last:
            return last, self.state_at(entity_id, last)
        seq, document = self._main.at_time(entity_id, ts) if shared else (0, None)
        return (seq, document) if seq <= shared else (shared, self._main.state_at(entity_id, shared))

    def seq_at_time(self, entity_id: str, ts: str, *, at_least: int) -> int:
        return self.at_time(entity_id, ts)[0]

    def _both(self, entity_id: str) -> tuple[int, list[OplogEntry]]:
        """The number of entries of the main branch that count, and the branch's own entries."""
        space, entity = self._open_space(), entity_name(self._model_name, entity_id)
        newest = space.read(entity, branch=self._branch)
        fork = space.fork(self._branch, newest.at)
        tail = self._main.tail(entity_id)
        last = shared = 0 if tail is None else tail.seq
        for entry in () if tail is None else self._main.newest_first(entity_id, last):
            commit = commit_in(entry)
            if commit is not None and commit <= fork:
                shared = entry.seq if shared < last else last  # a change by hand counts until the next commit
                break
            if commit is not None:
                shared = entry.seq - 1
        return shared, self._own(space, entity, newest, fork, entity_id, shared)

    def _own(
        self, space: Space, entity: str, newest: Entity, fork: int, entity_id: str, shared: int
    ) -> list[OplogEntry]:
        states: list[Entity] = []
        state = newest
        while state.seq > fork and len(states) < OPLOG_STATES_MAX:
            states.append(state)
            state = space.read(entity, branch=self._branch, at=state.seq - 1)
        document = self._main.state_at(entity_id, shared) if states and shared else None
        entries, ts = list[OplogEntry](), ""
        for number, one in enumerate(reversed(states), shared + 1):
            entry = self._entry(space, entity, number, one, document, ts)
            entries.append(entry)
            document, ts = one.value, entry.ts
        return entries

    def _entry(
        self, space: Space, entity: str, number: int, state: Entity, before: Document | None, earliest: str
    ) -> OplogEntry:
        """Times never decrease within an entity."""
        logged = next(space.log(after=state.seq - 1, limit=1))
        metadata: dict[str, JsonValue] = {**(note_in(logged, entity) or {})}
        metadata |= {"commitSeq": state.seq, "branch": self._branch}
        actor, ts = actor_of_commit(logged), max(iso_seconds(logged.created_at), earliest)
        if state.value is None:
            return OplogEntry(number, "delete", ts, actor, before, metadata=metadata)
        if before is None:
            return OplogEntry(number, "create" if number == 1 else "restore", ts, actor, state.value, metadata=metadata)
        changed = Diff.between(before, state.value)
        absent = changed.absent or None
        return OplogEntry(number, "update", ts, actor, None, changed.diff, absent, metadata)
