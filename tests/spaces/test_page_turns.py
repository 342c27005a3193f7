"""Turns at the log of a space in a bucket: commits that are decided on others which are on their way, and writers that
do not know yet that another has taken over."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from tests.spaces.space_room import change, drop, put, seqs, value
from worm.clock import Ids, VirtualClock
from worm.errors import CommitStateUnknown, Denied, Fenced, WormError
from worm.pages.reader import PageReader
from worm.spaces import page_backend
from worm.spaces.operations import ConfirmedRead
from worm.spaces.page_backend import FLUSHED, LOSSES_MAX, OPENING_SECONDS, Lane, PageBackend, Turns
from worm.spaces.results import Committed, Presence, ReadConflict
from worm.spaces.space import Space
from worm.store.base import Lost, Won
from worm.store.faulty_store import Fault, FaultyStore
from worm.store.memory import MemoryStore

DB = "space-main"
LIMIT = 30.0


Ending = Callable[[Callable[[], Won | Lost]], Won | Lost]


class Gate:
    """A PUT of a segment that waits until it is let go, and ends as it is told."""

    def __init__(self, then: Ending) -> None:
        self.arrived, self.release, self.then = threading.Event(), threading.Event(), then


class SlowLog(FaultyStore):
    """The next segments go through these gates."""

    def __init__(self, inner: MemoryStore) -> None:
        super().__init__(inner)
        self.gates: list[Gate] = []

    def put_if_absent(self, key: str, body: bytes, *, metadata: Mapping[str, str] | None = None) -> Won | Lost:
        def put() -> Won | Lost:
            return super(SlowLog, self).put_if_absent(key, body, metadata=metadata)

        if "/log/" not in key or not self.gates:
            return put()
        gate = self.gates.pop(0)
        gate.arrived.set()
        assert gate.release.wait(LIMIT)
        return gate.then(put)


def well(put: Callable[[], Won | Lost]) -> Won | Lost:
    return put()


def denied(_put: Callable[[], Won | Lost]) -> Won | Lost:
    raise Denied("no")


@pytest.fixture
def memory() -> MemoryStore:
    return MemoryStore("turns", clock=VirtualClock(), ids=Ids.seeded(1, VirtualClock()))


def process(store: MemoryStore | FaultyStore, monkeypatch: pytest.MonkeyPatch) -> Space:
    """A space as another process has it: its turns are its own."""
    own = Turns()
    clock = VirtualClock()
    monkeypatch.setattr(page_backend, "turns_of", lambda _store, _db: own)
    ids = Ids.system(clock)
    return Space(PageBackend(store, DB, create=True, clock=clock, ids=ids), clock=clock, ids=ids)


def two_on_their_way(space: Space, store: SlowLog, then: Ending) -> list[Committed | WormError]:
    """A commit whose segment is on its way, and one that is decided on it; both end as `then` says of the first."""
    gate = Gate(then)
    store.gates = [gate]
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(space.transact, [change("a", n=1)])
        assert gate.arrived.wait(LIMIT)
        second = pool.submit(space.transact, [change("a", m=2)])
        until_sent(space, 2)
        gate.release.set()
        return [_ended(one) for one in (first, second)]


def until_sent(space: Space, count: int) -> None:
    """So many commits are on their way."""
    nothing = threading.Event()
    for _ in range(int(LIMIT * 1000)):
        if lane_of(space)._count == count:
            return
        nothing.wait(0.001)
    raise AssertionError(f"{lane_of(space)._count} commits are on their way")


def _ended(future: Future[Committed]) -> Committed | WormError:
    try:
        return future.result(LIMIT)
    except WormError as error:
        return error


def test_a_commit_on_one_that_was_denied_is_not_made(memory: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store = SlowLog(memory)
    space = process(store, monkeypatch)
    space.transact([put("a", z=0)])

    ended = two_on_their_way(space, store, denied)
    assert [type(one) for one in ended] == [Denied, Denied]
    assert seqs(space) == [1]
    assert space.transact([put("a", n=5)]).seq == 2
    assert value(space, "a") == {"n": 5}


def test_a_commit_on_one_of_unknown_outcome_is_made_again(memory: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store = SlowLog(memory)
    space = process(store, monkeypatch)
    space.transact([put("a", z=0)])

    def unknown(put: Callable[[], Won | Lost]) -> Won | Lost:
        put()
        raise CommitStateUnknown("who knows")

    ended = two_on_their_way(space, store, unknown)
    assert sorted(one.seq for one in ended if isinstance(one, Committed)) == [2, 3]
    assert seqs(space) == [1, 2, 3]
    assert value(space, "a") == {"z": 0, "n": 1, "m": 2}


def test_a_commit_on_one_that_another_writer_kept_out_is_decided_anew(
    memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SlowLog(memory)
    space, other = process(store, monkeypatch), process(memory, monkeypatch)
    space.transact([put("a", z=0)])

    def overtaken(put_ours: Callable[[], Won | Lost]) -> Won | Lost:
        other.transact([put("c", n=9)])
        return put_ours()

    ended = two_on_their_way(space, store, overtaken)
    assert sorted(one.seq for one in ended if isinstance(one, Committed)) == [3, 4]
    assert seqs(space) == [1, 2, 3, 4]
    assert value(space, "a") == {"z": 0, "n": 1, "m": 2}
    assert value(space, "c") == {"n": 9}


def test_a_refusal_counts_only_on_the_log_as_it_is(memory: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that refuses was the writer, and has not heard of the other's commits."""
    space, other = process(memory, monkeypatch), process(memory, monkeypatch)
    space.transact([put("a", n=1)])
    there = other.transact([change("a", m=1)]).seq
    done = space.transact([{"op": "patch", "id": "a", "patches": [{"op": "replace", "path": "/value/m", "value": 2}]}])
    assert value(space, "a") == {"n": 1, "m": 2}
    later = other.transact([put("a", n=2)]).seq
    assert space.transact([put("d", n=1)], reads=[ConfirmedRead("a", later)]).seq == later + 1
    with pytest.raises(ReadConflict):
        space.transact([drop("a")], reads=[ConfirmedRead("a", there)])
    assert done.seq == there + 1


def test_a_refusal_of_the_writer_of_now_stays(memory: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    space = process(memory, monkeypatch)
    space.transact([put("a", n=1)])
    space.transact([put("a", n=2)])
    writer = lane_of(space)
    with pytest.raises(ReadConflict):
        space.transact([drop("a")], reads=[ConfirmedRead("a", 1)])
    assert lane_of(space) is writer, "no other writer was needed"


def test_a_refusal_on_one_that_was_not_made_is_none(memory: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A patch of what a commit on its way deletes does not fit; then that commit fails."""
    store, asked = SlowLog(memory), threading.Event()
    space = process(store, monkeypatch)
    space.transact([put("b", n=0)])
    gate, is_over = Gate(denied), Lane.is_over
    store.gates = [gate]

    def told(lane: Lane) -> bool:
        asked.set()
        return is_over(lane)

    monkeypatch.setattr(Lane, "is_over", told)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(space.transact, [drop("b")])
        assert gate.arrived.wait(LIMIT)
        second = pool.submit(space.transact, [change("b", m=2)])
        assert asked.wait(LIMIT)
        gate.release.set()
        assert isinstance(_ended(first), Denied)
        assert isinstance(_ended(second), Committed)
    assert value(space, "b") == {"n": 0, "m": 2}


def test_what_is_still_on_its_way_is_seen_when_one_before_it_arrives(
    memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SlowLog(memory)
    space = process(store, monkeypatch)
    space.transact([put("b", n=0)])
    gates = [Gate(well), Gate(well)]
    store.gates = list(gates)
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(space.transact, [put("a", n=1)])
        assert gates[0].arrived.wait(LIMIT)
        second = pool.submit(space.transact, [change("a", m=2)])
        until_sent(space, 2)
        gates[0].release.set()
        first.result(LIMIT)
        assert gates[1].arrived.wait(LIMIT)
        third = pool.submit(space.transact, [change("a", k=3)])
        until_sent(space, 2)
        gates[1].release.set()
        assert [second.result(LIMIT).seq, third.result(LIMIT).seq] == [3, 4]
    assert value(space, "a") == {"n": 1, "m": 2, "k": 3}
    assert seqs(space) == [1, 2, 3, 4]


def test_a_new_writer_is_asked_what_was_seen_before_it_came(
    memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a read looks at the log, the reader is replaced by one that knows less of it."""
    space, other = process(memory, monkeypatch), process(memory, monkeypatch)
    space.transact([put("a", n=1)])
    backend: Any = space._backend
    behind = PageReader.open(memory, DB)
    there = other.transact([put("a", n=2)]).seq
    refresh = PageReader.refresh

    def meanwhile(reader: PageReader) -> int:
        head = refresh(reader)
        backend._reader = behind
        return head

    monkeypatch.setattr(PageReader, "refresh", meanwhile)
    assert backend.newest().seq == there
    assert backend.heads("", ["a"], there)["a"].seq == there


def test_a_fenced_turn_is_taken_again_up_to_a_limit(memory: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    space = process(memory, monkeypatch)
    space.transact([put("a", n=1)])
    lane = lane_of(space)
    lane.writer.stop(Fenced("gone"))
    assert space.transact([put("a", n=2)]).seq == 2
    assert lane_of(space) is not lane


def test_who_comes_to_nothing_waits_longer_and_longer(memory: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    slept = list[float]()
    monkeypatch.setattr(VirtualClock, "sleep", lambda _clock, seconds: slept.append(seconds))
    monkeypatch.setattr(Ids, "jitter", lambda _ids, most: most)
    space = process(memory, monkeypatch)
    backend: Any = space._backend
    space.transact([put("a", n=1)])
    assert not slept
    for losses in range(8):
        lane_of(space).writer.stop(Fenced("taken"))
        lane = lane_of(space)
        lane.has_committed = losses == 0
        backend._drop(lane)
        slept.clear()
        backend._open_lane()
        assert slept == ([OPENING_SECONDS * 2 ** min(losses, LOSSES_MAX)] if losses else [])
    space.transact([put("a", n=2)])
    backend._drop(lane_of(space))
    slept.clear()
    backend._open_lane()
    assert not slept, "it came to a commit"


def lane_of(space: Space) -> Any:
    backend: Any = space._backend
    return backend._lane


def test_a_read_of_a_time_or_of_the_log_looks_at_the_log_once(
    memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = process(memory, monkeypatch)
    for number in range(300):
        writer.transact([put("a", n=number)])
    reader = process(memory, monkeypatch)
    entries = list(reader.log())
    assert [entry.seq for entry in entries] == list(range(1, 301))
    looks = 2
    with memory.requests.measure() as spent:
        assert len(list(reader.log())) == 300
    assert spent["total"] == looks
    moment = entries[150].created_at
    with memory.requests.measure() as spent:
        assert reader.read("a", at=moment).exists
    assert spent["total"] <= 2 * looks


TAKEOVER_MAX = 8
"""A listing, the lease read, taken and read again, the fence, the root; a block of a layer, and the commit itself. Each
segment that was not read yet is one more."""


@pytest.mark.parametrize("is_closed", [True, False], ids=["after a close", "after a live writer"])
@pytest.mark.parametrize("unread", [0, 3])
@pytest.mark.parametrize("waits", [True, False], ids=["a short log", "all in layers"])
def test_becoming_the_writer_takes_eight_requests(
    memory: MemoryStore, monkeypatch: pytest.MonkeyPatch, is_closed: bool, unread: int, waits: bool
) -> None:
    writer = process(memory, monkeypatch)
    for layer in range(4):
        for number in range(20):
            writer.transact([put(f"a{number}", n=layer)])
        lane_of(writer).writer.flush()
    for number in range(6 if waits else 0):
        writer.transact([put(f"a{number}", n=-1)])
    other = process(memory, monkeypatch)
    other.read("a0")  # it builds on what it has read
    for number in range(unread):
        writer.transact([put(f"b{number}", n=-1)])
    if is_closed:
        writer.close()
    other._clock.advance(60)  # type: ignore[attr-defined]  # nobody is at work any more
    with memory.requests.measure() as spent:
        other.transact([put("a0", n=-2)])
    assert spent["total"] <= TAKEOVER_MAX + unread, dict(spent)
    assert spent["LIST"] == 1
    assert value(other, "a0") == {"n": -2}
    assert [entry.seq for entry in other.log()] == list(range(1, other.seq + 1))


def test_one_that_is_far_behind_reads_layers_instead_of_the_log(
    memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, other = process(memory, monkeypatch), process(memory, monkeypatch)
    for number in range(100):
        writer.transact([put("a", n=number)])
    writer.close()
    other._clock.advance(60)  # type: ignore[attr-defined]  # nobody is at work any more: it asks for no answer
    with memory.requests.measure() as spent:
        other.transact([put("b", n=1)])
    assert spent["total"] <= TAKEOVER_MAX + 2, dict(spent)  # it also looks for a desk, and lists the log once more
    assert value(other, "a") == {"n": 99}


def test_a_takeover_from_a_writer_that_goes_on_reads_what_it_wrote_meanwhile(
    memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its commits are in the slots where the fence was to go."""
    store = SlowLog(memory)
    other, space = process(memory, monkeypatch), process(store, monkeypatch)
    other.transact([put("a", n=0)])

    def late(put_fence: Callable[[], Won | Lost]) -> Won | Lost:
        for number in range(3):
            other.transact([put(f"late{number}", n=number)])
        return put_fence()

    gate = Gate(late)
    gate.release.set()
    store.gates = [gate]
    assert space.transact([change("late2", m=1)]).seq == 5
    assert value(space, "late2") == {"n": 2, "m": 1}
    assert seqs(space) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("count", [FLUSHED - 2, FLUSHED - 1])
def test_who_leaves_much_behind_puts_it_into_a_layer(
    memory: MemoryStore, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """The writer's fence is a segment, too."""
    space = process(memory, monkeypatch)
    for number in range(count):
        space.transact([put("a", n=number)])
    space.close()
    assert len(list(memory.list(f"db/{DB}/delta/"))) == (count == FLUSHED - 1)
    assert value(process(memory, monkeypatch), "a") == {"n": count - 1}


def test_a_layer_that_cannot_be_written_keeps_nobody_from_closing(
    memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FaultyStore(memory)
    space = process(store, monkeypatch)
    for number in range(FLUSHED):
        space.transact([put("a", n=number)])
    store.fail_next("attempt_put", Fault.DENIED)
    space.close()
    assert not list(memory.list(f"db/{DB}/delta/"))
    assert value(process(memory, monkeypatch), "a") == {"n": FLUSHED - 1}


def test_what_is_recalled_needs_no_look(memory: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    space, other = process(memory, monkeypatch), process(memory, monkeypatch)
    space.transact([put("a", n=1)])
    at = space.read("a").at
    there = other.transact([put("a", n=2), put("b", n=2)]).seq
    with memory.requests.measure() as spent:
        assert space.recall("a", at).value == {"value": {"n": 1}}
        assert space.recall("b", at).presence is Presence.NEVER
    assert spent["total"] == 0
    assert space.recall("a", there).value == {"value": {"n": 2}}, "not seen yet: it looks"
    assert space.read("b", at=at).presence is Presence.EMPTY
