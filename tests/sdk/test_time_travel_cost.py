"""A look at any past moment costs at most 2 + `snapshots.every` requests, however long the history is."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from tests.examples import some
from tests.harness import DataPath, schema_of
from worm.errors import NotFound
from worm.formats import load_schema
from worm.sdk.database import Model, Worm
from worm.sdk.document import DocumentDict

EVERY = 10
KEPT: dict[str, object] = {"enabled": True, "every": EVERY, "maxAge": "30d", "maxCount": 1000}
DISABLED: dict[str, object] = {"enabled": False, "every": EVERY}


def long_history(
    length: int, snapshots: dict[str, object]
) -> tuple[DataPath, Model, list[tuple[datetime, DocumentDict]]]:
    """Two saves in each second, then the time and the document after each save."""
    path = DataPath(schema_of(snapshots=snapshots))
    session = Worm(path.store, load_schema(dict(path.schema)), probe=False, clock=path.clock, ids=path.ids)
    customers = session.model("Customer")
    document = customers.create({"name": "Acme"}, id="a")
    states = []
    for number in range(length):
        path.clock.advance(number % 2)
        document = customers.save(document | {"score": number})
        states.append((path.clock.now(), document))
    return path, customers, states


def prune_all(path: DataPath) -> None:
    for listed in list(path.store.list(".snapshots/")):
        path.store.delete(listed.key)


@pytest.mark.parametrize("kind", ["kept", "pruned", "disabled"])
def test_every_moment_of_a_history_is_exact_and_within_the_budget(kind: str) -> None:
    path, customers, states = long_history(100, DISABLED if kind == "disabled" else KEPT)
    if kind == "pruned":
        prune_all(path)
    last_of_second = dict(states)
    for number, (moment, document) in some(enumerate(states, start=1)):
        with path.store.requests.measure() as by_seq:
            assert customers.get_at("a", seq=number) == document
        with path.store.requests.measure() as by_time:
            assert customers.get_at("a", time=moment) == last_of_second[moment]
        assert by_seq["total"] <= 2 + EVERY
        assert by_time["total"] <= 2 + EVERY


def test_a_moment_before_the_first_entry_or_of_nobody_is_not_found_within_the_budget() -> None:
    path, customers, states = long_history(25, KEPT)
    for entity_id, reason in (("a", "no entry at"), ("nobody", "no history")):
        with path.store.requests.measure() as spent, pytest.raises(NotFound, match=reason):
            customers.get_at(entity_id, time=states[0][0] - timedelta(seconds=1))
        assert spent["total"] <= 2 + EVERY


@pytest.mark.parametrize("length", [9, 10, 11, 19, 20, 29])
def test_a_moment_after_the_last_entry_is_the_present(length: int) -> None:
    path, customers, states = long_history(length, DISABLED)
    with path.store.requests.measure() as spent:
        assert customers.get_at("a", time=path.clock.now() + timedelta(days=1)) == states[-1][1]
    assert spent["total"] <= 2 + EVERY


def test_a_history_without_marks_tells_the_same() -> None:
    path, customers, states = long_history(60, KEPT)
    for listed in list(path.store.list(".oplog/customers/a/.times/")):
        path.store.delete(listed.key)
    last_of_second = dict(states)
    for moment, _ in states[::7]:
        assert customers.get_at("a", time=moment) == last_of_second[moment]


@pytest.mark.parametrize("length", [1, 4, 5, 12, 40])
def test_a_whole_history_costs_at_most_three_times_its_entries(length: int) -> None:
    path, customers, _ = long_history(length, DISABLED)
    with path.store.requests.measure() as spent:
        assert [entry.seq for entry in customers.get_history("a")] == list(range(1, length + 1))
    assert spent["total"] <= max(4, 3 * length)
