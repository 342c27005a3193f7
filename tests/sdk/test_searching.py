"""`db.history`: the right entries in the right order, at a bounded cost, whatever is damaged."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from random import Random

import pytest
from pydantic import BaseModel

from tests.collections.archive_room import Room
from tests.docs.markdown import ROOT, blocks
from tests.harness import CUSTOMER
from tests.sdk.sessions import spent
from worm.clock import Ids, VirtualClock
from worm.collections.oplog import Oplog
from worm.errors import Invalid, NotFound
from worm.formats import load_schema
from worm.sdk.database import Worm
from worm.sdk.searching import HistoryEntry, HistoryRows
from worm.store.memory import MemoryStore

ORDER = CUSTOMER | {"path": "#org/@orders/(id:string)"}
NOTE = {"path": "#org/@notes/(id:string)", "fields": {"name": {"type": "string"}}}
SCHEMA = load_schema({"version": "1.0", "models": {"Customer": CUSTOMER, "Order": ORDER, "Note": NOTE}})
START = datetime(2026, 1, 1, tzinfo=UTC)


class Desk:
    """Two models with history, one without, and sessions that share a clock."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.ids = Ids.seeded(3, self.clock)
        self.store = MemoryStore(versioned=True, clock=self.clock, ids=self.ids)
        self.db = self.session()

    def session(self) -> Worm:
        return Worm(self.store, SCHEMA, probe=False, clock=self.clock, ids=self.ids)

    def at(self, seconds: float) -> datetime:
        return START + timedelta(seconds=seconds)

    def fill(self, changes: int = 120, seed: int = 5) -> None:
        random = Random(seed)
        for number in range(changes):
            self.clock.advance(random.choice((0, 0, 1, 3)))
            model = self.db.model(random.choice(("Customer", "Order")))
            document = {"id": f"d{random.randrange(8)}", "name": f"n{number}"}
            actor = random.choice(("ann", "bob", None))
            if random.random() < 0.1:
                model.delete(document["id"], actor=actor)
            else:
                reason = random.choice((None, "Nightly import", "by hand"))
                model.upsert({**document}, actor=actor, reason=reason, metadata={"job": number % 3})

    def all(self) -> list[HistoryEntry]:
        """Everything in order, by the histories of single documents."""
        found = [
            HistoryEntry.of(entry, name, one)
            for name in ("Customer", "Order")
            for one in self.db.model(name).table.collection.recorded_seqs()
            for entry in self.db.model(name).get_history(one)
        ]
        by_document = sorted(found, key=lambda one: (one.model, one.id, -one.seq))
        return sorted(by_document, key=lambda one: one.ts, reverse=True)


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture(scope="module")
def filled() -> Desk:
    """For tests that only read."""
    desk = Desk()
    desk.fill()
    return desk


def test_a_search_finds_what_single_histories_hold_in_order(filled: Desk) -> None:
    desk = filled
    everything = desk.all()
    assert len(everything) > 100
    assert desk.session().history(limit=None) == everything
    assert desk.session().history() == everything[:100]
    assert desk.session().history(model="Order", limit=None) == [one for one in everything if one.model == "Order"]


@pytest.mark.parametrize("limit", [1, 7, 50])
def test_filters_times_and_pages_together_give_each_entry_once(filled: Desk, limit: int) -> None:
    desk = filled
    everything, since, until = desk.all(), desk.at(30), desk.at(90.7)
    found: list[HistoryEntry] = []
    cursor: str | None = None
    while True:
        page = desk.session().history(actor="ann", since=since, until=until, limit=limit, cursor=cursor)
        found += page
        cursor = page.cursor
        if cursor is None:
            break
    times = ("2026-01-01T00:00:30Z", "2026-01-01T00:01:30Z")
    assert found == [one for one in everything if one.actor == "ann" and times[0] <= one.ts <= times[1]]
    assert len(found) > 5


def test_entries_are_found_by_operation_reason_and_metadata(desk: Desk) -> None:
    desk.fill()
    everything = desk.all()
    history = desk.db.history
    assert history(op="delete", limit=None) == [one for one in everything if one.op == "delete"] != []
    imports = [one for one in everything if one.reason == "Nightly import"]
    assert history(reason="nightly IMP", limit=None) == imports != []
    second = [one for one in everything if one.metadata.get("job") == 2]
    assert history(metadata={"job": 2.0}, limit=None) == second != []
    assert history(metadata={"job": "2"}) == history(metadata={"job": True}) == history(metadata={"task": None}) == []
    (entry, *_) = imports
    assert (entry.model in ("Customer", "Order"), entry.id[0], entry.reason) == (True, "d", "Nightly import")


def test_a_class_names_its_model(desk: Desk) -> None:
    class Order(BaseModel):
        id: str
        name: str

    desk.db.model("Customer").insert({"id": "a", "name": "x"})
    desk.db.model("Order").insert({"id": "o", "name": "x"})
    assert [(one.model, one.id) for one in desk.db.history(model=Order)] == [("Order", "o")]


def test_only_documents_that_changed_since_are_read_and_only_back_to_then(desk: Desk) -> None:
    customers = desk.db.model("Customer")
    for number in range(40):
        customers.insert({"id": f"old{number}", "name": "x"})
    for number in range(30):
        customers.upsert({"id": "busy", "name": f"n{number}"})
    desk.clock.advance(100)
    for name in ("busy", "old7"):
        customers.patch(name, {"name": "new"})
    fresh = desk.session()
    # The heads; of each of the two documents the new entry, and the two before it, which are too old.
    assert spent(desk.store, lambda: fresh.history(model="Customer", since=desk.at(50))) <= 1 + 2 * 3
    assert {one.id for one in fresh.history(model="Customer", since=desk.at(50))} == {"busy", "old7"}
    assert spent(desk.store, lambda: fresh.history(model="Customer", since=desk.at(500))) == 1


def test_a_limit_stops_the_reading(desk: Desk) -> None:
    customers = desk.db.model("Customer")
    for number in range(60):
        desk.clock.advance(1)
        customers.insert({"id": f"c{number}", "name": "x"})
    fresh = desk.session()
    assert spent(desk.store, lambda: fresh.history(model="Customer", limit=5)) <= 1 + 5
    assert [one.id for one in fresh.history(limit=3)] == ["c59", "c58", "c57"]


def test_a_search_of_long_ago_does_not_walk_back_through_a_long_history(desk: Desk) -> None:
    customers = desk.db.model("Customer")
    for number in range(200):
        desk.clock.advance(1)
        customers.upsert({"id": "a", "name": f"n{number}"})
    fresh = desk.session()
    assert [one.seq for one in fresh.history(until=desk.at(20), limit=2)] == [20, 19]
    assert spent(desk.store, lambda: fresh.history(model="Customer", until=desk.at(20), limit=2)) <= 15


def test_heads_that_are_spread_over_files_are_read_once(desk: Desk) -> None:
    spread = CUSTOMER | {"manifest": {"enabled": True, "partitionThreshold": 5}}
    schema = load_schema({"version": "1.0", "models": {"Customer": spread}})
    db = Worm(desk.store, schema, probe=False, clock=desk.clock, ids=desk.ids)
    for number in range(40):
        desk.clock.advance(1)
        db.model("Customer").insert({"id": f"c{number:02}", "name": "x"})
    assert db.table("Customer").heads.held_spread is not None
    fresh = Worm(desk.store, schema, probe=False, clock=desk.clock, ids=desk.ids)
    assert [one.id for one in fresh.history(limit=None)] == [f"c{number:02}" for number in range(39, -1, -1)]
    assert spent(desk.store, lambda: fresh.history(limit=3)) <= 1 + 3


def test_without_heads_the_oplogs_are_listed(desk: Desk) -> None:
    desk.fill(60)
    everything = desk.all()
    for name in ("Customer", "Order"):
        desk.store.delete(desk.db.table(name).heads.key)
    since = desk.at(20)
    fresh = desk.session()
    assert fresh.history(limit=None) == everything
    assert fresh.history(since=since, limit=None) == [one for one in everything if one.ts >= "2026-01-01T00:00:20Z"]
    assert fresh.history(limit=4) == everything[:4]


def test_archived_entries_are_found() -> None:
    room = Room(every=4)
    _grow(room, 30)
    room.grow_cold()
    before = _seqs(room)
    assert before == list(range(30, 0, -1))
    room.compact()
    assert len(room.single()) < 30
    assert _seqs(room) == before
    times = {entry.seq: entry.ts for entry in room.session().get_history("a")}
    assert times[12] == times[13] < times[14]
    assert _seqs(room, until=times[12], limit=3) == [13, 12, 11]


def test_damaged_entries_are_reported_and_stop_nothing_else(desk: Desk) -> None:
    customers = desk.db.model("Customer")
    for number in range(12):
        desk.clock.advance(1)
        customers.upsert({"id": "a", "name": f"n{number}"})
        customers.upsert({"id": "b", "name": f"n{number}"})
    oplog = customers.table.collection.oplog
    desk.store.put(oplog.key("a", 5), b"{")
    desk.store.delete(oplog.key("a", 9))
    found = desk.session().history(limit=None)
    assert [one.seq for one in found if one.id == "b"] == list(range(12, 0, -1))
    assert [one.seq for one in found if one.id == "a"] == [12, 11, 10, 8, 7, 6, 4, 3, 2, 1]
    assert [one.key for one in found.damages] == [oplog.key("a", 5), oplog.key("a", 9)]


def _grown(desk: Desk, entries: int) -> Oplog:
    customers = desk.db.model("Customer")
    for number in range(entries):
        customers.upsert({"id": "a", "name": f"n{number}"})
    return customers.table.collection.oplog


def test_a_history_of_damaged_entries_is_given_up_after_some(desk: Desk) -> None:
    oplog = _grown(desk, 60)
    for seq in range(1, 61):
        desk.store.put(oplog.key("a", seq), b"garbage")
    found = desk.session().history(limit=None)
    assert (found, len(found.damages)) == ([], 10)


def test_entries_that_are_gone_are_told_once_however_many(desk: Desk) -> None:
    oplog = _grown(desk, 60)
    for seq in range(2, 59):
        desk.store.delete(oplog.key("a", seq))
    found = desk.session().history(limit=None)
    assert [one.seq for one in found] == [60, 59, 1]
    (damage,) = found.damages
    assert (damage.key, damage.message) == (oplog.key("a", 2), "a gap in the oplog: entries 2 to 58 are missing")


def test_a_damaged_archive_is_reported_once_and_what_is_newer_is_there() -> None:
    room = Room(every=4)
    _grow(room, 30)
    room.grow_cold()
    room.compact()
    (archive,) = [one.key for one in room.store.list("") if "0001-" in one.key or "/.archive" in one.key][:1]
    room.store.put(archive, b"damaged")
    found = Worm(room.store, room.schema, probe=False, clock=room.clock, ids=room.ids).history(limit=None)
    assert [one.key for one in found.damages] == [archive]
    assert [one.seq for one in found][:3] == [30, 29, 28]


def test_the_examples_of_the_page_run(capsys: pytest.CaptureFixture[str]) -> None:
    examples = [block.text for block in blocks(ROOT / "docs" / "history.md") if block.language == "python"]
    exec(compile("\n".join(examples), "history.md", "exec"), {})
    first, second, found, news, changed = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"Customer acme 3 update \S+ bob on holiday", news)
    assert changed == "Customer acme changed ('status',)"
    assert first.startswith("1 create ")
    assert "'status': ['lead', 'active']" in second
    assert found.startswith("Customer acme 2 Nightly import {")


def test_wrong_questions_are_invalid(desk: Desk) -> None:
    history = desk.db.history
    with pytest.raises(Invalid, match=r"'change' is not an operation.*create, delete"):
        history(op="change")
    with pytest.raises(Invalid, match="limit"):
        history(limit=0)
    with pytest.raises(Invalid, match="datetime must be timezone-aware"):
        history(since=datetime(2026, 1, 1))  # noqa: DTZ001 - what is refused
    with pytest.raises(Invalid, match="'yesterday' is not a time"):
        history(until="yesterday")
    for cursor in ("nonsense", "W10", ""):
        with pytest.raises(Invalid, match="not the cursor of a search"):
            history(cursor=cursor)
    with pytest.raises(Invalid, match="Note keeps no oplog"):
        history(model="Note")
    with pytest.raises(NotFound, match="Nothing"):
        history(model="Nothing")
    with pytest.raises(Invalid, match="actor: must be text"):
        history(actor=7)  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(Invalid, match="metadata: must be an object"):
        history(metadata=["job"])  # type: ignore[arg-type]  # wrong on purpose
    assert history() == HistoryRows()


def _grow(room: Room, entries: int) -> None:
    """Two entries a second."""
    customers = room.session()
    for number in range(entries):
        room.clock.advance(number % 2)
        customers.upsert({"id": "a", "name": f"n{number}"})


def _seqs(room: Room, **asked: object) -> list[int]:
    db = Worm(room.store, room.schema, probe=False, clock=room.clock, ids=room.ids)
    return [one.seq for one in db.history(**{"limit": None, **asked})]  # type: ignore[arg-type]  # what a test asks
