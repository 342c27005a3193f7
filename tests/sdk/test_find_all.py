"""`find_all` and its kin as a user meets them: pages, batches, totals, own writes, typed models."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.sdk.sessions import Bench, spent
from tests.sdk.test_typed import Customer
from worm.errors import Invalid
from worm.formats import load_schema
from worm.formats.strict_json import JsonValue
from worm.query.query import Row
from worm.sdk.database import Model, Worm
from worm.sdk.memory import OWN_SECONDS
from worm.sdk.rows import Rows


def filled(bench: Bench, count: int = 9) -> Model:
    customers = bench.customers()
    customers.save_many(
        [
            {"id": f"c{at}", "name": f"n{at % 3}", "status": "active" if at % 2 else "new", "score": at}
            for at in range(count)
        ]
    )
    return customers


def ids(rows: Sequence[Row]) -> list[str]:
    return [str(row["id"]) for row in rows]


def test_pages_follow_each_other_by_cursor_while_rows_come_and_go(bench: Bench) -> None:
    customers = filled(bench)
    order = [{"field": "name"}, {"field": "score", "order": "desc"}]
    first = customers.find_all(sort=order, limit=4, select=["name", "score"])
    assert isinstance(first, list)
    assert ids(first) == ["c6", "c3", "c0", "c7"]
    bench.tick()
    customers.delete("c6")
    customers.save({"id": "c9", "name": "n2", "score": 99})
    second = customers.find_all(sort=order, limit=4, cursor=first.cursor)
    assert ids(second) == ["c4", "c1", "c9", "c8"]
    third = customers.find_all(sort=order, limit=4, cursor=second.cursor)
    assert (ids(third), third.cursor) == (["c5", "c2"], None)
    with pytest.raises(Invalid, match="another query"):
        customers.find_all(limit=4, cursor=first.cursor)


def test_count_and_totals_agree_with_the_rows(bench: Bench) -> None:
    customers = filled(bench)
    assert (customers.count(), customers.count({"status": "active"}), customers.count({"nope": 1})) == (9, 4, 0)
    assert customers.aggregate(count=True) == {"count": 9}
    by_status = customers.aggregate(group_by="status", count=True, sum="score", filter={"score": {"$gte": 3}})
    assert by_status == {"groups": {"active": {"count": 3, "sum": 15}, "new": {"count": 3, "sum": 18}}}
    assert customers.aggregate(min="name", max="score") == {"min": "n0", "max": 8}
    assert customers.aggregate(
        group_by="status", sum=["score"], percentiles={"score": 50}, having={"count": {"$gt": 4}}
    ) == {"groups": {"new": {"sum": {"score": 20}, "percentiles": {"score": {"50": 4}}}}}
    assert customers.distinct("status") == ["active", "new"]
    assert customers.distinct("score", {"status": "new", "score": {"$gt": 3}}) == [4, 6, 8]
    with pytest.raises(Invalid, match="nothing to compute"):
        customers.aggregate(filter={"status": "active"})


def test_totals_of_a_field_outside_the_table_are_read_from_documents(tmp_path: Path) -> None:
    bench = Bench("memory", tmp_path)
    customers = bench.customers()
    customers.save_many([{"id": name, "name": name, "weight": at} for at, name in enumerate("abc")])
    assert customers.aggregate(sum="weight", group_by="name", filter={"weight": {"$gt": 0}}) == {
        "groups": {"b": {"sum": 1}, "c": {"sum": 2}}
    }
    assert spent(bench.store, lambda: customers.aggregate(sum="score")) == 1
    assert customers.distinct("weight") == [0, 1, 2]
    assert spent(bench.store, lambda: customers.distinct("name")) == 1


def test_a_session_counts_and_sums_and_streams_what_it_wrote(tmp_path: Path) -> None:
    bench = Bench("memory", tmp_path)
    filled(bench)
    bench.tick()
    customers = bench.customers(maintenance="events")
    customers.delete("c1")
    customers.patch("c3", {"score": 100, "status": "late"})
    customers.save({"id": "x", "status": "active", "score": 1000})
    assert customers.count({"status": "active"}) == 3
    assert customers.aggregate(sum="score", filter={"status": "active"}) == {"sum": 5 + 7 + 1000}
    assert customers.distinct("status") == ["active", "late", "new"]
    for strategy in ("index_lookup", "manifest_scan", "manifest_targeted", "full_scan"):
        rows = customers.find_all(filter={"status": {"$in": ["active", "late"]}}, strategy=strategy)
        assert ids(rows) == ["c3", "c5", "c7", "x"], strategy
    streamed = [row for batch in customers.find_batches(batch_size=4) for row in batch]
    assert sorted(ids(streamed)) == ["c0", "c2", "c3", "c4", "c5", "c6", "c7", "c8", "x"]
    assert sorted(streamed, key=lambda row: str(row["id"])) == customers.find_all()
    other = bench.customers()
    assert (other.count({"status": "active"}), other.count()) == (4, 9)


def test_what_others_changed_after_this_session_wrote_is_not_covered_by_its_memory(tmp_path: Path) -> None:
    bench = Bench("memory", tmp_path)
    filled(bench)
    mine = bench.customers(maintenance="events")
    bench.tick()
    mine.patch("c1", {"score": 50})
    bench.tick()
    theirs = bench.customers()
    theirs.patch("c1", {"score": 60})
    mine.patch("c3", {"score": 70})
    bench.tick()
    theirs.delete("c3")
    for strategy in ("index_lookup", "manifest_scan", "manifest_targeted", "full_scan"):
        rows = mine.find_all(filter={"status": "active"}, select=["score"], strategy=strategy)
        scores = {row["id"]: row["score"] for row in rows}
        assert scores["c1"] == 60, strategy
    streamed = {row["id"]: row["score"] for batch in mine.find_batches(select=["score"]) for row in batch}
    assert streamed["c1"] == 60
    assert "c3" not in streamed


def test_an_index_look_up_forgets_old_writes(tmp_path: Path) -> None:
    bench = Bench("memory", tmp_path)
    customers = bench.customers(maintenance="events")
    customers.save({"id": "a", "status": "active"})
    bench.customers().build_manifest()
    bench.store.delete("org/customers/a/profile.json")
    assert spent(bench.store, lambda: customers.find_all(filter={"status": "active"}, strategy="index_lookup")) == 2
    bench.tick(OWN_SECONDS)
    assert spent(bench.store, lambda: customers.find_all(filter={"status": "active"}, strategy="index_lookup")) == 1


def test_of_its_own_writes_a_look_up_reads_only_those_that_match(tmp_path: Path) -> None:
    bench = Bench("memory", tmp_path)
    customers = bench.customers(maintenance="events")
    bench.customers().build_manifest()
    customers.save_many([{"id": f"c{at}", "status": "new" if at else "active"} for at in range(5)])
    assert spent(bench.store, lambda: customers.find_all(filter={"status": "active"}, strategy="index_lookup")) == 2


def test_own_writes_that_the_table_knows_are_streamed_like_all_others(tmp_path: Path) -> None:
    bench = Bench("memory", tmp_path, manifest={"enabled": True, "partitionThreshold": 4})
    filled(bench)
    bench.tick()
    customers = bench.customers()
    customers.patch("c3", {"score": 50})
    assert [ids(batch) for batch in customers.find_batches()] == [[f"c{at}" for at in range(9)]]
    plan = customers.explain()
    assert plan.estimate.total > 1  # it is spread over files, and still not read whole


def test_batches_are_rows_and_check_their_arguments_at_once(tmp_path: Path) -> None:
    customers = filled(Bench("memory", tmp_path))
    batches = customers.find_batches(filter={"score": {"$lt": 5}}, select=["name"], batch_size=2)
    assert isinstance(batches, Iterator)
    found = list(batches)
    assert {type(batch) for batch in found} == {Rows}
    assert all(batch.cursor is None for batch in found)
    assert [ids(batch) for batch in found] == [["c0", "c1"], ["c2", "c3"], ["c4"]]
    assert found[0].plan.strategy == "manifest_scan"
    with pytest.raises(Invalid, match="batch_size"):
        customers.find_batches(batch_size=0)
    with pytest.raises(Invalid, match="unknown operator"):
        customers.find_batches(filter={"score": {"$where": 1}})


def test_typed_models_pass_queries_through(tmp_path: Path) -> None:
    customers = Bench("memory", tmp_path, strict=True).session().model(Customer)
    customers.save_many([Customer(id=f"c{at}", name=f"n{at}", score=at) for at in range(5)])
    rows = customers.find_all(filter={"score": {"$gte": 1}}, sort={"field": "score", "order": "desc"}, limit=2)
    assert rows == [Customer(id="c4", name="n4", score=4), Customer(id="c3", name="n3", score=3)]
    assert rows.plan.strategy == "manifest_scan"
    following = customers.find_all(
        filter={"score": {"$gte": 1}}, sort={"field": "score", "order": "desc"}, cursor=rows.cursor
    )
    assert following == [Customer(id="c2", name="n2", score=2), Customer(id="c1", name="n1", score=1)]
    assert customers.find_all(select=["name"], limit=1) == [{"id": "c0", "name": "n0"}]
    assert customers.find_all(limit=1, _strategy="full_scan").plan.strategy == "full_scan"
    assert [len(batch) for batch in customers.find_batches(batch_size=3)] == [3, 2]
    assert isinstance(next(customers.find_batches())[0], Customer)
    assert isinstance(next(customers.find_batches(select=["name"]))[0], dict)
    assert customers.aggregate(sum="score", count=True) == {"count": 5, "sum": 10}
    assert customers.explain(filter={"status": "active"}, analyze=True).shape()["actualRows"] == 5


def test_a_model_without_a_table_gives_whole_documents(tmp_path: Path) -> None:
    bench = Bench("memory", tmp_path, manifest={"enabled": False}, indexes={})
    bench.customers().save({"id": "a", "name": "n", "vat": "X1"})
    (row,) = bench.customers().find_all()
    assert row["vat"] == "X1"
    typed = bench.session().model(Customer)
    assert typed.find_all() == [Customer(id="a", name="n")]


def test_threads_share_a_session(tmp_path: Path) -> None:
    customers = filled(Bench("memory", tmp_path))
    wrong: list[object] = []

    def ask(strategy: str) -> None:
        for _ in range(20):
            found = ids(customers.find_all(filter={"status": "active"}, strategy=strategy))
            if found != ["c1", "c3", "c5", "c7"]:
                wrong.append(found)

    strategies = ("index_lookup", "manifest_scan", "manifest_targeted", "full_scan")
    threads = [threading.Thread(target=ask, args=(strategy,)) for strategy in strategies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_rows_belong_to_the_caller(bench: Bench) -> None:
    customers = bench.customers()
    customers.save({"id": "a", "name": "n", "status": "active", "tags": ["x"]})
    for strategy in ("index_lookup", "manifest_scan", "manifest_targeted", "full_scan"):
        (row,) = customers.find_all(filter={"status": "active"}, strategy=strategy)
        tags = row["tags"]
        assert isinstance(tags, list)
        tags.append("changed")
        again: list[JsonValue] = [
            one["tags"] for one in customers.find_all(filter={"status": "active"}, strategy=strategy)
        ]
        assert again == [["x"]]


def test_a_cursor_of_another_model_is_refused(tmp_path: Path) -> None:
    bench = Bench("memory", tmp_path)
    models = {name: {"path": f"#org/@{name.lower()}/(id:string)"} for name in ("Customer", "Invoice")}
    db = Worm(bench.store, load_schema({"version": "1.0", "models": models}), probe=False, clock=bench.clock)
    for name in models:
        db.model(name).save_many([{"id": one} for one in "abc"])
    cursor = db.model("Customer").find_all(limit=1).cursor
    assert ids(db.model("Customer").find_all(cursor=cursor)) == ["b", "c"]
    with pytest.raises(Invalid, match="another query"):
        db.model("Invoice").find_all(cursor=cursor)


def test_an_empty_selection_gives_only_ids(tmp_path: Path) -> None:
    bench = Bench("memory", tmp_path)
    customers = filled(bench, 2)
    for strategy in (None, "manifest_targeted", "full_scan"):
        assert customers.find_all(select=[], strategy=strategy) == [{"id": "c0"}, {"id": "c1"}]
    assert [dict(row) for batch in customers.find_batches(select=[]) for row in batch] == [{"id": "c0"}, {"id": "c1"}]
    typed = bench.session().model(Customer)
    assert typed.find_all(select=[]) == [{"id": "c0"}, {"id": "c1"}]
    assert next(typed.find_batches(select=[])) == [{"id": "c0"}, {"id": "c1"}]
