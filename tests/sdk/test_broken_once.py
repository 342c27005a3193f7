"""What a hostile tester broke once: each of these lost, blocked or hid something."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import pytest
from pydantic import BaseModel

import worm
from tests.sdk.sessions import Bench, must, schema
from worm.errors import Conflict, Invalid
from worm.formats.strict_json import JsonValue
from worm.sdk.document import DocumentDict
from worm.store.open import open_store

STRICTER = {"name": {"type": "string", "required": True}, "score": {"type": "integer"}, "status": {"type": "string"}}


class Customer(BaseModel):
    worm_model: ClassVar[str] = "Customer"
    id: str
    name: str = ""


@pytest.fixture
def spaced(tmp_path: Path) -> Bench:
    return Bench("memory", tmp_path, space="main")


@pytest.mark.parametrize("about", [{"reason": " " * 1150}, {"reason": "é" * 500}, {"actor": "a" * 3000}])
def test_a_long_reason_is_refused_before_it_blocks_a_space(spaced: Bench, about: dict[str, str]) -> None:
    customers = spaced.customers()
    with pytest.raises(Invalid, match="percent-encoded"):
        customers.insert({"id": "poison"}, **about)  # type: ignore[arg-type]  # arguments of a table of cases
    assert customers.find_by_id("poison") is None
    customers.insert({"id": "good"}, reason="é" * 100, actor="ä" * 30)
    assert customers.get_history("good")[0].metadata["reason"] == "é" * 100


def test_a_transaction_takes_neither_stale_rows_nor_parts(spaced: Bench) -> None:
    db = spaced.session()
    customers = db.model("Customer")
    customers.insert({"id": "a", "name": "Acme", "score": 1})
    row, part = customers.find_all()[0], customers.find_all(select=["name"])[0]
    spaced.tick()
    customers.patch("a", {"score": 100})
    with pytest.raises(Conflict), db.transaction() as tx:
        tx.save("Customer", row | {"name": "stale"})
    with pytest.raises(Invalid, match="only the selected fields"), db.transaction() as tx:
        tx.save("Customer", part)
    with db.transaction() as tx:
        tx.save("Customer", customers.find_all()[0] | {"name": "fresh"})
    assert (customers.get("a")["name"], customers.get("a")["score"]) == ("fresh", 100)


def test_a_part_of_a_document_replaces_nothing(bench: Bench) -> None:
    customers = bench.customers()
    customers.insert({"id": "a", "name": "Acme", "score": 1})
    part, old = customers.find_all(select=["name"])[0], customers.get("a")
    bench.tick()
    customers.patch("a", {"score": 2})
    for write in (customers.upsert, customers.replace, customers.save):
        with pytest.raises(Invalid, match="only the selected fields"):
            write(part)
    with pytest.raises(Invalid, match="only the selected fields"):
        customers.modify("a", lambda _: part)
    with pytest.raises(Invalid, match="a different version"):
        customers.modify("a", lambda _: old)
    assert customers.get("a")["score"] == 2


@pytest.mark.parametrize("place", [None, "main"])
def test_an_outgrown_document_is_restored_whole(tmp_path: Path, place: str | None) -> None:
    changes: dict[str, object] = {} if place is None else {"space": place}
    bench = Bench("memory", tmp_path, **changes)
    bench.customers().insert({"id": "a", "score": 1.5})
    bench.customers().delete("a")
    bench.tick()
    bench.schema = schema(fields=STRICTER, **changes)
    bench.session().push(force=True)
    customers = bench.customers()
    restored = customers.restore("a")
    assert restored["score"] == 1.5
    bench.tick()
    customers.save(restored | {"status": "back"})
    assert (customers.get("a")["score"], customers.get("a")["status"]) == (1.5, "back")


def test_an_outgrown_document_stays_readable_before_the_workers_have_seen_a_change_of_it(tmp_path: Path) -> None:
    bench = Bench("memory-versioned", tmp_path)
    bench.customers().insert({"id": "a", "score": 1.5})
    bench.schema = schema(fields=STRICTER)
    bench.session().push(force=True)
    bench.tick()
    events = bench.customers(maintenance="events")
    events.patch("a", {"status": "x"})
    assert events.get("a")["status"] == "x"
    assert events.patch("a", {"status": "y"})["score"] == 1.5
    events.delete("a")
    assert events.restore("a")["score"] == 1.5
    assert events.get("a")["status"] == "y"


def test_another_function_does_not_go_on_where_the_first_one_stopped(tmp_path: Path) -> None:
    bench = Bench("memory", tmp_path)
    db = bench.session()
    db.model("Customer").insert_many([{"id": f"c{n}"} for n in range(3)])
    seen: list[str] = []

    def first(document: dict[str, JsonValue]) -> None:
        seen.append(str(document["id"]))
        if len(seen) == 2:
            raise KeyboardInterrupt
        document["a"] = 1

    with pytest.raises(KeyboardInterrupt):
        db.migrate("Customer", first)
    report = db.migrate("Customer", lambda document: document | {"b": 2})
    assert not report.resumed
    assert [row["b"] for row in db.model("Customer").find_all()] == [2, 2, 2]


def test_what_changes_while_a_save_is_under_way_is_not_undone(tmp_path: Path) -> None:
    async def main() -> None:
        async with worm.aconnect(str(tmp_path), schema=schema()) as db:
            customers = db.model("Customer")
            document = await customers.insert({"id": "a", "name": "one"})
            document["name"] = "two"
            saving = asyncio.create_task(customers.save(document))
            await asyncio.sleep(0)
            document["name"] = "three"
            await saving
            assert document["name"] == "three"
            assert (await customers.save(document))["name"] == "three"

    asyncio.run(main())


def test_the_result_of_a_save_shares_nothing_with_what_was_passed(bench: Bench) -> None:
    customers = bench.customers()
    passed = customers.create({"tags": ["a"]}, id="a")
    tags = customers.save(passed)["tags"]
    assert isinstance(tags, list)
    tags.append("b")
    assert passed["tags"] == ["a"]


def test_only_ids_delete_documents(bench: Bench) -> None:
    customers = bench.customers()
    customers.insert_many([{"id": "None"}, {"id": "5"}, {"id": "a"}])
    results = customers.delete_many([None, 5, customers.get("a")])
    assert [isinstance(one.error, Invalid) for one in results] == [True] * 3
    assert customers.count() == 3


@pytest.mark.parametrize("wrong", [5, "zz", []])
def test_the_time_of_creation_stays_a_time(bench: Bench, wrong: JsonValue) -> None:
    customers = bench.customers()
    created = customers.insert({"id": "a"})["createdAt"]
    assert customers.upsert({"id": "a", "createdAt": None, "name": "x"})["createdAt"] == created
    with pytest.raises(Invalid, match="createdAt"):
        customers.patch("a", {"createdAt": wrong})
    with pytest.raises(Invalid, match="createdAt"):
        customers.save(customers.get("a") | {"createdAt": wrong})


@pytest.mark.parametrize("wrong", [None, "", [], 5])
def test_a_place_needs_a_name(wrong: object) -> None:
    with pytest.raises(Invalid, match="is not a URL or a path"):
        open_store(wrong)  # type: ignore[arg-type]  # wrong on purpose


def test_wrong_arguments_are_told(bench: Bench) -> None:
    db, customers = bench.session(), bench.customers()
    customers.insert({"id": "a"})
    calls: list[Callable[[], object]] = [
        lambda: customers.find_all(select=5),  # type: ignore[call-overload]  # wrong on purpose
        lambda: customers.find_all(populate=5),  # type: ignore[call-overload]  # wrong on purpose
        lambda: customers.find_all(offset=None),  # type: ignore[call-overload]  # wrong on purpose
        lambda: customers.find_batches(batch_size=1.5),  # type: ignore[call-overload]  # wrong on purpose
        lambda: customers.get_history("a", limit=1.5),  # type: ignore[arg-type]  # wrong on purpose
        lambda: customers.rollback("a", to_seq="1"),  # type: ignore[arg-type]  # wrong on purpose
        lambda: customers.diff("a", None, 1),  # type: ignore[arg-type]  # wrong on purpose
        lambda: customers.insert({"id": "b"}, actor="\ud800"),
        lambda: customers.insert({"id": "b"}, reason="x", metadata={"reason": "y"}),
        lambda: db.verify(5),  # type: ignore[arg-type]  # wrong on purpose
        lambda: worm.connect("memory://x", schema=schema(), actor=5),  # type: ignore[arg-type]  # wrong on purpose
    ]
    for call in calls:
        with pytest.raises(Invalid):
            call()
    assert customers.count() == 1


def test_typed_and_plain_models_keep_what_the_other_does_not_know(bench: Bench) -> None:
    plain, typed = bench.customers(), bench.session().model(Customer)
    plain.insert({"id": "a", "name": "A", "extra": {"k": 1}})
    typed.save(plain.get("a") | {"name": "B"})
    item = typed.get("a")
    item.name = "C"
    plain.save(item)  # type: ignore[arg-type]  # what untyped programs do
    assert plain.get("a")["extra"] == {"k": 1}
    assert must(plain.find_one({"name": "C"}))["extra"] == {"k": 1}
    assert isinstance(plain.get("a"), DocumentDict)
