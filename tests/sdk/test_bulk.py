from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path
from typing import ClassVar

import pytest
from pydantic import BaseModel

from tests.sdk.sessions import Bench, must
from worm.collections.claims import Holders
from worm.collections.entries import Document
from worm.errors import Conflict, Invalid, Unavailable
from worm.formats.strict_json import JsonValue
from worm.sdk.access import Touched
from worm.sdk.document import About, DocumentDict
from worm.store.faulty_store import Fault, FaultyStore


def test_a_bulk_saves_finds_and_deletes_with_a_result_for_each_in_order(bench: Bench) -> None:
    customers = bench.customers()
    documents: list[dict[str, JsonValue]] = [{"id": f"c{number}", "name": f"n{number}"} for number in range(20)]
    saved = customers.save_many(documents, actor="bob")
    assert [(result.id, result.ok) for result in saved] == [(f"c{number}", True) for number in range(20)]
    assert saved[3].document == {
        "id": "c3",
        "name": "n3",
        "createdAt": "2026-01-01T00:00:00.000Z",
        "updatedAt": "2026-01-01T00:00:00.000Z",
    }
    assert {entry.actor for entry in customers.get_history("c3")} == {"bob"}
    found = bench.customers().find_many(["c7", "nobody", "c1", "x\x7f"])
    assert [(result.id, result.document and result.document["name"]) for result in found] == [
        ("c7", "n7"),
        ("nobody", None),
        ("c1", "n1"),
        ("x\x7f", None),
    ]
    assert [result.ok for result in found] == [True, True, True, False]
    bench.tick()
    deleted = customers.delete_many(["c0", "nobody", "c1"])
    assert [result.document and result.document["name"] for result in deleted] == ["n0", None, "n1"]
    assert all(result.ok for result in deleted)
    assert customers.count() == 18
    assert [one["id"] for one in customers.list_trashed()] == ["c0", "c1"]
    bench.assert_clean()


def test_one_bad_item_fails_no_other(bench: Bench) -> None:
    customers = bench.customers()
    bench.customers().save({"id": "taken", "name": "x"})
    results = customers.save_many(
        [
            {"id": "a", "name": "ok"},
            {"id": "b", "name": 5},
            {"id": "taken", "name": "y"},
            {"name": "no id"},
            {"id": "c"},
        ]
    )
    assert [type(result.error) for result in results] == [type(None), Invalid, Conflict, Invalid, type(None)]
    assert sorted(str(row["id"]) for row in customers.find_all()) == ["a", "c", "taken"]
    bench.assert_clean()


def test_of_documents_with_the_same_id_only_the_first_is_saved(tmp_path: Path) -> None:
    bench = Bench("memory-versioned", tmp_path)
    customers = bench.customers()
    save = customers._save

    def first_ones_slowly(
        document: DocumentDict, about: About, holders: Holders | None = None
    ) -> tuple[Document, Touched | None]:
        time.sleep(0.02 if document["score"] == 0 else 0)
        return save(document, about, holders)

    customers._save = first_ones_slowly  # type: ignore[method-assign]
    results = customers.save_many([{"id": "a", "score": number} for number in range(5)])
    assert [type(result.error) for result in results] == [type(None), *[Invalid] * 4]
    assert "Customer 'a' occurs twice in this bulk" in str(results[1].error)
    assert customers.find_all(select=["score"]) == [{"id": "a", "score": 0}]
    assert len(customers.get_history("a")) == 1
    assert [result.document is not None for result in customers.delete_many(["a", "a"])] == [True, False]
    bench.assert_clean()


def test_a_found_document_can_be_saved_by_bulk(bench: Bench) -> None:
    bench.customers().save_many([{"id": "a", "score": 1}, {"id": "b", "score": 1}])
    customers = bench.customers()
    found = [result.document for result in customers.find_many(["a", "b"])]
    bench.tick()
    results = customers.save_many([document | {"score": 2} for document in found if document is not None])
    assert [result.ok for result in results] == [True, True]
    stale = customers.save_many([document | {"score": 3} for document in found if document is not None])
    assert [type(result.error) for result in stale] == [Conflict, Conflict]
    bench.assert_clean()


class Named(BaseModel):
    worm_model: ClassVar[str] = "Customer"
    id: str | None = None
    name: str


@pytest.mark.parametrize("verb", ["insert_many", "upsert_many"])
def test_each_new_document_of_a_bulk_gets_an_id_a_history_and_a_row(bench: Bench, verb: str) -> None:
    dicts, objects = bench.customers(), bench.session().model(Named)
    made = [str(must(one.document)["id"]) for one in getattr(dicts, verb)([{"name": "one"}, {"name": "two"}])]
    made += [must(one.document).id for one in getattr(objects, verb)([Named(name="three"), {"name": "four"}])]
    assert len(set(made)) == 4
    assert [bench.ops(one) for one in made] == [["create"]] * 4
    assert {row["id"] for row in dicts.find_all()} == set(made)
    bench.assert_clean()


@pytest.mark.parametrize("verb", ["save_many", "insert_many", "upsert_many"])
def test_an_item_that_is_no_document_fails_no_other(bench: Bench, verb: str) -> None:
    wrong = datetime(2026, 1, 1)  # noqa: DTZ001 - what is refused
    given = [{"id": "a", "name": "one"}, {"id": "b", "name": wrong}, 5, {"id": "b", "name": "late"}]
    results = getattr(bench.customers(), verb)(given)
    assert [(result.id, result.ok) for result in results] == [("a", True), ("b", False), ("", False), ("b", False)]
    assert "occurs twice" in str(results[3].error)
    objects = getattr(bench.session().model(Named), verb)([{"id": "c"}, Named(id="d", name="d")])
    assert [(result.id, result.ok) for result in objects] == [("c", False), ("d", True)]
    bench.assert_clean()


def test_a_bulk_is_folded_once(tmp_path: Path) -> None:
    """The table's files are written as often for fifty documents as for one."""

    def table_writes(number: int) -> int:
        bench = Bench("memory-versioned", tmp_path)
        customers = bench.customers()
        customers.save_many([{"id": f"c{one}", "name": "x"} for one in range(number)])
        return sum(1 for version in bench.store.list_versions("org/customers/.worm") if not version.is_delete_marker)

    assert table_writes(50) == table_writes(1)


def test_an_empty_bulk_asks_nothing(tmp_path: Path) -> None:
    bench = Bench("memory", tmp_path)
    customers = bench.customers()
    with bench.store.requests.measure() as requests:
        assert customers.save_many([]) == customers.find_many([]) == customers.delete_many([]) == []
    assert requests["total"] == 0


def test_when_only_the_table_fails_each_item_says_that_it_is_stored(tmp_path: Path) -> None:
    bench = Bench("memory-versioned", tmp_path)
    bench.customers().save({"id": "x", "name": "x"})
    faulty = FaultyStore(bench.store, clock=bench.clock)
    customers = bench.session(faulty, maintenance="inline").model("Customer")
    faulty.fail_next("get", Fault.UNAVAILABLE, times=1)  # the heads
    results = customers.save_many([{"id": "a", "name": "x"}, {"id": "b", "name": "x"}])
    for result in results:
        assert result.document is not None
        assert isinstance(result.error, Unavailable)
        assert "the change is stored, but history and table are behind" in str(result.error)
    faulty.fail_next("get", Fault.UNAVAILABLE, times=1)
    with pytest.raises(Unavailable, match="is stored, but"):
        customers.save({"id": "c", "name": "x"})
    assert len(customers.find_all()) == 4  # its own writes, though the table knows one
    bench.repair()
    assert bench.customers().count() == 4
    bench.assert_clean()
