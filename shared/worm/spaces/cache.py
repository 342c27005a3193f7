"""States that were read or written lately. A revision never changes, so an entry is right as long as the head is the
revision that it was kept for; nobody has to be told of other writers' commits."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping

from worm.spaces.replay import UNKNOWN, State
from worm.spaces.rows import Pointer

_ENTRY_BYTES = 400
"""What an entry takes beside its document, roughly."""


class StateCache:
    """The newest known state of entities by branch and id, within so many bytes; the longest unused go first."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._states: OrderedDict[tuple[str, str], State] = OrderedDict()
        self._bytes = 0
        self._first, self._last = 0, -1
        self._lock = threading.Lock()

    @property
    def keeps(self) -> bool:
        """Anything at all."""
        return self._bytes_max >= _ENTRY_BYTES

    @property
    def size(self) -> int:
        return self._bytes

    def get(self, branch: str, id: str, pointer: Pointer) -> State | None:
        """The state at this very revision."""
        return self.get_all(branch, {id: pointer})[id] if self._states else None

    def get_all(self, branch: str, pointers: Mapping[str, Pointer]) -> dict[str, State | None]:
        """Those at these very revisions; None where it is not known."""
        found: dict[str, State | None] = {}
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

    def current(self, branch: str, ids: Iterable[str], newest: int) -> dict[str, State]:
        """Those that nobody can have changed: written by the commits up to `newest`, which were all put here."""
        found: dict[str, State] = {}
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

    def put_commit(self, seq: int, states: Mapping[str, State]) -> None:
        """All that a commit wrote, once it is there. Without a gap to the one before, both are known whole."""
        self.put_all(states)
        with self._lock:
            if seq > self._last:
                self._first = self._first if seq == self._last + 1 else seq
                self._last = seq

    def put(self, id: str, state: State) -> None:
        self.put_all({id: state})

    def put_all(self, new: Mapping[str, State]) -> None:
        """Only of what is committed: the seq of a commit that failed is used again."""
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


def _size(id: str, state: State) -> int:
    return _ENTRY_BYTES + len(id) + (0 if state.body is None else len(state.body))
