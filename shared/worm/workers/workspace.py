"""What a warm worker keeps between invocations: the store, the schema and the parsed tables, re-checked by etag."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from worm.clock import Clock, Ids, SystemClock
from worm.collections.collection import Collection
from worm.collections.layout import SCHEMA_KEY, StorageResolver
from worm.errors import NotFound
from worm.schema import Schema, load_schema
from worm.spaces.opening import OpenSpaces
from worm.store.base import NotModified, Store
from worm.tables.table import Table
from worm.workers.settings import Settings

T = TypeVar("T")
R = TypeVar("R")


class Workspace:
    """One per process. Call `refresh()` at the start of every batch."""

    def __init__(self, store: Store, settings: Settings, *, ids: Ids | None = None, clock: Clock | None = None) -> None:
        self.store = store
        self.settings = settings
        self.clock = clock or SystemClock()
        self.ids = ids or Ids.system(self.clock)
        self._schema: Schema | None = None
        self._schema_etag: str | None = None
        self._tables: dict[str, Table] = {}
        self.spaces = OpenSpaces(store, self.clock, self.ids)
        self._pool = ThreadPoolExecutor(settings.threads, thread_name_prefix="worm")

    @property
    def schema(self) -> Schema:
        assert self._schema is not None, "refresh() comes first"
        return self._schema

    @property
    def resolver(self) -> StorageResolver:
        return self._resolver

    def refresh(self) -> None:
        """Read the pushed schema if it changed: one conditional GET."""
        found = self.store.get_if_changed(SCHEMA_KEY, self._schema_etag)
        if isinstance(found, NotModified):
            return
        if found is None:
            raise NotFound("the bucket has no schema", key=SCHEMA_KEY, hint="run `worm push schema.json`")
        self._schema = load_schema(found.body)
        self._schema_etag = found.etag
        self._resolver = StorageResolver(self._schema)
        self._tables = {}

    def table(self, model: str) -> Table:
        if model not in self._tables:
            self._tables[model] = Table(
                Collection(
                    self.store,
                    self._resolver,
                    model,
                    self.schema.model(model),
                    self.clock,
                    self.ids,
                    self.settings.max_document_bytes,
                    self.spaces.get,
                )
            )
        return self._tables[model]

    def in_parallel(self, work: Callable[[T], R], items: Iterable[T]) -> list[R]:
        """Results in order. `work` must not raise."""
        return list(self._pool.map(work, items))
