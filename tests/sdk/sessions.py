"""Sessions on one store, what `worm repair` does, and a look with fresh eyes."""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import copy
from pathlib import Path
from typing import Self, TypeVar

import pytest

from tests.harness import CUSTOMER, copied
from worm.clock import Ids, VirtualClock
from worm.collections.collection import Collection
from worm.collections.layout import SCHEMA_KEY
from worm.formats import Schema, load_schema
from worm.sdk.database import Model, Worm
from worm.store.base import Store
from worm.store.file import FileStore
from worm.store.memory import MemoryStore
from worm.tables.verify import verify_collection
from worm.upkeep.session import Maintenance, Session, Settings
from worm.upkeep.sweep import Sweep

T = TypeVar("T")
KINDS = ["memory", "memory-versioned", pytest.param("file", marks=pytest.mark.slow)]
"""The tests of the command use the same verbs on a directory, and are not slow."""
KEY = "org/customers/a/profile.json"


def schema(**customer: object) -> Schema:
    """One model, Customer, with oplog, trash, table and index; keyword arguments override parts of it."""
    definition = CUSTOMER | {"softDelete": True} | customer
    return load_schema({"version": "1.0", "models": {"Customer": definition}})


class Bench:
    """A store of one kind with one schema, and any number of sessions on it."""

    def __init__(self, kind: str, tmp_path: Path, **customer: object) -> None:
        self.clock = VirtualClock()
        self.ids = Ids.seeded(7, self.clock)
        self.schema = schema(**customer)
        self.store: Store
        if kind == "file":
            self.store = FileStore(tmp_path / "bucket", clock=self.clock, ids=self.ids, durability="process")
        else:
            self.store = MemoryStore(versioned=kind == "memory-versioned", clock=self.clock, ids=self.ids)
        self.store.put(SCHEMA_KEY, self.schema.to_json())

    def fork(self) -> Self:
        """Another one that holds the same at the same time; only of a memory store."""
        assert isinstance(self.store, MemoryStore)
        forked = copy(self)
        forked.clock = copy(self.clock)
        forked.ids = Ids(forked.clock, copy(self.ids.rng))
        forked.store = copied(self.store, forked.clock, forked.ids)
        return forked

    def session(
        self, store: Store | None = None, *, actor: str | None = "ann", maintenance: Maintenance = "inline"
    ) -> Worm:
        return Worm(
            store or self.store,
            self.schema,
            actor=actor,
            maintenance=maintenance,
            probe=False,
            clock=self.clock,
            ids=self.ids,
        )

    def customers(self, *, maintenance: Maintenance = "inline") -> Model:
        return self.session(maintenance=maintenance).model("Customer")

    def tick(self, seconds: float = 1) -> None:
        self.clock.advance(seconds)

    def repair(self) -> None:
        """As `worm repair`."""
        workspace = Session(self.store, Settings("documents", threads=2), ids=self.ids, clock=self.clock)
        Sweep(workspace).run(lambda: math.inf, resume=False)
        workspace.table("Customer").rebuild()

    @property
    def collection(self) -> Collection:
        return self.customers().table.collection

    def ops(self, entity_id: str = "a") -> list[str]:
        return [entry.op for entry in self.collection.oplog.entries(entity_id)]

    def assert_clean(self) -> None:
        report = verify_collection(self.collection)
        assert report.differences == []


def spent(store: Store, work: Callable[[], object]) -> int:
    """Requests that the work makes."""
    with store.requests.measure() as requests:
        work()
    return requests["total"]


def must(found: T | None) -> T:
    assert found is not None
    return found
