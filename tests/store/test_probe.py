"""A store is trusted with writes only after it kept its word about conditions (F47)."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.emulators import new_bucket
from worm.errors import Denied, Unavailable, UnsafeStore
from worm.store.base import Attempt, AttemptOutcome, Condition, IfAbsent, Store
from worm.store.faulty_store import Fault, FaultyStore, Operation
from worm.store.file import FileStore
from worm.store.memory import MemoryStore
from worm.store.probe import PROBE_PREFIX, RACERS, probe_store, require_safe
from worm.store.s3 import S3Store


def assert_safe_and_clean(store: Store) -> None:
    report = require_safe(store)
    assert (report.is_safe, report.failures, report.url) == (True, (), store.url)
    assert [row.key for row in store.list(PROBE_PREFIX)] == []


@pytest.mark.parametrize("versioned", [False, True])
def test_memory_is_safe(versioned: bool) -> None:
    assert_safe_and_clean(MemoryStore(versioned=versioned))


def test_files_are_safe(tmp_path: Path) -> None:
    assert_safe_and_clean(FileStore(tmp_path, durability="process"))


@pytest.mark.parametrize("versioned", [pytest.param(False, marks=pytest.mark.slow), True])
def test_moto_is_safe(moto_endpoint: str, versioned: bool) -> None:
    assert_safe_and_clean(S3Store(new_bucket(moto_endpoint, versioned=versioned), endpoint_url=moto_endpoint))


@pytest.mark.localstack
def test_localstack_is_safe(localstack_endpoint: str) -> None:
    assert_safe_and_clean(S3Store(new_bucket(localstack_endpoint), endpoint_url=localstack_endpoint))


def test_a_store_that_ignores_conditions_is_refused_with_the_reasons(rclone_endpoint: str) -> None:
    store = S3Store("probe", endpoint_url=rclone_endpoint)
    with pytest.raises(UnsafeStore) as refused:
        require_safe(store)
    assert str(refused.value) == (
        "s3://probe does not honor write conditions (a stale If-Match is refused: landed; If-Match on an absent key is "
        "refused: landed; a second create is refused: landed) (use a store with conditional writes (If-None-Match and "
        "If-Match on PutObject); reading is still safe)"
    )
    assert [row.key for row in store.list(PROBE_PREFIX)] == []


class Racy(MemoryStore):
    """Checks the condition, then writes: a race in between has several winners."""

    def __init__(self) -> None:
        super().__init__()
        self._checked = threading.Barrier(RACERS, timeout=30)

    def attempt_put(self, key: str, body: bytes, condition: Condition, metadata: Mapping[str, str]) -> Attempt:
        found = self.head(key)
        if "/race-" in key:
            self._checked.wait()
        if (found is not None) if isinstance(condition, IfAbsent) else (found is None or found.etag != condition.etag):
            return Attempt(AttemptOutcome.REFUSED)
        return Attempt(AttemptOutcome.LANDED, self.put(key, body, metadata=metadata).etag)


def test_a_store_with_several_winners_of_one_race_is_refused() -> None:
    report = probe_store(Racy())
    assert {check.name for check in report.failures} == {
        "racing creates have one winner",
        "racing replacements have one winner",
    }


class Careless(MemoryStore):
    """Breaks one promise."""

    def __init__(self, promise: str) -> None:
        super().__init__()
        self._promise = promise

    def attempt_put(self, key: str, body: bytes, condition: Condition, metadata: Mapping[str, str]) -> Attempt:
        if self._promise == "metadata is kept":
            metadata = {}
        attempt = super().attempt_put(key, body, condition, metadata)
        if self._promise == "If-Match on an absent key is refused" and attempt.outcome is AttemptOutcome.GONE:
            won = self.put(key, body, metadata=metadata)
            return Attempt(AttemptOutcome.LANDED, won.etag)
        return attempt


@pytest.mark.parametrize("promise", ["metadata is kept", "If-Match on an absent key is refused"])
def test_one_broken_promise_is_enough(promise: str) -> None:
    report = probe_store(Careless(promise))
    assert [check.name for check in report.failures] == [promise]
    with pytest.raises(UnsafeStore, match=promise):
        require_safe(Careless(promise))


@pytest.mark.parametrize(("fault", "error"), [(Fault.UNAVAILABLE, Unavailable), (Fault.DENIED, Denied)])
def test_a_store_that_is_away_or_closed_is_not_called_unsafe(fault: Fault, error: type[Exception]) -> None:
    inner = MemoryStore()
    store = FaultyStore(inner)
    store.fail_next("attempt_put", fault, times=16)
    with pytest.raises(error):
        require_safe(store)
    assert list(inner.list("")) == []


@pytest.mark.parametrize("fault", [Fault.CONFLICT, Fault.OWN_REFUSAL, Fault.LOST_RESPONSE])
def test_one_odd_answer_at_any_write_of_the_probe_does_not_make_a_store_unsafe(fault: Fault) -> None:
    """S3 may answer 409 to any conditional write, and what is between may send one again, whose second try then meets
    the first. Such a store was refused for writing."""
    answers: set[str] = set()
    for number in range(1, 80):
        store = StruckOnce(MemoryStore(), fault, number)
        try:
            assert probe_store(store, racers=4).is_safe
            answers.add("safe")
        except Unavailable:
            answers.add("no clear answer")
        if store.left > 0:
            break
    assert number > 15
    assert answers == {"safe", "no clear answer"}


class StruckOnce(FaultyStore):
    """One conditional write, the n-th, meets the fault."""

    def __init__(self, inner: MemoryStore, fault: Fault, number: int) -> None:
        super().__init__(inner)
        self._fault, self.left = fault, number

    def _next_fault(self, operation: Operation) -> Fault | None:
        if operation != "attempt_put":
            return None
        with self._lock:
            self.left -= 1
            return self._fault if self.left == 0 else None
