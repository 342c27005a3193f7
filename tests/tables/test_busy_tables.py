"""Tables that change often: a change is not paid with the size of the table, and a quiet one is one file again."""

from __future__ import annotations

import pytest

import worm
from tests.harness import DataPath
from tests.tables.test_spread_tables import assert_answers, fill, is_spread, oplog, root_of, spread_path
from worm.tables import tree
from worm.upkeep.sweep import Sweep

__all__ = ["oplog"]


@pytest.fixture
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "FOLD_BYTES", 1000)


def busy_path(oplog: bool) -> DataPath:
    """Twenty documents in one file, which a change of one of them spreads."""
    path = spread_path(oplog=oplog, threshold=100)
    fill(path, 20)
    assert not is_spread(path.table.manifest)
    change(path, 3, "changed")
    return path


def change(path: DataPath, number: int, status: str) -> None:
    path.put(f"c{number:03d}", {"status": status, "tags": ["t0"]})
    path.settle()


def sweep(path: DataPath) -> None:
    assert [report.error for report in Sweep(path.workspace).run(lambda: 100.0)] == [None]


@pytest.mark.usefixtures("small_files")
def test_a_small_change_of_a_large_file_spreads_the_table_and_later_ones_write_deltas(oplog: bool) -> None:
    path = busy_path(oplog)
    root = root_of(path)
    assert (root.partition_count, root.count, root.deltas) == (1, 20, ())
    assert_answers(path)
    change(path, 4, "again")
    assert root_of(path).base == root.base
    assert [piece.count for piece in root_of(path).deltas] == [1]
    assert_answers(path)
    path.assert_true()


@pytest.mark.usefixtures("small_files")
def test_a_change_as_large_as_the_file_is_written_into_it(oplog: bool) -> None:
    path = spread_path(oplog=oplog, threshold=100)
    fill(path, 20)
    fill(path, 20, first=20)
    assert not is_spread(path.table.manifest)
    assert_answers(path)


def test_a_file_of_some_kilobytes_is_written_again(oplog: bool) -> None:
    path = busy_path(oplog)
    assert not is_spread(path.table.manifest)


@pytest.mark.usefixtures("small_files")
def test_a_sweep_makes_one_file_of_a_quiet_table_and_a_rebuild_gives_the_same(oplog: bool) -> None:
    path = busy_path(oplog)
    change(path, 4, "again")
    path.remove("c005")
    path.settle()
    sweep(path)
    assert not is_spread(path.table.manifest)
    assert not is_spread(path.table.heads)
    assert_answers(path)
    stored = path.table.manifest.read()
    assert stored is not None
    path.workspace.table("Customer").rebuild()
    rebuilt = path.table.manifest.read()
    assert rebuilt is not None
    assert (rebuilt.entities, rebuilt.seqs, rebuilt.etags) == (stored.entities, stored.seqs, stored.etags)
    path.assert_true()


@pytest.mark.usefixtures("small_files")
def test_a_busy_table_grows_past_the_threshold_and_stays_spread_when_it_is_swept(oplog: bool) -> None:
    path = busy_path(oplog)
    fill(path, 120, first=20)
    sweep(path)
    assert root_of(path).count == 140
    assert_answers(path)
    path.assert_true()


@pytest.mark.usefixtures("small_files")
def test_a_sweep_of_a_spread_table_with_many_deleted_ids_does_not_write_it_each_time() -> None:
    """Deleted ids count for the threshold, and no root tells how many there are."""
    path = spread_path(threshold=10)
    fill(path, 12)
    for number in range(8):
        path.remove(f"c{number:03d}")
    path.settle()
    sweep(path)
    assert root_of(path).count == 4
    with path.store.requests.measure() as spent:
        sweep(path)
    assert spent["PUT"] == 2, "when the pass ended, and the heads that could become one file"


SCHEMA = {
    "version": "1.0",
    "models": {
        "Thing": {
            "path": "@things/(id:string)",
            "oplog": True,
            "fields": {"name": {"type": "string"}},
            "manifest": {"enabled": True},
            "indexes": {"byName": {"field": "name"}},
        }
    },
}


def written_by(db: worm.Worm, first: int, count: int) -> float:
    """Bytes per document saved one by one and folded twenty at a time, and nothing else: what the bulk before them left
    to merge is merged."""
    db.flush()
    db.model("Thing").table.tidy(force=True)
    before, things = db.store.requests.bytes_written, db.model("Thing")
    for number in range(first, first + count):
        things.insert({"id": f"t{number:05d}", "name": f"name {number % 40}", "about": "x" * 100})
        if number % 20 == 19:
            db.flush()
    return (db.store.requests.bytes_written - before) / count


@pytest.mark.slow
def test_a_save_writes_as_much_into_a_large_table_as_into_a_small_one() -> None:
    with worm.connect("memory://", schema=SCHEMA) as db:
        db.push()
        db.folder._window = 3600.0  # only `flush` folds: what is folded together does not depend on the machine
        db.model("Thing").insert_many(
            [{"id": f"s{number:05d}", "name": "n", "about": "x" * 100} for number in range(500)]
        )
        small = written_by(db, 0, 200)
        db.model("Thing").insert_many(
            [{"id": f"l{number:05d}", "name": "n", "about": "x" * 100} for number in range(3000)]
        )
        assert written_by(db, 200, 200) < 3 * small
        assert len(db.model("Thing").find_all(filter={"name": "name 7"})) == 10
        db.verify()
