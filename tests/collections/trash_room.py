"""One model's trash on a store in memory, with the two halves that the SDK adds: deleting and putting back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from worm.clock import Ids, VirtualClock, iso_seconds
from worm.collections.collection import Collection
from worm.collections.layout import StorageResolver
from worm.collections.origins import write_metadata
from worm.collections.trash import Deletion, Trash, delete_unchanged
from worm.errors import Conflict
from worm.formats import load_schema
from worm.store.base import Lost, Store, Won
from worm.store.memory import MemoryStore

DAY = 86_400
ACME = b'{"name": "Acme Inc"}'
BETA = b'{"name": "Beta"}'


def collection_on(
    store: Store, clock: VirtualClock, *, storage: Mapping[str, object] | None = None, **model: object
) -> Collection:
    """Customer with soft delete, unless `model` says otherwise, beside a singleton and a second model."""
    customer = {"path": "#org/@customers/(id:string)", "file": "profile.json", "oplog": True, "softDelete": True}
    models: dict[str, object] = {
        "Customer": customer | model,
        "OrgSettings": {"path": "#org/@settings", "softDelete": True},
        "Invoice": {"path": "#org/@invoices/(id:string)", "softDelete": True},
    }
    schema = load_schema({"version": "1.0", "storage": dict(storage or {"layout": "root"}), "models": models})
    return Collection(store, StorageResolver(schema), "Customer", schema.model("Customer"), clock, Ids.seeded(7, clock))


@dataclass
class Room:
    """`trash` is one process's; `another()` is a second one on the same store."""

    versioned: bool = False
    storage: Mapping[str, object] | None = None
    model: Mapping[str, object] = field(default_factory=dict)
    clock: VirtualClock = field(default_factory=VirtualClock)

    def __post_init__(self) -> None:
        self.store = MemoryStore(versioned=self.versioned, clock=self.clock, ids=Ids.seeded(1, self.clock))
        self.trash = self.another()

    def another(self, store: Store | None = None) -> Trash:
        return collection_on(store or self.store, self.clock, storage=self.storage, **self.model).trash

    @property
    def collection(self) -> Collection:
        return collection_on(self.store, self.clock, storage=self.storage, **self.model)

    def key(self, entity_id: str = "acme") -> str:
        return f"org/customers/{entity_id}/profile.json"

    def put(self, body: bytes = ACME, entity_id: str = "acme") -> Won:
        return self.store.put(self.key(entity_id), body)

    def delete(
        self,
        entity_id: str = "acme",
        *,
        by: str | None = "user:0xabc",
        trash: Trash | None = None,
        ahead: float = 0,
    ) -> None:
        """What the SDK's delete does, by a clock that is so many seconds ahead of the store's."""
        found = self.store.get(self.key(entity_id))
        assert found is not None
        self.put_away(found.body, found.etag, found.version_id, entity_id, by=by, trash=trash, ahead=ahead)
        store = (trash or self.trash)._store
        outcome = delete_unchanged(store, found.key, found.etag, found.version_id)
        if isinstance(outcome, Lost):
            raise Conflict("changed", key=found.key)

    def put_away(
        self,
        body: bytes,
        etag: str,
        version_id: str | None,
        entity_id: str = "acme",
        *,
        by: str | None = "user:0xabc",
        trash: Trash | None = None,
        ahead: float = 0,
    ) -> None:
        now = iso_seconds(self.clock.now() + timedelta(seconds=ahead))
        (trash or self.trash).put_away(entity_id, body, Deletion(etag, version_id, by, now))

    def restore(self, entity_id: str = "acme", *, trash: Trash | None = None) -> None:
        """What the SDK's restore does."""
        used = trash or self.trash
        body = used.begin_restore(entity_id)
        metadata = write_metadata(actor=None, parent=None, op="restore")
        outcome = used._store.put_if_absent(self.key(entity_id), body, metadata=metadata)
        if isinstance(outcome, Lost) and outcome.current.body != body:
            used.abort_restore(entity_id)
            raise Conflict("created anew", key=self.key(entity_id))
        used.finish_restore(entity_id)

    def listed(self, trash: Trash | None = None) -> list[str]:
        return [item.id for item in (trash or self.trash).list()]

    def objects(self) -> dict[str, bytes]:
        """Every current object."""
        found = {listed.key: self.store.get(listed.key) for listed in self.store.list("")}
        return {key: item.body for key, item in found.items() if item is not None}
