"""The examples of docs/planner.md run, and what it says of requests is so."""

from __future__ import annotations

import re
from pathlib import Path

from tests.query.test_plan import Room
from tests.query.test_plan_partitioned import PARTS, state_of
from worm.sdk.database import Worm

PLANNER = Path(__file__).parents[2] / "docs" / "planner.md"


def example(heading: str) -> str:
    found = re.search(rf"^## {heading}\n\n```python\n(.*?)```", PLANNER.read_text(), re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


def test_the_table_from_python() -> None:
    room = Room(4)
    db = Worm(room.store, room.schema, probe=False, clock=room.clock, ids=room.ids)
    names: dict[str, object] = {"db": db}
    exec(example("The table from Python"), names)
    customers = db.model("Customer")
    other = room.fresh().find_all(select=["name"])
    assert (other.plan.strategy, other.plan.misses_manifest) == ("full_scan", True)
    own = customers.find_all(select=["name"])
    assert (own, own.plan.strategy) == (other, "manifest_scan")
    assert room.fresh().find_all(select=["name"]).plan.strategy == "manifest_scan"
    assert customers.get_manifest_status().fresh


def test_explain() -> None:
    customers = Room(4).fresh()
    shape = eval(example("Explain"), {"customers": customers})
    assert shape["strategy"] == "manifest_scan"


def test_creating_a_unique_value_on_a_partitioned_table() -> None:
    room = Room(100, manifest=PARTS)
    for at in range(3):
        room.clock.advance(1)
        room.fresh().patch(f"c{at:03}", {"name": "other"})
    deltas = state_of(room).deltas
    db = Worm(room.store, room.schema, probe=False, clock=room.clock, ids=room.ids, maintenance="events")
    customers = db.model("Customer")
    assert room.spent(lambda: customers.save({"id": "x", "email": "x@x.org"})) == 6 + deltas
    assert room.spent(lambda: customers.save({"id": "y", "email": "y@x.org"})) == 4
    room.fresh().patch("c009", {"name": "other"})
    assert room.spent(lambda: customers.save({"id": "z", "email": "z@x.org"})) == 5
    fresh = Worm(room.store, room.schema, probe=False, clock=room.clock, ids=room.ids, maintenance="events")
    bulk = [{"id": f"b{at}", "email": f"b{at}@x.org"} for at in range(50)]
    assert room.spent(lambda: fresh.model("Customer").save_many(bulk)) == 152 + deltas + 1 + 1
