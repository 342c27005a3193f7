"""Unique values in every verb of the SDK: who gets them, what the loser is told, when they are free, what it costs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from tests.sdk.sessions import KINDS
from tests.sdk.unique_room import BOTH, Room
from worm.errors import Conflict, Denied, Invalid, Unavailable, UniqueViolation, WormError
from worm.formats.strict_json import JsonValue
from worm.sdk.document import DocumentDict
from worm.store.base import Store
from worm.store.faulty_store import Fault, FaultyStore
from worm.upkeep.session import Maintenance, Session, Settings
from worm.upkeep.sweep import Sweep

HI = "hi@acme.com"
OTHER = "other@acme.com"
UUID = "a1b2c3d4-0000-4000-8000-000000000000"


@pytest.fixture(params=KINDS)
def room(request: pytest.FixtureRequest, tmp_path: Path) -> Room:
    return Room(request.param, tmp_path)


def taken(holder: str, value: str = "'hi@acme.com'", field: str = "email") -> str:
    return f"Unique constraint violation: {field}={value} already exists on entity '{holder}'"


# The constraint


def test_the_second_document_is_refused_with_the_words_of_the_format() -> None:
    room = Room(path="#org/@customers/(id:uuid)")
    customers = room.customers()
    customers.save({"id": UUID, "email": HI})
    with pytest.raises(UniqueViolation) as caught:
        customers.save(customers.create({"email": HI}))
    error = caught.value
    assert error.message == f"Unique constraint violation: email='hi@acme.com' already exists on entity '{UUID}'"
    assert (error.field, error.value, error.holder, error.exit_code) == ("email", "hi@acme.com", UUID, 11)
    assert isinstance(error, Invalid)
    assert not isinstance(error, Conflict)
    assert (room.having(HI), room.claims()) == ([UUID], {HI: UUID})


@pytest.mark.parametrize("maintenance", ["inline", "events"])
def test_every_verb_claims_and_frees(room: Room, maintenance: Maintenance) -> None:
    customers = room.customers(maintenance=maintenance)
    customers.save({"id": "a", "email": HI})
    assert room.claims() == {HI: "a"}
    with pytest.raises(UniqueViolation, match="on entity 'a'"):
        room.customers(maintenance=maintenance).save({"id": "b", "email": HI})
    customers.save({"id": "b", "email": OTHER})
    with pytest.raises(UniqueViolation, match="on entity 'a'"):
        customers.patch("b", {"email": HI})
    with pytest.raises(UniqueViolation, match="on entity 'b'"):
        customers.save(customers.get("a") | {"email": OTHER})
    customers.patch("a", {"email": "new@acme.com"})
    assert room.claims() == {"new@acme.com": "a", OTHER: "b"}
    customers.patch("b", {"email": HI})
    assert room.claims() == {"new@acme.com": "a", HI: "b"}
    customers.delete("b")
    assert room.claims() == {"new@acme.com": "a"}
    customers.save({"id": "c", "email": HI})
    assert room.having(HI) == ["c"]


def test_going_back_claims_again_and_frees(room: Room) -> None:
    customers = room.customers()
    customers.save({"id": "a", "email": HI})
    taken_at = str(customers.snapshot("a")["ts"])
    customers.patch("a", {"email": OTHER})
    customers.save({"id": "b", "email": HI})
    before = customers.find_by_id("a")
    ways: list[Callable[[], object]] = [
        lambda: customers.rollback("a", to_seq=1),
        lambda: customers.restore_snapshot("a", taken_at),
    ]
    for back in ways:
        with pytest.raises(UniqueViolation, match="on entity 'b'"):
            back()
        assert customers.find_by_id("a") == before
        assert room.claims() == {OTHER: "a", HI: "b"}
    customers.delete("b")
    customers.rollback("a", to_seq=1)
    assert room.claims() == {HI: "a"}
    customers.patch("a", {"email": OTHER})
    customers.restore_snapshot("a", taken_at)
    assert room.claims() == {HI: "a"}


def test_a_document_comes_back_from_trash_only_if_its_value_is_free(room: Room) -> None:
    customers = room.customers()
    customers.save({"id": "a", "email": HI})
    customers.delete("a")
    assert room.claims() == {}
    customers.save({"id": "b", "email": HI})
    with pytest.raises(UniqueViolation, match="on entity 'b'"):
        customers.restore("a")
    assert [one["id"] for one in customers.list_trashed()] == ["a"]
    assert (customers.exists("a"), room.claims()) == (False, {HI: "b"})
    tombstone = room.collection.trash.tombstone("a")
    assert tombstone is not None
    assert tombstone.state is None
    customers.delete("b")
    assert customers.restore("a")["email"] == HI
    assert (room.claims(), [one["id"] for one in customers.list_trashed()]) == ({HI: "a"}, ["b"])
    with pytest.raises(UniqueViolation, match="on entity 'a'"):
        customers.restore("b")


def test_a_document_that_is_deleted_for_good_frees_its_value() -> None:
    room = Room(softDelete=False)
    customers = room.customers()
    customers.save({"id": "a", "email": HI})
    assert customers.delete_many(["a"])[0].ok
    assert room.claims() == {}


def test_typed_documents_and_append_mode_are_bound_alike() -> None:
    class Customer(BaseModel):
        id: str | None = None
        email: str | None = None

    room = Room(mode="append")
    customers = room.session().model(Customer)
    customers.save(Customer(id="a", email=HI))
    with pytest.raises(UniqueViolation, match="on entity 'a'"):
        customers.save(Customer(id="b", email=HI))
    assert room.having(HI) == ["a"]


def test_null_and_missing_values_are_not_bound(room: Room) -> None:
    customers = room.customers()
    for number, document in enumerate([{}, {"email": None}, {}, {"email": None}]):
        customers.save({"id": f"n{number}", **document})
    assert room.claims() == {}
    for change in ({"$set": {"email": None}}, {"$unset": {"email": ""}}):
        customers.patch("n0", {"email": HI})
        customers.update("n0", change)
        assert room.claims() == {}
    customers.patch("n1", {"email": HI})


def test_values_are_compared_as_the_index_compares_them() -> None:
    room = Room(indexes={"byCode": {"field": "code", "unique": True}, "byKey": {"field": "meta.key", "unique": True}})
    customers = room.customers()
    customers.save({"id": "a", "code": 1, "meta": {"key": "1"}})
    with pytest.raises(UniqueViolation) as caught:
        customers.save({"id": "b", "code": 1.0})
    assert caught.value.message == taken("a", "1", "code")
    keys: list[JsonValue] = [1, True, "true", [1], {"x": 1.5}]
    for number, key in enumerate(keys):
        customers.save({"id": f"k{number}", "meta": {"key": key}})
    with pytest.raises(UniqueViolation) as caught:
        customers.save({"id": "b", "meta": {"key": {"x": 1.5}}})
    assert caught.value.message == taken("k4", '{"x":1.5}', "meta.key")
    assert caught.value.value == {"x": 1.5}  # itself, not its text


BIG = 2**53


@pytest.mark.parametrize("maintenance", ["inline", "events"])
@pytest.mark.parametrize("number", [BIG, BIG + 1, 2**60 + 1, 2**63 + 1, 2**64 - 1, -BIG - 1])
def test_large_whole_numbers_are_values_of_their_own(number: int, maintenance: Maintenance) -> None:
    room = Room(indexes={"byCode": {"field": "code", "unique": True}})
    room.customers(maintenance=maintenance).insert({"id": "a", "code": number})
    near = number - 1 if number > 0 else number + 1
    room.customers(maintenance=maintenance).insert({"id": "b", "code": near})
    assert (room.having(number, "code"), room.having(near, "code")) == (["a"], ["b"])
    with pytest.raises(UniqueViolation) as caught:
        room.customers(maintenance=maintenance).insert({"id": "c", "code": number})
    assert (caught.value.holder, caught.value.value) == ("a", number)
    room.session().repair()
    for strategy in ("index_lookup", "manifest_scan", "full_scan"):
        found = room.customers().find_all(filter={"code": number}, strategy=strategy)
        assert [(row["id"], row["code"]) for row in found] == [("a", number)]
    room.assert_clean()


@pytest.mark.parametrize("number", [BIG, 2**60, 2**63, -(2**63)])
def test_a_whole_float_is_the_integer_that_it_equals(number: int) -> None:
    """A claim of the one did not exclude the other, and the index then listed both as a conflict."""
    room = Room(indexes={"byCode": {"field": "code", "unique": True}})
    room.customers().insert({"id": "a", "code": number})
    for maintenance in ("inline", "events"):
        with pytest.raises(UniqueViolation) as caught:
            room.customers(maintenance=maintenance).insert({"id": "b", "code": float(number)})
        assert caught.value.holder == "a"
    found = room.customers().find_all(filter={"code": float(number)}, strategy="index_lookup")
    assert [(row["id"], type(row["code"])) for row in found] == [("a", int)]


def test_of_two_unique_fields_both_are_free_or_nothing_happens() -> None:
    both = Room(indexes=BOTH)
    customers = both.customers()
    customers.save({"id": "a", "email": HI, "phone": "1"})
    with pytest.raises(UniqueViolation, match="phone='1'"):
        customers.save({"id": "b", "email": OTHER, "phone": "1"})
    assert not customers.exists("b")
    assert (both.claims(), both.claims("phone")) == ({HI: "a"}, {"1": "a"})
    events = both.customers(maintenance="events")
    events.save({"id": "c", "email": OTHER, "phone": "2"})
    with pytest.raises(UniqueViolation, match="phone='2'"):  # the index does not know c yet: the claim refuses
        events.save({"id": "b", "email": "b@acme.com", "phone": "2"})
    assert both.claims() == {HI: "a", OTHER: "c"}


# Bulks


def test_in_a_bulk_the_first_gets_the_value(room: Room) -> None:
    emails = [HI, OTHER, HI, "x@acme.com", HI, OTHER]
    results = room.customers().save_many([{"id": f"c{n}", "email": value} for n, value in enumerate(emails)])
    assert [result.error and result.error.message for result in results] == [
        None,
        None,
        taken("c0"),
        None,
        taken("c0"),
        taken("c1", "'other@acme.com'"),
    ]
    assert room.claims() == {HI: "c0", OTHER: "c1", "x@acme.com": "c3"}
    room.assert_clean()


def test_in_a_bulk_the_next_one_gets_what_the_first_could_not_take(room: Room) -> None:
    customers = room.customers()
    results = customers.save_many([{"id": "a", "email": HI, "name": 7}, {"id": "b", "email": HI}, {"email": HI}])
    assert [result.ok for result in results] == [False, True, False]
    assert room.claims() == {HI: "b"}


def test_a_bulk_looks_at_the_index_once() -> None:
    room = Room()
    customers = room.customers(maintenance="events")
    with room.store.requests.measure() as spent:
        results = customers.save_many([{"id": f"c{n}", "email": f"{n}@acme.com"} for n in range(50)])
    assert all(result.ok for result in results)
    assert spent == {"GET": 51, "PUT": 100, "total": 151}


def test_a_bulk_that_meets_raw_uploads_names_each_holder() -> None:
    room = Room()
    for number in range(3):
        room.raw(f"raw{number}", email=f"{number}@acme.com")
    room.repair()
    results = room.customers(maintenance="events").save_many(
        [{"id": f"c{n}", "email": f"{n}@acme.com"} for n in range(5)] + [{"id": "raw1", "email": "1@acme.com"}]
    )
    assert [result.error and result.error.message for result in results[:3]] == [
        taken(f"raw{number}", f"'{number}@acme.com'") for number in range(3)
    ]
    assert [type(result.error) for result in results[3:]] == [type(None), type(None), Conflict]


# Raw uploads


def test_a_value_of_a_raw_upload_is_respected_once_the_index_knows_it(room: Room) -> None:
    room.raw("raw", email=HI)
    room.repair()
    customers = room.customers()
    with pytest.raises(UniqueViolation, match="on entity 'raw'"):
        customers.save({"id": "a", "email": HI})
    customers.patch("raw", {"name": "Raw"})
    with pytest.raises(UniqueViolation, match="on entity 'raw'"):
        customers.save({"id": "a", "email": HI})
    customers.delete("raw")
    customers.save({"id": "a", "email": HI})
    assert room.claims() == {HI: "a"}


def test_a_raw_duplicate_does_not_free_the_value_of_the_one_who_claimed_it(room: Room) -> None:
    customers = room.customers()
    customers.save({"id": "a", "email": HI})
    room.raw("raw", email=HI)
    customers.delete("raw")
    assert room.claims() == {HI: "a"}


def test_an_index_that_is_behind_refuses_nothing(room: Room) -> None:
    room.raw("raw", email=HI)
    room.repair()
    room.raw("raw", email=OTHER)
    room.customers().save({"id": "a", "email": HI})
    assert room.having(HI) == ["a"]


def test_a_raw_change_or_delete_of_the_holder_leaves_a_claim_that_is_taken_over(room: Room) -> None:
    customers = room.customers()
    customers.save_many([{"id": "a", "email": HI}, {"id": "b", "email": OTHER}])
    room.raw("a", email="raw@acme.com")
    room.store.delete("org/customers/b/profile.json")
    room.after_grace()
    customers.save_many([{"id": "c", "email": HI}, {"id": "d", "email": OTHER}])
    assert room.claims() == {HI: "c", OTHER: "d"}


def test_a_raw_upload_that_breaks_the_schema_keeps_its_claim(room: Room) -> None:
    customers = room.customers()
    customers.save({"id": "a", "email": HI})
    room.raw("a", email=HI, name=7)
    room.after_grace()
    with pytest.raises(UniqueViolation, match="on entity 'a'"):
        customers.save({"id": "b", "email": HI})
    room.store.put("org/customers/a/profile.json", b"no json")
    customers.save({"id": "b", "email": HI})
    assert room.claims() == {HI: "b"}


def test_without_an_index_saves_still_exclude_each_other(room: Room) -> None:
    customers = room.customers(maintenance="events")
    customers.save({"id": "a", "email": HI})
    for listed in list(room.store.list("org/customers/.worm.")):
        if listed.key.endswith(".json"):
            room.store.delete(listed.key)
    with pytest.raises(UniqueViolation, match="on entity 'a'"):
        room.customers(maintenance="events").save({"id": "b", "email": HI})


# What it costs


def test_requests_per_case() -> None:
    """Without history and tables (`events`), so that only the write itself is counted."""
    room = Room(softDelete=False)
    customers = room.customers(maintenance="events")
    customers.save({"id": "warm", "email": "warm@acme.com"})

    def cost(work: Callable[[], object]) -> dict[str, int]:
        with room.store.requests.measure() as spent, suppress(UniqueViolation):
            work()
        return spent

    assert cost(lambda: customers.save({"id": "none"})) == {"PUT": 1, "total": 1}
    acme = customers.create({"email": HI}, id="a")
    create = cost(lambda: customers.save(acme))
    assert create == {"GET": 2, "PUT": 2, "total": 4}  # index, claim, document, confirm
    acme["name"] = "A"
    assert cost(lambda: customers.save(acme)) == {"PUT": 1, "total": 1}
    assert cost(lambda: customers.patch("a", {"name": "B"})) == {"GET": 1, "PUT": 1, "total": 2}
    customers.refresh(acme)["email"] = OTHER
    change = cost(lambda: customers.save(acme))
    assert change == {"GET": 3, "PUT": 2, "DELETE": 1, "total": 6}  # and the old claim: read before, deleted after
    refused = cost(lambda: customers.save({"id": "b", "email": OTHER}))
    assert refused == {"GET": 3, "PUT": 1, "total": 4}  # index, claim, what is there, the holder's document
    assert cost(lambda: customers.delete("a")) == {"GET": 2, "DELETE": 2, "total": 4}
    customers.delete("none")
    fresh = room.customers(maintenance="events")
    warm = fresh.get("warm")
    assert cost(lambda: fresh.save(warm | {"name": "read"})) == {"PUT": 1, "total": 1}
    fresh.save({"id": "b", "email": HI})
    room.repair()
    known = cost(lambda: customers.save({"id": "c", "email": HI}))
    assert known == {"GET": 2, "total": 2}  # the index names the holder, and its document has the value


def test_a_model_without_unique_index_pays_nothing() -> None:
    room = Room(indexes={"byEmail": {"field": "email"}}, softDelete=False)
    customers = room.customers(maintenance="events")
    with room.store.requests.measure() as spent:
        saved = customers.save({"id": "a", "email": HI})
        customers.save(saved | {"email": OTHER})
        customers.delete("a")
    assert spent == {"PUT": 2, "GET": 1, "DELETE": 1, "total": 4}


def test_where_only_the_version_is_known_the_document_is_read_before_a_value_is_replaced() -> None:
    room = Room()
    customers = room.customers(maintenance="events")
    customers.save({"id": "a", "email": HI})
    seen = without_body(customers.get("a"))
    with room.store.requests.measure() as spent:
        customers.save(seen | {"email": OTHER})
    assert spent == {"GET": 4, "PUT": 2, "DELETE": 1, "total": 7}
    assert room.claims() == {OTHER: "a"}
    seen = without_body(customers.get("a"))
    room.raw("a", email="raw@acme.com")
    with pytest.raises(Conflict, match="changed since"), room.store.requests.measure() as spent:
        customers.save(seen | {"email": HI})
    assert spent == {"GET": 1, "total": 1}
    assert room.claims() == {OTHER: "a"}


def without_body(document: DocumentDict) -> DocumentDict:
    """As a transaction reads it: the version is known, the stored bytes are not at hand."""
    assert document.provenance is not None
    return DocumentDict.of(document, replace(document.provenance, body=None))


# Failures


def faulty(room: Room) -> FaultyStore:
    return FaultyStore(room.store, clock=room.clock, ids=room.ids)


@pytest.mark.parametrize("fault", [Fault.LOST_RESPONSE, Fault.OWN_REFUSAL, Fault.CONFLICT, Fault.LOST_REQUEST])
def test_an_unclear_answer_to_the_claim_is_settled(room: Room, fault: Fault) -> None:
    """A lost answer, or the 412 of our own hidden retry, must not refuse the value to the one who has it."""
    store = faulty(room)
    store.fail_next("attempt_put", fault)
    room.on(store).save({"id": "a", "email": HI})
    assert (room.having(HI), room.claims()) == (["a"], {HI: "a"})


def test_a_lost_document_write_gives_its_claim_back(room: Room) -> None:
    first, second = room.customers(), room.customers()
    first.save({"id": "a", "email": OTHER})
    seen = second.get("a")
    first.patch("a", {"name": "changed"})
    with pytest.raises(Conflict, match="changed since"):
        second.save(seen | {"email": HI})
    assert room.claims() == {OTHER: "a"}


def test_a_refused_document_write_gives_its_claim_back_and_an_unknown_one_does_not(room: Room) -> None:
    customers = room.customers(maintenance="events")
    store = DocumentFault(room.store, Fault.DENIED, room)
    with pytest.raises(Denied):
        room.on(store).save({"id": "a", "email": HI})
    assert room.claims() == {}
    store = DocumentFault(room.store, Fault.LOST_REQUEST, room)
    with pytest.raises(Unavailable, match="may or may not have landed"):
        room.on(store).save({"id": "a", "email": HI})
    assert room.claims() == {HI: "a"}, "what may have landed keeps its claim"
    with pytest.raises(UniqueViolation, match="on entity 'a'") as caught:
        customers.save({"id": "b", "email": HI})
    assert "in progress" in str(caught.value.hint)
    room.customers(maintenance="events").save({"id": "a", "email": HI})
    assert room.having(HI) == ["a"]


def test_when_one_claim_has_an_unknown_outcome_the_others_stay() -> None:
    """Nobody cleans up after an unknown outcome; the same document goes on with these claims, others after a minute."""
    both = Room(indexes=BOTH)
    store = SecondFieldFault(both.store, clock=both.clock, ids=both.ids)
    with pytest.raises(Unavailable, match="may or may not"):
        both.on(store).save({"id": "a", "email": HI, "phone": "1"})
    assert (both.having(HI), both.claims()) == ([], {HI: "a"})
    both.customers(maintenance="events").save({"id": "a", "email": HI, "phone": "1"})
    assert (both.claims(), both.claims("phone")) == ({HI: "a"}, {"1": "a"})


class SecondFieldFault(FaultyStore):
    """Every claim of a phone is lost on the way."""

    def attempt_put(self, key: str, *arguments: Any) -> Any:
        if "/phone/" in key:
            self.fail_next("attempt_put", Fault.LOST_REQUEST)
        return super().attempt_put(key, *arguments)


class DocumentFault(FaultyStore):
    """Every put of a document fails so."""

    def __init__(self, inner: Store, fault: Fault, room: Room) -> None:
        super().__init__(inner, clock=room.clock, ids=room.ids)
        self._fault = fault

    def attempt_put(self, key: str, *arguments: Any) -> Any:
        if key.endswith("/profile.json"):
            self.fail_next("attempt_put", self._fault)
        return super().attempt_put(key, *arguments)


def test_a_claim_that_cannot_be_freed_is_said_after_everything_else_is_done(room: Room) -> None:
    store = faulty(room)
    customers = room.on(store, maintenance="inline")
    acme = customers.insert({"id": "a", "email": HI})
    store.fail_next("attempt_delete", Fault.DENIED)
    acme["email"] = OTHER
    with pytest.raises(Unavailable, match="the change is stored, but the claim on its old value remains") as caught:
        customers.save(acme)
    assert caught.value.is_stored
    assert acme.version == room.customers().get("a").version  # what is stored is known, though the save failed
    assert len(customers.get_history("a")) == 2
    assert room.claims() == {HI: "a", OTHER: "a"}
    room.after_grace()
    room.customers().save({"id": "b", "email": HI})
    assert room.claims() == {HI: "b", OTHER: "a"}


def test_a_claim_that_cannot_be_given_back_is_said_in_the_hint(room: Room) -> None:
    store = faulty(room)
    customers = room.on(store)
    room.customers().save({"id": "a", "email": OTHER})
    store.fail_next("attempt_delete", Fault.DENIED)
    with pytest.raises(Conflict) as caught:
        customers.save({"id": "a", "email": HI})
    assert "email='hi@acme.com' is claimed for 60 more seconds" in str(caught.value.hint)
    room.after_grace()
    room.customers().save({"id": "b", "email": HI})


def test_a_claim_that_cannot_be_confirmed_is_an_error_that_says_what_is_stored(room: Room) -> None:
    store = ConfirmFault(room.store, clock=room.clock, ids=room.ids)
    with pytest.raises(Unavailable, match="Customer 'a' is stored, but its claims could not be confirmed") as caught:
        room.on(store).save({"id": "a", "email": HI})
    assert caught.value.is_stored
    assert room.having(HI) == ["a"]


class ConfirmFault(FaultyStore):
    def get_if_changed(self, key: str, etag: str | None) -> Any:
        if "/.claims/" in key:
            self.fail_next("get", Fault.UNAVAILABLE)
        return super().get_if_changed(key, etag)


# Many at once


@pytest.mark.parametrize("kind", ["memory", "file"])
@pytest.mark.parametrize("maintenance", ["inline", "events"])
def test_of_sixteen_saves_at_once_one_wins_and_nothing_is_left_of_the_others(
    kind: str, maintenance: Maintenance, tmp_path: Path
) -> None:
    room = Room(kind, tmp_path, indexes=BOTH)
    start = threading.Barrier(16)
    errors: dict[str, WormError | None] = {}

    def save(name: str) -> None:
        customers = room.customers(maintenance=maintenance)
        start.wait()
        try:
            customers.save({"id": name, "email": HI, "phone": name})
            errors[name] = None
        except WormError as error:
            errors[name] = error

    threads = [threading.Thread(target=save, args=(f"c{number}",)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    winners = [name for name, error in errors.items() if error is None]
    assert len(winners) == 1
    assert {type(error) for error in errors.values()} == {type(None), UniqueViolation}
    assert {str(error.message) for error in errors.values() if isinstance(error, UniqueViolation)} == {
        taken(winners[0])
    }
    assert room.having(HI) == winners
    assert (room.claims(), room.claims("phone")) == ({HI: winners[0]}, {winners[0]: winners[0]})
    if maintenance == "events":
        workspace = Session(room.store, Settings("documents", threads=2), ids=room.ids, clock=room.clock)
        Sweep(workspace).run(lambda: 1.0, resume=False)
    room.assert_clean()
