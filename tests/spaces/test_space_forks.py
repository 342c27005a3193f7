"""Spaces and page stores that are open when their process forks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import pytest

from tests.forked import FORK, SECONDS, busy_threads, in_forked_child
from worm.errors import Conflict, Fenced, Invalid
from worm.pages.db import PageDb, create_database
from worm.spaces.opening import open_space
from worm.spaces.operations import set_document
from worm.spaces.page_backend import PageBackend
from worm.spaces.space import Space
from worm.store.file import FileStore

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")


@pytest.fixture(params=["sqlite", "pages"])
def space(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Space]:
    url = f"sqlite://{tmp_path}/spaces" if request.param == "sqlite" else str(tmp_path / "data")
    with open_space(url, "main") as opened:
        opened.transact([set_document("a", {"v": 1})])
        assert opened.read("a").value == {"v": 1}
        yield opened


def _written(space: Space, name: str) -> int:
    return space.transact([set_document(name, {"by": os.getpid()})]).seq


@pytest.mark.slow
def test_commits_of_parent_and_children_are_all_made(space: Space) -> None:
    """Parent and child would name their next transaction alike, and the second of them would count as done."""
    seqs = [
        in_forked_child(partial(_written, space, "child")),
        _written(space, "parent"),
        in_forked_child(partial(_written, space, "second child")),
        _written(space, "parent again"),
    ]
    assert (seqs, space.seq) == ([2, 3, 4, 5], 5)
    assert space.ids() == ["a", "child", "parent", "parent again", "second child"]


@pytest.mark.slow
def test_a_child_does_not_wait_for_a_commit_that_is_on_its_way_in_its_parent(tmp_path: Path) -> None:
    with open_space(str(tmp_path), "main") as space:
        _written(space, "a")
        space.create_branch("dev")
        backend = space._backend
        assert isinstance(backend, PageBackend)
        assert backend._lane is not None
        before, backend._lane._last = backend._lane._last, Future[int]()
        backend._turn.sent(object(), backend._lane._last)
        with pytest.raises(Conflict, match="dev"):  # a refusal looks whether the writer is still the newest
            in_forked_child(partial(space.create_branch, "dev"))
        assert in_forked_child(partial(_written, space, "child")) == 3
        backend._lane._last = before
        backend._turn.sent(backend, before)
        assert _written(space, "parent") == 4


def busy(space: Space) -> AbstractContextManager[None]:
    def work(number: int, count: int) -> None:
        space.transact([set_document(f"busy-{number}", {})])
        space.read("a")

    return busy_threads(work, 3, pause=0.1)  # writers that take over from each other without a pause get little done


@pytest.mark.slow
def test_a_child_commits_whatever_other_threads_of_its_parent_were_doing(space: Space) -> None:
    with busy(space):
        for number in range(4):
            in_forked_child(partial(_written, space, f"child-{number}"), 3 * SECONDS)
    assert [name for name in space.ids() if name.startswith("child")] == [f"child-{number}" for number in range(4)]


@pytest.mark.slow
def test_children_that_commit_at_once_get_a_commit_each(space: Space) -> None:
    _open.append(space)
    with FORK.Pool(2) as pool:
        seqs = pool.map_async(_commit_by_pool, range(6), chunksize=1).get(SECONDS)
    assert sorted(seqs) == [2, 3, 4, 5, 6, 7]


_open: list[Space] = []


def _commit_by_pool(number: int) -> int:
    return _written(_open[-1], f"pool-{number}")


def test_a_child_holds_the_locks_of_its_own_database_connections(tmp_path: Path) -> None:
    """SQLite takes the connections of the parent for those of the child, which then writes without any lock."""
    with open_space(f"sqlite://{tmp_path}", "main") as space:
        space.transact([set_document("a", {})])

        def locks() -> int:
            _written(space, "child")
            inode = (tmp_path / "main.sqlite").stat().st_ino
            table = Path("/proc/locks").read_text().splitlines()
            return sum(f" {os.getpid()} " in line and f":{inode} " in line for line in table)

        assert in_forked_child(locks) > 0


def test_a_database_that_is_read_while_its_process_forks_is_refused_in_the_child(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worm.spaces.sqlite_backend.FORK_SECONDS", 0.1)
    with open_space(f"sqlite://{tmp_path}", "main") as space:
        digest = space.put_blob(bytes(3 * 1024 * 1024)).hash
        chunks = space.stream_blob(digest)
        next(chunks)
        with pytest.raises(Invalid, match="was in use when this process was forked"):
            in_forked_child(partial(_written, space, "child"))
        assert sum(map(len, chunks)) == 2 * 1024 * 1024
        assert _written(space, "parent") == space.seq


@pytest.mark.slow
def test_a_writer_of_pages_is_fenced_in_a_child_which_can_still_read(tmp_path: Path) -> None:
    """Two processes with one lease and one next slot would both take the same commit for theirs."""
    store = FileStore(tmp_path, durability="process")
    create_database(store, "main")
    with PageDb.open(store, "main") as db:
        db.write({"a": b"1"})
        assert in_forked_child(lambda: db.get_page("a")) == b"1"
        for write in (lambda: db.write({"b": b"1"}), lambda: db.submit({"b": b"1"}).result(SECONDS)):
            with pytest.raises(Fenced, match="belongs to the parent process"):
                in_forked_child(write)
        db.write({"a": b"2"})
        assert (db.get_page("a"), db.get_page("b")) == (b"2", None)
