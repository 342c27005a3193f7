"""Moments of the SQLite backend: one look at an entity, and a connection that is never left inside an old one."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.spaces.space_room import Room, change, drop, put, value
from worm.errors import Corrupt, Invalid, NotFound, Unavailable
from worm.formats.strict_json import JsonObject, dumps, loads_own
from worm.spaces import sqlite_schema as sql
from worm.spaces.operations import ConfirmedRead, PendingRead, SpaceConfig
from worm.spaces.reading import StateCache
from worm.spaces.replay import EntityState
from worm.spaces.rows import Pointer
from worm.spaces.space import Space
from worm.spaces.sqlite_backend import SqliteBackend


class Watched(sqlite3.Connection):
    """Keeps the statements, and refuses those that are named."""

    told: ClassVar[list[str]] = []
    refused: ClassVar[set[str]] = set()

    def execute(self, sql: str, *args: Any) -> sqlite3.Cursor:
        Watched.told.append(sql)
        if sql in Watched.refused:
            raise sqlite3.OperationalError("disk I/O error")
        return super().execute(sql, *args)


@pytest.fixture
def watched(tmp_path: Path) -> Any:
    Watched.told.clear()
    backend = SqliteBackend(tmp_path / "main.sqlite", factory=Watched)
    yield Space(backend), backend
    Watched.refused.clear()
    backend.close()


def test_a_read_is_three_statements_of_one_moment_and_of_what_is_known_one(
    watched: tuple[Space, SqliteBackend],
) -> None:
    space, backend = watched
    with Space(SqliteBackend(backend.path)) as other:
        other.transact([put("a", n=1)])
    space.read("b")
    Watched.told.clear()
    space.read("a")
    assert Watched.told == ["BEGIN", sql.SELECT_CURRENT, sql.SELECT_SNAPSHOT, sql.SELECT_REVISIONS, "COMMIT"]
    Watched.told.clear()
    assert value(space, "a") == {"n": 1}
    assert Watched.told == ["BEGIN", sql.SELECT_CURRENT, "COMMIT"]


def test_the_look_at_an_entity_walks_nothing(watched: tuple[Space, SqliteBackend]) -> None:
    plan = watched[1]._writer.execute(f"EXPLAIN QUERY PLAN {sql.SELECT_CURRENT}", {"branch": "", "id": "a"})
    commit, head = (row[3] for row in plan)  # and nothing is sorted
    assert commit == "SCAN commit", "by its key, backwards, one row"
    assert "INDEX" in head
    assert "(branch=? AND id=?)" in head


@pytest.mark.parametrize("cache_bytes", [0, 10_000_000])
def test_the_short_way_says_what_the_long_one_says(room: Room, cache_bytes: int) -> None:
    space = room.open(cache_bytes=cache_bytes, snapshot_every=4, replay_depth_max=2)
    assert space.read("a") == space.read_many(["a"])["a"]
    for n in range(12):
        space.transact([drop("a") if n % 7 == 5 else put("a", n=n) if n % 3 == 0 else change("a", m=n)])
        space.transact([put("b"), change("b", n=n), change("b", m=n)])
        for entity in "abc":
            assert space.read(entity) == space.read_many([entity])[entity]
    for seq in range(space.seq + 1):
        for entity in "abc":
            assert space.read(entity, at=seq) == space.read_many([entity], at=seq)[entity]
    for wrong, error in ((space.seq + 1, NotFound), (-1, Invalid)):
        with pytest.raises(error):
            space.read("a", at=wrong)
    with pytest.raises(Invalid, match="an id"):
        space.read("")


@pytest.mark.parametrize("refused", [sql.SELECT_CURRENT, sql.SELECT_SNAPSHOT, "BEGIN", "COMMIT"])
def test_a_read_that_fails_leaves_no_connection_in_its_moment(
    watched: tuple[Space, SqliteBackend], refused: str
) -> None:
    space, backend = watched
    with Space(SqliteBackend(backend.path)) as other:
        other.transact([put("a", n=1)])
        space.read("b")
        Watched.refused.add(refused)
        for _ in range(2):
            with pytest.raises(Unavailable, match="disk I/O error"):
                space.read("a")
        Watched.refused.clear()
        assert not any(reader.connection.in_transaction for reader in backend._readers)
        other.transact([put("a", n=2)])
        assert value(space, "a") == {"n": 2}
        assert space.read_many(["a", "b"])["a"].seq == 2


def test_damage_leaves_no_connection_in_its_moment(watched: tuple[Space, SqliteBackend]) -> None:
    space, backend = watched
    space.transact([put("a", n=1), put("b", n=1)])
    backend._writer.execute("UPDATE revision SET data = '{' WHERE id = 'a'")
    fresh = Space(backend, SpaceConfig(cache_bytes=0))
    with pytest.raises(Corrupt, match="'a' on ''"):
        fresh.read("a")
    space.transact([put("b", n=2)])
    assert value(fresh, "b") == {"n": 2}


@pytest.mark.parametrize("refused", ["BEGIN IMMEDIATE", sql.SELECT_NEWEST, sql.INSERT_COMMIT])
def test_a_turn_that_fails_is_over(watched: tuple[Space, SqliteBackend], refused: str) -> None:
    space, backend = watched
    Watched.refused.add(refused)
    for _ in range(2):
        with pytest.raises(Unavailable, match="disk I/O error"):
            space.transact([put("a")])
    Watched.refused.clear()
    assert not backend._writer.in_transaction
    assert space.transact([put("a")]).seq == 1


def test_a_turn_inside_a_turn_is_refused_and_the_first_goes_on(watched: tuple[Space, SqliteBackend]) -> None:
    space, backend = watched
    with backend.turn() as turn:
        with pytest.raises(Invalid, match="a transaction is open in this thread"):
            space.transact([put("a")])
        assert turn.newest().seq == 0
        assert backend._writer.in_transaction
    thread = threading.Thread(target=space.transact, args=([put("a")],), daemon=True)
    thread.start()
    thread.join(10)
    assert space.seq == 1, "others have their turn after it"


def test_heads_are_looked_for_only_where_others_may_have_written(watched: tuple[Space, SqliteBackend]) -> None:
    space, backend = watched

    def looks(*ids: str, branch: str = "") -> bool:
        Watched.told.clear()
        space.transact([put(entity) for entity in ids], branch=branch)
        return sql.SELECT_HEAD in Watched.told or sql.SELECT_HEADS in Watched.told

    assert [looks("a"), looks("a"), looks("b"), looks("a", "b")] == [True, False, True, False]
    with Space(SqliteBackend(backend.path)) as other:
        other.transact([put("b")])
    assert [looks("c"), looks("a"), looks("b"), looks("b", "c")] == [True, True, True, False]
    space.create_branch("dev")
    assert [looks("a", branch="dev"), looks("a", branch="dev"), looks("a")] == [True, False, True]


@pytest.mark.parametrize(
    "rhythm", ["01", "0100110", *(pytest.param(one, marks=pytest.mark.slow) for one in ("0011", "0001"))]
)
def test_writers_in_turn_patch_what_the_others_wrote_and_make_snapshots_in_time(room: Room, rhythm: str) -> None:
    backends = [room.backend(), room.backend()]
    spaces = [room.space(backend, snapshot_every=5) for backend in backends]
    for n in range(40):
        space, entity = spaces[int(rhythm[n % len(rhythm)])], "ab"[n % 3 == 0]
        ops = [change(entity, **{f"f{n}": n})] if n > 2 else [put("a"), put("b")]
        space.transact([*ops, change("c", n=n)] if n % 4 == 0 and n > 4 else [*ops, put("c", n=n)])
    for reader in (*spaces, room.open()):
        found = {entity: value(reader, entity) for entity in "ab"}
        assert found == {name: {f"f{n}": n for n in range(3, 40) if "ab"[n % 3 == 0] == name} for name in "ab"}
        assert value(reader, "c") == {"n": 39}
    made = {row.seq for seq in range(41) for row in backends[0].snapshots("", ["c"], seq).values()}
    assert made == set(range(5, 41, 5))


def _state(seq: int, body: bytes = b"{}") -> EntityState:
    return EntityState("", Pointer(seq, 0), body, 0, 1)


def test_commits_without_a_gap_are_known_whole() -> None:
    cache = StateCache(2000)
    cache.put("x", _state(1))
    for seq, entity in ((3, "a"), (4, "b")):
        cache.put_commit(seq, {entity: _state(seq)})
    assert set(cache.current("", "abx", 4)) == {"a", "b"}, "others may have written x"
    assert cache.current("", "ab", 5) == cache.current("", "ab", 3) == cache.current("dev", "ab", 4) == {}
    cache.put_commit(2, {"c": _state(2)})  # by a thread that came late
    assert set(cache.current("", "abc", 4)) == {"a", "b"}
    cache.put_commit(6, {"c": _state(6)})
    assert set(cache.current("", "abc", 6)) == {"c"}
    cache.put_commit(7, {"c": _state(7, b"x" * 3000)})
    assert cache.current("", "abc", 7) == {}, "too large to be kept"
    assert cache.get("", "c", Pointer(6, 0)) is None
    cache.put_commit(8, {name: _state(8) for name in "defgh"})
    assert (len(cache.current("", "defgh", 8)), cache.size <= 2000) == (4, True)


ODD = ['"', "\\", "é", "𝄞", "a b", "</x>", "\u2028"]


def test_the_record_of_a_transaction_is_canonical_json(room: Room) -> None:
    """It is put together from pieces; a repeated transaction is recognised by its bytes."""
    backend = room.backend()
    space = room.space(backend)
    for at, entity in enumerate(ODD):
        about: JsonObject | None = {"z": [at, None], "a": entity} if at % 2 else None
        ops = [put(entity, z=1, a=[{"b": entity, "a": 1.5}]), change(entity, n=at), drop(f"{entity}-gone")]
        space.transact(ops, session_id="s", local_seq=at, about=about)
        row = backend.commit_of("s", at)
        assert row is not None
        found = loads_own(row.original.encode(), "")
        wanted: JsonObject = {"localSeq": at, "operations": [*ops], "reads": {"confirmed": [], "pending": []}}
        assert found == wanted | ({} if about is None else {"about": about})
        assert row.original == dumps(found).decode()
        assert row.resolution == dumps(loads_own(row.resolution.encode(), "")).decode()
        assert space.transact(ops, session_id="s", local_seq=at, about=about).is_repeat
    seen: list[ConfirmedRead | PendingRead] = [ConfirmedRead("a", 1), ConfirmedRead("b", 2, ""), PendingRead(ODD[0], 0)]
    done = space.transact([put("a")], session_id="s", local_seq=99, reads=seen)
    assert done.resolved_pending_reads == ((0, 1),)
    row = backend.commit_of("s", 99)
    assert row is not None
    assert row.original == dumps(loads_own(row.original.encode(), "")).decode()
    assert loads_own(row.original.encode(), "")["reads"] == {
        "confirmed": [{"id": "a", "seq": 1}, {"branch": "", "id": "b", "seq": 2}],
        "pending": [{"id": ODD[0], "localSeq": 0}],
    }


def test_the_limit_of_a_record_counts_bytes(room: Room) -> None:
    space = room.open(commit_bytes_max=1100)
    space.transact([put("a", text="x" * 900)])
    with pytest.raises(Invalid, match="the limit is 1100"):
        space.transact([put("a", text="é" * 900)])
    assert space.seq == 1


def test_a_set_has_no_other_members(room: Room) -> None:
    space = room.open()
    for more in ("branch", "patches"):
        with pytest.raises(Invalid, match="a set must have exactly the members id, op, value"):
            space.transact([{**put("a"), more: "x"}])
    assert space.seq == 0


class Name(str):
    """No exact text."""


def test_names_of_members_are_exact_text(room: Room) -> None:
    space = room.open()
    for name in (Name("n"), 1, None):
        with pytest.raises(Invalid, match="must be a string"):
            space.transact([{"op": "set", "id": "a", "value": {"value": {name: 1}}}])  # type: ignore[dict-item]  # wrong on purpose
    assert space.seq == 0
