"""A row of a query is the document with its version: changed and saved it loses nothing, and overwrites nobody."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sdk.sessions import Bench, must
from worm.errors import Conflict
from worm.query.needs import STRATEGIES
from worm.upkeep.session import Maintenance

SPREAD = {"enabled": True, "partitionThreshold": 2, "maxPartitions": 2}
KINDS: dict[str, dict[str, object]] = {
    "whole": {},
    "spread": {"manifest": SPREAD},
    "a part": {"manifest": {"enabled": True, "extra": False}},
    "without oplog": {"oplog": False, "softDelete": False},
    "spread, without oplog": {"oplog": False, "softDelete": False, "manifest": SPREAD},
    "without table": {"manifest": {"enabled": False}, "indexes": {}},
}
POSSIBLE: dict[str, tuple[str, ...]] = {
    "a part": ("index_lookup", "manifest_targeted", "full_scan"),
    "without table": ("full_scan",),
}
ODD = {"vat": "X1", "a.b": 1, "a": {"b": [None]}, ".": {"x": 1}}


CASES: list[tuple[str, Maintenance, str | None]] = [
    (kind, maintenance, one)
    for kind in KINDS
    for maintenance in ("inline", "events")
    for one in (None, *POSSIBLE.get(kind, STRATEGIES))
]


@pytest.mark.parametrize(
    ("kind", "maintenance", "strategy"),
    [pytest.param(*one, marks=pytest.mark.slow if one[1] == "events" and one[2] else ()) for one in CASES],
)
def test_a_row_can_be_saved_and_loses_nothing(
    tmp_path: Path, kind: str, maintenance: Maintenance, strategy: str | None
) -> None:
    bench = Bench("memory-versioned", tmp_path, **KINDS[kind])
    writer = bench.customers()
    for at in range(5):
        writer.insert({"id": f"c{at}", "name": "n", "status": "x", **ODD})
    bench.tick()
    mine, other = bench.customers(maintenance=maintenance), bench.customers()
    first, second = mine.find_all(filter={"status": "x"}, sort={"field": "id"}, strategy=strategy)[:2]
    before = must(mine.find_by_id("c0"))
    assert first == before
    mine.save(first | {"name": "changed"})
    after = must(other.find_by_id("c0"))
    assert {**before, "name": "changed", "updatedAt": after["updatedAt"]} == after
    other.save(must(other.find_by_id("c1")) | {"name": "theirs"})
    with pytest.raises(Conflict):
        mine.save(second | {"name": "lost"})
    assert must(mine.find_by_id("c1"))["name"] == "theirs"


@pytest.mark.parametrize("oplog", [True, False])
def test_a_row_of_an_own_write_can_be_saved_again(tmp_path: Path, oplog: bool) -> None:
    bench = Bench("memory-versioned", tmp_path, oplog=oplog, softDelete=oplog)
    bench.customers().build_manifest()
    mine = bench.customers(maintenance="events")
    mine.insert({"id": "a", "name": "one", **ODD})
    for seconds, name in ((0, "two"), (1, "three"), (60, "four")):
        bench.tick(seconds)
        (row,) = mine.find_all(strategy="manifest_scan")
        mine.save(row | {"name": name})
    found = must(mine.find_by_id("a"))
    assert {**found, **ODD, "name": "four"} == found
