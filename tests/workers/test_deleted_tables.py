"""Files of a table that somebody deletes with a whole folder: the next fold and the next sweep make them again."""

from __future__ import annotations

import pytest

from tests.harness import DataPath
from worm.upkeep.repair import repair_model


@pytest.mark.parametrize("names", [(".worm.manifest.json", ".worm.heads.json"), (".worm.heads.json",)])
def test_heads_that_somebody_deleted_are_whole_again_after_the_next_sweep(names: tuple[str, ...]) -> None:
    """An entity whose versions are all gone is in no listing: nothing but its oplog tells that its head is missing."""
    path = DataPath()
    version = path.put("gone", {"name": "gone"})
    path.put("a", {"name": "a"})
    path.settle()
    path.forget("gone", version)
    path.settle()
    for name in names:
        path.store.delete(f"org/customers/{name}")
    path.new_workers(path.store)
    path.put("a", {"name": "b"})
    path.settle()
    path.sweep()
    path.assert_true()


def test_one_repair_records_again_what_the_newest_entry_said_that_somebody_deleted() -> None:
    """The heads still name the entry: a repair that believed them would build the table from the older one."""
    path = DataPath()
    path.put("a", {"name": "one"})
    path.settle()
    path.put("a", {"name": "two"})
    path.settle()
    path.store.delete(path.collection.oplog.key("a", 2))
    path.new_workers(path.store)
    path.workspace.refresh()
    assert repair_model(path.workspace, "Customer").recorded == 1
    path.assert_true()
