"""A session: one store with its schema, and the collections, tables and spaces that are open on it.

SDK, workers, `worm repair` and Spark jobs all use one. Its schema is either fixed by the caller or the pushed one. In
the second case `refresh()` rereads it if it changed: one conditional GET at the start of every batch. Tables are for
one thread at a time; everything else is safe across threads.

Modules of spaces are imported only when a model in a space is used: few workers ever open one.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Literal, TypeVar

from worm import forks
from worm.clock import Clock, Ids, SystemClock
from worm.collections import Collection, StorageResolver, layout
from worm.errors import Invalid, NotFound, show
from worm.formats import Schema, load_pushed
from worm.store import NotModified, Pool, Store, acceptable, ensure_safe, trust
from worm.tables import Table
from worm.upkeep.folding import Folder, UnfoldedNote
from worm.values import dataclass

if TYPE_CHECKING:  # only sessions with spaces or threads need these
    from concurrent.futures import Future

    from worm.spaces import OpenSpaces, Space, SpaceOrigins
    from worm.tables import Lake

T = TypeVar("T")
R = TypeVar("R")
Maintenance = Literal["background", "inline", "events"]


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings from outside. Events name `bucket` and `prefix`; `actor` is the author of writes and `reason` says why
    they are made. `maintenance`: a save writes history itself and its table follows in the background; or both are up
    to date when it returns; or the workers write both."""

    bucket: str = ""
    prefix: str = ""
    max_document_bytes: int = Collection.max_bytes
    threads: int = 16
    role: str = "worker"
    actor: str | None = None
    maintenance: Maintenance = "inline"
    reason: str | None = None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Settings:
        """Settings of a worker, from the variables that template.yaml sets. A missing variable fails at startup."""
        values = os.environ if environment is None else environment
        bucket = values.get("WORM_BUCKET", "")
        if not bucket:
            raise Invalid(
                "the environment variable WORM_BUCKET is not set",
                hint="set it to the name of the bucket; template.yaml does",
            )
        return cls(
            bucket=bucket,
            prefix=_prefix(values),
            max_document_bytes=_positive(values, "WORM_MAX_DOCUMENT_BYTES", Collection.max_bytes),
            threads=_positive(values, "WORM_THREADS", 16),
            role=values.get("WORM_ROLE", "worker"),
        )


def _prefix(values: Mapping[str, str]) -> str:
    """Empty, or ends in a slash. A path segment that starts with a dot would turn all documents into system keys."""
    text = values.get("WORM_PREFIX", "")
    if not text:
        return ""
    path = text.removesuffix("/")
    if not acceptable(path) or any(segment.startswith(".") for segment in path.split("/")):
        what = f"the environment variable WORM_PREFIX must be empty or a path such as team/data/, not {show(text)}"
        raise Invalid(
            what, hint="set the stack's KeyPrefix: no leading or double slash, no name that starts with a dot"
        )
    return f"{path}/"


def _positive(values: Mapping[str, str], name: str, default: int) -> int:
    text = values.get(name, "")
    if not text:
        return default
    if not text.isdecimal() or int(text) < 1:
        raise Invalid(f"the environment variable {name} must be a positive whole number, not {show(text)}")
    return int(text)


DEFAULTS = Settings()


class Session:
    """See above. Without `schema`, the pushed one is used. `probe=False`: the store is known to keep write
    conditions."""

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
        self.folder = Folder(UnfoldedNote(store, self.clock, self.ids))
        self.materializing = forks.new_lock()  # of two concurrent runs in one session, the second has nothing to do
        self._is_fixed = schema is not None
        self._etag: str | None = None
        self._must_probe = probe
        if not probe:
            trust(store)
        self._spaces: OpenSpaces | None = None
        self._once = forks.new_lock()
        self._tables: dict[str, Table] = {}
        self._lakes: dict[str, Lake] = {}
        self._table_locks: dict[str, threading.RLock] = {}
        if schema is not None:
            self._use(schema)
        forks.in_child(self._begin_again)

    def _begin_again(self) -> None:
        """A forked child starts with its own threads and tables. Spaces do this themselves."""
        self.__dict__.pop("_pool", None)
        for table in self._tables.values():
            table.begin_again()
        self._lakes = {}

    def refresh(self) -> None:
        """Reread the pushed schema if it changed. Does nothing if the caller passed a schema."""
        if self._is_fixed:
            return
        found = self.store.get_if_changed(layout.SCHEMA_KEY, self._etag)
        if isinstance(found, NotModified):
            return
        if found is None:
            raise NotFound("the bucket has no schema", key=layout.SCHEMA_KEY, hint="push one: `worm push schema.json`")
        self._use(load_pushed(found.body, layout.SCHEMA_KEY))
        self._etag = found.etag

    def is_new(self) -> bool:
        """Has nobody ever pushed a schema here? Call this if there is no schema: if the sentinel exists, somebody
        deleted the schema."""
        first = next(self.store.list(layout.BUCKET_SENTINEL, limit=1), None)
        return self._etag is None and (first is None or first.key != layout.BUCKET_SENTINEL)

    def _use(self, schema: Schema) -> None:
        self.schema = schema
        self.resolver = StorageResolver(schema)
        self._collections: dict[str, Collection] = {}
        self._tables = {}
        self._lakes = {}

    def ensure_safe_store(self) -> None:
        """Refuse a store that ignores write conditions; probed once per session, before its first write."""
        if self._must_probe:
            with self._once:
                if self._must_probe:
                    ensure_safe(self.store, ids=self.ids)
                    self._must_probe = False

    # Opened once

    def collection(self, name: str) -> Collection:
        """The collection of a model, for work that none of its verbs does."""
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

    def lake(self, name: str) -> Lake:
        """The Delta table of a model. For one thread at a time, like the table."""
        from worm.tables import Lake

        if name not in self._lakes:
            self._lakes[name] = Lake(self.table(name))
        return self._lakes[name]

    def table_lock(self, name: str) -> threading.RLock:
        """For threads that share the table of a model: a table is for one thread at a time."""
        with self._once:
            return self._table_locks.setdefault(name, forks.new_rlock())

    def space(self, name: str) -> Space:
        """The space with this name. It is created if it does not exist.

        Examples:
            >>> db.space("main").read("Note/n1").value["text"]
            'call Acme'
        """
        return self.spaces.make(name)

    @property
    def spaces(self) -> OpenSpaces:
        from worm.spaces import OpenSpaces

        with self._once:  # a space that is opened twice would not be closed
            if self._spaces is None:
                self._spaces = OpenSpaces(self.store, self.clock, self.ids)
            return self._spaces

    def _origins(self, collection: Collection) -> SpaceOrigins:
        from worm.spaces import SpaceOrigins

        return SpaceOrigins(collection, self.spaces.get)

    def close(self) -> None:
        """Folds everything that is not in tables yet, and releases spaces and open resources of the store. The session
        reopens them when needed.

        Examples:
            >>> db.close()
        """
        try:
            self.folder.close()
        finally:
            if self._spaces is not None:
                self._spaces.close()
            self.store.close()

    @cached_property
    def _pool(self) -> Pool:
        return Pool(self.store, self.settings.threads)

    def submit(self, work: Callable[[], R]) -> Future[R]:
        """Run it in the background."""
        return self._pool.submit(work)

    def in_parallel(
        self, work: Callable[[T], R], items: Iterable[T], said: Callable[[T], int] | None = None
    ) -> list[R]:
        """Results in order. `work` must not raise. Work that reads much runs in turns, because documents may have many
        megabytes and a function little memory. `said` is the expected size of an item in bytes. It may be wrong, so
        with it `work` must be safe to stop at any read and to run again: the size that the store reports counts, and an
        item that is too large to hold with the others is done later."""
        listed = list(items)
        return self._pool.in_parallel(work, listed, said) if len(listed) > 1 else [work(one) for one in listed]
