"""A document knows the version that it came from, and only that decides whether a save goes through."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from copy import copy, deepcopy
from pathlib import Path
from typing import ClassVar
from uuid import UUID

import pytest
from pydantic import BaseModel

from tests.sdk.sessions import KEY, Bench, must, spent
from worm.collections.documents import DocumentVersion
from worm.errors import Conflict, Invalid, NotFound
from worm.formats.strict_json import JsonValue
from worm.sdk.document import DocumentDict, provenance_of


class Customer(BaseModel):
    worm_model: ClassVar[str] = "Customer"
    id: str
    name: str = ""
    score: float | None = None


def test_of_two_reads_in_one_session_the_second_save_is_a_conflict(bench: Bench) -> None:
    customers = bench.customers()
    customers.insert({"id": "a", "name": "Acme", "score": 1})
    one, other = customers.get("a"), customers.get("a")
    one["score"] = 2
    other["name"] = "Other"
    bench.tick()
    customers.save(one)
    with pytest.raises(Conflict, match="changed since it was read") as caught:
        customers.save(other)
    assert "modify()" in str(caught.value.hint)
    assert customers.get("a")["score"] == 2
    assert bench.ops() == ["create", "update"]
    again = customers.refresh(other)
    assert again is other
    again["name"] = "Other"
    assert customers.save(again)["score"] == 2
    bench.assert_clean()


def test_of_two_objects_of_a_class_the_second_save_is_a_conflict(bench: Bench) -> None:
    customers = bench.session().model(Customer)
    customers.insert(Customer(id="a", name="Acme"))
    one, other = customers.get("a"), customers.get("a")
    one.score, other.name = 2, "Other"
    customers.save(one)
    with pytest.raises(Conflict):
        customers.save(other)
    assert customers.refresh(other) is other
    assert other.score == 2
    other.name = "Other"
    assert customers.save(other) == Customer(id="a", name="Other", score=2)


def test_a_plain_dict_with_an_id_that_exists_is_a_conflict_that_names_the_ways_out(bench: Bench) -> None:
    customers = bench.customers()
    customers.save({"id": "a", "name": "Acme"})
    for write in (customers.save, customers.insert):
        with pytest.raises(Conflict, match="exists already") as caught:
            write({"id": "a", "name": "Other"})
        assert all(way in str(caught.value.hint) for way in ("get()", "modify()", "patch()", "upsert()"))
    assert customers.get("a")["name"] == "Acme"


def test_a_version_survives_copies_unions_and_pickles(bench: Bench) -> None:
    customers = bench.customers()
    read = must(customers.find_by_id(customers.insert({"id": "a", "name": "Acme"})["id"]))
    copies = [copy(read), deepcopy(read), read.copy(), read | {"x": 1}, {"x": 1} | read]
    copies.append(pickle.loads(pickle.dumps(read)))
    merged = read.copy()
    merged |= {"x": 1}
    for one in (*copies, merged):
        assert isinstance(one, DocumentDict)
        assert (one.version, one.seq, one.model) == (read.version, read.seq, "Customer")
        assert one.version
    other = bench.customers()  # another session, which has read nothing
    assert other.save(copies[-1] | {"name": "New"})["name"] == "New"
    for one in copies:
        with pytest.raises(Conflict):
            customers.save(one | {"name": "Late"})
    typed = bench.session().model(Customer)
    found = typed.get("a")
    for other_one in (copy(found), deepcopy(found), found.model_copy(), pickle.loads(pickle.dumps(found))):
        assert must(provenance_of(other_one)).version == must(provenance_of(found)).version
        assert other_one == found
        assert "__worm__" not in other_one.model_dump()


def test_the_result_and_the_object_that_was_passed_can_be_saved_again(bench: Bench) -> None:
    customers = bench.customers()
    passed = customers.create({"name": "Acme"}, id="a")
    assert (passed.version, passed.model) == (None, None)
    first = customers.save(passed)
    assert first.version == passed.version
    assert first.seq == 1
    passed["name"] = "Acme Inc"
    second = customers.save(passed)
    assert second.version != first.version
    assert (second.seq, second["name"], passed["updatedAt"]) == (2, "Acme Inc", second["updatedAt"])
    with pytest.raises(Conflict):
        customers.save(first | {"name": "late"})
    typed = bench.session().model(Customer)
    one = typed.get("a")
    for name in ("one", "two"):
        one.name = name
        typed.save(one)
    assert typed.get("a").name == "two"


def test_a_row_of_a_query_can_be_saved_if_it_is_whole(bench: Bench) -> None:
    customers = bench.customers()
    customers.insert({"id": "a", "name": "Acme", "vat": "X1", "more": {"x": [1]}})
    row, same = bench.customers().find_all()[0], bench.customers().find_all(filter={"name": "Acme"})[0]
    assert row["vat"] == "X1"
    bench.tick()
    assert customers.save(row | {"score": 5})["vat"] == "X1"
    stored = customers.get("a")
    assert (stored["vat"], stored["more"], stored["score"]) == ("X1", {"x": [1]}, 5)
    with pytest.raises(Conflict, match="changed since it was read"):
        customers.save(same | {"score": 6})
    part = customers.find_all(select=["name"])[0]
    with pytest.raises(Invalid, match="only the selected fields") as caught:
        customers.save(part)
    assert "get('a')" in str(caught.value.hint)
    assert customers.get("a") == stored
    typed = bench.session().model(Customer)
    (item,) = typed.find_all()
    item.name = "New"
    typed.save(item)
    assert customers.get("a")["vat"] == "X1"
    bench.assert_clean()


@pytest.mark.parametrize("changes", [{"oplog": False}, {"manifest": {"enabled": False}, "indexes": {}}])
def test_rows_of_models_that_keep_less_can_be_saved_too(tmp_path: Path, changes: dict[str, object]) -> None:
    bench = Bench("memory", tmp_path, **changes)
    customers = bench.customers()
    customers.insert({"id": "a", "name": "Acme", "vat": "X1"})
    one, other = customers.find_all()[0], customers.find_all()[0]
    bench.tick()
    assert customers.save(one | {"score": 5})["vat"] == "X1"
    with pytest.raises(Conflict, match="changed since it was read"):
        customers.save(other | {"score": 6})
    row = customers.find_all()[0]
    customers.delete("a")
    with pytest.raises(Conflict, match="was deleted since it was read"):
        customers.save(row | {"score": 6})


def test_saving_what_did_not_change_writes_nothing(bench: Bench) -> None:
    customers = bench.customers()
    customers.insert({"id": "a", "name": "Acme"})
    read = customers.get("a")
    bench.tick()
    stored = must(bench.store.get(KEY))
    assert spent(bench.store, lambda: customers.save(read)) == 1  # is it still there?
    assert must(bench.store.get(KEY)).etag == stored.etag
    assert bench.ops() == ["create"]
    assert customers.upsert({"id": "a", "name": "Acme"}).version == read.version
    assert customers.patch("a", {"name": "Acme"}).version == read.version
    assert bench.ops() == ["create"]
    bench.customers().patch("a", {"name": "New"})
    with pytest.raises(Conflict):
        customers.save(read)


def test_a_save_after_reading_costs_no_request_more_than_an_insert(bench: Bench) -> None:
    customers = bench.customers()
    customers.insert({"id": "b", "name": "Bee"})
    read = customers.get("b")
    bench.tick()
    update = spent(bench.store, lambda: customers.save(read | {"name": "B"}))
    assert update <= spent(bench.store, lambda: customers.insert({"id": "c", "name": "Cee"})) + 1  # its old row
    events = bench.customers(maintenance="events")
    read = events.get("b")
    assert spent(bench.store, lambda: events.save(read | {"name": "New"})) == 1


def test_the_time_of_creation_cannot_get_lost(bench: Bench) -> None:
    customers = bench.customers()
    created = customers.insert({"id": "a", "name": "Acme"})["createdAt"]
    bench.tick(60)
    read = customers.get("a")
    del read["createdAt"]
    read["name"] = "New"
    assert customers.save(read)["createdAt"] == created
    assert customers.replace({"id": "a", "name": "Newer"})["createdAt"] == created
    assert customers.upsert({"id": "a", "name": "Newest"})["createdAt"] == created


def test_what_was_deleted_and_is_inserted_again_is_of_now(bench: Bench) -> None:
    customers = bench.customers()
    customers.insert({"id": "a", "name": "Acme"})
    read = customers.get("a")
    customers.delete("a")
    bench.tick(60)
    with pytest.raises(Conflict, match="was deleted since it was read"):
        customers.save(read | {"name": "New"})
    again = customers.insert(read)
    assert again["updatedAt"] == "2026-01-01T00:01:00.000Z"
    assert customers.find_all() == [again]


def test_every_verb_that_creates_applies_the_defaults(tmp_path: Path) -> None:
    fields = {"status": {"type": "string", "default": "lead"}, "name": {"type": "string"}}
    bench = Bench("memory", tmp_path, fields=fields)
    customers = bench.customers()
    made: list[dict[str, JsonValue]] = [
        customers.insert({"name": "x"}),
        customers.save({"id": "b"}),
        customers.upsert({"id": "c"}),
        must(customers.save_many([{"id": "d"}])[0].document),
        must(customers.upsert_many([{"id": "e"}])[0].document),
        must(customers.insert_many([{"name": "y"}])[0].document),
    ]
    assert [one["status"] for one in made] == ["lead"] * 6
    assert bench.session().model(Customer).insert(Customer(id="f")) == Customer(id="f")
    assert customers.get("f")["status"] == "lead"


def test_if_version_is_the_condition_of_every_change(bench: Bench) -> None:
    customers = bench.customers()
    old = must(customers.insert({"id": "a", "name": "Acme"}).version)
    bench.tick()
    new = must(customers.patch("a", {"name": "New"}).version)
    changes: list[Callable[[str], DocumentDict]] = [
        lambda version: customers.replace({"id": "a", "name": "R"}, if_version=version),
        lambda version: customers.patch("a", {"name": "P"}, if_version=version),
        lambda version: customers.update("a", {"$set": {"name": "U"}}, if_version=version),
        lambda version: customers.rollback("a", to_seq=1, if_version=version),
    ]
    for change in changes:
        bench.tick()
        with pytest.raises(Conflict):
            change(old)
        new = must(change(new).version)
    with pytest.raises(Conflict):
        customers.delete("a", if_version=old)
    assert customers.delete("a", if_version=new)
    with pytest.raises(Conflict, match="another version"):
        customers.restore("a", if_version=old)
    assert customers.restore("a", if_version=new)["id"] == "a"
    for wrong in ("", "x", "W10", 5, "nonsense!"):
        with pytest.raises(Invalid, match="not the version of a document"):
            DocumentVersion.decode(wrong)
    bench.assert_clean()


def test_a_row_s_version_is_a_condition_too(bench: Bench) -> None:
    customers = bench.customers()
    customers.insert({"id": "a", "name": "Acme"})
    version = customers.find_all()[0].version
    assert version
    bench.tick()
    assert customers.patch("a", {"name": "New"}, if_version=version)["name"] == "New"
    with pytest.raises(Conflict):
        customers.patch("a", {"name": "Newer"}, if_version=version)


def test_a_document_under_another_id_is_a_new_document(bench: Bench) -> None:
    customers = bench.customers()
    read = customers.insert({"id": "a", "name": "Acme"})
    customers.save(read | {"id": "b"})
    assert customers.count() == 2
    with pytest.raises(Conflict, match="exists already"):
        customers.save(read | {"id": "b", "name": "late"})


def test_get_raises_and_find_by_id_does_not(bench: Bench) -> None:
    customers = bench.customers()
    assert customers.find_by_id("a") is None
    reads: list[Callable[[], object]] = [
        lambda: customers.get("a"),
        lambda: customers.replace({"id": "a"}),
        lambda: customers.patch("a", {"name": "x"}),
        lambda: customers.modify("a", lambda document: None),
        lambda: customers.refresh(DocumentDict({"id": "a"})),
    ]
    for missing in reads:
        with pytest.raises(NotFound, match="Customer 'a' does not exist"):
            missing()


@pytest.mark.parametrize("wrong", [[1], "x", None, 5, object()])
def test_what_is_no_document_is_refused_with_a_word(bench: Bench, wrong: object) -> None:
    customers, typed = bench.customers(), bench.session().model(Customer)
    for model in (customers, typed):
        for verb in (model.save, model.insert, model.upsert, model.replace, model.create):
            with pytest.raises(Invalid, match=r"a document must be an? "):
                verb(wrong)  # type: ignore[arg-type]  # wrong on purpose
        if isinstance(wrong, list):
            assert [type(one.error) for one in model.save_many(wrong)] == [Invalid]
            continue
        with pytest.raises(Invalid):
            model.save_many(wrong)  # type: ignore[arg-type]  # wrong on purpose


@pytest.mark.parametrize("wrong", [None, 5, [], {}, b"a", 1.5, True, ""])
def test_what_is_no_id_is_refused_with_a_word(bench: Bench, wrong: object) -> None:
    customers = bench.customers()
    for verb in (
        customers.get,
        customers.find_by_id,
        customers.exists,
        customers.delete,
        customers.get_history,
        customers.snapshot,
        customers.list_snapshots,
        customers.restore,
        customers.purge,
        lambda one: customers.patch(one, {}),
        lambda one: customers.update(one, {"$set": {"a": 1}}),
        lambda one: customers.modify(one, lambda document: None),
        lambda one: customers.rollback(one, to_seq=1),
        lambda one: customers.get_at(one, seq=1),
        lambda one: customers.diff(one, 1, 2),
    ):
        with pytest.raises(Invalid, match="id"):
            verb(wrong)
    assert not customers.find_many([wrong])[0].ok


@pytest.mark.parametrize(("kind", "one", "text"), [("int", 7, "7"), ("uuid", UUID(int=7), str(UUID(int=7)))])
def test_ids_of_every_declared_type_work_in_verbs_and_filters(
    tmp_path: Path, kind: str, one: int | UUID, text: str
) -> None:
    bench = Bench("memory", tmp_path, path=f"#org/@customers/(id:{kind})")
    customers = bench.customers()
    customers.insert({"id": one, "name": "Acme"})
    assert str(customers.get(one)["id"]) == text
    for condition in (one, {"$in": [one]}, {"$eq": one}, {"$ne": 8}):
        assert customers.count({"id": condition}) == 1
        assert customers.count({"$or": [{"id": condition}, {"name": "x"}]}) == 1
    assert len(customers.find_all(filter={"id": one})) == 1
    bench.tick()
    assert customers.patch(one, {"name": "New"})["name"] == "New"
    assert [entry.seq for entry in customers.get_history(one)] == [1, 2]
    assert [result.ok for result in customers.delete_many([one])] == [True]
    assert not customers.exists(one)
    assert customers.restore(one)["name"] == "New"


def test_whole_numbers_as_ids_have_no_order_and_a_query_says_so(tmp_path: Path) -> None:
    """As text 10 comes before 9: an answer in that order would be wrong without a word."""
    customers = Bench("memory", tmp_path, path="#org/@customers/(id:int)").customers()
    customers.insert_many([{"id": 9}, {"id": 10}])
    for question in ({"sort": "id"}, {"sort": "-id"}, {"filter": {"id": {"$gt": 9}}}):
        with pytest.raises(Invalid, match="have no order"):
            customers.find_all(**question)
    assert customers.count({"id": {"$in": [9, 10, 11]}}) == 2
