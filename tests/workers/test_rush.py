"""While many change sets wait, the tables worker folds and leaves large merges for later."""

from __future__ import annotations

import pytest

from tests.harness import DataPath, schema_of
from worm.tables import tree
from worm.tables.table import Table
from worm.upkeep.workers import tables

SPREAD = schema_of(manifest={"enabled": True, "partitionThreshold": 5, "maxPartitions": 3})


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "RUSH_SETS", 3)
    monkeypatch.setattr(tree, "DELTAS_MAX", 100)


def spread_path() -> DataPath:
    path = DataPath(SPREAD)
    for number in range(20):
        path.put(f"c{number:02d}", {"name": "x" * 50})
    path.settle()
    assert deltas(path) == (0, 0)
    return path


def deltas(path: DataPath) -> tuple[int, int]:
    """Of the manifest and of the heads."""
    manifest, heads = path.table.manifest.root(), path.table.heads.root()
    assert manifest is not None
    assert heads is not None
    assert (manifest.is_spread, heads.is_spread) == (True, True)
    return len(manifest.deltas), len(heads.deltas)


def change(path: DataPath, sets: int) -> None:
    """Enough for a merge: a quarter of all documents, in so many change sets."""
    for number in range(sets):
        for entity in range(number, 20, sets):
            path.put(f"c{entity:02d}", {"name": "y" * 50})
        path.run_capture()
    assert path.run_fold().failed == {}


def test_in_a_rush_a_large_base_is_merged_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Table, "RUSH_BYTES_MAX", 100)
    path = spread_path()
    change(path, sets=3)
    assert deltas(path) == (1, 1)
    path.assert_true()
    change(path, sets=1)  # the rush is over
    assert deltas(path) == (0, 0)
    path.assert_true()


def test_a_small_base_is_merged_in_a_rush_too() -> None:
    path = spread_path()
    change(path, sets=3)
    assert deltas(path) == (0, 0)
    path.assert_true()


def test_the_sweep_merges_what_a_rush_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Table, "RUSH_BYTES_MAX", 100)
    path = spread_path()
    change(path, sets=3)
    path.sweep()
    assert path.table.manifest.read() is not None
    root = path.table.manifest.root()
    assert root is not None
    assert not root.deltas
    path.assert_true()
