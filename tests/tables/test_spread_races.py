"""Races on the root of a spread table, one interleaving each, and what ranges and readers keep."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from tests.harness import DataPath
from tests.tables.test_spread_tables import (
    BY_STATUS,
    assert_answers,
    fill,
    is_spread,
    oplog,
    purge,
    root_of,
    spread_path,
)
from worm.tables import tree
from worm.tables.index import Index
from worm.tables.layout import merged_deltas
from worm.tables.manifest import Manifest
from worm.tables.root import Root, balanced_starts
from worm.tables.table import Table

__all__ = ["oplog"]


@pytest.fixture(autouse=True)
def merged_on_demand_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "BASE_SHARE", 0)


def change(path: DataPath, entity_id: str, status: str) -> None:
    path.put(entity_id, {"status": status, "tags": []})
    path.settle()


def interrupted(table: Table, meanwhile: Callable[[], None]) -> None:
    """Merge the base; after the new files are written and before the root is flipped, something else happens."""
    table.manifest.root()
    formed = table.manifest.reformed
    calls: list[int] = []

    def slow(root: Root[Manifest], *, is_quiet: bool) -> Root[Manifest]:
        result = formed(root, is_quiet=is_quiet)
        if not calls:
            calls.append(1)
            meanwhile()
        return result

    table.manifest.reformed = slow  # type: ignore[method-assign]  # this table's only
    table.tidy(force=True)
    assert calls, "it had something to merge"


def test_deltas_that_others_merged_meanwhile_do_not_bring_an_older_row_back(oplog: bool) -> None:
    path = spread_path(oplog=oplog)
    fill(path, 9)
    for status in ("first", "second", "third"):
        change(path, "c001", status)

    def merge_two() -> None:
        other = path.table.manifest
        two = root_of(path).deltas[:2]
        one, another = other.pieces.get([piece.file for piece in two])
        merged = other.layout.new_file("delta", one.merged([another]), level=1)
        other.publish(partial(merged_deltas, gone=two, merged=merged))

    interrupted(path.table, merge_two)
    assert path.rows()["c001"]["status"] == "third"
    assert_answers(path)
    path.assert_true()


def test_a_fold_while_the_table_becomes_one_file_is_not_lost() -> None:
    path = spread_path(oplog=False, threshold=6)
    fill(path, 12)
    for number in range(10):
        path.remove(f"c{number:03d}")
    path.settle()
    interrupted(path.table, lambda: change(path, "c011", "meanwhile"))
    assert path.rows()["c011"]["status"] == "meanwhile"
    assert_answers(path)
    path.assert_true()


def test_a_fold_after_one_that_came_during_a_merge_wins(oplog: bool) -> None:
    path = spread_path(oplog=oplog)
    fill(path, 9)
    change(path, "c001", "x")
    interrupted(path.table, lambda: change(path, "c002", "meanwhile"))
    change(path, "c002", "later")
    assert path.rows()["c002"]["status"] == "later"
    assert_answers(path)
    path.assert_true()


def test_two_merges_of_one_base_leave_one(oplog: bool) -> None:
    path = spread_path(oplog=oplog)
    fill(path, 9)
    change(path, "c001", "x")

    def merge_too() -> None:
        second = path.table
        change(path, "c003", "y")
        second.tidy(force=True)

    interrupted(path.table, merge_too)
    assert path.rows()["c003"]["status"] == "y"
    assert_answers(path)
    path.assert_true()


def test_a_merge_of_deltas_that_are_gone_from_the_root_changes_nothing() -> None:
    path = spread_path(oplog=False)
    fill(path, 9)
    change(path, "c001", "old")
    change(path, "c001", "older")
    two = root_of(path).deltas
    other = path.table.manifest
    merged = other.layout.new_file("delta", other.pieces.get([two[0].file])[0], level=1)
    path.table.tidy(force=True)
    assert merged_deltas(root_of(path), gone=two, merged=merged) is None


def test_a_reader_whose_files_vanish_between_root_and_read_starts_again() -> None:
    path = spread_path()
    fill(path, 9)
    change(path, "c001", "x")
    reader = path.table.manifest
    load = reader.load

    def slow(root: Root[Manifest]) -> object:
        reader.load = load  # type: ignore[method-assign]
        change(path, "c002", "y")
        path.table.tidy(force=True)
        path.clock.advance(3 * 86_400)
        assert purge(path) > 0
        return load(root)

    reader.load = slow  # type: ignore[method-assign,assignment]
    found = reader.read()
    assert found is not None
    assert found == path.table.manifest.read()


def test_a_session_that_stays_open_follows_the_base() -> None:
    path = spread_path()
    fill(path, 9)
    reader = path.table
    before = reader.view()
    assert before is not None
    assert len(before.rows) == 9
    change(path, "c001", "x")
    path.table.tidy(force=True)
    after = reader.view()
    assert after is not None
    assert after.rows["c001"]["status"] == "x"
    assert before.rows["c001"]["status"] == "active", "a state stays what it was"


def test_a_file_with_the_content_of_another_is_damaged() -> None:
    path = spread_path()
    fill(path, 9)
    first, second = root_of(path).partitions
    body = path.store.get(f"org/customers/.worm.manifest/{second.file}")
    assert body is not None
    path.store.put(f"org/customers/.worm.manifest/{first.file}", body.body)
    table = path.table
    assert table.manifest.read() is None
    assert table.manifest.damage is not None
    assert "does not match its name" in table.manifest.damage.message


def test_a_stub_does_not_go_back_to_an_older_revision() -> None:
    path = spread_path()
    fill(path, 9)
    files = path.table.indexes[0]
    newer = files.file.read()
    assert newer is not None
    files.stub(Index("Customer", "status", "standard", False, "", newer.revision - 1, {}))
    assert path.table.indexes[0].file.read() == newer


def test_a_table_that_shrinks_to_the_threshold_becomes_one_file() -> None:
    path = spread_path(oplog=False, threshold=6)
    fill(path, 12)
    for number in range(5):
        path.remove(f"c{number:03d}")
    path.settle()
    path.table.tidy(force=True)
    assert root_of(path).count == 7
    path.remove("c008")
    path.settle()
    path.table.tidy(force=True)
    assert not is_spread(path.table.manifest)
    assert_answers(path)
    path.assert_true()


def test_deleted_ids_count_for_the_threshold_of_a_table_with_oplog() -> None:
    """They stay in the file for ever, so the file grows with them."""
    path = spread_path(threshold=6)
    fill(path, 6)
    for number in range(6):
        path.remove(f"c{number:03d}")
    path.settle()
    assert not is_spread(path.table.manifest)
    fill(path, 1, first=50)
    assert root_of(path).count == 1
    assert is_spread(path.table.heads)
    assert_answers(path)
    path.assert_true()


def test_an_unchanged_partition_keeps_its_file() -> None:
    path = spread_path(threshold=4, partitions=3)
    fill(path, 12)
    path.table.tidy(force=True)
    before = root_of(path).partitions
    change(path, "c001", "x")
    path.put("c0015", {"status": "new", "tags": []})
    path.settle()
    path.table.tidy(force=True)
    after = root_of(path).partitions
    assert [one.start for one in after] == [one.start for one in before]
    assert [one.file == other.file for one, other in zip(before, after, strict=True)] == [False, True, True]
    path.assert_true()


def test_ids_that_only_grow_at_the_end_get_new_ranges() -> None:
    path = spread_path(threshold=4, partitions=3)
    fill(path, 12)
    path.table.tidy(force=True)
    before = [piece.start for piece in root_of(path).partitions]
    fill(path, 30, first=100)
    path.table.tidy(force=True)
    after = root_of(path).partitions
    assert [piece.start for piece in after] != before
    counts = [piece.count for piece in after]
    assert max(counts) <= 2 * sum(counts) / len(counts)
    assert_answers(path)


def test_carried_ranges_are_kept_while_they_are_balanced_and_fit() -> None:
    keys = [f"{number:03d}" for number in range(30)]
    assert balanced_starts(keys, 3, 16) == ["", "010", "020"]
    assert balanced_starts(keys, 3, 16, ["", "012", "020"]) == ["", "012", "020"]
    assert balanced_starts(keys, 3, 16, ["", "002", "004"]) == ["", "010", "020"], "unbalanced"
    assert balanced_starts(keys, 3, 16, ["", "015", "9"]) == ["", "010", "020"], "an empty range"
    assert balanced_starts(keys, 3, 3, ["", "008", "016", "024"]) == ["", "010", "020"], "more than there may be"
    assert balanced_starts(keys, 9, 16, ["", "015"]) == balanced_starts(keys, 9, 16), "far fewer than wanted"
    assert balanced_starts([], 3, 16) == [""]


def test_a_second_rebuild_writes_no_root(oplog: bool) -> None:
    path = spread_path(oplog=oplog)
    fill(path, 9)
    path.table.rebuild()
    versions = len(list(path.store.versions("org/customers/.worm.manifest.json")))
    path.table.rebuild()
    assert len(list(path.store.versions("org/customers/.worm.manifest.json"))) == versions


def test_a_push_of_other_fields_builds_a_spread_table_anew() -> None:
    path = spread_path()
    fill(path, 9)
    stale = root_of(path)
    path.schema = {**path.schema}
    model = path.schema["models"]["Customer"]  # type: ignore[index]
    grown = {**model, "fields": {**model["fields"], "note": {"type": "string"}}}
    from worm.collections.layout import SCHEMA_KEY
    from worm.formats import load_schema

    path.store.put(SCHEMA_KEY, load_schema({**path.schema, "models": {"Customer": grown}}).to_json())
    assert path.table.view() is None
    assert path.table.ids_with(BY_STATUS, ["active"]) is None
    path.put("c001", {"status": "x", "tags": [], "note": "n"})
    path.settle()
    assert root_of(path).fields != stale.fields
    assert path.rows()["c001"]["note"] == "n"
    assert_answers(path)
    path.assert_true()


def test_levels_grow_with_the_logarithm_of_the_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "DELTAS_MAX", 2)
    path = spread_path()
    fill(path, 9)
    for number in range(17):
        change(path, f"c{number % 9:03d}", f"s{number}")
    assert len(root_of(path).deltas) <= 5
    assert_answers(path)
    path.assert_true()


def test_a_merge_holds_few_partitions_at_a_time(monkeypatch: pytest.MonkeyPatch, oplog: bool) -> None:
    path = spread_path(oplog=oplog, threshold=4, partitions=16)
    fill(path, 64)
    path.table.rebuild()
    change(path, "c001", "x")
    table = path.table
    held: list[int] = []
    put = table.manifest.pieces.put

    def counting(*given: object, **named: object) -> object:
        held.append(len(table.manifest.pieces))
        return put(*given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(table.manifest.pieces, "put", counting)
    table.tidy(force=True)
    assert len(root_of(path).partitions) == 16
    assert len(held) == 16
    assert max(held) <= 5, "the delta, two that are read and two that are written"
    assert_answers(path)
    path.assert_true()


def test_a_worker_that_stays_writes_files_again_that_were_deleted_while_the_table_was_one_file() -> None:
    path = spread_path(oplog=False, threshold=6)
    fill(path, 12)
    worker = path.table
    worker.rebuild()
    first = root_of(path).partitions
    gone = {entity_id: path.store.get(path.key(entity_id)) for entity_id in (f"c{number:03d}" for number in range(10))}
    for entity_id in gone:
        path.remove(entity_id)
    path.settle()
    path.table.tidy(force=True)
    path.clock.advance(3 * 86_400)
    assert purge(path) > 0
    assert not is_spread(path.table.manifest)
    for entity_id, document in gone.items():
        assert document is not None
        path.put(entity_id, document.body)
    worker.fold_documents(gone)
    assert root_of(path).partitions == first
    assert_answers(path)
    path.settle()
    path.assert_true()
