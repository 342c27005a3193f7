"""A save that sleeps between its claim and its document for longer than the grace period, and wakes up too late."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from tests.sdk.unique_room import BOTH, Room
from worm.errors import UniqueViolation
from worm.sdk.database import Model
from worm.sdk.document import DocumentDict
from worm.store.base import Attempt, Condition
from worm.store.faulty_store import FaultyStore

HI, OTHER = "hi@acme.com", "other@acme.com"


def _nothing() -> None:
    """Nothing happens."""


class Stalled(FaultyStore):
    """Something happens before or after the document `a` is put, once."""

    def __init__(self, room: Room, *, before: Callable[[], object], after: Callable[[], object] = _nothing) -> None:
        super().__init__(room.store, clock=room.clock, ids=room.ids)
        self._before, self._after = before, after

    def attempt_put(self, key: str, body: bytes, condition: Condition, metadata: Mapping[str, str]) -> Attempt:
        is_document = key == "org/customers/a/profile.json"
        before, after = (self._before, self._after) if is_document else (_nothing, _nothing)
        if is_document:
            self._before = self._after = _nothing
        before()
        attempt = super().attempt_put(key, body, condition, metadata)
        after()
        return attempt


def taken_by_b(room: Room) -> None:
    room.after_grace()
    room.customers(maintenance="events").save({"id": "b", "email": HI})


def woken(room: Room, verb: Callable[[Model], object], after: Callable[[], object] = _nothing) -> UniqueViolation:
    store = Stalled(room, before=lambda: taken_by_b(room), after=after)
    with pytest.raises(UniqueViolation, match="on entity 'b'") as caught:
        verb(room.on(store))
    return caught.value


def test_a_create_that_lost_its_claim_is_undone() -> None:
    room = Room()
    error = woken(room, lambda customers: customers.save({"id": "a", "email": HI}))
    assert "it was undone" in str(error.hint)
    assert (room.having(HI), room.claims()) == (["b"], {HI: "b"})
    room.repair()
    room.assert_clean()


def test_a_session_forgets_the_save_that_was_undone() -> None:
    """Else its next save would be over a version that is gone: a conflict that nobody can explain. Nor is it found."""
    room, saved = Room(), list[tuple[Model, DocumentDict]]()

    def save(customers: Model) -> None:
        saved.append((customers, customers.create({"email": HI}, id="a")))
        customers.save(saved[0][1])

    woken(room, save)
    ((customers, document),) = saved
    assert document.version is None
    assert [row["id"] for row in customers.find_all(filter={"email": HI}) if row["id"] == "a"] == []
    document["email"] = OTHER
    customers.save(document)
    assert (room.having(OTHER), room.claims()) == (["a"], {HI: "b", OTHER: "a"})


def test_what_was_undone_frees_its_other_values() -> None:
    room = Room(indexes=BOTH)
    woken(room, lambda customers: customers.save({"id": "a", "email": HI, "phone": "1"}))
    assert (room.claims(), room.claims("phone")) == ({HI: "b"}, {})


def test_an_update_that_lost_its_claim_is_undone_and_keeps_its_old_value() -> None:
    room = Room()
    before = room.customers().save({"id": "a", "email": OTHER})
    error = woken(room, lambda customers: customers.patch("a", {"email": HI}))
    assert "it was undone" in str(error.hint)
    assert room.customers().find_by_id("a") == before
    assert room.claims() == {HI: "b", OTHER: "a"}
    room.after_grace()
    with pytest.raises(UniqueViolation, match="on entity 'a'"):
        room.customers().save({"id": "c", "email": OTHER})


def test_an_update_whose_old_value_was_taken_too_is_not_put_back() -> None:
    """Putting it back would make two holders of the old value."""
    room = Room()
    room.customers().save({"id": "a", "email": OTHER})
    take_old = lambda: room.customers(maintenance="events").save({"id": "c", "email": OTHER})  # noqa: E731
    error = woken(room, lambda customers: customers.patch("a", {"email": HI}), take_old)
    assert error.is_stored
    assert "stored anyway" in str(error.hint)
    assert (room.having(OTHER), room.having(HI)) == (["c"], ["a", "b"])
    room.repair()
    index = room.customers().table.ids_with(room.schema.model("Customer").indexes["byEmail"], [HI])
    assert index == {"a", "b"}


def test_what_another_wrote_over_it_is_not_undone() -> None:
    room = Room()
    error = woken(
        room,
        lambda customers: customers.save({"id": "a", "email": HI}),
        lambda: room.raw("a", email=HI, name="raw"),
    )
    assert error.is_stored
    assert "stored anyway" in str(error.hint)
    assert room.having(HI) == ["a", "b"]


def test_append_mode_removes_nothing() -> None:
    room = Room(mode="append")
    error = woken(room, lambda customers: customers.save({"id": "a", "email": HI}))
    assert error.is_stored
    assert "stored anyway" in str(error.hint)
    assert room.having(HI) == ["a", "b"]


def test_a_restore_that_lost_its_claim_goes_back_to_trash() -> None:
    room = Room()
    customers = room.customers()
    customers.save({"id": "a", "email": HI})
    customers.delete("a")
    woken(room, lambda customers: customers.restore("a"))
    assert [one["id"] for one in customers.list_trashed()] == ["a"]
    assert room.claims() == {HI: "b"}


def test_a_claim_that_was_removed_meanwhile_is_made_again() -> None:
    room = Room()
    key = room.collection.claims.directory("email")

    def remove() -> None:
        for listed in list(room.store.list(key)):
            room.store.delete(listed.key)

    room.on(Stalled(room, before=remove)).save({"id": "a", "email": HI})
    assert room.claims() == {HI: "a"}


def test_a_taker_gives_the_claim_back_to_a_holder_that_wrote_meanwhile() -> None:
    """The holder's document lands between the taker's look at it and the taker's swap."""
    room = Room()
    room.collection.claims.reserve("a", None, {"email": HI})
    room.after_grace()

    class Late(FaultyStore):
        def attempt_put(self, key: str, body: bytes, condition: Condition, metadata: Mapping[str, str]) -> Attempt:
            if "/.claims/" in key and '"over":"a"' in body.decode():
                room.raw("a", email=HI)
            return super().attempt_put(key, body, condition, metadata)

    with pytest.raises(UniqueViolation, match="on entity 'a'"):
        room.on(Late(room.store, clock=room.clock, ids=room.ids)).save({"id": "b", "email": HI})
    assert (room.having(HI), room.claims()) == (["a"], {HI: "a"})


def test_the_holder_before_a_dead_taker_is_asked_too() -> None:
    """The taker died between its swap and its second look; the index does not know the first holder's document yet."""
    room = Room()
    claims = room.collection.claims
    claims.reserve("a", None, {"email": HI})
    value = claims.values({"email": HI})[0]
    stored = room.store.get(claims.key(value))
    assert stored is not None
    room.store.put_if_match(stored.key, claims.body("dead", value, over="a"), stored.etag)
    room.raw("a", email=HI)
    room.after_grace()
    with pytest.raises(UniqueViolation, match="on entity 'a'"):
        room.customers(maintenance="events").save({"id": "b", "email": HI})
    assert room.having(HI) == ["a"]
    with pytest.raises(UniqueViolation, match="on entity 'a'"):
        room.customers(maintenance="events").save({"id": "dead", "email": HI})
    assert room.claims() == {HI: "a"}


def test_a_confirmed_claim_is_out_of_reach_of_other_sessions_of_the_same_document() -> None:
    """Another session adopted the claim, lost, and is about to give it back when ours has just confirmed it."""
    room = Room()
    claims = room.collection.claims
    ours = claims.reserve("a", None, {"email": HI})
    theirs = claims.reserve("a", None, {"email": HI})
    room.raw("a", email=HI)
    assert claims.confirm(ours) is None
    claims._remove(theirs.new[0])
    assert room.claims() == {HI: "a"}
