"""A model of a space as it is on a branch, or was at a commit: the current table, plus what has changed in between.

Documents that neither the branch nor, since the fork, the main branch has changed are as in the table. So the number of
requests grows with the changes, not with the collection. A document that the log never had (somebody uploaded it) is as
it is stored; if a commit has replaced it since then, its history says what it was.

Others commit in the meantime, and the workers bring that into documents and tables. So a query requests the newest
commit again after it has read a newer table, index, listing or document (`FollowedStates`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime

from worm import forks
from worm.collections import Collection, Document, DocumentVersion
from worm.formats import ModelDef
from worm.query import DocumentState, OtherStates, OwnWrite
from worm.spaces.bridge.origins import SpaceOrigins, commit_in, entity_name
from worm.spaces.results import Entity
from worm.spaces.rows import MAIN, branch_title
from worm.spaces.space import Space
from worm.store import in_chunks
from worm.tables import TableView

CHUNK = 500


class FollowedStates(OtherStates):
    """States that hold while others commit. `newest`: the commit up to which the differences are known. `since` returns
    the differences since then, and their last commit."""

    def __init__(
        self,
        definition: ModelDef,
        states: Mapping[str, DocumentState],
        about: str,
        newest: int,
        since: Callable[[int], tuple[int, dict[str, DocumentState]]],
    ) -> None:
        super().__init__(definition, states, about)
        self._newest = newest
        self._since = since
        self._compared: TableView | None = None

    def _follow(self) -> None:
        self._newest, states = self._since(self._newest)
        self._count_in({one: state for one, state in states.items() if one not in self.instead})

    def own_writes(self, known: TableView) -> Mapping[str, OwnWrite]:
        if self._compared is not known:
            self._compared = known
            self._follow()
        return self._written

    def is_ahead(self, view: Callable[[], TableView | None]) -> bool:
        """False once it has followed. The view is opened before that."""
        view()
        self._follow()
        return False

    def live_ids(self, listed: Callable[[], Iterable[str]]) -> Iterable[str]:
        ids = list(listed())
        self._follow()
        return ids

    def settled(self, ids: Sequence[str], read: dict[str, DocumentState]) -> dict[str, DocumentState]:
        """A document that is gone or from a later commit has changed since then."""
        commits = (read[one].version for one in ids if one in read)
        if len(read) < len(ids) or any(at is not None and (at.commit or 0) > self._newest for at in commits):
            self._follow()
        counted = {**read, **{one: self.instead[one] for one in ids if one in self.instead}}
        return {one: counted[one] for one in ids if one in counted}


class SpaceStates:
    """The states of one model. Thread-safe."""

    def __init__(self, collection: Collection, origins: SpaceOrigins, branch: str = MAIN) -> None:
        self._collection = collection
        self._origins = origins
        self._branch = branch
        self._lock = forks.new_lock()
        self._newest: tuple[int, dict[str, DocumentState]] | None = None

    def now(self, space: Space) -> OtherStates:
        """The branch as of its newest commit. Nothing is read twice."""
        known = self._newest
        base = min(self._origins.applied(), space.seq) if known is None else known[0]
        if known is None:
            seq, entities = space.apart(self._branch, known=base)
            states = dict[str, DocumentState]()
        else:
            seq, entities = space.seq, set[str]()
            if seq > known[0]:
                entities = space.changed(self._branch, known[0], seq)
            states = dict(known[1])
        states |= self._read(space, entities, seq)
        with self._lock:
            if self._newest is None or self._newest[0] <= seq:
                self._newest = (seq, states)
        return self._others(space, states, f"as of {branch_title(self._branch)}", seq, seq)

    def at(self, space: Space, position: int | datetime, check: Callable[[int], None]) -> OtherStates:
        """As of a commit, or of the last one by a time. `check` gets the number of documents that differ."""
        newest = space.seq
        seq, entities = self._apart(space, position, newest)
        check(len(entities))
        return self._others(space, self._read(space, entities, seq), self._title(seq), seq, newest)

    def told(self, space: Space, position: int | datetime) -> tuple[str, int]:
        """What query plans say about it, and how many documents differ."""
        seq, entities = self._apart(space, position, space.seq)
        return _about(self._title(seq), len(entities)), len(entities)

    def _apart(self, space: Space, position: int | datetime, newest: int) -> tuple[int, list[str]]:
        seq, entities = space.apart(self._branch, position, known=min(self._origins.applied(), newest))
        prefix = entity_name(self._collection.name, "")
        return seq, [one for one in entities if one.startswith(prefix)]

    def _title(self, seq: int) -> str:
        return f"as of commit {seq}{'' if self._branch == MAIN else f' of {branch_title(self._branch)}'}"

    def _others(
        self, space: Space, states: Mapping[str, DocumentState], about: str, seq: int, newest: int
    ) -> OtherStates:
        def since(known: int) -> tuple[int, dict[str, DocumentState]]:
            now = space.seq
            return (now, self._read(space, space.changed(MAIN, known, now), seq)) if now > known else (known, {})

        return FollowedStates(self._collection.definition, states, _about(about, len(states)), newest, since)

    def _read(self, space: Space, entities: Iterable[str], seq: int) -> dict[str, DocumentState]:
        prefix, found = entity_name(self._collection.name, ""), dict[str, DocumentState]()
        wanted = sorted(one for one in entities if one.startswith(prefix))
        fork = space.fork(self._branch, seq) if wanted else 0
        for chunk in in_chunks(wanted, CHUNK):
            for entity, state in space.read_many(chunk, branch=self._branch, at=seq).items():
                entity_id = entity.removeprefix(prefix)
                found[entity_id] = self.state_of(entity_id, state, fork)
        return found

    def state_of(self, entity_id: str, state: Entity, fork: int) -> DocumentState:
        """The state that counts for an entity that a commit has changed, on either side."""
        if state.seq == 0:
            return DocumentState(self.before_commits(entity_id, fork), DocumentVersion("", commit=0))
        return DocumentState(state.value, DocumentVersion("", commit=state.seq))

    def before_commits(self, entity_id: str, upto: int) -> Document | None:
        """The state before the first commit after this one wrote the document: an upload that the log never had. Only
        the history knows it. It counts as commit 0."""
        oplog = self._collection.oplog
        tail = oplog.tail(entity_id) if self._collection.definition.oplog else None
        last = None
        for entry in () if tail is None else oplog.newest_first(entity_id, tail.seq):
            if (commit_in(entry) or 0) > upto:
                last = entry.seq - 1
        if tail is None or last == 0:
            return None
        return oplog.state_at(entity_id, tail.seq if last is None else last)


def _about(title: str, differ: int) -> str:
    return f"{title}; documents that differ from the table: {differ}"
