"""Claims by themselves: values and their names, the stored shape, and the audit of all claims against all documents."""

from __future__ import annotations

import json
from collections.abc import Sequence
from threading import Barrier
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.sdk.unique_room import BOTH, Room
from worm.collections.claiming import Claiming
from worm.collections.claims import (
    Claim,
    Finding,
    UniqueValue,
)
from worm.collections.entries import Document
from worm.collections.layout import KeyKind, StorageResolver
from worm.errors import Corrupt, Invalid, Unavailable, WormError
from worm.formats import IndexDef
from worm.formats.strict_json import JsonValue
from worm.query.filters import condition
from worm.store.base import Lost, Object, Won
from worm.tables.index import entry_key

HI, OTHER = "hi@acme.com", "other@acme.com"
HI_KEY = "org/customers/.worm.index/email/.claims/63f3ceec43b6b706ae6baa0a01de8dab77c5863523d4a505dcd693866b11fe09"

json_values = st.recursive(
    st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


def key_of(room: Room, value: JsonValue, field: str = "email") -> str:
    claims = room.collection.claims
    return claims.key(UniqueValue(field, value))


def stored(room: Room, value: JsonValue) -> Object:
    found = room.store.get(key_of(room, value))
    assert found is not None
    return found


numbers = st.sampled_from([2**53, 2**60, 2**63, 2**64 - 1, -(2**53), -(2**63)]).flatmap(
    lambda base: st.integers(max(base - 3, -(2**63)), min(base + 3, 2**64 - 1))
)


@given(json_values | numbers | numbers.map(float), json_values | numbers | numbers.map(float))
@example(1.5, 1)
@example(1.0, 1)
@example(2**53, float(2**53))
@example(2**53 + 1, float(2**53))
@example(2**53, 2**53 + 1)
@example(2**64 - 1, float(2**64))
@example([1, {"x": 2.0}], [1.0, {"x": 2}])
def test_claims_index_entries_and_filters_tell_the_same_values_apart(one: JsonValue, other: JsonValue) -> None:
    """Of whole numbers from 2^53 on, a claim had one name and the index another: two documents got one value."""
    first, second = UniqueValue("f", one), UniqueValue("f", other)
    same_entry = entry_key(one) == entry_key(other)
    assert (first.digest == second.digest) is same_entry
    assert first.is_in({"f": other}) is same_entry
    assert condition("$eq", one).one(other) is same_entry
    if isinstance(one, int | float) and isinstance(other, int | float):
        assert same_entry is (one == other and isinstance(one, bool) is isinstance(other, bool))


def test_the_stored_claim_is_as_documented() -> None:
    room = Room()
    room.customers(maintenance="events").save({"id": "a", "email": HI})
    found = stored(room, HI)
    shape = json.loads(found.body)
    assert found.key == HI_KEY
    assert {**shape, "claim": "…"} == {"version": 1, "id": "a", "value": HI, "claim": "…"}
    assert len(shape["claim"]) == 26
    info = StorageResolver(room.schema).parse(found.key)
    assert (info.kind, info.model, info.field) == (KeyKind.CLAIM, "Customer", "email")


def test_a_claim_reads_back_and_ignores_members_that_it_does_not_know() -> None:
    claim = Claim("a", [1, None], "01ARZ3", over="b")
    assert Claim.from_bytes(claim.to_bytes(), "k") == claim
    later = json.dumps({**json.loads(claim.to_bytes()), "later": 1}).encode()
    assert Claim.from_bytes(later, "k") == claim
    assert Claim.from_bytes(Claim("a", 1, "c").to_bytes(), "k").over is None


@pytest.mark.parametrize(
    "body",
    [
        b"no json",
        b"{}",
        b'{"version":2,"id":"a","value":1,"claim":"c"}',
        b'{"version":1,"id":1,"claim":"c"}',
        b'{"version":1,"id":"a","claim":"c"}',
        b'{"version":1,"id":"a","value":1,"claim":"c","over":3}',
    ],
)
def test_what_is_no_claim_is_corrupt(body: bytes) -> None:
    with pytest.raises(Corrupt) as caught:
        Claim.from_bytes(body, "the/key")
    assert caught.value.key == "the/key"


def test_a_damaged_claim_stops_its_value_and_nothing_else() -> None:
    room = Room()
    customers = room.customers(maintenance="events")
    customers.save({"id": "a", "email": HI})
    room.store.put(key_of(room, HI), b"damage")
    with pytest.raises(Corrupt, match="repair"):
        room.customers(maintenance="events").save({"id": "b", "email": HI, "name": "b"})
    customers.patch("a", {"email": OTHER})
    customers.delete("a")
    assert room.collection.claims.restore({}).removed == [key_of(room, HI)]
    customers.save({"id": "b", "email": HI})


def documents(room: Room, *ids: str) -> dict[str, Document]:
    found = room.customers().find_many(list(ids))
    return {one.id: one.document for one in found if one.document is not None}


def test_the_audit_names_conflicts_stale_and_damaged_claims() -> None:
    room = Room()
    customers = room.customers(maintenance="events")
    for number, value in enumerate((HI, OTHER, "x@acme.com", "y@acme.com")):
        customers.save({"id": f"c{number}", "email": value})
    room.raw("raw", email=HI)
    room.raw("c1", email="changed@acme.com")
    room.store.put(key_of(room, "x@acme.com"), b"damage")
    room.store.put(key_of(room, "z@acme.com"), stored(room, "y@acme.com").body)
    claims, rows = room.collection.claims, documents(room, "c0", "c1", "c2", "c3", "raw")
    kinds = {(one.kind, one.key) for one in claims.audit(rows)}
    young = {
        ("unique-conflict", key_of(room, HI)),
        ("claim-damaged", key_of(room, "x@acme.com")),
        ("claim-damaged", key_of(room, "z@acme.com")),
    }
    assert kinds == young, "a claim of this minute may be of a save under way"
    room.after_grace()
    found = claims.audit(rows)
    assert {(one.kind, one.key) for one in found} == young | {("claim-stale", key_of(room, OTHER))}
    assert Finding("unique-conflict", key_of(room, HI), "email='hi@acme.com' is on 2 documents: c0, raw") in found
    damaged = {one.detail for one in found if one.kind == "claim-damaged"}
    assert len(damaged) == 2
    assert all(detail.endswith(" (run `worm repair` to rewrite it)") for detail in damaged)
    assert not any(".worm.index" in detail for detail in damaged)
    assert Finding("claim-stale", key_of(room, OTHER), "'c1' does not have the value that is claimed for it") in found

    report = claims.restore(rows)
    assert report.written == [key_of(room, "changed@acme.com")]
    assert report.corrected == [key_of(room, "x@acme.com")]
    assert set(report.removed) == {key_of(room, OTHER), key_of(room, "z@acme.com")}
    assert [one.kind for one in report.conflicts] == ["unique-conflict"]
    assert room.claims() == {HI: "c0", "changed@acme.com": "c1", "x@acme.com": "c2", "y@acme.com": "c3"}
    assert [one.kind for one in claims.audit(rows)] == ["unique-conflict"]


def test_the_audit_believes_the_document_and_not_a_row_that_is_behind() -> None:
    room = Room()
    room.customers(maintenance="events").save({"id": "a", "email": HI})
    room.after_grace()
    claims = room.collection.claims
    assert claims.audit({"a": {"email": OTHER}}) == []
    assert claims.restore({}).removed == []


def test_the_audit_reads_no_document_whose_row_has_the_value() -> None:
    room = Room()
    model = room.customers()
    for number in range(5):
        model.insert({"id": f"c{number}", "email": f"c{number}@acme.com"})
    room.after_grace()
    rows: dict[str, Document] = {f"c{number}": {"email": f"c{number}@acme.com"} for number in range(5)}
    with room.store.requests.measure() as spent:
        assert room.collection.claims.audit(rows) == []
    assert (spent.get("GET"), spent.get("LIST")) == (5, 1), "each claim, and a listing"


def test_restoring_gives_a_claim_of_several_to_the_one_that_has_it_or_to_the_first() -> None:
    room = Room(indexes=BOTH)
    room.customers(maintenance="events").save({"id": "b", "email": HI})
    for name in ("a", "c"):
        room.raw(name, email=HI, phone="1")
    rows = documents(room, "a", "b", "c")
    room.collection.claims.restore(rows)
    assert (room.claims(), room.claims("phone")) == ({HI: "b"}, {"1": "a"})


def test_restoring_writes_claims_of_documents_from_before_the_index_was_unique() -> None:
    room = Room(indexes={"byEmail": {"field": "email"}})
    room.customers(maintenance="events").save({"id": "a", "email": HI})
    assert room.claims() == {}
    unique = Room()
    unique.store = room.store
    assert unique.collection.claims.restore(documents(room, "a")).written == [key_of(unique, HI)]
    assert unique.claims() == {HI: "a"}


def test_missing_claims_are_restored_many_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """After an import, a task of the Spark job restores 50,000 of them: one after the other, that takes an hour."""
    room, both = Room(), Barrier(2, timeout=10)
    for number in range(2):
        room.store.put(f"org/customers/c{number}/profile.json", json.dumps({"email": f"c{number}"}).encode())
    put = room.store.put_if_absent

    def together(key: str, body: bytes, **more: Any) -> Won | Lost:
        both.wait()
        return put(key, body, **more)

    monkeypatch.setattr(room.collection.claims.store, "put_if_absent", together)
    rows = {f"c{number}": {"email": f"c{number}"} for number in range(2)}
    assert len(room.collection.claims.restore(rows).written) == 2


@pytest.mark.parametrize("sample", [1_000, 100])
def test_a_sample_shows_how_many_claims_are_stored(sample: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worm.collections.claims.SAMPLE", sample)
    room = Room()
    assert room.collection.claims.estimate_count() == 0
    for number in range(900):
        room.store.put(key_of(room, f"{number}@acme.com"), b"{}")
    room.store.put(f"{key_of(room, HI).rpartition('/')[0]}/notes.txt", b"not a claim")
    assert room.collection.claims.estimate_count() == pytest.approx(900, rel=0.3 if sample < 900 else 0)


def test_restoring_claims_nothing_for_a_document_that_has_another_value_by_now() -> None:
    """A claim from a row that is behind would refuse the value to everybody for a minute."""
    room = Room()
    customers = room.customers(maintenance="events")
    customers.save({"id": "a", "email": OTHER})
    room.raw("c", email=HI)
    behind: dict[str, Document] = {"a": {"email": HI}, "b": {"email": HI}, "z": {"email": "x@acme.com"}}
    report = room.collection.claims.restore(behind)
    assert (report.written, room.claims()) == ([], {OTHER: "a"})
    room.store.put(key_of(room, HI), b"damage")
    assert room.collection.claims.restore(behind).removed == [key_of(room, HI)]
    customers.save({"id": "d", "email": "x@acme.com"})
    behind["c"] = {"email": HI}
    assert room.collection.claims.restore(behind).written == [key_of(room, HI)]
    assert room.claims() == {OTHER: "a", "x@acme.com": "d", HI: "c"}


def test_many_holders_of_one_value_are_named_in_part() -> None:
    rows: dict[str, Document] = {f"c{number:02}": {"email": HI} for number in range(16)}
    (found,) = Room().collection.claims.audit(rows)
    assert found.detail == "email='hi@acme.com' is on 16 documents: c00, c01, c02, c03, c04, …"
    (few,) = Room().collection.claims.audit({one: rows[one] for one in list(rows)[:5]})
    assert few.detail.endswith("5 documents: c00, c01, c02, c03, c04")


def test_a_first_claim_of_a_value_that_the_document_lost_meanwhile_is_not_reported_as_written() -> None:
    room = Room()
    room.raw("a", email=OTHER)
    report = room.collection.claims.claim_unclaimed({"a": {"email": HI}})
    assert (report.written, room.claims()) == ([], {})


def test_claims_that_cannot_be_read_end_the_audit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Left out, a claim that is there would count as missing, and its value as free."""
    room = Room()
    room.customers(maintenance="events").save({"id": "a", "email": HI})
    claims, rows = room.collection.claims, documents(room, "a")
    monkeypatch.setattr(claims.store, "get_many", lambda reads, **_: [Unavailable("no answer") for _ in reads])
    with pytest.raises(Unavailable, match="no answer"):
        claims.audit(rows)


def test_each_unique_field_asks_its_own_index() -> None:
    """Asked of another index, an upload that has the value already would be no candidate, and two documents had it."""
    room = Room(indexes=BOTH)
    asked: list[tuple[str, list[JsonValue]]] = []

    def ids_with(index: IndexDef, values: Sequence[JsonValue]) -> set[str]:
        asked.append((index.field, list(values)))
        return {"raw"} if index.field == "phone" else set()

    room.raw("raw", phone="1")
    holders = Claiming(room.collection, ids_with, lambda undone: None).holders([{"email": HI, "phone": "1"}])
    assert holders.of(UniqueValue("email", HI), "a") is None
    assert holders.of(UniqueValue("phone", "1"), "a") == "raw"
    assert asked == [("email", [HI]), ("phone", ["1"])]


def test_a_candidate_that_is_too_large_to_read_holds_no_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no document. Were it an error, one large upload would stop the saves of a value."""
    room = Room()
    room.raw("large", email=HI)
    room.raw("b", email=HI)
    collection = room.collection
    candidates: set[str] = {"large"}
    found: list[WormError] = [Invalid("too large")]
    claiming = Claiming(collection, lambda index, values: candidates, lambda undone: None)
    monkeypatch.setattr(collection.store, "get_many", lambda reads, **_: [found[0] for _ in reads])
    assert claiming.holders([{"email": HI}]).of(UniqueValue("email", HI), "a") is None
    found[0] = Unavailable("no answer")
    with pytest.raises(Unavailable, match="no answer"):
        claiming.holders([{"email": HI}]).of(UniqueValue("email", HI), "a")


def test_a_value_that_is_not_json_shares_nothing_with_other_documents() -> None:
    """It is refused where it is saved. Refused here, it would take the other documents of its bulk along."""
    claiming = Claiming(Room().collection, lambda index, values: None, lambda undone: None)
    assert claiming.shared_values([{"email": float("nan")}, {"email": HI}]) == [set(), {("email", b'"hi@acme.com"')}]
