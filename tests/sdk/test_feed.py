"""The feed of changes: nothing is lost, whatever is late, and an unchanged table costs one request."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.harness import CUSTOMER
from worm.clock import Ids, VirtualClock
from worm.collections.layout import SCHEMA_KEY
from worm.errors import Conflict, Invalid
from worm.formats import load_schema
from worm.sdk import feed
from worm.sdk.database import Worm
from worm.sdk.feed import ChangeRows, Cursor
from worm.sdk.sketch import PRIME, Sketch
from worm.store.base import metered
from worm.store.memory import MemoryStore
from worm.upkeep.folding import Backlog, Folder, T
from worm.upkeep.session import Maintenance

SCHEMA = load_schema(
    {
        "version": "1.0",
        "models": {
            "Customer": CUSTOMER | {"softDelete": True},
            "Order": {"mode": "readwrite", "path": "#org/@orders/(id:string)", "oplog": True},
            "Draft": {"mode": "readwrite", "path": "#org/@drafts/(id:string)", "oplog": False},
        },
    }
)
FED = ("Customer", "Order")
Seen = tuple[str, str, int]


class HeldFolder(Folder):
    """Folds when it is told to."""

    def add(self, backlog: Backlog[T], items: dict[str, T]) -> None:
        backlog.add(items)


class Room:
    """One store, and sessions on it."""

    def __init__(self, seed: int = 7, versioned: bool = True) -> None:
        self.clock = VirtualClock()
        self.ids = Ids.seeded(seed, self.clock)
        self.store = MemoryStore(versioned=versioned, clock=self.clock, ids=self.ids)
        self.store.put(SCHEMA_KEY, SCHEMA.to_json())

    def session(self, maintenance: Maintenance = "inline") -> Worm:
        made = Worm(self.store, SCHEMA, maintenance=maintenance, clock=self.clock, ids=self.ids)
        made.folder = HeldFolder(made.folder.note)
        return made


@pytest.fixture
def room() -> Room:
    return Room()


def seen(rows: ChangeRows) -> list[Seen]:
    return [(one.model, one.id, one.seq) for one in rows]


def drained(session: Worm, cursor: str, limit: int = 100) -> tuple[list[Seen], str]:
    found: list[Seen] = []
    for _ in range(2000):
        rows = session.changes(cursor, limit=limit)
        found += seen(rows)
        cursor = rows.cursor
        if not rows:
            return found, cursor
    raise AssertionError("the feed has no end")


# What it reports


def test_without_a_cursor_the_feed_begins_now(room: Room) -> None:
    db = room.session()
    db.model("Customer").insert({"id": "a", "name": "A"})
    start = db.changes()
    assert not start
    assert not db.changes(start.cursor)


def test_every_change_is_reported_with_who_and_why(room: Room) -> None:
    db = room.session()
    start = db.changes()
    db.model("Customer").insert({"id": "a", "name": "A"}, actor="ann", reason="new")
    db.model("Customer").patch("a", {"name": "B"}, actor="bob", reason="typo")
    db.model("Customer").delete("a", actor="cid")
    db.model("Customer").restore("a", actor="dee")
    rows = db.changes(start.cursor)
    assert [(one.model, one.id, one.seq, one.op, one.actor, one.reason) for one in rows] == [
        ("Customer", "a", 1, "create", "ann", "new"),
        ("Customer", "a", 2, "update", "bob", "typo"),
        ("Customer", "a", 3, "delete", "cid", None),
        ("Customer", "a", 4, "restore", "dee", None),
    ]
    assert not db.changes(rows.cursor)


def test_a_cursor_can_be_used_again(room: Room) -> None:
    db = room.session()
    start = db.changes()
    db.model("Customer").insert({"id": "a", "name": "A"})
    assert seen(db.changes(start.cursor)) == seen(db.changes(start.cursor)) == [("Customer", "a", 1)]


def test_the_own_writes_of_a_session_are_reported_at_once(room: Room) -> None:
    db = room.session("background")
    start = db.changes()
    db.model("Customer").insert({"id": "a", "name": "A"})
    assert seen(db.changes(start.cursor)) == [("Customer", "a", 1)]


def test_a_feed_of_one_model_leaves_the_others_out(room: Room) -> None:
    db = room.session()
    start = db.changes(model="Order")
    db.model("Customer").insert({"id": "a", "name": "A"})
    db.model("Order").insert({"id": "o"})
    assert seen(db.changes(start.cursor, model="Order")) == [("Order", "o", 1)]


def test_a_feed_of_several_models(room: Room) -> None:
    db = room.session()
    start = db.changes(model=["Order", "Customer"])
    db.model("Customer").insert({"id": "a", "name": "A"})
    assert seen(db.changes(start.cursor, model=["Customer", "Order"])) == [("Customer", "a", 1)]


def test_a_cursor_of_other_models_is_refused(room: Room) -> None:
    db = room.session()
    start = db.changes(model="Order")
    for model in ("Customer", None):
        with pytest.raises(Invalid, match="this cursor belongs to a feed of 'Order'"):
            db.changes(start.cursor, model=model)


def test_a_model_without_oplog_has_no_feed(room: Room) -> None:
    with pytest.raises(Invalid, match="Draft keeps no oplog"):
        room.session().changes(model="Draft")


def test_a_model_that_is_pushed_later_joins_the_feed(room: Room) -> None:
    less = load_schema({"version": "1.0", "models": {"Customer": CUSTOMER}})
    before = Worm(room.store, less, clock=room.clock, ids=room.ids)
    start = before.changes()
    db = room.session()
    db.model("Order").insert({"id": "o"})
    assert seen(db.changes(start.cursor)) == [("Order", "o", 1)]


@pytest.mark.parametrize(
    "cursor", ["", "x", "é", "eJw", "a" * 300_000, "eJyrViorSi1WsqpWSk4sSo2vLCjNS1WyUjJUqgUAhIsJDw"]
)
def test_what_is_not_a_cursor_is_refused(room: Room, cursor: str) -> None:
    with pytest.raises(Invalid, match="not the cursor of a feed"):
        room.session().changes(cursor)


def test_a_cursor_with_numbers_that_no_sketch_has_is_refused(room: Room) -> None:
    db = room.session()
    good = Cursor.of_text(db.changes().cursor)
    place = good.places["Order"]
    for sketch in (Sketch((1,) * 12, (PRIME,) * 12), Sketch((1,) * 4, (1,) * 4), Sketch((), ())):
        bad = Cursor({"Order": feed.FeedPlace(sketch, place.time)})
        with pytest.raises(Invalid, match="not the cursor of a feed"):
            db.changes(bad.text())


@pytest.mark.parametrize(
    ("name", "value"), [("limit", 0), ("limit", 1001), ("limit", True), ("limit", "5"), ("wait", -1), ("wait", "x")]
)
def test_wrong_arguments_are_refused(room: Room, name: str, value: object) -> None:
    with pytest.raises(Invalid, match=rf"{name}: must be a (whole number from 1 to 1000|number of seconds), not "):
        room.session().changes(**{name: value})  # type: ignore[arg-type]  # that is what is tested


def test_a_branch_has_no_feed(room: Room) -> None:
    definition = {"mode": "readwrite", "path": "#org/@bs/(id:string)", "oplog": True, "space": "main"}
    with Worm(MemoryStore(), load_schema({"version": "1.0", "models": {"B": definition}})) as db:
        db.model("B").insert({"id": "x"})
        db.create_branch("trial")
        with pytest.raises(Invalid, match="branch 'trial' has only commits"):
            db.branch("trial").changes()


def test_damaged_entries_are_named_and_passed(room: Room) -> None:
    db = room.session()
    start = db.changes()
    customers = db.model("Customer")
    customers.insert({"id": "a", "name": "A"})
    customers.patch("a", {"name": "B"})
    customers.patch("a", {"name": "C"})
    key = db.collection("Customer").oplog.key("a", 2)
    room.store.put(key, b"not an entry")
    rows = db.changes(start.cursor)
    assert seen(rows) == [("Customer", "a", 1), ("Customer", "a", 3)]
    assert [damage.key for damage in rows.damages] == [key]
    assert not db.changes(rows.cursor).damages


# Waiting


def test_waiting_uses_the_clock_of_the_session_and_ends(room: Room) -> None:
    db = room.session()
    rows = db.changes(db.changes().cursor, wait=20)
    assert not rows
    assert room.clock.monotonic() == 20


def test_waiting_ends_with_the_first_change(room: Room) -> None:
    db, other = room.session(), room.session()

    class Writing(VirtualClock):
        def sleep(self, seconds: float) -> None:
            self.advance(seconds)
            if self.monotonic() > 3 and other.model("Order").find_by_id("o") is None:
                other.model("Order").insert({"id": "o"})

    start, waiting = db.changes(), Writing()
    db._feed._clock = waiting
    assert seen(db.changes(start.cursor, wait=20)) == [("Order", "o", 1)]
    assert 3 < waiting.monotonic() < 6


# What it costs


def test_an_unchanged_table_costs_one_conditional_get(room: Room) -> None:
    db = room.session()
    db.model("Customer").insert({"id": "a", "name": "A"})
    start = db.changes(model="Customer")
    with metered() as meter:
        assert not db.changes(start.cursor, model="Customer")
    assert meter.requests == {"GET": 1}


def test_an_unchanged_table_costs_one_get_in_a_new_process_too(room: Room) -> None:
    db = room.session()
    db.model("Customer").insert({"id": "a", "name": "A"})
    start = db.changes(model="Customer")
    other = room.session()
    with metered() as meter:
        assert not other.changes(start.cursor, model="Customer")
    assert meter.requests == {"GET": 1}


def test_new_entries_cost_two_gets_and_one_for_each(room: Room) -> None:
    db = room.session()
    start = db.changes(model="Customer")
    for number in range(5):
        room.session().model("Customer").insert({"id": f"c{number}", "name": "A"})
    db.changes(start.cursor, model="Customer")
    start = db.changes(model="Customer")
    for number in range(5):
        room.session().model("Customer").patch(f"c{number}", {"name": "B"})
    with metered() as meter:
        assert len(db.changes(start.cursor, model="Customer")) == 5
    assert meter.requests == {"GET": 2 + 5}


@pytest.mark.slow
def test_a_cursor_stays_small(room: Room) -> None:
    db = room.session()
    db.model("Customer").insert_many([{"id": f"c{number}", "name": "A"} for number in range(1500)])
    assert len(db.changes().cursor) < 4000


# Nothing is lost


def test_an_entry_that_is_folded_late_is_reported_although_its_time_has_passed(room: Room) -> None:
    reader, slow, quick = room.session(), room.session("background"), room.session()
    quick.model("Customer").insert({"id": "first", "name": "F"})
    start = reader.changes()
    slow.model("Customer").insert({"id": "late", "name": "L"})
    room.clock.advance(3600)
    quick.model("Customer").insert({"id": "quick", "name": "Q"})
    rows = reader.changes(start.cursor)
    assert seen(rows) == [("Customer", "quick", 1)]
    slow.flush()
    for session in (reader, room.session()):  # one that remembers, and one that has only the cursor
        assert seen(session.changes(rows.cursor)) == [("Customer", "late", 1)]


def test_more_than_a_page_is_read_in_pages(room: Room) -> None:
    db = room.session()
    start = db.changes()
    db.model("Order").insert_many([{"id": f"o{number:02}"} for number in range(25)])
    for _ in range(25):
        db.model("Customer").upsert({"id": "a", "name": str(room.ids.ulid())})
    wanted = {("Order", f"o{number:02}", 1) for number in range(25)} | {("Customer", "a", n + 1) for n in range(25)}
    found, _ = drained(db, start.cursor, limit=10)
    assert (len(found), set(found)) == (50, wanted)
    assert len(db.changes(start.cursor, limit=10)) == 10


def test_a_busy_model_does_not_keep_others_waiting(room: Room) -> None:
    db = room.session()
    rows = db.changes()
    db.model("Order").insert({"id": "o"})
    for at in range(2):
        db.model("Customer").insert_many([{"id": f"c{at}-{number}", "name": "A"} for number in range(20)])
        rows = db.changes(rows.cursor, limit=5)
    assert ("Order", "o", 1) in seen(rows)


@pytest.mark.slow
def test_a_thousand_changes_are_told_to_a_process_that_has_only_the_cursor(room: Room) -> None:
    db = room.session()
    customers = db.model("Customer")
    customers.insert_many([{"id": f"c{number}", "name": "A"} for number in range(1000)])
    room.clock.advance(5)
    start = db.changes()
    room.clock.advance(5)
    for name in "BC":
        customers.upsert_many([{"id": f"c{number}", "name": name} for number in range(0, 1000, 2)])
        room.clock.advance(5)
    cursor, found = start.cursor, list[Seen]()
    while rows := room.session().changes(cursor, limit=300):
        found += seen(rows)
        cursor = rows.cursor
    assert (len(found), set(found)) == (1000, {("Customer", f"c{n}", seq) for n in range(0, 1000, 2) for seq in (2, 3)})


def test_a_document_that_is_late_twice_during_a_walk_is_told_completely(room: Room) -> None:
    quick, slow = room.session(), room.session("background")
    customers = quick.model("Customer")
    with cells(24):
        customers.insert_many([{"id": f"c{number:02}", "name": "A"} for number in range(90)])
        room.clock.advance(60)
        slow.model("Customer").upsert({"id": "c00", "name": "late"})
        room.clock.advance(60)
        customers.upsert({"id": "c99", "name": "A"})
        cursor = quick.changes(model="Customer").cursor
        slow.flush()  # an entry before the time of the cursor
        room.clock.advance(60)
        customers.upsert_many([{"id": f"c{number:02}", "name": "B"} for number in range(10, 90)])
        rows = room.session().changes(cursor, model="Customer", limit=5)
        room.clock.advance(-90)
        customers.upsert({"id": "c00", "name": "late again"})  # behind the walk by now
        found = seen(rows)
        while rows := room.session().changes(rows.cursor, model="Customer", limit=50):
            found += seen(rows)
    assert sorted(found) == [("Customer", "c00", 2), ("Customer", "c00", 3)] + [
        ("Customer", f"c{number:02}", 2) for number in range(10, 90)
    ]


def test_a_cursor_grows_with_its_model(room: Room) -> None:
    db = room.session()
    cursor = db.changes(model="Customer").cursor
    db.model("Customer").insert_many([{"id": f"c{number}", "name": "A"} for number in range(500)])
    sizes = [Cursor.of_text(one).places["Customer"].known.size for one in (cursor, drained_one(db, cursor))]
    assert sizes == [feed.CELLS_MIN, feed.CELLS_MAX]


def drained_one(session: Worm, cursor: str) -> str:
    return session.changes(cursor, model="Customer", limit=1000).cursor


def test_heads_that_are_lost_hide_nothing_for_good(room: Room) -> None:
    db = room.session()
    db.model("Customer").insert({"id": "a", "name": "A"})
    start = db.changes()
    room.store.delete(db.collection("Customer").resolver.heads_key("Customer"))
    assert not room.session().changes(start.cursor)
    room.session().model("Customer").insert({"id": "b", "name": "B"})
    found, _ = drained(room.session(), start.cursor)
    assert ("Customer", "b", 1) in found


@contextmanager
def cells(most: int) -> Iterator[None]:
    before = feed.CELLS_MAX
    feed.CELLS_MAX = most
    try:
        yield
    finally:
        feed.CELLS_MAX = before


class Simulation:
    """Sessions that write and fold when they like, with clocks that jump, and readers that come and go."""

    def __init__(self, seed: int, *, is_warm: bool) -> None:
        self.rng = random.Random(seed)
        self.room = Room(seed, versioned=self.rng.random() < 0.5)
        modes: list[Maintenance] = ["inline", "background", "background", "events"]
        self.writers = [self.room.session(mode) for mode in modes]
        self.reader = self.room.session()
        self.is_warm = is_warm
        self.found: list[Seen] = []

    def run(self, steps: int) -> None:
        for _ in range(self.rng.randrange(30)):
            self.write()
        start = self.reader.changes(model=None if self.rng.random() < 0.7 else FED)
        self.asked = None if Cursor.of_text(start.cursor).asked is None else FED
        self.before = {(name, one, seq) for name in FED for one, seq in self._folded(name)}
        self.cursor = start.cursor
        for _ in range(steps):
            self.rng.choice([self.write, self.write, self.write, self.fold, self.read, self.tick, self.burst])()
        for writer in self.writers:
            writer.flush()
        for report in self.room.session().sweep():
            assert report.error is None
        for _ in range(5000):
            if not self.read():
                return
        raise AssertionError("the feed has no end")

    def _folded(self, name: str) -> Iterator[tuple[str, int]]:
        """What the feed can know of a model; incomplete heads are completed by a listing."""
        session = self.room.session()
        heads = session.table(name).heads.read()
        newest = {} if heads is None else {one: head.seq for one, head in heads.heads.items()}
        if heads is not None and heads.partial:
            newest = {one: seqs.last for one, seqs in session.collection(name).recorded_seqs().items()}
        for one, last in newest.items():
            yield from ((one, seq) for seq in range(1, last + 1))

    def write(self) -> None:
        model = self.rng.choice(self.writers).model(self.rng.choice(FED))
        one, rng = f"d{self.rng.randrange(40)}", self.rng
        try:
            if rng.random() < 0.15:
                model.delete(one)
            else:
                model.upsert({"id": one, "name": str(rng.random())})
        except Conflict:  # the others were quicker
            pass

    def burst(self) -> None:
        model, rng = self.rng.choice(self.writers).model(self.rng.choice(FED)), self.rng
        ids = [f"b{rng.randrange(300)}" for _ in range(rng.randrange(40))]
        model.upsert_many([{"id": one, "name": str(rng.random())} for one in dict.fromkeys(ids)])

    def fold(self) -> None:
        self.rng.choice(self.writers).flush()

    def tick(self) -> None:
        self.room.clock.advance(self.rng.choice([0.4, 1, 2, 60, -40, 600, -500]))

    def read(self) -> bool:
        """Whether there was something."""
        if not self.is_warm and self.rng.random() < 0.7:
            self.reader = self.room.session()
        rows = self.reader.changes(self.cursor, model=self.asked, limit=self.rng.choice([1, 7, 50, 1000]))
        self.found += seen(rows)
        self.cursor = rows.cursor
        return bool(rows)

    def check(self) -> None:
        wanted = {(name, one, seq) for name in FED for one, seq in self._folded(name)} - self.before
        assert wanted <= set(self.found), f"lost: {sorted(wanted - set(self.found))}"
        for name in FED:  # the heads have everything that is recorded
            recorded = self.room.session().collection(name).recorded_seqs()
            assert {(one, seqs.last) for one, seqs in recorded.items()} <= set(self._folded(name))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(16))
def test_every_entry_is_reported_whatever_is_late_and_whoever_reads(seed: int) -> None:
    with cells([12, 24, 60, 240][seed % 4]):
        simulation = Simulation(seed, is_warm=False)
        simulation.run(120)
        simulation.check()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_a_session_that_reads_on_gets_every_entry_once(seed: int) -> None:
    with cells([12, 240][seed % 2]):
        simulation = Simulation(seed, is_warm=True)
        simulation.run(120)
        simulation.check()
        assert len(simulation.found) == len(set(simulation.found))
        assert not set(simulation.found) & simulation.before
