"""The work of a page store as rules of a state machine (`test_pages_stateful.py`): writing, and what goes on behind it,
with a crash at any write."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Literal

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    rule,
)

from tests.pages.page_room import MIN_AGE, Oracle, PausingStore, Room
from worm.errors import Fenced
from worm.pages.db import PageDb
from worm.pages.reader import PageReader
from worm.store.faulty_store import SimulatedCrash

NAMES = ["a", "b", "b/1", "é", "zz", "\x00"]
PAGES = st.dictionaries(
    st.sampled_from(NAMES),
    st.sampled_from([None, b"", b"x", b"\xff\x00", b"text " * 60, bytes(700)]),
    min_size=1,
    max_size=4,
)
BRANCHES = st.sampled_from(["main", "one", "two", "three"])
SHARE = st.floats(0, 1)
WHEN = st.sampled_from(["before", "after"])


class Work(RuleBasedStateMachine):
    """`oracle` is what is right; `heads` the last LSN of each branch; `old` readers that were opened at some time."""

    def __init__(self) -> None:
        super().__init__()
        self.oracle = Oracle.empty()
        self.heads = {"main": 0}
        self.writers: dict[str, PageDb] = {}
        self.old: list[tuple[PageReader, str, dict[int, dict[str, bytes | None]]]] = []
        self.pins: list[tuple[str, str, int, float]] = []
        self.steps = 0

    @initialize(
        delta=st.sampled_from([1024, 1 << 16]),
        image=st.sampled_from([1024, 1 << 16]),
        cadence=st.sampled_from([1, 2, 4]),
        window=st.sampled_from([0, 50, 1000]),
        filters=st.sampled_from([0, 100, 1 << 20]),
    )
    def start(self, delta: int, image: int, cadence: int, window: int, filters: int) -> None:
        self.room = Room(
            delta_layer_target_bytes=delta,
            image_layer_target_bytes=image,
            compaction_cadence_layers=cadence,
            pitr_window_seconds=window,
            manifest_filter_bytes=filters,
        )

    def has(self, branch: str) -> bool:
        return branch in self.heads

    def there(self, branch: str) -> str:
        """This branch, or main: so that every rule does something."""
        return branch if self.has(branch) else "main"

    def writer(self, branch: str) -> PageDb:
        if branch not in self.writers:
            self.writers[branch] = self.room.db(branch)
            self.heads[branch] = self.writers[branch].head_lsn
        return self.writers[branch]

    # Writing

    @rule(
        branch=BRANCHES,
        seed=st.integers(0, 1 << 16),
        rounds=st.integers(1, 5),
        then=st.sampled_from(["", "compact", "force", "collect"]),
    )
    def work(self, branch: str, seed: int, rounds: int, then: str) -> None:
        """What a busy hour brings: commits that are flushed, a compaction, garbage."""
        branch, chance = self.there(branch), Random(seed)
        db = self.writer(branch)
        for _ in range(rounds):
            for _ in range(chance.randint(1, 3)):
                chosen = chance.sample(NAMES, chance.randint(1, len(NAMES)))
                pages = {
                    page: chance.choice([None, b"", chance.randbytes(chance.choice([10, 400]))]) for page in chosen
                }
                self.oracle.write(branch, db.write(pages), pages)
            if chance.random() < 0.8:
                db.flush()
            self.room.clock.advance(chance.randint(0, 15))
        self.heads[branch] = db.head_lsn
        if then:
            self.room.compact(branch, force=then != "compact", max_bytes=chance.choice([None, 1500, 4000]))
        if then == "collect":
            self.room.clock.advance(2 * MIN_AGE)
            self.room.collect()

    @rule(branch=BRANCHES, batches=st.lists(PAGES, min_size=1, max_size=3))
    def write(self, branch: str, batches: list[dict[str, bytes | None]]) -> None:
        branch = self.there(branch)
        db = self.writer(branch)
        for pages in batches:
            self.oracle.write(branch, db.write(pages), pages)
        self.heads[branch] = db.head_lsn

    @rule(branch=BRANCHES, pages=PAGES, number=st.integers(1, 4), when=WHEN)
    def crash_while_writing(
        self, branch: str, pages: dict[str, bytes | None], number: int, when: Literal["before", "after"]
    ) -> None:
        """The answer is lost with the process; the next writer is asked the same again, and it is there once."""
        branch = self.there(branch)
        self.steps += 1
        txn = f"t{self.steps}"

        def work() -> None:
            db = self.writer(branch)
            db.write(pages, txn=txn)
            db.flush()

        self._crashing(work, number, when)
        self.writers.pop(branch, None)
        db = self.writer(branch)
        self.oracle.write(branch, db.write(pages, txn=txn), pages)
        self.heads[branch] = db.head_lsn

    @rule(branch=BRANCHES)
    def flush(self, branch: str) -> None:
        self.writer(self.there(branch)).flush()

    @rule(branch=BRANCHES)
    def reopen(self, branch: str) -> None:
        self.writers.pop(self.there(branch), None)

    @rule(branch=BRANCHES)
    def take_over(self, branch: str) -> None:
        """Another process opens the branch: the one before is shut out."""
        branch = self.there(branch)
        before = self.writer(branch)
        del self.writers[branch]
        self.writer(branch)
        with pytest.raises(Fenced):
            before.write({"a": b"never"})

    # In the background

    @rule(branch=BRANCHES)
    def apply(self, branch: str) -> None:
        assert self.room.apply(self.there(branch)).is_done

    @rule(
        branch=BRANCHES,
        force=st.booleans(),
        max_bytes=st.sampled_from([None, 1500, 4000]),
        parts=st.sampled_from([1, 3]),
    )
    def compact(self, branch: str, force: bool, max_bytes: int | None, parts: int) -> None:
        self.room.compact(self.there(branch), force=force, max_bytes=max_bytes, parts=parts)

    @rule(
        branch=BRANCHES,
        other=BRANCHES,
        moment=st.sampled_from(["before", "after"]),
        part=st.sampled_from(["/delta/", "/image/", "d/manifest"]),
    )
    def two_compactions_at_once(self, branch: str, other: str, moment: str, part: str) -> None:
        branch, other = self.there(branch), self.there(other)
        store = PausingStore(self.room)
        store.when(moment, "put", part, lambda: self.room.compact(other, force=True))
        try:
            self.room.compact(branch, force=True, store=store)
        except Fenced:
            assert store.is_done

    @rule()
    def collect(self) -> None:
        self.room.collect()

    @rule(seconds=st.sampled_from([1, 20, 2 * MIN_AGE, 200]))
    def wait(self, seconds: float) -> None:
        self.room.clock.advance(seconds)

    @rule(
        what=st.sampled_from(["flush", "apply", "compact", "collect"]),
        branch=BRANCHES,
        number=st.integers(1, 8),
        when=WHEN,
    )
    def crash_in_the_background(self, what: str, branch: str, number: int, when: Literal["before", "after"]) -> None:
        branch = self.there(branch)
        work: dict[str, Callable[[], object]] = {
            "flush": lambda: self.writer(branch).flush(),
            "apply": lambda: self.room.apply(branch),
            "compact": lambda: self.room.compact(branch, force=True),
            "collect": self.room.collect,
        }
        self._crashing(work[what], number, when)
        if what == "flush":
            self.writers.pop(branch, None)

    def _crashing(self, work: Callable[[], object], number: int, when: Literal["before", "after"]) -> None:
        store = self.room.store
        store.crash_at_write(store.writes + number, when)
        try:
            work()
        except SimulatedCrash:
            pass
        finally:
            store.revive()
