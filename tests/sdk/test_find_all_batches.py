"""How `find_batches` finds its rows: a look-up where the filter names few, else one pass; `plan` says which."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sdk.sessions import Bench, spent
from worm.formats.strict_json import JsonValue
from worm.query.planner import FEW

COUNT = 2 * FEW + 40
FIELDS = {"name": {"type": "string"}, "email": {"type": "string"}, "status": {"type": "string"}}


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """Documents of which the table has all fields but `notes`."""
    indexes = {"byStatus": {"field": "status"}, "byEmail": {"field": "email", "unique": True}}
    fields = {**FIELDS, "notes": {"type": "string"}}
    bench = Bench("memory", tmp_path, fields=fields, indexes=indexes, manifest={"enabled": True, "fields": [*FIELDS]})
    documents = [
        {"id": f"c{at:03}", "name": f"n{at % 3}", "email": f"{at}@x", "status": "a" if at % 40 else "b", "notes": "x"}
        for at in range(COUNT)
    ]
    assert all(one.ok for one in bench.customers().save_many(documents))
    return bench


def ids(bench: Bench, **query: JsonValue) -> tuple[list[str], str]:
    """The ids, in one list, and the strategy of the plan."""
    batches = list(bench.customers().find_batches(batch_size=7, **query))  # type: ignore[arg-type]
    assert all(len(batch) == 7 for batch in batches[:-1])
    plan = batches[0].plan if batches else None
    return [str(row["id"]) for batch in batches for row in batch], "" if plan is None else plan.strategy


def test_documents_that_the_filter_names_are_read_and_no_others(bench: Bench) -> None:
    some: list[JsonValue] = ["c009", "c001", "none", "x\x7f"]
    assert ids(bench, filter={"id": {"$in": some}}) == (["c001", "c009"], "index_lookup")
    assert spent(bench.store, lambda: ids(bench, filter={"id": {"$in": some}})) == 3
    assert ids(bench, filter={"email": "7@x"}, select=["name"]) == (["c007"], "index_lookup")
    assert spent(bench.store, lambda: ids(bench, filter={"email": "7@x"}, select=["name"])) == 2
    assert ids(bench, filter={"id": "c001", "status": "b"}) == ([], "")


def test_many_names_are_left_to_one_pass(bench: Bench) -> None:
    many: list[JsonValue] = [f"c{at:03}" for at in range(FEW + 1)]
    assert ids(bench, filter={"id": {"$in": many[:-1]}}, select=["name"])[1] == "index_lookup"
    found, strategy = ids(bench, filter={"id": {"$in": many}}, select=["name"])
    assert (len(found), strategy) == (FEW + 1, "manifest_scan")


def test_the_plan_is_that_of_the_pass(bench: Bench) -> None:
    customers = bench.customers()
    cases: list[tuple[dict[str, JsonValue], list[str] | None, str, str]] = [
        ({"status": "b"}, ["name"], "manifest_scan", "the manifest has all needed fields"),
        ({"status": "b"}, None, "index_lookup", "index byStatus answers the filter"),
        ({"name": "n1"}, None, "full_scan", "the query needs whole documents"),
        ({"notes": "x"}, ["name"], "full_scan", "the manifest lacks notes"),
    ]
    for wanted, select, strategy, reason in cases:
        batches = list(customers.find_batches(filter=wanted, select=select))
        assert batches[0].plan.strategy == strategy
        assert reason in batches[0].plan.reason
        assert [row for batch in batches for row in batch] == customers.find_all(filter=wanted, select=select)
    assert customers.explain(filter={"status": "b"}, select=["name"]).strategy == "manifest_scan"
    bench.store.delete("org/customers/.worm.manifest.json")
    lost = next(bench.customers().find_batches(select=["name"]))
    assert (lost.plan.strategy, lost.plan.misses_manifest, len(lost)) == ("full_scan", True, COUNT)
    assert lost.plan.estimate.requests == {"VERSIONS": 2, "GET": COUNT}


def test_a_lost_index_is_no_obstacle(bench: Bench) -> None:
    bench.store.delete("org/customers/.worm.index/email.json")
    assert ids(bench, filter={"email": "7@x"}, select=["name"]) == (["c007"], "manifest_scan")
    assert ids(bench, filter={"email": "7@x"}) == (["c007"], "full_scan")


def test_what_the_session_wrote_is_looked_up_too(bench: Bench) -> None:
    customers = bench.customers(maintenance="events")
    bench.tick()
    customers.patch("c001", {"email": "new@x"})
    customers.save({"id": "zzz", "email": "newer@x"})
    customers.delete("c002")
    wanted: dict[str, JsonValue] = {"email": {"$in": ["new@x", "newer@x", "1@x", "2@x"]}}
    (batch,) = customers.find_batches(filter=wanted, select=["email"])
    assert [row["id"] for row in batch] == ["c001", "zzz"]
    assert batch.plan.strategy == "index_lookup"
