"""A plan says what is known of the manifest that it uses, and where its estimate is a guess."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.harness import DataPath, schema_of
from tests.sdk.sessions import Bench, must
from worm.formats import load_schema
from worm.query.planner import COVERED, TOLD_BEHIND
from worm.sdk.database import Model, Worm
from worm.tables.view import ASSUMED_COUNT


def session(path: DataPath) -> Model:
    schema = load_schema(dict(path.schema))
    return Worm(path.store, schema, maintenance="events", probe=False, clock=path.clock).model("Customer")


def test_a_plan_tells_the_newest_change_that_the_manifest_knows() -> None:
    path = DataPath()
    path.put("a", {"name": "A"})
    path.settle()
    known = must(path.table.view()).last_updated
    path.put("b", {"name": "B"})
    model = session(path)
    for plan in (model.explain(), model.find_all().plan, model.explain(analyze=True)):
        assert (plan.strategy, plan.as_of, plan.shape()["manifestAsOf"]) == ("manifest_scan", known, known)
    assert "manifestAsOf" not in model.explain(strategy="full_scan").shape()


def test_a_manifest_that_was_told_to_be_behind_is_not_used_silently() -> None:
    path = DataPath()
    path.put("a", {"name": "A"})
    path.settle()
    path.put("b", {"name": "B"})  # nobody captured it: only a listing tells
    model = session(path)
    assert model.find_all().plan.reason == COVERED
    assert not model.get_manifest_status().fresh
    assert model.find_all().plan.reason == model.explain().reason == f"{COVERED}; {TOLD_BEHIND}"
    assert next(model.find_batches()).plan.reason == f"{COVERED}; {TOLD_BEHIND}"
    path.settle()
    assert model.find_all().plan.reason == COVERED
    assert len(model.find_all()) == 2


def test_an_index_that_is_behind_the_manifest_is_not_asked() -> None:
    """Whoever folded it died between the two."""
    path = DataPath()
    path.put("a", {"status": "x"})
    path.settle()
    key = path.table.indexes[0].file.key
    before = must(path.store.get(key)).body
    path.put("b", {"status": "x"})
    path.settle()
    path.store.put(key, before)
    model = session(path)
    model.find_all(select=["id"])
    assert len(model.find_all(filter={"status": "x"}, strategy=None)) == 2
    assert model.table.ids_with(must(path.table.indexes[0]).definition, ["x"]) is None


@pytest.mark.parametrize("manifest", [{"enabled": False}, {"enabled": True, "autoUpdate": False}])
def test_where_nobody_counts_documents_the_estimate_says_that_it_assumes(
    tmp_path: Path, manifest: dict[str, object]
) -> None:
    bench = Bench("memory", tmp_path, oplog=False, softDelete=False, manifest=manifest, indexes={})
    customers = bench.customers()
    bench.store.put(customers.table.sentinel.key, json.dumps({"count": 0}).encode())  # as `worm push` leaves it
    for at in range(27):
        customers.save({"id": f"c{at}", "name": "x"})
    plan = bench.customers().explain()
    assert (plan.assumed, plan.shape()["assumedDocuments"]) == (ASSUMED_COUNT, ASSUMED_COUNT)
    assert plan.estimate.requests["GET"] == ASSUMED_COUNT
    assert next(bench.customers().find_batches()).plan.assumed == ASSUMED_COUNT
    analyzed = bench.customers().explain(analyze=True)
    assert (analyzed.assumed, must(analyzed.actual).rows) == (ASSUMED_COUNT, 27)


def test_where_folds_count_documents_the_count_is_believed() -> None:
    path = DataPath(schema_of(manifest={"enabled": False}, indexes={}))
    for at in range(3):
        path.put(f"c{at}", {"name": "x"})
    path.settle()
    plan = session(path).explain()
    assert (plan.strategy, plan.estimate.requests["GET"], plan.assumed) == ("full_scan", 3, None)
