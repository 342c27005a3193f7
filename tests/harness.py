"""A whole data path in one process: a store, raw uploads with their events, and the workers, driven step by step.

Nothing here reads a clock or draws a random number that was not seeded, so a run repeats exactly.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field

from worm.clock import Ids, VirtualClock
from worm.collections.collection import Collection
from worm.collections.entries import OplogEntry
from worm.collections.layout import SCHEMA_KEY
from worm.formats import load_schema
from worm.formats.strict_json import JsonValue
from worm.store.base import RequestCounter, Store
from worm.store.memory import MemoryStore
from worm.tables.manifest import Manifest
from worm.tables.table import Table
from worm.tables.verify import VerifyReport, verify_collection
from worm.upkeep.session import Session, Settings
from worm.upkeep.sweep import Sweep
from worm.upkeep.sweep_pass import SweepReport
from worm.upkeep.workers.batch import BatchOutcome, Message
from worm.upkeep.workers.capture import Capture
from worm.upkeep.workers.tables import Fold

BUCKET = "documents"

CUSTOMER: dict[str, object] = {
    "path": "#org/@customers/(id:string)",
    "file": "profile.json",
    "oplog": True,
    "fields": {
        "name": {"type": "string"},
        "status": {"type": "string"},
        "score": {"type": "number"},
        "tags": {"type": "array", "items": "string"},
    },
    "manifest": {"enabled": True},
    "indexes": {"byStatus": {"field": "status"}},
}


def schema_of(*, storage: Mapping[str, object] | None = None, **customer: object) -> dict[str, object]:
    """A schema with one model, Customer; keyword arguments override parts of it."""
    return {"version": "1.0", "storage": storage or {"layout": "root"}, "models": {"Customer": CUSTOMER | customer}}


def created(key: str, version_id: str | None = None, *, bucket: str = BUCKET, requester: str = "123456789012") -> str:
    """An EventBridge event as S3 sends it, as the body of an SQS message."""
    described: dict[str, object] = {"key": key, "size": 1, "etag": "0", "sequencer": "0"}
    if version_id is not None:
        described["version-id"] = version_id
    detail = {"version": "0", "bucket": {"name": bucket}, "object": described, "requester": requester}
    return json.dumps({"version": "0", "source": "aws.s3", "detail-type": "Object Created", "detail": detail})


def removed(key: str, version_id: str, *, requester: str = "123456789012") -> str:
    """The event of a version, or a delete marker, that somebody removed for good."""
    event = json.loads(created(key, version_id, requester=requester))
    event["detail-type"] = "Object Deleted"
    event["detail"] |= {"reason": "DeleteObject", "deletion-type": "Permanently Deleted"}
    return json.dumps(event)


def copied(store: MemoryStore, clock: VirtualClock, ids: Ids) -> MemoryStore:
    """A store that holds the same, on this clock. Much faster than to write all of it again."""
    made = copy(store)
    made.clock, made.ids, made.requests = clock, ids, RequestCounter()
    made._history = {key: list(history) for key, history in store._history.items()}
    made._keys = list(store._keys)
    return made


@dataclass
class DataPath:
    """Raw clients on `store`, workers on `worker_store` (the same one, or a wrapper that injects faults)."""

    schema: Mapping[str, object] = field(default_factory=schema_of)
    seed: int = 1
    versioned: bool = True
    clock: VirtualClock = field(default_factory=VirtualClock)
    events: list[str] = field(default_factory=list)
    max_document_bytes: int = 10 * 1024 * 1024

    def __post_init__(self) -> None:
        self.ids = Ids.seeded(self.seed, self.clock)
        self.store = MemoryStore(versioned=self.versioned, clock=self.clock, ids=self.ids)
        self.store.put(SCHEMA_KEY, load_schema(dict(self.schema)).to_json())
        self._handed_on: set[str] = set()
        self.new_workers(self.store)
        self.table.complete()  # as `worm push` leaves a new collection

    def new_workers(self, store: Store) -> None:
        """Fresh processes: nothing cached, nothing remembered."""
        settings = Settings(BUCKET, threads=1, max_document_bytes=self.max_document_bytes)
        self.workspace = Session(store, settings, ids=self.ids, clock=self.clock)
        self.capture = Capture(self.workspace)
        self.fold = Fold(self.workspace)
        self.sweeper = Sweep(self.workspace)

    def fork(self) -> DataPath:
        """Another path that holds the same at the same time. Its workers are fresh."""
        forked = copy(self)
        forked.clock = copy(self.clock)
        forked.ids = Ids(forked.clock, copy(self.ids.rng))
        forked.store = copied(self.store, forked.clock, forked.ids)
        forked.events, forked._handed_on = list(self.events), set(self._handed_on)
        forked.new_workers(forked.store)
        return forked

    # Raw clients

    def key(self, entity_id: str) -> str:
        return f"org/customers/{entity_id}/profile.json"

    def put(self, entity_id: str, document: Mapping[str, JsonValue] | bytes) -> str | None:
        """A raw upload; its event waits in `events`. Returns the version."""
        self.clock.advance(1)
        body = document if isinstance(document, bytes) else json.dumps(document).encode()
        version_id = self.store.put(self.key(entity_id), body).version_id
        self.events.append(created(self.key(entity_id), version_id))
        return version_id

    def remove(self, entity_id: str) -> str | None:
        """A raw delete. Returns the version of the delete marker."""
        self.clock.advance(1)
        self.store.delete(self.key(entity_id))
        latest = next(iter(self.store.versions(self.key(entity_id))), None)
        version_id = latest.version_id if latest is not None and latest.is_delete_marker else None
        self.events.append(created(self.key(entity_id), version_id).replace("Object Created", "Object Deleted"))
        return version_id

    def forget(self, entity_id: str, version_id: str | None, *, requester: str = "123456789012") -> None:
        """A version, or a delete marker, is removed for good."""
        assert version_id is not None
        self.clock.advance(1)
        self.store.forget_version(self.key(entity_id), version_id)
        self.events.append(removed(self.key(entity_id), version_id, requester=requester))

    # Workers

    def run_capture(self, bodies: Sequence[str] | None = None, *, deliveries: int = 1) -> BatchOutcome:
        """Capture the waiting events (or these)."""
        if bodies is None:
            bodies, self.events = self.events, []
        return self.capture.run([Message(f"m{number}", body, deliveries) for number, body in enumerate(bodies)])

    def change_sets(self) -> list[str]:
        """Events of change sets that were not handed to the tables worker yet."""
        keys = [listed.key for listed in self.store.list(".worm.changes/") if listed.key not in self._handed_on]
        self._handed_on.update(keys)
        return [created(key) for key in keys]

    def run_fold(self, bodies: Sequence[str] | None = None) -> BatchOutcome:
        bodies = self.change_sets() if bodies is None else bodies
        return self.fold.run([Message(f"m{number}", body) for number, body in enumerate(bodies)])

    def settle(self) -> None:
        """Capture and fold what waits; everything must succeed."""
        for outcome in (self.run_capture(), self.run_fold()):
            assert outcome.failed == {}, outcome.failed
            assert outcome.rejected == {}, outcome.rejected

    def sweep(self) -> SweepReport:
        return self.sweeper.run(lambda: 1.0)[0]

    # Looking, with fresh eyes

    @property
    def collection(self) -> Collection:
        fresh = Session(self.store, Settings(BUCKET, max_document_bytes=self.max_document_bytes), clock=self.clock)
        fresh.refresh()
        return fresh.table("Customer").collection

    @property
    def table(self) -> Table:
        return Table(self.collection)

    def history(self, entity_id: str) -> list[OplogEntry]:
        return list(self.collection.oplog.entries(entity_id))

    def ops(self, entity_id: str) -> list[str]:
        return [entry.op for entry in self.history(entity_id)]

    def rows(self) -> dict[str, dict[str, JsonValue]]:
        manifest = self.table.manifest.read()
        assert manifest is not None
        return manifest.entities

    def verify(self) -> VerifyReport:
        return verify_collection(self.collection)

    def rebuilt(self) -> Manifest:
        """The manifest, which a rebuild leaves byte for byte as it is."""
        stored = self.table.manifest.read()
        assert stored is not None
        before = stored.encode()
        self.table.rebuild()
        found = self.table.manifest.read()
        assert found is not None
        assert found.encode() == before
        return stored

    def assert_true(self) -> None:
        """Everything derived equals the source."""
        report = self.verify()
        assert report.differences == []
