"""A page store under the scheduler of `tests/log/simulation.py`: writers, appliers, compactors, collectors, those
who branch and those who read, whose requests meet in any order, on a store that fails, with processes that sleep and
die. Everything follows from the seed.

What was told is kept: commits with their LSNs, reads with what they gave. Afterwards `check` compares it with the log
as it was written, and `PageWitness` looks at the store.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import TypeVar
from unittest.mock import patch

from tests.log.simulation import MIN_AGE, Actor, Simulation, SkewedClock, TurnStore
from tests.pages.page_room import config
from worm.clock import Ids
from worm.errors import (
    CommitStateUnknown,
    Conflict,
    Denied,
    Expired,
    Fenced,
    Invalid,
    NotFound,
    SnapshotExpired,
    Unavailable,
)
from worm.pages.apply import Applier
from worm.pages.branches import Branches
from worm.pages.collect import PageCollector
from worm.pages.compact import Compactor
from worm.pages.db import PageDb, create_database
from worm.pages.past import BranchPoint, Past
from worm.pages.reader import PageReader

DB = "main"
NAMES = [f"p{number:02d}" for number in range(12)]
BRANCHES = ("x", "y", "z")
FAULTS = (Unavailable, Denied)
"""What the store may do to anybody."""
T = TypeVar("T")
R = TypeVar("R")


@dataclass
class Commit:
    """A transaction that was asked for; `answered`: the step, 0 before it."""

    branch_id: str
    pages: dict[str, bytes | None]
    asked: int
    answered: int = 0
    lsn: int = 0
    is_refused: bool = False


@dataclass
class Seen:
    """What was read. `ancestry`: ids of the branch and those above it, each with the LSN up to which it counts."""

    branch_id: str
    ancestry: list[tuple[str, int]]
    asked: int
    head: int
    lsn: int
    pages: dict[str, bytes | None] | None


@dataclass
class Record:
    """Everything that was told."""

    commits: dict[str, Commit] = field(default_factory=dict)
    seen: list[Seen] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)


class PageSimulation(Simulation):
    """One run. `record` is what came of it, `memory` what is stored."""

    steps_max = 3000

    def __init__(self, seed: int, *, is_failing: bool = True) -> None:
        super().__init__(seed, is_failing=is_failing)
        self.record = Record()
        chance = Random(seed ^ 0xC0FFEE)
        settings = config(
            gc_min_age_seconds=MIN_AGE,
            pitr_window_seconds=chance.choice((0, 100, 1000)),
            delta_layer_target_bytes=chance.choice((1024, 1 << 16)),
            image_layer_target_bytes=chance.choice((1024, 1 << 16)),
            compaction_cadence_layers=chance.choice((1, 2, 4)),
            manifest_filter_bytes=chance.choice((0, 200, 1 << 20)),
            flush_interval_seconds=chance.choice((5, 80_000)),
        )
        ids = Ids.seeded(seed, self.clock)
        create_database(self.memory, DB, settings, clock=self.clock, ids=ids)
        with PageDb.open(self.memory, DB, clock=self.clock, ids=ids) as db:
            for _ in range(3):
                self._write_some(db, chance)
                db.flush()
        branches = Branches(self.memory, DB, clock=self.clock, ids=ids)
        branches.create("x", at=chance.randint(0, db.head_lsn))
        branches.create("y", parent=chance.choice(("main", "x")))

    def actors(self) -> list[Actor]:
        actors: list[Actor] = [self._commit] * self.chance.randint(1, 3)
        actors += [self._apply, self._compact, self._compact, self._sweep, self._branch, self._look, self._stare]
        return actors[: -self.chance.randint(0, 2) or None]

    # Actors

    def _commit(self, store: TurnStore, clock: SkewedClock, chance: Random) -> None:
        name = chance.choice(("main", "main", *BRANCHES))
        with self._told("open"):
            db = PageDb.open(store, DB, branch=name, clock=clock, ids=store.ids)
            for _ in range(chance.randint(1, 10)):
                if not self._write_some(db, chance):
                    return
                with self._told("flush"):
                    if chance.random() < 0.4:
                        db.flush()

    def _write_some(self, db: PageDb, chance: Random) -> bool:
        """One transaction; False: this writer is done."""
        self._number += 1
        txn = f"t{self._number}"
        chosen = chance.sample(NAMES, chance.randint(1, 4))
        pages = {
            page: None if chance.random() < 0.2 else f"{txn}/{page}".encode() * chance.choice((1, 30))
            for page in chosen
        }
        commit = self.record.commits[txn] = Commit(db.keys.branch, pages, self.steps)
        try:
            lsn = db.write(pages, txn=txn)
        except CommitStateUnknown:
            return False
        except (Fenced, Denied, Unavailable, NotFound) as refusal:
            commit.is_refused = True
            return isinstance(refusal, Denied)
        commit.lsn, commit.answered = lsn, self.steps
        with self._told("read back"):
            assert db.get_pages(list(pages), lsn) == pages, "a writer reads what it wrote"
        self.record.done["commit"] += 1
        return True

    def _apply(self, store: TurnStore, clock: SkewedClock, chance: Random) -> None:
        applier = Applier(store, DB, clock=clock, ids=store.ids)
        for _ in range(4):
            with self._told("apply"):
                applier.run(chance.choice(("main", *BRANCHES)))

    def _compact(self, store: TurnStore, clock: SkewedClock, chance: Random) -> None:
        compactor = Compactor(store, DB, max_bytes=chance.choice((None, 2000)), clock=clock, ids=store.ids)
        for _ in range(4):
            with self._told("compact"):
                compactor.run(chance.choice(("main", "main", *BRANCHES)), force=chance.random() < 0.3)

    def _sweep(self, store: TurnStore, clock: SkewedClock, chance: Random) -> None:
        collector = PageCollector(store, DB, clock=clock, ids=store.ids)
        for _ in range(5):
            with self._told("collect"):
                garbage = collector.run(dry_run=chance.random() < 0.1)
                self.record.done["deleted"] += len(garbage.deleted)
                self.record.done["orphans"] += len(garbage.orphans)

    def _branch(self, store: TurnStore, clock: SkewedClock, chance: Random) -> None:
        branches = Branches(store, DB, clock=clock, ids=store.ids)
        past = Past(store, DB, clock=clock, ids=store.ids)
        for _ in range(5):
            name, other = chance.choice(BRANCHES), chance.choice(("main", "main", *BRANCHES))
            with self._told("branch"):
                head = branches.root.read().branch(other).lsn
                at = chance.choice((None, chance.randint(0, head)))
                what = chance.choice(("create", "create", "create", "delete", "reset", "pin", "compare"))
                if what == "create":
                    branches.create(name, parent=other, at=at)
                elif what == "delete":
                    branches.delete(name)
                elif what == "reset":
                    branches.reset(name)
                elif what == "pin":
                    past.pin(head if at is None else at, branch=other, seconds=chance.choice((10, 1000)))
                else:
                    list(past.differences(BranchPoint(other, head if at is None else at), past.state(other)))

    def _look(self, store: TurnStore, clock: SkewedClock, chance: Random) -> None:
        """Reads with what it knows anew."""
        for _ in range(4):
            with self._told("read"):
                asked = self.steps
                reader = PageReader.open(
                    store, DB, branch=chance.choice(("main", *BRANCHES)), clock=clock, ids=store.ids
                )
                self._read_once(reader, chance, asked)

    def _stare(self, store: TurnStore, clock: SkewedClock, chance: Random) -> None:
        """Reads with what it knew long ago."""
        with self._told("read"):
            reader = PageReader.open(store, DB, branch=chance.choice(("main", *BRANCHES)), clock=clock, ids=store.ids)
            for _ in range(8):
                with self._told("read"):
                    self._read_once(reader, chance, 0)

    def _read_once(self, reader: PageReader, chance: Random, asked: int) -> None:
        lsn = chance.choice((None, chance.randint(0, reader.head_lsn)))
        ids = {name: branch.id for name, branch in reader.pages.branches.items()}
        at, head = reader.head_lsn if lsn is None else lsn, reader.head_lsn
        ancestry = [(ids[name], upto) for name, _, upto in reader.pages.lineage(reader.name, at)]
        seen = Seen(reader.keys.branch, ancestry, asked, head, at, None)
        try:
            if chance.random() < 0.3:
                versions = {version.page: version.data for version in reader.scan(at=at)}
                found = {page: versions.get(page) for page in NAMES}
            else:
                found = reader.get_pages(NAMES, lsn)
        except SnapshotExpired:
            self.record.seen.append(seen)
            return
        if lsn is None and reader.head_lsn != head:
            return  # the newest, of another view than we know of
        seen.pages = found
        self.record.seen.append(seen)
        self.record.done["read"] += 1

    @contextmanager
    def _told(self, what: str) -> Iterator[None]:
        """Errors that may be: those of the store, of a race that was lost, of a branch that is gone."""
        try:
            yield
        except (*FAULTS, Fenced, NotFound, Conflict, Expired, Invalid) as error:
            self.record.done[f"{what}: {type(error).__name__}"] += 1
        else:
            self.record.done[what] += 1


@contextmanager
def one_thread() -> Iterator[None]:
    """An actor makes its requests one after the other, or no seed would give the same run twice."""

    def in_order(work: Callable[[T], R], items: Iterable[T]) -> list[R]:
        return [work(one) for one in items]

    with (
        patch("worm.pages.layers.in_parallel", in_order),
        patch("worm.pages.compact.in_parallel", in_order),
    ):
        yield
