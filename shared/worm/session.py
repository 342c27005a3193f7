"""A session: one store with its schema, and what is opened on it once: collections, tables, spaces.

SDK, workers, `worm repair` and Spark jobs all work on one. Its schema is given and stays, or is the pushed one: then
`refresh()` reads it again if it changed, one conditional GET at the start of every batch. Tables are for one thread
at a time; everything else is safe across threads.

Modules of spaces are imported only when a model in a space is met: few workers ever open one.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Literal, TypeVar

from worm.clock import Clock, Ids, SystemClock
from worm.collections.collection import Collection
from worm.collections.documents import MAX_DOCUMENT_BYTES
from worm.collections.layout import BUCKET_SENTINEL, SCHEMA_KEY, StorageResolver
from worm.collections.origins import Origins
from worm.errors import Invalid, NotFound, shown
from worm.folding import Folder, UnfoldedNote
from worm.forks import in_child, new_lock, new_rlock
from worm.schema import Schema, load_pushed
from worm.store.base import NotModified, Store, acceptable
from worm.store.parallel import Portions, Postponed, Room, carried
from worm.store.probe import ensure_safe, trust
from worm.tables.table import Table
from worm.values import dataclass

if TYPE_CHECKING:  # for those who have spaces, or threads
    from concurrent.futures import Future, ThreadPoolExecutor

    from worm.spaces.opening import OpenSpaces
    from worm.spaces.space import Space

T = TypeVar("T")
R = TypeVar("R")
Maintenance = Literal["background", "inline", "events"]


@dataclass(frozen=True, slots=True)
class Settings:
    """What is set from outside. `bucket` and `prefix` are those that events name, `actor` is the author of writes and
    `reason` says why they are made. `maintenance`: a save writes history itself and its table follows in the
    background; or both are up to date when it returns; or it leaves them to the workers."""

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
            prefix=_prefix(values),
            max_document_bytes=_positive(values, "WORM_MAX_DOCUMENT_BYTES", MAX_DOCUMENT_BYTES),
            threads=_positive(values, "WORM_THREADS", 16),
            role=values.get("WORM_ROLE", "worker"),
        )


def _prefix(values: Mapping[str, str]) -> str:
    """Empty, or ending in a slash. A path segment that starts with a dot would make system keys of all documents."""
    text = values.get("WORM_PREFIX", "")
    if not text:
        return ""
    path = text.removesuffix("/")
    if not acceptable(path) or any(segment.startswith(".") for segment in path.split("/")):
        what = f"the environment variable WORM_PREFIX must be empty or a path such as team/data/, not {shown(text)}"
        raise Invalid(
            what, hint="set the stack's KeyPrefix: no leading or double slash, no name that starts with a dot"
        )
    return f"{path}/"


def _positive(values: Mapping[str, str], name: str, default: int) -> int:
    text = values.get(name, "")
    if not text:
        return default
    if not text.isdecimal() or int(text) < 1:
        raise Invalid(f"the environment variable {name} must be a positive whole number, not {shown(text)}")
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
        self.folder = Folder(UnfoldedNote(store, self.clock, self.ids))
        self.materializing = new_lock()  # of two runs at once in one session the second has nothing to do
        self._is_fixed = schema is not None
        self._etag: str | None = None
        self._must_probe = probe
        if not probe:
            trust(store)
        self._spaces: OpenSpaces | None = None
        self._once = new_lock()
        self._tables: dict[str, Table] = {}
        self._table_locks: dict[str, threading.RLock] = {}
        if schema is not None:
            self._use(schema)
        in_child(self._begin_again)

    def _begin_again(self) -> None:
        """A forked child begins with threads and tables of its own. Its spaces do so by themselves."""
        self.__dict__.pop("_pool", None)
        for table in self._tables.values():
            table.begin_again()

    def refresh(self) -> None:
        """Read the pushed schema if it changed. Nothing where one was given."""
        if self._is_fixed:
            return
        found = self.store.get_if_changed(SCHEMA_KEY, self._etag)
        if isinstance(found, NotModified):
            return
        if found is None:
            raise NotFound("the bucket has no schema", key=SCHEMA_KEY, hint="push one: `worm push schema.json`")
        self._use(load_pushed(found.body, SCHEMA_KEY))
        self._etag = found.etag

    def is_new(self) -> bool:
        """Has nobody ever pushed a schema here? For who found none: where the sentinel is, somebody deleted it."""
        first = next(self.store.list(BUCKET_SENTINEL, limit=1), None)
        return self._etag is None and (first is None or first.key != BUCKET_SENTINEL)

    def _use(self, schema: Schema) -> None:
        self.schema = schema
        self.resolver = StorageResolver(schema)
        self._collections: dict[str, Collection] = {}
        self._tables = {}

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

    def table_lock(self, name: str) -> threading.RLock:
        """For threads that share the table of a model, which is for one at a time."""
        with self._once:
            return self._table_locks.setdefault(name, new_rlock())

    def space(self, name: str) -> Space:
        """The space of this name beside the documents; made where it is not there.

        Examples:
            >>> db.space("main").read("Note/n1").value["text"]
            'call Acme'
        """
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
        """Folds what is not in tables yet, and lets go of spaces and of what the store keeps open; the session opens
        them again when it needs them.

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
    def _pool(self) -> ThreadPoolExecutor:
        from concurrent.futures import ThreadPoolExecutor

        return ThreadPoolExecutor(self.settings.threads, thread_name_prefix="worm")

    def submit(self, work: Callable[[], R]) -> Future[R]:
        """Have it done beside what the caller does."""
        return self._pool.submit(carried(work))

    def in_parallel(
        self, work: Callable[[T], R], items: Iterable[T], said: Callable[[T], int] | None = None
    ) -> list[R]:
        """Results in order. `work` must not raise. What reads much is done in turns: documents may have many megabytes,
        and a function little memory. `said`: how many bytes an item is said to have. It may be wrong, so with it `work`
        must be one that can be stopped at any read and done again: what the store says counts, and an item that turns
        out to be too large to be held beside the others is worked on later."""
        listed = list(items)
        if len(listed) < 2:
            return [work(one) for one in listed]
        if said is None:
            return [
                result for turn in self._turns(listed, lambda one: 0) for result in self._pool.map(carried(work), turn)
            ]
        return self._bounded(work, listed, said)

    def _bounded(self, work: Callable[[T], R], listed: Sequence[T], said: Callable[[T], int]) -> list[R]:
        room, done = Room(), dict[int, R]()
        sizes = {at: said(one) for at, one in enumerate(listed)}
        while left := [at for at in sizes if at not in done]:
            for turn in self._turns(left, sizes.__getitem__):
                found = self._pool.map(carried(lambda at: room.within(work, listed[at])), turn)
                for at, result in zip(turn, found, strict=True):
                    if isinstance(result, Postponed):
                        sizes[at] = max(sizes[at], result.need)
                    else:
                        done[at] = result
        return [done[at] for at in sizes]

    def _turns(self, items: Sequence[T], said: Callable[[T], int]) -> Iterator[Sequence[T]]:
        turns, requests = Portions(most=len(items)), self.store.requests
        for turn in turns.of(items, said):
            before = requests.bytes_read
            yield turn
            turns.took(requests.bytes_read - before)
