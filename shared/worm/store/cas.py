"""One object that changes only by compare-and-swap: read it (cached by etag), change it, write it if it is unchanged,
otherwise try again. This module does not know what the object is for.

Vocabulary:
- *held*: what we believe is stored, with its etag. Every swap is conditional on that etag, so an outdated belief costs
  another round, but never loses a change.
- *change*: a function from the current value (None if there is none) to the new value, or to None for 'nothing to do'.
  It must be idempotent: after an unknown outcome, we read again and apply it to the stored value, ours or not.
- *rules*: how the object may change. The defaults suit a *derived* file (the manifest of a table, an index,
  heads): a damaged one counts as absent and is replaced, under its etag. A *root* cannot be recomputed, so a damaged
  one never counts as absent: it raises `Corrupt`. Anything that the store refuses to read or replace (in a directory: a
  FIFO, a folder, a link that leads out) is damage too, and stays.
- *numbering*: a replaced etag must never match again, so no body may repeat. A derived file carries a growing revision;
  a root gets a `version` and a random `put_id` with every swap.
- *invariants*: predicates over the current value and the new one, checked before every swap. If one does not hold, this
  program has a bug, or decoding missed some damage: `InvariantBroken`, and nothing is written.

What a failure means: `Unavailable`: other writers won too many times, and our change is not stored.
`CommitStateUnknown`: the store failed too often to say whether it stored our body."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from worm.clock import Clock, Ids, attempts
from worm.errors import CommitStateUnknown, Corrupt, Invalid, Unavailable, WormError
from worm.store.base import Gone, Lost, NotModified, Object, Store, Won
from worm.values import dataclass

T = TypeVar("T")
ATTEMPTS_MAX = 60
UNKNOWN_MAX = 3
"""How often to retry after `CommitStateUnknown`. Each attempt has already used its full time."""
Invariant = Callable[[T, T], bool]
"""Whether the step from the current value to the new one is allowed. The function's name says what must hold."""


class InvariantBroken(WormError):
    """A swap would have broken an invariant. Nothing was written. `invariant` names the predicates. It is not a
    `Corrupt`: if this program has a bug, recomputing the object would give the same wrong result."""

    def __init__(self, invariant: str, key: str) -> None:
        what = f"a change would break an invariant: {invariant.replace('_', ' ')}"
        super().__init__(what, key=key, hint="nothing was written; either the object is damaged or worm has a bug")
        self.invariant = invariant


@dataclass(frozen=True, slots=True)
class Rules(Generic[T]):
    """How an object may change. `blank` is the value of an absent object for the invariants; without it, they are first
    checked at the second swap. `numbered` takes the current value (None if there is none), the new value and a put id,
    and returns the new value with the next number."""

    is_derived: bool = True
    blank: T | None = None
    numbered: Callable[[T | None, T, str], T] | None = None
    invariants: Sequence[Invariant[T]] = ()

    def check(self, current: T | None, new: T, key: str) -> None:
        before = self.blank if current is None else current
        if before is None:
            return
        for holds in self.invariants:
            if not holds(before, new):
                raise InvariantBroken(holds.__name__, key)


@dataclass(frozen=True, slots=True)
class Held(Generic[T]):
    """What we believe is stored. `value` None means that the object is damaged (with `damage`) or absent."""

    value: T | None
    etag: str | None
    size: int = 0
    damage: Corrupt | None = None


class CasFile(Generic[T]):
    """The object under `key`. Not thread-safe; every worker thread has its own."""

    def __init__(
        self,
        store: Store,
        key: str,
        decode: Callable[[bytes, str], T],
        encode: Callable[[T], bytes],
        *,
        ids: Ids,
        clock: Clock,
        rules: Rules[T] | None = None,
    ) -> None:
        self.key = key
        self.attempts = 0
        self._store = store
        self._decode = decode
        self._encode = encode
        self._ids = ids
        self._clock = clock
        self._rules: Rules[T] = rules or Rules()
        self._held: Held[T] = Held(None, None)
        self._undecoded: Object | None = None
        self._unknown = 0

    @property
    def held(self) -> Held[T]:
        """The value that was read or written last, without a request."""
        if self._undecoded is not None:
            self._take(self._undecoded)
        return self._held

    @property
    def etag(self) -> str | None:
        """The etag that was read or written last."""
        return self._held.etag if self._undecoded is None else self._undecoded.etag

    @property
    def undecoded(self) -> bytes | None:
        """The bytes that `refresh` read, until they are decoded."""
        return None if self._undecoded is None else self._undecoded.body

    def refresh(self) -> None:
        """One conditional GET. The body is decoded on first access to `held`; a reader of bytes skips that."""
        try:
            found = self._store.get_if_changed(self.key, self.etag)
        except Invalid as refused:
            self._undecoded, self._held = None, Held(None, None, damage=self._in_the_way(refused))
            return
        if found is None:
            self._take(None)
        elif not isinstance(found, NotModified):
            self._undecoded = found

    def read(self) -> T | None:
        """The current value: one conditional GET; nothing is parsed if it did not change."""
        self.refresh()
        return self._current()

    def update(self, change: Callable[[T | None], T | None], *, is_fresh: bool = False) -> T | None:
        """Apply `change` until it is stored, or until it returns None (nothing to do). Returns the value that is stored
        now. `is_fresh`: the object was read just now, so it is not read again before the first attempt."""
        if not is_fresh:
            self.refresh()
        self._unknown = 0
        for attempt in attempts(ATTEMPTS_MAX, self._clock, self._ids, base_seconds=0.02, cap_seconds=1.0):
            if attempt > 1:
                self.refresh()  # if others write all the time, a value from before the pause always loses
            current = self._current()
            wanted = change(current)
            if wanted is None:
                return current
            if self._rules.numbered is not None:
                wanted = self._rules.numbered(current, wanted, self._ids.ulid())
            self._rules.check(current, wanted, self.key)
            if self._swap(wanted):
                return wanted
        raise Unavailable(
            f"{ATTEMPTS_MAX} compare-and-swap attempts lost to other writers",
            key=self.key,
            hint="try again; the queue retries by itself",
        )

    def _current(self) -> T | None:
        held = self.held
        if held.damage is not None and not self._rules.is_derived:
            raise held.damage
        return held.value

    def _swap(self, value: T) -> bool:
        self.attempts += 1
        body = self._encode(value)
        outcome: Won | Lost | Gone
        try:
            if self._held.etag is None:
                outcome = self._store.put_if_absent(self.key, body)
            else:
                outcome = self._store.put_if_match(self.key, body, self._held.etag)
        except CommitStateUnknown:
            self._unknown += 1
            if self._unknown >= UNKNOWN_MAX:
                raise
            self.refresh()  # ours or not: apply the change again to the stored value
            return False
        except Invalid as refused:
            raise self._in_the_way(refused) from refused
        if isinstance(outcome, Won):
            self._held = Held(value, outcome.etag, len(body))
            return True
        self._take(None if isinstance(outcome, Gone) else outcome.current)
        return False

    def _in_the_way(self, refused: Invalid) -> Corrupt:
        return Corrupt(refused.message, key=self.key, hint=refused.hint)

    def _take(self, found: Object | None) -> None:
        self._undecoded = None
        if found is None:
            self._held = Held(None, None)
            return
        try:
            self._held = Held(self._decode(found.body, self.key), found.etag, found.size)
        except Corrupt as damage:
            self._held = Held(None, found.etag, found.size, damage)
