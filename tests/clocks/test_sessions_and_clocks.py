"""A session whose wall clock jumps: what it remembers, and what its writes say of the version before them."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.clocks.clock_life import YEAR, JumpingClock, Ticks
from tests.sdk.sessions import KEY, Bench, must
from worm.clock import Ids, iso_millis, iso_seconds, moment_of
from worm.collections.documents import DocumentVersion
from worm.collections.entries import OplogEntry
from worm.sdk.database import Model, Worm
from worm.sdk.document import Provenance
from worm.sdk.memory import OWN_SECONDS
from worm.upkeep.session import Maintenance


class Jumpy:
    """A session with a clock of its own on a bench."""

    def __init__(self, bench: Bench, *, maintenance: Maintenance = "events") -> None:
        self.clock = JumpingClock(Ticks())
        self.model: Model = Worm(
            bench.store,
            bench.schema,
            maintenance=maintenance,
            probe=False,
            clock=self.clock,
            ids=Ids.seeded(3, self.clock),
        ).model("Customer")

    def names(self) -> list[object]:
        return [row.get("name") for row in self.model.find_all(filter={})]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    made = Bench("memory-versioned", tmp_path)
    made.customers().table.complete()
    return made


@pytest.mark.parametrize("jump", [-YEAR, 2 * OWN_SECONDS, YEAR])
def test_a_session_shows_its_own_write_whatever_its_clock_does(bench: Bench, jump: int) -> None:
    """A clock that was set right by hours ended what the session remembered, and the next query missed its write."""
    session = Jumpy(bench)
    session.model.insert({"id": "a", "name": "mine"})
    session.clock.offset += jump
    assert session.names() == ["mine"]


def test_a_session_whose_clock_was_set_back_sees_what_others_wrote_over_its_write(bench: Bench) -> None:
    """By that clock its write was new for a year, so nobody looked whether it still was the newest."""
    session = Jumpy(bench)
    session.model.insert({"id": "a", "name": "mine"})
    session.clock.offset -= YEAR
    other = bench.customers(maintenance="events")
    other.save(must(other.find_by_id("a")) | {"name": "theirs"})
    session.clock.sleep(10)
    assert session.names() == ["theirs"]


def test_a_save_long_after_its_read_does_not_hide_versions_because_the_clock_was_set_back(bench: Bench) -> None:
    """Equal bytes have equal etags. The save named the version that it had read as its parent; the one that it wrote
    over was a later one with the same bytes, and the history left out what was between them."""
    bench.store.put(KEY, b'{"name":"one"}')
    bench.repair()
    session = Jumpy(bench, maintenance="inline")
    document = session.model.get("a")
    bench.store.put(KEY, b'{"name":"two"}')
    bench.store.put(KEY, b'{"name":"one"}')
    session.clock.sleep(1000)
    session.clock.offset -= 1001
    session.model.save(document | {"name": "three"})
    names = [json.loads(must(bench.store.get(KEY, version_id=one.version_id)).body)["name"] for one in versions(bench)]
    assert names == ["one", "two", "one", "three"]
    assert len(bench.ops("a")) == 4
    bench.assert_clean()


def versions(bench: Bench) -> list[OplogEntry]:
    return list(bench.collection.oplog.entries("a"))


@pytest.mark.parametrize("year", [1, 290, 2026, 9999])
def test_times_have_one_form_in_every_year(year: int) -> None:
    moment = datetime(year, 2, 3, 4, 5, 6, 789_999, tzinfo=UTC)
    assert iso_millis(moment) == f"{year:04d}-02-03T04:05:06.789Z"
    assert iso_seconds(moment) == f"{year:04d}-02-03T04:05:06Z"
    assert must(moment_of(iso_millis(moment))).year == year


@pytest.mark.parametrize(("later", "is_trusted"), [(0, True), (60, True), (61, False), (-1, False)])
def test_what_a_document_says_of_its_version_counts_for_a_minute_and_not_on_a_clock_set_back(
    later: int, is_trusted: bool
) -> None:
    read_at = datetime(2026, 1, 1, tzinfo=UTC)
    origin = Provenance("Customer", "a", DocumentVersion("e", "v1"), read_at)
    assert origin.fresh_version_id(read_at + timedelta(seconds=later)) == ("v1" if is_trusted else None)
