"""What all models of one session share: the store, the schema, who is writing, and how history is kept."""

from __future__ import annotations

import threading
from typing import Literal

from worm.clock import Clock, Ids, SystemClock
from worm.collections.layout import StorageResolver
from worm.schema import Schema
from worm.store.base import Store
from worm.store.probe import ensure_safe

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
        self._must_probe = probe
        self._probing = threading.Lock()

    def ensure_safe_store(self) -> None:
        """Refuse a store that ignores write conditions; asked once per session, before its first write."""
        if self._must_probe:
            with self._probing:
                if self._must_probe:
                    ensure_safe(self.store, ids=self.ids)
                    self._must_probe = False
