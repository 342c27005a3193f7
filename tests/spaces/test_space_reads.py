"""Reading: now, as of a commit or a time, one and many; snapshots and their end (seed 5, 6, 7, 9)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from tests.spaces.space_room import Room, change, drop, put, value
from worm.errors import Corrupt, Invalid, NotFound
from worm.formats.strict_json import JsonObject
from worm.spaces.backend import Backend
from worm.spaces.reading import StateCache
from worm.spaces.replay import EntityState
from worm.spaces.rows import MAIN, Pointer, SnapshotRow
from worm.spaces.space import Space


class Counting:
    """A backend that counts the reads it is asked for."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.calls: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        self.calls[name] += 1
        return getattr(self._backend, name)


def _written(space: Space, count: int, make: Callable[[int], JsonObject]) -> None:
    for n in range(count):
        space.transact([make(n)])


def test_present_deleted_empty_and_never_are_told_apart(space: Space) -> None:
    space.transact([{"op": "set", "id": "a", "value": {}}])
    space.transact([drop("a"), put("b")])
    told = [(one.presence, one.seq, one.value) for one in (space.read("a", at=n) for n in (0, 1, 2))]
    assert told == [("empty", 0, None), ("present", 1, {}), ("deleted", 2, None)]
    assert space.read("b", at=1).presence == "empty"
    assert [space.read("c", at=n).presence for n in (None, 0, 1)] == ["never"] * 3
    assert [space.read("a", at=n).exists for n in (0, 1, 2)] == [False, True, False]


@pytest.mark.parametrize("is_reopened", [False, True])
def test_every_past_state_can_be_read(room: Room, is_reopened: bool) -> None:
    space = room.open(snapshot_every=7, replay_depth_max=4)
    _written(space, 60, lambda n: drop("a") if n % 13 == 9 else put("a", n=n) if n % 5 == 0 else change("a"))
    space = room.open() if is_reopened else space
    want: object = None
    for seq in range(1, 61):
        n = seq - 1
        want = None if n % 13 == 9 else {"value": {"n": n}} if n % 5 == 0 else (want or {})
        assert space.read("a", at=seq).value == want, seq
    assert space.read("a").value == want


def test_a_commit_that_is_not_there_yet_cannot_be_read(space: Space) -> None:
    space.transact([put("a")])
    with pytest.raises(NotFound, match="commit 2 does not exist yet; the newest is 1"):
        space.read("a", at=2)
    for at in (-1, True, 2**63):
        with pytest.raises(Invalid):
            space.read("a", at=at)


def test_a_time_is_the_last_commit_at_or_before_it(room: Room) -> None:
    space, start = room.open(), room.clock.now()
    for n in range(20):
        space.transact([put("a", n=n)])
        if n % 3:
            room.clock.advance(1)
    times = [entry.created_at for entry in space.log()]
    for at in sorted({*times, *(one + timedelta(milliseconds=500) for one in times), start - timedelta(days=1)}):
        seq = sum(one <= at for one in times)
        assert space.read("a", at=at).at == seq
    assert space.read("a", at=start - timedelta(1)).presence == "empty"
    with pytest.raises(Invalid, match="must be timezone-aware"):
        space.read("a", at=datetime(2026, 1, 1))  # noqa: DTZ001  # that is the mistake


def test_a_time_in_another_zone_is_the_same_time(room: Room) -> None:
    space = room.open()
    space.transact([put("a")])
    zone = datetime(2026, 1, 1, 2, tzinfo=UTC).astimezone().tzinfo
    assert space.read("a", at=room.clock.now().astimezone(zone)).at == 1


def test_many_entities_are_read_as_of_one_commit_in_grouped_reads(room: Room) -> None:
    ids = [f"e{n}" for n in range(50)]
    room.open(replay_depth_max=2).transact([put(entity, n=0) for entity in ids])
    writer = room.open(replay_depth_max=2)
    for n in range(1, 6):
        writer.transact([change(entity, n=n) for entity in ids[::2]])
    writer.transact([drop(ids[0])])
    backend = Counting(room.backend())
    space = room.space(cast(Backend, backend))
    found = space.read_many([*ids, "never"])
    assert list(found) == [*ids, "never"]
    assert {one.at for one in found.values()} == {7}
    assert {entity: one.value for entity, one in found.items()} == {
        **{entity: {"value": {"n": 5}} for entity in ids[::2]},
        **{entity: {"value": {"n": 0}} for entity in ids[1::2]},
        ids[0]: None,
        "never": None,
    }
    assert backend.calls == {"newest": 1, "heads": 1, "snapshots": 1, "revisions": 1}
    past = space.read_many(ids, at=3)
    assert past["e2"].value == {"value": {"n": 2}}
    assert past["e0"].exists
    assert space.read_many([]) == {}


ODD = ['"', "\\", "a b", "é", "𝄞", "%", "_", "'", "[0]", "{}", "x:y", "1", "null", "urn:x/y?z"]


def test_ids_are_any_text(room: Room) -> None:
    space = room.open()
    space.transact([put(entity, name=entity) for entity in ODD])
    space.transact([change(entity, again=True) for entity in ODD])
    for reader in (space, room.open()):
        found = reader.read_many(ODD)
        assert {entity: one.value for entity, one in found.items()} == {
            entity: {"value": {"name": entity, "again": True}} for entity in ODD
        }
        assert {entity: value(reader, entity, at=1) for entity in ODD} == {entity: {"name": entity} for entity in ODD}
    assert space.ids() == sorted(ODD)


def test_what_is_known_already_is_not_read_again_and_others_commits_are_seen(room: Room) -> None:
    backend = Counting(room.backend())
    space, other = room.space(cast(Backend, backend)), room.open()
    other.transact([put("a", n=1)])
    assert value(space, "a") == {"n": 1}
    backend.calls.clear()
    assert value(space, "a") == {"n": 1}
    assert backend.calls == {"newest": 1, "heads": 1}
    other.transact([put("a", n=2)])
    assert value(space, "a") == {"n": 2}


@pytest.mark.parametrize("cache_bytes", [0, 1000, 10_000_000])
def test_the_size_of_the_cache_changes_no_answer(room: Room, cache_bytes: int) -> None:
    space = room.open(cache_bytes=cache_bytes, snapshot_every=5)
    for n in range(12):
        space.transact([change(entity, **{f"f{n}": n}) if n else put(entity, f0=0) for entity in "abc"])
        assert space._cache.size <= cache_bytes
    assert value(space, "b") == {f"f{n}": n for n in range(12)}
    assert value(space, "b", at=4) == {f"f{n}": n for n in range(4)}


def test_a_document_that_is_too_large_to_remember_drives_no_other_out() -> None:
    cache = StateCache(2000)
    small = EntityState(MAIN, Pointer(1, 0), b"{}")
    cache.put("a", small)
    cache.put("b", EntityState(MAIN, Pointer(1, 1), b"x" * 3000))
    assert cache.get(MAIN, "a", Pointer(1, 0)) is small
    assert cache.get(MAIN, "b", Pointer(1, 1)) is None
    cache.put("a", EntityState(MAIN, Pointer(0, 0), b"older"))
    assert cache.get(MAIN, "a", Pointer(1, 0)) is small, "what is newer stays"


def _snapshots(backend: Backend, id: str, branch: str = MAIN) -> list[int]:
    """The seqs of all snapshots of an entity."""
    found, upto = [], backend.newest().seq
    while rows := backend.snapshots(branch, [id], upto):
        found.append(rows[id].seq)
        upto = rows[id].seq - 1
    return found[::-1]


@pytest.mark.parametrize("is_reopened", [False, True])
@pytest.mark.parametrize("op", ["set", "patch"])
def test_a_snapshot_is_made_after_so_many_revisions_of_one_entity(room: Room, is_reopened: bool, op: str) -> None:
    backend = room.backend()
    space = room.space(backend, snapshot_every=4)
    for n in range(10):
        space.transact([put("a", n=n) if op == "set" or n == 0 else change("a", n=n), put("b")])
        if is_reopened:
            space = room.open(snapshot_every=4)
    assert _snapshots(backend, "a") == [4, 8]
    assert backend.depths(MAIN, ["a", "b"]) == {"a": 2, "b": 2}
    assert backend.snapshots(MAIN, ["a"], 5)["a"] == SnapshotRow(MAIN, "a", 4, '{"value":{"n":3}}')


def test_a_snapshot_is_made_when_patches_to_replay_become_too_many(room: Room) -> None:
    backend = room.backend()
    space = room.space(backend, replay_depth_max=3)
    _written(space, 10, lambda n: put("a", n=n) if n in (0, 6) else change("a", n=n))
    assert _snapshots(backend, "a") == [5]
    _written(space, 1, lambda n: change("a", n=10))
    assert _snapshots(backend, "a") == [5, 11]


def test_a_snapshot_holds_the_document_after_the_whole_commit(room: Room) -> None:
    backend = room.backend()
    space = room.space(backend, snapshot_every=2)
    space.transact([put("a", n=1), change("a", m=2)])
    assert backend.snapshots(MAIN, ["a"], 1)["a"].value == '{"value":{"m":2,"n":1}}'
    assert room.open().read("a").value == {"value": {"n": 1, "m": 2}}


def test_what_is_deleted_gets_no_snapshot(room: Room) -> None:
    backend = room.backend()
    space = room.space(backend, snapshot_every=1)
    space.transact([put("a"), drop("a")])
    assert (space.snapshot("a", "never"), _snapshots(backend, "a")) == (0, [])


def test_snapshots_on_demand_are_at_the_seq_of_the_revision(room: Room) -> None:
    backend = room.backend()
    space = room.space(backend)
    _written(space, 6, lambda n: put("a", n=n) if n % 2 else put("b", n=n))
    assert space.snapshot("a", "b") == 2
    assert space.snapshot("a", at=3) == 1
    assert space.snapshot("a", at=3) == 1
    assert (_snapshots(backend, "a"), _snapshots(backend, "b")) == ([2, 6], [5])
    assert [value(space, "a", at=n) for n in (2, 3, 4)] == [{"n": 1}, {"n": 1}, {"n": 3}]
    space.create_branch("dev")
    assert space.snapshot("a", branch="dev") == 0, "visible there, but not written there"


def test_maintenance_makes_snapshots_of_what_was_written_often(room: Room) -> None:
    backend = room.backend()
    space = room.space(backend, snapshot_every=10)
    _written(space, 6, lambda n: put("a", n=n))
    space.create_branch("dev")
    for n in range(5):
        space.transact([change("a", n=n), put("c")], branch="dev")
    space.transact([put("b")])
    assert space.maintain().snapshots == 3
    assert (_snapshots(backend, "a"), _snapshots(backend, "b")) == ([6], [])
    assert _snapshots(backend, "a", "dev") == [12]
    assert (space.maintain().snapshots, space.maintain(at_least=1).snapshots) == (0, 1)
    space.transact([put("c", n=1)], branch="dev")
    space.delete_branch("dev")
    assert space.maintain(at_least=1).snapshots == 0, "a deleted branch is let be"


@pytest.mark.parametrize(("keep", "left"), [(1, [9]), (2, [6, 9]), (3, [3, 6, 9]), (9, [3, 6, 9])])
def test_collecting_keeps_the_newest_snapshots_and_all_revisions(room: Room, keep: int, left: list[int]) -> None:
    backend = room.backend()
    space = room.space(backend, snapshot_every=3)
    _written(space, 10, lambda n: change("a", **{f"f{n}": n}) if n else put("a", f0=0))
    assert _snapshots(backend, "a") == [3, 6, 9]
    assert space.gc(keep=keep) == 3 - len(left)
    assert _snapshots(backend, "a") == left
    for seq in range(1, 11):
        assert value(room.open(), "a", at=seq) == {f"f{n}": n for n in range(seq)}


def test_collecting_keeps_all_snapshots_unless_told_otherwise(room: Room) -> None:
    space = room.open(snapshot_every=1)
    _written(space, 3, lambda n: put("a", n=n))
    assert space.gc() == 0
    assert room.open(snapshots_kept=2).gc() == 1
    with pytest.raises(Invalid, match="the newest snapshot is always kept"):
        space.gc(keep=0)


def test_collecting_is_apart_for_every_entity_and_branch(room: Room) -> None:
    backend = room.backend()
    space = room.space(backend, snapshot_every=1)
    space.transact([put("a"), put("b")])
    space.create_branch("dev")
    for branch in (MAIN, "dev", MAIN, "dev"):
        space.transact([put("a")], branch=branch)
    assert space.gc(keep=1) == 3
    assert (_snapshots(backend, "a"), _snapshots(backend, "a", "dev"), _snapshots(backend, "b")) == ([5], [6], [1])


def test_a_wrong_snapshot_would_be_seen_so_replay_begins_from_it(room: Room) -> None:
    """Proves that reads use the nearest snapshot, and only what comes after it."""
    backend = room.backend()
    room.space(backend).transact([put("a", n=1)])
    space = room.open()
    space.transact([change("a", m=1)])
    backend.put_snapshots([SnapshotRow(MAIN, "a", 1, '{"value":{"marked":1}}')])
    assert [value(room.open(), "a", at=n) for n in (1, 2)] == [{"marked": 1}, {"marked": 1, "m": 1}]
    backend.put_snapshots([SnapshotRow(MAIN, "a", 1, '{"value":{"other":1}}')])
    assert value(room.open(), "a", at=1) == {"marked": 1}, "one that is there stays"


def test_a_long_history_of_whole_documents_is_not_read_whole(room: Room) -> None:
    backend = room.backend()
    space = room.space(backend, snapshot_every=10_000)
    _written(space, 400, lambda n: put("a", n=n) if n % 50 < 48 else change("a", m=n))
    assert len(backend.revisions(MAIN, {"a": 0}, 400)["a"]) <= 400
    assert value(room.open(), "a", at=399) == {"n": 397, "m": 398}
    many = room.open().read_many(["a", "b"], at=400)
    assert many["a"].value == {"value": {"n": 397, "m": 399}}


def test_a_damaged_snapshot_is_reported_not_read(room: Room) -> None:
    backend = room.backend()
    room.space(backend).transact([put("a", n=1)])
    backend.put_snapshots([SnapshotRow(MAIN, "a", 1, '{"value":')])
    with pytest.raises(Corrupt, match="'a' on ''"):
        room.open().read("a")


def test_ids_of_a_branch(space: Space) -> None:
    space.transact([put("a"), put("b")])
    space.create_branch("dev")
    space.transact([put("c")], branch="dev")
    space.transact([put("d"), drop("a")])
    assert (space.ids(), space.ids(branch="dev"), space.ids(at=0)) == (["a", "b", "d"], ["a", "b", "c"], [])


def test_the_log_can_be_followed(space: Space, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worm.spaces.space._PAGE", 20)
    _written(space, 45, lambda n: put("a", n=n))
    assert [entry.seq for entry in space.log()] == list(range(1, 46))
    assert [entry.seq for entry in space.log(after=43)] == [44, 45]
    assert [entry.seq for entry in space.log(after=5, limit=2)] == [6, 7]
    assert list(space.log(after=45)) == list(space.log(limit=0)) == []


def test_a_closed_space_says_so(room: Room) -> None:
    space = room.open()
    space.transact([put("a")])
    with space:
        pass
    for call in (lambda: space.read("a"), lambda: space.transact([put("a")])):
        with pytest.raises(Invalid, match="closed"):
            call()
