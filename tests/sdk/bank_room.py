"""Models in a space: accounts with a unique email, transfers between them, and the workers that follow the log."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from pathlib import Path

from tests.harness import copied, created
from worm.clock import Deadline, Ids, VirtualClock
from worm.collections.entries import OplogEntry
from worm.collections.layout import SCHEMA_KEY
from worm.dev.faulty_store import FaultyStore
from worm.formats import load_schema
from worm.formats.strict_json import JsonObject
from worm.log.keys import DbKeys
from worm.sdk.database import Model, Worm
from worm.spaces.bridge.applied import RUN_MAX, Applied
from worm.spaces.bridge.following import Materialized
from worm.spaces.opening import database_id
from worm.store.base import Attempt, Condition, Store
from worm.store.file import FileStore
from worm.store.memory import MemoryStore
from worm.tables.verify import verify_collection
from worm.upkeep.materialize import Materializer
from worm.upkeep.session import Maintenance, Session, Settings
from worm.upkeep.sweep import Sweep
from worm.upkeep.workers.apply import Apply
from worm.upkeep.workers.batch import BatchOutcome, Message

MAIN = database_id("main")
ACCOUNT: dict[str, object] = {
    "path": "#bank/@accounts/(id:string)",
    "space": "main",
    "oplog": True,
    "softDelete": True,
    "fields": {"email": {"type": "string"}, "balance": {"type": "number"}},
    "manifest": {"enabled": True},
    "indexes": {"byEmail": {"field": "email", "unique": True}},
}
TRANSFER: dict[str, object] = {
    "path": "#bank/@transfers/(id:string)",
    "space": "main",
    "oplog": True,
    "fields": {"amount": {"type": "number", "required": True}, "account": {"type": "string"}},
    "manifest": {"enabled": True},
}
NOTE: dict[str, object] = {"path": "#bank/@notes/(id:string)", "oplog": True, "fields": {"text": {"type": "string"}}}


class Apart(FaultyStore):
    """The store as another process has it. `meet` is called once, before write number `number`."""

    def __init__(self, bench: SpaceBench, number: int = 0, meet: Callable[[], object] | None = None) -> None:
        super().__init__(bench.store, clock=bench.clock, ids=bench.ids)
        self._name = bench.ids.ulid()
        self._number = number
        self._meet = meet

    @property
    def identity(self) -> str:
        return f"{self.inner.identity}-{self._name}"

    @property
    def has_met(self) -> bool:
        return self._meet is None

    def attempt_put(self, key: str, body: bytes, condition: Condition, metadata: Mapping[str, str]) -> Attempt:
        self._before_write()
        return super().attempt_put(key, body, condition, metadata)

    def attempt_delete(self, key: str, etag: str) -> Attempt:
        self._before_write()
        return super().attempt_delete(key, etag)

    def _before_write(self) -> None:
        """Or before the next one, where several threads write at once."""
        with self._lock:
            meet = self._meet if self.writes + 1 >= self._number else None
            self._meet = None if meet is not None else self._meet
        if meet is not None:
            meet()


class SpaceBench:
    """A store with three models, two of them in the space `main`."""

    def __init__(
        self,
        kind: str = "memory-versioned",
        directory: Path = Path(),
        *,
        layout: str = "root",
        storage: Mapping[str, object] | None = None,
        memory: type[MemoryStore] = MemoryStore,
        **account: object,
    ) -> None:
        self.clock = VirtualClock()
        self.ids = Ids.seeded(11, self.clock)
        models = {"Account": ACCOUNT | account, "Transfer": TRANSFER, "Note": NOTE}
        self.schema = load_schema(
            {"version": "1.0", "storage": {"layout": layout, **(storage or {})}, "models": models}
        )
        self.store: Store
        if kind == "file":
            self.store = FileStore(directory / "bucket", clock=self.clock, ids=self.ids, durability="process")
        else:
            self.store = memory(versioned=kind == "memory-versioned", clock=self.clock, ids=self.ids)
        self.store.put(SCHEMA_KEY, self.schema.to_json())
        for name in models:
            self.session().model(name).table.complete()

    def fork(self) -> SpaceBench:
        """Another bench that holds the same at the same time; only of a memory store."""
        assert isinstance(self.store, MemoryStore)
        name = self.ids.ulid().lower()  # stores of one name share the turns at their logs
        forked = copy(self)
        forked.clock = copy(self.clock)
        forked.ids = Ids(forked.clock, copy(self.ids.rng))
        store = copied(self.store, forked.clock, forked.ids)
        store.name, forked.store = name, store
        return forked

    def session(
        self, store: Store | None = None, *, actor: str | None = "ann", maintenance: Maintenance = "inline"
    ) -> Worm:
        clock, ids = self.clock, self.ids
        return Worm(
            store or self.store, self.schema, actor=actor, maintenance=maintenance, probe=False, clock=clock, ids=ids
        )

    def model(self, name: str) -> Model:
        return self.session().model(name)

    def workspace(self, store: Store | None = None) -> Session:
        return Session(store or self.store, Settings("documents", threads=2), ids=self.ids, clock=self.clock)

    def workspace_ready(self) -> Session:
        """One that knows the schema."""
        session = self.workspace()
        session.refresh()
        return session

    def materialize(self, store: Store | None = None) -> Materialized:
        """As the apply worker does."""
        return Materializer(self.workspace(store)).run(MAIN, lambda: math.inf)

    def segments(self) -> list[str]:
        """The keys of the log of the space `main`."""
        return [one.key for one in self.store.list(DbKeys(MAIN).log)]

    def apply(
        self,
        keys: Sequence[str] | None = None,
        *,
        store: Store | None = None,
        worker: Apply | None = None,
        left: Deadline = lambda: 100.0,
    ) -> BatchOutcome:
        """The apply worker, with the events of these segments (default: all)."""
        chosen = self.segments() if keys is None else keys
        messages = [Message(f"m{number}", created(key)) for number, key in enumerate(chosen)]
        return (worker or Apply(self.workspace(store))).run(messages, left)

    def capture(self) -> None:
        """As the workers do when all events have come."""
        for swept in Sweep(self.workspace()).run(lambda: math.inf, resume=False):
            assert swept.error is None
            assert swept.problems == {}

    def repair(self) -> None:
        """As `worm repair`, when nobody can be at work any more."""
        self.clock.advance(RUN_MAX.total_seconds() + 1)
        self.materialize()
        self.capture()
        for name in self.schema.models:
            table = self.model(name).table
            table.rebuild()
            rows = {one: self.stored(name, one) or {} for one in table.collection.current_ids()}
            table.collection.claims.restore(rows)

    def history(self, model: str, entity_id: str) -> list[tuple[str, str | None, object]]:
        """Operation, actor and commit of each entry."""
        return [(one.op, one.actor, one.metadata.get("commitSeq")) for one in self.entries(model, entity_id)]

    def entries(self, model: str, entity_id: str) -> list[OplogEntry]:
        return list(self.model(model).table.collection.oplog.entries(entity_id))

    def stored(self, model: str, entity_id: str) -> JsonObject | None:
        """The document as any S3 client reads it."""
        documents = self.model(model).table.collection.documents
        found = documents.current(entity_id)
        return None if found is None else documents.parse(entity_id, found)

    def applied(self) -> Applied:
        found = self.store.get(DbKeys(MAIN).documents)
        return Applied() if found is None else Applied.from_bytes(found.body, found.key)

    def emails(self) -> list[str]:
        """Of the stored accounts."""
        collection = self.model("Account").table.collection
        found = [self.stored("Account", one) for one in collection.current_ids()]
        return sorted(str(one["email"]) for one in found if one is not None and "email" in one)

    def verify(self) -> None:
        """Nothing that verify would report."""
        for name in self.schema.models:
            assert verify_collection(self.model(name).table.collection).differences == []

    def assert_clean(self) -> None:
        """That, and the documents are what the log says; nobody is at work."""
        self.verify()
        assert self.applied().runs == {}
        space = self.session().space("main")
        for name in self.schema.models:
            collection = self.model(name).table.collection
            if collection.definition.space is None:
                continue
            wanted = {one: found.value for one, found in space.read_many(space.ids()).items() if found.exists}
            prefix = f"{name}/"
            stored = {f"{prefix}{one}": self.stored(name, one) for one in collection.current_ids()}
            assert stored == {one: value for one, value in wanted.items() if one.startswith(prefix)}
