"""A change of the root that was stored, whose answer was lost, and which others have built upon since: it is made again
(`CasFile.update`) and must find that it is there."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.pages.page_room import DB, PausingStore, Room
from tests.pages.page_witness import PageWitness
from worm.pages.branches import Branches
from worm.pages.past import Past
from worm.store.faulty_store import Fault

ROOT = "d/manifest.json"


def losing(room: Room, *, skip: int = 0) -> PausingStore:
    """A store that loses the answer of the next change of the root, and somebody else changes it at once."""
    store = PausingStore(room)
    for _ in range(skip):
        store.when("before", "put", ROOT, lambda: None)
        store.when("after", "put", ROOT, lambda: None)
    store.when("before", "put", ROOT, lambda: store.fail_next("attempt_put", Fault.LOST_RESPONSE))
    store.when("after", "put", ROOT, lambda: room.branches.create("other", at=0))
    return store


def prepared() -> Room:
    room = Room(compaction_cadence_layers=2, delta_layer_target_bytes=1024, image_layer_target_bytes=1024)
    with room.db() as db:
        room.grow(db, ["a", "b"], 3)
    room.branches.create("b")
    return room


def pin(room: Room, store: PausingStore) -> None:
    Past(store, DB, **room.time).pin(3, seconds=1000)
    assert len(room.pages().pins) == 1


def unpin(room: Room, store: PausingStore) -> None:
    pin_id = room.past.pin(3, seconds=1000)
    Past(store, DB, **room.time).unpin(pin_id)
    assert not room.pages().pins


def create(room: Room, store: PausingStore) -> None:
    made = Branches(store, DB, **room.time).create("c")
    assert made.base == room.branch("c").base


def delete(room: Room, store: PausingStore) -> None:
    Branches(store, DB, **room.time).delete("b")
    assert set(room.pages().branches) == {"main", "other"}


def reset(room: Room, store: PausingStore) -> None:
    before = room.branch("b").id
    Branches(store, DB, **room.time).reset("b")
    assert room.branch("b").id != before
    assert not room.branch("b").closing


def flush(room: Room, store: PausingStore) -> None:
    db = room.db(store=store)
    db.write({"a": b"1", "c": b"c" * 2000})
    assert db.flush() == db.head_lsn
    assert sum(layer.versions for layer in room.layers()) == 8


def apply(room: Room, store: PausingStore) -> None:
    with room.db() as db:
        db.write({"a": b"1"})
    assert room.apply(store=store).is_done
    assert sum(layer.versions for layer in room.layers()) == 7


def compact(room: Room, store: PausingStore) -> None:
    before = room.reader().get_pages(["a", "b"])
    room.compact(force=True, store=store)
    assert room.reader().get_pages(["a", "b"]) == before
    assert {layer.level for layer in room.layers()} == {1, 2}


WORK: list[tuple[Callable[[Room, PausingStore], None], int]] = [
    *((work, 0) for work in (pin, unpin, create, delete, reset, flush, apply, compact)),
    (delete, 1),
    (reset, 1),
    (compact, 1),
    (compact, 2),
]


@pytest.mark.parametrize(("work", "skip"), WORK)
def test_a_change_whose_answer_was_lost_is_made_once(work: Callable[[Room, PausingStore], None], skip: int) -> None:
    room = prepared()
    store = losing(room, skip=skip)
    work(room, store)
    assert store.is_done
    PageWitness(room.memory, DB).check()
