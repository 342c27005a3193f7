"""A look at any past moment costs at most 2 + `snapshots.every` requests, however long the history is."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from tests.harness import DataPath, schema_of
from worm.collections.entries import Document
from worm.errors import NotFound
from worm.model import Model, Worm
from worm.schema import load_schema

EVERY = 10


def long_history(length: int) -> tuple[DataPath, Model, list[tuple[datetime, Document]]]:
    path = DataPath(schema_of(snapshots={"enabled": True, "every": EVERY, "maxAge": "30d", "maxCount": 1000}))
    session = Worm(path.store, load_schema(dict(path.schema)), probe=False, clock=path.clock, ids=path.ids)
    customers = session.model("Customer")
    document = customers.create({"name": "Acme"}, id="a")
    states = []
    for number in range(length):
        path.clock.advance(1)
        document = customers.save({**document, "score": number})
        states.append((path.clock.now(), document))
    return path, customers, states


def test_every_moment_of_a_history_is_exact_and_within_the_budget() -> None:
    path, customers, states = long_history(200)
    for number, (moment, document) in enumerate(states, start=1):
        with path.store.requests.measure() as by_seq:
            assert customers.get_at("a", seq=number) == document
        with path.store.requests.measure() as by_time:
            assert customers.get_at("a", time=moment) == document
        assert by_seq["total"] <= 2 + EVERY
        assert by_time["total"] <= 2 + EVERY


def test_a_moment_before_the_first_entry_is_not_found_and_one_after_the_last_is_the_present() -> None:
    path, customers, states = long_history(25)
    with pytest.raises(NotFound):
        customers.get_at("a", time=states[0][0] - timedelta(seconds=1))
    assert customers.get_at("a", time=path.clock.now() + timedelta(days=1)) == states[-1][1]


def test_without_snapshot_files_a_moment_is_found_by_bisecting() -> None:
    path, customers, states = long_history(60)
    for listed in list(path.store.list(".snapshots/")):
        path.store.delete(listed.key)
    for moment, document in states[::7]:
        assert customers.get_at("a", time=moment) == document
