"""Hours of a page store in simulated time: flushes, compactions and collections, and the state after each minute.

Everything is counted and nothing timed, so the numbers are the same on every machine.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from scripts.benchmarks._pages import page_name, some_pages
from worm.clock import Ids, VirtualClock
from worm.log.config import MIB
from worm.pages.collect import PageCollector
from worm.pages.compact import Compactor
from worm.pages.db import PageDb, create_database
from worm.pages.layers import page_ranges
from worm.pages.manifest import MAIN, PageConfig, Pages
from worm.store.memory import MemoryStore

MINUTE = 60.0
COMPACT_EVERY = 10
CONFIG = PageConfig(
    flush_interval_seconds=24 * 3600,
    delta_layer_target_bytes=MIB,
    image_layer_target_bytes=2 * MIB,
    pitr_window_seconds=2 * 3600,
)
"""Layers have a sixty-fourth of their default size, so that a small database has many."""


@dataclass
class Lifecycle:
    """The state after each minute."""

    hours: list[float] = field(default_factory=list)
    asked: list[int] = field(default_factory=list)
    live: list[int] = field(default_factory=list)
    objects: list[int] = field(default_factory=list)
    flushes: int = 0
    page_bytes: int = 0
    stored_bytes: int = 0
    layer_bytes: int = 0

    def told(self) -> dict[str, object]:
        half = len(self.hours) // 2
        return {
            "hours": round(self.hours[-1], 1),
            "flushes": self.flushes,
            "layers_that_a_read_may_ask": {"median": _median(self.asked[half:]), "max": max(self.asked[half:])},
            "live_layers": {"median": _median(self.live[half:]), "max": max(self.live[half:])},
            "objects": {"median": _median(self.objects[half:]), "max": max(self.objects[half:])},
            "bytes_put_per_byte_of_pages": round(self.stored_bytes / self.page_bytes, 2),
            "bytes_of_layers_per_byte_of_pages": round(self.layer_bytes / self.page_bytes, 2),
        }


def _median(values: Sequence[int]) -> int:
    return sorted(values)[len(values) // 2]


def deepest(pages: Pages) -> int:
    """The maximum number of layers that a read of a newest page would have to ask without filters."""
    return max(len(piece.candidates) for piece in page_ranges(pages, MAIN, pages.branch(MAIN).lsn))


def lifecycle(minutes: int, pages: int = 20_000, changed: int = 200) -> Lifecycle:
    """One flush of this many random pages per minute; every ten minutes, the work of the function `compact`."""
    clock = VirtualClock()
    ids, rng, found = Ids.seeded(1, clock), random.Random(1), Lifecycle()
    store = MemoryStore(clock=clock, ids=ids)
    create_database(store, "day", CONFIG, clock=clock, ids=ids)
    db = PageDb.open(store, "day", clock=clock, ids=ids)
    for start in range(0, pages, 1000):
        _written(db, some_pages(rng, range(start, min(pages, start + 1000))), found)
    for minute in range(minutes):
        clock.advance(MINUTE)
        _written(db, some_pages(rng, rng.sample(range(pages), changed)), found)
        db.flush()
        found.flushes += 1
        if minute % COMPACT_EVERY == COMPACT_EVERY - 1:
            Compactor(store, "day", clock=clock, ids=ids).run()
            PageCollector(store, "day", clock=clock, ids=ids).run()
            db.refresh()
        found.hours.append((minute + 1) / 60)
        found.asked.append(deepest(db.pages))
        found.live.append(len(db.pages.branch(MAIN).layers))
        found.objects.append(sum(listed.key.endswith((".delta", ".image")) for listed in store.list("db/day/")))
    found.stored_bytes = store.requests.bytes_written
    written = db.pages.branch(MAIN).written
    found.layer_bytes = written.flushed + written.merged + written.images
    if db.get_page(page_name(0)) is None:
        raise RuntimeError("a page was lost")
    return found


def _written(db: PageDb, pages: dict[str, bytes], found: Lifecycle) -> None:
    db.write(dict(pages))
    found.page_bytes += sum(len(page) + len(data) for page, data in pages.items())
