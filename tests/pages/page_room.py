"""Small page stores in memory for tests: one clock, one source of names, all versions of every object kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from typing import Any, TypedDict

from worm.clock import Ids, VirtualClock
from worm.pages.apply import AppliedLog, Applier
from worm.pages.branches import Branches
from worm.pages.collect import Garbage, PageCollector
from worm.pages.compact import Compacted, Compactor, Task, do_task
from worm.pages.db import PageDb, create_database
from worm.pages.manifest import MAIN, Layer, PageBranch, PageConfig, Pages
from worm.pages.past import Past
from worm.pages.reader import PageReader
from worm.store.base import Attempt, Condition, Object, Store
from worm.store.faulty_store import FaultyStore
from worm.store.memory import MemoryStore

DB = "d"
ROOT = f"db/{DB}/manifest.json"
MIN_AGE = 30.0
Pages_ = Mapping[str, bytes | None]


class Time(TypedDict):
    """What everything in a test is opened with."""

    clock: VirtualClock
    ids: Ids


def config(**changed: Any) -> PageConfig:
    """Nothing is flushed by itself, blocks are small, garbage is young."""
    quiet: dict[str, Any] = {
        "flush_interval_seconds": 86_000,
        "block_bytes": 512,
        "gc_min_age_seconds": MIN_AGE,
        "compaction_cadence_minutes": 10_000,
    }
    return PageConfig.model_validate({**quiet, **changed})


class Room:
    """A page store and everything that works on it. `memory` keeps all versions; `store` can be made to fail."""

    def __init__(self, seed: int = 1, **changed: Any) -> None:
        self.clock = VirtualClock()
        self.ids = Ids.seeded(seed, self.clock)
        self.memory = MemoryStore(versioned=True, clock=self.clock, ids=self.ids)
        self.store = FaultyStore(self.memory, seed=seed, clock=self.clock, ids=self.ids)
        self.time: Time = {"clock": self.clock, "ids": self.ids}
        create_database(self.memory, DB, config(**changed), **self.time)
        self.branches = Branches(self.store, DB, **self.time)
        self.past = Past(self.store, DB, **self.time)

    def db(self, branch: str = MAIN, *, store: Store | None = None) -> PageDb:
        return PageDb.open(store or self.store, DB, branch=branch, **self.time)

    def reader(self, branch: str = MAIN, *, store: Store | None = None) -> PageReader:
        return PageReader.open(store or self.store, DB, branch=branch, **self.time)

    def apply(self, branch: str = MAIN, *, store: Store | None = None, upto: int | None = None) -> AppliedLog:
        return Applier(store or self.store, DB, **self.time).run(branch, upto=upto)

    def compact(
        self,
        branch: str = MAIN,
        *,
        force: bool = False,
        max_bytes: int | None = None,
        parts: int = 1,
        store: Store | None = None,
    ) -> Compacted:
        compactor = Compactor(store or self.store, DB, max_bytes=max_bytes, parts=parts, **self.time)
        return compactor.run(branch, force=force)

    def compactor(self, runner: Callable[[], object]) -> Compactor:
        """Something else happens while its layers are made."""

        def made(tasks: Sequence[Task]) -> list[Sequence[Layer]]:
            runner()
            return [do_task(self.store, task, self.ids) for task in tasks]

        return Compactor(self.store, DB, runner=made, **self.time)

    def collect(self, *, dry_run: bool = False, store: Store | None = None) -> Garbage:
        return PageCollector(store or self.store, DB, **self.time).run(dry_run=dry_run)

    def pages(self) -> Pages:
        return self.branches.root.read()

    def branch(self, name: str = MAIN) -> PageBranch:
        return self.pages().branch(name)

    def layers(self, name: str = MAIN) -> Sequence[Layer]:
        return self.branch(name).layers

    def keys(self, part: str) -> list[str]:
        """The objects whose keys have this in them."""
        return [one.key for one in self.memory.list(f"db/{DB}/") if part in one.key]

    def grow(
        self, db: PageDb, pages: Sequence[str], rounds: int, *, size: int = 300, seed: int = 5
    ) -> dict[int, Pages_]:
        """So many commits, each flushed; what was written at which LSN."""
        chance, written = Random(seed), dict[int, Pages_]()
        for _ in range(rounds):
            batch = {page: chance.randbytes(size) for page in pages}
            written[db.write(batch)] = batch
            db.flush()
            self.clock.advance(1)
        return written

    def spoil(self, key: str, change: Callable[[bytes], bytes]) -> None:
        """Change the bytes of an object behind everybody's back."""
        found = self.memory.get(key)
        assert found is not None
        self.memory.put(key, change(found.body))


def flipped(at: int) -> Callable[[bytes], bytes]:
    """One bit of this byte."""
    return lambda body: body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :]


class PausingStore(FaultyStore):
    """Lets something else happen before or after the first request that matches: a schedule that is told, not drawn."""

    def __init__(self, room: Room) -> None:
        super().__init__(room.memory, clock=room.clock, ids=room.ids)
        self._steps: list[tuple[str, str, str, Callable[[], object]]] = []

    def when(self, moment: str, operation: str, key_part: str, then: Callable[[], object]) -> None:
        self._steps.append((moment, operation, key_part, then))

    @property
    def is_done(self) -> bool:
        return not self._steps

    def attempt_put(self, key: str, body: bytes, condition: Condition, metadata: Mapping[str, str]) -> Attempt:
        with self._around("put", key):
            return super().attempt_put(key, body, condition, metadata)

    def get(self, key: str, *, version_id: str | None = None, max_bytes: int | None = None) -> Object | None:
        with self._around("get", key):
            return super().get(key, version_id=version_id, max_bytes=max_bytes)

    def get_range(self, key: str, start: int, length: int) -> bytes | None:
        with self._around("range", key):
            return super().get_range(key, start, length)

    def delete(self, key: str) -> None:
        with self._around("delete", key):
            super().delete(key)

    def list(self, prefix: str, *, start_after: str | None = None, limit: int | None = None) -> Iterator[Any]:
        with self._around("list", prefix):
            return super().list(prefix, start_after=start_after, limit=limit)

    @contextmanager
    def _around(self, operation: str, key: str) -> Iterator[None]:
        self._do("before", operation, key)
        yield
        self._do("after", operation, key)

    def _do(self, moment: str, operation: str, key: str) -> None:
        for step in self._steps:
            if step[:2] == (moment, operation) and step[2] in key:
                self._steps.remove(step)
                step[3]()
                return


@dataclass
class Oracle:
    """What every branch has, as a dict of versions: the simplest thing that could be right."""

    versions: dict[str, dict[str, list[tuple[int, bytes | None]]]]
    forks: dict[str, tuple[str | None, int]]

    @classmethod
    def empty(cls) -> Oracle:
        return cls({MAIN: {}}, {MAIN: (None, 0)})

    def write(self, branch: str, lsn: int, pages: Pages_) -> None:
        for page, data in pages.items():
            self.versions[branch].setdefault(page, []).append((lsn, data))

    def fork(self, branch: str, parent: str | None, base: int) -> None:
        self.versions[branch], self.forks[branch] = {}, (parent, base)

    def drop(self, branch: str) -> None:
        del self.versions[branch], self.forks[branch]

    def page(self, branch: str, page: str, lsn: int) -> bytes | None:
        at: str | None = branch
        while at is not None:
            found = [data for known, data in self.versions[at].get(page, ()) if known <= lsn]
            if found:
                return found[-1]
            at, base = self.forks[at]
            lsn = min(lsn, base)
        return None

    def state(self, branch: str, lsn: int, pages: Sequence[str]) -> dict[str, bytes | None]:
        return {page: self.page(branch, page, lsn) for page in pages}
