"""Random lives of a space against an oracle that keeps every state in memory: transactions with reads, branches,
merges, snapshots, collections, crashes before and after a commit counts, a second writer, reopening. Every read of
every (branch, id, seq) is exact."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from tests.spaces.oracle import Documents, Oracle
from tests.spaces.space_room import URLS, DyingBackend, Killed, Room
from worm.errors import Conflict, NotFound
from worm.formats.strict_json import JsonObject, JsonValue, dumps
from worm.spaces.merging import MergePlan
from worm.spaces.operations import ConfirmedRead, PendingRead, Read
from worm.spaces.results import PatchConflict, ReadConflict
from worm.spaces.space import Space

IDS = ["a", "b", "c", 'd"\\']
NAMES = st.sampled_from(["x", "y", "z"])
VALUES: st.SearchStrategy[JsonValue] = st.sampled_from([0, 1, 1.0, True, None, "é", [1, {}], {"deep": [0]}])
DOCUMENTS = st.dictionaries(NAMES, VALUES, max_size=2)
PATCHES = st.lists(
    st.one_of(
        st.builds(lambda name, value: {"op": "add", "path": f"/{name}", "value": value}, NAMES, VALUES),
        st.builds(lambda name: {"op": "remove", "path": f"/{name}"}, NAMES),
    ),
    max_size=3,
)
OPS = st.one_of(
    st.builds(lambda one, value: {"op": "set", "id": one, "value": value}, st.sampled_from(IDS), DOCUMENTS),
    st.builds(lambda one, patches: {"op": "patch", "id": one, "patches": patches}, st.sampled_from(IDS), PATCHES),
    st.builds(lambda one, patches: {"op": "patch", "id": one, "patches": patches}, st.sampled_from(IDS), PATCHES),
    st.builds(lambda one: {"op": "delete", "id": one}, st.sampled_from(IDS)),
)
TRANSACTIONS = st.lists(OPS, min_size=1, max_size=4)
CHOICE = st.integers(0, 1_000_000)
SETTINGS = st.fixed_dictionaries(
    {
        "snapshot_every": st.sampled_from([1, 2, 5, 100]),
        "replay_depth_max": st.sampled_from([1, 3, 100]),
        "cache_bytes": st.sampled_from([0, 1500, 1_000_000]),
        "merge_operations_max": st.sampled_from([1, 2, 10_000]),
    }
)


class Life(RuleBasedStateMachine):
    """`changes` are the commits that touched an entity on a branch itself."""

    kind = "sqlite"

    def __init__(self) -> None:
        super().__init__()
        self.room = Room(self.kind, Path(tempfile.mkdtemp(prefix="worm-space-")))
        self.oracle = Oracle()
        self.changes: dict[tuple[str, str], list[int]] = {}
        self.done: list[tuple[dict[str, Any], int]] = []
        self.numbers = {"s": 0, "t": 0}
        self.settings: dict[str, Any] = {}
        self.merged = False
        self.space = self.room.open()

    def teardown(self) -> None:
        try:
            self.look_everywhere(self.space)
            assert self.space.verify().problems == []
            self.look_everywhere(self.room.open(cache_bytes=0))
        finally:
            self.room.close()
            shutil.rmtree(self.room.directory)

    def branch(self, choice: int) -> str:
        return self.oracle.active[choice % len(self.oracle.active)]

    def call(self, session: str, ops: list[JsonObject], branch: str, reads: list[Read]) -> dict[str, Any]:
        self.numbers[session] += 1
        return {"ops": ops, "session_id": session, "local_seq": self.numbers[session], "branch": branch, "reads": reads}

    def expect(self, branch: str, ops: list[JsonObject]) -> bool:
        """Whether the patches fit."""
        try:
            trial = Oracle({branch: [self.oracle.states[branch][-1]]})
            trial.commit(branch, ops)
        except KeyError:
            return False
        return True

    def record(self, call: dict[str, Any]) -> None:
        self.oracle.commit(call["branch"], call["ops"])
        for op in call["ops"]:
            self.changes.setdefault((call["branch"], op["id"]), []).append(self.oracle.seq)
        self.done.append((call, self.oracle.seq))

    @rule(ops=TRANSACTIONS, choice=CHOICE, session=st.sampled_from("st"))
    def transact(self, ops: list[JsonObject], choice: int, session: str) -> None:
        call = self.call(session, ops, self.branch(choice), [])
        if not self.expect(call["branch"], ops):
            with pytest.raises(PatchConflict):
                self.space.transact(**call)
            return
        done = self.space.transact(**call)
        self.record(call)
        assert (done.seq, done.is_repeat) == (self.oracle.seq, False)

    @rule(choice=CHOICE, other=CHOICE, back=st.integers(0, 6), ids=st.sets(st.sampled_from(IDS), min_size=1))
    def transact_on_what_was_read(self, choice: int, other: int, back: int, ids: set[str]) -> None:
        """Of any branch, some commits ago."""
        seen, at = self.branch(other), max(0, self.oracle.seq - back)
        reads: list[Read] = [ConfirmedRead(one, at, seen) for one in sorted(ids)]
        call = self.call("s", [{"op": "set", "id": "a", "value": {"back": back}}], self.branch(choice), reads)
        stale = {one for one in ids if self.oracle.changed_after(seen, one, at, self.changes)}
        if stale:
            with pytest.raises(ReadConflict) as conflict:
                self.space.transact(**call)
            assert {one.id for one in conflict.value.stale} == stale
        else:
            self.space.transact(**call)
            self.record(call)

    @rule(choice=CHOICE, session=st.sampled_from("st"))
    def transact_on_ones_own(self, choice: int, session: str) -> None:
        """A pending read of a transaction of the session."""
        own = [(call, seq) for call, seq in self.done if call["session_id"] == session]
        if not own:
            return
        earlier, seq = own[choice % len(own)]
        if earlier["branch"] not in self.oracle.active:
            return
        read = PendingRead(earlier["ops"][0]["id"], earlier["local_seq"])
        call = self.call(session, [{"op": "set", "id": "b", "value": {"own": seq}}], earlier["branch"], [read])
        if self.changes[earlier["branch"], read.id][-1] > seq:
            with pytest.raises(ReadConflict):
                self.space.transact(**call)
        else:
            done = self.space.transact(**call)
            assert done.resolved_pending_reads == ((earlier["local_seq"], seq),)
            self.record(call)

    @rule(choice=CHOICE)
    def repeat(self, choice: int) -> None:
        if self.done:
            call, seq = self.done[choice % len(self.done)]
            again = self.space.transact(**call)
            assert (again.seq, again.is_repeat) == (seq, True)

    @rule(ops=TRANSACTIONS, choice=CHOICE, is_written=st.booleans())
    def crash(self, ops: list[JsonObject], choice: int, is_written: bool) -> None:
        """The answer is lost, and so is the process; whoever comes back does it again."""
        call = self.call("s", ops, self.branch(choice), [])
        if not self.expect(call["branch"], ops):
            return
        dying = self.room.space(DyingBackend.of(self.room.backend(), is_written=is_written), **self.settings)
        with suppress(Killed):
            dying.transact(**call)
        self.space = self.room.open(**self.settings)
        assert self.space.seq == self.oracle.seq + is_written
        assert self.space.transact(**call).is_repeat == is_written
        self.record(call)

    @rule(settings=SETTINGS)
    def reopen(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.room.close()
        self.space = self.room.open(**settings)

    @rule(ops=TRANSACTIONS, choice=CHOICE)
    def another_writes(self, ops: list[JsonObject], choice: int) -> None:
        """What this one remembers must not hide it."""
        call = self.call("t", ops, self.branch(choice), [])
        if self.expect(call["branch"], ops):
            with Space(self.room.backend(), clock=self.room.clock) as other:
                other.transact(**call)
            self.record(call)

    @rule(choice=CHOICE, back=st.none() | st.integers(0, 8))
    def fork(self, choice: int, back: int | None) -> None:
        if len(self.oracle.states) < 6:
            name, parent = f"b{len(self.oracle.states)}", self.branch(choice)
            at = None if back is None else max(0, self.oracle.seq - back)
            self.space.create_branch(name, parent=parent, at=at)
            self.oracle.fork(name, parent, self.oracle.seq if at is None else at)

    @rule(choice=CHOICE)
    def end_a_branch(self, choice: int) -> None:
        name = self.branch(choice)
        if not name or choice % 3:
            return
        if self.oracle.children(name):
            with pytest.raises(Conflict, match="is needed by"):
                self.space.delete_branch(name)
            return
        self.space.delete_branch(name)
        self.oracle.end(name)
        with pytest.raises(NotFound):
            self.space.transact([{"op": "delete", "id": "a"}], branch=name)

    @rule(choice=CHOICE)
    def bring_a_branch_back(self, choice: int) -> None:
        deleted = sorted(self.oracle.deleted)
        if not deleted:
            return
        name = deleted[choice % len(deleted)]
        if self.oracle.forks[name][0] in self.oracle.deleted:
            with pytest.raises(Conflict, match="undelete that first"):
                self.space.undelete_branch(name)
            return
        self.space.undelete_branch(name)
        self.oracle.back(name)

    @rule(choice=CHOICE, other=CHOICE, policy=st.sampled_from(["ours", "theirs", "fields-ours", "fields-theirs"]))
    def merge(self, choice: int, other: int, policy: Any) -> None:
        """What the branch alone changed is taken, what both did is decided, and the rest stays."""
        branch, into = self.branch(choice), self.branch(other)
        if branch == into:
            return
        before, theirs = self.oracle.states[into][-1], self.oracle.states[branch][-1]
        plan = self.space.plan_merge(branch, into, policy)
        if not self.merged:
            self.check_first_merge(plan, self.oracle.common(branch, into), before, theirs)
        merged = self.space.merge(branch, into, policy)
        if merged.committed is None:
            return
        self.merged = True
        assert {one.id for one in merged.conflicts} == plan.decided.keys()
        written = self.record_merge(into)
        assert written == plan.values
        for name, value in plan.changes.items():
            assert dumps(value) == dumps(theirs.get(name))
        assert self.space.merge(branch, into).committed is None, "all of it was brought over"

    @rule(choice=CHOICE, other=CHOICE, turn=st.integers(1, 3), is_written=st.booleans())
    def merge_killed(self, choice: int, other: int, turn: int, is_written: bool) -> None:
        """Document by document, until it dies; then again by another."""
        branch, into = self.branch(choice), self.branch(other)
        if branch == into:
            return
        values = self.space.plan_merge(branch, into, "theirs").values
        dying = self.room.space(
            DyingBackend.of(self.room.backend(), turn=turn, is_written=is_written), merge_operations_max=1
        )
        with suppress(Killed):
            dying.merge(branch, into, "theirs")
        self.space = self.room.open(**self.settings)
        if self.space.merge(branch, into, "theirs").committed is not None or self.space.seq > self.oracle.seq:
            self.merged = True
        assert self.record_merge(into) == values, "nothing twice"
        assert self.space.merge(branch, into).committed is None

    def record_merge(self, into: str) -> dict[str, Any]:
        """The commits of a merge; what it wrote."""
        written: dict[str, Any] = {}
        for entry in self.space.log(after=self.oracle.seq):
            operations = entry.original["operations"]
            assert isinstance(operations, list)
            ops = [op for op in operations if isinstance(op, dict)]
            self.oracle.commit(into, ops)
            for op in ops:
                name = str(op["id"])
                assert name not in written
                written[name] = op.get("value")
                self.changes.setdefault((into, name), []).append(self.oracle.seq)
        return written

    def check_first_merge(self, plan: MergePlan, base: Documents, ours: Documents, theirs: Documents) -> None:
        """Before any merge, what two branches had in common decides who changed what."""
        sides: dict[str, tuple[bytes, bytes, bytes]] = {
            name: (dumps(base.get(name)), dumps(ours.get(name)), dumps(theirs.get(name))) for name in IDS
        }
        news = {name: one for name, one in sides.items() if one[2] not in one[:2]}
        assert set(plan.changes) == {name for name, (old, mine, _) in news.items() if mine == old}
        assert {one.id for one in plan.conflicts} == {name for name, (old, mine, _) in news.items() if mine != old}

    @rule(choice=CHOICE, ids=st.sets(st.sampled_from(IDS), min_size=1), back=st.integers(0, 8))
    def snapshot(self, choice: int, ids: set[str], back: int) -> None:
        names = list(self.oracle.states)
        self.space.snapshot(*ids, branch=names[choice % len(names)], at=max(0, self.oracle.seq - back))

    @rule(at_least=st.integers(1, 4))
    def maintain(self, at_least: int) -> None:
        self.space.maintain(at_least=at_least)

    @rule(keep=st.integers(1, 3))
    def collect(self, keep: int) -> None:
        self.space.gc(keep=keep)

    @invariant()
    def all_is_as_the_oracle_says_now(self) -> None:
        for branch in self.oracle.states:
            found = self.space.read_many(IDS, branch=branch)
            told = {name: (one.presence.value, dumps(one.value)) for name, one in found.items()}
            assert told == {name: self.oracle.told(branch, name, self.oracle.seq) for name in IDS}
        assert self.space.seq == self.oracle.seq

    def look_everywhere(self, space: Space) -> None:
        for branch in self.oracle.states:
            for seq in range(self.oracle.seq + 1):
                for name, one in space.read_many(IDS, branch=branch, at=seq).items():
                    want = self.oracle.told(branch, name, seq)
                    assert (one.presence.value, dumps(one.value)) == want, (branch, name, seq)
                    if (seq + len(name)) % 5 == 0:
                        assert space.read(name, branch=branch, at=seq) == one
        assert [entry.seq for entry in space.log()] == list(range(1, self.oracle.seq + 1))


def _run(kind: str, examples: int, steps: int) -> None:
    machine = type("LifeOfThis", (Life,), {"kind": kind})
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    chosen = settings(max_examples=examples, stateful_step_count=steps, deadline=None, suppress_health_check=checks)
    run_state_machine_as_test(machine, settings=chosen)


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(URLS))
def test_a_space_lives_as_its_oracle_does(kind: str) -> None:
    _run(kind, 6, 20)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", sorted(URLS))
def test_a_space_lives_long_as_its_oracle_does(kind: str) -> None:
    _run(kind, 100, 50)
