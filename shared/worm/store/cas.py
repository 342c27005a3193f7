"""One JSON file kept by compare-and-swap: read (cached by etag), change, write if unchanged, else go round again.

For derived files only (manifest, index, heads): the change must be idempotent, because an unknown outcome makes us read
and apply it again. Their content never repeats (each carries a growing `revision`), so an equal etag means equal state.
A damaged file counts as absent and is replaced; its etag still guards the write."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from worm.clock import Clock, Ids, backoff
from worm.errors import CommitStateUnknown, Corrupt, Unavailable
from worm.store.base import Gone, Lost, NotModified, Object, Store, Won

T = TypeVar("T")
ATTEMPTS_MAX = 60
UNKNOWN_MAX = 3
"""Each of them has taken its full time already."""


@dataclass(frozen=True, slots=True)
class Held(Generic[T]):
    """What we believe is stored. `value` None with an etag: the file is damaged; without: there is none."""

    value: T | None
    etag: str | None
    size: int = 0
    damage: Corrupt | None = None


class CasFile(Generic[T]):
    """The file under `key`. Not for several threads at once; every worker thread has its own."""

    def __init__(
        self,
        store: Store,
        key: str,
        decode: Callable[[bytes, str], T],
        encode: Callable[[T], bytes],
        *,
        ids: Ids,
        clock: Clock,
    ) -> None:
        self.key = key
        self._store = store
        self._decode = decode
        self._encode = encode
        self._ids = ids
        self._clock = clock
        self._held: Held[T] = Held(None, None)
        self._undecoded: Object | None = None
        self.attempts = 0
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
        found = self._store.get_if_changed(self.key, self.etag)
        if found is None:
            self._take(None)
        elif not isinstance(found, NotModified):
            self._undecoded = found

    def read(self) -> T | None:
        """The current value: one conditional GET; nothing is parsed when it did not change."""
        self.refresh()
        return self.held.value

    def update(self, change: Callable[[T | None], T | None]) -> T | None:
        """Apply `change` until it is stored, or until it returns None (nothing to do). Returns what is stored now."""
        self.read()
        self._unknown = 0
        for attempt in range(ATTEMPTS_MAX):
            wanted = change(self._held.value)
            if wanted is None:
                return self._held.value
            if self._write(wanted):
                return wanted
            self._clock.sleep(backoff(self._ids, attempt, base_seconds=0.02, cap_seconds=1.0))
        raise Unavailable(
            f"{ATTEMPTS_MAX} compare-and-swap attempts lost to other writers", key=self.key, hint="retried by the queue"
        )

    def _write(self, value: T) -> bool:
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
            self.read()  # ours or not: the change is applied again to whatever is there
            return False
        if isinstance(outcome, Won):
            self._held = Held(value, outcome.etag, len(body))
            return True
        self._take(None if isinstance(outcome, Gone) else outcome.current)
        return False

    def _take(self, found: Object | None) -> None:
        self._undecoded = None
        if found is None:
            self._held = Held(None, None)
            return
        try:
            self._held = Held(self._decode(found.body, self.key), found.etag, found.size)
        except Corrupt as damage:
            self._held = Held(None, found.etag, found.size, damage)
