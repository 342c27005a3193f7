"""The rate at which a process sends requests to a bucket that throttles it, alone and among others."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest

from tests.store.prefix_room import Simulation
from tests.store.scripted_s3 import Answer, ScriptedS3, scripted_s3
from worm.clock import Clock, Ids, SystemClock, VirtualClock
from worm.errors import CommitStateUnknown, Unavailable
from worm.store.base import AttemptOutcome, IfAbsent, Lost, Won
from worm.store.open import open_store
from worm.store.pace import FORGET_SECONDS, PATIENCE_SECONDS, RATE_MIN, Pace, Rate, pace_of
from worm.store.resolve import DEADLINE_SECONDS, MAX_ATTEMPTS
from worm.store.s3 import RETRY_SECONDS, TOO_FAST, TRIES, S3Store
from worm.store.s3_errors import TryAgain, attempt_of, failure_of_status

SLOW_DOWN = Answer(503, b"<Error><Code>SlowDown</Code><RequestId>R1</RequestId></Error>")


def rate(seed: int = 1) -> Rate:
    return Rate("reads", "s3://b", Ids.seeded(seed))


def sent_at(rate: Rate, per_second: float, seconds: float, start: float = 0.0) -> float:
    """Let a process send so many requests a second. The time at the end."""
    for number in range(int(per_second * seconds)):
        rate.slot(start + number / per_second)
    return start + seconds


# The rate of one process


def test_nothing_waits_until_the_store_refuses_a_request() -> None:
    free = rate()
    assert {free.slot(number / 1e6) for number in range(10_000)} == {0.0}
    assert free.per_second is None


def test_the_first_refusal_cuts_the_rate_that_was_measured() -> None:
    cut = rate()
    now = sent_at(cut, 1000, 2.5)
    cut.refused(now - 0.01, now)
    assert cut.per_second == pytest.approx(800, rel=0.05)


def test_a_refusal_of_the_first_request_hardly_delays_those_that_follow() -> None:
    """S3 refuses a request now and then. A count of one request a tenth of a second would hold up the next 400 for 28
    seconds."""
    first = rate()
    first.slot(1000.0)
    first.refused(1000.0, 1000.02)
    assert [first.slot(1000.05) for _ in range(400)][-1] < 11
    for tenth in range(1, 20):
        first.refused(1000.0 + tenth / 4, 1000.01 + tenth / 4)
    assert first.per_second == RATE_MIN, "if it was no accident, it falls at once"


def test_a_hundred_refusals_of_requests_that_were_under_way_are_one_cut() -> None:
    cut = rate()
    now = sent_at(cut, 1000, 2.0)
    for number in range(100):
        cut.refused(now - 0.05, now + number / 100)  # all were sent before the cut; the last answers come late
    assert cut.per_second == pytest.approx(800, rel=0.05)
    cut.refused(now + 0.5, now + 1.5)  # sent at the new rate, which is too high, too
    assert cut.per_second == pytest.approx(640, rel=0.05)


def test_refusals_that_follow_a_cut_within_a_second_halve_the_rate() -> None:
    cut = rate()
    now = sent_at(cut, 1000, 2.0)
    for late in (0.01, 0.05, 0.1, 0.19):
        cut.refused(now + late - 0.001, now + late)  # S3 answers for the last second: these are no news
    for step in range(1, 4):
        cut.refused(now + 0.25 * step - 0.01, now + 0.25 * step)
    assert cut.per_second == pytest.approx(100, rel=0.05)


def test_requests_are_spread_over_the_time_and_no_rate_falls_below_the_least() -> None:
    slow = rate()
    for second in range(40):
        slow.refused(second * 2.0, second * 2.0 + 1.0)
    assert slow.per_second == RATE_MIN
    waits = [slow.slot(79.0) for _ in range(100)]
    assert waits == sorted(waits)
    assert waits[-1] == pytest.approx(99 / RATE_MIN, rel=0.15)
    gaps = [after - before for before, after in pairwise(waits)]
    assert 0.5 / RATE_MIN <= min(gaps) < 0.7 / RATE_MIN, "processes that began together drift apart"
    assert 1.3 / RATE_MIN < max(gaps) <= 1.5 / RATE_MIN


def test_success_raises_the_rate_by_the_same_amount_every_second_and_a_pause_does_not() -> None:
    raised = rate()
    now = sent_at(raised, 1000, 2.0)
    raised.refused(now - 0.01, now)
    after = []
    for tenth in range(1, 31):
        raised.succeeded(now + tenth / 10)
        after.append(raised.per_second or 0.0)
    assert [round(after[at + 10] - after[at]) for at in (0, 9, 19)] == [50, 50, 50]
    raised.succeeded(now + 33.0)
    assert (raised.per_second or 0.0) - after[-1] == pytest.approx(50, abs=1)


def test_a_minute_without_a_refusal_ends_the_limit() -> None:
    ended = rate()
    ended.refused(0.0, 0.0)
    assert ended.slot(FORGET_SECONDS) == 0.0
    assert ended.slot(FORGET_SECONDS) > 0.0
    assert [ended.slot(FORGET_SECONDS + 0.1) for _ in range(50)] == [0.0] * 50


def test_one_line_says_that_a_process_stays_throttled_and_none_that_it_was_refused_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    heard = rate()
    with caplog.at_level(logging.DEBUG, logger="worm"):
        for tenth in range(95):
            if tenth % 30 == 0:
                heard.refused(tenth / 10, tenth / 10)
            heard.succeeded(tenth / 10)
        assert not caplog.messages
        for second in range(10, 60, 5):
            heard.refused(second - 0.01, second)
            heard.succeeded(second)
        (told,) = caplog.messages
        assert told.startswith("s3://b throttles this process, which slows down to about ")
        assert told.endswith(" reads a second")
        heard.slot(60 + FORGET_SECONDS)  # a new beginning
        heard.refused(200.0, 200.0)
        assert len(caplog.messages) == 1
        heard.refused(211.0, 211.1)
    assert len(caplog.messages) == 2


# Many processes and one prefix


@pytest.mark.parametrize(("processes", "limit"), [(1, 300), (10, 550), (50, 550)])
@pytest.mark.parametrize("seed", [1, 2])
def test_processes_that_share_a_prefix_use_it_and_none_starves(processes: int, limit: float, seed: int) -> None:
    """50 processes of 16 threads would send 40,000 requests a second."""
    done = Simulation.of(processes, lambda now: limit, seed).run(50)
    assert done.goodput(15, 50) > 0.8 * limit
    assert done.refusals(15, 50) < 0.04
    assert min(done.shares(15, 50)) > 0.3


def test_without_a_rate_most_requests_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Rate, "refused", lambda *_: None)
    assert Simulation.of(50, lambda now: 550, 1).run(20).refusals(5, 20) > 0.3


def test_the_rate_recovers_after_s3_has_split_the_prefix() -> None:
    done = Simulation.of(10, lambda now: 300.0 if now < 30 else 900.0, 3).run(90)
    assert done.goodput(20, 30) > 0.8 * 300
    assert done.goodput(75, 90) > 0.8 * 900


def test_a_process_that_comes_later_gets_its_share() -> None:
    done = Simulation.of(10, lambda now: 550, 4).run(90, starts=lambda number: 30.0 if number == 0 else 0.0)
    assert done.shares(60, 90)[0] > 0.3


# Stores


@pytest.fixture
def script() -> Iterator[ScriptedS3]:
    with scripted_s3() as script:
        yield script


class Hurried(SystemClock):
    """A clock of its own."""


class Drowsy(VirtualClock):
    """Sleeps fifty times as long as asked, so that a test of minutes takes few requests."""

    def sleep(self, seconds: float) -> None:
        super().sleep(50 * seconds)


def store_on(script: ScriptedS3, clock: Clock, *, patient: bool) -> S3Store:
    return S3Store("bucket", endpoint_url=script.url, clock=clock, ids=Ids.seeded(1, clock), patient=patient)


def test_a_patient_store_outlasts_any_number_of_refusals_and_another_fails_after_six(script: ScriptedS3) -> None:
    clock = VirtualClock()
    script.answers.extend([SLOW_DOWN] * 15)
    script.object(b"x")
    found = store_on(script, clock, patient=True).get("a")
    assert found is not None
    assert (found.body, len(script.requests)) == (b"x", 16)
    assert clock.monotonic() < 120
    script.answers.extend([SLOW_DOWN] * 15)
    with pytest.raises(Unavailable, match=f"in {TRIES} tries") as caught:
        store_on(script, clock, patient=False).get("a")
    assert (len(script.requests), caught.value.hint, caught.value.request_id) == (16 + TRIES, TOO_FAST, "R1")


@pytest.mark.parametrize(
    ("status", "code", "is_throttled"),
    [(503, "SlowDown", True), (503, "", True), (429, "", True), (500, "InternalError", False), (408, "", False)],
)
def test_what_the_store_says_when_it_gets_too_many_requests(status: int, code: str, is_throttled: bool) -> None:
    failure = failure_of_status(status, code)
    assert (failure.is_throttled, TryAgain.after(failure).is_throttled) == (is_throttled, is_throttled)
    assert attempt_of(failure, "a", IfAbsent()).is_throttled == is_throttled


@pytest.mark.slow
def test_listings_deletes_and_plain_writes_are_patient_too(script: ScriptedS3) -> None:
    store = store_on(script, VirtualClock(), patient=True)
    listing = Answer(200, b"<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>")
    script.answers.extend([Answer(429), *[SLOW_DOWN] * 9, listing])
    assert list(store.list("")) == []
    script.answers.extend([SLOW_DOWN] * 10 + [Answer(204)])
    store.delete("a")
    script.answers.extend([SLOW_DOWN] * 10 + [Answer(200, headers={"ETag": '"e"'})])
    assert store.put("a", b"x").etag == '"e"'
    script.answers.extend([Answer(503)] * 10)  # the answer to a HEAD has no code
    assert store.head("a") is None
    assert not script.answers


def test_other_failures_of_a_patient_store_count_as_before(script: ScriptedS3) -> None:
    clock = Drowsy()
    script.answers.extend([SLOW_DOWN] * 10 + [Answer(hang_up=True)] * TRIES)
    with pytest.raises(Unavailable, match=f"in {TRIES} tries"):
        store_on(script, clock, patient=True).get("a")
    assert len(script.requests) == 10 + TRIES
    assert clock.monotonic() > RETRY_SECONDS


@pytest.mark.slow
def test_patience_ends_when_everything_was_refused_for_a_quarter_of_an_hour(script: ScriptedS3) -> None:
    clock = Drowsy()
    script.answers.extend([SLOW_DOWN] * 500)
    with pytest.raises(Unavailable, match="refused all requests of this process for 15 minutes") as caught:
        store_on(script, clock, patient=True).get("a")
    assert caught.value.hint == TOO_FAST
    assert PATIENCE_SECONDS < clock.monotonic() < 1.5 * PATIENCE_SECONDS


@pytest.mark.slow
def test_patience_ends_for_a_request_that_alone_is_refused_for_a_quarter_of_an_hour(script: ScriptedS3) -> None:
    """A store that cannot write (MinIO without its quorum) answers every PUT with a 503, and every GET: a job would
    never end."""
    clock = Drowsy()
    absent = Answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
    script.answers.extend([SLOW_DOWN, absent] * 500)
    with pytest.raises(CommitStateUnknown):
        store_on(script, clock, patient=True).put_if_absent("a", b"x")
    assert PATIENCE_SECONDS < clock.monotonic() < 1.5 * PATIENCE_SECONDS
    script.answers.clear()
    script.answers.extend([SLOW_DOWN] * 500)
    store, began = store_on(script, clock, patient=True), clock.monotonic()
    refused = store.pace.refused

    def beside_others(rate: Rate, sent: float) -> None:
        refused(rate, sent)
        store.pace.succeeded(store.pace.writes)

    store.pace.refused = beside_others  # type: ignore[method-assign]  # of this store
    with pytest.raises(Unavailable, match="refused this request for 15 minutes"):
        store.get("a")
    assert PATIENCE_SECONDS < clock.monotonic() - began < 1.5 * PATIENCE_SECONDS


def test_patience_lasts_while_other_requests_succeed() -> None:
    clock = VirtualClock()
    pace = Pace("s3://b", clock, Ids.seeded(1, clock))
    pace.refused(pace.reads, 0.0)
    clock.advance(PATIENCE_SECONDS - 1)
    pace.succeeded(pace.writes)
    clock.advance(PATIENCE_SECONDS - 1)
    pace.refused(pace.reads, 0.0)
    assert pace.has_hope()
    clock.advance(PATIENCE_SECONDS)
    assert not pace.has_hope()


def test_a_refusal_after_a_long_pause_does_not_end_patience() -> None:
    clock = VirtualClock()
    pace = Pace("s3://b", clock, Ids.seeded(1, clock))
    pace.refused(pace.reads, 0.0)
    clock.advance(PATIENCE_SECONDS + 1)
    pace.refused(pace.reads, clock.monotonic())
    assert pace.has_hope()


@pytest.mark.slow
def test_a_patient_conditional_write_goes_on_by_the_rules_of_unknown_outcomes(script: ScriptedS3) -> None:
    """A 503 does not say whether the write landed: every attempt is followed by a read."""
    clock = VirtualClock()
    absent = Answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
    rounds = MAX_ATTEMPTS + 1
    script.answers.extend([SLOW_DOWN, absent] * rounds + [Answer(200, headers={"ETag": '"e"'})])
    store = store_on(script, clock, patient=True)
    assert isinstance(store.put_if_absent("a", b"x"), Won)
    assert store.pace.writes.per_second is not None
    assert [one.method for one in script.requests] == ["PUT", "GET"] * rounds + ["PUT"]
    puts = [one.headers["x-amz-meta-worm-put-id"] for one in script.requests if one.method == "PUT"]
    assert len(set(puts)) == 1
    script.answers.extend([SLOW_DOWN, absent] * rounds)
    with pytest.raises(CommitStateUnknown):
        store_on(script, clock, patient=False).put_if_absent("a", b"x")


@pytest.mark.parametrize("unclear", [Answer(409), Answer(hang_up=True)])
def test_a_read_that_is_throttled_does_not_use_up_the_time_of_the_write_before_it(
    script: ScriptedS3, unclear: Answer
) -> None:
    """One attempt without a clear answer, and half a minute of refused reads after it, failed a task."""
    clock = Drowsy()
    absent = Answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
    script.answers.extend([unclear, *[SLOW_DOWN] * 10, absent, Answer(200, headers={"ETag": '"e"'})])
    won = store_on(script, clock, patient=True).put_if_absent("a", b"x")
    assert (won, clock.monotonic() > DEADLINE_SECONDS) == (Won('"e"'), True)


def test_a_throttled_swap_that_finds_another_object_is_unknown_in_a_patient_store(script: ScriptedS3) -> None:
    script.answers.append(SLOW_DOWN)
    script.object(b"theirs")
    with pytest.raises(CommitStateUnknown):
        store_on(script, VirtualClock(), patient=True).put_if_match("a", b"x", '"mine"')
    script.answers.append(SLOW_DOWN)
    script.object(b"theirs")
    lost = store_on(script, VirtualClock(), patient=True).put_if_absent("a", b"x")
    assert isinstance(lost, Lost)
    assert lost.in_doubt


def test_writes_and_reads_have_rates_of_their_own(script: ScriptedS3) -> None:
    store = store_on(script, VirtualClock(), patient=True)
    script.answers.append(SLOW_DOWN)
    script.object(b"x")
    store.get("a")
    assert (store.pace.reads.per_second is None, store.pace.writes.per_second is None) == (False, True)
    writes: list[Callable[[S3Store], object]] = [lambda one: one.put("a", b"x"), lambda one: one.delete("a")]
    for write in writes:
        store = store_on(script, VirtualClock(), patient=True)
        script.answers.extend([SLOW_DOWN, Answer(204, headers={"ETag": '"e"'})])
        write(store)
        assert (store.pace.reads.per_second is None, store.pace.writes.per_second is None) == (True, False)


def test_a_write_without_an_answer_is_no_sign_that_the_store_serves_this_process(script: ScriptedS3) -> None:
    store = store_on(script, VirtualClock(), patient=True)
    store.pace.refused(store.pace.writes, 0.0)
    store.clock.sleep(PATIENCE_SECONDS)
    script.answers.append(Answer(hang_up=True))
    assert store.attempt_put("a", b"x", IfAbsent(), {}).outcome is AttemptOutcome.UNKNOWN
    assert not store.pace.has_hope()


def test_all_stores_of_a_process_share_the_pace_of_a_bucket_and_of_no_other() -> None:
    first, second = (S3Store("shared", prefix, endpoint_url="http://127.0.0.1:1") for prefix in ("a", "b"))
    assert first.pace is second.pace
    assert first.pace is not S3Store("other", endpoint_url="http://127.0.0.1:1").pace
    assert first.pace is not S3Store("shared", endpoint_url="http://127.0.0.1:2").pace
    assert pace_of("shared", None, Hurried(), Ids.seeded(1)) is not pace_of("shared", None, Hurried(), Ids.seeded(1))
    threads: list[Pace] = []
    clock = SystemClock()
    started = [
        threading.Thread(target=lambda: threads.append(pace_of("raced", None, clock, Ids.seeded(1)))) for _ in range(8)
    ]
    for one in started:
        one.start()
    for one in started:
        one.join()
    assert len(threads) == 8
    assert len({id(one) for one in threads}) == 1


def test_only_a_store_that_is_opened_patiently_is_patient() -> None:
    for patient in (False, True):
        store = open_store("s3://bucket", endpoint_url="http://127.0.0.1:1", patient=patient)
        assert isinstance(store, S3Store)
        assert store.is_patient(store.clock.monotonic()) is patient


def test_the_module_imports_nothing_heavy() -> None:
    code = "import sys, worm.store.pace; print([one for one in ('obstore', 'boto3', 'json') if one in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


# The order of tasks
