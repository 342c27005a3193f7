"""Ambiguous writes are resolved by reading, once, in bounded time (RELIABILITY.md 2.2: F01 to F07, F48)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from worm.clock import Ids, VirtualClock
from worm.errors import CommitStateUnknown, Denied, Unavailable
from worm.store.base import (
    PUT_ID,
    Attempt,
    AttemptOutcome,
    Condition,
    Gone,
    IfAbsent,
    Lost,
    Object,
    Won,
    content_etag,
)
from worm.store.faulty_store import Fault, FaultyStore
from worm.store.memory import MemoryStore
from worm.store.resolve import DEADLINE_SECONDS, MAX_ATTEMPTS, resolve_delete, resolve_put


@pytest.fixture
def inner() -> MemoryStore:
    return MemoryStore(versioned=True, clock=VirtualClock())


@pytest.fixture
def faulty(inner: MemoryStore) -> FaultyStore:
    return FaultyStore(inner, seed=1)


def bodies(store: MemoryStore, key: str) -> list[bytes | None]:
    """Every version of the key, newest first; None is a delete marker."""
    found = [store.get(key, version_id=row.version_id) for row in store.versions(key)]
    return [None if item is None else item.body for item in found]


def current(store: MemoryStore, key: str) -> Object:
    found = store.get(key)
    assert found is not None
    return found


@pytest.mark.parametrize("fault", [Fault.LOST_RESPONSE, Fault.OWN_REFUSAL])
def test_a_create_that_landed_without_a_clear_answer_is_won_and_stored_once(
    inner: MemoryStore, faulty: FaultyStore, fault: Fault
) -> None:
    """Otherwise a batch is committed twice: the retry at the next number meets its own first copy."""
    faulty.fail_next("attempt_put", fault)
    won = faulty.put_if_absent("slot", b"mine")
    assert won == Won(content_etag(b"mine"), current(inner, "slot").version_id)
    assert bodies(inner, "slot") == [b"mine"]
    assert faulty.writes == 1


@pytest.mark.parametrize("fault", [Fault.LOST_RESPONSE, Fault.OWN_REFUSAL])
def test_a_replacement_that_landed_without_a_clear_answer_is_won_and_its_etag_serves_the_next(
    inner: MemoryStore, faulty: FaultyStore, fault: Fault
) -> None:
    """Otherwise the manifest's writer reports a conflict with itself (F07)."""
    first = inner.put("manifest", b"1")
    faulty.fail_next("attempt_put", fault)
    second = faulty.put_if_match("manifest", b"2", first.etag)
    assert isinstance(second, Won)
    assert isinstance(faulty.put_if_match("manifest", b"3", second.etag), Won)
    assert bodies(inner, "manifest") == [b"3", b"2", b"1"]


@pytest.mark.parametrize("fault", [Fault.CONFLICT, Fault.UNAVAILABLE, Fault.LOST_REQUEST])
def test_a_write_that_did_not_land_is_sent_again_with_the_same_put_id(
    inner: MemoryStore, faulty: FaultyStore, fault: Fault
) -> None:
    """A 409 taken for a lost race would drop the write (F04, F05)."""
    faulty.fail_next("attempt_put", fault, times=3)
    assert isinstance(faulty.put_if_absent("slot", b"mine"), Won)
    first = current(inner, "slot")
    faulty.fail_next("attempt_put", fault, times=3)
    assert isinstance(faulty.put_if_match("slot", b"next", first.etag), Won)
    assert bodies(inner, "slot") == [b"next", b"mine"]
    assert faulty.writes == 8


def test_a_create_that_lands_after_it_was_read_as_absent_is_stored_once(
    inner: MemoryStore, faulty: FaultyStore
) -> None:
    """F03: the late copy and the repeated one carry one put id, and the condition lets one of them in."""
    faulty.fail_next("attempt_put", Fault.DELAYED)
    assert isinstance(faulty.put_if_absent("slot", b"mine"), Won)
    faulty.land_delayed()
    assert bodies(inner, "slot") == [b"mine"]


def test_a_late_copy_that_arrives_before_the_repeated_one_wins_for_it(inner: MemoryStore) -> None:
    """The repeated PUT is refused by our own late copy; that is a success, not a loss."""
    faulty = FaultyStore(inner, seed=1, delay_operations=2)
    faulty.fail_next("attempt_put", Fault.DELAYED)
    won = faulty.put_if_absent("slot", b"mine")
    assert won == Won(content_etag(b"mine"), current(inner, "slot").version_id)
    assert (bodies(inner, "slot"), faulty.writes) == ([b"mine"], 2)


def test_a_late_replacement_never_overwrites_what_came_after(inner: MemoryStore, faulty: FaultyStore) -> None:
    first = inner.put("manifest", b"1")
    faulty.fail_next("attempt_put", Fault.DELAYED)
    second = faulty.put_if_match("manifest", b"2", first.etag)
    assert isinstance(second, Won)
    inner.put_if_match("manifest", b"3", second.etag)
    faulty.land_delayed()
    assert bodies(inner, "manifest") == [b"3", b"2", b"1"]


@pytest.mark.parametrize("fault", [Fault.CONFLICT, Fault.UNAVAILABLE])
def test_a_store_that_never_decides_ends_as_unknown_in_bounded_time(
    inner: MemoryStore, faulty: FaultyStore, fault: Fault
) -> None:
    """F06: no acknowledgement, no endless loop."""
    faulty.fail_next("attempt_put", fault, times=1000)
    with pytest.raises(CommitStateUnknown) as unknown:
        faulty.put_if_absent("slot", b"mine")
    assert unknown.value.key == "slot"
    assert faulty.writes <= MAX_ATTEMPTS
    assert 0 < faulty.clock.monotonic() <= DEADLINE_SECONDS
    assert inner.get("slot") is None


@pytest.mark.parametrize("fault", [Fault.DENIED, Fault.UNAVAILABLE])
@pytest.mark.parametrize("landed", [True, False])
def test_a_read_back_that_never_answers_ends_as_unknown_and_leaves_the_object_alone(
    inner: MemoryStore, faulty: FaultyStore, fault: Fault, landed: bool
) -> None:
    """F48: a 403 on the way back (no ListBucket, expired credentials) says neither lost nor absent."""
    faulty.fail_next("attempt_put", Fault.LOST_RESPONSE if landed else Fault.LOST_REQUEST)
    faulty.fail_next("get", fault, times=1000)
    with pytest.raises(CommitStateUnknown):
        faulty.put_if_absent("slot", b"mine")
    assert bodies(inner, "slot") == ([b"mine"] if landed else [])
    assert faulty.writes == 1


def test_a_read_back_that_fails_twice_is_repeated(inner: MemoryStore, faulty: FaultyStore) -> None:
    faulty.fail_next("attempt_put", Fault.LOST_RESPONSE)
    faulty.fail_next("get", Fault.UNAVAILABLE, times=2)
    assert isinstance(faulty.put_if_absent("slot", b"mine"), Won)
    assert bodies(inner, "slot") == [b"mine"]


def test_a_refusal_of_the_credentials_is_final_when_nothing_can_have_landed(
    inner: MemoryStore, faulty: FaultyStore
) -> None:
    faulty.fail_next("attempt_put", Fault.DENIED)
    with pytest.raises(Denied):
        faulty.put_if_absent("slot", b"mine")
    assert (faulty.writes, inner.requests.snapshot()) == (1, {})


def test_a_refusal_of_the_credentials_after_a_write_that_may_have_landed_is_settled_by_reading(
    inner: MemoryStore, faulty: FaultyStore
) -> None:
    faulty.fail_next("attempt_put", Fault.LOST_REQUEST)
    faulty.fail_next("attempt_put", Fault.DENIED)
    assert isinstance(faulty.put_if_absent("slot", b"mine"), Won)
    assert bodies(inner, "slot") == [b"mine"]


def test_anothers_object_under_a_create_is_a_loss_and_says_when_ours_may_have_been_there(
    inner: MemoryStore, faulty: FaultyStore
) -> None:
    inner.put_if_absent("slot", b"theirs")
    assert faulty.put_if_absent("slot", b"mine") == Lost(current(inner, "slot"), in_doubt=False)
    faulty.fail_next("attempt_put", Fault.LOST_REQUEST)
    assert faulty.put_if_absent("slot", b"mine") == Lost(current(inner, "slot"), in_doubt=True)


def test_equal_bytes_of_another_writer_are_not_ours(inner: MemoryStore, faulty: FaultyStore) -> None:
    """Two workers that write the same bytes: only one of them created the object."""
    inner.put_if_absent("claim", b"same")
    assert faulty.put_if_absent("claim", b"same") == Lost(current(inner, "claim"))


class Interfering(FaultyStore):
    """Another writer acts right before one of our reads: by default the first, which resolves the first attempt."""

    interfere: Callable[[], object] | None = None
    undisturbed_reads = 0

    def get(self, key: str, *, version_id: str | None = None, max_bytes: int | None = None) -> Object | None:
        if self.undisturbed_reads:
            self.undisturbed_reads -= 1
        elif self.interfere is not None:
            act, self.interfere = self.interfere, None
            act()
        return super().get(key, version_id=version_id, max_bytes=max_bytes)


@pytest.mark.parametrize("landed", [True, False])
def test_a_replacement_in_doubt_under_anothers_object_is_unknown_not_lost(inner: MemoryStore, landed: bool) -> None:
    """Ours may have been stored and replaced before we looked; 'lost' would deny a change that is in history."""
    first = inner.put("doc", b"1")
    store = Interfering(inner, seed=1)
    store.fail_next("attempt_put", Fault.LOST_RESPONSE if landed else Fault.LOST_REQUEST)
    store.interfere = lambda: inner.put("doc", b"theirs")
    with pytest.raises(CommitStateUnknown, match="another write is at the key"):
        store.put_if_match("doc", b"mine", first.etag)
    assert current(inner, "doc").body == b"theirs"


def test_a_replacement_in_doubt_of_a_key_that_is_gone_is_unknown_not_gone(inner: MemoryStore) -> None:
    first = inner.put("doc", b"1")
    store = Interfering(inner, seed=1)
    store.fail_next("attempt_put", Fault.LOST_RESPONSE)
    store.interfere = lambda: inner.delete("doc")
    with pytest.raises(CommitStateUnknown, match="the key is gone"):
        store.put_if_match("doc", b"mine", first.etag)
    assert inner.get("doc") is None


def test_doubt_about_an_early_attempt_outlives_later_clear_answers(inner: MemoryStore) -> None:
    """Unknown, then a plain conflict, then another's object: the first copy may still have been stored in between."""
    first = inner.put("doc", b"1")
    store = Interfering(inner, seed=1)
    store.fail_next("attempt_put", Fault.LOST_REQUEST)
    store.fail_next("attempt_put", Fault.CONFLICT)
    store.undisturbed_reads = 1
    store.interfere = lambda: inner.put("doc", b"theirs")
    with pytest.raises(CommitStateUnknown):
        store.put_if_match("doc", b"mine", first.etag)
    assert store.writes == 2


def test_a_conflict_followed_by_anothers_object_is_a_certain_loss(inner: MemoryStore) -> None:
    first = inner.put("doc", b"1")
    store = Interfering(inner, seed=1)
    store.fail_next("attempt_put", Fault.CONFLICT)
    store.interfere = lambda: inner.put("doc", b"theirs")
    assert store.put_if_match("doc", b"mine", first.etag) == Lost(current(inner, "doc"))
    store.fail_next("attempt_put", Fault.CONFLICT)
    store.interfere = lambda: inner.delete("doc")
    assert store.put_if_match("doc", b"mine", content_etag(b"theirs")) == Gone()


def test_a_refused_create_whose_holder_is_deleted_meanwhile_is_sent_again(inner: MemoryStore) -> None:
    inner.put("slot", b"theirs")
    store = Interfering(inner, seed=1)
    store.interfere = lambda: inner.delete("slot")
    assert isinstance(store.put_if_absent("slot", b"mine"), Won)
    assert bodies(inner, "slot") == [b"mine", None, b"theirs"]


def test_a_put_id_chosen_by_the_caller_makes_a_repeated_write_the_same_write(
    inner: MemoryStore, faulty: FaultyStore
) -> None:
    faulty.fail_next("attempt_put", Fault.LOST_RESPONSE)
    faulty.fail_next("get", Fault.UNAVAILABLE, times=MAX_ATTEMPTS)
    with pytest.raises(CommitStateUnknown):
        faulty.put_if_absent("slot", b"mine", metadata={PUT_ID: "chosen"})
    assert isinstance(faulty.put_if_absent("slot", b"mine", metadata={PUT_ID: "chosen"}), Won)
    assert bodies(inner, "slot") == [b"mine"]


@pytest.mark.parametrize("fault", [Fault.LOST_RESPONSE, Fault.LOST_REQUEST, Fault.CONFLICT])
def test_a_conditional_delete_without_a_clear_answer_ends_with_the_key_absent(
    inner: MemoryStore, faulty: FaultyStore, fault: Fault
) -> None:
    first = inner.put("doc", b"1")
    faulty.fail_next("attempt_delete", fault)
    assert isinstance(faulty.delete_if_match("doc", first.etag), Won)
    assert bodies(inner, "doc") == [None, b"1"]


def test_a_conditional_delete_in_doubt_never_removes_what_came_after(inner: MemoryStore) -> None:
    first = inner.put("doc", b"1")
    store = Interfering(inner, seed=1)
    store.fail_next("attempt_delete", Fault.LOST_REQUEST)
    store.interfere = lambda: inner.put("doc", b"theirs")
    with pytest.raises(CommitStateUnknown):
        store.delete_if_match("doc", first.etag)
    assert current(inner, "doc").body == b"theirs"


@settings(max_examples=examples(200), deadline=None)
@given(seed=st.integers(0, 2**32))
def test_under_any_faults_every_acknowledged_increment_is_stored_once(seed: int) -> None:
    """A counter whose body also lists who wrote: won means exactly once, lost means never, unknown at most once."""
    inner = MemoryStore(versioned=True, clock=VirtualClock())
    inner.put("log", b"")
    rates: dict[Fault, float] = {fault: 0.0 if fault is Fault.DENIED else 0.1 for fault in Fault}
    writers = [FaultyStore(inner, seed=seed + number, rates=rates, read_rate=0.2) for number in range(3)]
    acknowledged: list[bytes] = []
    unknown: list[bytes] = []
    for turn in range(15):
        writer, mark = writers[turn % 3], b"%d" % turn
        try:
            before = writer.get("log")
        except Unavailable:
            continue
        assert before is not None
        try:
            answer = writer.put_if_match("log", before.body + mark + b",", before.etag)
        except CommitStateUnknown:
            unknown.append(mark)
            continue
        assert isinstance(answer, (Won, Lost))
        if isinstance(answer, Won):
            acknowledged.append(mark)
    for writer in writers:
        writer.land_delayed()
    written = current(inner, "log").body.split(b",")[:-1]
    assert len(written) == len(set(written))
    assert set(acknowledged) <= set(written) <= set(acknowledged) | set(unknown)


class Scripted:
    """Answers attempts with the given answers, the last one forever; `found` is what a read finds."""

    def __init__(self, *outcomes: AttemptOutcome, found: Object | None = None, seconds: float = 0.0) -> None:
        self.clock = VirtualClock()
        self.ids = Ids.seeded(1, self.clock)
        self.sent = 0
        self._outcomes, self._found, self._seconds = outcomes, found, seconds

    def get(self, key: str, *, version_id: str | None = None, max_bytes: int | None = None) -> Object | None:
        return self._found

    def attempt_put(self, key: str, body: bytes, condition: Condition, metadata: Mapping[str, str]) -> Attempt:
        return self._answer()

    def attempt_delete(self, key: str, etag: str) -> Attempt:
        return self._answer()

    def create(self) -> object:
        return resolve_put(self, "slot", b"mine", IfAbsent(), {PUT_ID: "mine"}, ids=self.ids, clock=self.clock)

    def remove(self) -> object:
        return resolve_delete(self, "slot", '"a"', ids=self.ids, clock=self.clock)

    def _answer(self) -> Attempt:
        self.sent += 1
        self.clock.advance(self._seconds)
        outcome = self._outcomes[min(self.sent, len(self._outcomes)) - 1]
        if outcome is AttemptOutcome.GONE:
            self._found = None
        return Attempt(outcome, reason="as told")


THERE = Object("slot", '"a"', 1, VirtualClock().now(), body=b"x")


@pytest.mark.parametrize("verb", [Scripted.create, Scripted.remove])
def test_a_refusal_of_the_credentials_after_doubt_is_unknown_and_not_a_refusal(
    verb: Callable[[Scripted], object],
) -> None:
    """`Denied` says that nothing was written. The first attempt may be under way still: nobody may build on that."""
    found = THERE if verb is Scripted.remove else None
    store = Scripted(AttemptOutcome.UNKNOWN, AttemptOutcome.DENIED, found=found)
    with pytest.raises(CommitStateUnknown):
        verb(store)


def test_a_delete_in_doubt_whose_key_is_gone_at_the_second_attempt_is_won() -> None:
    """The first attempt may have removed it: `Gone` would say that it was never ours to remove."""
    store = Scripted(AttemptOutcome.UNKNOWN, AttemptOutcome.GONE, found=THERE)
    assert store.remove() == Won("")


@pytest.mark.parametrize("verb", [Scripted.create, Scripted.remove])
def test_a_store_that_always_contends_is_given_up_after_pauses(verb: Callable[[Scripted], object]) -> None:
    store = Scripted(AttemptOutcome.CONTENDED, found=THERE if verb is Scripted.remove else None)
    began = store.clock.monotonic()
    with pytest.raises(CommitStateUnknown):
        verb(store)
    assert (store.sent, store.clock.monotonic() > began) == (MAX_ATTEMPTS, True)


def test_slow_attempts_end_by_the_deadline_and_not_by_their_number() -> None:
    """Twelve attempts of half a minute would be six, in a function that has two."""
    store = Scripted(AttemptOutcome.UNKNOWN, seconds=DEADLINE_SECONDS / 2)
    with pytest.raises(CommitStateUnknown):
        store.create()
    assert store.sent == 2


def test_an_unknown_put_names_the_put_id_to_look_for_and_a_delete_has_none() -> None:
    with pytest.raises(CommitStateUnknown) as put:
        Scripted(AttemptOutcome.CONTENDED).create()
    with pytest.raises(CommitStateUnknown) as removed:
        Scripted(AttemptOutcome.CONTENDED, found=THERE).remove()
    assert put.value.hint == "read the key before you retry; if it did, its worm-put-id is mine"
    assert removed.value.hint == "read the key before you retry"


def test_an_unknown_outcome_has_the_request_id_of_the_last_attempt() -> None:
    class Silent(MemoryStore):
        def attempt_put(self, key: str, body: bytes, condition: Condition, metadata: Mapping[str, str]) -> Attempt:
            self.requests.add("PUT")
            return Attempt(AttemptOutcome.UNKNOWN, request_id=f"R{self.requests.snapshot()['PUT']}")

    clock = VirtualClock()
    store = Silent(clock=clock, ids=Ids.seeded(1, clock))
    with pytest.raises(CommitStateUnknown) as raised:
        store.put_if_absent("a", b"")
    assert raised.value.request_id == f"R{store.requests.snapshot()['PUT']}"
