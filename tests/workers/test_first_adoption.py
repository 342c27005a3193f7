"""Many documents that nobody recorded yet: what sweep, push and repair do for each, and that a stop costs nothing."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.harness import DataPath
from worm.collections.entries import Change
from worm.collections.reconcile import Survey
from worm.tables.table import Table
from worm.upkeep.repair import repair_model


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worm.upkeep.sweep_pass.CHUNK", 20)


def with_raw_documents(count: int, *, versioned: bool = True) -> DataPath:
    path = DataPath(versioned=versioned)
    for at in range(count):
        path.put(f"c{at}", {"name": f"Customer {at}", "status": "new"})
    return path


@pytest.mark.parametrize("versioned", [True, False])
def test_a_sweep_looks_at_each_new_document_once(versioned: bool) -> None:
    """Without versions, what the sweep itself had recorded seemed to be behind: all of it was done twice."""
    path = with_raw_documents(50, versioned=versioned)
    report = path.sweep()
    assert (report.reconciled, report.recorded) == (50, 50)
    path.assert_true()


@pytest.mark.parametrize("versioned", [True, False])
def test_a_first_repair_makes_four_requests_for_each_document(versioned: bool) -> None:
    """Reads the document and writes its entry; then the tables read both. One listing serves all of them, not one
    each."""
    path = with_raw_documents(300, versioned=versioned)
    path.workspace.refresh()
    with path.store.requests.measure() as spent:
        repair_model(path.workspace, "Customer")
    assert spent["total"] / 300 <= 4.1, spent
    assert spent["VERSIONS"] <= 2
    path.assert_true()


def test_folds_of_a_growing_table_double_in_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fold of a small table writes all of it: at every 20 documents, that is the square of their number."""
    path, sizes, fold = with_raw_documents(200), list[int](), Table.fold

    def noted(table: Table, changes: Sequence[Change], **more: bool) -> None:
        sizes.append(len(changes))
        fold(table, changes, **more)

    monkeypatch.setattr(Table, "fold", noted)
    path.sweep()
    assert sizes == [20, 20, 40, 80, 40]
    path.assert_true()


def test_documents_that_are_large_are_folded_in_smaller_lots(monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits for a fold is held in memory."""
    monkeypatch.setattr("worm.upkeep.sweep_pass.FOLD_BYTES_MAX", 300)
    path, sizes = with_raw_documents(100), list[int]()
    monkeypatch.setattr(Table, "fold", lambda table, changes, builds: sizes.append(len(changes)))
    path.sweep()
    assert sizes == [20] * 5


class Killed(BaseException):
    """The process is gone."""


@pytest.mark.parametrize("versioned", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_sweep_that_dies_before_its_fold_is_finished_by_the_next(
    versioned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = with_raw_documents(45, versioned=versioned)

    def die(table: Table, changes: Sequence[Change], **more: bool) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(Table, "fold", die)
        with pytest.raises(Killed):
            path.sweep()
    assert len(path.collection.recorded_seqs()) == 20
    path.new_workers(path.store)
    path.sweep()
    assert len(path.rows()) == 45
    assert {len(path.history(f"c{at}")) for at in range(45)} == {1}
    path.assert_true()


def test_a_sweep_out_of_time_folds_what_it_recorded_before_it_remembers_where_it_was() -> None:
    """Or the next one would start behind rows that no table has."""
    path = with_raw_documents(65)
    assert not path.sweeper.run(lambda: 0.0)[0].finished
    assert len(path.rows()) == len(path.collection.recorded_seqs()) == 20
    while not path.sweeper.run(lambda: 0.0)[0].finished:
        assert len(path.rows()) == len(path.collection.recorded_seqs())
    path.assert_true()


def test_a_version_after_the_listing_is_not_missed() -> None:
    """A listing that showed one version proves something only while that version is the current one."""
    path = with_raw_documents(0)
    path.put("a", {"name": "one"})
    (_, listed, is_sole), *_ = path.collection.newest_versions()
    assert is_sole
    path.put("a", {"name": "two"})
    path.put("a", {"name": "one"})  # the etag of the listed one
    assert path.collection.reconcile("a", None, None, survey=Survey(listed)).appended == 3


def test_a_document_of_several_versions_is_not_taken_for_one_of_a_single_version() -> None:
    path = with_raw_documents(1)
    path.put("c0", {"name": "two"})
    path.put("c1", {"name": "one"})
    assert [is_sole for _, _, is_sole in path.collection.newest_versions()] == [False, True]
    assert path.sweep().recorded == 3
