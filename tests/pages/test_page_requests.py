"""What a read costs in requests: two when nothing but the root is known, none afterwards, whatever the size."""

from __future__ import annotations

import random

import pytest

from worm.clock import Ids, VirtualClock
from worm.pages.compact import Compactor
from worm.pages.db import PageDb, create_database
from worm.pages.manifest import PageConfig
from worm.pages.reader import PageReader
from worm.store.memory import MemoryStore

LAYERS = 12


def built(pages: int, **settings: int) -> tuple[MemoryStore, PageReader]:
    """An image of so many pages, and some flushed layers above it, with wide filters."""
    clock = VirtualClock()
    ids, rng = Ids.seeded(pages, clock), random.Random(pages)
    store = MemoryStore(clock=clock, ids=ids)
    config = PageConfig(flush_interval_seconds=3600, block_bytes=4096, filter_bits_per_page=32)
    create_database(store, "d", config.model_copy(update=settings), clock=clock, ids=ids)
    with PageDb.open(store, "d", clock=clock, ids=ids) as db:
        db.write({name(number): rng.randbytes(50) for number in range(pages)})
        db.flush()
        Compactor(store, "d", clock=clock, ids=ids).run(force=True)
        for _ in range(LAYERS):
            db.write({name(rng.randrange(pages)): rng.randbytes(50) for _ in range(10)})
            db.flush()
    return store, PageReader.open(store, "d", clock=clock, ids=ids)


def name(number: int) -> str:
    return f"page/{number:06d}"


@pytest.mark.parametrize("pages", [100, 1000, pytest.param(4000, marks=pytest.mark.slow)])
def test_a_cold_read_takes_two_requests_and_a_warm_one_none(pages: int) -> None:
    store, reader = built(pages)
    cold: list[int] = []
    for number in random.Random(0).sample(range(pages), 40):
        reader.cache.clear()
        with store.requests.measure() as spent:
            assert reader.get_page(name(number)) is not None
        cold.append(spent["total"])
        with store.requests.measure() as spent:
            assert reader.get_page(name(number)) is not None
        assert spent["total"] == 0
    assert min(cold) == 2
    assert sum(cold) <= 2.2 * len(cold), "but for the few that a filter lets pass"


def test_without_a_cache_an_index_is_read_once_for_each_read() -> None:
    store, reader = built(1000, cache_memory_bytes=0)
    with store.requests.measure() as spent:
        for number in range(20):
            assert reader.get_page(name(number)) is not None
    assert spent["total"] == 40


def test_a_page_that_was_never_written_costs_what_one_does_that_was() -> None:
    store, reader = built(1000)
    with store.requests.measure() as spent:
        assert reader.get_page(name(5) + "-") is None
    assert spent["total"] == 2


def test_several_pages_share_the_requests_for_what_they_share() -> None:
    store, reader = built(1000)
    alone = [reader.get_page(name(number)) for number in range(30)]
    reader.cache.clear()
    with store.requests.measure() as spent:
        found = reader.get_pages([name(number) for number in range(30)])
    assert list(found.values()) == alone
    assert spent["total"] <= 2 * (LAYERS + 1)
