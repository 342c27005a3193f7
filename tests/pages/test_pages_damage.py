"""F26: a flipped bit, missing bytes, an empty or missing object, in every kind of object: an error that names it and
says where, and other pages stay readable."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest

from tests.pages.conftest import WHOLE_BYTES
from tests.pages.page_room import DB, ROOT, Room, flipped
from worm.errors import Corrupt
from worm.pages import layers
from worm.pages.manifest import Layer

DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "a flipped bit at the beginning": flipped(3),
    "a flipped bit in the middle": lambda body: flipped(len(body) // 2)(body),
    "a flipped bit at the end": lambda body: flipped(len(body) - 1)(body),
    "half of it": lambda body: body[: len(body) // 2],
    "no bytes": lambda body: b"",
    "zeros": lambda body: bytes(len(body)),
}
PAGES = [f"p{number:02d}" for number in range(20)]


@pytest.fixture(autouse=True, params=["in pieces", "whole"])
def layers_are_read(request: pytest.FixtureRequest, large_layers: None, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "whole":
        monkeypatch.setattr(layers, "WHOLE_BYTES", WHOLE_BYTES)


def room_with_layers() -> Room:
    """Deltas of one kind of pages, images of another; many blocks in each."""
    room = Room(delta_layer_target_bytes=1 << 20, image_layer_target_bytes=2048, compaction_cadence_layers=2)
    with room.db() as db:
        room.grow(db, PAGES, 2)
        room.compact(force=True)
        room.grow(db, ["x1", "x2"], 1)
        db.write({"y": b"y"})
    return room


def read_all(room: Room) -> tuple[dict[str, bytes], list[Corrupt]]:
    """What each page reads as, one by one, and the errors."""
    found, errors = {}, []
    for page in (*PAGES, "x1", "x2", "y"):
        try:
            data = room.reader().get_page(page)
        except Corrupt as error:
            errors.append(error)
        else:
            assert data is not None
            found[page] = data
    return found, errors


@cache
def undamaged() -> dict[str, bytes]:
    found, errors = read_all(room_with_layers())
    assert errors == []
    return found


def is_image(layer: Layer) -> bool:
    return layer.is_image


def is_delta(layer: Layer) -> bool:
    return layer.level == 0


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("chosen", [is_image, is_delta])
def test_f26_a_damaged_layer_is_named_and_other_pages_stay_readable(
    chosen: Callable[[Layer], bool], damage: str
) -> None:
    room, right = room_with_layers(), undamaged()
    layer = next(layer for layer in room.layers() if chosen(layer))
    key = f"db/{DB}/{layer.path}"
    room.spoil(key, DAMAGE[damage])
    found, errors = read_all(room)
    assert errors
    assert {error.key for error in errors} == {key}
    assert all("byte" in error.message for error in errors), errors
    assert found == {page: right[page] for page in found}
    assert len(found) >= len(right) - layer.pages
    with pytest.raises(Corrupt, match="byte"):
        list(room.reader().scan())


@pytest.mark.parametrize("chosen", [is_image, is_delta])
def test_f26_a_layer_that_is_gone_is_named(chosen: Callable[[Layer], bool]) -> None:
    room, right = room_with_layers(), undamaged()
    layer = next(layer for layer in room.layers() if chosen(layer))
    room.memory.delete(f"db/{DB}/{layer.path}")
    found, errors = read_all(room)
    assert {error.key for error in errors} == {f"db/{DB}/{layer.path}"}
    assert found == {page: right[page] for page in found}
    assert len(found) == len(right) - layer.pages
    with pytest.raises(Corrupt):
        list(room.reader().scan())


def test_f26_a_compaction_stops_at_damage_and_takes_nothing_away() -> None:
    room = room_with_layers()
    layer = next(layer for layer in room.layers() if layer.level == 0)
    key = f"db/{DB}/{layer.path}"
    held = room.memory.get(key)
    assert held is not None
    room.apply()
    before = [one.path for one in room.layers()]
    for damage in (DAMAGE["a flipped bit at the beginning"], None):
        if damage is None:
            room.memory.delete(key)
        else:
            room.spoil(key, damage)
        with pytest.raises(Corrupt) as caught:
            room.compact(force=True)
        assert caught.value.key == key
        assert set(before) <= {one.path for one in room.layers()}
    room.memory.put(key, held.body)
    room.compact(force=True)
    assert len(read_all(room)[0]) == 23


@pytest.mark.parametrize("damage", DAMAGE)
def test_f26_a_damaged_segment_stops_who_needs_it_and_names_it(damage: str) -> None:
    room = room_with_layers()
    key = room.keys("/log/")[-1]  # the one that is in no layer yet
    room.spoil(key, DAMAGE[damage])
    for work in (room.reader, room.apply, room.db):
        with pytest.raises(Corrupt) as caught:
            work()
        assert caught.value.key == key
        assert damage == "no bytes" or "byte" in caught.value.message, caught.value.message


def test_f26_damage_in_an_applied_segment_hurts_no_read() -> None:
    room, right = room_with_layers(), undamaged()
    applied = f"{room.branch().slot - 1:020d}"
    room.spoil(f"db/{DB}/log/{applied}", DAMAGE["half of it"])
    assert read_all(room) == (right, [])


def test_f26_a_segment_that_is_gone_is_noticed() -> None:
    room = room_with_layers()
    with room.db() as db:
        db.write({"z": b"z"})
    missing = f"db/{DB}/log/{room.branch().slot + 1:020d}"
    room.memory.delete(missing)
    with pytest.raises(Corrupt) as caught:
        room.reader()
    assert caught.value.key == missing
    with pytest.raises(Corrupt):
        room.apply()


@pytest.mark.parametrize("damage", ["half of it", "no bytes", "zeros", "a flipped bit at the beginning"])
def test_f26_a_damaged_root_stops_everything_and_is_never_replaced(damage: str) -> None:
    room = room_with_layers()
    db = room.db()
    room.spoil(ROOT, DAMAGE[damage])
    held = room.memory.get(ROOT)
    works: list[Callable[[], object]] = [
        room.reader,
        room.db,
        db.flush,
        room.apply,
        room.compact,
        room.collect,
        lambda: room.branches.create("b"),
    ]
    for work in works:
        with pytest.raises(Corrupt) as caught:
            work()
        assert caught.value.key == ROOT
    found = room.memory.get(ROOT)
    assert held is not None
    assert found is not None
    assert found.body == held.body


def test_f26_a_root_whose_pages_are_damaged_says_where() -> None:
    room = room_with_layers()
    room.spoil(ROOT, lambda body: body.replace(b'"highLsn":', b'"highLsn":-', 1))
    with pytest.raises(Corrupt, match=r"branches\.main\.layers\.0\.highLsn") as caught:
        room.reader()
    assert caught.value.key == ROOT
