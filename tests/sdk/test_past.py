"""A collection as it was: by every strategy, `find_all(at=T)` is what `get_at(id, time=T)` says of each id.

The oracle is a copy of all documents after each step, kept by this file. Two sessions write; the one that asks has
tables in the background or inline, whole or partitioned, cut, or none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest

import worm
from tests.collections.archive_room import Room
from tests.examples import examples, some
from tests.query.filter_oracle import oracle
from tests.sdk.bank_room import SpaceBench
from tests.sdk.sessions import Bench, must, spent
from worm.clock import VirtualClock
from worm.errors import Conflict, Corrupt, Invalid, NotFound
from worm.formats import load_schema
from worm.formats.strict_json import JsonValue
from worm.query import execute
from worm.query.needs import STRATEGIES
from worm.sdk.class_schema import schema_of
from worm.sdk.database import Model, Worm
from worm.sdk.past import LookedUp, PastStates
from worm.store.memory import MemoryStore
from worm.upkeep.session import Maintenance

pytestmark = pytest.mark.slow  # together more than a few seconds

KINDS: dict[str, dict[str, object]] = {
    "whole": {},
    "partitions": {"manifest": {"enabled": True, "partitionThreshold": 4, "maxPartitions": 3}},
    "some fields": {"manifest": {"enabled": True, "fields": ["status"]}},
    "cut": {"manifest": {"enabled": True, "maxFieldBytes": 7}},
    "no table": {"manifest": {"enabled": False}, "indexes": {}},
    "checkpoints": {"snapshots": {"enabled": True, "every": 2}},
}
IDS = [f"d{number}" for number in range(12)]
FILTERS: list[dict[str, JsonValue]] = [
    {},
    {"status": "a"},
    {"status": {"$in": ["a", "b"]}},
    {"score": {"$gte": 3}},
    {"status": "b", "score": {"$lt": 5}},
    {"id": {"$in": ["d1", "d2", "d3", "nobody"]}},
    {"name": {"$regex": "^n"}},
]
ROUNDS = examples(16)


class World:
    """A bench, what was stored at the end of each second, and dice."""

    def __init__(self, kind: str, store: str, seed: int, tmp_path: Path, maintenance: Maintenance = "inline") -> None:
        self.bench = Bench(store, tmp_path / str(seed), **KINDS[kind])
        self.random = Random(seed)
        self.customers = self.bench.customers(maintenance=maintenance)
        self.other = self.bench.customers()
        self.states: dict[datetime, dict[str, dict[str, Any]]] = {}

    def step(self) -> None:
        """A change by one of the two sessions; often several in a second."""
        customers = self.random.choice([self.customers, self.customers, self.other])
        one = self.random.choice(IDS)
        document = {
            "id": one,
            "name": self.random.choice(["name", "other", "n" * 9]),
            "status": self.random.choice("abc"),
            "score": self.random.randrange(8),
        }
        roll = self.random.random()
        if roll < 0.25:
            customers.delete(one)
        elif roll < 0.35 and any(trashed["id"] == one for trashed in customers.list_trashed()):
            if not customers.exists(one):
                customers.restore(one)
        else:
            customers.upsert(document)
        self.states[self.bench.clock.now().replace(microsecond=0)] = self.stored()
        self.bench.tick(self.random.choice([0.2, 0.7, 1, 5]))

    def stored(self) -> dict[str, dict[str, Any]]:
        return {one: dict(found) for one in IDS if (found := self.other.find_by_id(one)) is not None}

    def moments(self) -> Iterator[tuple[datetime, dict[str, dict[str, Any]]]]:
        """Some of them, each with what was there."""
        first = min(self.states)
        yield first - timedelta(seconds=1), {}
        for moment in self.random.sample(sorted(self.states), min(4, len(self.states))):
            yield moment + timedelta(seconds=self.random.choice([0, 0.5])), self.states[moment]
        yield self.bench.clock.now() + timedelta(days=1), self.stored()


def by_id(rows: Any) -> list[dict[str, Any]]:
    return sorted((dict(row) for row in rows), key=lambda row: str(row["id"]))


def check(customers: Model, moment: datetime, then: Mapping[str, dict[str, Any]], filter: dict[str, JsonValue]) -> None:
    wanted = [row for row in by_id(then.values()) if oracle(filter, row)]
    for strategy in (None, *STRATEGIES):
        try:
            found = customers.find_all(filter, at=moment, strategy=strategy)
        except Invalid as refused:
            assert (strategy in STRATEGIES, refused.path) == (True, "strategy")  # noqa: PT017 - one that cannot answer
            continue
        assert by_id(found) == wanted, (strategy, found.plan)
    assert customers.count(filter, at=moment) == len(wanted)
    batches = [row for batch in customers.find_batches(filter, batch_size=3, at=moment) for row in batch]
    assert by_id(batches) == wanted
    values = sorted({row["status"] for row in wanted})
    assert customers.distinct("status", filter, at=moment) == values
    summed = customers.aggregate(sum="score", count=True, filter=filter, at=moment)
    assert summed["count"] == len(wanted)
    paged, cursor = list[Any](), None
    while True:
        page = customers.find_all(filter, sort="-score", limit=2, cursor=cursor, at=moment)
        paged += page
        cursor = page.cursor
        if cursor is None:
            break
    assert by_id(paged) == wanted
    assert [row["score"] for row in paged] == sorted((row["score"] for row in wanted), reverse=True)


def told_one_by_one(customers: Model, moment: datetime) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for one in IDS:
        try:
            document = customers.get_at(one, time=moment)
        except NotFound:
            continue
        if document is not None:
            found[one] = dict(document)
    return found


@pytest.mark.parametrize("maintenance", ["inline", "background"])
@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("store", ["memory", "memory-versioned"])
def test_the_past_is_what_was_there(kind: str, store: str, maintenance: Maintenance, tmp_path: Path) -> None:
    for seed in range(max(1, ROUNDS // 4)):
        world = World(kind, store, seed, tmp_path, maintenance)
        for _ in range(world.random.choice([3, 12, 40])):
            world.step()
        for moment, then in world.moments():
            assert told_one_by_one(world.customers, moment) == then
            for asked in world.random.sample(FILTERS, 3):
                check(world.customers, moment, then, asked)


@pytest.mark.parametrize("kind", ["whole", "partitions"])
def test_the_past_of_a_directory_is_what_was_there(kind: str, tmp_path: Path) -> None:
    world = World(kind, "file", 3, tmp_path)
    for _ in range(12):
        world.step()
    for moment, then in some(world.moments()):
        check(world.customers, moment, then, {"status": "a"})
        check(world.customers, moment, then, {})


@pytest.mark.parametrize("kind", list(KINDS))
def test_heads_that_are_missing_damaged_or_incomplete_cost_requests_and_nothing_else(kind: str, tmp_path: Path) -> None:
    world = World(kind, "memory-versioned", 1, tmp_path)
    for _ in range(30):
        world.step()
    heads = world.customers.table.heads.key
    for body in (None, b"damaged", b'{"heads":{},"model":"Customer","partial":true,"revision":0,"version":1}'):
        world.bench.store.delete(heads)
        if body is not None:
            world.bench.store.put(heads, body)
        customers = world.bench.customers()
        for moment, then in world.moments():
            check(customers, moment, then, {"status": "a"})
        assert "oplogs are listed" in customers.find_all(at=moment).plan.reason


def test_archived_entries_tell_the_past_too() -> None:
    room = Room(every=4)
    customers = room.session()
    then: dict[datetime, dict[str, Any]] = {}
    for number in range(60):
        customers.upsert({"id": f"c{number % 2}", "name": str(number)})
        then[room.clock.now()] = {str(row["id"]): row["name"] for row in customers.find_all()}
        room.clock.advance(1)
    room.grow_cold()
    assert room.compact().archives == 2
    customers.upsert({"id": "c0", "name": "new"})
    for moment, names in some(then.items()):
        rows = room.session().find_all(at=moment)
        assert {str(row["id"]): row["name"] for row in rows} == names


# Others go on writing


def three(tmp_path: Path, kind: str = "whole", others: int = 0) -> tuple[Bench, Model, datetime]:
    """a and b are of status a, c is of status b; so many others are of none. Then a second goes by."""
    bench = Bench("memory-versioned", tmp_path, **KINDS[kind])
    customers = bench.customers()
    for one, status in (("a", "a"), ("b", "a"), ("c", "b")):
        customers.insert({"id": one, "name": one, "status": status, "score": 1})
    if others:
        customers.insert_many([{"id": f"o{number}", "name": "o", "score": 1} for number in range(others)])
        customers.build_manifest()  # of a spread table, no delta is left
    moment = bench.clock.now()
    bench.tick()
    return bench, bench.customers(), moment


def changed_by_another(bench: Bench, maintenance: Maintenance = "inline") -> None:
    other = bench.customers(maintenance=maintenance)
    other.patch("a", {"status": "b"})
    other.delete("b")
    other.patch("c", {"status": "a"})
    other.insert({"id": "d", "name": "d", "status": "a", "score": 1})


QUESTIONS: dict[str, Any] = {
    "scan": lambda customers, at: customers.find_all({"status": "a"}, at=at, strategy="manifest_scan"),
    "index": lambda customers, at: customers.find_all({"status": "a"}, at=at, strategy="index_lookup"),
    "targeted": lambda customers, at: customers.find_all({"status": "a"}, at=at, strategy="manifest_targeted"),
    "full": lambda customers, at: customers.find_all({"status": "a"}, at=at, strategy="full_scan"),
    "batches": lambda customers, at: [
        row for rows in customers.find_batches({"status": "a"}, at=at, batch_size=1) for row in rows
    ],
}


@pytest.mark.parametrize("kind", ["whole", "partitions", "some fields"])
@pytest.mark.parametrize("question", list(QUESTIONS))
@pytest.mark.parametrize("fold", ["whole", "half"])
def test_what_others_change_during_a_query_is_not_in_its_past(
    kind: str, question: str, fold: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else rows of the table, documents or an index that are newer than the heads would be taken for what was there.
    A fold writes the rows before the heads: `half`, the heads never learn of it while the query runs."""
    if (kind, question) == ("some fields", "scan"):
        return
    bench, customers, moment = three(tmp_path, kind, 100)
    assert customers.count({"status": "a"}, at=moment) == 2  # what is remembered of the moment misleads nobody
    usual, calls = customers._heads_at, list[object]()

    def meanwhile(asked: Any) -> Any:
        found = calls[0] if calls and fold == "half" else usual(asked)
        calls.append(found)
        if len(calls) == 1:
            changed_by_another(bench)
        return found

    monkeypatch.setattr(customers, "_heads_at", meanwhile)
    try:
        rows = QUESTIONS[question](customers, moment)
    except Invalid as refused:
        assert (fold == "half" or kind == "partitions", question, refused.path) == (True, "index", "strategy")  # noqa: PT017 - the index is ahead
        return
    assert sorted(row["id"] for row in rows) == ["a", "b"]


@pytest.mark.parametrize("question", list(QUESTIONS))
def test_changes_that_are_not_recorded_yet_are_not_in_the_past(question: str, tmp_path: Path) -> None:
    bench, customers, moment = three(tmp_path)
    changed_by_another(bench, "events")
    assert sorted(row["id"] for row in QUESTIONS[question](customers, moment)) == ["a", "b"]
    assert sorted(row["id"] for row in QUESTIONS[question](customers, bench.clock.now())) == ["a", "b"]
    bench.repair()
    bench.tick()
    assert sorted(row["id"] for row in QUESTIONS[question](customers, moment)) == ["a", "b"]
    assert sorted(row["id"] for row in QUESTIONS[question](customers, bench.clock.now())) == ["c", "d"]


# What it costs


def test_the_past_costs_the_heads_and_a_look_up_for_each_change(tmp_path: Path) -> None:
    bench = Bench("memory", tmp_path)
    customers = bench.customers()
    customers.insert_many([{"id": f"e{number}", "status": "a"} for number in range(200)])
    moment = bench.clock.now()
    bench.tick()
    for number in range(5):
        customers.patch(f"e{number}", {"status": "b"})
    customers.insert({"id": "new", "status": "a"})
    fresh = bench.customers()
    plan = fresh.explain({"status": "a"}, at=moment)
    assert "as of 2026-01-01T00:00:00Z: 6 changed since, and their histories are read" in plan.reason
    asked = bench.customers()
    # manifest, heads, and the first entry of each of five; one that came later takes nothing
    assert spent(bench.store, lambda: asked.count({"status": "a"}, at=moment)) == 7
    assert plan.estimate.requests == {"GET": 7}
    # a moment that was asked for before takes two conditional GETs
    assert spent(bench.store, lambda: asked.find_all({"status": "a"}, at=moment, limit=3)) == 2
    customers.patch("e9", {"status": "b"})
    assert spent(bench.store, lambda: asked.find_all({"status": "a"}, at=moment, limit=3)) == 3
    analyzed = bench.customers().explain({"status": "a"}, at=moment, analyze=True)
    assert must(analyzed.actual).rows == 200


def test_a_spread_table_is_streamed_as_it_was_without_reading_its_documents(tmp_path: Path) -> None:
    bench = Bench("memory", tmp_path, **KINDS["partitions"])
    customers = bench.customers()
    customers.insert_many([{"id": f"e{number}", "status": "a"} for number in range(60)])
    moment = bench.clock.now()
    bench.tick()
    customers.patch("e7", {"status": "b"})
    customers.delete("e8")
    fresh = bench.customers()
    found: list[Any] = []
    taken = spent(bench.store, lambda: found.extend(row for rows in fresh.find_batches(at=moment) for row in rows))
    assert must(fresh.table.view()).is_partitioned
    assert (sorted(row["status"] for row in found), taken < 30) == (["a"] * 60, True)


def test_explaining_reads_no_history(tmp_path: Path) -> None:
    bench = Bench("memory", tmp_path)
    customers = bench.customers()
    moment = bench.clock.now() - timedelta(seconds=1)
    for number in range(20):
        for one in ("a", "b"):
            customers.upsert({"id": one, "score": number})
    fresh = bench.customers()
    assert spent(bench.store, lambda: fresh.explain(at=moment)) <= 2
    plan = fresh.explain(at=moment, max_changed=1)
    assert plan.reason.endswith("2 changed since, and their histories are read; refused, because max_changed is 1")


def test_more_changes_than_allowed_are_refused_with_their_number(tmp_path: Path) -> None:
    _, customers, _ = three(tmp_path)
    before = datetime(2025, 1, 1, tzinfo=UTC)
    for ask in (
        lambda: customers.find_all(at=before, max_changed=2),
        lambda: customers.count(at=before, max_changed=2),
        lambda: customers.aggregate(count=True, at=before, max_changed=2),
        lambda: customers.distinct("status", at=before, max_changed=2),
        lambda: customers.find_batches(at=before, max_changed=2),
        lambda: customers.find_one(at=before, max_changed=2),
    ):
        with pytest.raises(Invalid, match="3 documents of Customer changed after 2025-01-01T00:00:00Z") as refused:
            ask()
        assert "max_changed=3" in str(refused.value.hint)
    assert customers.find_all(at=before, max_changed=None) == []


def test_only_what_cannot_change_any_more_is_remembered(tmp_path: Path) -> None:
    """Else a change that is recorded late would not be in the past of its own moment."""
    bench, customers, moment = three(tmp_path)
    customers.patch("a", {"name": "x"})
    heads, known = customers._heads_at(customers._moment(moment)), LookedUp()
    assert heads.later == {"a": 2}
    PastStates(bench.collection, replace(heads, later={"a": 2, "b": None}), lambda: heads, known)
    assert list(known.states) == ["a"]


# What is refused, and what rows of the past are


def test_a_row_of_the_past_cannot_be_saved(tmp_path: Path) -> None:
    _, customers, moment = three(tmp_path)
    for row in (
        must(customers.find_one({"id": "a"}, at=moment)),
        must(customers.find_many(["a"], at=moment)[0].document),
    ):
        for verb in (customers.save, customers.replace, customers.upsert):
            with pytest.raises(Invalid, match="cannot be saved: it is the state of 2026-01-01T00:00:00Z") as refused:
                verb(row | {"name": "x"})
            assert "rollback('a'" in str(refused.value.hint)
        (result,) = customers.save_many([row | {"name": "x"}])
        assert "it is the state of" in str(result.error)
    batch = next(iter(customers.find_batches(at=moment)))
    with pytest.raises(Invalid, match="it is the state of"):
        customers.save(batch[0] | {"name": "x"})
    assert customers.get("a")["name"] == "a"


def test_a_row_of_the_past_tells_its_entry_and_a_delete_by_its_version_is_a_conflict(tmp_path: Path) -> None:
    bench, customers, moment = three(tmp_path)
    customers.patch("a", {"name": "x"})
    bench.tick()
    row = must(customers.find_one({"id": "a"}, at=moment))
    assert (row.seq, customers.rollback("a", to_seq=must(row.seq))["name"]) == (1, "a")
    with pytest.raises(Conflict):
        customers.delete("a", if_version=must(customers.find_one({"id": "a"}, at=moment)).version)


def test_a_cursor_is_of_one_moment(tmp_path: Path) -> None:
    bench, customers, moment = three(tmp_path)
    page = customers.find_all(limit=1, at=moment)
    bench.tick(60)
    customers.delete("b")
    assert [row["id"] for row in customers.find_all(limit=1, at=moment.isoformat(), cursor=page.cursor)] == ["b"]
    for at in (None, moment + timedelta(seconds=1)):
        with pytest.raises(Invalid, match="another query") as refused:
            customers.find_all(limit=1, at=at, cursor=page.cursor)
        assert "moment" in str(refused.value.hint)


def test_many_are_found_as_they_were(tmp_path: Path) -> None:
    bench, customers, moment = three(tmp_path)
    changed_by_another(bench)
    found = customers.find_many(["b", "a", "b", "d", "", "nobody"], at=moment)
    assert [must(one.document)["status"] for one in found[:3]] == ["a", "a", "a"]
    assert [(one.id, one.document, one.ok) for one in found[3:]] == [
        ("d", None, True),
        ("", None, False),
        ("nobody", None, True),
    ]
    assert found[0].document is not found[2].document


def test_a_damaged_history_is_an_error_of_the_query_and_of_one_of_many(tmp_path: Path) -> None:
    bench, customers, moment = three(tmp_path)
    customers.patch("a", {"name": "x"})
    bench.tick()
    bench.store.put(".oplog/customers/a/0001.json", b"damaged")
    with pytest.raises(Corrupt) as damage:
        bench.customers().find_all(at=moment)
    assert damage.value.key == ".oplog/customers/a/0001.json"
    assert [type(one.error) for one in bench.customers().find_many(["a", "b"], at=moment)] == [Corrupt, type(None)]
    assert bench.customers().count(at=bench.clock.now()) == 3


def test_a_number_and_a_model_without_past_are_refused(tmp_path: Path) -> None:
    customers = Bench("memory", tmp_path).customers()
    for number in (3, "3"):
        with pytest.raises(Invalid, match="counts its own seqs") as refused:
            customers.find_all(at=number)
        assert refused.value.path == "at"
    without = Bench("memory", tmp_path, oplog=False).customers()
    with pytest.raises(Invalid, match="Customer keeps no past") as refused:
        without.count(at="2026-01-01")
    assert '"oplog": true' in str(refused.value.hint)


def test_references_are_populated_as_they_were() -> None:
    models = {
        "Customer": {"path": "@customers/(id:string)", "fields": {"name": {"type": "string"}}, "oplog": True},
        "Order": {
            "path": "@orders/(id:string)",
            "fields": {"customer": {"type": "ref", "model": "Customer"}, "log": {"type": "ref", "model": "Log"}},
            "oplog": True,
        },
        "Log": {"path": "@logs/(id:string)", "fields": {"text": {"type": "string"}}},
    }
    clock = VirtualClock()
    schema = load_schema({"version": "1.0", "models": models})
    db = Worm(MemoryStore(clock=clock), schema, probe=False, clock=clock)
    db.model("Customer").insert({"id": "a", "name": "then"})
    db.model("Order").insert({"id": "o", "customer": "a", "log": "l"})
    moment = clock.now()
    clock.advance(1)
    db.model("Customer").patch("a", {"name": "now"})
    (order,) = db.model("Order").find_all(at=moment, populate="customer")
    assert order["customer"]["name"] == "then"  # type: ignore[index,call-overload]  # it is a document now
    db.model("Customer").delete("a")
    (order,) = db.model("Order").find_all(at=clock.now(), populate="customer")
    assert order["customer"] is None
    with pytest.raises(Invalid, match="Log keeps no past"):
        db.model("Order").find_all(at=moment, populate="log")


def test_objects_of_a_class_are_found_as_they_were() -> None:
    class Customer(worm.Document):
        name: str

    clock = VirtualClock()
    db = Worm(MemoryStore(clock=clock), schema_of([Customer]), probe=False, clock=clock)
    customers = db.model(Customer)
    customers.insert(Customer(id="a", name="then"))
    moment = clock.now()
    clock.advance(1)
    customers.patch("a", {"name": "now"})
    (row,) = customers.find_all(at=moment)
    assert (type(row), row.name) == (Customer, "then")
    with pytest.raises(Invalid, match="it is the state of"):
        customers.save(row)


# In a space

ASKED: list[dict[str, JsonValue]] = [{}, {"balance": {"$gte": 2}}, {"email": "d1@x"}]


@pytest.mark.parametrize("kind", ["memory-versioned", "file"])
def test_a_model_in_a_space_is_found_by_commit_and_by_time(kind: str, tmp_path: Path) -> None:
    bench, random = SpaceBench(kind, tmp_path), Random(4)
    db = bench.session()
    accounts = db.model("Account")
    then: dict[int, dict[str, dict[str, Any]]] = {}
    times: dict[datetime, int] = {}
    for _ in range(examples(8)):
        with db.transaction() as tx:
            for one in random.sample(IDS, 2):
                if random.random() < 0.3:
                    tx.delete("Account", one)
                else:
                    tx.save("Account", {"id": one, "email": f"{one}@x", "balance": random.randrange(4)})
        if tx.seq is not None:
            then[tx.seq] = {str(row["id"]): dict(row) for row in accounts.find_all()}
            times[bench.clock.now()] = tx.seq
        bench.clock.advance(2)
    for moment, seq in some(times.items()):
        for at in (seq, moment, str(seq)):
            for asked in ASKED:
                wanted = [row for row in by_id(then[seq].values()) if oracle(asked, row)]
                for strategy in (None, "full_scan", "manifest_scan"):
                    assert by_id(accounts.find_all(asked, at=at, strategy=strategy)) == wanted
                assert accounts.count(asked, at=at) == len(wanted)
            found = accounts.find_many(IDS, at=at)
            assert {one.id: dict(one.document) for one in found if one.document is not None} == then[seq]
    full = max(then, key=lambda seq: len(then[seq]))
    page = accounts.find_all(at=full, limit=1)
    assert page.cursor is not None
    with pytest.raises(Invalid, match="another query"):
        accounts.find_all(at=full - 1, limit=1, cursor=page.cursor)
    with pytest.raises(Invalid, match=f"it is the state of commit {full}"):
        accounts.save(page[0])
    assert f"as of commit {full}" in accounts.explain(at=full).reason
    with pytest.raises(Invalid, match="documents of Account changed after commit 0") as refused:
        accounts.count(at=0, max_changed=1)
    assert refused.value.path == "max_changed"
    assert "refused, because max_changed is 1" in accounts.explain(at=0, max_changed=1).reason


@pytest.mark.parametrize("question", list(QUESTIONS))
@pytest.mark.parametrize("where", ["main", "branch"])
@pytest.mark.parametrize("when", ["table", "documents"])
def test_commits_that_others_make_during_a_query_are_not_in_its_past(
    question: str, where: str, when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else rows and documents of commits after those that the query has looked at would be taken for what was there."""
    bench = SpaceBench("memory-versioned", tmp_path, indexes={"byStatus": {"field": "status"}}, fields=STATUS)
    db = bench.session()
    for one, status in (("a", "a"), ("b", "a"), ("c", "b")):
        db.model("Account").insert({"id": one, "name": one, "status": status, "balance": 1})
    at = db.space("main").seq
    db.create_branch("draft")
    bench.clock.advance(2)
    accounts = bench.session().model("Account") if where == "main" else bench.session().branch("draft").model("Account")
    logged = must(accounts.logged)
    done: list[bool] = []

    def change() -> None:
        other = bench.session().model("Account")
        if not done:
            done.append(True)
            other.patch("a", {"status": "b"})
            other.delete("b")
            other.patch("c", {"status": "a"})
            other.insert({"id": "d", "status": "a", "balance": 1})

    states, read = logged.states, execute._read

    def after_the_states(position: Any, check: Any) -> Any:
        found = states(position, check)
        change()
        return found

    def before_the_documents(*args: Any) -> Any:
        change()
        return read(*args)

    if when == "table":
        monkeypatch.setattr(logged, "states", after_the_states)
    else:
        monkeypatch.setattr(execute, "_read", before_the_documents)
    assert sorted(row["id"] for row in QUESTIONS[question](accounts, at)) == ["a", "b"]


STATUS = {"name": {"type": "string"}, "status": {"type": "string"}, "balance": {"type": "number"}}


def test_a_branch_has_a_past_of_its_own_and_can_be_restored(tmp_path: Path) -> None:
    bench = SpaceBench("memory-versioned", tmp_path)
    main = bench.session()
    main.model("Account").insert({"id": "a", "email": "a@x", "balance": 1})
    main.create_branch("draft")
    db = main.branch("draft")
    accounts = db.model("Account")
    accounts.insert({"id": "b", "email": "b@x", "balance": 1})
    at = main.space("main").seq
    accounts.patch("a", {"balance": 7})
    accounts.delete("b")
    main.model("Account").patch("a", {"balance": 9})
    assert {row["id"]: row["balance"] for row in accounts.find_all(at=at)} == {"a": 1, "b": 1}
    assert (accounts.count(at=at), accounts.count(), accounts.count(at=at - 1)) == (2, 1, 1)
    assert [must(one.document)["balance"] for one in accounts.find_many(["a", "b"], at=at)] == [1, 1]
    told = db.restore(at=at, models=["Account"], dry_run=True)
    assert [(one.id, one.what, one.fields) for one in told.changes] == [
        ("a", "changed", ("balance",)),
        ("b", "created", ()),
    ]
    assert db.restore(at=at, models=["Account"]).failed == ()
    assert {row["id"]: row["balance"] for row in accounts.find_all()} == {"a": 1, "b": 1}
    assert main.model("Account").get("a")["balance"] == 9
