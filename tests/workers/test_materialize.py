"""Commits become documents: once, in order, whoever does it, however often, and wherever it dies."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, partial
from typing import Literal

import pytest

from tests.examples import crash_points, examples, some
from tests.sdk.bank_room import MAIN, Apart, SpaceBench
from tests.sdk.interleaving import Actor, every_order
from tests.sdk.sessions import must
from worm.clock import VirtualClock
from worm.errors import Unavailable
from worm.log.keys import DbKeys
from worm.sdk.database import Model
from worm.sdk.document import DocumentDict
from worm.spaces.bridge import following
from worm.spaces.bridge.applied import RUN_MAX, Applied
from worm.spaces.bridge.origins import commit_of
from worm.store.base import Store
from worm.store.faulty_store import Fault, FaultyStore, SimulatedCrash
from worm.store.memory import MemoryStore
from worm.upkeep.materialize import Materializer

pytestmark = pytest.mark.slow  # together more than a few seconds

WHEN: tuple[Literal["before", "after"], ...] = ("before", "after")
WRITES_MAX = 80
KEY = "bank/accounts/a/data.json"
Change = Callable[[Model], object]


def save(balance: int) -> Change:
    return lambda accounts: accounts.save(
        (accounts.find_by_id("a") or DocumentDict({"id": "a"})) | {"balance": balance}
    )


def delete(accounts: Model) -> object:
    return accounts.delete("a")


LIVES: dict[str, Sequence[Change]] = {
    "a create": [save(1)],
    "changes": [save(1), save(2), save(3)],
    "a create and a delete": [save(1), delete],
    "a second life": [save(1), delete, save(2), save(3)],
    "two lives": [save(1), delete, save(2), delete],
}
ALL_LIVES = [name if name == "a create and a delete" else pytest.param(name, marks=pytest.mark.slow) for name in LIVES]
"""For those that go through every order or every write: `make check` does so with one."""


def lived(life: Sequence[Change], *, versioned: bool = True, applied: int = 0) -> SpaceBench:
    """An account whose life is in the log, and its first commits in the document."""
    bench = SpaceBench("memory-versioned" if versioned else "memory")
    accounts = bench.session(maintenance="events").model("Account")
    for number, change in enumerate(life, start=1):
        change(accounts)
        if number == applied:
            bench.materialize()
        bench.clock.advance(1)
    return bench


def expected(life: Sequence[Change]) -> list[tuple[str, str | None, object]]:
    """The history that a life must have."""
    found: list[tuple[str, str | None, object]] = []
    for seq, change in enumerate(life, start=1):
        is_new = not found or found[-1][0] == "delete"
        found.append(("delete" if change is delete else "create" if is_new else "update", "ann", seq))
    return found


def check(bench: SpaceBench, life: Sequence[Change], *, is_exact: bool = True) -> None:
    """The document is what the log says, and every commit stands in the history once."""
    bench.repair()
    bench.assert_clean()
    if is_exact:
        assert bench.history("Account", "a") == expected(life)


@pytest.mark.parametrize("life", LIVES)
@pytest.mark.parametrize("versioned", [True, False])
def test_every_commit_becomes_a_version_once(life: str, versioned: bool) -> None:
    bench = lived(LIVES[life], versioned=versioned)
    assert bench.materialize().commits == len(LIVES[life])
    assert bench.applied().applied == len(LIVES[life])
    bench.store.delete(DbKeys(MAIN).documents)  # as if nothing was ever applied
    assert bench.materialize().commits == len(LIVES[life])
    assert bench.materialize().commits == 0
    check(bench, LIVES[life], is_exact=versioned)


def test_a_document_carries_its_commit_and_nothing_is_written_again() -> None:
    bench = lived(LIVES["changes"])
    bench.materialize()
    found = must(bench.store.get(KEY))
    assert (commit_of(found, "Account/a"), found.metadata["worm-actor"]) == (3, "ann")
    assert commit_of(found, "Account/b") is None
    bench.store.delete(DbKeys(MAIN).documents)
    report = bench.materialize()
    assert (report.commits, report.written) == (3, 0)
    assert must(bench.store.get(KEY)).version_id == found.version_id


@pytest.mark.parametrize("life", ALL_LIVES)
@pytest.mark.parametrize("applied", [0, 1])
def test_after_a_crash_at_any_write_the_next_run_goes_on(life: str, applied: int) -> None:
    start, died = lived(LIVES[life], applied=applied), 0
    for number, when in crash_points(WRITES_MAX):
        bench, is_dead = start.fork(), False
        faulty = FaultyStore(bench.store, clock=bench.clock, ids=bench.ids)
        faulty.crash_at_write(number, when)
        try:
            bench.materialize(faulty)
        except SimulatedCrash:
            is_dead = True
        died += is_dead
        bench.materialize()
        bench.materialize()
        check(bench, LIVES[life])
        if not is_dead:
            break
    assert died > examples(3) or (applied, life) == (1, "a create")


@pytest.mark.parametrize("life", ALL_LIVES)
def test_after_a_fault_at_any_write_the_next_run_goes_on(life: str) -> None:
    start = lived(LIVES[life])
    for fault in (Fault.LOST_RESPONSE, Fault.UNAVAILABLE, Fault.CONFLICT, Fault.DELAYED):
        for number in some(range(12)):
            bench = start.fork()
            faulty = _Failing(bench.store, fault, number, bench)
            with suppress(Unavailable):
                bench.materialize(faulty)
            faulty.land_delayed()
            bench.materialize()
            check(bench, LIVES[life])


class _Failing(FaultyStore):
    """All attempts from write number `number` on fail, six times."""

    def __init__(self, inner: Store, fault: Fault, number: int, bench: SpaceBench) -> None:
        super().__init__(inner, clock=bench.clock, ids=bench.ids)
        self._fault = fault
        self._number = number

    def _next_fault(self, operation: str) -> Fault | None:
        is_write = operation.startswith("attempt")
        return self._fault if is_write and self._number <= self.writes < self._number + 6 else None


@pytest.mark.parametrize("life", ALL_LIVES)
@pytest.mark.parametrize("applied", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_two_materializers_in_every_order(life: str, applied: int) -> None:
    """The document is right in the end. One that stalls between reading that nothing is there and its write can bring
    back what was deleted, for as long as it takes to see the end of the log: that is no part of the history."""
    start, runs = lived(LIVES[life], applied=applied), 0
    benches: list[SpaceBench] = []

    def prepare() -> tuple[MemoryStore, Sequence[Actor]]:
        bench = start.fork()
        benches.append(bench)
        assert isinstance(bench.store, MemoryStore)
        return bench.store, [bench.materialize, bench.materialize]

    for _ in some(every_order(prepare, switches_max=1)):
        bench = benches.pop()
        assert bench.applied() == Applied(len(LIVES[life]), {}, bench.applied().revision)
        bench.capture()
        runs += 1
        assert bench.history("Account", "a") == expected(LIVES[life])
        bench.assert_clean()
    assert runs > examples(10)


def test_a_late_one_writes_nothing_over_a_newer_state() -> None:
    """At each of its writes, another applies that commit and all that came after it."""
    start, met = lived([save(1), save(2)], applied=1), 0
    for number in some(range(1, WRITES_MAX)):
        bench = start.fork()

        def later(bench: SpaceBench = bench) -> None:
            bench.session(maintenance="events").model("Account").patch("a", {"balance": 3})
            bench.materialize()

        store = Apart(bench, number, later)
        bench.materialize(store)
        if not store.has_met:
            break
        met += 1
        check(bench, [save(1), save(2), save(3)])
    assert met > examples(1)


def test_a_late_delete_takes_nothing_of_the_next_life() -> None:
    """At each of its writes, another deletes the document, and makes it anew."""
    start, met = lived([save(1), delete], applied=1), 0
    for number in some(range(1, WRITES_MAX)):
        bench = start.fork()

        def later(bench: SpaceBench = bench) -> None:
            bench.materialize()
            bench.session(maintenance="events").model("Account").save({"id": "a", "balance": 3})
            bench.materialize()

        store = Apart(bench, number, later)
        bench.materialize(store)
        if not store.has_met:
            break
        met += 1
        check(bench, [save(1), delete, save(3)])
    assert met > examples(3)


def test_a_run_that_ends_late_does_not_put_the_cursor_back() -> None:
    begun = Applied(3).begun("late", VirtualClock().now()).ended("quick", 9, is_done=True)
    assert begun.ended("late", 5, is_done=True).applied == 9
    stopped = begun.ended("late", 5, is_done=False)
    assert (stopped.applied, stopped.start(VirtualClock().now())) == (9, 5)


@pytest.mark.parametrize("dies", [False, True])
def test_what_a_stalled_one_brought_back_is_deleted_again(dies: bool) -> None:
    """It read that nothing is there, and writes after the document was made and deleted by others. If it dies then,
    the first run after its time makes it good."""
    start, brought_back = lived([save(1)]), 0
    for number in range(1, WRITES_MAX):
        bench = start.fork()

        def later(bench: SpaceBench = bench) -> None:
            bench.materialize()
            delete(bench.session(maintenance="events").model("Account"))
            bench.materialize()

        store = Apart(bench, number, later)
        if dies:
            store.crash_at_write(number, "after")
        try:
            bench.materialize(store)
        except SimulatedCrash:
            brought_back += bench.store.get(KEY) is not None
        if not store.has_met:
            break
        if dies:
            bench.clock.advance(RUN_MAX.total_seconds() + 1)
            bench.materialize()
        assert bench.store.get(KEY) is None
        check(bench, [save(1), delete])
    assert brought_back == dies


@pytest.mark.parametrize("limit", ["BATCH", "OPERATIONS_MAX"])
def test_a_run_without_time_stops_and_the_next_goes_on(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, limit, 1)
    bench = lived(LIVES["a second life"])
    for upto in range(1, 5):
        report = Materializer(bench.workspace()).run(MAIN, partial(next, iter([1.0, 0.0]), 0.0))
        assert (report.upto, report.is_done) == (upto, upto == 4)
        assert bench.applied().applied == upto
    check(bench, LIVES["a second life"])


def test_a_run_that_fails_leaves_its_work_to_the_next_at_once() -> None:
    bench = lived(LIVES["changes"])

    def fail() -> None:
        raise Unavailable("not now")

    with pytest.raises(Unavailable, match="not now"):
        bench.materialize(Apart(bench, 2, fail))  # the first write says that the run begins
    assert [run.stopped for run in bench.applied().runs.values()] == [True]
    bench.materialize()
    assert bench.applied().runs == {}
    check(bench, LIVES["changes"])


def test_a_copy_of_another_document_is_of_no_commit() -> None:
    """Metadata travels with copies: the copy has the newest commit of its source."""
    bench = lived([save(1)], applied=1)
    accounts = bench.session(maintenance="events").model("Account")
    for number in range(5):
        accounts.save({"id": "b", "balance": number}) if number == 0 else accounts.patch("b", {"balance": number})
    bench.materialize()
    source = must(bench.store.get("bank/accounts/b/data.json"))
    bench.store.put(KEY, b'{"balance": 4}', metadata=dict(source.metadata))
    save(2)(bench.session(maintenance="events").model("Account"))
    bench.materialize()
    assert must(bench.stored("Account", "a"))["balance"] == 2


def test_a_document_of_another_log_is_overwritten() -> None:
    bench = lived([save(1)], applied=1)
    found = must(bench.store.get(KEY))
    bench.store.put(KEY, found.body, metadata={**found.metadata, "worm-commit-seq": "900"})
    with bench.session(maintenance="events").transaction() as tx:
        tx.save("Account", {"id": "a", "balance": 2})
    bench.materialize()
    assert must(bench.stored("Account", "a"))["balance"] == 2


@pytest.mark.parametrize("body", [b"", b"{}", b'{"version": 2}', b'{"version": 1, "applied": 1, "revision": 1}'])
def test_a_damaged_cursor_costs_work_and_nothing_else(body: bytes) -> None:
    bench = lived(LIVES["two lives"])
    bench.materialize()
    bench.store.put(DbKeys(MAIN).documents, body)
    bench.materialize()
    check(bench, LIVES["two lives"])


def test_databases_that_are_no_spaces_of_models_are_left_alone() -> None:
    bench = lived([save(1)])
    materializer = Materializer(bench.workspace())
    for db_id in ("main", "space-other", "space-"):
        assert materializer.run(db_id, lambda: math.inf).commits == 0
    assert bench.store.get(KEY) is None


@cache
def _busy() -> SpaceBench:
    """Three accounts and transfers, through many commits."""
    bench = SpaceBench()
    db = bench.session(maintenance="events")
    for number in range(12):
        with db.transaction(actor=f"actor{number}") as tx:
            for one in ("a", "b", "c"):
                if number % 5 == 4 and one == "b":
                    tx.delete("Account", one)
                else:
                    tx.save("Account", {"id": one, "balance": number, "email": f"{one}{number // 3}@x"})
            tx.save("Transfer", {"id": f"t{number}", "amount": number})
        bench.clock.advance(1)
    return bench


@pytest.mark.parametrize("seed", range(6))
def test_deliveries_in_any_order_and_number_with_faults(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A delivery only says where to look. Runs die at any write, some lose answers, and all of it is done again."""
    monkeypatch.setattr(following, "BATCH", 3)
    bench = _busy().fork()
    chance = Apart(bench).ids.rng
    chance.seed(seed)
    for _ in range(12):
        faulty = FaultyStore(
            bench.store,
            seed=chance.getrandbits(32),
            rates={Fault.LOST_RESPONSE: 0.05, Fault.UNAVAILABLE: 0.05},
            clock=bench.clock,
            ids=bench.ids,
        )
        faulty.crash_at_write(chance.randrange(1, 30), WHEN[chance.randrange(2)])
        try:
            bench.materialize(faulty)
        except (SimulatedCrash, Unavailable):
            continue
    bench.repair()
    bench.assert_clean()
    for one in ("a", "c"):
        assert [entry[1:] for entry in bench.history("Account", one)] == [(f"actor{n}", n + 1) for n in range(12)]
    assert [entry[::2] for entry in bench.history("Account", "b")][4] == ("delete", 5)
    assert len(bench.history("Account", "b")) == 12


def test_capture_between_runs_records_each_commit_once() -> None:
    bench = _busy().fork()
    for number in range(4):
        faulty = FaultyStore(bench.store, clock=bench.clock, ids=bench.ids)
        faulty.crash_at_write(5 + 7 * number, "after")
        try:
            bench.materialize(faulty)
        except SimulatedCrash:
            bench.capture()
    check_all = partial(bench.history, "Account")
    bench.repair()
    bench.assert_clean()
    assert [entry[2] for entry in check_all("a")] == list(range(1, 13))
