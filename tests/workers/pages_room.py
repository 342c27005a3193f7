"""Page stores in one bucket, writers that never flush, and the events of their segments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tests.harness import BUCKET, created
from worm.clock import Ids, VirtualClock
from worm.log.config import LogConfig
from worm.log.keys import DbKeys
from worm.pages.db import PageDb, create_database
from worm.pages.manifest import MAIN, PageConfig, Pages
from worm.pages.reader import PageReader
from worm.pages.root import PagesRoot
from worm.store.base import ObjectInfo, Store
from worm.store.memory import MemoryStore
from worm.upkeep.session import Session, Settings
from worm.upkeep.workers.apply import Apply
from worm.upkeep.workers.batch import BatchOutcome, Message
from worm.upkeep.workers.compact import Compact

DAY = 24 * 3600.0
NEVER = 80_000.0
"""A writer flushes by time only with a commit; none here commits so late."""


class HookedStore(MemoryStore):
    """Calls `hook` once, before the first HEAD of a key that `is_hooked` names: what happens in the middle of a run."""

    is_hooked: Callable[[str], bool] = staticmethod(lambda key: False)
    hook: Callable[[], object] = staticmethod(lambda: None)

    def head(self, key: str, *, version_id: str | None = None) -> ObjectInfo | None:
        if self.is_hooked(key):
            self.is_hooked = lambda _: False
            self.hook()
        return super().head(key, version_id=version_id)


class Room:
    """A bucket. `write` is a writer's commit; its events are those that `events` gives."""

    def __init__(self, seed: int = 1, kind: type[HookedStore] = HookedStore) -> None:
        self.clock = VirtualClock()
        self.ids = Ids.seeded(seed, self.clock)
        self.store = kind(versioned=True, clock=self.clock, ids=self.ids)
        self._writers: dict[tuple[str, str], PageDb] = {}

    def create(self, *names: str, **config: object) -> None:
        settings: dict[str, object] = {"flush_interval_seconds": NEVER, "log": LogConfig(), **config}
        for name in names:
            create_database(self.store, name, PageConfig.model_validate(settings), clock=self.clock, ids=self.ids)

    def write(self, db: str, pages: Mapping[str, bytes | None], branch: str = MAIN) -> int:
        self.clock.advance(1)
        if (db, branch) not in self._writers:
            self._writers[db, branch] = PageDb.open(self.store, db, branch=branch, clock=self.clock, ids=self.ids)
        return self._writers[db, branch].write(pages)

    def configure(self, db: str, **config: object) -> None:
        """Change settings below the writers, which keep to those that they know."""
        root = PagesRoot(self.store, db, clock=self.clock, ids=self.ids)
        root.change(lambda pages: pages.model_copy(update={"config": pages.config.model_copy(update=config)}))

    def log(self, db: str, branch: str = MAIN) -> list[str]:
        """The keys of a log."""
        return [one.key for one in self.store.list(DbKeys(db, self.pages(db).branch(branch).id).log)]

    def events(self, *keys: str) -> list[str]:
        return [created(key) for key in keys]

    def workspace(self, store: Store | None = None) -> Session:
        return Session(store or self.store, Settings(BUCKET, threads=1), ids=self.ids, clock=self.clock)

    def apply(
        self,
        bodies: Sequence[str],
        left: Callable[[], float] = lambda: 100.0,
        *,
        store: Store | None = None,
        worker: Apply | None = None,
    ) -> BatchOutcome:
        """Apply a batch; the ids of its messages are m0, m1, …"""
        messages = [Message(f"m{number}", body) for number, body in enumerate(bodies)]
        return (worker or Apply(self.workspace(store))).run(messages, left)

    def compactor(self, store: Store | None = None) -> Compact:
        return Compact(self.workspace(store))

    def pages(self, db: str) -> Pages:
        return PagesRoot(self.store, db, clock=self.clock, ids=self.ids).read()

    def reader(self, db: str, branch: str = MAIN) -> PageReader:
        return PageReader.open(self.store, db, branch=branch, clock=self.clock, ids=self.ids)

    def contents(self, db: str, branch: str = MAIN) -> dict[str, bytes | None]:
        return {version.page: version.data for version in self.reader(db, branch).scan()}

    def layers(self, db: str, branch: str = MAIN) -> int:
        return len(self.pages(db).branch(branch).layers)

    def root_version(self, db: str) -> int:
        return len(list(self.store.versions(DbKeys(db).root)))
