"""Checks once, before the first write, whether a store honors write conditions.

"S3 compatible" is not enough: some stores ignore write conditions, others let several racing writers win. The probe
writes a few small objects under `.worm.probe/<ulid>/`, races threads on them, and removes them again (in a versioned
bucket their versions remain, for a lifecycle rule to expire). It uses single attempts: nothing is resolved or repeated.
A probe that gets no clear answer raises `Unavailable` or `Denied`. It never calls a store unsafe because the store is
unreachable.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING
from weakref import WeakSet

from worm.clock import Ids
from worm.errors import Denied, Unavailable, UnsafeStore
from worm.store.base import PUT_ID, Attempt, AttemptOutcome, Condition, IfAbsent, IfMatch, Store
from worm.values import dataclass

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor


PROBE_PREFIX = ".worm.probe/"
RACERS = 16
ROUNDS = 2
_trusted: WeakSet[Store] = WeakSet()
_NOBODY = '"00000000000000000000000000000000"'


@dataclass(frozen=True, slots=True)
class Check:
    """One promise, whether the store kept it, and what the probe saw."""

    name: str
    passed: bool
    seen: str


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """What the probe saw of one store."""

    url: str
    checks: tuple[Check, ...]

    @property
    def is_safe(self) -> bool:
        return all(check.passed for check in self.checks)

    @property
    def failures(self) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if not check.passed)


def probe_store(store: Store, *, ids: Ids | None = None, racers: int = RACERS, rounds: int = ROUNDS) -> ProbeReport:
    """Run every check, and the races only if all others pass. Takes about 2 * rounds * racers + 20 requests."""
    probe = _Probe(store, f"{PROBE_PREFIX}{(ids or Ids.system()).ulid()}/", racers)
    from concurrent.futures import ThreadPoolExecutor

    try:
        checks = probe.single_checks()
        with ThreadPoolExecutor(racers, "worm-probe") as pool:
            for number in range(rounds):
                if all(check.passed for check in checks):
                    checks += probe.races(number, pool)
        return ProbeReport(store.url, tuple(checks))
    finally:
        probe.clean_up()


def ensure_safe_once(store: Store, *, ids: Ids | None = None) -> None:
    """`ensure_safe`, unless this store was already checked or lives in the memory of this process."""
    if store not in _trusted and not store.url.startswith("memory:"):
        ensure_safe(store, ids=ids)


def trust(store: Store) -> None:
    """Skip the probe for this store: it is known to honor write conditions."""
    _trusted.add(store)


def ensure_safe(store: Store, *, ids: Ids | None = None) -> None:
    """`require_safe`, remembered: a store that passed gets a marker, so the next session checks with one GET.

    The marker's name contains the endpoint and the URL that were probed. So a bucket that was copied with its markers
    is probed again in its new place.
    """
    marker = f"{PROBE_PREFIX}passed-{hashlib.sha256(store.identity.encode()).hexdigest()[:16]}.json"
    if store.get(marker) is None:
        report = require_safe(store, ids=ids)
        checks = {check.name: check.seen for check in report.checks}
        shape = {"version": 1, "store": store.identity, "checks": checks}
        store.put(marker, json.dumps(shape, sort_keys=True).encode())
    trust(store)


def require_safe(store: Store, *, ids: Ids | None = None) -> ProbeReport:
    """The report, or `UnsafeStore` with every broken promise."""
    report = probe_store(store, ids=ids)
    if not report.is_safe:
        broken = "; ".join(f"{check.name}: {check.seen}" for check in report.failures)
        raise UnsafeStore(
            f"{store.url} does not honor write conditions ({broken})",
            hint="use a store with conditional writes (If-None-Match and If-Match on PutObject); reading is still safe",
        )
    return report


class _Probe:
    """The checks on one set of keys."""

    def __init__(self, store: Store, prefix: str, racers: int) -> None:
        self._store = store
        self._prefix = prefix
        self._racers = racers
        self._keys: list[str] = []

    def races(self, number: int, pool: ThreadPoolExecutor) -> list[Check]:
        """Race creates, then race replacements of the winner. The pool has a thread for each racer."""
        key = self._key(f"race-{number}")
        created = self._race(pool, key, IfAbsent(), f"create-{number}")
        checks = [self._one_winner("racing creates have one winner", key, created, f"create-{number}")]
        current = self._store.head(key)
        if current is not None:
            replaced = self._race(pool, key, IfMatch(current.etag), f"replace-{number}")
            checks.append(self._one_winner("racing replacements have one winner", key, replaced, f"replace-{number}"))
        return checks

    def single_checks(self) -> list[Check]:
        """The checks that a single writer can make."""
        checks: list[Callable[[], Check]] = [
            self._stale_match_is_refused,
            self._match_on_absent_is_refused,
            self._second_create_is_refused,
            self._create_after_delete_wins,
            self._reads_see_writes,
            self._metadata_is_kept,
            self._listings_see_writes,
        ]
        return [check() for check in checks]

    def clean_up(self) -> None:
        for key in self._keys:
            self._store.delete(key)

    def _stale_match_is_refused(self) -> Check:
        key = self._key("stale")
        self._store.put(key, b"first")
        outcome = self._attempt(key, b"stale", IfMatch(_NOBODY)).outcome
        return Check("a stale If-Match is refused", outcome is AttemptOutcome.REFUSED, outcome.value)

    def _match_on_absent_is_refused(self) -> Check:
        key = self._key("absent")
        outcome = self._attempt(key, b"ghost", IfMatch(_NOBODY)).outcome
        refused = outcome in (AttemptOutcome.GONE, AttemptOutcome.REFUSED)
        return Check("If-Match on an absent key is refused", refused, outcome.value)

    def _second_create_is_refused(self) -> Check:
        key = self._key("twice")
        self._store.put(key, b"first")
        outcome = self._attempt(key, b"second", IfAbsent()).outcome
        return Check("a second create is refused", outcome is AttemptOutcome.REFUSED, outcome.value)

    def _create_after_delete_wins(self) -> Check:
        key = self._key("again")
        self._store.put(key, b"first")
        self._store.delete(key)
        outcome = self._attempt(key, b"second", IfAbsent()).outcome
        if outcome is AttemptOutcome.REFUSED and self._store.get(key) is not None:
            raise _unclear("a write landed and was also refused: something sent it twice", key)
        return Check("a create after a delete wins", outcome is AttemptOutcome.LANDED, outcome.value)

    def _reads_see_writes(self) -> Check:
        key = self._key("read")
        seen = []
        for body in (b"one", b"two"):
            self._store.put(key, body)
            found = self._store.get(key)
            seen.append(found.body if found else None)
        return Check("a read sees the write before it", seen == [b"one", b"two"], repr(seen))

    def _metadata_is_kept(self) -> Check:
        key = self._key("metadata")
        self._attempt(key, b"body", IfAbsent())
        found = self._store.head(key)
        kept = found.metadata.get(PUT_ID) if found else None
        return Check("metadata is kept", kept == "probe", repr(kept))

    def _listings_see_writes(self) -> Check:
        key = self._key("listed")
        self._store.put(key, b"body")
        listed = [row.key for row in self._store.list(self._prefix)]
        return Check("a listing sees the write before it", key in listed, f"{len(listed)} keys")

    def _race(self, pool: ThreadPoolExecutor, key: str, condition: Condition, name: str) -> list[Attempt]:
        barrier = threading.Barrier(self._racers)

        def run(number: int) -> Attempt:
            barrier.wait(timeout=60)
            return self._store.attempt_put(key, f"{name}-{number}".encode(), condition, {PUT_ID: "probe"})

        return list(pool.map(run, range(self._racers)))

    def _one_winner(self, promise: str, key: str, attempts: Sequence[Attempt], name: str) -> Check:
        winners = [number for number, attempt in enumerate(attempts) if attempt.outcome is AttemptOutcome.LANDED]
        if len(winners) <= 1:
            for attempt in attempts:
                _require_clear(attempt, key)
        found = self._store.get(key)
        body = found.body if found else None
        if not winners and (body or b"").startswith(f"{name}-".encode()):
            raise _unclear("a write landed, but the store did not answer", key)
        if not winners and any(attempt.outcome is AttemptOutcome.CONTENDED for attempt in attempts):
            raise _unclear("every writer lost to another one", key)
        passed = len(winners) == 1 and body == f"{name}-{winners[0]}".encode()
        return Check(promise, passed, f"{len(winners)} of {len(attempts)} writers won")

    def _attempt(self, key: str, body: bytes, condition: Condition) -> Attempt:
        attempt = self._store.attempt_put(key, body, condition, {PUT_ID: "probe"})
        _require_clear(attempt, key)
        if attempt.outcome is AttemptOutcome.CONTENDED:
            raise _unclear(attempt.reason, key)
        return attempt

    def _key(self, name: str) -> str:
        key = f"{self._prefix}{name}"
        self._keys.append(key)
        return key


def _require_clear(attempt: Attempt, key: str) -> None:
    if attempt.outcome is AttemptOutcome.UNKNOWN:
        raise _unclear(attempt.reason, key)
    if attempt.outcome is AttemptOutcome.DENIED:
        raise Denied(f"the probe is not allowed to write: {attempt.reason}", key=key)


def _unclear(reason: str, key: str) -> Unavailable:
    return Unavailable(f"the probe got no clear answer: {reason}", key=key, hint="try again")
