"""Resolves ambiguous writes. This is the only place that decides what an unclear answer of the store meant.

A conditional write whose answer is anything but success is resolved by a strong read of the key, never by the status
alone. A 412 may be our own write, seen by a hidden retry. A 409 decides nothing. After a timeout, the write may have
landed or may still land. Every attempt of one write carries the same *put id* in the object's metadata, and a retry is
always the same PUT with the same condition. The first copy that arrives makes the condition false for the others, so at
most one lands. From the second attempt on, `worm-put-try` holds the attempt's number, so that an object shows which one
stored it.
(Bodies under compare-and-swap must never repeat, because a stale If-Match would pass on an equal etag. Their writers
add a growing number and a random id.)

After a failed attempt, the read finds             and the write is
- our put id                                       `Won`, with the etag and version read
- the condition still true (absent / same etag)    re-issued after a jittered pause
- another's object, put-if-absent                  `Lost`; `in_doubt` if an earlier attempt was unknown
- another's object, put-if-match                   `Lost`; if an attempt was unknown: `CommitStateUnknown`
- nothing, put-if-match                            `Gone`; if an attempt was unknown: `CommitStateUnknown`
- no answer, or 403                                read again after a jittered pause
- any other error, once an attempt was unknown     `CommitStateUnknown`

Why the two conditions differ: put-if-absent mostly names keys that nobody overwrites (oplog entries, log slots,
claims). There, another object proves that ours was never stored. A key under put-if-match is overwritten by design: our
object may have been stored and then replaced or deleted before we looked, and no current state can show that. A caller
that folds (manifest, index, heads) tries again on `CommitStateUnknown`, because its fold is idempotent. Other callers
pass the error on. Nobody cleans up.

The budget (attempts and seconds) limits all of this; when it is used up, the outcome is `CommitStateUnknown`. In a
patient store (`S3Store`), the budget begins again when the store throttles an attempt, and the time of a read does not
count, for a quarter of an hour at most; the rules above stay. A caller may choose the put id itself (metadata
`worm-put-id`), for example to have it in the body too. If it repeats a write after `CommitStateUnknown` with the same
id and bytes, the write is recognized as the same one.

Every store inherits `ResolvedWrites`: the store makes one attempt, and this module interprets its result.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol, overload

from worm.clock import Clock, Ids, backoff
from worm.errors import CommitStateUnknown, Denied, Unavailable, WormError
from worm.store.base import (
    PUT_ID,
    PUT_TRY,
    Attempt,
    AttemptOutcome,
    Condition,
    Gone,
    IfAbsent,
    IfMatch,
    Lost,
    Object,
    Put,
    Won,
    check_different,
    check_key,
    check_metadata,
)
from worm.store.parallel import in_parallel

DEADLINE_SECONDS = 20.0
MAX_ATTEMPTS = 12


def _never(began: float) -> bool:
    return False


class Attempts(Protocol):
    """What this module needs from a store."""

    def get(self, key: str, *, version_id: str | None = None, max_bytes: int | None = None) -> Object | None: ...
    def attempt_put(self, key: str, body: bytes, condition: Condition, metadata: Mapping[str, str]) -> Attempt: ...
    def attempt_delete(self, key: str, etag: str) -> Attempt: ...


@dataclass
class _Budget:
    """The pauses between attempts of one write, and the limit on them."""

    key: str
    ids: Ids
    clock: Clock
    deadline_seconds: float
    max_attempts: int
    is_patient: Callable[[float], bool]
    put_id: str = ""
    pauses: int = 0
    counted: int = 0
    began: float = field(init=False)
    started: float = field(init=False)

    def __post_init__(self) -> None:
        self.began = self.started = self.clock.monotonic()

    def pause_after(self, attempt: Attempt) -> None:
        """Sleep before the attempt is repeated. One that a patient store throttled does not count."""
        if attempt.is_throttled and self.is_patient(self.began):
            self.counted, self.started = 0, self.clock.monotonic()
        self.pause(f"{attempt.outcome.value}: {attempt.reason}", attempt.request_id)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """The time of a read of a patient store does not count, which may have waited until the store took reads."""
        began = self.clock.monotonic()
        yield
        if self.is_patient(self.began):
            self.started += self.clock.monotonic() - began

    def pause(self, reason: str, request_id: str | None, cause: Exception | None = None) -> None:
        """Sleep before the next attempt, or raise `CommitStateUnknown` if none is left."""
        self.pauses, self.counted = self.pauses + 1, self.counted + 1
        wait = backoff(self.ids, self.pauses - 1)
        left = self.deadline_seconds - (self.clock.monotonic() - self.started)
        if self.counted >= self.max_attempts or wait >= left:
            raise self.unknown(f"gave up after {self.pauses} tries: {reason}", request_id) from cause
        self.clock.sleep(wait)

    @contextmanager
    def doubtful(self, in_doubt: bool, but: tuple[type[WormError], ...] = ()) -> Iterator[None]:
        """Once an attempt may have landed, an error of a later attempt proves nothing about the write."""
        try:
            yield
        except but:
            raise
        except WormError as error:
            if in_doubt:
                what = f"an earlier attempt had no clear answer, and then: {error.message}"
                raise self.unknown(what, error.request_id) from error
            raise

    def unknown(self, reason: str, request_id: str | None = None) -> CommitStateUnknown:
        mark = f"; if it did, its {PUT_ID} is {self.put_id}" if self.put_id else ""
        error = CommitStateUnknown(
            f"the write may or may not have landed ({reason})",
            key=self.key,
            hint=f"read the key before you retry{mark}",
        )
        error.request_id = request_id
        return error


@overload
def resolve_put(
    store: Attempts,
    key: str,
    body: bytes,
    condition: IfAbsent,
    metadata: Mapping[str, str],
    *,
    ids: Ids,
    clock: Clock,
    is_certain: bool = False,
    is_patient: Callable[[float], bool] = ...,
    deadline_seconds: float = ...,
    max_attempts: int = ...,
) -> Won | Lost: ...
@overload
def resolve_put(
    store: Attempts,
    key: str,
    body: bytes,
    condition: IfMatch,
    metadata: Mapping[str, str],
    *,
    ids: Ids,
    clock: Clock,
    is_certain: bool = False,
    is_patient: Callable[[float], bool] = ...,
    deadline_seconds: float = ...,
    max_attempts: int = ...,
) -> Won | Lost | Gone: ...
def resolve_put(
    store: Attempts,
    key: str,
    body: bytes,
    condition: Condition,
    metadata: Mapping[str, str],
    *,
    ids: Ids,
    clock: Clock,
    is_certain: bool = False,
    is_patient: Callable[[float], bool] = _never,
    deadline_seconds: float = DEADLINE_SECONDS,
    max_attempts: int = MAX_ATTEMPTS,
) -> Won | Lost | Gone:
    """Put under a condition until it is known who owns the key (see the table above)."""
    stamped = {} if is_certain and not metadata else {PUT_ID: ids.ulid(), **metadata}
    budget = _Budget(key, ids, clock, deadline_seconds, max_attempts, is_patient, stamped.get(PUT_ID, ""))
    in_doubt, number = False, 0
    while True:
        number += 1
        sent = stamped if number == 1 else {**stamped, PUT_TRY: str(number)}
        with budget.doubtful(in_doubt):
            attempt = store.attempt_put(key, body, condition, sent)
        if attempt.outcome is AttemptOutcome.LANDED:
            return Won(attempt.etag, attempt.version_id, in_doubt=budget.pauses > 0)
        in_doubt = in_doubt or _leaves_doubt(attempt, key, in_doubt)
        current = _read_back(store, budget, attempt, in_doubt)
        if current is not None and budget.put_id and current.metadata.get(PUT_ID) == budget.put_id:
            return Won(current.etag, current.version_id)
        if not _still_holds(condition, current):
            return _defeat(condition, current, in_doubt, budget)
        budget.pause_after(attempt)


def resolve_delete(
    store: Attempts,
    key: str,
    etag: str,
    *,
    ids: Ids,
    clock: Clock,
    is_patient: Callable[[float], bool] = _never,
    deadline_seconds: float = DEADLINE_SECONDS,
    max_attempts: int = MAX_ATTEMPTS,
) -> Won | Lost | Gone:
    """Delete under If-Match. After an unknown answer, an absent key is `Won`: the key is gone, as requested."""
    budget = _Budget(key, ids, clock, deadline_seconds, max_attempts, is_patient)
    in_doubt = False
    while True:
        with budget.doubtful(in_doubt):
            attempt = store.attempt_delete(key, etag)
        if attempt.outcome is AttemptOutcome.LANDED:
            return Won(attempt.etag, attempt.version_id)
        in_doubt = in_doubt or _leaves_doubt(attempt, key, in_doubt)
        current = _read_back(store, budget, attempt, in_doubt)
        if current is None and in_doubt:
            return Won("")
        if not _still_holds(IfMatch(etag), current):
            return _defeat(IfMatch(etag), current, in_doubt, budget)
        budget.pause_after(attempt)


def _leaves_doubt(attempt: Attempt, key: str, in_doubt: bool) -> bool:
    """Whether the attempt may have landed. Denied credentials are final, unless an earlier attempt may have landed."""
    if attempt.outcome is AttemptOutcome.DENIED and not in_doubt:
        error = Denied(f"the store refused the write: {attempt.reason}", key=key)
        error.request_id = attempt.request_id
        raise error
    return attempt.outcome is AttemptOutcome.UNKNOWN


def _read_back(store: Attempts, budget: _Budget, attempt: Attempt, in_doubt: bool) -> Object | None:
    """The current object. A read that fails proves nothing, so it is repeated until the budget ends."""
    while True:
        try:
            with budget.doubtful(in_doubt, but=(Unavailable, Denied)), budget.reading():
                return store.get(budget.key)
        except (Unavailable, Denied) as error:
            what = f"{attempt.outcome.value}: {attempt.reason}; the read-back failed: {error.message}"
            budget.pause(what, error.request_id or attempt.request_id, error)


def _still_holds(condition: Condition, current: Object | None) -> bool:
    """Whether the same write could still land."""
    if isinstance(condition, IfAbsent):
        return current is None
    return current is not None and current.etag == condition.etag


def _defeat(condition: Condition, current: Object | None, in_doubt: bool, budget: _Budget) -> Lost | Gone:
    """The condition can no longer hold, and the current object is not ours."""
    if isinstance(condition, IfMatch) and in_doubt:
        found = "the key is gone now" if current is None else "another write is at the key now"
        raise budget.unknown(f"an earlier attempt had no clear answer, and {found}")
    return Gone() if current is None else Lost(current, in_doubt=in_doubt)


class ResolvedWrites(ABC):
    """Put-if-absent, put-if-match and delete-if-match built from attempts and reads."""

    clock: Clock
    ids: Ids
    is_certain = False
    """Whether every attempt reports whether it landed, or raises. Such a store needs no put id to find out, so an
    object without other metadata has none."""

    def is_patient(self, began: float) -> bool:
        """Whether a request that the store throttled is tried again without counting the try. `began`: the monotonic
        time of its first try."""
        return False

    @abstractmethod
    def get(self, key: str, *, version_id: str | None = None, max_bytes: int | None = None) -> Object | None: ...

    @abstractmethod
    def attempt_put(self, key: str, body: bytes, condition: Condition, metadata: Mapping[str, str]) -> Attempt: ...

    @abstractmethod
    def attempt_delete(self, key: str, etag: str) -> Attempt: ...

    def put_if_absent(self, key: str, body: bytes, *, metadata: Mapping[str, str] | None = None) -> Won | Lost:
        checked = check_metadata(metadata, check_key(key))
        return resolve_put(
            self,
            key,
            body,
            IfAbsent(),
            checked,
            ids=self.ids,
            clock=self.clock,
            is_certain=self.is_certain,
            is_patient=self.is_patient,
        )

    def put_if_match(
        self, key: str, body: bytes, etag: str, *, metadata: Mapping[str, str] | None = None
    ) -> Won | Lost | Gone:
        checked = check_metadata(metadata, check_key(key))
        return resolve_put(
            self,
            key,
            body,
            IfMatch(etag),
            checked,
            ids=self.ids,
            clock=self.clock,
            is_certain=self.is_certain,
            is_patient=self.is_patient,
        )

    @abstractmethod
    def put(self, key: str, body: bytes, *, metadata: Mapping[str, str] | None = None) -> Won: ...

    def put_many(self, puts: Sequence[Put]) -> list[Won | Lost | Gone | WormError]:
        check_different(puts)
        return in_parallel(self._put_one, puts)

    def _put_one(self, put: Put) -> Won | Lost | Gone | WormError:
        try:
            if put.condition is None:
                return self.put(put.key, put.body, metadata=put.metadata)
            if isinstance(put.condition, IfAbsent):
                return self.put_if_absent(put.key, put.body, metadata=put.metadata)
            return self.put_if_match(put.key, put.body, put.condition.etag, metadata=put.metadata)
        except WormError as error:
            return error

    def close(self) -> None:  # noqa: B027 - not abstract: most stores keep nothing open
        """Does nothing, unless a store overrides it to release what it keeps open."""

    def delete_if_match(self, key: str, etag: str) -> Won | Lost | Gone:
        return resolve_delete(self, check_key(key), etag, ids=self.ids, clock=self.clock, is_patient=self.is_patient)
