"""Models in a space on the workers' path: segments become documents, documents history and tables, whatever becomes of
events and workers."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress

import pytest

from tests.examples import crash_points, examples, some
from tests.harness import created
from tests.sdk.bank_room import MAIN, Apart, SpaceBench
from tests.sdk.sessions import must
from worm.clock import Deadline
from worm.collections.layout import SCHEMA_KEY
from worm.errors import Corrupt, Unavailable
from worm.pages.apply import Applier
from worm.pages.branches import Branches
from worm.pages.db import PageDb, create_database
from worm.pages.manifest import PageConfig
from worm.pages.root import PagesRoot
from worm.spaces.bridge.following import Materialized
from worm.spaces.operations import set_document
from worm.store.faulty_store import Fault, FaultyStore, SimulatedCrash
from worm.upkeep.materialize import Materializer
from worm.upkeep.sweep import Sweep
from worm.upkeep.workers.apply import FLUSH_SECONDS, Apply
from worm.upkeep.workers.batch import BatchOutcome, Message
from worm.upkeep.workers.capture import Capture
from worm.upkeep.workers.tables import Fold

WRITES_MAX = 80
HISTORY = {
    "a": [("create", "ann", 1), ("update", "ann", 2), ("delete", "ann", 3)],
    "b": [("create", "ann", 1), ("update", "ann", 2), ("update", "ann", 3)],
}


def committed(bench: SpaceBench | None = None) -> SpaceBench:
    """Three commits over two accounts and a transfer; nothing of it is in documents."""
    bench = bench or SpaceBench()
    db = bench.session(maintenance="events")
    with db.transaction() as tx:
        tx.save("Account", {"id": "a", "email": "a@x", "balance": 10})
        tx.save("Account", {"id": "b", "email": "b@x", "balance": 10})
    with db.transaction() as tx:
        tx.save("Account", {"id": "a", "balance": 0})
        tx.save("Account", {"id": "b", "email": "b@x", "balance": 20})
        tx.save("Transfer", {"id": "t", "amount": 10})
    with db.transaction() as tx:
        tx.delete("Account", "a")
        tx.save("Account", {"id": "b", "email": "a@x", "balance": 20})
    bench.clock.advance(1)
    return bench


def check(bench: SpaceBench) -> None:
    """The documents are what the log says, and each commit is recorded once."""
    bench.repair()
    bench.assert_clean()
    assert bench.emails() == ["a@x"]
    assert {one: bench.history("Account", one) for one in HISTORY} == HISTORY
    assert bench.history("Transfer", "t") == [("create", "ann", 2)]


class Path:
    """The three workers of one bench, by the events of what is in its store."""

    def __init__(self, bench: SpaceBench) -> None:
        self.bench = bench
        workspace = bench.workspace()
        self.apply, self.capture, self.fold = Apply(workspace), Capture(workspace), Fold(workspace)
        self.sweep = Sweep(workspace)

    def documents(self) -> list[str]:
        """An event for each version of a document, as far as they have one."""
        bench = self.bench
        collections = (bench.model(name).table.collection for name in ("Account", "Transfer"))
        versions = [one for each in collections for found in each.all_versions().values() for one in reversed(found)]
        kinds = ("Object Created", "Object Deleted")
        return [created(one.key, one.version_id).replace(kinds[0], kinds[one.is_delete_marker]) for one in versions]

    def change_sets(self) -> list[str]:
        return [created(one.key) for one in self.bench.store.list(".worm.changes/")]

    def run(self, worker: Capture | Fold, bodies: list[str]) -> BatchOutcome:
        return worker.run([Message(f"m{number}", body) for number, body in enumerate(bodies)])


def test_a_commit_becomes_documents_history_and_rows_by_events() -> None:
    bench = committed()
    path = Path(bench)
    outcome = bench.apply(worker=path.apply)
    assert (outcome.failed, outcome.rejected) == ({}, {})
    assert (bench.stored("Account", "a"), must(bench.stored("Account", "b"))["balance"]) == (None, 20)
    assert path.run(path.capture, path.documents()).failed == {}
    assert path.run(path.fold, path.change_sets()).failed == {}
    assert {one: bench.history("Account", one) for one in HISTORY} == HISTORY
    bench.assert_clean()
    check(bench)


def test_a_message_is_done_only_when_pages_and_documents_are() -> None:
    """Whoever applied the segments to pages may have died before the documents, or have no business with them."""
    bench = committed()
    Applier(bench.store, MAIN, clock=bench.clock, ids=bench.ids).run("main", left=lambda: 100.0)
    assert bench.apply(bench.segments()[:1]).failed == {}
    check(bench)


@pytest.mark.slow
def test_after_a_crash_at_any_write_of_the_worker_the_next_delivery_goes_on() -> None:
    start, died = committed(), 0
    for number, when in crash_points(WRITES_MAX):
        bench, is_dead = start.fork(), False
        faulty = FaultyStore(bench.store, clock=bench.clock, ids=bench.ids)
        faulty.crash_at_write(number, when)
        try:
            bench.apply(store=faulty)
        except SimulatedCrash:
            is_dead = True
        died += is_dead
        path = Path(bench)
        path.run(path.capture, path.documents())
        assert bench.apply(worker=path.apply).failed == {}
        assert bench.stored("Account", "a") is None
        path.run(path.capture, path.documents())
        check(bench)
        if not is_dead:
            break
    assert died > examples(10)


@pytest.mark.slow
def test_after_a_crash_of_capture_anywhere_each_commit_is_recorded_once() -> None:
    start, died = committed(), 0
    start.apply()
    for number in some(range(1, WRITES_MAX)):
        bench, is_dead = start.fork(), False
        faulty = FaultyStore(bench.store, clock=bench.clock, ids=bench.ids)
        faulty.crash_at_write(number, "after")
        path = Path(bench)
        bodies = path.documents()
        messages = [Message(f"m{one}", body) for one, body in enumerate(bodies)]
        try:
            Capture(bench.workspace(faulty)).run(messages)
        except SimulatedCrash:
            is_dead = True
        died += is_dead
        assert path.run(path.capture, bodies[::-1]).failed == {}
        check(bench)
        if not is_dead:
            break
    assert died > examples(5)


@pytest.mark.slow
def test_two_workers_that_meet_at_any_write() -> None:
    start, met = committed(), 0
    for number in some(range(1, WRITES_MAX)):
        bench = start.fork()
        store = Apart(bench, number, bench.apply)
        assert bench.apply(store=store).failed == {}
        if not store.has_met:
            break
        met += 1
        check(bench)
    assert met > examples(10)


@pytest.mark.parametrize("seed", range(8))
def test_events_that_are_lost_doubled_and_shuffled_and_unclear_answers(seed: int) -> None:
    chance, bench = random.Random(seed), committed()
    faulty = FaultyStore(
        bench.store, seed=seed, rates={Fault.LOST_RESPONSE: 0.1, Fault.UNAVAILABLE: 0.05}, clock=bench.clock
    )
    path = Path(bench)

    def delivered(bodies: list[str]) -> Iterator[list[str]]:
        """Some twice, some never, in any order, in batches."""
        some = [body for body in bodies * 2 if chance.random() < 0.6]
        chance.shuffle(some)
        while some:
            size = chance.randint(1, 4)
            yield some[:size]
            some = some[size:]

    for batch in delivered(bench.segments()):
        with suppress(Unavailable):
            bench.apply(batch, store=faulty)
        for bodies in delivered(path.documents()):
            path.run(path.capture, bodies)
        for bodies in delivered(path.change_sets()):
            path.run(path.fold, bodies)
    swept = path.sweep.run(lambda: 100.0, resume=False)
    assert [report.error for report in swept] == [None] * 3
    assert bench.applied().start(bench.clock.now()) == 3
    check(bench)


def test_without_time_all_messages_of_the_log_come_again() -> None:
    bench = committed()
    outcome = bench.apply(left=_times(100.0, 100.0, *[FLUSH_SECONDS] * 20))
    assert sorted(outcome.failed) == [f"m{number}" for number in range(len(bench.segments()))]
    assert all("time ran out" in str(error) for error in outcome.failed.values())
    assert bench.stored("Account", "b") is None
    assert bench.apply().failed == {}
    check(bench)


def test_without_time_for_pages_messages_that_are_in_pages_come_again_too() -> None:
    """Their documents are not written."""
    bench = committed()
    keys = bench.segments()
    Applier(bench.store, MAIN, clock=bench.clock, ids=bench.ids).run("main", left=lambda: 100.0)
    bench.session(maintenance="events").model("Account").save({"id": "c"})
    outcome = bench.apply(left=_times(100.0))
    assert sorted(outcome.failed) == [f"m{number}" for number in range(len(bench.segments()))]
    assert len(keys) < len(bench.segments())


def _times(*seconds: float) -> Deadline:
    told = iter(seconds)
    return lambda: next(told, FLUSH_SECONDS)


def test_a_space_that_fails_fails_its_own_messages_only(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = committed()
    create_database(bench.store, "shop", PageConfig(flush_interval_seconds=80_000), clock=bench.clock, ids=bench.ids)
    with PageDb.open(bench.store, "shop", clock=bench.clock, ids=bench.ids) as shop:
        shop.write({"p": b"1"})
    others = [one.key for one in bench.store.list("db/shop/log/")]

    def fail(self: Materializer, db_id: str, left: Deadline) -> Materialized:
        assert db_id in (MAIN, "shop")
        if db_id == MAIN:
            raise Corrupt("damaged")
        return Materialized()

    with monkeypatch.context() as patched:
        patched.setattr(Materializer, "run", fail)
        outcome = bench.apply([*others, *bench.segments()])
    assert sorted(outcome.failed) == sorted(f"m{number + len(others)}" for number in range(len(bench.segments())))
    assert bench.apply([*others, *bench.segments()]).failed == {}
    check(bench)


def test_a_branch_of_the_log_has_no_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    """The branches of a space are entries of its main log; a branch of its page store is somebody's own."""
    bench = committed()
    worker = Apply(bench.workspace())
    ran: list[str] = []

    def count(self: Materializer, db_id: str, left: Deadline) -> Materialized:
        ran.append(db_id)
        return Materialized()

    monkeypatch.setattr(Materializer, "run", count)
    Branches(bench.store, MAIN, clock=bench.clock, ids=bench.ids).create("trial")
    branch = PagesRoot(bench.store, MAIN, clock=bench.clock, ids=bench.ids).read().branch("trial").id
    bench.apply([f"db/{MAIN}/branches/{branch}/log/{1:020d}"], worker=worker)
    assert ran == []
    bench.apply(worker=worker)
    assert ran == [MAIN]


# What it costs


def test_a_space_without_models_costs_the_schema_and_a_bucket_without_schema_is_no_error() -> None:
    bench = SpaceBench()
    bench.session().space("free").transact([set_document("x", {})])
    keys = [one.key for one in bench.store.list("db/space-free/log/")]
    worker = Apply(bench.workspace())
    bench.apply(keys, worker=worker)
    with bench.store.requests.measure() as spent:
        outcome = bench.apply(keys, worker=worker)
    assert (outcome.failed, dict(spent)) == ({}, {"GET": 2, "total": 2}), "the root and the schema, both conditional"
    bench.store.delete(SCHEMA_KEY)
    assert bench.apply(keys).failed == {}


def look(bench: SpaceBench) -> int:
    """What one look at the end of the log costs."""
    space = must(bench.workspace().spaces.get("main"))
    assert space.seq == 3
    with bench.store.requests.measure() as spent:
        assert space.seq == 3
    return spent["total"]


def test_a_message_whose_documents_are_written_costs_a_look_at_the_log_and_three_requests() -> None:
    bench = committed()
    keys, worker = bench.segments(), Apply(bench.workspace())
    bench.apply(keys, worker=worker)
    with bench.store.requests.measure() as spent:
        assert bench.apply(keys, worker=worker).failed == {}
    assert spent["total"] == look(bench) + 3, "the root, the schema, and how far the documents are"


def test_capture_of_a_change_by_a_commit_costs_what_any_save_does() -> None:
    bench = SpaceBench(indexes={})
    for balance in range(2):
        with bench.session(maintenance="events").transaction() as tx:
            for number in range(20):
                tx.save("Account", {"id": f"c{number}", "balance": balance})
        bench.clock.advance(1)
    path = Path(bench)
    bench.apply(worker=path.apply)
    assert path.run(path.capture, path.documents()).recorded == 40
    path.run(path.fold, path.change_sets())
    with bench.session(maintenance="events").transaction() as tx:
        for number in range(20):
            tx.save("Account", {"id": f"c{number}", "balance": 9})
    bench.apply(worker=path.apply)
    newest = path.documents()[2::3]
    with bench.store.requests.measure() as counted:
        outcome = path.run(path.capture, newest)
    assert (outcome.failed, outcome.recorded) == ({}, 20)
    assert counted["total"] <= 20 * 3 + 5, dict(counted)


# The sweep


def test_the_sweep_brings_what_no_event_reported() -> None:
    bench = committed()
    reports = {one.model: one for one in Sweep(bench.workspace()).run(lambda: 100.0)}
    assert bench.applied().applied == 3
    assert (reports["Account"].materialized, reports["Account"].recorded) == (7, 6)
    assert {one: bench.history("Account", one) for one in HISTORY} == HISTORY
    bench.assert_clean()
    check(bench)


def test_a_space_with_nothing_behind_costs_the_sweep_a_look_at_the_log_and_two_requests() -> None:
    bench = committed()
    Sweep(bench.workspace()).run(lambda: 100.0)
    sweeper = Sweep(bench.workspace())
    sweeper.run(lambda: 100.0)
    with bench.store.requests.measure() as spent:
        sweeper.run(lambda: 100.0)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Materializer, "run", lambda self, db_id, left: Materialized())
        with bench.store.requests.measure() as without:
            sweeper.run(lambda: 100.0)
    assert spent["total"] - without["total"] == look(bench) + 2, "the schema, and how far the documents are"


def test_the_sweep_of_documents_goes_on_where_a_space_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = committed()
    bench.store.put("bank/accounts/raw/data.json", b'{"balance": 1}')

    def fail(self: Materializer, db_id: str, left: Deadline) -> Materialized:
        raise Unavailable("not now")

    monkeypatch.setattr(Materializer, "run", fail)
    reports = {one.model: one for one in Sweep(bench.workspace()).run(lambda: 100.0)}
    assert (str(reports["Account"].error), reports["Account"].finished) == ("not now", False)
    assert (reports["Transfer"].error, reports["Account"].recorded) == (None, 1)


def test_a_sweep_without_time_says_that_it_has_not_finished() -> None:
    bench = committed()
    reports = {one.model: one for one in Sweep(bench.workspace()).run(lambda: 0.0)}
    assert (reports["Account"].finished, bench.applied().applied) == (False, 0)
