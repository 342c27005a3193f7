"""However small the age is below which nothing is collected: no writer acknowledges into a collected slot."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from pydantic import ValidationError

from worm.clock import Ids, VirtualClock
from worm.errors import CommitStateUnknown, Fenced
from worm.log.collect import LogCollector
from worm.log.config import LogConfig
from worm.log.writer import LogWriter
from worm.store.memory import MemoryStore


@pytest.mark.parametrize("min_age", [0.1, 0.5, 1.0, 1.5, 2.0, 2.5, 10.0])
@pytest.mark.parametrize("pause", [0.1, 0.2, 0.4, 0.6, 0.9, 1.2, 2.1, 5.1])
def test_a_short_sleep_across_a_full_second_is_noticed(min_age: float, pause: float) -> None:
    """Times of S3 are whole seconds: what is a tenth of a second old may look a second old."""
    try:
        config = LogConfig(gc_min_age_seconds=min_age)
    except ValidationError:
        return  # an age that cannot be kept is not accepted
    clock = VirtualClock(datetime(2026, 1, 1, 0, 0, 0, 900_000, tzinfo=UTC))
    ids = Ids.seeded(1, clock)
    store = MemoryStore(clock=clock, ids=ids)
    old = LogWriter.open(store, "main", config=config, clock=clock, ids=ids)
    old.append_wal([{"op": "put"}])
    new = LogWriter.open(store, "main", config=config, clock=clock, ids=ids)
    for _ in range(3):
        new.append_wal([{"op": "put"}])
    clock.advance(pause)
    LogCollector(store, "main", config=config, clock=clock, ids=ids).run(4)
    with pytest.raises((CommitStateUnknown, Fenced)):
        old.append_wal([{"op": "put"}], txn="lost")
