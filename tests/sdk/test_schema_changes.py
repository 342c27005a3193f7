"""Documents that were valid when they were written stay readable and changeable when the schema changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sdk.sessions import Bench, schema
from worm.errors import Invalid

STRICTER = {"name": {"type": "string", "required": True}, "score": {"type": "integer"}, "status": {"type": "string"}}


@pytest.fixture(params=["memory", "memory-versioned", "no oplog"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Bench:
    """A document that the schema of today would refuse."""
    changes: dict[str, object] = {"oplog": False} if request.param == "no oplog" else {}
    bench = Bench("memory" if changes else request.param, tmp_path, **changes)
    bench.customers().insert({"id": "a", "score": 1.5, "status": "active"})
    bench.tick()
    bench.schema = schema(fields=STRICTER, **changes)
    bench.session().push(force=True)
    return bench


def test_it_is_read_listed_and_changed(bench: Bench) -> None:
    customers = bench.customers()
    assert customers.get("a")["score"] == 1.5
    assert [row["score"] for row in customers.find_all()] == [1.5]
    assert customers.patch("a", {"status": "inactive"})["status"] == "inactive"
    read = customers.get("a")
    read["status"] = "gone"
    assert customers.save(read)["status"] == "gone"
    bench.repair()
    assert [row["status"] for row in bench.customers().find_all()] == ["gone"]


def test_a_change_that_mends_is_taken_and_one_that_makes_it_worse_is_not(bench: Bench) -> None:
    customers = bench.customers()
    for worse in ({"score": 2.5}, {"status": 7}):
        with pytest.raises(Invalid):
            customers.patch("a", worse)
    customers.patch("a", {"name": "Acme", "score": 2})
    with pytest.raises(Invalid):
        customers.patch("a", {"name": None})
    with pytest.raises(Invalid, match="2 mistakes"):
        customers.insert({"id": "b", "score": 1.5})


def test_the_workers_take_it_too(bench: Bench) -> None:
    events = bench.customers(maintenance="events")
    events.patch("a", {"status": "inactive"})
    bench.repair()
    customers = bench.customers()
    assert [(row["status"], row["score"]) for row in customers.find_all()] == [("inactive", 1.5)]
    if bench.schema.model("Customer").oplog:
        assert bench.ops() == ["create", "update"]
