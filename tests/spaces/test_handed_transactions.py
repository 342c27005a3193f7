"""Transactions that a process hands to the writer of another: no turn is taken away, each counts once whatever gets
lost, and a refusal is final."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest

from tests.spaces.space_room import change, put, seqs, value
from worm.clock import Ids, SystemClock, VirtualClock
from worm.errors import CommitStateUnknown, Denied, Fenced, Invalid, NotFound, Unavailable
from worm.formats.strict_json import JsonObject, dumps
from worm.log.keys import DbKeys
from worm.spaces import page_backend, requests
from worm.spaces.handing import request_of, transaction_of
from worm.spaces.operations import ConfirmedRead, PendingRead, Read, SpaceConfig
from worm.spaces.page_backend import PageBackend, Turns
from worm.spaces.requests import Answers, Asking, Desk
from worm.spaces.results import PatchConflict, ReadConflict
from worm.spaces.space import Space
from worm.spaces.transacting import Author, TransactionRequest
from worm.store.base import Store, Won
from worm.store.faulty_store import FaultyStore
from worm.store.memory import MemoryStore

pytestmark = pytest.mark.slow  # together more than a few seconds

DB = "space-main"
KEYS = DbKeys(DB)
LIMIT = 20.0


@pytest.fixture(autouse=True)
def _with_desks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "BEGIN_SECONDS", 0.02)


class Wire(FaultyStore):
    """A process's way to the store: its plain PUTs can be lost, before or after they arrive."""

    def __init__(self, inner: MemoryStore) -> None:
        super().__init__(inner)
        self.before_put: Callable[[str], None] = lambda _key: None
        self.before_get: Callable[[str], None] = lambda _key: None
        self.after_put: Callable[[str], None] = lambda _key: None

    def get_if_changed(self, key: str, etag: str | None) -> Any:
        self.before_get(key)
        return super().get_if_changed(key, etag)

    def put(self, key: str, body: bytes, **named: Any) -> Won:
        self.before_put(key)
        done = super().put(key, body, **named)
        self.after_put(key)
        return done


class Processes:
    """Spaces as several processes have them: the turns of each are its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patch = monkeypatch
        self.memory = MemoryStore("handed", clock=SystemClock(), ids=Ids.system(SystemClock()))
        self.opened: list[Space] = []

    def open(self, store: Store | None = None, **settings: Any) -> Space:
        own, clock = Turns(), SystemClock()
        self._patch.setattr(page_backend, "turns_of", lambda _store, _db: own)
        backend = PageBackend(store or self.memory, DB, create=True, clock=clock, ids=Ids.system(clock))
        self.opened.append(Space(backend, SpaceConfig(**settings), clock=clock))
        return self.opened[-1]

    def pair(self, asking: Store | None = None, writing: Store | None = None) -> tuple[Space, Space]:
        """One whose transactions are handed over, and the writer, whose desk is open."""
        asks, writes = self.open(asking), self.open(writing)
        asks.transact([put("a", n=0)])
        writes.transact([put("b", n=0)])
        until(lambda: desk_of(writes)._is_open)
        backend_of(asks)._drop(lane_of(asks))  # as its next commit would find out
        return asks, writes


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Processes]:
    monkeypatch.setattr(page_backend, "SETTLING_SECONDS", 0.0)
    for name in ("PATIENCE_SECONDS", "IDLE_SECONDS"):  # of a machine that has better to do
        monkeypatch.setattr(requests, name, LIMIT)
    made = Processes(monkeypatch)
    yield made
    for space in made.opened:
        space.close()


def until(holds: Callable[[], object]) -> None:
    end = time.monotonic() + LIMIT
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.005)


def backend_of(space: Space) -> Any:
    return space._backend


def desk_of(space: Space) -> Any:
    return backend_of(space)._desk


def lane_of(space: Space) -> Any:
    return backend_of(space)._lane


def replacing(field: str) -> JsonObject:
    """Fits only where the field is there."""
    return {"op": "patch", "id": "a", "patches": [{"op": "replace", "path": f"/value/{field}", "value": 2}]}


def names(space: Space) -> list[tuple[str, int]]:
    return [(entry.session_id, entry.local_seq) for entry in space.log()]


# Handing over


def test_a_transaction_is_handed_to_the_writer_and_no_turn_is_taken(processes: Processes) -> None:
    asks, writes = processes.pair()
    lane = lane_of(writes)
    done = asks.transact([change("a", m=1)], session_id="one", local_seq=7)
    again = asks.transact([change("a", m=1)], session_id="one", local_seq=7)
    assert (done.seq, done.session_id, done.local_seq, done.is_repeat) == (3, "one", 7, False)
    assert (again.seq, again.created_at, again.is_repeat) == (3, done.created_at, True)
    assert lane_of(writes) is lane
    assert lane.writer.stopped is None
    assert lane_of(asks) is None
    assert value(asks, "a") == value(writes, "a") == {"n": 0, "m": 1}
    assert seqs(asks) == [1, 2, 3]


def test_a_writer_that_was_overtaken_hands_over_what_it_could_not_commit(processes: Processes) -> None:
    first, second = processes.open(), processes.open()
    first.transact([put("a", n=0)])
    second.transact([put("b", n=0)])
    assert desk_of(first) is None
    assert desk_of(second) is not None, "it met a writer that was at work"
    lane = lane_of(second)
    for number in range(3):
        assert first.transact([put("a", n=number)]).seq == 3 + number
    assert lane_of(second) is lane
    assert lane_of(first) is None


def test_reads_and_what_it_is_about_go_along(processes: Processes) -> None:
    asks, writes = processes.pair()
    first = asks.transact([put("a", n=1)], session_id="one", local_seq=1, about={"why": "test"})
    pending = asks.transact([put("c", n=1)], session_id="one", local_seq=2, reads=[PendingRead("a", 1)])
    assert pending.resolved_pending_reads == ((1, first.seq),)
    asks.transact([put("c", n=2)], reads=[asks.read("a")])
    entry = next(iter(writes.log(after=first.seq - 1)))
    assert entry.original["about"] == {"why": "test"}
    assert lane_of(asks) is None


def test_threads_that_wait_share_a_request(processes: Processes) -> None:
    asks, writes = processes.pair()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: asks.transact([put(f"t{n}", n=n)]), range(24)))
    assert seqs(writes) == list(range(1, 27))
    assert backend_of(asks)._asking._number <= 20, "24 transactions of 8 threads"


def test_a_writer_that_is_alone_looks_for_nothing(processes: Processes) -> None:
    space = processes.open()
    with processes.memory.requests.measure() as spent:
        space.transact([put("a", n=-1)])
    with processes.memory.requests.measure() as spent:
        for number in range(50):
            space.transact([put("a", n=number)])
        time.sleep(0.2)
    assert desk_of(space) is None
    assert spent == {"PUT": 50, "total": 50}


def test_a_desk_that_nobody_asks_looks_less_often_and_closes(
    processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "EVERY_SECONDS", 0.01)
    monkeypatch.setattr(requests, "IDLE_SECONDS", 0.3)
    _, writes = processes.pair()
    with processes.memory.requests.measure() as spent:
        until(lambda: not desk_of(writes)._is_open)
    assert spent.get("LIST", 0) <= 7, dict(spent)
    found = processes.memory.get(KEYS.answers)
    assert found is not None
    assert not Answers.decode(found.body, KEYS.answers).is_open


def test_who_closes_names_an_heir_and_nobody_is_fenced(processes: Processes) -> None:
    asks, writes = processes.pair()
    asks.transact([put("a", n=1)])
    writes.close()
    found = processes.memory.get(KEYS.answers)
    assert found is not None
    assert Answers.decode(found.body, KEYS.answers).heir == backend_of(asks)._asking.box
    assert asks.transact([put("a", n=2)]).seq == 4
    assert lane_of(asks) is not None


def test_an_heir_that_finds_all_in_layers_opens_its_desk(processes: Processes) -> None:
    """The log tells it nothing of how lately another wrote: the one before has flushed it."""
    asks, writes = processes.pair()
    asks.transact([put("a", n=1)])
    for number in range(40):
        writes.transact([put("b", n=number)])
    backend_of(asks)._turn.ended = lane_of(writes).writer.token  # nor does the lease
    writes.close()
    asks.transact([put("a", n=2)])
    assert desk_of(asks) is not None


def test_others_wait_for_the_heir(processes: Processes) -> None:
    asks, writes = processes.pair()
    third = processes.open()
    for number in range(2):
        third.transact([put("c", n=number)])
        asks.transact([put("a", n=number)])
    writes.close()
    with ThreadPoolExecutor(2) as pool:
        ended = [pool.submit(space.transact, [put("d", n=1)]) for space in (third, asks)]
        assert sorted(one.result(LIMIT).seq for one in ended) == [7, 8]
    assert lane_of(asks) is not None, "it was the last to ask"
    assert lane_of(third) is None


def test_a_request_is_removed_with_its_process_and_a_forgotten_one_later(
    processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    asks, _ = processes.pair()
    asks.transact([put("a", n=1)])
    box = KEYS.request(backend_of(asks)._asking.box)
    assert processes.memory.get(box) is not None
    asks.close()
    assert processes.memory.get(box) is None
    processes.memory.put(KEYS.request("left"), b"{}")
    desk(processes.memory).close_now()
    assert processes.memory.get(KEYS.request("left")) is not None
    monkeypatch.setattr(requests, "FORGOTTEN", timedelta(seconds=-5))
    desk(processes.memory).close_now()
    assert processes.memory.get(KEYS.request("left")) is None


# Refusals


def test_a_refusal_is_that_of_the_log(processes: Processes) -> None:
    asks, writes = processes.pair()
    lane = lane_of(writes)
    with pytest.raises(ReadConflict) as conflict:
        asks.transact([put("b", n=1)], reads=[ConfirmedRead("b", 1)])
    assert [one.id for one in conflict.value.stale] == ["b"]
    with pytest.raises(PatchConflict):
        asks.transact([replacing("none")])
    with pytest.raises(NotFound):
        asks.transact([put("a", n=1)], branch="nowhere")
    asks.transact([put("a", n=1)], session_id="one", local_seq=1)
    with pytest.raises(Invalid, match="for another transaction"):
        asks.transact([put("a", n=2)], session_id="one", local_seq=1)
    assert lane_of(writes) is lane
    assert seqs(writes) == [1, 2, 3]


def test_what_only_the_other_refuses_is_decided_here(processes: Processes) -> None:
    """Its limits are others."""
    asks, writes = processes.open(), processes.open(operations_max=1)
    asks.transact([put("a", n=0)])
    writes.transact([put("b", n=0)])
    until(lambda: desk_of(writes)._is_open)
    assert asks.transact([put("a", n=1), put("b", n=1)]).seq == 3
    assert lane_of(asks) is not None


def test_what_was_refused_is_not_committed_by_the_next_writer(processes: Processes) -> None:
    """The request is still there, and would fit by then."""
    asks, writes = processes.pair()
    bad = replacing("late")
    with pytest.raises(PatchConflict):
        asks.transact([bad], session_id="one", local_seq=1)
    writes.transact([change("a", late=1)])
    time.sleep(0.3)
    assert ("one", 1) not in names(writes)
    third = processes.open()
    backend_of(third)._open_lane()
    third.transact([put("c", n=1)])
    until(lambda: desk_of(third)._is_open and desk_of(third)._etags)
    time.sleep(0.3)
    assert ("one", 1) not in names(third)
    assert value(third, "a") == {"n": 0, "late": 1}


def test_a_request_that_lands_twice_counts_once(processes: Processes) -> None:
    asks, writes = processes.pair()
    bad = replacing("late")
    with pytest.raises(PatchConflict):
        asks.transact([bad], session_id="one", local_seq=1)
    box = KEYS.request(backend_of(asks)._asking.box)
    sent = processes.memory.get(box)
    assert sent is not None
    asks.transact([change("a", late=1)])
    processes.memory.put(box, sent.body)  # a PUT that was tried twice, and arrives for the second time
    asking, number = desk_of(writes), desk_of(writes)._etags.get(box)
    until(lambda: asking._etags.get(box) != number)
    time.sleep(0.1)
    assert ("one", 1) not in names(writes)


# What gets lost


def test_a_request_that_got_lost_is_sent_again(processes: Processes) -> None:
    wire = Wire(processes.memory)
    asks, writes = processes.pair(asking=wire)
    failures = [Unavailable("no answer"), None, Unavailable("no answer")]

    def lost(key: str) -> None:
        if "/requests/" in key and failures and (error := failures.pop()):
            raise error

    wire.before_put = lost
    assert asks.transact([put("a", n=1)]).seq == 3
    wire.before_put, wire.after_put = lambda _key: None, lost
    assert asks.transact([put("a", n=2)], session_id="one", local_seq=1).seq == 4
    assert seqs(writes) == [1, 2, 3, 4]
    assert not failures


def test_a_look_at_the_answers_that_fails_says_nothing_of_the_transaction(processes: Processes) -> None:
    wire = Wire(processes.memory)
    asks, _ = processes.pair(asking=wire)
    request = TransactionRequest.checked(Author("one", 1), "", [put("a", n=1)], [], SpaceConfig())

    def fails(_key: str) -> None:
        wire.before_get = unreachable

    def unreachable(key: str) -> None:
        if key == KEYS.answers:
            raise Unavailable("no answer")

    wire.after_put = fails
    with pytest.raises(CommitStateUnknown, match="is unknown"):
        asks._commit(request)
    wire.before_get, wire.after_put = (lambda _key: None), (lambda _key: None)
    assert asks.transact([put("a", n=1)], session_id="one", local_seq=1).seq == 3
    assert seqs(asks) == [1, 2, 3]


def test_an_answer_that_got_lost_is_found_in_the_log(processes: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "PATIENCE_SECONDS", 0.3)
    wire = Wire(processes.memory)
    asks, writes = processes.pair(writing=wire)

    def lost(key: str) -> None:
        if key == KEYS.answers:
            raise Unavailable("no answer")

    wire.before_put = lost
    done = asks.transact([put("a", n=1)], session_id="one", local_seq=1)
    assert (done.seq, done.is_repeat) == (3, True)
    assert names(asks).count(("one", 1)) == 1
    wire.before_put = lambda _key: None
    assert writes.transact([put("b", n=1)]).seq == 4


def test_a_writer_that_hangs_is_taken_over_and_commits_nothing_late(
    processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has read the request, and goes on only when the other has given up."""
    monkeypatch.setattr(requests, "PATIENCE_SECONDS", 0.3)
    asks, writes = processes.pair()
    hanging, going = threading.Event(), threading.Event()
    decide = desk_of(writes)._decide

    def hangs(transactions: Sequence[JsonObject]) -> list[JsonObject]:
        hanging.set()
        assert going.wait(LIMIT)
        outcomes: list[JsonObject] = decide(transactions)
        return outcomes

    desk_of(writes)._decide = hangs
    thread = desk_of(writes)._thread
    done = asks.transact([change("a", m=1)], session_id="one", local_seq=1)
    assert hanging.is_set()
    assert (done.seq, done.is_repeat) == (3, False)
    going.set()
    thread.join(LIMIT)
    assert not thread.is_alive(), "its lane is over, and so is its desk"
    assert names(asks).count(("one", 1)) == 1
    assert writes.transact([put("b", n=1)]).seq == 4
    assert value(writes, "a") == {"n": 0, "m": 1}


def test_a_desk_takes_no_turn_away(processes: Processes) -> None:
    """Its own lane is over; a turn would make its process the writer again."""
    _, writes = processes.pair()
    decide, lane = desk_of(writes)._decide, lane_of(writes)
    backend_of(writes)._drop(lane)
    with pytest.raises(Fenced):
        decide([{}])
    assert lane_of(writes) is None


def test_nobody_is_told_that_nothing_was_written_while_the_other_may_still_write(
    processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "PATIENCE_SECONDS", 0.1)
    asks, writes = processes.pair()
    desk_of(writes).finish()

    def unreachable(**_named: Any) -> None:
        raise Unavailable("the store is away")

    monkeypatch.setattr(backend_of(asks), "_open_lane", unreachable)
    request = TransactionRequest.checked(Author("one", 1), "", [put("a", n=1)], [], SpaceConfig())
    with pytest.raises(CommitStateUnknown, match="did not answer"):
        asks._commit(request)


def test_an_answer_follows_the_commit(processes: Processes) -> None:
    """While its segment is on its way, the one that asked is not told anything."""
    wire = Wire(processes.memory)
    asks, _ = processes.pair(writing=wire)
    arrived, release = threading.Event(), threading.Event()
    put_if_absent = wire.put_if_absent

    def slow(key: str, body: bytes, **named: Any) -> Any:
        if "/log/" in key:
            arrived.set()
            assert release.wait(LIMIT)
        return put_if_absent(key, body, **named)

    wire.put_if_absent = slow  # type: ignore[method-assign]  # this one wire is slow
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(asks.transact, [put("a", n=1)])
        assert arrived.wait(LIMIT)
        time.sleep(0.3)
        assert not asked.done()
        assert processes.memory.get(KEYS.slot(5)) is None
        release.set()
        assert asked.result(LIMIT).seq == 3


def test_who_may_not_write_requests_takes_turns(processes: Processes) -> None:
    wire = Wire(processes.memory)
    asks, _ = processes.pair(asking=wire)

    def denied(key: str) -> None:
        if "/requests/" in key:
            raise Denied("no")

    wire.before_put = denied
    assert asks.transact([put("a", n=1)]).seq == 3


def test_who_may_not_read_the_answers_takes_turns(processes: Processes) -> None:
    wire = Wire(processes.memory)
    asks, _ = processes.pair(asking=wire)

    def denied(key: str) -> None:
        if key == KEYS.answers:
            raise Denied("no")

    wire.before_get = denied
    assert asks.transact([put("a", n=1)]).seq == 3


def test_damaged_requests_and_answers_are_passed_over(processes: Processes) -> None:
    wire = Wire(processes.memory)
    asks, writes = processes.pair(asking=wire)
    odd_bodies = [b"", b"{", b"{}", dumps({"format": 1, "number": "x", "transactions": []})]

    def odd_ones(key: str) -> None:
        if "/requests/" in key:  # right before, so that the desk finds them together
            for number, body in enumerate(odd_bodies):
                processes.memory.put(KEYS.request(f"odd-{number}"), body)

    wire.before_put = odd_ones
    token = lane_of(writes).writer.token
    odd: list[JsonObject] = [{}, {"record": {}}, {"session": "s", "branch": "", "record": {"localSeq": 1}}]
    for number, one in enumerate(odd):
        asked: JsonObject = {"format": 1, "to": token, "number": 1, "transactions": [one]}
        processes.memory.put(KEYS.request(f"bad-{number}"), dumps(asked))
    assert asks.transact([put("a", n=1)]).seq == 3
    assert lane_of(asks) is None
    wire.before_put = lambda _key: None
    processes.memory.put(KEYS.answers, b"{")
    assert asks.transact([put("a", n=2)]).seq == 4
    assert seqs(writes) == [1, 2, 3, 4]


# The pieces


def test_a_transaction_reads_back_as_it_was() -> None:
    config = SpaceConfig()
    reads: list[Read] = [ConfirmedRead("a", 3), ConfirmedRead("b", 2, "draft"), PendingRead("c", 1)]
    ops: list[JsonObject] = [put("a", n=1), change("b", m=2.5), {"op": "delete", "id": "ü"}]
    request = TransactionRequest.checked(Author("one", 4), "draft", ops, reads, config, {"about": {"by": "me"}})
    assert request_of(transaction_of(request), config) == request
    with pytest.raises(Invalid):
        request_of({"session": "one", "branch": "", "record": {"localSeq": 1}}, config)


class _Desk:
    """A desk on its own."""

    def __init__(self, store: MemoryStore, decide: Callable[[Sequence[JsonObject]], list[JsonObject]]) -> None:
        self.desk: Any = Desk(store, KEYS, "me", 2, decide, SystemClock())

    def close_now(self) -> None:
        until(lambda: self.desk._is_said)
        time.sleep(0.05)
        self.desk.finish()
        self.desk.close()


def desk(store: MemoryStore) -> _Desk:
    return _Desk(store, lambda asked: [{} for _ in asked])


@contextmanager
def answering(store: MemoryStore, answers: Answers) -> Iterator[Asking]:
    clock = VirtualClock()
    store.put(KEYS.answers, answers.encode())
    asking = Asking(store, KEYS, clock=clock, ids=Ids.seeded(1, clock))
    asking.alert()
    yield asking


@pytest.mark.parametrize(
    ("answers", "is_sent"),
    [
        (Answers(3, "dead", True, 0.1), True),
        (Answers(3, "closed", False, 0.1), False),
        (Answers(3, "closed", False, 0.1, heir="somebody"), False),
    ],
)
def test_nobody_waits_for_ever(answers: Answers, is_sent: bool) -> None:
    store = MemoryStore("alone", clock=VirtualClock())
    with answering(store, answers) as asking, store.requests.measure() as spent:
        asked = asking.ask({"n": 1})
        assert (asked.outcome, asked.is_sent) == (None, is_sent)
        assert spent == {}
        again = asking.ask({"n": 2})
        assert (again.outcome, again.is_sent) == (None, False), "not asked twice"
    assert spent["total"] <= 90


def test_an_answer_to_another_number_is_none() -> None:
    store = MemoryStore("alone", clock=VirtualClock())
    said = Answers(3, "w", True, 0.1)
    with answering(store, said) as asking:
        old: JsonObject = {"number": 0, "outcomes": [{"seq": 5}]}
        store.put(KEYS.answers, Answers(3, "w", True, 0.1, answers={asking.box: old}).encode())
        assert asking.ask({"n": 1}).outcome is None
        other: JsonObject = {"number": 2, "outcomes": [{"seq": 5}, {"seq": 6}]}
        asking._dead = ""
        store.put(KEYS.answers, Answers(3, "w", True, 0.1, answers={asking.box: other}).encode())
        assert asking.ask({"n": 2}).outcome is None, "not one for each"
