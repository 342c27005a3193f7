"""Pulling a replica: the same rows and the same reads as the source, whatever interrupts it, in few requests."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from tests.examples import some
from tests.spaces.space_room import Killed, change, drop, put
from worm.clock import Ids, VirtualClock
from worm.errors import Conflict, Corrupt, Invalid, NotFound
from worm.formats.strict_json import JsonValue
from worm.pages.db import PageDb
from worm.spaces import pulling
from worm.spaces.backend import Backend
from worm.spaces.opening import open_backend
from worm.spaces.pulling import pull, pull_space
from worm.spaces.rows import CommitRow
from worm.spaces.space import Space
from worm.spaces.sqlite_backend import SqliteBackend, SqliteTurn
from worm.store.memory import MemoryStore

pytestmark = pytest.mark.slow  # together more than a few seconds

IDS = ("a", "b", "c")
TABLES = ("commit", "revision", "head", "branch", "snapshot", "blob_store")


@pytest.fixture(params=["sqlite", "pages"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"sqlite://{tmp_path}/source" if request.param == "sqlite" else f"memory://pull-{Ids.system().ulid()}"


@pytest.fixture
def source(url: str) -> Iterator[Backend]:
    backend = open_backend(url, "main", clock=VirtualClock())
    yield backend
    backend.close()


@pytest.fixture
def replica(tmp_path: Path) -> Iterator[SqliteBackend]:
    backend = SqliteBackend(tmp_path / "replica.sqlite")
    yield backend
    backend.close()


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three commits a batch."""
    monkeypatch.setattr(pulling, "BATCH_FIRST", 3)
    monkeypatch.setattr(pulling, "BATCH_MAX", 3)


def _live(backend: Backend, steps: int, seed: int = 1) -> None:
    """Transactions of all kinds, branches that come, are merged and go, blobs."""
    space, rng = Space(backend, clock=VirtualClock()), random.Random(seed)
    space.transact([put("a", n=0)])
    for step in range(steps):
        active = [branch for branch in space.branches() if branch.is_active]
        ended = [branch.name for branch in space.branches() if not branch.is_active]
        names, parents = [branch.name for branch in active], {branch.parent for branch in active}
        branch, kind = rng.choice(names), rng.randrange(11)
        if kind == 0:
            space.create_branch(f"branch-é-{space.seq}", parent=branch, at=rng.randint(0, space.seq))
        elif kind == 1 and branch not in ("main", *parents):
            space.delete_branch(branch)
        elif kind == 10 and ended and space.branch(ended[0]).parent in names:
            space.undelete_branch(ended[0])
        elif kind == 2 and branch != "main":
            space.merge(branch, rng.choice([name for name in names if name != branch]), "theirs")
        elif kind == 3:
            space.put_blob(b"%d" % step, content_type="text/plain", branch=branch)
        else:
            one, other = rng.choice(IDS), rng.choice(IDS)
            patch: list[JsonValue] = [{"op": "add", "path": "/v", "value": [1.0, -0.0, {"é": step / 7}]}]
            ops = [put(one, n=step, s='é"\\'), change(one, m=None, big=2**53), drop(other)]
            ops.append({"op": "patch", "id": other, "patches": patch})
            space.transact(rng.choice([ops, ops[:2], ops[2:], ops[3:]]), branch=branch)


def test_a_branch_that_came_back_is_active_in_the_replica(source: Backend, tmp_path: Path) -> None:
    space, replica = Space(source), SqliteBackend(tmp_path / "r.sqlite")
    space.create_branch("dev")
    space.transact([put("a")], branch="dev")
    space.delete_branch("dev")
    pulling.pull(source, replica)
    space.undelete_branch("dev")
    pulling.pull(source, replica)
    assert replica.branch("dev") == source.branch("dev")
    assert Space(replica).branch("dev").is_active
    replica.close()


def _rows(path: Path, tables: Sequence[str] = TABLES) -> dict[str, list[Any]]:
    database = sqlite3.connect(path)
    try:
        return {name: sorted(database.execute(f'SELECT * FROM "{name}"'), key=repr) for name in tables}
    finally:
        database.close()


def _check_same(source: Backend, replica: Backend) -> None:
    """Every row that both can tell, and every read of every entity on every branch at every seq."""
    newest = source.newest()
    assert replica.newest() == newest
    commits = source.commits(0, newest.seq, newest.seq + 1)
    assert list(replica.commits(0, newest.seq, newest.seq + 1)) == list(commits)
    assert replica.written(commits) == source.written(commits)
    assert list(replica.branches()) == list(source.branches())
    ones, others = Space(source), Space(replica)
    for branch in ones.branches():
        ids = ones.ids(branch=branch.name)
        assert others.ids(branch=branch.name) == ids
        assert replica.heads(branch.name, ids, newest.seq) == source.heads(branch.name, ids, newest.seq)
        for at in range(newest.seq + 1):
            assert others.read_many(ids, branch=branch.name, at=at) == ones.read_many(ids, branch=branch.name, at=at)


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3))])
def test_a_replica_is_the_space_at_every_seq(source: Backend, replica: SqliteBackend, seed: int) -> None:
    _live(source, 40, seed)
    done = pull(source, replica)
    assert (done.seq, done.commits) == (source.newest().seq,) * 2
    _check_same(source, replica)


def test_the_revisions_of_commits_are_those_that_are_stored(source: Backend) -> None:
    """One backend reads them, the other takes them from the records: both must give what a read replays."""
    _live(source, 60)
    newest = source.newest().seq
    commits = source.commits(0, newest, newest)
    written = source.written(commits)
    assert source.written([]) == {}
    assert source.written(commits[3:5]) == {seq: rows for seq, rows in written.items() if seq in (4, 5)}
    compared = 0
    for commit in commits:
        rows = written.get(commit.seq, [])
        assert [row.op_index for row in rows] == list(range(len(rows)))
        stored = source.revisions(commit.branch, {row.id: commit.seq - 1 for row in rows}, commit.seq)
        for one, kept in stored.items():
            own = [row for row in rows if row.id == one]
            assert kept == own[len(own) - len(kept) :]
            compared += len(kept)
    assert compared > 60


def test_a_pull_goes_on_where_the_last_one_ended(
    source: Backend, replica: SqliteBackend, small: None, tmp_path: Path
) -> None:
    pulled = 0
    for seed in range(5):
        _live(source, 8, seed)
        done = pull(source, replica)
        pulled += done.commits
        assert done.seq == pulled == source.newest().seq
    assert pull(source, replica).commits == 0
    whole = SqliteBackend(tmp_path / "whole.sqlite")
    pull(source, whole)
    whole.close()
    assert _rows(replica.path) == _rows(whole.path)
    _check_same(source, replica)


def test_an_empty_space_gives_an_empty_replica(source: Backend, replica: SqliteBackend) -> None:
    assert pull(source, replica, blobs=True, snapshots=True) == pulling.Pulled(0, 0, 0, 0, 0)


class Mortal(SqliteBackend):
    """Ends in a turn: before its commit, or right after. `kill` does it."""

    def __init__(self, path: Path, turn: int, *, is_written: bool, kill: Callable[[], None]) -> None:
        super().__init__(path)
        self.left, self.is_written, self.kill = turn, is_written, kill

    @contextmanager
    def turn(self) -> Iterator[SqliteTurn]:
        self.left -= 1
        with super().turn() as turn:
            yield turn
            if self.left == 0 and not self.is_written:
                self.kill()
        if self.left == 0:
            self.kill()


def _die() -> None:
    raise Killed


@pytest.mark.parametrize("is_written", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_pull_that_ends_in_any_batch_is_completed_by_the_next(
    source: Backend, small: None, tmp_path: Path, is_written: bool
) -> None:
    _live(source, 30)
    whole = SqliteBackend(tmp_path / "whole.sqlite")
    batches = -(-pull(source, whole, blobs=True).commits // 3)
    whole.close()
    turns = batches + len(source.blobs())
    assert turns > 8
    for turn in some(range(1, turns + 1)):
        path = tmp_path / f"{turn}.sqlite"
        mortal = Mortal(path, turn, is_written=is_written, kill=_die)
        with pytest.raises(Killed):
            pull(source, mortal, blobs=True)
        mortal.close()
        again = SqliteBackend(path)
        before = again.newest().seq
        assert before == min(source.newest().seq, 3 * (turn - (not is_written)))
        assert all(row.created_seq <= row.head_seq <= before for row in again.branches())
        assert pull(source, again, blobs=True).commits == source.newest().seq - before
        again.close()
        assert _rows(path) == _rows(whole.path)


def _pull_and_die(url: str, path: Path, turn: int, is_written: bool) -> None:
    def kill() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    pulling.BATCH_FIRST = pulling.BATCH_MAX = 1
    pull(open_backend(url, "main", create=False), Mortal(path, turn, is_written=is_written, kill=kill))


@pytest.mark.parametrize("is_written", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_kill_between_any_two_commits_leaves_what_the_next_pull_completes(tmp_path: Path, is_written: bool) -> None:
    url = f"sqlite://{tmp_path}/source"
    source = open_backend(url, "main")
    _live(source, 3)
    newest, path = source.newest().seq, tmp_path / "replica.sqlite"
    context = multiprocessing.get_context("fork")
    while True:  # each process brings one commit, or none, and is killed
        turn = 1 if is_written else 2
        process = context.Process(target=_pull_and_die, args=(url, path, turn, is_written))
        process.start()
        process.join(30)
        there = SqliteBackend(path)
        seq, commits = there.newest().seq, there.commits(0, newest, newest)
        there.close()
        assert [row.seq for row in commits] == list(range(1, seq + 1))
        if process.exitcode == 0:
            break
        assert process.exitcode == -signal.SIGKILL
    replica = SqliteBackend(path)
    assert seq == newest
    _check_same(source, replica)
    replica.close()
    source.close()


def test_two_pulls_at_once_make_one_replica(source: Backend, url: str, small: None, tmp_path: Path) -> None:
    _live(source, 40)
    path = tmp_path / "replica.sqlite"
    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(lambda _: pull_space(url, path, "main"), range(4)))
    assert {one.seq for one in done} == {source.newest().seq}
    assert sum(one.commits for one in done) == source.newest().seq
    replica = SqliteBackend(path)
    _check_same(source, replica)
    replica.close()


class Disturbed:
    """A source; something happens each time before it gives commits."""

    def __init__(self, backend: Backend, before: Callable[[], None]) -> None:
        self._backend, self._before = backend, before

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def commits(self, *arguments: Any, **options: Any) -> Sequence[CommitRow]:
        self._before()
        return self._backend.commits(*arguments, **options)


def test_a_pull_that_another_one_overtook_goes_on_behind_it(source: Backend, replica: SqliteBackend) -> None:
    _live(source, 10)
    overtaken = 0

    def overtake() -> None:
        nonlocal overtaken
        if not overtaken:
            overtaken = pull(source, replica).seq
            Space(source).transact([put("a", n=99)])

    done = pull(cast(Backend, Disturbed(source, overtake)), replica)
    assert (done.commits, done.seq) == (1, overtaken + 1)
    _check_same(source, replica)


def test_a_branch_made_while_a_pull_runs_is_there_with_the_next(source: Backend, replica: SqliteBackend) -> None:
    _live(source, 10)
    before = source.newest().seq
    made: list[int] = []

    def fork() -> None:
        made.append(Space(source).create_branch(f"late-{len(made)}").seq)

    assert pull(cast(Backend, Disturbed(source, fork)), replica).seq == before
    assert replica.branch("late-0") is None
    pull(source, replica)
    _check_same(source, replica)


def test_a_replica_that_is_no_beginning_of_the_space_is_refused(
    source: Backend, replica: SqliteBackend, tmp_path: Path
) -> None:
    _live(source, 5)
    pull(source, replica)
    own = Space(replica)
    own.transact([put("a", n="mine")])
    rows = _rows(replica.path)
    with pytest.raises(Conflict, match=f"commit {own.seq}, but the space only has {own.seq - 1}"):
        pull(source, replica)
    for _ in range(3):
        Space(source).transact([put("a", n="theirs")])
    with pytest.raises(Conflict, match="differ from those of the space"):
        pull(source, replica)
    assert _rows(replica.path) == rows
    other = SqliteBackend(tmp_path / "other.sqlite")
    Space(other).transact([put("a", n="theirs")])
    with pytest.raises(Conflict, match="differ from those of the space"):
        pull(other, _beginning(source, tmp_path))
    other.close()


def _beginning(source: Backend, tmp_path: Path) -> SqliteBackend:
    """A replica of the first commit alone."""
    replica = SqliteBackend(tmp_path / "first.sqlite")
    rows = source.commits(0, 1, 1)
    branches = {row.name: row for row in source.branches()}
    assert pulling._take(replica, 0, rows, source.written(rows), branches)
    return replica


class Damaged(Disturbed):
    """A source that lacks a commit, or a branch."""

    def __init__(self, backend: Backend, *, lacks: str) -> None:
        super().__init__(backend, lambda: None)
        self.lacks = lacks

    def commits(self, *arguments: Any, **options: Any) -> Sequence[CommitRow]:
        rows = super().commits(*arguments, **options)
        return [row for row in rows if row.seq != 4] if self.lacks == "commit" else [] if self.lacks == "all" else rows

    def branches(self) -> Sequence[Any]:
        return [] if self.lacks == "branches" else self._backend.branches()


@pytest.mark.parametrize(("lacks", "left"), [("commit", 3), ("all", 0), ("branches", 0)])
def test_a_source_that_lacks_something_is_damaged(
    source: Backend, replica: SqliteBackend, small: None, lacks: str, left: int
) -> None:
    _live(source, 8)
    with pytest.raises(Corrupt):
        pull(cast(Backend, Damaged(source, lacks=lacks)), replica)
    assert replica.newest().seq == left
    pull(source, replica)
    _check_same(source, replica)


def test_payloads_come_only_when_they_are_asked_for(source: Backend, replica: SqliteBackend) -> None:
    space = Space(source)
    large = random.Random(1).randbytes(9 * 1024 * 1024)  # more than one part
    stored = [space.put_blob(data, content_type="a/b") for data in (b"", b"small", large)]
    assert pull(source, replica).blobs == 0
    assert list(replica.blobs()) == []
    assert pull(source, replica, blobs=True).blobs == 3
    assert pull(source, replica, blobs=True).blobs == 0
    assert sorted(replica.blobs()) == sorted(source.blobs())
    assert [Space(replica).read_blob(blob.hash) for blob in stored] == [b"", b"small", large]


class Spoiled(Disturbed):
    """A source with other bytes than it says, or where something happens before they are read."""

    more = b""

    def commits(self, *arguments: Any, **options: Any) -> Sequence[CommitRow]:
        return self._backend.commits(*arguments, **options)

    def blob_chunks(self, hash: str) -> Iterator[bytes]:
        self._before()
        for chunk in self._backend.blob_chunks(hash):
            yield chunk[:-1] + b"!" + self.more


@pytest.mark.parametrize("more", [b"", b"and more"])
def test_a_payload_that_is_not_what_its_hash_says_is_not_taken(
    source: Backend, replica: SqliteBackend, more: bytes
) -> None:
    Space(source).put_blob(b"x" * 3_000_000)
    spoiled = Spoiled(source, lambda: None)
    spoiled.more = more
    with pytest.raises(Corrupt):
        pull(cast(Backend, spoiled), replica, blobs=True)
    assert list(replica.blobs()) == []
    assert pull(source, replica, blobs=True).blobs == 1


def test_a_payload_that_is_collected_meanwhile_is_left_out(source: Backend, replica: SqliteBackend) -> None:
    Space(source).put_blob(b"x")

    def collect() -> None:
        with source.turn() as turn:
            turn.drop_blobs([row.hash for row in turn.blobs()])

    assert pull(cast(Backend, Spoiled(source, collect)), replica, blobs=True).blobs == 0

    def lose() -> None:
        raise NotFound("a part is gone")

    Space(source).put_blob(b"x")
    with pytest.raises(NotFound):  # it is named, and its bytes are not there
        pull(cast(Backend, Spoiled(source, lose)), replica, blobs=True)


def test_snapshots_are_made_of_what_has_been_written_since(source: Backend, replica: SqliteBackend) -> None:
    space = Space(source)
    space.transact([put("a"), put("b")])
    space.create_branch("draft")
    space.transact([change("a", n=1)], branch="draft")
    assert pull(source, replica).snapshots == 0
    assert pull(source, replica, snapshots=True).snapshots == 3
    space.transact([change("b", n=1)])
    assert pull(source, replica, snapshots=True).snapshots == 1
    _check_same(source, replica)


def test_the_replica_has_a_name_that_opens(url: str, source: Backend, tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=r"\.sqlite"):
        pull_space(url, tmp_path / "replica", "main")
    with pytest.raises(NotFound):
        pull_space(url, tmp_path / "replica.sqlite", "nobody")
    assert not (tmp_path / "replica.sqlite").exists()


def test_a_pull_takes_few_requests(tmp_path: Path) -> None:
    """Commits come by blocks of many: ten times as many commits, a few requests more."""
    spent = {}
    for count in (30, 300):
        name = f"pull-{Ids.system().ulid()}"
        store = MemoryStore.named(name)
        backend = open_backend(f"memory://{name}", "main")
        for number in range(count):
            Space(backend).transact([put(f"e{number % 50}", n=number, text="x" * 200)])
        backend.close()
        with PageDb.open(store, "space-main", kind="space") as database:
            database.flush()
        source, replica = open_backend(f"memory://{name}", "main"), SqliteBackend(tmp_path / f"{count}.sqlite")
        with store.requests.measure() as first:
            assert pull(source, replica).commits == count
        with store.requests.measure() as idle:
            assert pull(source, replica).commits == 0
        Space(source).transact([put("a")])
        with store.requests.measure() as one:
            assert pull(source, replica).commits == 1
        spent[count] = (first["total"], idle["total"], one["total"])
        for open_one in (source, replica):
            open_one.close()
    assert spent[300][0] <= spent[30][0] + 12 <= 30
    assert max(spent[300][1:]) <= 20
