"""A process that dies between any two writes of a verb with unique values: the next save heals."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache

import pytest

from tests.examples import crash_points, examples
from tests.sdk.unique_room import BOTH, Room
from worm.dev.faulty_store import FaultyStore, SimulatedCrash
from worm.errors import Conflict, NotFound, UniqueViolation
from worm.sdk.database import Model

WRITES_MAX = 30
HI, OTHER, NEW, GONE = "hi@acme.com", "other@acme.com", "new@acme.com", "gone@acme.com"


def save(customers: Model) -> object:
    return customers.save(customers.get("a") | {"email": NEW, "phone": "9"})


VERBS: dict[str, Callable[[Model], object]] = {
    "create": lambda customers: customers.save({"id": "new", "email": NEW, "phone": "9"}),
    "save": save,
    "patch": lambda customers: customers.patch("a", {"email": NEW}),
    "delete": lambda customers: customers.delete("a"),
    "rollback": lambda customers: customers.rollback("a", to_seq=1),
    "restore snapshot": lambda customers: customers.restore_snapshot("a", "2026-01-01T00:00:00Z"),
    "restore": lambda customers: customers.restore("gone"),
    "save_many": lambda customers: customers.save_many([{"id": "new", "email": NEW}, {"id": "b", "phone": "9"}]),
}


@cache
def _start() -> Room:
    """`a` had OTHER and has HI, `gone` is in trash with GONE."""
    room = Room("memory-versioned", indexes=BOTH)
    customers = room.customers()
    customers.save({"id": "a", "email": OTHER, "phone": "1"})
    customers.snapshot("a")
    customers.save({"id": "gone", "email": GONE, "phone": "2"})
    room.tick()
    customers.patch("a", {"email": HI})
    customers.delete("gone")
    room.after_grace()
    return room


def crashes(verb: str) -> Iterator[Room]:
    """The verb, dead before and after each of its writes."""
    for number, when in crash_points(WRITES_MAX):
        room = _start().fork()
        faulty = FaultyStore(room.store, clock=room.clock, ids=room.ids)
        faulty.crash_at_write(number, when)
        try:
            VERBS[verb](room.on(faulty))
        except SimulatedCrash:
            yield room
        else:
            return
    raise AssertionError("the verb never ended")


@pytest.mark.parametrize("verb", VERBS)
def test_after_a_crash_anywhere_every_value_can_be_had_by_one_document(verb: str) -> None:
    """A claim that a dead process left must neither lock the value for good nor give it to two."""
    died = 0
    for room in crashes(verb):
        died += 1
        room.after_grace()
        customers = room.customers(maintenance="events")
        for number, value in enumerate((HI, OTHER, NEW, GONE)):
            if holders := room.having(value):
                with pytest.raises(UniqueViolation, match=f"on entity '{holders[0]}'"):
                    customers.save({"id": f"z{number}", "email": value})
            else:
                customers.save({"id": f"z{number}", "email": value})
            assert len(room.having(value)) == 1
            assert room.claims()[value] == room.having(value)[0]
    assert died > examples(3)


@pytest.mark.parametrize("verb", VERBS)
def test_the_same_verb_can_be_tried_again_at_once(verb: str) -> None:
    """Whoever died with a claim and starts again with the same id does not wait for its own claim."""
    for room in crashes(verb):
        with suppress(NotFound, Conflict):  # the restore, or the create, was complete but for its end
            VERBS[verb](room.on(room.store))
        for value in (HI, OTHER, NEW, GONE):
            holders = room.having(value)
            assert len(holders) <= 1
            assert not holders or room.claims()[value] == holders[0]


@pytest.mark.parametrize("verb", ["create", "save", "patch"])
def test_before_the_grace_period_ends_nobody_else_gets_a_value_that_was_just_claimed(verb: str) -> None:
    """The dead process may as well be a slow one whose document is still on the way."""
    refused = 0
    for room in crashes(verb):
        if NEW in room.claims():
            with pytest.raises(UniqueViolation, match=f"on entity '{room.claims()[NEW]}'"):
                room.customers(maintenance="events").save({"id": "z", "email": NEW})
            refused += 1
    assert refused > examples(2)


@pytest.mark.parametrize("verb", VERBS)
def test_repair_leaves_no_wrong_claim(verb: str) -> None:
    for room in crashes(verb):
        room.after_grace()
        customers, claims = room.customers(), room.collection.claims
        found = customers.find_many(["a", "b", "gone", "new"])
        documents = {one.id: one.document for one in found if one.document is not None}
        claims.restore(documents)
        assert claims.audit(documents) == []
        assert room.claims() == {one["email"]: one["id"] for one in documents.values() if one.get("email")}
