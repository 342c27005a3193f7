"""All that the workers do, on a store that records it in the name of their functions: uploads, deletes, commits,
crashes and lost answers, and what comes of them when time passes."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import cache

import pytest

from tests.harness import DataPath, created, schema_of
from tests.sdk.bank_room import SpaceBench
from tests.sdk.sessions import must
from tests.template.recorder import Recorder
from tests.workers.pages_room import DAY, Room
from worm.collections.layout import SCHEMA_KEY
from worm.collections.oplog_archives import Archiver
from worm.dev.iam import Call
from worm.formats import load_schema
from worm.pages.branches import Branches
from worm.pages.compact import Compactor as PageCompactor
from worm.store.base import PUT_ID
from worm.store.faulty_store import Fault, FaultyStore, SimulatedCrash
from worm.upkeep.purge import Purge
from worm.upkeep.sweep import Sweep
from worm.upkeep.workers.batch import Message
from worm.upkeep.workers.capture import Capture
from worm.upkeep.workers.tables import Fold

BODY = "bank/accounts/{}/data.json"
LARGE = b"x" * 2000
TABLE: dict[str, object] = {
    "softDelete": True,
    "manifest": {"enabled": True, "partitionThreshold": 2, "maxPartitions": 2},
    "indexes": {"byStatus": {"field": "status"}, "byName": {"field": "name", "unique": True}},
    "lake": {"every": "1s"},
}
COLLECTION = schema_of(storage=None, **TABLE)


class CollectionLife(DataPath):
    """Documents that any client writes and removes, in a table of many files with a unique index."""

    def __init__(self, storage: Mapping[str, object], *, oplog: bool = True, **others: object) -> None:
        snapshots = {"enabled": oplog, "every": 2, "maxCount": 1}
        super().__init__(schema_of(storage=storage, **{**TABLE, "oplog": oplog, "snapshots": snapshots, **others}))

    def __post_init__(self) -> None:
        super().__post_init__()
        self.recorder = Recorder(versioned=True, clock=self.clock, ids=self.ids)
        self.store = self.recorder
        self.store.put(SCHEMA_KEY, load_schema(dict(self.schema)).to_json())
        self.table.complete()

    def work(self, *, is_unclear: bool = False, loses: bool = False) -> None:
        """The events of what happened reach capture (unless it `loses` them), and its change sets tables."""
        store = FaultyStore(self.recorder, clock=self.clock, ids=self.ids)
        if is_unclear:
            store.fail_next("attempt_put", Fault.LOST_RESPONSE, times=4)
        self.new_workers(store)
        if loses:
            self.events.clear()
        with self.recorder.acting("capture"):
            captured = self.run_capture(deliveries=2)
        sets = self.change_sets()
        with self.recorder.acting("tables"):
            folded = self.run_fold(sets)
        assert [captured.failed, captured.rejected, folded.failed, folded.rejected] == [{}, {}, {}, {}]

    def sweep_on(self, *seconds: float) -> None:
        """A sweep that finds so much time left, again and again; the last figure stays."""
        left = iter(seconds)
        self.new_workers(self.recorder)
        with self.recorder.acting("sweep"):
            for report in self.sweeper.run(lambda: next(left, seconds[-1])):
                assert report.error is None

    def purge(self) -> None:
        self.new_workers(self.recorder)
        with self.recorder.acting("purge"):
            for report in Purge(self.workspace).run(lambda: 100.0):
                assert report.problems == {}

    def lose_table(self) -> None:
        """Its root is gone, and a document has changed that capture has not heard of."""
        self.store.delete(self.table.manifest.key)
        self.put("d", {"name": "d", "status": "unheard"})
        self.events.clear()
        self.put("c", {"name": "c", "status": "found"})
        self.work()

    def live(self) -> None:
        for turn in range(6):
            for one in "abcd":
                self.put(one, {"name": one, "status": f"s{turn % 3}", "score": turn})
            self.work(is_unclear=turn % 2 == 1)
        self.put("e", {"name": "a"})  # a value that another document has
        self.remove("b")
        self.work()
        self.remove("a")
        self.work(is_unclear=True)
        self.forget("e", self.put("e", {"name": "not for long"}))
        self.put("a", {"name": "again"})
        self.work()
        self.lose_table()
        for turn in range(6):
            for one in "cdfg":
                self.put(one, {"name": one, "status": f"t{turn}"})
            self.remove("g")
            self.work(loses=True)
            self.sweep_on(*((1.0, 0.0) if turn % 2 else (1.0,)))
        self.sweep_on(1.0)
        self.clock.advance(100 * DAY)
        self.purge()
        self.clock.advance(8 * DAY)  # replaced files of heads stay for a week
        self.purge()
        self.assert_true()


@cache
def collections(layout: str, snapshots: str, trash: str) -> frozenset[Call]:
    """Documents, their history (or none) and their tables, with each directory in its place."""
    lives = [
        CollectionLife({"layout": layout, "snapshots": snapshots, "trash": trash}, oplog=one) for one in (True, False)
    ]
    with pytest.MonkeyPatch.context() as patch:  # a few documents stand for many
        patch.setattr("worm.tables.layout.INLINE_PARTITIONS", 1)
        patch.setattr("worm.tables.layout.HEADS_PER_PART", 3)
        patch.setattr("worm.upkeep.sweep_pass.CHUNK", 2)
        for life in lives:
            life.live()
    return frozenset(call for life in lives for call in life.recorder.calls)


@cache
def archives(layout: str) -> frozenset[Call]:
    """The job compact_oplog on histories that have not grown for long; each task of it does what is done here."""
    life = CollectionLife({"layout": layout}, archiveAfter="7d")
    for turn in range(20):
        for one in "ab":
            life.put(one, {"name": one, "score": turn})
        life.work()
    life.clock.advance(100 * DAY)
    with life.recorder.acting("SparkCompactRole"):
        report = Archiver(life.collection, now=life.clock.now(), older_than=None, dry_run=False).run()
    assert (report.compacted, report.problems) == (2, {})
    life.assert_true()
    return frozenset(life.recorder.calls)


class SpaceLife:
    """Commits that create, change and delete, and the workers after each of them."""

    def __init__(self, storage: Mapping[str, object]) -> None:
        self.bench = SpaceBench(memory=Recorder, storage=storage, snapshots={"every": 2})
        self._events = 0

    @property
    def store(self) -> Recorder:
        store = self.bench.store
        assert isinstance(store, Recorder)
        return store

    def commit(self, *changes: tuple[str, dict[str, object] | None]) -> None:
        self.bench.clock.advance(2)
        with self.bench.session(maintenance="events").transaction() as tx:
            for one, document in changes:
                if document is None:
                    tx.delete("Account", one)
                else:
                    tx.save("Account", {"id": one, **document})

    def apply(self, number: int | None = None) -> None:
        """As it is, with unclear answers, and dying at write `number`."""
        store = FaultyStore(self.store, clock=self.bench.clock, ids=self.bench.ids)
        store.fail_next("attempt_put", Fault.LOST_RESPONSE, times=3)
        if number is not None:
            store.crash_at_write(number, "after")
        with self.store.acting("apply"), suppress(SimulatedCrash):
            self.bench.apply(store=store)

    def record(self) -> None:
        """Capture what is there, and fold what it hands on."""
        bench, ids = self.bench, ("a", "b", "c")
        with self.store.acting("capture"):
            outcome = Capture(bench.workspace()).run([Message(one, created(BODY.format(one)), 2) for one in ids])
        assert (outcome.failed, outcome.rejected) == ({}, {})
        sets = [one.key for one in bench.store.list(".worm.changes/")]
        with self.store.acting("tables"):
            folded = Fold(bench.workspace()).run([Message(key, created(key)) for key in sets[self._events :]])
        assert (folded.failed, folded.rejected) == ({}, {})
        self._events = len(sets)

    def sweep(self) -> None:
        with self.store.acting("sweep"):
            reports = Sweep(self.bench.workspace()).run(lambda: 100.0)
        assert [report.error for report in reports] == [None] * len(reports)

    def late(self) -> None:
        """Another attempt of a create, which lands after the document was deleted, and has been recorded as such."""
        store, key = self.store, BODY.format("c")
        self.commit(("c", {"balance": 1}))
        self.bench.apply()
        made = must(store.get(key))
        self.commit(("c", None))
        self.bench.apply()
        self.record()
        store.put(key, made.body, metadata={**made.metadata, PUT_ID: self.bench.ids.ulid()})

    def live(self) -> None:
        self.commit(("a", {"email": "a@x", "balance": 1}), ("b", {"email": "b@x"}))
        for number in (3, 4, None):
            self.apply(number)
        self.record()
        for balance in range(4):
            self.commit(("a", {"email": f"{balance}@x", "balance": balance}), ("b", {"email": f"b{balance}@x"}))
            self.apply(4 if balance == 1 else None)
            self.apply()
            self.record()
        self.commit(("a", None), ("b", {"email": "0@x"}))
        for number in (*range(4, 14), None):
            self.apply(number)
        self.record()
        self.commit(("a", {"email": "again@x"}))
        self.sweep()
        self.commit(("a", None))
        self.apply()
        self.late()
        self.sweep()
        assert self.bench.stored("Account", "c") is None
        self.commit(("b", None))
        self.sweep()
        self.bench.clock.advance(100 * DAY)
        with self.store.acting("purge"):
            Purge(self.bench.workspace()).run(lambda: 100.0)
        self.bench.repair()
        self.bench.assert_clean()


@cache
def spaces(layout: str, snapshots: str, trash: str) -> frozenset[Call]:
    """A model in a space from the commit to the table, and on to the trash and out of it."""
    life = SpaceLife({"layout": layout, "snapshots": snapshots, "trash": trash})
    life.live()
    return frozenset(life.store.calls)


class PagesLife(Room):
    """Two databases with branches, one of which is deleted, and a log without pages."""

    def __init__(self) -> None:
        super().__init__(kind=Recorder)
        small = {"compaction_cadence_layers": 1, "delta_layer_target_bytes": 1024}
        self.create("shop", "cars", pitr_window_seconds=10, gc_min_age_seconds=10, **small)
        for name in ("trial", "gone"):
            self.branches.create(name)
        for number in range(3):
            for branch in ("main", "trial", "gone"):
                self.write("shop", {f"p{number}": LARGE, "same": b"%d" % number}, branch)
            self.write("cars", {f"p{number}": LARGE})

    @property
    def recorder(self) -> Recorder:
        assert isinstance(self.store, Recorder)
        return self.store

    @property
    def branches(self) -> Branches:
        return Branches(self.store, "shop", clock=self.clock, ids=self.ids)

    def unclear(self) -> FaultyStore:
        """Answers to writes get lost: the worker has to look what became of them."""
        store = FaultyStore(self.store, clock=self.clock)
        store.fail_next("attempt_put", Fault.LOST_RESPONSE, times=8)
        return store

    def live(self) -> None:
        keys = [*self.log("shop"), *self.log("shop", "trial"), *self.log("cars")]
        with self.recorder.acting("apply"):
            assert self.apply(self.events(*keys), store=self.unclear()).failed == {}
            assert self.apply(self.events(*keys, "db/plain/log/00000000000000000001")).failed == {}
        for round_number in range(5):
            for branch in ("main", "trial"):
                self.write("shop", {"p0": bytes(2000), "p1": self.ids.rng.randbytes(2000)}, branch)
            self.write("cars", {"p0": bytes(2000), "p1": self.ids.rng.randbytes(2000)})
            self.apply(self.events(*self.log("cars")))
            if round_number == 2:
                self.branches.delete("gone")
            self.clock.advance(DAY)
            with self.recorder.acting("SparkPagesRole"):
                PageCompactor(self.unclear(), "cars", clock=self.clock, ids=self.ids).run("main", force=True)
            with self.recorder.acting("compact"):
                reports = self.compactor(self.unclear()).run(lambda: 500.0)
            assert [report.error for report in reports] == [None, None]


@cache
def pages() -> frozenset[Call]:
    """Page stores: segments become layers, layers become few (also by the job compact_pages), garbage goes."""
    life = PagesLife()
    life.live()
    return frozenset(life.recorder.calls)
