"""A session: one store with its schema, and what is opened on it once: collections, tables, spaces.

SDK, workers, `worm repair` and Spark jobs all work on one. Its schema is given and stays, or is the pushed one: then
`refresh()` reads it again if it changed, one conditional GET at the start of every batch. Tables are for one thread
at a time; everything else is safe across threads.

Modules of spaces are imported only when a model in a space is met: few workers ever open one.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal, TypeVar

from worm.clock import Clock, Ids, SystemClock
from worm.collections.collection import Collection
from worm.collections.documents import MAX_DOCUMENT_BYTES
from worm.collections.layout import SCHEMA_KEY, StorageResolver
from worm.collections.origins import Origins
from worm.errors import Invalid, NotFound
from worm.schema import Schema, load_schema
from worm.store.base import NotModified, Store
from worm.store.probe import ensure_safe
from worm.tables.table import Table

if TYPE_CHECKING:  # for those who have spaces
    from worm.spaces.opening import OpenSpaces
    from worm.spaces.space import Space

T = TypeVar("T")
R = TypeVar("R")
Maintenance = Literal["inline", "events"]


@dataclass(frozen=True, slots=True)
class Settings:
    """What is set from outside. `bucket` and `prefix` are those that events name, `actor` is the author of writes and
    `reason` says why they are made. `maintenance` says whether a save keeps history and tables up to date itself or
    leaves that to the workers."""

    bucket: str = ""
    prefix: str = ""
    max_document_bytes: int = MAX_DOCUMENT_BYTES
    threads: int = 16
    role: str = "worker"
    actor: str | None = None
    maintenance: Maintenance = "inline"
    reason: str | None = None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Settings:
        """For a worker, from the variables that template.yaml sets. A missing one fails at start."""
        values = os.environ if environment is None else environment
        bucket = values.get("WORM_BUCKET", "")
        if not bucket:
            raise Invalid("the environment variable WORM_BUCKET is not set", hint="template.yaml sets it")
        return cls(
            bucket=bucket,
            max_document_bytes=_positive(values, "WORM_MAX_DOCUMENT_BYTES", MAX_DOCUMENT_BYTES),
            threads=_positive(values, "WORM_THREADS", 16),
            role=values.get("WORM_ROLE", "worker"),
        )


def _positive(values: Mapping[str, str], name: str, default: int) -> int:
    text = values.get(name, "")
    if not text:
        return default
    if not text.isdecimal() or int(text) < 1:
        raise Invalid(f"the environment variable {name} must be a positive whole number, not {text!r}")
    return int(text)


DEFAULTS = Settings()


class Session:
    """See above. `schema` None: the pushed one. `probe` False: the store is known to keep write conditions."""

    def __init__(
        self,
        store: Store,
        settings: Settings = DEFAULTS,
        *,
        schema: Schema | None = None,
        probe: bool = True,
        clock: Clock | None = None,
        ids: Ids | None = None,
    ) -> None:
        self.store = store
        self.settings = settings
        self.clock = clock or SystemClock()
        self.ids = ids or Ids.system(self.clock)
        self.materializing = threading.Lock()  # of two runs at once in one session the second has nothing to do
        self._is_fixed = schema is not None
        self._etag: str | None = None
        self._must_probe = probe
        self._spaces: OpenSpaces | None = None
        self._once = threading.Lock()
        if schema is not None:
            self._use(schema)

    def refresh(self) -> None:
        """Read the pushed schema if it changed. Nothing where one was given."""
        if self._is_fixed:
            return
        found = self.store.get_if_changed(SCHEMA_KEY, self._etag)
        if isinstance(found, NotModified):
            return
        if found is None:
            raise NotFound("the bucket has no schema", key=SCHEMA_KEY, hint="run `worm push schema.json`")
        self._use(load_schema(found.body))
        self._etag = found.etag

    def _use(self, schema: Schema) -> None:
        self.schema = schema
        self.resolver = StorageResolver(schema)
        self._collections: dict[str, Collection] = {}
        self._tables: dict[str, Table] = {}

    def ensure_safe_store(self) -> None:
        """Refuse a store that ignores write conditions; asked once per session, before its first write."""
        if self._must_probe:
            with self._once:
                if self._must_probe:
                    ensure_safe(self.store, ids=self.ids)
                    self._must_probe = False

    # What is opened once

    def collection(self, name: str) -> Collection:
        """A model's collection, for what is not done by one of its verbs."""
        if name not in self._collections:
            definition = self.schema.model(name)
            self._collections[name] = Collection(
                self.store,
                self.resolver,
                name,
                definition,
                self.clock,
                self.ids,
                self.settings.max_document_bytes,
                None if definition.space is None else self._origins,
            )
        return self._collections[name]

    def table(self, name: str) -> Table:
        if name not in self._tables:
            self._tables[name] = Table(self.collection(name))
        return self._tables[name]

    def space(self, name: str) -> Space:
        """The space of this name beside the documents; made where it is not there."""
        return self.spaces.make(name)

    @property
    def spaces(self) -> OpenSpaces:
        from worm.spaces.opening import OpenSpaces

        with self._once:  # a space that is open twice would not be closed
            if self._spaces is None:
                self._spaces = OpenSpaces(self.store, self.clock, self.ids)
            return self._spaces

    def _origins(self, collection: Collection) -> Origins:
        from worm.bridge.origins import SpaceOrigins

        return SpaceOrigins(collection, self.spaces.get)

    def close(self) -> None:
        """Lets go of the spaces that were used; the session opens them again when it needs them."""
        if self._spaces is not None:
            self._spaces.close()

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self.settings.threads, thread_name_prefix="worm")

    def in_parallel(self, work: Callable[[T], R], items: Iterable[T]) -> list[R]:
        """Results in order. `work` must not raise."""
        return list(self._pool.map(work, items))
