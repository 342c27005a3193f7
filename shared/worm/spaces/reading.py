"""Entities on a branch as of a commit, the commit of a time, and a cache of recently read or written states.

A revision never changes, so a cache entry is right as long as the head is the revision that it was stored for. Other
writers' commits need no notification.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import cast

from worm import forks
from worm.errors import NotFound
from worm.formats import Position, dumps, position_of
from worm.spaces.backend import Backend, Looking, Moment, Reads
from worm.spaces.replay import UNKNOWN, EntityState, Known, content, line_of, load, nothing_known, visible_heads
from worm.spaces.results import Entity, Presence, parsed_document
from worm.spaces.rows import MAIN, TRUNK, Pointer, branch_name, time_text

_ENTRY_BYTES = 400
"""The approximate bytes of an entry without its document."""


class StateCache:
    """The newest known state of entities by branch and id, within a limit of bytes; the least recently used go
    first."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._lock = forks.new_lock()
        self._begin()
        forks.in_child(self._begin)

    def _begin(self) -> None:
        self._states: OrderedDict[tuple[str, str], EntityState] = OrderedDict()
        self._bytes = 0
        self._first, self._last = 0, -1

    def clear(self) -> None:
        with self._lock:
            self._begin()

    @property
    def keeps(self) -> bool:
        """Whether the cache is enabled."""
        return self._bytes_max >= _ENTRY_BYTES

    @property
    def size(self) -> int:
        return self._bytes

    def get(self, branch: str, id: str, pointer: Pointer) -> EntityState | None:
        """The state at this very revision."""
        return self.get_all(branch, {id: pointer})[id] if self._states else None

    def get_all(self, branch: str, pointers: Mapping[str, Pointer]) -> dict[str, EntityState | None]:
        """The states at these very revisions; None for unknown ones."""
        found: dict[str, EntityState | None] = {}
        states = self._states
        with self._lock:
            for entity, pointer in pointers.items():
                key = (branch, entity)
                state = states.get(key)
                if state is None or state.pointer != pointer:
                    found[entity] = None
                else:
                    states.move_to_end(key)
                    found[entity] = state
        return found

    def current(self, branch: str, ids: Iterable[str], newest: int) -> dict[str, EntityState]:
        """The states that nobody can have changed: written by the commits up to `newest`, which are all in this
        cache."""
        found: dict[str, EntityState] = {}
        states = self._states
        with self._lock:
            if newest != self._last:
                return found
            for entity in ids:
                key = (branch, entity)
                state = states.get(key)
                if state is not None and state.pointer.seq >= self._first:
                    states.move_to_end(key)
                    found[entity] = state
        return found

    def put_commit(self, seq: int, states: Mapping[str, EntityState]) -> None:
        """Add everything that a commit wrote, once it is durable. Without a gap to the previous one, both are known
        completely."""
        self.put_all(states)
        with self._lock:
            if seq > self._last:
                self._first = self._first if seq == self._last + 1 else seq
                self._last = seq

    def put(self, id: str, state: EntityState) -> None:
        self.put_all({id: state})

    def put_all(self, new: Mapping[str, EntityState]) -> None:
        """Only for committed states: the seq of a failed commit is reused."""
        if not self.keeps:
            return
        states = self._states
        with self._lock:
            for entity, state in new.items():
                key = (state.home, entity)
                old = states.get(key)
                if old is not None:
                    if old.pointer > state.pointer or (old.pointer == state.pointer and state.depth == UNKNOWN):
                        continue
                    self._bytes -= _size(entity, old)
                size = _size(entity, state)
                if size <= self._bytes_max:
                    states[key] = state
                    states.move_to_end(key)
                    self._bytes += size
                elif old is not None:
                    del states[key]
            while self._bytes > self._bytes_max:
                (_, gone_id), gone = states.popitem(last=False)
                self._bytes -= _size(gone_id, gone)


def _size(id: str, state: EntityState) -> int:
    return _ENTRY_BYTES + len(id) + (0 if state.body is None else len(state.body))


_DELETED, _PRESENT = Presence.DELETED, Presence.PRESENT

Remember = Callable[[str, EntityState], None]
"""Keep the state of an entity for the next read."""


def forget(id: str, state: EntityState) -> None:
    pass


def seq_of(reads: Reads, at: Position | None, newest: int, path: str = "at") -> int:
    """The commit that a caller means: a seq, the last one at or before a time, or the newest."""
    if at is None:
        return newest
    place = position_of(at, path)
    if isinstance(place, datetime):
        return _seq_at(reads, place, newest)
    if place > newest:
        raise NotFound.past_the_end("commit", place, newest)
    return place


def entities(
    reads: Reads,
    branch: str,
    ids: Sequence[str],
    at: int,
    newest: int,
    known: Known = nothing_known,
    remember: Remember = forget,
) -> dict[str, Entity]:
    """All of them as of one commit, in the order of `ids`."""
    states = load(reads, line_of(reads, branch, at), dict.fromkeys(ids), known)
    for entity, state in states.items():
        remember(entity, state)
    missing = [entity for entity in dict.fromkeys(ids) if entity not in states]
    later = visible_heads(reads, line_of(reads, branch, newest), missing) if missing and at < newest else {}
    return {entity: entity_of(entity, branch, at, states.get(entity), is_later=entity in later) for entity in ids}


def looking(backend: Backend) -> Callable[[], AbstractContextManager[Moment]] | None:
    """How the backend reads a moment, if it can."""
    return cast(Looking, backend).look if issubclass(type(backend), Looking) else None


def main_entity(rows: Moment, id: str, at: Position | None, cache: StateCache) -> Entity:
    """An entity on the main branch, which inherits nothing: a shortcut with the same result as `entities`."""
    newest, head = rows.current(MAIN, id)
    seq = newest if at is None else seq_of(rows, at, newest)
    if head is None:
        return Entity(id, TRUNK, seq, Presence.NEVER, 0, None)
    if head.seq > seq:
        head = rows.past_head(MAIN, id, seq)
        if head is None:
            return Entity(id, TRUNK, seq, Presence.EMPTY, 0, None)
    state = cache.get(MAIN, id, head)
    if state is not None:
        return entity_of(id, MAIN, seq, state)
    key = f"{id!r} on {MAIN!r}"
    body, document, patches = content(rows, MAIN, id, head, seq, key)
    if seq == newest and cache.keeps:
        kept = dumps(document) if document is not None else body.encode() if isinstance(body, str) else body
        cache.put(id, EntityState(MAIN, head, kept, patches))
    if document is None and body is not None:
        document = parsed_document(body, key)
    return Entity(id, TRUNK, seq, _DELETED if document is None else _PRESENT, head.seq, document)


def entity_of(id: str, branch: str, at: int, state: EntityState | None, *, is_later: bool = False) -> Entity:
    branch = branch_name(branch)
    if state is None:
        return Entity(id, branch, at, Presence.EMPTY if is_later else Presence.NEVER, 0, None)
    if state.body is None:
        return Entity(id, branch, at, _DELETED, state.pointer.seq, None)
    value = parsed_document(state.body, f"{id!r} on {state.home!r}")
    return Entity(id, branch, at, _PRESENT, state.pointer.seq, value)


def _seq_at(reads: Reads, moment: datetime, newest: int) -> int:
    """Times never decrease in the order of commits, so bisecting finds it."""
    text = time_text(moment)
    low, high = 0, newest  # the answer is at or after `low`, and before or at `high`
    while low < high:
        middle = (low + high + 1) // 2
        row = reads.commit_at(middle)
        if row is None or row.seq <= low or row.created_at <= text:  # no commit between, or an earlier one
            low = middle
        else:
            high = row.seq - 1
    return low
