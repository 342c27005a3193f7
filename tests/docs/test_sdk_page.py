"""docs/sdk.md: its examples run in their order, it names every verb and error, and its table of requests is true."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

import worm
from tests.docs.markdown import ROOT
from tests.docs.running import run_page
from tests.harness import copied
from worm.clock import Ids, VirtualClock
from worm.sdk.database import Model, Worm
from worm.store.memory import MemoryStore
from worm.upkeep.session import Maintenance

PAGE = ROOT / "docs" / "sdk.md"
COUNT = 10
"""What `n` is in the table."""
ROW = re.compile(r"^\| (`.*) \|.*\|.*\|.*\| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)


class Customer(worm.Document):
    name: str = ""


class Trashed(worm.Document):
    worm_settings = worm.ModelSettings(soft_delete=True)
    name: str = ""


def _named(number: int) -> Customer:
    return Customer(id=f"c{number}", name="many")


def _session(store: MemoryStore, maintenance: Maintenance) -> Worm:
    schema = worm.schema_of([Customer, Trashed])
    return Worm(store, schema, maintenance=maintenance, probe=False, clock=store.clock, ids=store.ids)


@cache
def _filled() -> MemoryStore:
    clock = VirtualClock()
    store = MemoryStore(versioned=True, clock=clock, ids=Ids.seeded(6, clock))
    before = _session(store, "inline")
    before.push()
    before.model("Trashed").insert_many([{"id": one} for one in ("live", "gone", "purged")])
    before.model("Trashed").delete_many(["gone", "purged"])
    customers = before.model(Customer)
    customers.insert_many([_named(number) for number in range(COUNT)])
    customers.insert(Customer(id="old", name="old"))
    customers.patch("old", {"name": "older"})
    return store


class Place:
    """A bucket with versions, documents of two models in history and table, and a session that has read the tables."""

    def __init__(self, maintenance: Maintenance) -> None:
        self.clock = VirtualClock()
        self.ids = Ids.seeded(7, self.clock)
        self.store = copied(_filled(), self.clock, self.ids)
        self.db = _session(self.store, maintenance)
        self.customers, self.trashed = self.db.model(Customer), self.db.model(Trashed)
        self.customers.find_all()
        self.trashed.find_all()
        self.clock.advance(60)

    @property
    def all(self) -> list[str]:
        return [f"c{number}" for number in range(COUNT)]


Act = Callable[[], object]
Prepare = Callable[[Place], Act]


def _changed(customer: Customer) -> Customer:
    customer.name = "changed"
    return customer


def _saved(place: Place) -> Act:
    read = _changed(place.customers.get("old"))
    return lambda: place.customers.save(read)


def _saved_row(place: Place) -> Act:
    row = _changed(place.customers.find_all(filter={"name": "older"})[0])
    return lambda: place.customers.save(row)


def _unchanged(place: Place) -> Act:
    read = place.customers.get("old")
    return lambda: place.customers.save(read)


def _saved_many(place: Place) -> Act:
    read = [_changed(place.customers.get(one)) for one in place.all]
    return lambda: place.customers.save_many(read)


def _refreshed(place: Place) -> Act:
    read = place.customers.get("old")
    return lambda: place.customers.refresh(read)


def _update_many(place: Place, *, dry_run: bool = False) -> Act:
    change = {"$set": {"name": "x"}}
    return lambda: place.customers.update_many({"name": "many"}, change, dry_run=dry_run)


MEASURED: dict[str, Prepare] = {
    "`create(data, id=None)`": lambda at: lambda: at.customers.create({}),
    "`insert(doc)`": lambda at: lambda: at.customers.insert(Customer(id="new")),
    "`save(doc)`": _saved,
    "`save(doc)`, unchanged": _unchanged,
    "`save(row)`": _saved_row,
    "`save(new)`": lambda at: lambda: at.customers.save(Customer(id="new")),
    "`replace(doc, if_version=None)`": lambda at: lambda: at.customers.replace(Customer(id="old", name="x")),
    "`upsert(doc)`": lambda at: lambda: at.customers.upsert(Customer(id="old", name="x")),
    "`patch(id, changes, if_version=None)`": lambda at: lambda: at.customers.patch("old", {"name": "x"}),
    "`update(id, operators, if_version=None)`": lambda at: lambda: at.customers.update("old", {"$set": {"name": "x"}}),
    "`modify(id, function, if_version=None)`": lambda at: lambda: at.customers.modify("old", _changed),
    "`refresh(doc)`": _refreshed,
    "`delete(id, if_version=None)`": lambda at: lambda: at.customers.delete("old"),
    "`delete(id)`, `softDelete`": lambda at: lambda: at.trashed.delete("live"),
    "`restore(id, if_version=None)`": lambda at: lambda: at.trashed.restore("gone"),
    "`purge(id)`": lambda at: lambda: at.trashed.purge("purged"),
    "`insert_many(docs)`": lambda at: (
        lambda: at.customers.insert_many([Customer(id=f"n{number}") for number in range(COUNT)])
    ),
    "`save_many(docs)`": _saved_many,
    "`upsert_many(docs)`": lambda at: (
        lambda: at.customers.upsert_many([_changed(_named(number)) for number in range(COUNT)])
    ),
    "`update_many(filter, operators)`": _update_many,
    "`update_many(…, dry_run=True)`": lambda at: _update_many(at, dry_run=True),
    "`delete_many(filter)`": lambda at: lambda: at.customers.delete_many({"name": "many"}),
    "`delete_many(ids)`": lambda at: lambda: at.customers.delete_many(at.all),
    "`get(id)`": lambda at: lambda: at.customers.get("old"),
    "`find_by_id(id)`": lambda at: lambda: at.customers.find_by_id("old"),
    "`find_many(ids)`": lambda at: lambda: at.customers.find_many(at.all),
    "`exists(id)`": lambda at: lambda: at.customers.exists("old"),
    "`find_all(filter, …)`": lambda at: lambda: at.customers.find_all(filter={"name": "many"}),
    "`find_one(filter)`": lambda at: lambda: at.customers.find_one({"name": "many"}),
    "`count(filter)`": lambda at: lambda: at.customers.count({"name": "many"}),
    "`aggregate(…)`": lambda at: lambda: at.customers.aggregate(count=True, group_by="name"),
    "`distinct(field)`": lambda at: lambda: at.customers.distinct("name"),
    "`rollback(id, to_seq=…, if_version=None)`": lambda at: lambda: at.customers.rollback("old", to_seq=1),
    "`snapshot(id)`": lambda at: lambda: at.customers.snapshot("old"),
}


def _told() -> dict[str, tuple[int, int]]:
    """The requests of the table, with events and inline; rows that say it in words are left out."""
    found = ROW.findall(PAGE.read_text())
    return {verb: (_number(events), _number(inline)) for verb, events, inline in found if _is_number(events)}


def _is_number(cell: str) -> bool:
    return re.fullmatch(r"\d*n?( \+ \d+)?", cell) is not None


def _number(cell: str) -> int:
    parts = [part.strip() for part in cell.split("+")]
    return sum(int(part[:-1] or 1) * COUNT if part.endswith("n") else int(part) for part in parts)


def _spent(prepare: Prepare, maintenance: Maintenance) -> int:
    place = Place(maintenance)
    act = prepare(place)
    with place.store.requests.measure() as spent:
        act()
    return spent["total"]


def test_the_requests_of_the_table_are_those_that_are_made() -> None:
    made = {verb: (_spent(prepare, "events"), _spent(prepare, "inline")) for verb, prepare in MEASURED.items()}
    assert made == _told()


def test_the_examples_run_as_they_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_page(PAGE, tmp_path, monkeypatch)


def test_every_verb_and_every_error_is_named() -> None:
    page = PAGE.read_text()
    own = {"check_removing"}  # for transactions and the command
    verbs = {name for name, _ in inspect.getmembers(Model, inspect.isfunction) if not name.startswith("_")} - own
    errors = [name for name, kind in inspect.getmembers(worm.errors, inspect.isclass) if issubclass(kind, Exception)]
    assert [name for name in (*verbs, *errors) if not re.search(rf"\b{name}\b", page)] == []
