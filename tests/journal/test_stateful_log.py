"""Random lives of a store against a plain dict, with a crash at any byte and at any step.

A crash in the middle of a write leaves a prefix of its bytes: after reopening, the store has the whole change or
nothing of it, and everything that was acknowledged before.
"""

from __future__ import annotations

import copy
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from tests.journal.log_room import DyingDisk, Killed, QuickDisk, log_bytes, opened
from worm.errors import Conflict, Invalid, NotFound
from worm.formats.strict_json import JsonObject, JsonValue, dumps
from worm.log.journal.file import OPLOG
from worm.log.journal.pack import pack, unpack
from worm.log.journal.store import LogStore, StoreTransaction

pytestmark = pytest.mark.slow

NAMES = st.sampled_from(["a", "b"])
IDS: st.SearchStrategy[JsonValue] = st.sampled_from([None, True, 0, 0.0, 1, "1", "z", [1], {"k": 1}])
VALUES: st.SearchStrategy[JsonValue] = st.sampled_from([None, 1, 1.0, "x", "\t\n", [1, 2], {"d": "é"}])
OPS = st.sampled_from(["insert", "replace", "delete"])
CHANGES = st.lists(st.tuples(OPS, NAMES, IDS, VALUES), min_size=1, max_size=4)
SPEC: JsonObject = {"fields": {"v": {"type": "string"}}, "strict": True}

Oracle = dict[str, dict[bytes, JsonObject]]


class Life(RuleBasedStateMachine):
    """The oracle is `docs`; `indexes` and `specs` are what was defined."""

    def __init__(self) -> None:
        super().__init__()
        self.room = Path(tempfile.mkdtemp(prefix="worm-log-"))
        self.path = self.room / "store"
        self.docs: Oracle = {"a": {}, "b": {}}
        self.indexes: set[tuple[str, str]] = set()
        self.specs: set[str] = set()
        self.packs = 0

    @initialize()
    def start(self) -> None:
        self.store = opened(self.path)

    def teardown(self) -> None:
        with suppress(AttributeError):
            self.store.close()
        shutil.rmtree(self.room)

    def expect(self, op: str, ns: str, id: JsonValue, value: JsonValue, docs: Oracle) -> type[Exception] | None:
        """Do it to the oracle, or say how it is refused."""
        key, there = dumps(id), docs[ns]
        if op != "delete" and ns in self.specs and value is not None and not isinstance(value, str):
            return Invalid
        if op == "insert" and key in there:
            return Conflict
        if op != "insert" and key not in there:
            return NotFound
        if op == "delete":
            del there[key]
        else:
            there[key] = {"_id": id, "v": value}
        return None

    def do(self, target: LogStore | StoreTransaction, op: str, ns: str, id: JsonValue, value: JsonValue) -> None:
        if op == "delete":
            target.delete(ns, id)
        else:
            getattr(target, op)(ns, {"_id": id, "v": value})

    @rule(op=OPS, ns=NAMES, id=IDS, value=VALUES)
    def change(self, op: str, ns: str, id: JsonValue, value: JsonValue) -> None:
        size = self.store.next_lsn
        refusal = self.expect(op, ns, id, value, self.docs)
        if refusal is None:
            self.do(self.store, op, ns, id, value)
        else:
            with pytest.raises(refusal):
                self.do(self.store, op, ns, id, value)
        assert self.store.next_lsn == size + (refusal is None)

    @rule(changes=CHANGES, breaks=st.booleans())
    def transaction(self, changes: list[tuple[str, str, JsonValue, JsonValue]], breaks: bool) -> None:
        docs = copy.deepcopy(self.docs)
        with suppress(ZeroDivisionError), self.store.transaction() as tx:
            for change in changes:
                refusal = self.expect(*change, docs)
                if refusal is None:
                    self.do(tx, *change)
                else:
                    with pytest.raises(refusal):
                        self.do(tx, *change)
                _, ns, key, _ = change
                assert (tx.get(ns, key) is None) is (dumps(key) not in docs[ns])
            if breaks:
                raise ZeroDivisionError
        if not breaks:
            self.docs = docs

    @rule(ns=NAMES, field=st.sampled_from(["v", "v.d"]))
    def create_index(self, ns: str, field: str) -> None:
        assert self.store.create_index(ns, field) is ((ns, field) not in self.indexes)
        self.indexes.add((ns, field))

    @rule(ns=NAMES, strict=st.booleans())
    def define(self, ns: str, strict: bool) -> None:
        self.store.define(ns, SPEC if strict else {})
        self.specs = self.specs | {ns} if strict else self.specs - {ns}

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.store = opened(self.path)

    @rule()
    def compact(self) -> None:
        report = self.store.compact()
        assert report.records_after <= report.records_before
        assert self.store.compact().size_after == report.size_after

    @rule(changes=CHANGES, cut=st.integers(0, 10_000))
    def crash_within_a_write(self, changes: list[tuple[str, str, JsonValue, JsonValue]], cut: int) -> None:
        before, old = len(log_bytes(self.path)), copy.deepcopy(self.docs)
        self.transaction(changes, breaks=False)
        whole = log_bytes(self.path)
        self.store.close()
        if len(whole) > before:
            at = before + cut % (len(whole) - before + 1)
            (self.path / OPLOG).write_bytes(whole[:at])
            if at < len(whole):
                self.docs = old
        self.store = opened(self.path)

    @rule(step=st.integers(0, 25))
    def crash_within_a_compaction(self, step: int) -> None:
        self.store.close()
        disk = DyingDisk(step)
        with suppress(Killed):
            dying = None
            try:
                dying = opened(self.path, disk)
                dying.compact()
            finally:
                if dying is not None:
                    dying._log.close()
        self.store = opened(self.path)

    @rule(step=st.integers(0, 40))
    def move_by_archive(self, step: int) -> None:
        self.store.close()
        self.packs += 1
        archive, target = self.room / f"{self.packs}.pack", self.room / f"store-{self.packs}"
        with suppress(Killed):
            pack(self.path, archive, disk=DyingDisk(step))
        if not archive.exists():
            pack(self.path, archive, disk=QuickDisk())
        with suppress(Killed):
            unpack(archive, target, disk=DyingDisk(step))
        if not target.exists():
            unpack(archive, target, disk=QuickDisk())
        self.path = target
        self.store = opened(self.path)

    @invariant()
    def all_is_as_the_oracle_says(self) -> None:
        if not hasattr(self, "store"):
            return
        for ns, docs in self.docs.items():
            found = {dumps(one["_id"]): one for one in self.store.scan(ns)}
            assert {key: dumps(one) for key, one in found.items()} == {key: dumps(one) for key, one in docs.items()}
            if (ns, "v") in self.indexes:
                for value in (1, 1.0, "x", None):
                    want = {key for key, one in docs.items() if dumps(one["v"]) == dumps(value)}
                    assert {dumps(one["_id"]) for one in self.store.find(ns, "v", value)} == want
        assert self.store.verify().is_clean


def _run(examples: int, steps: int) -> None:
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    chosen = settings(max_examples=examples, stateful_step_count=steps, deadline=None, suppress_health_check=checks)
    run_state_machine_as_test(Life, settings=chosen)


def test_a_store_lives_as_a_dict_does() -> None:
    _run(12, 15)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_store_lives_long_as_a_dict_does() -> None:
    _run(150, 40)
