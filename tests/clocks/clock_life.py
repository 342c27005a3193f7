"""Sessions and workers whose clocks jump by seconds, days and years, on one store, from one seed.

Everything runs in one thread. Before a request of one client another may do a whole operation, and before a request of
that one a third: that is how they interleave, and why a seed replays. Each client has a clock of its own; the times of
objects are those of the store's clock, which runs evenly as that of S3 does, or (as on a directory) those of the
client that writes.

`Life.heal` ends the faults, lets the workers catch up and compares with what the store itself saw: its documents, every
version of them, and the trash.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

from tests.harness import BUCKET, created, schema_of
from worm.clock import Clock, Ids
from worm.collections.layout import SCHEMA_KEY
from worm.collections.oplog_archives import Archiver
from worm.errors import Conflict, Invalid, NotFound, Unavailable, WormError
from worm.formats import Schema, load_schema
from worm.formats.strict_json import JsonValue
from worm.query.needs import STRATEGIES
from worm.sdk.database import Model, Worm
from worm.sdk.document import DocumentDict
from worm.store.faulty_store import Fault, FaultyStore, Operation
from worm.store.memory import MemoryStore
from worm.tables.verify import verify_collection
from worm.upkeep.purge import Purge
from worm.upkeep.session import Session, Settings
from worm.upkeep.sweep import Sweep
from worm.upkeep.workers.batch import Message
from worm.upkeep.workers.capture import Capture
from worm.upkeep.workers.tables import Fold

START = datetime(2026, 1, 1, tzinfo=UTC)
YEAR = 365 * 86400
JUMPS = (1, 30, 61, 3600, 43_200, 90_000, 40 * 86_400, 3 * YEAR, 60 * YEAR, 900 * YEAR)
YEARS = (3 * YEAR, 60 * YEAR, 900 * YEAR)
IDS = ("a", "b", "c", "d")
EMAILS = ("x@acme.com", "y@acme.com", "z@acme.com")
CLIENTS = 4
DEPTH_MAX = 2
RATES = {
    Fault.CONFLICT: 0.02,
    Fault.OWN_REFUSAL: 0.01,
    Fault.UNAVAILABLE: 0.01,
    Fault.LOST_REQUEST: 0.01,
    Fault.LOST_RESPONSE: 0.02,
}
EXPECTED = (Conflict, Invalid, NotFound)
"""The errors that a client may get on a store that works; with faults also `Unavailable`, or that it is not known."""


class Broken(BaseException):
    """A client got a wrong answer. No `Exception`: it may come up through the call of another client."""


@dataclass
class Ticks:
    """Time that passes for all clients alike."""

    elapsed: float = 0.0


@dataclass
class JumpingClock:
    """The wall time of one machine. Its monotonic time never jumps."""

    ticks: Ticks
    offset: float = 0.0

    def now(self) -> datetime:
        return START + timedelta(seconds=self.offset + self.ticks.elapsed)

    def monotonic(self) -> float:
        return self.ticks.elapsed

    def sleep(self, seconds: float) -> None:
        self.ticks.elapsed += seconds

    def jump(self, chance: Random, jumps: Sequence[int] = JUMPS) -> None:
        """Somewhere between the years 100 and 9000."""
        wanted = self.offset + chance.choice((-1, 1)) * chance.choice(jumps)
        self.offset = wanted if -1900 * YEAR < wanted < 6900 * YEAR else 0.0


class Times:
    """The clock that the store dates its objects by."""

    def __init__(self, ticks: Ticks, *, is_writers: bool) -> None:
        self._own = JumpingClock(ticks)
        self.is_even = not is_writers
        self.writers: list[Clock] = []

    def now(self) -> datetime:
        return self.writers[-1].now() if self.writers and not self.is_even else self._own.now()

    def monotonic(self) -> float:
        return self._own.monotonic()

    def sleep(self, seconds: float) -> None:
        self._own.sleep(seconds)


class SharedStore(FaultyStore):
    """What one client has of the store: others come in between its requests."""

    def __init__(self, life: Life, clock: Clock, ids: Ids, seed: int, *, is_faulty: bool) -> None:
        rates = RATES if is_faulty else {}
        super().__init__(life.store, seed=seed, rates=rates, clock=clock, ids=ids)
        self._life = life

    def _next_fault(self, operation: Operation) -> Fault | None:
        self._life.let_another_in()
        return super()._next_fault(operation)


@dataclass
class Client:
    """A process: its clock, its session, and the workers that it would be."""

    name: str
    clock: JumpingClock
    ids: Ids
    store: SharedStore
    schema: Schema
    kept: dict[str, DocumentDict] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        """A new process in its place: nothing is remembered."""
        events = self.ids.rng.random() < 0.4
        self.db = Worm(
            self.store,
            self.schema,
            actor=self.name,
            maintenance="events" if events else "inline",
            probe=False,
            clock=self.clock,
            ids=self.ids,
        )
        self.model: Model = self.db.model("Customer")
        session = Session(self.store, Settings(BUCKET, threads=1), ids=self.ids, clock=self.clock)
        self.session, self.capture, self.fold = session, Capture(session), Fold(session)
        self.kept = {}


class Life:
    """One seeded run."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.chance = Random(seed)
        self.ticks = Ticks()
        self.is_faulty = seed % 3 == 2
        self.versioned = seed % 2 == 0
        self.has_oplog = seed % 5 != 4
        self.is_archived = self.has_oplog and seed % 11 < 4  # then the store has a clock of its own, and days pass
        self.times = Times(self.ticks, is_writers=seed % 4 > 1 and not self.is_archived)
        ids = Ids.seeded(seed, JumpingClock(self.ticks))
        self.store = MemoryStore(versioned=self.versioned, clock=self.times, ids=ids)
        self.schema = self._schema()
        self.store.put(SCHEMA_KEY, self.schema.to_json())
        self.clients = [self._client(number) for number in range(CLIENTS)]
        self.active: list[Client] = []
        self.is_alone = False
        self.number = 0
        self.calls: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.events: list[str] = []
        self.handed_on: set[str] = set()
        self.acked: dict[int, str] = {}
        self.trail: list[str] = []
        with self.acting(self.clients[0]):
            self.is_alone = True
            self.clients[0].model.table.complete()
            self.is_alone = False

    def _schema(self) -> Schema:
        spread = {"partitionThreshold": 2, "maxPartitions": 3} if self.seed % 7 < 3 else {}
        oplog: dict[str, Any] = {"archiveAfter": "1d"} if self.is_archived else {}
        return load_schema(
            schema_of(
                oplog=self.has_oplog,
                softDelete=True,
                trashTtlDays=(30, 1, 0)[self.seed % 3],
                snapshots={"enabled": True, "every": 2, "maxAge": "30d", "maxCount": 3},
                manifest={"enabled": True, **spread},
                fields={"name": {"type": "string"}, "email": {"type": "string"}, "n": {"type": "number"}},
                indexes={"byEmail": {"field": "email", "unique": True}, "byN": {"field": "n"}},
                **oplog,
            )
        )

    def _client(self, number: int) -> Client:
        clock = JumpingClock(self.ticks)
        ids = Ids(clock, Random(self.seed * 100 + number))
        store = SharedStore(self, clock, ids, self.seed * 100 + number, is_faulty=self.is_faulty)
        return Client(f"client-{number}", clock, ids, store, self.schema)

    # Interleaving

    @contextmanager
    def acting(self, client: Client) -> Iterator[None]:
        self.active.append(client)
        self.times.writers.append(client.clock)
        try:
            yield
        finally:
            self.active.pop()
            self.times.writers.pop()

    def let_another_in(self) -> None:
        if not self.is_alone and len(self.active) <= DEPTH_MAX and self.chance.random() < 0.03:
            self.step()

    def run(self, calls: int) -> None:
        while self.calls.total() < calls:
            self.step()
        self.heal()

    def step(self) -> None:
        """One operation of a client that is not at work."""
        self.ticks.elapsed += self.chance.choice((0.0, 0.3, 1.0, 20.0)) if not self.active else 0.1
        if self.is_archived and not self.active and self.chance.random() < 0.03:
            self.ticks.elapsed += 100_000
        client = self.chance.choice([one for one in self.clients if one not in self.active])
        for one in self.clients:
            if self.chance.random() < 0.1:
                one.clock.jump(self.chance, YEARS if self.is_archived else JUMPS)
        if self.chance.random() < 0.01:
            client.start()
        verb, weight = zip(*VERBS.items(), strict=True)
        chosen = self.chance.choices(verb, weight)[0]
        if not self.has_oplog and chosen in NEED_OPLOG:
            return
        with self.acting(client):
            self._do(chosen, client)

    def _do(self, verb: Callable[[Life, Client], object], client: Client) -> None:
        name = verb.__name__
        self.calls[name] += 1
        self.trail.append(f"{client.name} {name} at {client.clock.now()}")
        expected: tuple[type[WormError], ...] = (*EXPECTED, Unavailable) if self.is_faulty else EXPECTED
        try:
            verb(self, client)
        except expected as error:
            self.refused[f"{name} {type(error).__name__}"] += 1
            self.trail.append(f"  {client.name} {name}: {error!r}"[:200])
        except Unavailable as error:
            if self._behind(error) is None:
                raise Broken(repr(error)) from error
            self.refused[f"{name} behind"] += 1
        except Exception as error:
            raise Broken(repr(error)) from error

    def _behind(self, error: WormError) -> str | None:
        """What a session says where the workers were not there yet."""
        return next((said for said in ("is not recorded yet",) if said in error.message), None)

    # What clients do

    def document(self) -> dict[str, JsonValue]:
        self.number += 1
        made: dict[str, JsonValue] = {"n": self.number, "name": self.chance.choice(("Acme", "Bolt"))}
        if self.chance.random() < 0.6:
            made["email"] = self.chance.choice(EMAILS)
        return made

    def some_id(self) -> str:
        return self.chance.choice(IDS)

    def insert(self, client: Client) -> None:
        made, entity_id = self.document(), self.some_id()
        client.model.insert({"id": entity_id, **made})
        self._acknowledge(entity_id, made)

    def save(self, client: Client) -> None:
        entity_id = self.some_id()
        document = client.model.get(entity_id)
        made = self.document()
        document.update(made)
        client.model.save(document)
        self._acknowledge(entity_id, made)

    def keep(self, client: Client) -> None:
        """Read now, save much later."""
        found = client.model.find_by_id(self.some_id())
        if found is not None:
            client.kept[str(found["id"])] = found

    def save_kept(self, client: Client) -> None:
        entity_id = self.some_id()
        document = client.kept.pop(entity_id, None)
        if document is not None:
            made = self.document()
            client.model.save(DocumentDict.of({**document, **made}, document.provenance))
            self._acknowledge(entity_id, made)

    def patch(self, client: Client) -> None:
        made, entity_id = self.document(), self.some_id()
        client.model.patch(entity_id, made)
        self._acknowledge(entity_id, made)

    def upsert(self, client: Client) -> None:
        made, entity_id = self.document(), self.some_id()
        client.model.upsert({"id": entity_id, **made})
        self._acknowledge(entity_id, made)

    def delete(self, client: Client) -> None:
        client.model.delete(self.some_id())

    def restore(self, client: Client) -> None:
        client.model.restore(self.some_id())

    def purge(self, client: Client) -> None:
        client.model.purge(self.some_id())

    def purge_expired(self, client: Client) -> None:
        client.model.purge_expired()

    def list_trashed(self, client: Client) -> None:
        client.model.list_trashed()

    def rollback(self, client: Client) -> None:
        entity_id = self.some_id()
        history = client.model.get_history(entity_id)
        if history:
            client.model.rollback(entity_id, to_seq=self.chance.choice(history).seq)

    def history(self, client: Client) -> None:
        seqs = [entry.seq for entry in client.model.get_history(self.some_id())]
        assert seqs == list(range(1, len(seqs) + 1)), seqs

    def at_time(self, client: Client) -> None:
        client.model.get_at(self.some_id(), time=client.clock.now())

    def snapshot(self, client: Client) -> None:
        client.model.snapshot(self.some_id())

    def restore_snapshot(self, client: Client) -> None:
        entity_id = self.some_id()
        found = client.model.list_snapshots(entity_id)
        if found:
            client.model.restore_snapshot(entity_id, str(self.chance.choice(found)["ts"]))

    def query(self, client: Client) -> None:
        wanted: dict[str, object] = self.chance.choice(
            [{}, {"email": self.chance.choice(EMAILS)}, {"n": {"$gt": self.number - 5}}]
        )
        client.model.find_all(filter=wanted, sort="n" if self.chance.random() < 0.5 else None)

    def raw_put(self, client: Client) -> None:
        entity_id, made = self.some_id(), self.document()
        made.pop("email", None)
        won = self.store.put(self.key(entity_id), json.dumps({"id": entity_id, **made}).encode())
        self._acknowledge(entity_id, made)
        self.events.append(created(self.key(entity_id), won.version_id))

    def raw_delete(self, client: Client) -> None:
        entity_id = self.some_id()
        self.store.delete(self.key(entity_id))
        self.events.append(created(self.key(entity_id), None).replace("Object Created", "Object Deleted"))

    def run_capture(self, client: Client) -> None:
        batch, self.events = self.events[:5], self.events[5:]
        client.capture.run([Message(f"m{number}", body, 2) for number, body in enumerate(batch)])

    def run_fold(self, client: Client) -> None:
        keys = [one.key for one in self.store.list(".worm.changes/") if one.key not in self.handed_on][:3]
        self.handed_on |= set(keys)
        client.fold.run([Message(f"m{number}", created(key)) for number, key in enumerate(keys)])

    def sweep(self, client: Client) -> None:
        Sweep(client.session).run(lambda: 1.0)

    def purge_worker(self, client: Client) -> None:
        Purge(client.session).run(lambda: 1.0)

    def compact(self, client: Client) -> None:
        """By the store's clock: S3 refuses the requests of one that is wrong."""
        if self.is_archived:
            collection = client.model.table.collection
            report = Archiver(collection, now=self.times.now(), dry_run=False).run(threads=1)
            assert self.is_faulty or report.problems == {}, report.problems

    def key(self, entity_id: str) -> str:
        return f"org/customers/{entity_id}/profile.json"

    def _acknowledge(self, entity_id: str, made: Mapping[str, JsonValue]) -> None:
        self.acked[int(str(made["n"]))] = entity_id

    # At the end

    def heal(self) -> None:
        """No more faults, no more company: the workers catch up, and everything derived must equal the source."""
        self.is_alone = True
        session = Session(self.store, Settings(BUCKET, threads=1), ids=self.store.ids, clock=self.times)
        self.store.clock = JumpingClock(self.ticks)
        self.ticks.elapsed += 120
        for report in Sweep(session).run(lambda: 1.0, resume=False):
            assert report.error is None, report.error
            assert report.problems == {}, report.problems
        self.check(session)

    def check(self, session: Session) -> None:
        session.refresh()
        collection = session.table("Customer").collection
        differences = [one for one in verify_collection(collection).differences if "claim-stale" not in str(one)]
        assert differences == [], differences
        self._check_unique()
        self._check_queries()
        if self.has_oplog and self.versioned:
            self._check_histories(session)
        if self.has_oplog and self.versioned and self.times.is_even:
            self._check_rescue(session)

    def documents(self) -> dict[str, dict[str, JsonValue]]:
        found = {entity_id: self.store.get(self.key(entity_id)) for entity_id in IDS}
        return {entity_id: json.loads(one.body) for entity_id, one in found.items() if one is not None}

    def _check_unique(self) -> None:
        held = Counter(str(document["email"]) for document in self.documents().values() if document.get("email"))
        assert not held or max(held.values()) == 1, held

    def _check_queries(self) -> None:
        """Every way to find documents finds those that are there."""
        db = Worm(self.store, self.schema, probe=False, clock=JumpingClock(self.ticks), ids=self.store.ids)
        documents = self.documents()
        for strategy in STRATEGIES:
            for wanted in [{}, *({"email": one} for one in EMAILS)]:
                try:
                    rows = db.model("Customer").find_all(filter=wanted, strategy=strategy)
                except Invalid:
                    continue  # this way cannot answer this question
                matching = {one for one, document in documents.items() if wanted.items() <= document.items()}
                assert {str(row["id"]) for row in rows} == matching, (strategy, wanted)

    def _check_histories(self, session: Session) -> None:
        """Every acknowledged write is in the history, once."""
        collection = session.table("Customer").collection
        told: Counter[int] = Counter()
        for entity_id in IDS:
            for entry in collection.oplog.entries(entity_id):
                known = entry.snapshot if entry.op in ("create", "restore") else None
                number = known.get("n") if known is not None else (entry.diff or {}).get("n", [None, None])[1]
                if isinstance(number, int):
                    told[number] += 1
        lost = {number: entity_id for number, entity_id in self.acked.items() if not told[number]}
        assert lost == {}, lost

    def _check_rescue(self, session: Session) -> None:
        """What a raw client deletes is in the trash then, whatever tombstones of wrong clocks were there before."""
        self.ticks.elapsed += 1
        deleted = self.documents()
        for entity_id in deleted:
            self.store.delete(self.key(entity_id))
        Sweep(session).run(lambda: 1.0, resume=False)
        db = Worm(self.store, self.schema, probe=False, clock=JumpingClock(self.ticks), ids=self.store.ids)
        assert {str(one["id"]) for one in db.model("Customer").list_trashed()} >= set(deleted)
        for entity_id, document in deleted.items():
            assert db.model("Customer").restore(entity_id) == {"id": entity_id, **document}


VERBS: dict[Callable[[Life, Client], object], int] = {
    Life.insert: 8,
    Life.save: 8,
    Life.keep: 4,
    Life.save_kept: 4,
    Life.patch: 6,
    Life.upsert: 3,
    Life.delete: 12,
    Life.restore: 12,
    Life.purge: 3,
    Life.purge_expired: 3,
    Life.list_trashed: 1,
    Life.rollback: 4,
    Life.history: 2,
    Life.at_time: 2,
    Life.snapshot: 2,
    Life.restore_snapshot: 2,
    Life.query: 4,
    Life.raw_put: 4,
    Life.raw_delete: 3,
    Life.run_capture: 5,
    Life.run_fold: 4,
    Life.sweep: 1,
    Life.purge_worker: 1,
    Life.compact: 2,
}
NEED_OPLOG = {Life.rollback, Life.history, Life.at_time, Life.compact}
