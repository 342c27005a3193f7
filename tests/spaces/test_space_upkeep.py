"""Verifying a space, its upkeep and its figures. Every row that a read could meet is damaged once, and found."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.spaces.space_room import Room, change, drop, put, value
from worm.clock import Ids, VirtualClock
from worm.errors import Invalid
from worm.pages.db import PageDb
from worm.pages.reader import PageReader
from worm.spaces import checking
from worm.spaces.checking import SpaceReport
from worm.spaces.opening import list_spaces, open_space
from worm.spaces.page_backend import PageBackend
from worm.spaces.rows import SnapshotRow
from worm.spaces.space import Space
from worm.store.memory import MemoryStore

PAYLOAD = b"payload" * 100


def _live(space: Space) -> None:
    """Something of everything."""
    space.transact([put("a", n=0), put("b", n=0)])  # 1
    for n in range(1, 12):
        space.transact([change("a", n=n)], session_id="s", local_seq=n)  # 2 to 12
    space.create_branch("dev", at=6)  # 13
    space.transact([change("a", dev=1), drop("b"), put("c")], branch="dev")  # 14
    space.create_branch("old")  # 15
    space.delete_branch("old")  # 16
    space.put_blob(PAYLOAD)  # 17
    space.merge("dev", policy="theirs")  # 18
    space.merge("main", "dev", policy="ours")  # 19
    space.snapshot("a", at=9)


def test_a_sound_space_is_sound(room: Room) -> None:
    space = room.open(snapshot_every=5)
    _live(space)
    report = space.verify()
    assert report.problems == []
    assert report.is_sound
    assert (report.seq, report.commits, report.branches, report.blobs) == (19, 19, 3, 1)
    assert report.revisions == sum(
        len(operations) for entry in space.log() if isinstance(operations := entry.original.get("operations"), list)
    )
    assert report.snapshots >= 3
    assert room.open().verify() == report


def test_an_empty_space_is_sound(room: Room) -> None:
    assert room.open().verify() == SpaceReport(0, branches=1)


def test_large_spaces_are_compared_in_parts(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    space = room.open()
    _live(space)
    monkeypatch.setattr(checking, "_AT_ONCE", 5)
    monkeypatch.setattr(checking, "IDS_AT_ONCE", 1)
    report = space.verify()
    assert (report.problems, report.commits) == ([], 19)
    assert report.entities == space_entities(space)


def space_entities(space: Space) -> int:
    backend = space._backend
    return sum(len(backend.touched(branch, 0, space.seq)) for branch in ("", "dev", "old"))


SQLITE: list[tuple[str, str]] = [
    ("commit", 'DELETE FROM "commit" WHERE seq = 5'),
    ("commit", 'UPDATE "commit" SET original = \'{"x\' WHERE seq = 5'),
    ("commit", "UPDATE \"commit\" SET resolution = '7' WHERE seq = 5"),
    ("commit", "UPDATE \"commit\" SET created_at = '2000-01-01 00:00:00.000' WHERE seq = 5"),
    ("commit", "UPDATE \"commit\" SET created_at = 'noon' WHERE seq = 5"),
    ("commit", 'UPDATE "commit" SET local_seq = 77 WHERE seq = 5'),
    ("commit", "UPDATE \"commit\" SET branch = 'nope' WHERE seq = 12"),
    ("revision", "DELETE FROM revision WHERE seq = 5"),
    ("revision", "UPDATE revision SET data = '[]' WHERE seq = 5"),
    ("revision", "UPDATE revision SET op = 'set' WHERE seq = 5"),
    ("revision", "INSERT INTO revision SELECT branch, 'x', seq, 9, op, data, commit_seq FROM revision WHERE seq = 5"),
    ("revision", "UPDATE revision SET data = 7 WHERE seq = 5"),
    ("snapshot", "UPDATE snapshot SET value = 7 WHERE seq = 9"),
    ("head", "UPDATE head SET seq = 3 WHERE branch = '' AND id = 'b'"),
    ("snapshot", "UPDATE snapshot SET value = '{}' WHERE seq = 9"),
    ("snapshot", "INSERT INTO snapshot VALUES ('', 'b', 1, '{\"value\":{}}')"),
    ("branch", "DELETE FROM branch WHERE name = 'old'"),
    ("branch", "UPDATE branch SET status = 'active' WHERE name = 'old'"),
    ("branch", "UPDATE branch SET head_seq = 3 WHERE name = 'dev'"),
    ("branch", "UPDATE branch SET fork_seq = 7 WHERE name = 'old'"),
    ("branch", "INSERT INTO branch SELECT 'x', '', 1, 15, 15, created_at, status FROM branch WHERE name = 'old'"),
    ("blob", "UPDATE blob_store SET data = zeroblob(700)"),
    ("blob", "DELETE FROM blob_store"),
    ("store", "DELETE FROM \"commit\" WHERE seq = 1"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "statement"), SQLITE)
def test_every_damaged_row_of_a_database_is_found(tmp_path: Path, kind: str, statement: str) -> None:
    url = f"sqlite://{tmp_path}"
    with open_space(url, "main", clock=VirtualClock()) as space:
        _live(space)
    database = sqlite3.connect(tmp_path / "main.sqlite")
    assert database.execute(statement).rowcount >= 1
    database.commit()
    database.close()
    with open_space(url, "main") as space:
        problems = space.verify().problems
    assert kind in {one.kind for one in problems}, problems


def _edit(body: bytes | None) -> bytes:
    return (
        (body or b"")
        .replace(b'"n":', b'"m":')
        .replace(b"/n", b"/m")
        .replace(b'"numbers":[', b'"numbers":[1,')
        .replace(b'"seq":', b'"s":')
    )


PAGES: list[tuple[str, str, Callable[[bytes | None], bytes | None]]] = [
    ("commit", "c\t00000000000000000005", lambda _: None),
    ("commit", "c\t00000000000000000005", _edit),
    ("commit", "k\ts\t4", lambda _: None),
    ("commit", "k\ts\t4", lambda _: b'{"seq":3}'),
    ("revision", "r\t\ta\t00000000000000000005\t0", lambda _: None),
    ("revision", "r\t\ta\t00000000000000000005\t0", _edit),
    ("revision", "h\t\ta", lambda _: None),
    ("revision", "h\t\tb", lambda body: (body or b"").replace(b"[[1,", b"[[2,")),
    ("revision", "i\t\ta\t000000000000", lambda _: None),
    ("revision", "h\t\tghost", lambda _: b'{"items":[[5,9,0]],"numbers":[1,5,0,0]}'),
    ("snapshot", "s\t\ta\t00000000000000000009", _edit),
    ("branch", "b\told", lambda _: None),
    ("branch", "b\told", lambda body: (body or b"").replace(b',"status":"deleted"', b"")),
    ("branch", "b\tdev\te", lambda _: b'{"seq":3}'),
    ("blob", "x", lambda _: None),
]


@pytest.mark.parametrize("number", range(len(PAGES)))
def test_every_damaged_page_is_found(number: int) -> None:
    kind, page, edit = PAGES[number]
    clock = VirtualClock()
    store, ids = MemoryStore(clock=clock), Ids.system(clock)
    space = Space(PageBackend(store, "space-main", create=True, clock=clock, ids=ids), clock=clock)
    _live(space)
    space.close()
    with PageDb.open(store, "space-main", kind="space", clock=clock, ids=ids) as writer:
        if page == "x":
            page = f"x\t{next(iter(writer.scan('x', 'y'))).page.partition(chr(9))[2]}"
        before = PageReader.get_page(writer, page)
        after = edit(before)
        assert after != before, "the test damages something"
        writer.write({page: after})
    again = Space(PageBackend(store, "space-main", create=False, clock=clock, ids=ids), clock=clock)
    problems = again.verify().problems
    again.close()
    assert kind in {one.kind for one in problems}, problems


def test_the_parts_of_a_blob_are_checked() -> None:
    clock = VirtualClock()
    store, ids = MemoryStore(clock=clock), Ids.system(clock)
    space = Space(PageBackend(store, "space-main", create=True, clock=clock, ids=ids), clock=clock)
    space.put_blob(PAYLOAD)
    (part,) = store.list("db/space-main/blobs/")
    store.delete(part.key)
    (problem,) = space.verify().problems
    assert (problem.kind, "gone" in problem.message) == ("blob", True)


def test_wrong_snapshots_are_dropped_by_a_repair(room: Room) -> None:
    backend = room.backend()
    space = room.space(backend)
    for n in range(20):
        space.transact([change("a", n=n) if n else put("a", n=0), put("b", n=n)])
    backend.put_snapshots([SnapshotRow("", "a", seq, '{"value":{"n":"wrong"}}') for seq in (5, 20)])
    space.snapshot("b")
    reader = room.open()
    assert value(reader, "a") == {"n": "wrong"}
    assert [one.kind for one in reader.verify().problems] == ["snapshot", "snapshot"]
    assert reader.repair().problems == []
    for one in (reader, room.open()):
        assert [value(one, "a", at=at) for at in (5, 6, 20)] == [{"n": 4}, {"n": 5}, {"n": 19}]
    assert backend.snapshots("", ["b"], 20) != {}, "those that are right stay"
    assert space.snapshot("a") == 1
    assert space.verify().is_sound


@pytest.mark.slow
def test_upkeep_is_one_call(room: Room) -> None:
    """Whatever it does, the space is the same."""
    space, rng = room.open(), random.Random(1)
    for n in range(60):
        space.transact([put("a", n=0) if n == 0 else change("a", n=n), put(f"e{rng.randrange(9)}", n=n)])
    done = space.maintain(at_least=5)
    assert done.snapshots >= 1
    if room.kind == "pages":
        assert done.store["applied"] >= 60, "the whole log is in layers now"
    else:
        assert set(done.store) == {"logPages", "checkpointed"}
        assert (room.directory / "main.sqlite-wal").stat().st_size == 0
    for one in (space, room.open()):
        assert (one.seq, value(one, "a"), value(one, "a", at=30)) == (60, {"n": 59}, {"n": 29})
        assert one.verify().is_sound
    space.transact([put("a", n=99)])
    assert value(space, "a") == {"n": 99}


def test_the_figures_of_a_space(room: Room) -> None:
    space = room.open()
    empty = space.stat()
    assert (empty.seq, empty.last_commit, empty.branches, empty.entities) == (0, None, 1, 0)
    _live(space)
    found = space.stat()
    assert (found.seq, found.branches, found.deleted_branches, found.blobs) == (19, 2, 1, 1)
    assert (found.entities, found.blob_bytes, found.last_commit) == (4, len(PAYLOAD), room.clock.now())
    assert found.store["bytes"] + found.store.get("logBytes", 0) > 0


@pytest.mark.parametrize("url", ["sqlite://{}", "{}/store", "memory://{}"])
def test_the_spaces_of_a_url(tmp_path: Path, url: str) -> None:
    place = url.format(tmp_path)
    assert list_spaces(place) == []
    for name in ("two", "one"):
        open_space(place, name).close()
    assert list_spaces(place) == ["one", "two"]
    with pytest.raises(Invalid):
        list_spaces(3)  # type: ignore[arg-type]  # that is the mistake
    if url.startswith("sqlite"):
        assert list_spaces(f"{place}/one.sqlite") == ["one"]
        assert list_spaces(f"{place}/none.sqlite") == []
