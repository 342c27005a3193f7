"""The path of a change on virtual clocks: a client stores a document, EventBridge, the queue of `capture`, change sets,
the queue of `tables`, the manifest. The workers are the real ones; queues and functions behave as the template says.

A batch starts when it is full or its oldest message has waited for the window, and a worker is free. Failed messages
return after the visibility timeout. A new worker starts cold; an idle one is used first. Lambda's own scaling is left
out: from the first moment, as many workers may run as the template allows.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Protocol

from scripts.benchmarks._virtual_s3 import (
    Bucket,
    Limits,
    Process,
    TimedOut,
    Timeline,
    VirtualS3,
    WorkerClock,
    lanes_for_threads,
)
from worm.clock import Ids, iso_seconds
from worm.collections.entries import Change, ChangeSet, Head
from worm.collections.layout import SCHEMA_KEY
from worm.dev.specs import Template
from worm.formats import load_schema
from worm.store.base import RequestCounter
from worm.store.memory import MemoryStore
from worm.store.parallel import in_chunks
from worm.upkeep.session import Session, Settings
from worm.upkeep.workers.batch import BatchOutcome, Message
from worm.upkeep.workers.capture import Capture
from worm.upkeep.workers.tables import Fold

BUCKET = "documents"
CHANGE_SETS = ".worm.changes/"
MANIFEST = "/.worm.manifest.json"
EVENT_SECONDS = (0.2, 0.8)
"""From a stored object to its message in the queue."""
COLD_START_SECONDS = 0.8
CLIENT_RETRY_SECONDS = 0.5
PROCESSOR_MB = 1769
"""Memory of a function that has one whole processor."""


class Worker(Protocol):
    def run(self, messages: Sequence[Message]) -> BatchOutcome: ...


@dataclass(frozen=True, slots=True)
class Tuning:
    """The template's settings of a function and its queue."""

    batch_size: int
    window_seconds: float
    concurrency: int
    timeout_seconds: float
    memory_mb: int
    hidden_seconds: float

    @property
    def processors(self) -> float:
        """Python uses one at most."""
        return min(1.0, self.memory_mb / PROCESSOR_MB)

    @classmethod
    def of(cls, template: Template, name: str) -> Tuning:
        function = template.function(name)
        source = next(one for one in template.event_sources if one.function == function.name)
        return cls(
            source.batch_size,
            source.window_seconds,
            source.concurrency_max or 1000,
            function.timeout_seconds,
            function.memory_mb,
            float(template.queue(source.queue_arn).attributes["VisibilityTimeout"]),
        )


@dataclass(frozen=True, slots=True)
class Load:
    """This many changes per second for this long, over this many collections. A share of `updates` changes existing
    documents; the others are new documents."""

    per_second: float
    seconds: float
    collections: int = 1
    updates: float = 0.2
    population: int = 10_000
    set_size: int = 0
    """If not 0: change sets of this many new documents come in, as capture would write them. Only for `tables`."""


@dataclass
class Function:
    """A queue and the function that it feeds."""

    timeline: Timeline
    tuning: Tuning
    hire: Callable[[], tuple[Process, Worker]]
    done: Callable[[Process], None]
    waiting: deque[tuple[float, Message]] = field(default_factory=deque)
    idle: list[tuple[Process, Worker]] = field(default_factory=list)
    hired: list[Process] = field(default_factory=list)
    running: int = 0
    peak: int = 0
    messages: int = 0
    failed: int = 0
    durations: list[float] = field(default_factory=list)
    cold_starts: int = 0
    attempts: int = 0
    _is_looking: bool = False

    def send(self, message: Message) -> None:
        self.messages += 1
        self.waiting.append((self.timeline.now, message))
        if len(self.waiting) >= self.tuning.batch_size:
            self._look()
        elif not self._is_looking:
            self._look_at(self.timeline.now + self.tuning.window_seconds)

    def _look_at(self, time: float) -> None:
        self._is_looking = True
        self.timeline.at(time, self._look_now)

    def _look_now(self) -> None:
        self._is_looking = False
        self._look()

    def _look(self) -> None:
        size, now = self.tuning.batch_size, self.timeline.now
        while self.waiting and self.running < self.tuning.concurrency:
            due = self.waiting[0][0] + self.tuning.window_seconds
            if len(self.waiting) < size and due > now:
                if not self._is_looking:
                    self._look_at(due)
                return
            batch = [self.waiting.popleft()[1] for _ in range(min(size, len(self.waiting)))]
            self._start(batch)

    def _start(self, batch: Sequence[Message]) -> None:
        self.running += 1
        self.peak = max(self.peak, self.running)
        now = self.timeline.now
        is_cold = not self.idle
        process, worker = self.hire() if is_cold else self.idle.pop()
        if is_cold:
            self.cold_starts += 1
            self.hired.append(process)
        process.clock.elapsed = now + (COLD_START_SECONDS if is_cold else 0.0)
        process.deadline = process.clock.elapsed + self.tuning.timeout_seconds
        self.timeline.at(now, partial(process.run, partial(self._work, process, worker, batch, now)))

    def _work(self, process: Process, worker: Worker, batch: Sequence[Message], started: float) -> None:
        try:
            outcome = worker.run(batch)
            failed = set(outcome.failed) | set(outcome.rejected)
            self.attempts += outcome.attempts
            process.turn()
        except TimedOut:
            if process.deadline < 0:
                return
            failed = {message.id for message in batch}
            process.clock.lanes = 0
        self.timeline.at(process.clock.elapsed, partial(self._finish, process, worker, batch, failed, started))

    def _finish(
        self, process: Process, worker: Worker, batch: Sequence[Message], failed: set[str], started: float
    ) -> None:
        self.running -= 1
        self.durations.append(self.timeline.now - started)
        self.idle.append((process, worker))
        self.done(process)
        for message in batch:
            if message.id in failed:
                self.failed += 1
                again = Message(message.id, message.body, message.deliveries + 1)
                self.timeline.at(self.timeline.now + self.tuning.hidden_seconds, partial(self.send, again))
        self._look()


class Freshness:
    """When each change was stored, and how long it took until a manifest had it."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._stored: dict[str, list[tuple[str, float]]] = {}
        self._handed_on: dict[str, list[tuple[str, str]]] = {}
        self._held: dict[int, list[str]] = {}

    @property
    def unseen(self) -> int:
        return sum(map(len, self._stored.values()))

    def stored(self, entity_id: str, version_id: str, time: float) -> None:
        self._stored.setdefault(entity_id, []).append((version_id, time))

    def handed_on(self, key: str, body: bytes) -> None:
        changes = ChangeSet.decode(body, key).changes
        heads = [(change.id, change.head) for change in changes]
        self._handed_on[key] = [(one, head.version_id or "") for one, head in heads if head is not None]

    def read(self, worker: int, key: str) -> None:
        self._held.setdefault(worker, []).append(key)

    def folded(self, worker: int, time: float, prefix: str = CHANGE_SETS) -> None:
        """The change sets with this prefix that the worker read are now in their manifest."""
        rest = []
        for key in self._held.pop(worker, []):
            if key.startswith(prefix):
                for entity_id, version_id in self._handed_on[key]:
                    self._visible(entity_id, version_id, time)
            else:
                rest.append(key)
        if rest:
            self._held[worker] = rest

    def _visible(self, entity_id: str, version_id: str, time: float) -> None:
        stored = self._stored.get(entity_id, [])
        self.seconds += [time - at for version, at in stored if version <= version_id]
        left = [one for one in stored if one[0] > version_id]
        if left:
            self._stored[entity_id] = left
        else:
            self._stored.pop(entity_id, None)


def schema_of(collections: int) -> dict[str, object]:
    model = {
        "oplog": True,
        "fields": {"name": {"type": "string"}, "status": {"type": "string"}, "count": {"type": "number"}},
        "manifest": {"enabled": True},
        "indexes": {"byStatus": {"field": "status"}},
    }
    return {
        "version": "1.0",
        "models": {f"Thing{at:03d}": {**model, "path": f"@things{at:03d}/(id:string)"} for at in range(collections)},
    }


def message_of(number: int, key: str, version_id: str | None, size: int) -> Message:
    described = {"key": key, "size": size, "version-id": version_id}
    detail = {"bucket": {"name": BUCKET}, "object": described, "requester": "123456789012"}
    body = {"source": "aws.s3", "detail-type": "Object Created", "detail": detail}
    return Message(f"m{number}", json.dumps(body))


def key_of(number: int, collections: int) -> tuple[str, str]:
    """The key and id of a document of the initial population."""
    entity_id = hashlib.md5(str(number).encode(), usedforsecurity=False).hexdigest()
    return f"things{number % collections:03d}/{entity_id}/data.json", entity_id


def document(entity_id: str, number: int) -> bytes:
    status = ("new", "open", "paid", "done")[number % 4]
    shape = {"id": entity_id, "name": f"thing {number}", "status": status, "count": number, "about": "x" * 120}
    return json.dumps(shape).encode()


@cache
def populated(collections: int, count: int) -> MemoryStore:
    """A bucket with this many captured and folded documents, without using virtual time."""
    clock = WorkerClock()
    store = MemoryStore(versioned=True, clock=clock, ids=Ids.seeded(0, clock))
    schema = load_schema(schema_of(collections))
    store.put(SCHEMA_KEY, schema.to_json())
    session = Session(store, Settings(BUCKET), schema=schema, clock=clock, ids=store.ids)
    for name in schema.models:
        session.table(name).complete()  # as `worm push` leaves a new collection
    with lanes_for_threads():
        for numbers in in_chunks(range(count), 2000):
            messages = []
            for number in numbers:
                key, entity_id = key_of(number, collections)
                body = document(entity_id, number)
                messages.append(message_of(number, key, store.put(key, body).version_id, len(body)))
            Capture(session).run(messages)
        listed = enumerate(store.list(CHANGE_SETS))
        Fold(session).run([message_of(at, one.key, None, one.size) for at, one in listed])
    return store


class VirtualPath:
    """One run: `load` changes come in, and time passes until all are visible or `patience_seconds` are over."""

    def __init__(
        self, load: Load, capture: Tuning, tables: Tuning, limits: Limits, seed: int, threads: int = 16
    ) -> None:
        self.load = load
        self._settings = Settings(BUCKET, threads=threads)
        self.chance = random.Random(seed)
        self.timeline = Timeline()
        self.freshness = Freshness()
        self._population = populated(load.collections, load.population)
        self.bucket = Bucket(limits, random.Random(seed + 1), self._population)
        self.requests = {"capture": RequestCounter(), "tables": RequestCounter()}
        self.capture = Function(
            self.timeline, capture, partial(self._hire, "capture", capture, Capture), lambda _: None
        )
        self.tables = Function(self.timeline, tables, partial(self._hire, "tables", tables, Fold), self._folded)
        self.changes = self.refused_clients = self.objects = 0
        self.backlog: tuple[int, int] = (0, 0)

    def _hire(self, name: str, tuning: Tuning, kind: Callable[[Session], Worker]) -> tuple[Process, Worker]:
        process = Process(self.timeline)
        ids = Ids(process.clock, random.Random(self.chance.getrandbits(64)))
        seen = partial(self._seen, process)
        store = VirtualS3(self.bucket, process, ids, self.requests[name], seen, processors=tuning.processors)
        return process, kind(Session(store, self._settings, probe=False, ids=ids, clock=process.clock))

    def _seen(self, process: Process, kind: str, key: str, time: float, body: bytes) -> None:
        self.objects += kind == "PUT"
        if key.startswith(CHANGE_SETS):
            if kind == "GET":
                self.freshness.read(id(process), key)
            else:
                self.freshness.handed_on(key, body)
                self._notify(self.tables, message_of(self.tables.messages, key, None, len(body)), time)
        elif kind == "PUT" and key.endswith(MANIFEST):
            self.freshness.folded(id(process), time, f"{CHANGE_SETS}{key.removesuffix(MANIFEST)}/")

    def _folded(self, process: Process) -> None:
        self.freshness.folded(id(process), self.timeline.now)

    def _notify(self, function: Function, message: Message, time: float) -> None:
        self.timeline.at(time + self.chance.uniform(*EVENT_SECONDS), partial(function.send, message))

    # The clients

    def _arrive(self, number: int) -> None:
        if self.timeline.now >= self.load.seconds:
            self.backlog = len(self.capture.waiting), len(self.tables.waiting)
            return
        after = (number + 1) * max(1, self.load.set_size) / self.load.per_second
        self.timeline.at(after, partial(self._arrive, number + 1))
        if self.load.set_size:
            self._store_set(number)
        else:
            self._store(number)

    def _store_set(self, number: int) -> None:
        now, size, ids = self.timeline.now, self.load.set_size, self.bucket.objects.ids
        self.bucket.clock.elapsed = now
        changes, ts = [], iso_seconds(self.bucket.clock.now())
        for at in range(number * size, (number + 1) * size):
            entity_id = f"{self.chance.getrandbits(128):032x}"
            version_id, row = f"v{at:08d}", json.loads(document(entity_id, at))
            changes.append(Change(entity_id, Head(1, f'"{entity_id}"', version_id, True, ts), row))
            self.freshness.stored(entity_id, version_id, now)
        key = f"{CHANGE_SETS}things000/{ids.ulid()}.json"
        body = ChangeSet("Thing000", changes).encode()
        self.bucket.objects.put(key, body)
        self.changes += size
        self.objects += 1
        self.freshness.handed_on(key, body)
        self._notify(self.tables, message_of(number, key, None, len(body)), now)

    def _store(self, number: int) -> None:
        key, entity_id = self._entity()
        now = self.timeline.now
        if not self.bucket.admits(now, "PUT", key):
            self.refused_clients += 1
            self.timeline.at(now + CLIENT_RETRY_SECONDS, partial(self._store, number))
            return
        body = document(entity_id, number)
        self.bucket.clock.elapsed = now
        version_id = self.bucket.objects.put(key, body).version_id
        self.changes += 1
        self.objects += 1
        self.freshness.stored(entity_id, version_id or "", now)
        self._notify(self.capture, message_of(number, key, version_id, len(body)), now)

    def _entity(self) -> tuple[str, str]:
        if self.load.population and self.chance.random() < self.load.updates:
            return key_of(self.chance.randrange(self.load.population), self.load.collections)
        entity_id = f"{self.chance.getrandbits(128):032x}"
        return f"things{self.chance.randrange(self.load.collections):03d}/{entity_id}/data.json", entity_id

    def run(self, patience_seconds: float = 120.0) -> None:
        with lanes_for_threads():
            self.timeline.at(0.0, partial(self._arrive, 0))
            self.timeline.run(self.load.seconds + patience_seconds)
            for process in (*self.capture.hired, *self.tables.hired):
                process.end()


def spent(requests: Mapping[str, RequestCounter]) -> dict[str, int]:
    """Requests of all functions by kind."""
    found: dict[str, int] = {}
    for counter in requests.values():
        for kind, count in counter.snapshot().items():
            found[kind] = found.get(kind, 0) + count
    return found
