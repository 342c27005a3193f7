"""A root that is lost is damage, never an empty database, and is rebuilt from what is there."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.pages.page_room import DB, MIN_AGE, ROOT, PausingStore, Room
from worm.clock import Ids, VirtualClock
from worm.errors import Conflict, Corrupt, Invalid, NotFound, Unavailable
from worm.log.collect import LogCollector
from worm.log.group import GroupCommit
from worm.log.reader import LogReader
from worm.log.writer import LogWriter
from worm.pages.db import PageDb, create_database
from worm.pages.manifest import MAIN, PageConfig
from worm.pages.reader import PageReader
from worm.pages.repair import repair_root
from worm.pages.root import PagesRoot
from worm.spaces.opening import open_space
from worm.spaces.operations import set_document
from worm.store.base import Store
from worm.store.memory import MemoryStore
from worm.store.open import open_store

BACKUP = f"db/{DB}/manifest.backup.json"
States = dict[str, dict[str, bytes | None]]


def states(room: Room) -> States:
    """The newest of every branch."""
    found: States = {}
    for name in room.pages().branches:
        reader = room.reader(name)
        found[name] = {version.page: version.data for version in reader.scan()} | {"": str(reader.head_lsn).encode()}
    return found


def lived(room: Room) -> tuple[States, dict[int, bytes | None]]:
    """Commits, flushes, two branches, one below the other, a compaction, commits that are only in the log."""
    with room.db() as db:
        for number in range(6):
            db.write({f"p{number}": b"%d" % number, "same": b"%d" % number})
            db.flush()
        room.compact(force=True)
        at = db.write({"p1": None, "late": b"L"})
        room.branches.create("trial", at=at)
        db.write({"main-only": b"M"})
    with room.db("trial") as trial:
        trial.write({"p2": b"changed"})
        trial.flush()
        middle = trial.write({"p2": b"again"})
        room.branches.create("deep", parent="trial", at=middle)
        trial.write({"p3": None})
    with room.db("deep") as deep:
        deep.write({"deep": b"D"})
    past = {lsn: room.reader().get_page("same", lsn) for lsn in range(1, room.reader().head_lsn)}
    return states(room), past


def lose(room: Room, *keys: str) -> None:
    """For good: as in a bucket without versions."""
    for key in keys:
        room.memory.delete(key)
    forget_versions(room.memory)


def forget_versions(store: MemoryStore) -> None:
    there = {one.key for one in store.list("")}
    store._history = {key: history[-1:] for key, history in store._history.items() if key in there}


def test_a_name_with_anything_but_a_root_is_never_a_new_database() -> None:
    """A root that somebody deleted was written again, empty, by the next open: every page was gone."""
    room = Room()
    with room.db() as db:
        db.write({"a": b"1"})
    lose(room, ROOT)
    acts: list[Callable[[], object]] = [
        lambda: create_database(room.memory, DB, **room.time),
        lambda: PageDb.open(room.memory, DB, **room.time),
        lambda: PageReader.open(room.memory, DB, **room.time),
        lambda: LogWriter.open(room.memory, DB, **room.time),
        lambda: room.collect(),
        lambda: PagesRoot(room.memory, DB, **room.time).find(),
    ]
    before = room.keys("")
    for act in acts:
        with pytest.raises(Corrupt, match="the root is gone") as refused:
            act()
        assert "worm db repair" in str(refused.value.hint)
    assert room.keys("") == before


@pytest.mark.parametrize("left", ["lease.json", "delta/x", "log/00000000000000000001", "branches/b.json"])
def test_one_object_is_enough_to_know_that_there_was_a_database(left: str) -> None:
    store = MemoryStore()
    store.put(f"db/main/{left}", b"{}")
    with pytest.raises(Corrupt):
        create_database(store, "main")
    with pytest.raises(Corrupt):
        LogWriter.open(store, "main")
    assert [one.key for one in store.list("db/")] == [f"db/main/{left}"]


def test_creating_costs_one_list_and_only_where_there_is_no_root() -> None:
    store = MemoryStore()
    with store.requests.measure() as made:
        create_database(store, "main")
    assert made == {"GET": 2, "LIST": 1, "PUT": 2, "total": 5}
    with store.requests.measure() as there, pytest.raises(Conflict):
        create_database(store, "main")
    assert there == {"GET": 1, "total": 1}


def test_a_space_is_not_made_again_over_a_lost_root() -> None:
    store = open_store("memory://lost-root")
    with open_space("memory://lost-root", "s") as space:
        space.transact([set_document("a", {"v": 1})])
    store.delete("db/space-s/manifest.json")
    with pytest.raises(Corrupt):
        open_space("memory://lost-root", "s")
    assert repair_root(store, "space-s").kind == "space"
    with open_space("memory://lost-root", "s") as space:
        assert space.read("a").value == {"v": 1}


@pytest.mark.parametrize("has_versions", [True, False])
@pytest.mark.parametrize("is_collected", [True, False])
@pytest.mark.parametrize("has_backup", [True, False])
def test_everything_reads_as_before(has_versions: bool, is_collected: bool, has_backup: bool) -> None:
    if is_collected and not has_versions and not has_backup:
        return  # the test below
    room = Room(pitr_window_seconds=0 if is_collected else 1000)
    before, past = lived(room)
    if is_collected:
        room.clock.advance(3 * MIN_AGE)
        room.apply()
        assert room.collect().slots
        room.clock.advance(3 * MIN_AGE)
        room.collect()
        with room.db() as db:
            db.write({"after": b"A"})
            db.flush()
        room.compact(force=True)
        before = states(room)
    room.memory.delete(ROOT)
    if not has_backup:
        room.memory.delete(BACKUP)
    if not has_versions:
        forget_versions(room.memory)
    dry = repair_root(room.memory, DB, dry_run=True, **room.time)
    assert room.memory.get(ROOT) is None
    done = repair_root(room.memory, DB, **room.time)
    assert dry == done
    assert done.source == ("version" if has_versions else "backup" if has_backup else "log")
    assert (done.kind, bool(done.lost)) == ("pages", not has_versions)
    assert states(room) == before
    if not is_collected:
        reader = room.reader()
        assert {lsn: reader.get_page("same", lsn) for lsn in past} == past
    for name in before:
        with room.db(name) as db:
            db.write({"new": b"N"})
            db.flush()
        room.compact(name, force=True)
    room.clock.advance(3 * MIN_AGE)
    room.collect()
    assert {name: pages | {"new": b"N", "": b""} for name, pages in before.items()} == {
        name: pages | {"": b""} for name, pages in states(room).items()
    }
    assert repair_root(room.memory, DB, **room.time).source is None


def test_what_only_lost_layers_had_is_never_made_up() -> None:
    room = Room(pitr_window_seconds=0)
    lived(room)
    for _ in range(2):
        room.clock.advance(3 * MIN_AGE)
        room.apply()
        room.collect()
    lose(room, ROOT, BACKUP)
    with pytest.raises(Corrupt, match="slots 1 to"):
        repair_root(room.memory, DB, **room.time)
    assert room.memory.get(ROOT) is None


def test_layers_that_the_copy_names_are_there_whenever_the_root_is_lost() -> None:
    """The copy is written before anything that an older copy names is deleted."""
    room = Room(pitr_window_seconds=0)
    with room.db() as db:
        for number in range(20):
            db.write({f"p{number % 3}": b"%d" % number})
            db.flush()
            if number % 3 == 0:
                room.compact(force=True)
            room.clock.advance(MIN_AGE)
            room.collect()
            before = states(room)
            stored = room.memory.get(ROOT)
            assert stored is not None
            copy = MemoryStore(clock=room.clock, ids=room.ids)
            for one in room.memory.list("db/"):
                found = room.memory.get(one.key)
                if found is not None and one.key != ROOT:
                    copy.put(one.key, found.body)
            assert repair_root(copy, DB, **room.time).source == "backup"
            reader = PageReader.open(copy, DB, **room.time)
            again = {version.page: version.data for version in reader.scan()} | {"": str(reader.head_lsn).encode()}
            assert again == before[MAIN]


def test_a_deleted_branch_does_not_come_back() -> None:
    room = Room()
    lived(room)
    room.branches.delete("deep")
    lose(room, ROOT)
    assert repair_root(room.memory, DB, **room.time).branches == ("trial",)
    assert set(room.pages().branches) == {MAIN, "trial"}


def test_commits_of_a_branch_that_nothing_names_are_not_swept_up() -> None:
    room = Room()
    lived(room)
    lose(room, ROOT, f"db/{DB}/branches/deep.json")
    with pytest.raises(Corrupt, match="has commits, but nothing says"):
        repair_root(room.memory, DB, **room.time)


def test_a_damaged_root_is_put_aside_and_rebuilt() -> None:
    room = Room()
    before, _ = lived(room)
    forget_versions(room.memory)
    room.spoil(ROOT, lambda body: body[:-20])
    forget_versions(room.memory)
    with pytest.raises(Corrupt):
        room.reader()
    assert repair_root(room.memory, DB, **room.time).source == "backup"
    assert states(room) == before
    assert room.keys("damaged/")


def test_the_root_of_a_branches_log_is_rebuilt() -> None:
    room = Room()
    before, _ = lived(room)
    lose(room, f"db/{DB}/branches/{room.branch('trial').id}/manifest.json")
    with pytest.raises(Corrupt):
        room.reader("trial")
    assert repair_root(room.memory, DB, **room.time).logs == ("trial",)
    assert states(room) == before
    lose(room, f"db/{DB}/branches/{room.branch('trial').id}/manifest.json")
    with pytest.raises(Corrupt):
        room.db("trial")  # which leaves a fence, and nothing else
    repair_root(room.memory, DB, **room.time)
    with room.db("trial") as db:
        db.write({"after": b"repair"})
    assert states(room)["trial"] == {**before["trial"], "after": b"repair", "": states(room)["trial"][""]}


@pytest.mark.parametrize("collected", [0, 3])
def test_a_bare_log_is_rebuilt_and_keeps_its_boundary(collected: int) -> None:
    clock = VirtualClock()
    ids = Ids.seeded(1, clock)
    store = MemoryStore(clock=clock, ids=ids)
    writer = LogWriter.open(store, "bare", clock=clock, ids=ids)
    for number in range(6):
        writer.append_wal([{"op": "put", "n": number}])
    clock.advance(10_000)
    LogCollector(store, "bare", clock=clock, ids=ids).run(collected)
    before = list(LogReader(store, "bare").segments())
    store.delete("db/bare/manifest.json")
    done = repair_root(store, "bare", clock=clock, ids=ids)
    assert (done.kind, done.boundary) == ("documents", collected)
    assert list(LogReader(store, "bare").segments()) == before


def test_there_is_nothing_to_repair_where_nothing_is() -> None:
    with pytest.raises(NotFound):
        repair_root(MemoryStore(), "main")


# Kinds


def as_space(store: Store) -> None:
    create_database(store, "db", PageConfig(), kind="space")


def as_pages(store: Store) -> None:
    create_database(store, "db")


def as_documents(store: Store) -> None:
    LogWriter.open(store, "db").close()


@pytest.mark.parametrize(
    ("made", "opened", "named"),
    [
        (as_space, lambda store: PageDb.open(store, "db"), "worm.open_space"),
        (as_space, lambda store: LogWriter.open(store, "db"), "worm.open_space"),
        (as_space, lambda store: create_database(store, "db"), "worm.open_space"),
        (as_pages, lambda store: PageDb.open(store, "db", kind="space"), "worm.open_pages"),
        (as_pages, lambda store: PageReader.open(store, "db", kind="space"), "worm.open_pages"),
        (as_pages, lambda store: GroupCommit(LogWriter.open(store, "db")), "worm.open_pages"),
        (as_documents, lambda store: PageDb.open(store, "db"), "worm.open_log"),
        (as_documents, lambda store: PageReader.open(store, "db"), "worm.open_log"),
        (as_documents, lambda store: create_database(store, "db"), "worm.open_log"),
    ],
)
def test_a_database_is_opened_as_what_it_is(
    made: Callable[[Store], None], opened: Callable[[Store], object], named: str
) -> None:
    """A page store that was written as a log has records that it cannot read; a space that was written as pages has
    commits that its own log does not know."""
    store = MemoryStore()
    made(store)
    before = [(one.key, one.etag) for one in store.list("")]
    with pytest.raises(Invalid, match="this is a") as refused:
        opened(store)
    assert named in str(refused.value.hint)
    assert [(one.key, one.etag) for one in store.list("")] == before


def test_what_is_flushed_while_the_collector_runs_stays_in_the_log_until_a_copy_knows_of_it() -> None:
    room = Room(pitr_window_seconds=0)
    db = room.db()
    db.write({"a": b"0"})
    db.flush()
    for number in range(4):
        db.write({f"p{number}": b"%d" % number})
    room.clock.advance(3 * MIN_AGE)
    store = PausingStore(room)
    store.when("after", "put", "manifest.backup.json", db.flush)
    room.collect(store=store)
    assert store.is_done
    before = states(room)
    lose(room, ROOT)
    assert repair_root(room.memory, DB, **room.time).source == "backup"
    assert states(room) == before


def test_a_branch_that_was_deleted_after_the_copy_does_not_come_back() -> None:
    room = Room()
    lived(room)
    room.collect()
    room.branches.delete("deep")
    lose(room, ROOT)
    assert repair_root(room.memory, DB, **room.time).source == "backup"
    assert set(room.pages().branches) == {MAIN, "trial"}


def test_an_open_reader_does_not_read_through_a_root_that_is_older_than_what_it_knows() -> None:
    """It has forgotten what layers had: between the rebuilt root and its memory, pages would be missing."""
    room = Room()
    db = room.db()
    db.write({"a": b"1"})
    older = room.memory.get(ROOT)
    assert older is not None
    reader = room.reader()
    db.flush()
    reader.refresh()
    room.memory.put(ROOT, older.body)
    with pytest.raises(Unavailable, match="rebuilt from an older one"):
        reader.refresh()
    room.apply()
    reader.refresh()
    assert reader.get_page("a") == b"1"
