"""Requests that reading, flushing and applying take. What is counted here is paid for on S3."""

from __future__ import annotations

from random import Random

import pytest

from tests.pages.page_room import DB, Room
from worm.pages.compact import Compactor
from worm.pages.db import PageDb, create_database
from worm.pages.manifest import PageConfig
from worm.pages.reader import PageReader
from worm.store.memory import MemoryStore

LAYERS = [1, 8, 30]


def database(pages: int, layers: int, *, image: bool = False) -> MemoryStore:
    """So many pages, spread over so many delta layers; most of them in an image, if asked for."""
    store = MemoryStore()
    config = PageConfig(flush_interval_seconds=80_000, compaction_cadence_layers=1000, image_layer_target_bytes=1 << 20)
    create_database(store, DB, config)
    with PageDb.open(store, DB) as db:
        names = [f"p{number:06d}" for number in range(pages)]
        Random(pages).shuffle(names)
        for at in range(layers):
            part = names[at::layers]
            for start in range(0, len(part), 5000):
                db.write({name: name.encode() * 4 for name in part[start : start + 5000]})
            db.flush()
        if image:
            Compactor(store, DB).run(force=True)
            db.write({names[0]: names[0].encode() * 4})
            db.flush()
    return store


@pytest.mark.parametrize("layers", LAYERS)
@pytest.mark.parametrize("pages", [10, 1000, pytest.param(50_000, marks=pytest.mark.slow)])
def test_a_cold_read_of_a_page_takes_two_requests(pages: int, layers: int) -> None:
    """An index and a block. A filter is wrong about one page in a hundred, and then one more layer is asked."""
    store = database(pages, min(layers, pages))
    chance = Random(1)
    spent = []
    for _ in range(40):
        reader = PageReader.open(store, DB)  # its cache is empty, the root is known
        page = f"p{chance.randrange(pages):06d}"
        with store.requests.measure() as requests:
            assert reader.get_page(page) == page.encode() * 4
        assert requests.keys() <= {"GET", "total"}
        spent.append(requests["total"])
        with store.requests.measure() as requests:
            assert reader.get_page(page) == page.encode() * 4
        assert requests["total"] == 0, "a warm read"
    assert sorted(spent)[len(spent) // 2] == 2
    assert sum(spent) <= 2 * len(spent) * (1 + 0.01 * layers)


@pytest.mark.parametrize("pages", [10, 1000, pytest.param(50_000, marks=pytest.mark.slow)])
def test_a_cold_read_of_an_image_takes_two_requests(pages: int) -> None:
    store = database(pages, 4, image=True)
    for number in range(0, pages, max(1, pages // 10)):
        reader = PageReader.open(store, DB)
        with store.requests.measure() as requests:
            assert reader.get_page(f"p{number:06d}") is not None
        assert requests["total"] <= 2


def test_a_page_that_was_never_written_takes_no_request_where_filters_know_all() -> None:
    store = database(1000, 8)
    spent = []
    for number in range(40):
        reader = PageReader.open(store, DB)
        with store.requests.measure() as requests:
            assert reader.get_page(f"p{number:06d}x") is None
        spent.append(requests["total"])
    assert sorted(spent)[len(spent) // 2] == 0


def test_a_read_of_the_past_asks_no_layer_that_is_newer() -> None:
    room = Room()
    db = room.db()
    reader, written = room.reader(), room.grow(db, ["a"], 8)
    for lsn, pages in written.items():
        reader = room.reader()
        with room.memory.requests.measure() as requests:
            assert reader.get_page("a", lsn) == pages["a"]
        assert requests["total"] == 2
    last = db.write({"a": b"last"})
    assert reader.get_page("a", last) == b"last", "an LSN that it does not know yet makes it look"


def test_many_pages_of_a_block_take_its_requests_once() -> None:
    store = database(1000, 1)
    reader = PageReader.open(store, DB)
    with store.requests.measure() as requests:
        assert all(reader.get_pages([f"p{number:06d}" for number in range(1000)]).values())
    blocks = reader._reader.index(reader.pages.branch("main").layers[0]).blocks
    assert requests == {"GET": 1 + len(blocks), "total": 1 + len(blocks)}


def test_a_refresh_lists_nothing() -> None:
    room = Room()
    db = room.db()
    room.grow(db, ["a"], 3)
    reader = room.reader()
    db.write({"a": b"x"})
    with room.memory.requests.measure() as requests:
        reader.refresh()
    assert requests.keys() <= {"GET", "HEAD", "total"}
    assert requests["total"] <= 7  # the root, the segment, those after it, the boundary after each look
    with room.memory.requests.measure() as requests:
        reader.refresh()
    assert requests["total"] <= 4
    assert reader.get_page("a") == b"x"


def test_a_commit_is_one_request() -> None:
    room = Room()
    db = room.db()
    db.write({"a": b"1"})
    with room.memory.requests.measure() as requests:
        db.write({"a": b"2", "b": None})
    assert requests == {"PUT": 1, "total": 1}


@pytest.mark.parametrize("layers", [1, 3])
def test_a_flush_is_its_layers_a_look_and_one_flip(layers: int) -> None:
    room = Room(delta_layer_target_bytes=1024)
    db = room.db()
    db.write({f"p{number}": Random(number).randbytes(1100) for number in range(layers)})
    versions = len(list(room.memory.versions(f"db/{DB}/manifest.json")))
    with room.memory.requests.measure() as requests:
        db.flush()
    assert len(room.layers()) == layers
    assert requests["PUT"] == layers + 1
    assert requests["HEAD"] == 1
    assert requests["GET"] <= 2
    assert "LIST" not in requests
    assert len(list(room.memory.versions(f"db/{DB}/manifest.json"))) == versions + 1
    with room.memory.requests.measure() as requests:
        db.flush()
    assert requests["total"] == 1, "there is nothing: a look at the root"


def test_applying_lists_nothing_and_flips_once() -> None:
    room = Room()
    with room.db() as db:
        for number in range(10):
            db.write({f"p{number}": b"x"})
    versions = len(list(room.memory.versions(f"db/{DB}/manifest.json")))
    with room.memory.requests.measure() as requests:
        applied = room.apply()
    assert (applied.flushes, applied.segments) == (1, 11)
    assert "LIST" not in requests
    assert requests["PUT"] == 2
    assert len(list(room.memory.versions(f"db/{DB}/manifest.json"))) == versions + 1
    with room.memory.requests.measure() as requests:
        assert room.apply().flushes == 0
    assert requests.keys() <= {"GET", "HEAD", "total"}
    assert requests["total"] <= 6


def test_a_branch_is_one_flip_however_large_the_database() -> None:
    room = Room()
    with room.db() as db:
        room.grow(db, [f"p{number}" for number in range(100)], 3)
    versions = len(list(room.memory.versions(f"db/{DB}/manifest.json")))
    with room.memory.requests.measure() as requests:
        room.branches.create("b")
    assert len(list(room.memory.versions(f"db/{DB}/manifest.json"))) == versions + 1
    assert requests["PUT"] <= 3  # the root, that of its log, the pointer for people
    assert "LIST" not in requests
    assert not room.layers("b")
