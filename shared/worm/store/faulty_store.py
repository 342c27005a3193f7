"""A store that fails on purpose: by script (`fail_next`, `crash_at_write`) or by chance from a seed (`rates`).

Faults strike single attempts and reads of the inner store, and this store resolves its own writes through
`resolve.py`, so the real handling of ambiguity is tested. A *crash* ends the simulated process: it is a
`BaseException`, and after it every call crashes again until `revive()`, so that no clean-up code of the dead process
reaches the store. The same seed and the same calls give the same faults."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Literal, TypeVar

from worm.clock import Clock, Ids, VirtualClock
from worm.errors import Denied, Unavailable, WormError
from worm.store.base import (
    Attempt,
    AttemptOutcome,
    Condition,
    Listed,
    NotModified,
    Object,
    ObjectInfo,
    Read,
    RequestCounter,
    Store,
    Version,
    Won,
)
from worm.store.resolve import ResolvedWrites

AnswerT = TypeVar("AnswerT")
Operation = Literal["get", "head", "list", "versions", "put", "delete", "attempt_put", "attempt_delete"]
READS: tuple[Operation, ...] = ("get", "head", "list", "versions")


class Fault(Enum):
    """What goes wrong. On reads, every fault except `DENIED` is `Unavailable`."""

    CONFLICT = "409: nothing decided"
    OWN_REFUSAL = "412 to a hidden retry of a write that landed"
    UNAVAILABLE = "503: nothing applied"
    LOST_REQUEST = "time-out, nothing applied"
    LOST_RESPONSE = "time-out after the write was applied"
    DELAYED = "time-out, and the write lands later"
    DENIED = "403"


APPLIED = (Fault.OWN_REFUSAL, Fault.LOST_RESPONSE)
OUTCOMES = {
    Fault.CONFLICT: AttemptOutcome.CONTENDED,
    Fault.OWN_REFUSAL: AttemptOutcome.REFUSED,
    Fault.UNAVAILABLE: AttemptOutcome.UNKNOWN,
    Fault.LOST_REQUEST: AttemptOutcome.UNKNOWN,
    Fault.LOST_RESPONSE: AttemptOutcome.UNKNOWN,
    Fault.DELAYED: AttemptOutcome.UNKNOWN,
    Fault.DENIED: AttemptOutcome.DENIED,
}


class SimulatedCrash(BaseException):
    """The process died here. Not an `Exception`: nothing may catch and carry on."""


class FaultyStore(ResolvedWrites):
    """Wraps any store. `rates` are chances per write attempt, `read_rate` the chance of a failing read."""

    def __init__(
        self,
        inner: Store,
        *,
        seed: int = 0,
        rates: Mapping[Fault, float] | None = None,
        read_rate: float = 0.0,
        delay_operations: int = 3,
        clock: Clock | None = None,
        ids: Ids | None = None,
    ) -> None:
        self.inner = inner
        self.clock = clock or VirtualClock()
        self.ids = ids or Ids.seeded(seed, self.clock)
        self.writes = 0
        self._chance = Ids.seeded(seed ^ 0x5EED, self.clock).rng
        self._rates = dict(rates or {})
        self._read_rate = read_rate
        self._delay_operations = delay_operations
        self._operations = 0
        self._scripted: dict[Operation, deque[Fault]] = {}
        self._delayed: list[tuple[int, Callable[[], object]]] = []
        self._crash: tuple[int, Literal["before", "after"]] | None = None
        self._crashed = False
        self._lock = threading.RLock()

    def fail_next(self, operation: Operation, fault: Fault, *, times: int = 1) -> None:
        """The next calls of this operation fail like this, in the given order."""
        self._scripted.setdefault(operation, deque()).extend([fault] * times)

    def crash_at_write(self, number: int, when: Literal["before", "after"]) -> None:
        """Die before or after the n-th write (of `writes`, from 1) reaches the inner store."""
        self._crash = (number, when)

    def revive(self) -> None:
        """A new process on the same store."""
        self._crash, self._crashed = None, False

    def land_delayed(self) -> None:
        """Let every delayed write arrive now."""
        with self._lock:
            due, self._delayed = self._delayed, []
        for _, land in due:
            land()

    @property
    def url(self) -> str:
        return self.inner.url

    @property
    def identity(self) -> str:
        return self.inner.identity

    @property
    def requests(self) -> RequestCounter:
        return self.inner.requests

    def get(self, key: str, *, version_id: str | None = None, max_bytes: int | None = None) -> Object | None:
        self._before_read("get", key)
        return self.inner.get(key, version_id=version_id, max_bytes=max_bytes)

    def get_if_changed(self, key: str, etag: str | None) -> Object | NotModified | None:
        self._before_read("get", key)
        return self.inner.get_if_changed(key, etag)

    def get_range(self, key: str, start: int, length: int) -> bytes | None:
        self._before_read("get", key)
        return self.inner.get_range(key, start, length)

    def get_many(self, reads: Sequence[Read], *, max_bytes: int | None = None) -> list[Object | Exception | None]:
        def one(read: Read) -> Object | Exception | None:
            try:
                return self.get(read.key, version_id=read.version_id, max_bytes=max_bytes)
            except WormError as error:
                return error

        return [one(read) for read in reads]

    def head(self, key: str, *, version_id: str | None = None) -> ObjectInfo | None:
        self._before_read("head", key)
        return self.inner.head(key, version_id=version_id)

    def list(self, prefix: str, *, start_after: str | None = None, limit: int | None = None) -> Iterator[Listed]:
        self._before_read("list", prefix)
        return self.inner.list(prefix, start_after=start_after, limit=limit)

    def versions(self, key: str) -> Iterator[Version]:
        self._before_read("versions", key)
        return self.inner.versions(key)

    def list_versions(self, prefix: str, *, start_after: str | None = None) -> Iterator[Version]:
        self._before_read("versions", prefix)
        return self.inner.list_versions(prefix, start_after=start_after)

    def put(self, key: str, body: bytes, *, metadata: Mapping[str, str] | None = None) -> Won:
        fault, answer = self._write("put", lambda: self.inner.put(key, body, metadata=metadata))
        if fault is not None or answer is None:
            raise _error(fault or Fault.UNAVAILABLE, key)
        return answer

    def delete(self, key: str) -> None:
        fault, _ = self._write("delete", lambda: self.inner.delete(key))
        if fault is not None:
            raise _error(fault, key)

    def close(self) -> None:
        self.inner.close()

    def attempt_put(self, key: str, body: bytes, condition: Condition, metadata: Mapping[str, str]) -> Attempt:
        return self._attempt("attempt_put", lambda: self.inner.attempt_put(key, body, condition, metadata))

    def attempt_delete(self, key: str, etag: str) -> Attempt:
        return self._attempt("attempt_delete", lambda: self.inner.attempt_delete(key, etag))

    def _attempt(self, operation: Operation, apply: Callable[[], Attempt]) -> Attempt:
        fault, answer = self._write(operation, apply)
        if fault is None and answer is not None:
            return answer
        struck = fault or Fault.UNAVAILABLE
        if struck is Fault.OWN_REFUSAL and answer is not None and answer.outcome is not AttemptOutcome.LANDED:
            return answer
        return Attempt(OUTCOMES[struck], reason=f"injected {struck.value}")

    def _write(self, operation: Operation, apply: Callable[[], AnswerT]) -> tuple[Fault | None, AnswerT | None]:
        """Apply the write or not, as the fault says; returns the answer if it was applied."""
        fault = self._next_fault(operation)
        with self._lock:
            self.writes += 1
            number = self.writes
        self._crash_if(number, "before")
        answer: AnswerT | None = None
        if fault is Fault.DELAYED:
            with self._lock:
                self._delayed.append((self._operations + self._delay_operations, apply))
        elif fault is None or fault in APPLIED:
            answer = apply()
        self._crash_if(number, "after")
        return fault, answer

    def _before_read(self, operation: Operation, key: str) -> None:
        fault = self._next_fault(operation)
        if fault is not None:
            raise _error(fault, key)

    def _next_fault(self, operation: Operation) -> Fault | None:
        if self._crashed:
            raise SimulatedCrash("the process is dead; revive() starts a new one")
        self._land_due()
        with self._lock:
            scripted = self._scripted.get(operation)
            if scripted:
                return scripted.popleft()
            drawn = self._chance.random()
            if operation in READS:
                return Fault.UNAVAILABLE if drawn < self._read_rate else None
            for fault, rate in self._rates.items():
                if drawn < rate:
                    return fault
                drawn -= rate
            return None

    def _land_due(self) -> None:
        with self._lock:
            self._operations += 1
            if not self._delayed:
                return
            due = [land for when, land in self._delayed if when <= self._operations]
            self._delayed = [item for item in self._delayed if item[0] > self._operations]
        for land in due:
            land()

    def _crash_if(self, number: int, when: Literal["before", "after"]) -> None:
        if self._crash == (number, when):
            self._crashed = True
            raise SimulatedCrash(f"{when} write {number}")


def _error(fault: Fault, key: str) -> WormError:
    if fault is Fault.DENIED:
        return Denied(f"injected {fault.value}", key=key)
    return Unavailable(f"injected {fault.value}", key=key)
