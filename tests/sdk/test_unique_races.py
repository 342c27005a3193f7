"""Writers that meet over one unique value, in every order in which their requests can reach the store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta

import pytest

from tests.sdk.interleaving import Actor, Run, every_order
from tests.sdk.unique_room import BOTH, BY_EMAIL, Room
from worm.collections import claims
from worm.errors import UniqueViolation
from worm.sdk.database import Model
from worm.store.memory import MemoryStore

HI = "hi@acme.com"
Verb = Callable[[Model], object]


def create(entity_id: str, value: str = HI, **more: str) -> Verb:
    return lambda customers: customers.save({"id": entity_id, "email": value, **more})


def patch(entity_id: str, value: str) -> Verb:
    return lambda customers: customers.patch(entity_id, {"email": value})


def delete(entity_id: str) -> Verb:
    return lambda customers: customers.delete(entity_id)


SCENES: dict[str, tuple[Verb | None, Sequence[Verb]]] = {
    "two creates": (None, [create("a"), create("b")]),
    "a create and a change to it": (create("b", "x@acme.com"), [create("a"), patch("b", HI)]),
    "a change away and a create": (create("a"), [patch("a", "x@acme.com"), create("b")]),
    "a delete and a create": (create("a"), [delete("a"), create("b")]),
    "two sessions create the same document": (None, [create("a"), create("a")]),
    "two sessions give it to the same document": (create("a", "x@acme.com"), [patch("a", HI), patch("a", HI)]),
    "two takers of a claim whose writer died": (
        lambda customers: customers._collection.claims.reserve("dead", None, {"email": HI}),
        [create("a"), create("b")],
    ),
    "a delete and a change of the same document": (create("a"), [delete("a"), patch("a", "x@acme.com")]),
}
FEW_SCENES = [name if name == "two creates" else pytest.param(name, marks=pytest.mark.slow) for name in SCENES]
"""For `make check`."""


class Scene:
    """The same beginning for every run; `room` is the one of the newest run."""

    def __init__(
        self, before: Verb | None, verbs: Sequence[Verb], *, soft_delete: bool = False, indexes: object = BY_EMAIL
    ) -> None:
        self._start = Room(softDelete=soft_delete, indexes=indexes)
        self._verbs = verbs
        if before is not None:
            before(self._start.customers(maintenance="events"))
        self._start.after_grace()
        self.room = self._start

    def __call__(self) -> tuple[MemoryStore, Sequence[Actor]]:
        self.room = room = self._start.fork()
        assert isinstance(room.store, MemoryStore)
        return room.store, [lambda store, verb=verb: verb(room.on(store)) for verb in self._verbs]


def check_one_holder(room: Room, ran: Run) -> None:
    """Never two documents with a value; and whoever has one has its claim."""
    for value in (HI, "x@acme.com"):
        holders = room.having(value)
        assert len(holders) <= 1, (ran.order, holders, ran.outcomes)
        if holders:
            assert room.claims().get(value) == holders[0], (ran.order, room.claims(), ran.outcomes)


@pytest.mark.parametrize("scene", FEW_SCENES)
def test_in_every_order_there_is_one_holder_and_no_claim_too_many(scene: str) -> None:
    """Without this two documents end with one unique value, or a value stays taken by nobody."""
    played = Scene(*SCENES[scene])
    runs = 0
    for ran in every_order(played, switches_max=2):
        runs += 1
        check_one_holder(played.room, ran)
        for value, holder in played.room.claims().items():
            assert played.room.having(value) == [holder], (ran.order, ran.outcomes)
        if scene.startswith("two creates") or "takers" in scene:
            assert len(ran.accepted()) == 1, (ran.order, ran.outcomes)
            loser = ran.outcomes[1 - ran.accepted()[0]]
            assert isinstance(loser, UniqueViolation)
            assert loser.holder == "ab"[ran.accepted()[0]]
    assert runs > 20


@pytest.mark.slow
@pytest.mark.parametrize("scene", SCENES)
def test_one_holder_does_not_depend_on_the_grace_period(scene: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that is wrong, or a process that sleeps between its claim and its document, must not give the value to
    two: here every claim without a document is taken over at once."""
    monkeypatch.setattr(claims, "GRACE", timedelta(0))
    played = Scene(*SCENES[scene])
    for ran in every_order(played, switches_max=2):
        check_one_holder(played.room, ran)
        if scene == "two creates":
            assert played.room.having(HI) == ["ab"[number] for number in ran.accepted()], ran.order


@pytest.mark.slow
def test_three_writers_with_two_unique_fields_and_no_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "GRACE", timedelta(0))
    verbs = [create("a", phone="1"), create("b", phone="2"), create("c", "x@acme.com", phone="1")]
    played = Scene(None, verbs, indexes=BOTH)
    for ran in every_order(played, switches_max=1):
        check_one_holder(played.room, ran)
        for value in ("1", "2"):
            assert len(played.room.having(value, "phone")) <= 1, ran.order


def test_a_restore_from_trash_and_a_create_leave_one_holder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "GRACE", timedelta(0))

    def trashed(customers: Model) -> None:
        customers.save({"id": "a", "email": HI})
        customers.delete("a")

    verbs: list[Verb] = [lambda customers: customers.restore("a"), create("b")]
    played = Scene(trashed, verbs, soft_delete=True)
    for ran in every_order(played, switches_max=1):
        check_one_holder(played.room, ran)
        is_trashed = [one["id"] for one in played.room.customers().list_trashed()] == ["a"]
        assert is_trashed is (0 not in ran.accepted()), ran.order
