"""A process that dies between any two writes of a verb: `worm repair` heals, and nothing that was stored is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Literal

import pytest

from tests.examples import crash_points, examples
from tests.sdk.sessions import KEY, Bench, must
from worm.errors import NotFound
from worm.sdk.database import Model
from worm.store.faulty_store import FaultyStore, SimulatedCrash

WRITES_MAX = 30
When = Literal["before", "after"]
KINDS = [pytest.param("memory", marks=pytest.mark.slow), "memory-versioned"]


def save(customers: Model) -> None:
    customers.save(customers.get("a") | {"name": "three"})


VERBS: dict[str, Callable[[Model], object]] = {
    "create": lambda customers: customers.save({"id": "new", "name": "new"}),
    "save": save,
    "patch": lambda customers: customers.patch("a", {"name": "three"}),
    "delete": lambda customers: customers.delete("a"),
    "rollback": lambda customers: customers.rollback("a", to_seq=1),
    "restore": lambda customers: customers.restore("gone"),
    "rollback of a deleted one": lambda customers: customers.rollback("gone", to_seq=1),
    "purge": lambda customers: customers.purge("gone"),
    "save_many": lambda customers: customers.save_many([{"id": f"m{number}", "name": "m"} for number in range(2)]),
}


@cache
def _start(kind: str) -> Bench:
    """`a` has two entries, `gone` is in trash."""
    bench = Bench(kind, Path(), snapshots={"enabled": True, "every": 3})
    customers = bench.customers()
    customers.save({"id": "a", "name": "one", "status": "active"})
    customers.save({"id": "gone", "name": "gone", "status": "active"})
    bench.tick()
    customers.patch("a", {"name": "two"})
    customers.delete("gone")
    bench.tick()
    return bench


def crashes(kind: str, verb: str) -> Iterator[tuple[Bench, int]]:
    """The verb, dead before and after each of its writes."""
    for number, when in crash_points(WRITES_MAX):
        bench = _start(kind).fork()
        faulty = FaultyStore(bench.store, clock=bench.clock)
        faulty.crash_at_write(number, when)
        try:
            VERBS[verb](bench.session(faulty).model("Customer"))
        except SimulatedCrash:
            bench.tick()
            yield bench, number
        else:
            return
    raise AssertionError("the verb never ended")


def name_of(bench: Bench, entity_id: str) -> object:
    found = bench.customers().find_by_id(entity_id)
    return None if found is None else found["name"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("verb", VERBS)
def test_after_a_crash_anywhere_repair_makes_everything_agree(kind: str, verb: str) -> None:
    died = 0
    for bench, _ in crashes(kind, verb):
        died += 1
        bench.repair()
        bench.assert_clean()
        customers = bench.customers()
        for entity_id in ("a", "gone", "new"):
            tail = len(bench.ops(entity_id))
            current = customers.find_by_id(entity_id)
            recorded = customers.get_at(entity_id, seq=tail) if tail else None
            assert recorded == current
        assert {row["id"] for row in customers.find_all()} == {
            one for one in ("a", "gone", "new", "m0", "m1") if customers.exists(one)
        }
    assert died > examples(2)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("verb", ["save", "patch", "rollback"])
def test_an_interrupted_update_happened_or_not_and_history_has_both_states(kind: str, verb: str) -> None:
    after = "one" if verb == "rollback" else "three"
    seen = set()
    for bench, _ in crashes(kind, verb):
        bench.repair()
        name = name_of(bench, "a")
        seen.add(name)
        assert bench.ops() == ["create", "update", "update"][: 2 if name == "two" else 3]
        assert must(bench.customers().get_at("a", seq=2))["name"] == "two"
    assert seen == {"two", after}


@pytest.mark.parametrize("kind", KINDS)
def test_an_interrupted_delete_leaves_the_document_or_its_copy(kind: str) -> None:
    for bench, _ in crashes(kind, "delete"):
        customers = bench.customers()
        trashed = "a" in {one["id"] for one in customers.list_trashed()}
        assert trashed is not customers.exists("a")
        bench.repair()
        assert ("a" in {one["id"] for one in customers.list_trashed()}) is trashed
        if trashed:
            assert must(customers.get_history("a")[-1]).actor == "ann"
            bench.tick()
            assert customers.restore("a")["name"] == "two"
        else:
            bench.tick()
            assert customers.delete("a") is True  # what a dead delete left does not stand in the way
            bench.tick()
            assert customers.restore("a")["name"] == "two"
        bench.assert_clean()


@pytest.mark.parametrize("kind", KINDS)
def test_an_interrupted_restore_can_be_repeated(kind: str) -> None:
    for bench, _ in crashes(kind, "restore"):
        was_back = bench.customers().exists("gone")
        bench.repair()
        customers = bench.customers()
        trash_left = bool(list(bench.store.list(".worm.trash/customers/gone/.worm.tombstone")))
        if not was_back:
            assert customers.restore("gone")["name"] == "gone"
        elif trash_left:
            with suppress(NotFound):  # restored already, where the copy is gone too: only the tombstone was left
                customers.restore("gone")
        assert name_of(bench, "gone") == "gone"
        assert list(bench.store.list(".worm.trash/customers/gone/.worm.tombstone")) == []
        assert bench.ops("gone") == ["create", "delete", "restore"]
        bench.assert_clean()


@pytest.mark.parametrize("kind", KINDS)
def test_an_interrupted_purge_can_be_repeated_and_never_shows_half_a_document(kind: str) -> None:
    for bench, _ in crashes(kind, "purge"):
        customers = bench.customers()
        if customers.list_trashed():
            assert customers.purge("gone") is True
        else:
            customers.purge("gone")
        assert list(bench.store.list(".worm.trash/")) == []
        assert must(customers.get_at("gone", seq=1))["name"] == "gone"
        bench.repair()
        assert customers.list_trashed() == []  # a repair does not bring back what was purged
        bench.assert_clean()


@pytest.mark.parametrize("kind", KINDS)
def test_an_interrupted_save_is_also_healed_by_the_next_save(kind: str) -> None:
    for bench, _ in crashes(kind, "save"):
        customers = bench.customers()
        customers.patch("a", {"name": "four"})
        report = [entry.op for entry in customers.get_history("a")]
        assert report[:2] == ["create", "update"]
        assert [row["name"] for row in customers.find_all()] == ["four"]
        assert must(bench.store.get(KEY)) is not None
        if kind == "memory-versioned":
            bench.assert_clean()
