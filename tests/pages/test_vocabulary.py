"""What logs, page stores and spaces have in common: opening, positions, retries, branches, upkeep, deleting."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import worm
from tests.pages.page_room import DB, MIN_AGE, Room, config
from worm.clock import Ids, VirtualClock
from worm.errors import Conflict, Corrupt, Expired, Fenced, Invalid, NotFound, UnsafeStore, WormError
from worm.forks import in_child
from worm.log import opening as log_opening
from worm.log.collect import LogCollector
from worm.log.reader import LogReader
from worm.log.writer import LogWriter
from worm.pages import opening as pages_opening
from worm.pages.branches import Branches
from worm.pages.db import PageDb, create_database
from worm.pages.deleting import delete_database, purge_database, undelete_database
from worm.pages.manifest import MAIN, PageConfig
from worm.pages.reader import PageReader
from worm.pages.upkeep import Background, maintain
from worm.spaces import opening as space_opening
from worm.spaces.operations import set_document
from worm.store.base import Attempt, Condition, IfAbsent, Store
from worm.store.memory import MemoryStore
from worm.store.open import open_store


class Remote(MemoryStore):
    """Looks like a bucket, so that it is probed."""

    @property
    def url(self) -> str:
        return "s3://remote"


class Careless(Remote):
    """Ignores every condition."""

    def attempt_put(self, key: str, body: bytes, condition: Condition, metadata: Mapping[str, str]) -> Attempt:
        if not isinstance(condition, IfAbsent):
            self.put(key, body)
        else:
            super().delete(key)
        return (
            super().attempt_put(key, body, IfAbsent(), metadata)
            if isinstance(condition, IfAbsent)
            else Attempt(super().attempt_put(key + "!", body, IfAbsent(), metadata).outcome, '"x"')
        )


def use(monkeypatch: pytest.MonkeyPatch, store: Store) -> None:
    for room in (log_opening, pages_opening, space_opening):
        monkeypatch.setattr(room, "open_store", lambda *_, **__: store)


def write_log() -> None:
    with worm.open_log("s3://b", "a") as log:
        log.append([{"op": "put"}])


def write_pages() -> None:
    with worm.open_pages("s3://b", "b") as db:
        db.write({"a": b"1"})


def write_space() -> None:
    with worm.open_space("s3://b", "c") as space:
        space.transact([set_document("a", {"v": 1})])


# Opening


@pytest.mark.parametrize("write", [write_log, write_pages, write_space])
def test_a_store_without_conditions_is_refused_before_anything_is_acknowledged(
    monkeypatch: pytest.MonkeyPatch, write: Callable[[], None]
) -> None:
    """Two writers on such a store both acknowledge, and the log is damaged for ever."""
    store = Careless()
    use(monkeypatch, store)
    with pytest.raises(UnsafeStore):
        write()
    assert not [one.key for one in store.list("db/") if "/log/" in one.key]


@pytest.mark.parametrize("write", [write_log, write_pages, write_space])
def test_a_store_is_probed_once(monkeypatch: pytest.MonkeyPatch, write: Callable[[], None]) -> None:
    store = Remote()
    use(monkeypatch, store)
    write()
    asked: list[str] = []
    monkeypatch.setattr("worm.store.probe.ensure_safe", lambda one, **_: asked.append(one.url))
    write()
    assert asked == []


def test_reading_does_not_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Careless()
    use(monkeypatch, store)
    assert list(worm.open_log("s3://b", "a").read()) == []
    assert [one.key for one in store.list("")] == []


def test_a_log_is_opened_by_its_name_and_made_by_its_first_commit() -> None:
    with pytest.raises(NotFound):
        worm.open_log("memory://opened", "a", create=False)
    with worm.open_log("memory://opened", "a") as log:
        assert list(open_store("memory://opened").list("")) == []
        with pytest.raises(Invalid):
            log.append([{"no": "op"}])
        assert list(open_store("memory://opened").list("")) == []
        lsn = log.append([{"op": "put", "n": 1}, {"op": "put", "n": 2}])
        assert (log.head_lsn, log.earliest()) == (lsn, 1)
        assert [(one.lsn, one.record["n"]) for one in log.read()] == [(lsn - 1, 1), (lsn, 2)]
    with pytest.raises(Invalid, match="closed"):
        log.append([{"op": "put"}])
    with pytest.raises(Invalid, match="this is a log"):
        worm.open_pages("memory://opened", "a")


def test_pages_are_opened_by_their_name() -> None:
    with pytest.raises(NotFound):
        worm.open_pages("memory://opened-pages", "a", create=False)
    with worm.open_pages("memory://opened-pages", "a") as db:
        db.write({"x": b"1"})
    with worm.open_pages("memory://opened-pages", "a", branch="") as db:
        assert db.get_page("x") == b"1"
    with pytest.raises(Invalid, match="this is a page store"):
        worm.open_log("memory://opened-pages", "a")


def test_a_log_goes_on_with_a_new_writer_after_another_took_over() -> None:
    with worm.open_log("memory://turns", "a") as one, worm.open_log("memory://turns", "a") as other:
        one.append([{"op": "put", "n": 1}])
        other.append([{"op": "put", "n": 2}])
        with pytest.raises(Fenced):
            one.append([{"op": "put", "n": 3}])
        one.append([{"op": "put", "n": 4}])
        assert [change.record["n"] for change in one.read()] == [1, 2, 4]


# Retries


def retried(room: Room, *, again: bool) -> tuple[PageDb, int]:
    db = room.db()
    first = db.write({"a": b"1", "b": None}, txn="order-7")
    return (room.db() if again else db), first


@pytest.mark.parametrize("again", [True, False])
def test_the_same_name_with_the_same_content_is_the_first_result(again: bool) -> None:
    db, first = retried(Room(), again=again)
    assert db.write({"b": None, "a": b"1"}, txn="order-7") == first
    assert db.submit({"a": b"1", "b": None}, txn="order-7").result() == first
    assert db.head_lsn == first + (1 if again else 0)


@pytest.mark.parametrize("again", [True, False])
def test_the_same_name_with_other_content_is_refused_and_nothing_is_dropped_in_silence(again: bool) -> None:
    db, _ = retried(Room(), again=again)
    for act in (
        lambda: db.write({"a": b"2"}, txn="order-7"),
        lambda: db.submit({"a": b"2"}, txn="order-7"),
        lambda: db.append_wal([{"op": "note"}], txn="order-7"),
    ):
        with pytest.raises(Invalid, match="with different content"):
            act()
    assert db.get_page("a") == b"1"


def test_logs_retry_as_page_stores_do() -> None:
    with worm.open_log("memory://retry", "a") as log:
        first = log.append([{"op": "put", "n": 1}], txn="t")
        assert log.append([{"n": 1, "op": "put"}], txn="t") == first
        with pytest.raises(Invalid, match="with different content"):
            log.append([{"op": "put", "n": 2}], txn="t")
    with worm.open_log("memory://retry", "a") as log:
        assert log.append([{"op": "put", "n": 1}], txn="t") == first
        with pytest.raises(Invalid, match="with different content"):
            log.append([{"op": "put", "n": 2}], txn="t")
        assert len(list(log.read())) == 1


def test_one_name_from_many_threads_is_committed_once() -> None:
    room = Room()
    db = room.db()
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(lambda _: db.write({"a": b"1"}, txn="t"), range(40)))
    assert len(found) == 1
    assert sum(len(segment.entries) for segment in LogReader(room.memory, DB).segments()) == 1


def test_a_name_is_free_again_when_its_commit_failed() -> None:
    db = Room().db()
    with pytest.raises(Invalid):
        db.append_wal([{"op": "note", "lsn": 1}], txn="t")
    assert db.append_wal([{"op": "note"}], txn="t") == db.head_lsn


# Types


@pytest.mark.parametrize(
    "act",
    [
        lambda db: db.get_page(7),
        lambda db: db.get_pages("ab"),
        lambda db: db.get_pages(None),
        lambda db: db.get_page("a", "soon"),
        lambda db: db.get_page("a", -1),
        lambda db: db.get_page("a", True),
        lambda db: db.write("x"),
        lambda db: db.write({"a": "text"}),
        lambda db: db.write({7: b""}),
        lambda db: db.write({"a": b""}, txn=7),
        lambda db: db.append_wal(None),
        lambda db: db.append_wal(["x"]),
        lambda db: db.append_wal([{"op": "note", "at": object()}]),
        lambda db: list(db.scan(at=b"")),
        lambda db: db.lsn_of(1.5),
    ],
)
def test_wrong_types_are_invalid(act: Callable[[Any], object]) -> None:
    db = Room().db()
    with pytest.raises(Invalid):
        act(db)
    assert db.write({"a": b"1"}) == db.head_lsn


@pytest.mark.parametrize(
    "records", [None, "x", {"op": "put"}, [7], [{}], [{"op": 7}], [{"op": "page"}], [{"op": "put", "n": (1,)}], []]
)
def test_a_log_checks_records_before_it_writes_anything(records: Any) -> None:
    url = "memory://checked"
    with worm.open_log(url, "a") as log, pytest.raises(Invalid):
        log.append(records)
    assert list(open_store(url).list("")) == []


# Positions


def test_a_position_is_a_number_a_time_or_a_text() -> None:
    room = Room()
    db = room.db()
    first = db.write({"a": b"1"})
    moment = room.clock.now()
    room.clock.advance(60)
    second = db.write({"a": b"2"})
    for at in (first, str(first), moment, moment.isoformat(), moment + timedelta(seconds=59)):
        assert db.get_page("a", at) == b"1"
        assert [one.data for one in db.scan(at=at)] == [b"1"]
        assert room.past.lsn_at(at) == first
    assert db.get_page("a", room.clock.now()) == b"2"
    assert room.branches.create("then", at=moment.isoformat()).base == first
    assert room.past.state(at=str(second)).lsn == second
    assert room.past.pin(moment, seconds=5)
    assert room.past.restore(db, moment.isoformat()) == 1
    assert db.get_page("a") == b"1"


def test_behind_the_newest_is_not_found_everywhere() -> None:
    room = Room()
    db = room.db()
    db.write({"a": b"1"})
    beyond = db.head_lsn + 1
    for act in (
        lambda: db.get_page("a", beyond),
        lambda: room.past.state(at=beyond),
        lambda: room.past.pin(beyond, seconds=1),
        lambda: room.branches.create("b", at=beyond),
        lambda: list(LogReader(room.memory, DB, **room.time).feed(beyond)),
    ):
        with pytest.raises(NotFound, match=f"LSN {beyond} does not exist yet; the newest is {beyond - 1}"):
            act()


def test_before_what_is_kept_is_expired_everywhere() -> None:
    room = Room(pitr_window_seconds=0)
    db = room.db()
    begin = room.clock.now() - timedelta(days=1)
    room.grow(db, ["a"], 5)
    for _ in range(3):
        room.compact(force=True)
        room.clock.advance(3 * MIN_AGE)
        room.collect()
    for at in (1, "1", begin, begin.isoformat()):
        for act in (
            lambda at=at: room.reader().get_page("a", at),
            lambda at=at: room.past.lsn_at(at),
            lambda at=at: room.branches.create("b", at=at),
            lambda at=at: list(LogReader(room.memory, DB, **room.time).feed(at)),
        ):
            with pytest.raises(Expired, match="older than what is kept"):
                act()


def test_the_feed_of_a_log_begins_at_a_time() -> None:
    clock = VirtualClock()
    ids = Ids.seeded(1, clock)
    store = MemoryStore(clock=clock, ids=ids)
    writer = LogWriter.open(store, "a", clock=clock, ids=ids)
    writer.append_wal([{"op": "put", "n": 1}])
    moment = clock.now()
    clock.advance(5)
    writer.append_wal([{"op": "put", "n": 2}])
    reader = LogReader(store, "a", clock=clock, ids=ids)
    assert [one.record["n"] for one in reader.feed(moment.isoformat())] == [2]
    assert [one.record["n"] for one in reader.feed(datetime(2020, 1, 1, tzinfo=UTC))] == [1, 2]


# Branches


def test_the_trunk_is_main_and_the_empty_name_means_it() -> None:
    room = Room()
    with room.db("") as db:
        assert db.name == MAIN
        db.write({"a": b"1"})
    assert room.reader("").get_page("a") == b"1"
    assert room.branches.create("b", parent="").parent == MAIN
    assert room.apply("").branch == MAIN
    assert room.compact("", force=True).branch == MAIN
    assert room.past.state("").branch == MAIN
    with pytest.raises(Invalid, match="main cannot be deleted"):
        room.branches.delete("")


def test_a_branch_with_children_stays_and_they_are_named() -> None:
    room = Room()
    room.branches.create("b")
    with room.db("b") as db:
        db.write({"a": b"1"})
    room.branches.create("c", parent="b")
    with pytest.raises(Conflict, match="branch 'c'"):
        room.branches.delete("b")
    room.branches.delete("c")
    room.branches.delete("b")
    with pytest.raises(NotFound):
        room.branches.create("d", parent="b")
    with pytest.raises(NotFound, match="does not keep deleted branches"):
        room.branches.undelete("b")
    with pytest.raises(Conflict):
        room.branches.undelete("main")


# Deleting


@pytest.mark.parametrize("branch", [MAIN, "b"])
def test_an_open_writer_of_a_deleted_database_acknowledges_nothing(branch: str) -> None:
    room = Room()
    room.branches.create("b")
    db = room.db(branch)
    db.write({"a": b"1"})
    delete_database(room.memory, DB, **room.time)
    with pytest.raises((Fenced, NotFound)):
        db.write({"a": b"2"})
    for act in (lambda: room.db(branch), lambda: room.reader(branch), lambda: room.apply(branch)):
        with pytest.raises(NotFound, match="was deleted"):
            act()
    with pytest.raises(NotFound):
        create_database(room.memory, DB, **room.time)
    undelete_database(room.memory, DB, **room.time)
    with room.db(branch) as again:
        assert again.get_page("a") == b"1"


def test_an_open_writer_of_a_deleted_branch_acknowledges_nothing() -> None:
    room = Room()
    room.branches.create("b")
    db = room.db("b")
    db.write({"a": b"1"})
    room.branches.delete("b")
    with pytest.raises(Fenced):
        db.write({"a": b"2"})


def test_an_open_log_that_is_deleted_acknowledges_nothing_and_goes_after_a_while() -> None:
    clock = VirtualClock()
    ids = Ids.seeded(1, clock)
    store = MemoryStore(clock=clock, ids=ids)
    writer = LogWriter.open(store, "a", clock=clock, ids=ids)
    writer.append_wal([{"op": "put"}])
    delete_database(store, "a", clock=clock, ids=ids)
    with pytest.raises(Fenced):
        writer.append_wal([{"op": "put"}])
    with pytest.raises(NotFound, match="was deleted"):
        LogWriter.open(store, "a", clock=clock, ids=ids)
    assert purge_database(store, "a", clock=clock, ids=ids) == 0
    clock.advance(4000)
    assert purge_database(store, "a", clock=clock, ids=ids) > 0
    assert list(store.list("")) == []
    LogWriter.open(store, "a", clock=clock, ids=ids)


def test_a_writer_that_slept_until_its_database_was_gone_acknowledges_nothing() -> None:
    clock = VirtualClock()
    ids = Ids.seeded(1, clock)
    store = MemoryStore(clock=clock, ids=ids)
    writer = LogWriter.open(store, "a", clock=clock, ids=ids)
    delete_database(store, "a", clock=clock, ids=ids)
    clock.advance(4000)
    purge_database(store, "a", clock=clock, ids=ids)
    with pytest.raises(WormError):
        writer.append_wal([{"op": "put"}])


def test_upkeep_removes_what_was_deleted_and_there_is_nothing_to_delete_twice() -> None:
    room = Room()
    delete_database(room.memory, DB, **room.time)
    with pytest.raises(NotFound, match="was deleted"):
        maintain(room.memory, DB, **room.time)
    room.clock.advance(3 * MIN_AGE)
    delete_database(room.memory, DB, **room.time)  # the first time counts
    assert maintain(room.memory, DB, **room.time).deleted > 0
    assert room.keys("") == []
    with pytest.raises(NotFound):
        delete_database(room.memory, DB, **room.time)


# Upkeep


def until(met: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not met():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.01)


def test_what_waits_is_flushed_without_a_next_commit() -> None:
    store = MemoryStore()
    create_database(store, "a", PageConfig(flush_interval_seconds=0.2))
    with PageDb.open(store, "a") as db:
        db.write({"a": b"1"})
        until(lambda: db.unflushed == 0)
    assert PageReader.open(store, "a").pages.branch(MAIN).layers


def test_a_lone_process_merges_its_own_layers() -> None:
    """After 41 flushes there were 41 layers, and every read had as many filters to ask."""
    store = MemoryStore()
    create_database(store, "a", config())
    with PageDb.open(store, "a") as db:
        for number in range(41):
            db.write({f"p{number}": b"%d" % number})
            db.flush()
        until(lambda: sum(layer.level == 0 for layer in db.pages.branch(MAIN).layers) < 8)
        assert db.compact_failure is None
        assert db.get_pages([f"p{number}" for number in range(41)]) == {f"p{n}": b"%d" % n for n in range(41)}


def test_nothing_runs_in_the_background_after_close_or_in_a_simulation() -> None:
    store = MemoryStore()
    create_database(store, "a", PageConfig(flush_interval_seconds=0.05))
    db = PageDb.open(store, "a")
    db.write({"a": b"1"})
    db.close()
    before = store.requests.total
    time.sleep(0.2)
    assert store.requests.total == before
    assert Room().db()._background is None


def test_the_thread_ends_when_nothing_waits_and_comes_back() -> None:
    waiting = [0.0]
    done: list[float] = []

    def work() -> None:
        done.append(waiting.pop())

    background = Background(lambda: waiting[0] if waiting else None, work)
    for turn in (1, 2):
        background.wake()
        until(lambda turn=turn: len(done) == turn and background._thread is None)  # type: ignore[misc]  # a loop variable
        waiting.append(0.0)
    in_child(background._begin)
    background.close()
    background.wake()
    assert background._thread is None


def test_one_call_applies_compacts_and_collects() -> None:
    room = Room(pitr_window_seconds=0, compaction_cadence_layers=2)
    with room.db() as db:
        room.grow(db, ["a", "b"], 5)
        room.branches.create("side")
        db.write({"a": b"last"})
        room.clock.advance(3 * MIN_AGE)
        done = db.maintain()
        assert (done.branches, done.merged > 0, done.finished) == (2, True, True)
        room.clock.advance(3 * MIN_AGE)
        again = db.maintain()
        assert again.deleted > 0
        assert (db.get_page("a"), room.branch().lsn) == (b"last", db.head_lsn)


def test_compactions_of_different_branches_do_not_fence_each_other() -> None:
    room = Room()
    with room.db() as db:
        room.grow(db, ["a"], 4)
    room.branches.create("side")
    with room.db("side") as db:
        room.grow(db, ["a"], 4)
    compactor = room.compactor(runner=lambda: room.compact("side", force=True))
    assert compactor.run(force=True).merged == 4
    assert room.reader("side").get_page("a") is not None


def test_a_collector_finds_nothing_of_a_free_name_and_leaves_it_free() -> None:
    store = MemoryStore()
    for act in (
        lambda: maintain(store, "a"),
        lambda: delete_database(store, "a"),
        lambda: LogCollector(store, "a").run(5),
    ):
        try:
            act()
        except NotFound:
            continue
    assert list(store.list("")) == []


def test_a_lost_root_is_told_by_upkeep() -> None:
    room = Room()
    room.db().write({"a": b"1"})
    room.memory.delete(f"db/{DB}/manifest.json")
    with pytest.raises(Corrupt):
        maintain(room.memory, DB, **room.time)
    with pytest.raises(Corrupt):
        Branches(room.memory, DB, **room.time).list()
