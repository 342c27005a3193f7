"""A push on a place that has documents adopts them: recorded, counted, claimed and in the table when it ends."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Literal

import pytest

from worm.errors import Unavailable, UniqueViolation
from worm.formats import Schema, load_schema
from worm.sdk.database import Worm, push
from worm.store.base import Object, Store
from worm.store.faulty_store import FaultyStore, SimulatedCrash
from worm.store.memory import MemoryStore
from worm.tables.verify import verify_collection
from worm.upkeep.adopt import adopt_models, push_session
from worm.upkeep.session import Session


def schema(*, oplog: bool, table: bool, unique: bool = False) -> Schema:
    customer: dict[str, object] = {
        "path": "#org/@customers/(id:slug)",
        "fields": {"name": {"type": "string", "required": True}, "email": {"type": "string"}},
        "oplog": oplog,
        "manifest": {"enabled": table},
    }
    if unique:
        customer["indexes"] = {"byEmail": {"field": "email", "unique": True}}
    return load_schema({"models": {"Customer": customer}})


def put_raw(store: Store, entity_id: str, document: Mapping[str, object]) -> None:
    store.put(f"org/customers/{entity_id}/data.json", json.dumps(document).encode())


def filled(*, versioned: bool = True) -> MemoryStore:
    store = MemoryStore(versioned=versioned)
    put_raw(store, "acme", {"name": "Acme", "email": "hi@acme.com"})
    put_raw(store, "kobe", {"name": "Kobe"})
    put_raw(store, "bad", {"name": 7})
    store.put("org/customers/worse/data.json", b"not json")
    return store


def sentinel_count(store: Store) -> object:
    found = store.get("org/customers/.worm")
    assert found is not None
    return json.loads(found.body)["count"]


@pytest.mark.parametrize("versioned", [True, False])
@pytest.mark.parametrize("table", [True, False])
@pytest.mark.parametrize("oplog", [True, False])
def test_documents_that_were_there_are_found_after_a_push(oplog: bool, table: bool, versioned: bool) -> None:
    store = filled(versioned=versioned)
    definition = schema(oplog=oplog, table=table)
    [adopted] = push(store, definition).adopted
    model = Worm(store, definition).model("Customer")
    assert sorted(str(row["name"]) for row in model.find_all()) == ["Acme", "Kobe"]
    assert adopted.recorded == (2 if oplog else 0)
    assert adopted.rows == (2 if table else None)
    if oplog or table:
        assert (adopted.documents, sentinel_count(store)) == (2, 2)
        assert set(adopted.problems) == {"org/customers/bad/data.json", "org/customers/worse/data.json"}
        assert adopted.problems["org/customers/bad/data.json"].startswith("name: must be a string, not integer")
    else:
        assert sentinel_count(store) == 4  # listed, not read
    assert verify_collection(model.table.collection).differences == []


def test_a_second_push_of_the_same_writes_nothing_and_tells_the_same_problems() -> None:
    store, definition = filled(), schema(oplog=True, table=True, unique=True)
    [first] = push(store, definition).adopted
    with store.requests.measure() as spent:
        [second] = push(store, definition).adopted
    assert "PUT" not in spent
    assert (second.recorded, second.claimed, second.rows, second.problems) == (0, 0, 2, first.problems)


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_interrupted_push_is_finished_by_the_next_one(when: Literal["before", "after"]) -> None:
    """Without it, documents that the first push did not reach stay invisible."""
    definition, number, is_over = schema(oplog=True, table=True, unique=True), 0, False
    while not is_over:
        number += 1
        store = FaultyStore(filled())
        store.crash_at_write(number, when)
        try:
            push_session(Session(store, schema=definition, probe=False))
            is_over = True
        except SimulatedCrash:
            store.revive()
        push_session(Session(store, schema=definition, probe=False))
        model = Worm(store, definition, probe=False).model("Customer")
        assert sorted(str(row["name"]) for row in model.find_all()) == ["Acme", "Kobe"]
        assert sentinel_count(store) == 2
        assert verify_collection(model.table.collection).differences == []
        with pytest.raises(UniqueViolation):
            model.save(model.create({"name": "Other", "email": "hi@acme.com"}, id="other"))
    assert number > 10


def test_a_saved_duplicate_of_an_adopted_unique_value_is_refused_by_the_claim_alone() -> None:
    """The index may be missing or behind: only a claim decides between two saves."""
    store, definition = filled(), schema(oplog=True, table=True, unique=True)
    [adopted] = push(store, definition).adopted
    assert (adopted.claimed, adopted.conflicts) == (1, [])
    store.delete("org/customers/.worm.index/email.json")
    model = Worm(store, definition).model("Customer")
    with pytest.raises(UniqueViolation) as refused:
        model.save(model.create({"name": "Other", "email": "hi@acme.com"}, id="other"))
    assert refused.value.holder == "acme"


def test_duplicates_among_adopted_documents_are_reported_and_a_third_is_refused() -> None:
    store, definition = filled(), schema(oplog=True, table=True, unique=True)
    put_raw(store, "twin", {"name": "Twin", "email": "hi@acme.com"})
    [adopted] = push(store, definition).adopted
    assert adopted.conflicts == ["email='hi@acme.com' is on 2 documents: acme, twin"]
    model = Worm(store, definition).model("Customer")
    with pytest.raises(UniqueViolation):
        model.save(model.create({"name": "Other", "email": "hi@acme.com"}, id="other"))


def test_a_raw_duplicate_after_adoption_is_kept_and_listed_as_a_conflict() -> None:
    store, definition = filled(), schema(oplog=True, table=True, unique=True)
    push(store, definition)
    put_raw(store, "twin", {"name": "Twin", "email": "hi@acme.com"})
    [adopted] = push(store, definition).adopted
    assert adopted.conflicts == ["email='hi@acme.com' is on 2 documents: acme, twin"]
    collection = Session(store, schema=definition).collection("Customer")
    assert [one.kind for one in verify_collection(collection).differences] == ["unique-conflict"]


def test_turning_an_oplog_on_later_adopts_as_well() -> None:
    store = filled()
    push(store, schema(oplog=False, table=True))
    [adopted] = push(store, schema(oplog=True, table=True)).adopted
    assert (adopted.recorded, adopted.rows) == (2, 2)


def test_without_an_oplog_a_document_that_fits_the_new_schema_gets_its_row() -> None:
    """Its etag has not changed, so no fold would look at it again."""
    store = filled()
    push(store, schema(oplog=False, table=True))
    relaxed = load_schema(
        {"models": {"Customer": {"path": "#org/@customers/(id:slug)", "manifest": {"enabled": True, "fields": []}}}}
    )
    [adopted] = push(store, relaxed).adopted
    assert (adopted.rows, list(adopted.problems)) == (3, ["org/customers/worse/data.json"])


def test_progress_counts_up_to_all_documents() -> None:
    store, seen = MemoryStore(), list[tuple[str, int, int | None]]()
    for number in range(450):
        put_raw(store, f"c{number}", {"name": "x"})
    push(store, schema(oplog=True, table=True), progress=lambda *told: seen.append(told))
    assert seen[-1] == ("Customer", 450, 450)
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)


def test_without_adopting_documents_wait_for_the_sweep() -> None:
    store, definition = filled(), schema(oplog=True, table=True)
    assert push(store, definition, adopt=False).adopted == ()
    assert Worm(store, definition).model("Customer").count() == 0
    session = Session(store, schema=definition)
    assert [one.rows for one in adopt_models(session, ["Customer"])] == [2]


class _Stubborn(MemoryStore):
    """One document cannot be read."""

    def get(self, key: str, *, version_id: str | None = None, max_bytes: int | None = None) -> Object | None:
        if key == "org/customers/kobe/data.json":
            raise Unavailable("the store does not answer", key=key)
        return super().get(key, version_id=version_id, max_bytes=max_bytes)


def test_a_document_that_could_not_be_read_fails_the_push_after_the_others_are_adopted() -> None:
    """A push that ends well says that everything valid is in the table."""
    store, definition = _Stubborn(), schema(oplog=True, table=True)
    put_raw(store, "acme", {"name": "Acme"})
    put_raw(store, "kobe", {"name": "Kobe"})
    with pytest.raises(Unavailable):
        push(store, definition)
    assert Worm(store, definition).model("Customer").count() == 1
