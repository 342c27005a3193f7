"""The SQLite backend: tables, pragmas and statements of the original design, and what can go wrong with a database."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.spaces import seed
from tests.spaces.space_room import Killed, change, drop, put, value
from worm.clock import SystemClock, VirtualClock
from worm.errors import CommitStateUnknown, Corrupt, Denied, Invalid, NotFound, Unavailable
from worm.spaces import sqlite_schema
from worm.spaces.opening import database_path, open_space
from worm.spaces.operations import SpaceConfig
from worm.spaces.space import Space
from worm.spaces.sqlite_backend import SqliteBackend
from worm.spaces.sqlite_schema import connect


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "main.sqlite"


def _space(path: Path, factory: type[sqlite3.Connection] = sqlite3.Connection, **settings: Any) -> Space:
    return Space(SqliteBackend(path, factory=factory), SpaceConfig(**settings))


class Recording(sqlite3.Connection):
    """Keeps the text of every statement."""

    told: ClassVar[list[str]] = []

    def execute(self, sql: str, *args: Any) -> sqlite3.Cursor:
        Recording.told.append(sql)
        return super().execute(sql, *args)

    def executemany(self, sql: str, *args: Any) -> sqlite3.Cursor:
        Recording.told.append(sql)
        return super().executemany(sql, *args)


@pytest.fixture
def told() -> Iterator[list[str]]:
    Recording.told.clear()
    yield Recording.told
    Recording.told.clear()


def test_the_tables_indexes_and_the_view_are_those_of_the_design(path: Path) -> None:
    _space(path).close()
    found = sqlite3.connect(path)
    wanted = sqlite3.connect(":memory:")
    wanted.executescript(seed.TABLES)
    query = "SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY name"
    rows = [
        [(kind, name, table, sql and seed.normal(sql)) for kind, name, table, sql in one.execute(query)]
        for one in (found, wanted)
    ]
    assert rows[0] == rows[1]
    assert len([row for row in rows[0] if row[3] is not None]) == 8 + 13 + 1


@pytest.mark.parametrize("which", ["the writer", "a reader"])
def test_every_connection_has_the_pragmas(path: Path, which: str) -> None:
    backend = SqliteBackend(path)
    backend.newest()
    connection = backend._writer if which == "the writer" else backend._readers[0].connection
    assert connection is not backend._writer or which == "the writer"
    assert {name: connection.execute(f"PRAGMA {name}").fetchone()[0] for name in seed.PRAGMAS} == seed.PRAGMAS
    backend.close()


def test_every_statement_of_the_design_is_used_as_it_stands(path: Path, told: list[str]) -> None:
    space = _space(path, Recording, snapshot_every=2, cache_bytes=0)
    space.transact([put("a", n=1)])
    space.transact([change("a", m=1)])
    space.read("a")
    space.create_branch("dev")
    space.delete_branch("dev")
    space.gc(keep=1)
    space.read_blob(space.put_blob(b"x").hash)
    used = {seed.without_times(sql) for sql in told}
    wanted = {name: seed.normal(sql) for name, sql in seed.STATEMENTS.items()}
    wanted["create branch (8.1)"] = wanted["create branch (8.1)"].replace(
        ":created_seq,:created_seq)", ":created_seq,:head_seq)"
    )
    assert {name: sql for name, sql in wanted.items() if sql not in used} == {}
    space.close()


def test_the_rows_are_those_of_the_design(path: Path) -> None:
    space = Space(SqliteBackend(path, clock=VirtualClock()), SpaceConfig(snapshot_every=2), clock=VirtualClock())
    space.transact([put("a", n=1), change("a", m=1)], session_id="s", local_seq=3)
    space.create_branch("dev", session_id="s", local_seq=4)
    space.transact([drop("a")], branch="dev", session_id="s", local_seq=5)
    now = "2026-01-01 00:00:00.000"
    database = sqlite3.connect(path)

    def rows(sql: str) -> list[tuple[object, ...]]:
        return database.execute(sql).fetchall()

    assert rows(
        'SELECT seq, branch, session_id, local_seq, invocation_ref, authorization_ref, created_at FROM "commit"'
    ) == [
        (1, "", "s", 3, None, None, now),
        (2, "dev", "s", 4, None, None, now),
        (3, "dev", "s", 5, None, None, now),
    ]
    assert rows("SELECT * FROM revision") == [
        ("", "a", 1, 0, "set", '{"value":{"n":1}}', 1),
        ("", "a", 1, 1, "patch", '[{"op":"add","path":"/value/m","value":1}]', 1),
        ("dev", "a", 3, 0, "delete", None, 3),
    ]
    assert rows("SELECT * FROM state") == rows("SELECT * FROM head") == [("", "a", 1, 1), ("dev", "a", 3, 0)]
    assert rows("SELECT * FROM snapshot") == [("", "a", 1, '{"value":{"m":1,"n":1}}')]
    assert rows("SELECT * FROM branch") == [
        ("", None, None, 0, 1, now, "active"),
        ("dev", "", 1, 2, 3, now, "active"),
    ]
    assert rows('SELECT typeof(original), typeof(resolution) FROM "commit" LIMIT 1') == [("text", "text")]
    assert [rows(f"SELECT COUNT(*) FROM {table}") for table in ("invocation", "authorization")] == [[(0,)], [(0,)]]
    space.close()


def test_rows_whose_times_sqlite_gave_are_read_too(path: Path) -> None:
    """Replicas and older tools may have left the column to its default."""
    _space(path).close()
    database = sqlite3.connect(path)
    columns = "seq, session_id, local_seq, original, resolution"
    database.execute(f"""INSERT INTO "commit" ({columns}) VALUES (1, 's', 1, '{{}}', '{{"seq":1}}')""")
    database.commit()
    space = _space(path)
    (entry,) = space.log()
    assert abs((SystemClock().now() - entry.created_at).total_seconds()) < 60
    assert space.transact([put("a")]).seq == 2
    assert space.read("a", at=SystemClock().now()).at == 2
    space.close()


def test_every_space_has_a_database_of_its_own(tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/spaces"
    with open_space(url, "one") as one, open_space(url, "two") as two:
        one.transact([put("a", n=1)])
        assert (value(one, "a"), value(two, "a")) == ({"n": 1}, None)
    assert sorted(path.name for path in (tmp_path / "spaces").glob("*.sqlite")) == ["one.sqlite", "two.sqlite"]
    with open_space(f"sqlite://{tmp_path}/spaces/one.sqlite", "anything") as again:
        assert value(again, "a") == {"n": 1}


def test_a_url_names_a_path_and_a_space_has_a_plain_name(tmp_path: Path) -> None:
    assert database_path("sqlite:///a%20b/c", "main") == Path("/a b/c/main.sqlite")
    for url in ("sqlite://host/x", "sqlite:x", "postgres:///x", "sqlite://"):
        with pytest.raises(Invalid):
            open_space(url, "main")
    for name in ("", "../x", ".hidden", "a/b"):
        with pytest.raises(Invalid, match="the space name"):
            open_space(f"sqlite://{tmp_path}", name)
    with pytest.raises(NotFound, match="there is no space"):
        open_space(f"sqlite://{tmp_path}", "main", create=False)
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_database_of_a_space_is_refused_and_left_alone(tmp_path: Path) -> None:
    text = tmp_path / "text.sqlite"
    text.write_bytes(b"not a database, but long enough to be one " * 100)
    with pytest.raises(Corrupt, match="damaged, or is not a database"):
        SqliteBackend(text)
    assert text.read_bytes().startswith(b"not a database")
    for name, statement in (("other", "CREATE TABLE t (x)"), ("newer", "PRAGMA user_version = 2")):
        database = sqlite3.connect(tmp_path / name)
        database.execute(statement)
        database.close()
        with pytest.raises(Invalid, match="not a space of version 1"):
            SqliteBackend(tmp_path / name)
    with pytest.raises(NotFound, match="cannot be opened"):
        SqliteBackend(tmp_path / "no" / "such" / "x.sqlite")


def test_a_writer_that_cannot_have_its_turn_is_told_so(path: Path) -> None:
    space = _space(path)
    space.transact([put("a", n=1)])
    backend = space._backend
    assert isinstance(backend, SqliteBackend)
    backend._writer.execute("PRAGMA busy_timeout = 50")
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(Unavailable, match="nothing was written") as busy:
        space.transact([put("a", n=2)])
    assert not isinstance(busy.value, CommitStateUnknown)
    assert value(space, "a") == {"n": 1}, "readers do not wait"
    other.execute("ROLLBACK")
    assert space.transact([put("a", n=2)]).seq == 2
    space.close()


def test_a_full_database_writes_nothing_of_a_transaction(path: Path) -> None:
    space = _space(path)
    space.transact([put("a", n=1)])
    backend = space._backend
    assert isinstance(backend, SqliteBackend)
    pages = backend._writer.execute("PRAGMA page_count").fetchone()[0]
    backend._writer.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(Unavailable, match="full"):
        space.transact([put("a", n=2), put("b", text="x" * 200_000)])
    assert (space.seq, value(space, "a")) == (1, {"n": 1})
    backend._writer.execute("PRAGMA max_page_count = 1000000")
    assert space.transact([put("a", n=2)]).seq == 2
    space.close()


class Full(sqlite3.Connection):
    """The disk is full when a commit is written."""

    commits: ClassVar[int] = 0
    is_full: ClassVar[bool] = False

    def execute(self, sql: str, *args: Any) -> sqlite3.Cursor:
        if sql == "COMMIT" and Full.is_full:
            Full.commits += 1
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise error
        return super().execute(sql, *args)


def test_a_full_disk_is_told_at_once(path: Path) -> None:
    clock = VirtualClock()
    space = Space(SqliteBackend(path, factory=Full, clock=clock), clock=clock)
    space.transact([put("a", n=1)])
    Full.is_full, Full.commits = True, 0
    try:
        for write in (lambda: space.transact([put("a", n=2)]), lambda: space.put_blob(b"x")):
            with pytest.raises(Unavailable, match=r"the disk is full.*nothing was written") as full:
                write()
            assert not isinstance(full.value, CommitStateUnknown)
    finally:
        Full.is_full = False
    assert (Full.commits, clock.monotonic()) == (2, 0), "once each, without a pause"
    assert (space.seq, value(space, "a")) == (1, {"n": 1})
    assert space.transact([put("a", n=2)]).seq == 2
    space.close()


READER = """
import os, sys
from worm.errors import Denied
from worm.spaces import space, sqlite_backend
from worm.spaces.opening import open_space
from worm.spaces.operations import set_document
os.setuid(65534)
with open_space(sys.argv[1], "main", create=sys.argv[2] == "True") as space:
    print(space.seq, space.read("a").value, space.read("a", at=1).value, space.merge("dev", policy="ours").committed)
    transact, put = lambda: space.transact([set_document("a", {})]), lambda: space.put_blob(b"x")
    for write in (transact, put, lambda: space.snapshot("a")):
        try:
            write()
        except Denied as error:
            print(error)
"""


@pytest.mark.slow
@pytest.mark.skipif(os.getuid() != 0, reason="takes another user's place, which only root can")
@pytest.mark.parametrize("has_log", [False, True])
@pytest.mark.parametrize(("file", "directory"), [(0o444, 0o777), (0o644, 0o555), (0o444, 0o555)])
def test_a_database_that_cannot_be_written_can_be_read(file: int, directory: int, has_log: bool) -> None:
    """By another user, whom neither the file nor the directory belongs to. With a log: the writer has it open."""
    place = Path(tempfile.mkdtemp(prefix="worm-ro-", dir="/tmp"))  # others cannot enter pytest's directory
    try:
        space = _space(place / "main.sqlite")
        space.transact([put("a", n=1)])
        space.create_branch("dev")
        space.transact([put("a", n=2)])
        if not has_log:
            space.close()
        for one in place.iterdir():
            one.chmod(file)
        place.chmod(directory)
        for create in (True, False):
            done = subprocess.run(
                [sys.executable, "-c", READER, f"sqlite://{place}", str(create)],
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
                env={**os.environ, "PYTHONPATH": str(Path(sqlite_schema.__file__).parents[2])},
            )
            lines = done.stdout.splitlines()
            assert lines[:1] == ["3 {'value': {'n': 2}} {'value': {'n': 1}} None"], done.stderr[-2000:]
            assert len(lines) == 4, done.stdout
            assert all("read-only" in line and "permission" in line for line in lines[1:])
    finally:
        space.close()
        place.chmod(0o755)
        shutil.rmtree(place)


def test_a_directory_that_cannot_be_made_is_denied(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Denied, match="directory cannot be created"):
        open_space(f"sqlite://{tmp_path}/file/deeper", "main")


class Doubtful(sqlite3.Connection):
    """Says that a COMMIT failed, after it was done or without doing it."""

    mode = ""

    def execute(self, sql: str, *args: Any) -> sqlite3.Cursor:
        if sql == "COMMIT" and Doubtful.mode:
            if Doubtful.mode == "done":
                super().execute(sql)
            raise sqlite3.OperationalError("disk I/O error")
        return super().execute(sql, *args)


@pytest.mark.parametrize("mode", ["done", "not done"])
def test_a_commit_that_is_not_confirmed_is_unknown_and_can_be_repeated(path: Path, mode: str) -> None:
    space = Space(SqliteBackend(path, factory=Doubtful), clock=VirtualClock())
    space.transact([put("a", n=1)])
    Doubtful.mode = mode
    try:
        with pytest.raises(CommitStateUnknown, match="same session_id and local_seq"):
            space.transact([change("a", m=1)], session_id="s", local_seq=1)
    finally:
        Doubtful.mode = ""
    assert space.transact([change("a", m=1)], session_id="s", local_seq=1).is_repeat == (mode == "done")
    assert (space.seq, value(space, "a")) == (2, {"n": 1, "m": 1})
    space.close()


class Mortal(sqlite3.Connection):
    """Dies at the statement number `left` of those that write; the files are copied as they are at that moment."""

    left: ClassVar[int] = -1
    live: ClassVar[Path]
    image: ClassVar[Path]

    def execute(self, sql: str, *args: Any) -> sqlite3.Cursor:
        self._step(sql)
        return super().execute(sql, *args)

    def executemany(self, sql: str, *args: Any) -> sqlite3.Cursor:
        self._step(sql)
        return super().executemany(sql, *args)

    def _step(self, sql: str) -> None:
        if Mortal.left >= 0 and not sql.lstrip().startswith(("SELECT", "ROLLBACK", "PRAGMA")):
            Mortal.left -= 1
            if Mortal.left < 0:
                Mortal.copy()
                raise Killed

    @classmethod
    def copy(cls) -> None:
        cls.image.mkdir()
        for file in ("main.sqlite", "main.sqlite-wal"):
            shutil.copy(cls.live / file, cls.image / file)


@pytest.mark.parametrize("step", range(8))
def test_a_kill_at_any_statement_leaves_the_whole_commit_or_nothing(tmp_path: Path, step: int) -> None:
    """The files are opened again as a killed process leaves them. Pages that do not fit into the cache are written
    before the commit, too."""
    Mortal.live, Mortal.image = tmp_path / "live", tmp_path / "image"
    Mortal.live.mkdir()
    space = _space(Mortal.live / "main.sqlite", Mortal, snapshot_every=1)
    space.transact([put("a", n=1)])
    backend = space._backend
    assert isinstance(backend, SqliteBackend)
    backend._writer.execute("PRAGMA cache_size = 2")
    ops = [put("a", n=2), *(put(f"b{n}", text="x" * 20_000) for n in range(20))]
    Mortal.left = step
    try:
        space.transact(ops, session_id="s", local_seq=1)
        is_done = True
        Mortal.copy()
    except Killed:
        is_done = False
    finally:
        Mortal.left = -1
    assert is_done == (step == 7)
    again = _space(Mortal.image / "main.sqlite")
    assert (again.seq, len(again.ids()), value(again, "a")) == ((2, 21, {"n": 2}) if is_done else (1, 1, {"n": 1}))
    for one in (again, space):
        assert one.transact(ops, session_id="s", local_seq=1).is_repeat == is_done
        assert (value(one, "a"), one.seq) == ({"n": 2}, 2)
        one.close()


@pytest.mark.slow
def test_revisions_before_the_last_whole_document_of_a_long_history_are_not_read(path: Path) -> None:
    space = _space(path, snapshot_every=10_000)
    for n in range(300):
        space.transact([put("a", n=n) if n < 290 else change("a", n=n)])
    rows = space._backend.revisions("", {"a": 0}, 300)["a"]
    assert [row.seq for row in rows] == list(range(290, 301))
    assert len(space._backend.revisions("", {"a": 100}, 300)["a"]) == 200, "not worth a look"
    space.close()


BULK = ["HEADS", "PAST_HEADS", "SNAPSHOTS", "REVISIONS_OF_MANY", "DEPTHS", "TOUCHED", "COMMITS_OF", "COMMITS_OF_BACK"]
ANYTHING = {"branch": "", "ids": '["a"]', "spans": '[["a",0]]', "target_seq": 9, "after": 1, "upto": 9, "limit": 9}


@pytest.mark.parametrize("name", BULK)
def test_no_grouped_read_walks_a_whole_branch(path: Path, name: str) -> None:
    """Every search is by the branch and one thing more: the id, or the seq."""
    _space(path).close()
    plan = sqlite3.connect(path).execute(f"EXPLAIN QUERY PLAN {getattr(sqlite_schema, f'SELECT_{name}')}", ANYTHING)
    steps = [row[3] for row in plan]
    searches = [step for step in steps if step.startswith("SEARCH")]
    assert searches != []
    assert [step for step in searches if "(branch=? AND " not in step] == []
    assert [step for step in steps if step.startswith("SCAN") and "wanted" not in step] == []


def test_damage_is_reported_with_its_place(path: Path) -> None:
    space = _space(path, cache_bytes=0)
    space.transact([put("a", n=1), put("b", n=1), put("c", n=1)])
    space.transact([change(entity, m=1) for entity in "abc"])
    space.create_branch("dev")
    database = sqlite3.connect(path, isolation_level=None)
    database.execute("DELETE FROM revision WHERE id = 'a' AND seq = 2")
    database.execute("UPDATE revision SET data = '[{' WHERE id = 'b' AND seq = 2")
    database.execute("UPDATE revision SET op = 'put' WHERE id = 'c' AND seq = 1")
    database.execute("UPDATE branch SET fork_seq = NULL WHERE name = 'dev'")
    for entity, message in (
        ("a", "revisions that the head points to are missing"),
        ("b", "cannot be replayed"),
        ("c", "'put'"),
    ):
        with pytest.raises(Corrupt, match=message):
            space.read(entity)
    with pytest.raises(Corrupt, match="does not descend from branch 'main'"):
        space.read("a", branch="dev")
    space.close()


def test_a_database_that_may_not_be_written(path: Path) -> None:
    _space(path).close()
    connection = connect(path, SystemClock(), create=False, factory=sqlite3.Connection)
    backend = SqliteBackend(path)
    backend._writer.close()
    connection.execute("PRAGMA query_only = ON")
    backend._open = connection
    with pytest.raises(Denied, match="cannot write to the database"):
        Space(backend).transact([put("a")])
    backend.close()


def _open_and_write(path: Path, number: int) -> None:
    with _space(path) as space:
        space.transact([put(f"e{number}")], session_id=f"s{number}", local_seq=1)


@pytest.mark.slow
def test_processes_that_make_the_same_database_at_once_make_one(path: Path) -> None:
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_open_and_write, args=(path, number)) for number in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * 4
    with _space(path) as space:
        assert (space.seq, len(space.ids())) == (4, 4)


def test_readers_in_many_threads_share_a_few_connections(path: Path) -> None:
    space = _space(path)
    space.transact([put("a", n=1)])
    failures: list[BaseException] = []

    def read() -> None:
        try:
            for _ in range(50):
                assert value(space, "a") == {"n": 1}
        except BaseException as error:  # noqa: BLE001  # told below
            failures.append(error)

    threads = [threading.Thread(target=read) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    backend = space._backend
    assert isinstance(backend, SqliteBackend)
    assert (failures, len(backend._readers) <= 8) == ([], True)
    space.close()


def test_a_stream_that_is_left_gives_its_connection_back(path: Path) -> None:
    space = _space(path)
    blob = space.put_blob(b"x" * 5_000_000)
    stream = space.stream_blob(blob.hash)
    assert len(next(stream)) == 1024 * 1024
    space.transact([put("a")])
    del stream
    assert space.read_blob(blob.hash) == b"x" * 5_000_000
    space.close()
