"""Random lives of a page store against a dict of versions: what is written, flushed, applied, compacted, collected,
branched, reset, pinned and restored, with a crash at any write, and readers that know only what was long ago.

Whatever happens, every page at every LSN of the window reads back exactly, on every branch; outside of it a read is
right or `SnapshotExpired`.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.pages.page_life import BRANCHES, NAMES, Work
from tests.pages.page_room import DB
from tests.pages.page_witness import PageWitness
from worm.errors import Conflict, Fenced, Invalid, SnapshotExpired
from worm.pages.reader import PageReader

SHARE = st.floats(0, 1)


class Life(Work):
    """With branches, pins, the past, and reading."""

    # Branches, pins, the past

    @rule(name=BRANCHES, parent=BRANCHES, share=st.none() | SHARE)
    def create_branch(self, name: str, parent: str, share: float | None) -> None:
        parent = self.there(parent)
        if self.has(name):
            return
        at = None if share is None else round(share * self.heads[parent])
        try:
            made = self.room.branches.create(name, parent=parent, at=at)
        except SnapshotExpired:
            return
        self.oracle.fork(name, made.parent, made.base)
        self.heads[name] = made.base

    @rule(name=BRANCHES, is_reset=st.booleans())
    def remove_branch(self, name: str, is_reset: bool) -> None:
        if not self.has(name):
            return
        needed = any(parent == name for parent, _ in self.oracle.forks.values()) or name in self._pinned()
        made = None
        try:
            if is_reset:
                made = self.room.branches.reset(name)
            else:
                self.room.branches.delete(name)
        except Conflict:
            assert needed
            return
        except Invalid:
            assert name == "main"
            return
        assert not needed
        self.writers.pop(name, None)
        self.oracle.drop(name)
        del self.heads[name]
        if made is not None:
            self.oracle.fork(name, made.parent, made.base)
            self.heads[name] = made.base

    def _pinned(self) -> set[str]:
        return {pin.branch for pin in self.room.pages().pins.values()}

    @rule(branch=BRANCHES, share=SHARE, seconds=st.sampled_from([10.0, 500.0]))
    def pin(self, branch: str, share: float, seconds: float) -> None:
        branch = self.there(branch)
        lsn = round(share * self.heads[branch])
        try:
            pin_id = self.room.past.pin(lsn, branch=branch, seconds=seconds)
        except SnapshotExpired:
            return
        owner = self.room.pages().pins[pin_id].branch  # the one in whose history the LSN lies
        self.pins.append((pin_id, owner, lsn, self.room.clock.monotonic() + seconds))

    @precondition(lambda self: self.pins)
    @rule()
    def unpin(self) -> None:
        self.room.past.unpin(self.pins.pop()[0])

    @rule(branch=BRANCHES, share=SHARE)
    def restore(self, branch: str, share: float) -> None:
        branch = self.there(branch)
        db = self.writer(branch)
        lsn = round(share * self.heads[branch])
        want, now = self.oracle.state(branch, lsn, NAMES), self.oracle.state(branch, self.heads[branch], NAMES)
        try:
            changed = self.room.past.restore(db, lsn)
        except SnapshotExpired:
            return
        different = {page: want[page] for page in NAMES if want[page] != now[page]}
        assert changed == len(different)
        assert db.get_pages(NAMES) == want
        self.oracle.write(branch, db.head_lsn, different)
        self.heads[branch] = db.head_lsn

    @rule(one=BRANCHES, other=BRANCHES, shares=st.tuples(SHARE, SHARE))
    def compare(self, one: str, other: str, shares: tuple[float, float]) -> None:
        one, other = self.there(one), self.there(other)
        lsns = [round(share * self.heads[name]) for share, name in zip(shares, (one, other), strict=True)]
        before, after = self.room.past.state(one, lsns[0]), self.room.past.state(other, lsns[1])
        try:
            found = {each.page: (each.before, each.after) for each in self.room.past.differences(before, after)}
        except SnapshotExpired:
            return
        old, new = (self.oracle.state(state.branch, state.lsn, NAMES) for state in (before, after))
        assert found == {page: (old[page], new[page]) for page in NAMES if old[page] != new[page]}

    # Reading

    @rule(branch=BRANCHES)
    def keep_a_reader(self, branch: str) -> None:
        branch = self.there(branch)
        reader = self.room.reader(branch)
        states = {lsn: self.oracle.state(branch, lsn, NAMES) for lsn in {0, reader.head_lsn // 2, reader.head_lsn}}
        self.old = [*self.old[-3:], (reader, branch, states)]

    @precondition(lambda self: self.old)
    @rule(at=st.integers(0, 3))
    def ask_an_old_reader(self, at: int) -> None:
        """Right, or told that it is too late."""
        reader, _, states = self.old[at % len(self.old)]
        for lsn, want in states.items():
            try:
                assert reader.get_pages(NAMES, lsn) == want
                assert {one.page: one.data for one in reader.scan(at=lsn)} == {
                    p: d for p, d in want.items() if d is not None
                }
            except (SnapshotExpired, Fenced):
                continue

    @invariant()
    def all_is_as_the_oracle_says(self) -> None:
        if not hasattr(self, "room"):
            return
        self.steps += 1
        pages = self.room.pages()
        for branch in self.heads:
            reader = self.room.reader(branch)
            assert reader.head_lsn >= self.heads[branch]
            horizon = pages.branch(branch).horizon
            for lsn in {reader.head_lsn, self.steps * 7 % (reader.head_lsn + 1), horizon}:
                self._check(reader, branch, lsn, must=lsn >= horizon)
        for _, branch, lsn, until in self.pins:
            if until > self.room.clock.monotonic() + 1:
                self._check(self.room.reader(branch), branch, lsn, must=True)

    def _check(self, reader: PageReader, branch: str, lsn: int, *, must: bool) -> None:
        want = self.oracle.state(branch, lsn, NAMES)
        try:
            assert reader.get_pages(NAMES, lsn) == want
            assert {one.page: one.data for one in reader.scan(at=lsn)} == {
                p: d for p, d in want.items() if d is not None
            }
        except SnapshotExpired:
            assert not must

    def teardown(self) -> None:
        if hasattr(self, "room"):
            PageWitness(self.room.memory, DB).check(self.steps)


def _run(examples: int, steps: int) -> None:
    checks = list(HealthCheck)
    chosen = settings(max_examples=examples, stateful_step_count=steps, deadline=None, suppress_health_check=checks)
    run_state_machine_as_test(Life, settings=chosen)


def test_a_page_store_lives_as_a_dict_of_versions_does() -> None:
    _run(4, 20)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_page_store_lives_long_as_a_dict_of_versions_does() -> None:
    _run(100, 50)
