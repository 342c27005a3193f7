"""One object that changes by compare-and-swap only: read it (cached by etag), change it, write it if it is unchanged,
else go round again. It knows nothing of what the object is for.

Vocabulary:
- *held*: what we believe is stored, with its etag. Every swap is conditional on that etag, so a belief that is out of
  date costs a round and never a lost change.
- *change*: a function from the current value (None: there is none) to the one wanted, or to None for 'nothing to do'.
  It must be idempotent: after an unknown outcome we read again and apply it to whatever is there, ours or not.
- *rules*: what may become of the object. The defaults are those of a *derived* file (the manifest of a table, an index,
  heads): a damaged one counts as absent and is replaced, under its etag. A *root*, which cannot be computed again,
  never takes damage for absence: it raises `Corrupt`. What the store refuses to read or to replace (in a directory: a
  FIFO, a folder, a link that leads out) is damage too, and stays.
- *numbering*: an etag must never fit again once it was replaced, so no body may repeat. A derived file carries a
  growing revision of its own; a root is given a `version` and a random `put_id` with every swap.
- *invariants*: predicates over the current value and the new one, asked before every swap. One that does not hold is a
  mistake in this program or damage that decoding did not see: `InvariantBroken`, and nothing is written.

What a failure means: `Unavailable`, too many others were quicker, nothing of ours is stored; `CommitStateUnknown`, the
store did not say often enough whether it took our body."""

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
"""Each of them has taken its full time already."""
Invariant = Callable[[T, T], bool]
"""Does it hold from the current value to the new one? Its name says what holds."""


class InvariantBroken(WormError):
    """A swap would have broken what always holds. Nothing was written. `invariant` names the predicates. No `Corrupt`:
    what would be computed again from the source would be as wrong, if this program has a bug."""

    def __init__(self, invariant: str, key: str) -> None:
        what = f"a change would break an invariant: {invariant.replace('_', ' ')}"
        super().__init__(what, key=key, hint="nothing was written; either the object is damaged or worm has a bug")
        self.invariant = invariant


@dataclass(frozen=True, slots=True)
class Rules(Generic[T]):
    """What may become of an object. `blank` is what an absent one counts as for the invariants; without it they are
    first asked at the second swap. `numbered` gives a new value (the second) the number after that of the current one
    (None: there is none) and a put id."""

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
    """What we believe is stored. `value` None with a damage: the object is damaged; without: there is none."""

    value: T | None
    etag: str | None
    size: int = 0
    damage: Corrupt | None = None


class CasFile(Generic[T]):
    """The object under `key`. Not for several threads at once; every worker thread has its own."""

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
        """What was read or written last, without a request."""
        if self._undecoded is not None:
            self._take(self._undecoded)
        return self._held

    @property
    def etag(self) -> str | None:
        """Of what was read or written last."""
        return self._held.etag if self._undecoded is None else self._undecoded.etag

    @property
    def undecoded(self) -> bytes | None:
        """The bytes that `refresh` read, as long as nobody asked what they mean."""
        return None if self._undecoded is None else self._undecoded.body

    def refresh(self) -> None:
        """One conditional GET. What it brings is decoded when `held` is asked for; a reader of bytes does without."""
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
        """The current value: one conditional GET; nothing is parsed when it did not change."""
        self.refresh()
        return self._current()

    def update(self, change: Callable[[T | None], T | None], *, is_fresh: bool = False) -> T | None:
        """Apply `change` until it is stored, or until it returns None (nothing to do). Returns what is stored now.
        `is_fresh`: it was read just now, so it is not read again before the first try."""
        if not is_fresh:
            self.refresh()
        self._unknown = 0
        for attempt in attempts(ATTEMPTS_MAX, self._clock, self._ids, base_seconds=0.02, cap_seconds=1.0):
            if attempt > 1:
                self.refresh()  # where others write all the time, what is older than the pause loses every time
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
            self.refresh()  # ours or not: the change is applied again to whatever is there
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
