"""What all models of one session share: the store, the schema, who is writing, and how history is kept."""

from __future__ import annotations

import math
import threading
from typing import Literal

from worm.clock import Clock, Ids, SystemClock
from worm.collections.collection import Collection
from worm.collections.layout import StorageResolver
from worm.schema import Schema
from worm.spaces.opening import OpenSpaces, database_id
from worm.spaces.space import Space
from worm.store.base import Store
from worm.store.probe import ensure_safe
from worm.workers.materialize import Materialized, Materializer

Maintenance = Literal["inline", "events"]


class Context:
    """The ground of a session."""

    def __init__(
        self,
        store: Store,
        schema: Schema,
        *,
        actor: str | None = None,
        maintenance: Maintenance = "inline",
        probe: bool = True,
        clock: Clock | None = None,
        ids: Ids | None = None,
    ) -> None:
        self.store = store
        self.schema = schema
        self.resolver = StorageResolver(schema)
        self.actor = actor
        self.maintenance = maintenance
        self.clock = clock or SystemClock()
        self.ids = ids or Ids.system(self.clock)
        self._collections: dict[str, Collection] = {}
        self._spaces = OpenSpaces(store, self.clock, self.ids)
        self._materializing = threading.Lock()
        self._must_probe = probe
        self._probing = threading.Lock()

    def ensure_safe_store(self) -> None:
        """Refuse a store that ignores write conditions; asked once per session, before its first write."""
        if self._must_probe:
            with self._probing:
                if self._must_probe:
                    ensure_safe(self.store, ids=self.ids)
                    self._must_probe = False

    def space(self, name: str) -> Space:
        """The space of this name beside the documents; made where it is not there."""
        return self._spaces.make(name)

    def close(self) -> None:
        """Lets go of the spaces that were used; the session opens them again when it needs them."""
        self._spaces.close()

    def collection(self, name: str) -> Collection:
        """A model's collection, for what is not done by one of its verbs."""
        if name not in self._collections:
            definition = self.schema.model(name)
            self._collections[name] = Collection(
                self.store, self.resolver, name, definition, self.clock, self.ids, spaces=self._spaces.get
            )
        return self._collections[name]

    def materialize(self, space: str) -> Materialized:
        """Do what the apply worker does after a commit: the documents become what the log says."""
        with self._materializing:
            materializer = Materializer(
                self.store, lambda: self.schema, self.collection, self._spaces.get, clock=self.clock, ids=self.ids
            )
            return materializer.run(database_id(space), lambda: math.inf)
