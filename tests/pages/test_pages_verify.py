"""`verify_pages` finds damage in every byte that a read could meet, and nothing where there is none."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.pages.page_room import DB, MIN_AGE, ROOT, Room, flipped
from worm.errors import NotFound
from worm.log.common import LogProblem
from worm.pages.manifest import MAIN
from worm.pages.verify import verify_pages
from worm.store.memory import MemoryStore


@pytest.fixture
def room() -> Room:
    """Layers of every kind on two branches, a log with collected slots, a pin."""
    room = Room(pitr_window_seconds=0, compaction_cadence_layers=2)
    with room.db() as db:
        room.grow(db, ["a", "b"], 3)
        room.compact(force=True)
        room.grow(db, ["a", "c"], 2)
    room.branches.create("side")
    with room.db("side") as db:
        room.grow(db, ["s"], 2)
        room.compact("side")
        room.grow(db, ["t"], 1)
        db.write({"late": b"L"})
    room.past.pin(room.branch().lsn, seconds=10_000)
    room.clock.advance(3 * MIN_AGE)
    assert room.collect().slots
    return room


def problems(room: Room) -> list[LogProblem]:
    return list(verify_pages(room.memory, DB, **room.time))


def test_nothing_is_wrong_where_nothing_was_done(room: Room) -> None:
    assert problems(room) == []
    assert {layer.level for name in (MAIN, "side") for layer in room.layers(name)} == {0, 1, 2}


@pytest.mark.slow
def test_every_byte_of_every_layer_counts(room: Room) -> None:
    for name in (MAIN, "side"):
        for layer in room.layers(name):
            key = f"db/{DB}/{layer.path}"
            found = room.memory.get(key)
            assert found is not None
            for at in range(0, len(found.body), 7):
                room.spoil(key, flipped(at))
                assert {(one.kind, one.key) for one in problems(room)} == {("layer-damaged", key)}, at
                room.memory.put(key, found.body)
    assert problems(room) == []


def test_every_segment_after_the_boundary_counts(room: Room) -> None:
    for key in room.keys("/log/"):
        found = room.memory.get(key)
        assert found is not None
        for change in (flipped(30), lambda body: body[:-5], lambda _: b""):
            room.spoil(key, change)
            assert ("log-damaged", key) in {(one.kind, one.key) for one in problems(room)}
            room.memory.put(key, found.body)


@pytest.mark.parametrize(
    ("part", "kind"),
    [("delta/", "layer-damaged"), ("image/", "layer-damaged"), ("side-log", "log-damaged"), ("backup", "copy-damaged")],
)
def test_what_is_missing_is_named(room: Room, part: str, kind: str) -> None:
    part = room.branch("side").id + "/log/" if part == "side-log" else part
    named = {f"db/{DB}/{layer.path}" for name in (MAIN, "side") for layer in room.layers(name)}
    keys = [key for key in room.keys(part) if kind != "layer-damaged" or key in named]
    for key in keys:
        room.memory.delete(key)
    assert {one.kind for one in problems(room)} == {kind}


@pytest.mark.parametrize("change", [lambda _: b"{}", lambda body: body[:-1], lambda _: b""])
def test_a_damaged_root_is_one_problem(room: Room, change: Callable[[bytes], bytes]) -> None:
    room.spoil(ROOT, change)
    assert [(one.kind, one.key) for one in problems(room)] == [("root-damaged", ROOT)]


def test_there_is_nothing_to_check_where_nothing_is() -> None:
    with pytest.raises(NotFound):
        list(verify_pages(MemoryStore(), "none"))
