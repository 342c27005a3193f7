"""A database under a seeded scheduler: writers, collectors and readers whose requests meet in any order, on a store
that fails, with clocks that disagree, processes that sleep and die. Everything follows from the seed.

Each actor is a thread that waits before every request; one goes on at a time, chosen by the seed. An actor that is not
chosen for long is a process that was stopped. What every request did is kept (`MemoryStore` keeps all versions), so the
check afterwards knows the log as it truly was, also where it was collected.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise
from random import Random

from worm.clock import Ids, VirtualClock
from worm.errors import CommitStateUnknown, Denied, Expired, Fenced, NotFound, Unavailable, WormError
from worm.log.collect import LogCollector
from worm.log.config import LogConfig
from worm.log.keys import DbKeys
from worm.log.reader import LogReader
from worm.log.root import LogRoot
from worm.log.segment import LogTransaction, Segment
from worm.log.writer import LogWriter
from worm.store.base import Attempt, Condition, Listed, NotModified, Object, ObjectInfo, Won
from worm.store.faulty_store import Fault, FaultyStore, Operation, SimulatedCrash
from worm.store.memory import MemoryStore

KEYS = DbKeys("main")
MIN_AGE = 60.0
STEPS_MAX = 1500
RATES = {
    Fault.CONFLICT: 0.02,
    Fault.OWN_REFUSAL: 0.02,
    Fault.UNAVAILABLE: 0.02,
    Fault.LOST_REQUEST: 0.02,
    Fault.LOST_RESPONSE: 0.03,
    Fault.DELAYED: 0.02,
    Fault.DENIED: 0.01,
}


class SkewedClock(VirtualClock):
    """The clock of one machine: the true time, wrong by a constant, and set anew now and then."""

    def __init__(self, true: VirtualClock, skew: timedelta, chance: Random) -> None:
        super().__init__()
        self._true = true
        self._skew = skew
        self._chance = chance

    def now(self) -> datetime:
        if self._chance.random() < 0.01:
            self._skew += timedelta(seconds=self._chance.choice((-3600, -MIN_AGE, -20, 20, MIN_AGE, 3600)))
        return self._true.now() + self._skew

    def monotonic(self) -> float:
        return self._true.monotonic()

    def advance(self, seconds: float) -> None:
        self._true.advance(seconds)


class Turn:
    """Where one actor waits until the scheduler lets it make its next request."""

    def __init__(self) -> None:
        self._go = threading.Semaphore(0)
        self._stopped = threading.Semaphore(0)
        self.is_done = False
        self.is_ended = False

    def wait(self) -> None:
        self._stopped.release()
        self._go.acquire()
        if self.is_ended:
            raise SimulatedCrash("the run is over")

    def finish(self) -> None:
        self.is_done = True
        self._stopped.release()

    def go_on(self) -> None:
        self._go.release()
        self.until_stopped()

    def until_stopped(self) -> None:
        assert self._stopped.acquire(timeout=60), "an actor hangs"


class Network:
    """Writes that are on their way, whatever became of who sent them."""

    def __init__(self) -> None:
        self._waiting: list[Callable[[], object]] = []

    def hold(self, land: Callable[[], object]) -> None:
        self._waiting.append(land)

    def land(self, chance: Random, share: float) -> None:
        for land in [one for one in self._waiting if chance.random() < share]:
            self._waiting.remove(land)
            land()


class TurnStore(FaultyStore):
    """A failing store that waits for its turn before every request. Some writes land long after everybody gave up."""

    def __init__(
        self, inner: MemoryStore, turn: Turn, clock: VirtualClock, seed: int, network: Network, *, is_failing: bool
    ) -> None:
        rates = RATES if is_failing else {}
        self._network = network
        self._late = Random(seed ^ 0x1A7E)
        self._late_share = 0.03 if is_failing else 0.0
        super().__init__(
            inner,
            seed=seed,
            rates=rates,
            read_rate=0.02 if is_failing else 0.0,
            clock=clock,
            ids=Ids.seeded(seed ^ 0xBEEF, clock),
        )
        self._turn = turn

    def get(self, key: str, *, version_id: str | None = None, max_bytes: int | None = None) -> Object | None:
        self._turn.wait()
        return super().get(key, version_id=version_id, max_bytes=max_bytes)

    def get_if_changed(self, key: str, etag: str | None) -> Object | NotModified | None:
        self._turn.wait()
        return super().get_if_changed(key, etag)

    def get_range(self, key: str, start: int, length: int) -> bytes | None:
        self._turn.wait()
        return super().get_range(key, start, length)

    def head(self, key: str, *, version_id: str | None = None) -> ObjectInfo | None:
        self._turn.wait()
        return super().head(key, version_id=version_id)

    def list(self, prefix: str, *, start_after: str | None = None, limit: int | None = None) -> Iterator[Listed]:
        self._turn.wait()
        return super().list(prefix, start_after=start_after, limit=limit)

    def put(self, key: str, body: bytes, *, metadata: Mapping[str, str] | None = None) -> Won:
        self._turn.wait()
        return super().put(key, body, metadata=metadata)

    def delete(self, key: str) -> None:
        self._turn.wait()
        super().delete(key)

    def attempt_put(self, key: str, body: bytes, condition: Condition, metadata: Mapping[str, str]) -> Attempt:
        self._turn.wait()
        if self._late.random() < self._late_share:
            self._network.hold(lambda: self.inner.attempt_put(key, body, condition, metadata))
            self.fail_next("attempt_put", Fault.LOST_REQUEST)
        return super().attempt_put(key, body, condition, metadata)

    def _before_read(self, operation: Operation, key: str) -> None:
        if self._late.random() < self._late_share / 3:
            raise Denied("injected 403", key=key)
        super()._before_read(operation, key)


@dataclass
class Feed:
    """What was read after an LSN, by one who asked at a step; `is_whole`: up to the end."""

    after: int
    asked: int
    seen: list[tuple[int, str]] = field(default_factory=list)
    is_whole: bool = False


@dataclass
class Told:
    """What the clients of the database were told, with the step at which they asked and were answered."""

    acked: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    unknown: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)
    read: list[Feed] = field(default_factory=list)
    fences: int = 0
    collected: int = 0


Actor = Callable[[TurnStore, SkewedClock, Random], None]


class Simulation:
    """One run. `told` is what came of it, `memory` what is stored."""

    steps_max = STEPS_MAX

    def __init__(self, seed: int, *, is_failing: bool = True) -> None:
        self.chance = Random(seed)
        self.seed = seed
        self.clock = VirtualClock()
        self.memory = MemoryStore(versioned=True, clock=self.clock, ids=Ids.seeded(seed, self.clock))
        self.told = Told()
        self.steps = 0
        self.network = Network()
        self._is_failing = is_failing
        self._turns: list[Turn] = []
        self._errors: list[BaseException] = []
        self._number = 0

    def actors(self) -> list[Actor]:
        """Who takes part."""
        actors: list[Actor] = [self._write] * self.chance.randint(2, 4)
        return actors + [self._collect] * self.chance.randint(1, 2) + [self._read]

    def run(self) -> None:
        for at, actor in enumerate(self.actors()):
            turn = Turn()
            self._turns.append(turn)
            threading.Thread(target=self._act, args=(at, actor, turn), daemon=True).start()
            turn.until_stopped()
        self._schedule()
        if self._errors:
            raise self._errors[0]

    def _schedule(self) -> None:
        """Goes on with one actor for some requests, then with another; some sleep while time goes by."""
        asleep: dict[int, int] = {}
        while waiting := [at for at, turn in enumerate(self._turns) if not turn.is_done]:
            awake = [at for at in waiting if asleep.get(at, 0) <= self.steps] or waiting
            chosen = self.chance.choice(awake)
            for _ in range(self.chance.choice((1, 1, 2, 5))):
                self.steps += 1
                if self.steps > self.steps_max:
                    self._turns[chosen].is_ended = True
                self.network.land(self.chance, 0.02)
                self._turns[chosen].go_on()
                if self._turns[chosen].is_done:
                    break
            drawn = self.chance.random()
            if drawn < 0.06:
                asleep[chosen] = self.steps + self.chance.randint(20, 200)
            if drawn < 0.15:
                self.clock.advance(self.chance.choice((1, 10, MIN_AGE, 3 * MIN_AGE)))

    def _act(self, at: int, actor: Actor, turn: Turn) -> None:
        chance = Random(self.seed * 1000 + at)
        turn.wait()
        try:
            for life in range(4):
                seed = self.seed * 100_000 + at * 100 + life
                clock = SkewedClock(self.clock, timedelta(hours=chance.choice((0, 0, -24, 24))), Random(seed))
                store = TurnStore(self.memory, turn, clock, seed, self.network, is_failing=self._is_failing)
                if chance.random() < 0.5:
                    store.crash_at_write(chance.randint(1, 12), chance.choice(("before", "after")))
                try:
                    actor(store, clock, chance)
                except SimulatedCrash:
                    if turn.is_ended:
                        break
        except BaseException as error:  # noqa: BLE001 - raised again by `run`, in the thread of the test
            self._errors.append(error)
        turn.finish()

    # Actors

    def _write(self, store: TurnStore, clock: SkewedClock, chance: Random) -> None:
        config = LogConfig(gc_min_age_seconds=MIN_AGE)
        try:
            writer = LogWriter.open(store, "main", config=config, clock=clock, ids=store.ids)
        except (Fenced, Unavailable, Denied):
            self.told.fences += 1
            return
        for _ in range(chance.randint(1, 12)):
            batch = [self._transaction(chance) for _ in range(chance.choice((1, 1, 1, 3)))]
            asked = self.steps
            for one in batch:  # until it is answered: a process that dies tells nobody
                self.told.unknown.add(one.id)
            try:
                lsns = writer.commit(batch)
            except CommitStateUnknown:
                return
            except (Fenced, Denied) as refusal:
                self.told.fences += 1
                self.told.unknown -= {one.id for one in batch}
                self.told.refused |= {one.id for one in batch}
                if isinstance(refusal, Denied):
                    continue
                return
            for one, lsn in zip(batch, lsns, strict=True):
                self.told.unknown.discard(one.id)
                self.told.acked[one.id] = (asked, self.steps, lsn)

    def _transaction(self, chance: Random) -> LogTransaction:
        self._number += 1
        return LogTransaction(f"t{self._number}", [{"op": "put", "n": n} for n in range(chance.randint(1, 3))])

    def _collect(self, store: TurnStore, clock: SkewedClock, chance: Random) -> None:
        config = LogConfig(gc_min_age_seconds=MIN_AGE)
        collector = LogCollector(store, "main", config=config, clock=clock, ids=store.ids)
        for _ in range(4):
            try:
                self.told.collected += collector.run(chance.choice((3, 10, 1000))).deleted
            except (Unavailable, Denied):
                continue

    def _read(self, store: TurnStore, clock: SkewedClock, chance: Random) -> None:
        reader = LogReader(store, "main", clock=clock, ids=store.ids)
        for _ in range(3):
            try:
                after = chance.choice((0, reader.earliest() - 1, reader.earliest() + 2))
                feed = Feed(after, self.steps)
                self.told.read.append(feed)
                feed.seen.extend((one.lsn, one.txn) for one in reader.feed(after))
                feed.is_whole = True
            except (Expired, NotFound, Unavailable, Denied):  # NotFound: the log does not go as far yet
                continue


def true_log(memory: MemoryStore, keys: DbKeys = KEYS) -> list[Segment]:
    """Every segment as it was written first, collected or not. What was written into a collected slot later is none."""
    first: dict[int, tuple[datetime, int, str | None]] = {}
    for order, version in enumerate(reversed(list(memory.list_versions(keys.log)))):
        slot = keys.slot_of(version.key)
        if slot is None or version.is_delete_marker:
            continue
        if slot not in first or (version.last_modified, order) < first[slot][:2]:
            first[slot] = (version.last_modified, order, version.version_id)
    segments = []
    for slot in sorted(first):
        found = memory.get(keys.slot(slot), version_id=first[slot][2])
        assert found is not None
        segments.append(Segment.decode(found.body, slot, found.key))
    return segments


def check(simulation: Simulation) -> list[Segment]:
    """I1 to I3 and I8, by fresh eyes on the store itself."""
    told, segments = simulation.told, true_log(simulation.memory)
    assert [segment.slot for segment in segments] == list(range(1, len(segments) + 1))
    for before, after in pairwise(segments):
        after.follows(before, KEYS.slot(after.slot))
    held: dict[str, list[int]] = {}
    for segment in segments:
        lsn = segment.lsn
        for one in segment.transactions():
            lsn += len(one.records)
            held.setdefault(one.id, []).append(lsn)
    assert all(len(lsns) == 1 for lsns in held.values()), "a transaction is in the log twice"
    for txn, (_, _, lsn) in told.acked.items():
        assert held.get(txn) == [lsn], f"{txn} was acknowledged"
    assert not told.refused & held.keys(), "a transaction that was refused is in the log"
    assert held.keys() <= told.acked.keys() | told.unknown
    _check_realtime(told)
    _check_reads(told, segments)
    _check_boundary(simulation, len(segments))
    return segments


def _check_realtime(told: Told) -> None:
    """What was acknowledged before another was asked for comes before it."""
    by_answer = sorted(told.acked.values(), key=lambda one: one[1])
    for asked, _, lsn in told.acked.values():
        earlier = [other for _, answered, other in by_answer if answered < asked]
        assert max(earlier, default=0) < lsn


def _check_reads(told: Told, segments: list[Segment]) -> None:
    """Every read is a run of the log from where it was asked for, without a gap and without anything else; and one to
    the end has all that was acknowledged before."""
    entries = [(entry.lsn, entry.txn) for segment in segments for entry in segment.entries]
    for feed in told.read:
        due = [entry for entry in entries if entry[0] > feed.after]
        assert feed.seen == due[: len(feed.seen)], "a read that is not of the log"
        if feed.is_whole:
            earlier = {lsn for _, answered, lsn in told.acked.values() if answered < feed.asked and lsn > feed.after}
            assert earlier <= {lsn for lsn, _ in feed.seen}, "a read that lacks what was acknowledged before"


def _check_boundary(simulation: Simulation, slots: int) -> None:
    """It never goes back, never covers the last slot, and covers all that is gone."""
    versions = [one for one in simulation.memory.versions(KEYS.root) if not one.is_delete_marker]
    boundary = 0
    for version in reversed(versions):
        found = simulation.memory.get(KEYS.root, version_id=version.version_id)
        assert found is not None
        raised = LogRoot.decode(found.body, KEYS.root).boundary
        assert raised >= boundary
        boundary = raised
    assert boundary < max(slots, 1)
    gone = [slot for slot in range(1, slots + 1) if simulation.memory.get(KEYS.slot(slot)) is None]
    assert all(slot <= boundary for slot in gone)


def heal(simulation: Simulation) -> None:
    """When the faults stop, a new writer serves at once, and a reader reads on."""
    clock = simulation.clock
    config = LogConfig(gc_min_age_seconds=MIN_AGE)
    writer = LogWriter.open(simulation.memory, "main", config=config, clock=clock, ids=Ids.seeded(1, clock))
    lsn = writer.append_wal([{"op": "put", "n": -1}], txn="healed")
    simulation.told.acked["healed"] = (simulation.steps + 1, simulation.steps + 2, lsn)
    reader = LogReader(simulation.memory, "main", clock=clock)
    try:
        assert [change.txn for change in reader.feed(lsn - 1)] == ["healed"]
    except WormError as error:
        raise AssertionError(f"the healed log cannot be read: {error}") from error
