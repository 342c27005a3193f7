"""The building blocks of a rebuild by many processes, without any: exact ranges, exact bytes, nothing lost."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.harness import DataPath, schema_of
from worm.collections.entries import Head, Heads, Row
from worm.collections.id_ranges import IdRange
from worm.collections.layout import mark_name
from worm.tables.layout import SPREAD_BYTES, Edit
from worm.tables.manifest import Manifest
from worm.tables.root import Root, balanced_starts, check, counts_between, cuts, may_carry, weights_between
from worm.tables.table import Table
from worm.tables.tasks.staging import (
    BuiltPart,
    CatchUp,
    Flip,
    Kind,
    Overtaken,
    PartPlan,
    SourceRows,
    StagedFile,
    StagedRow,
    Staging,
    Wish,
    answered,
    build_part,
    catch_up,
    flipped,
    index_stubs,
    part_plans,
    questions,
    rebuild_documents,
    staged_base,
    starts_of,
    stored_files,
    survey,
    wish,
)
from worm.upkeep.purge import Purge

STARTS = ("c010", "c030")


def _path(*, oplog: bool = True, threshold: int = 20) -> DataPath:
    return DataPath(schema_of(oplog=oplog, manifest={"enabled": True, "partitionThreshold": threshold}))


def _fill(path: DataPath, numbers: Sequence[int], score: int = 0, *, settle: bool = True) -> None:
    for number in numbers:
        extra: Row = {"vat": number, "a.b": [number]} if number % 2 else {}
        path.put(f"c{number:03d}", {"name": f"n{number}", "status": f"s{number % 3}", "score": score, **extra})
    if settle:
        path.settle()


def _staged(path: DataPath) -> tuple[Staging, list[StagedFile]]:
    staging = Staging(path.collection)
    rows = [SourceRows(path.collection, within) for within in IdRange.between(STARTS)]
    return staging, [file for each in rows for file in staging.put_all(each)]


def _parts(
    path: DataPath, table: Table, staging: Staging, files: list[StagedFile], root: Root[Manifest] | None
) -> list[BuiltPart]:
    wishes = [wish("manifest", table.manifest, root, files)]
    answers = [survey(staging, question) for question in questions(files, wishes)]
    starts = starts_of(wishes, answers)["manifest"]
    plans = part_plans("manifest", starts, files, lambda within: stored_files(table, root, within))
    return [build_part(staging, table, plan) for plan in plans]


@settings(max_examples=examples(200), deadline=None)
@given(
    st.lists(st.text("abc", min_size=1, max_size=4), unique=True, min_size=1, max_size=40),
    st.integers(1, 8),
    st.lists(st.text("abc", min_size=1, max_size=3), unique=True, max_size=5),
    st.integers(1, 7),
)
def test_ranges_are_those_of_one_process(keys: list[str], wanted: int, carried: list[str], per_file: int) -> None:
    ids, known = sorted(keys), ["", *sorted(carried)] if carried else []
    chunks = [[StagedRow(one, None) for one in ids[at : at + per_file]] for at in range(0, len(ids), per_file)]
    may = may_carry(len(ids), wanted, 16, known)
    wishes = [Wish("heads", tuple(cuts(len(ids), wanted)), tuple(known) if may else (), may, False)]
    assert _starts(chunks, wishes)["heads"] == balanced_starts(ids, wanted, 16, known)


@pytest.mark.slow
@settings(max_examples=examples(200), deadline=None)
@given(
    st.dictionaries(st.text("abc", min_size=1, max_size=4), st.integers(0, 500), min_size=1, max_size=40),
    st.lists(st.text("abc", min_size=1, max_size=3), unique=True, max_size=5),
    st.integers(1, 7),
)
def test_ranges_of_heavy_rows_are_those_of_one_process_and_bounded(
    sizes: dict[str, int], carried: list[str], per_file: int
) -> None:
    """Partitions of other ranges than a rebuild in one process gives would differ byte for byte, and a range without a
    bound takes all memory of the process that merges it."""
    with pytest.MonkeyPatch.context() as patch:
        for module in ("worm.tables.tasks.staging", "worm.tables.layout"):
            patch.setattr(f"{module}.PARTITION_BYTES", 1200)
        table, known = _path(threshold=10).table, ["", *sorted(carried)] if carried else []
        patch.setattr(table.manifest, "carried", lambda root: known)
        rows = [StagedRow(one, {"n": "x" * sizes[one]}) for one in sorted(sizes)]
        ids, weights = [row.id for row in rows], [row.weight for row in rows]
        chunks = [rows[at : at + per_file] for at in range(0, len(rows), per_file)]
        starts = _starts(chunks, [wish("manifest", table.manifest, None, _files(chunks))])["manifest"]
        assert starts == table.manifest.layout.starts(ids, weights, known)
        assert max(weights_between(ids, weights, starts)) <= 1200
        assert all(counts_between(ids, starts))


def _files(chunks: list[list[StagedRow]]) -> list[StagedFile]:
    return [
        StagedFile(str(at), some[0].id, some[-1].id, len(some), len(some), sum(row.weight for row in some))
        for at, some in enumerate(chunks)
    ]


def _starts(chunks: list[list[StagedRow]], wishes: list[Wish]) -> dict[Kind, list[str]]:
    asked = questions(_files(chunks), wishes)
    return starts_of(wishes, [answered(question, chunk) for question, chunk in zip(asked, chunks, strict=True)])


@pytest.mark.parametrize("oplog", [True, False])
def test_staged_files_are_bounded_and_repeat(oplog: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worm.tables.tasks.staging.ROWS_MAX", 7)
    path = _path(oplog=oplog)
    _fill(path, range(40))
    staging, files = _staged(path)
    assert _staged(path)[1] == files
    assert sum(file.count for file in files) == sum(file.live for file in files) == 40
    assert max(file.count for file in files) == 7
    rows = [row.id for file in files for row in staging.rows(file.file)]
    assert rows == sorted(rows)


def test_a_time_mark_without_a_history_has_no_row() -> None:
    path, name = _path(), mark_name("2026-01-01T00:00:00Z", 32)
    _fill(path, [1])
    assert name is not None
    path.store.put(path.collection.resolver.time_mark_key("Customer", "c002", name), b"{}")
    assert [row.id for row in SourceRows(path.collection, IdRange())] == ["c001"]


def test_a_staged_file_names_only_the_first_damaged_entities(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver holds what all files report."""
    monkeypatch.setattr("worm.tables.tasks.staging.DAMAGED_MAX", 2)
    path = _path()
    _fill(path, range(6))
    for number in range(5):
        path.store.put(path.collection.oplog.key(f"c{number:03d}", 1), b"{}")
    _, files = _staged(path)
    assert sum(len(file.damaged) for file in files) == 2
    assert sum(file.damages for file in files) == 5


def test_a_file_of_heads_is_built_without_holding_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have 10,000 ids, and a row 100 KB."""
    monkeypatch.setattr("worm.tables.tasks.staging.BYTES_MAX", 200_000)
    path = _path()
    staging, head = Staging(path.collection), Head(1, '"x"', None, live=True, ts="2026-01-01T00:00:00Z")
    rows = (StagedRow(f"c{number:03d}", {"about": f"{number:03d}" * 20_000}, head) for number in range(200))
    files = tuple(one.file for one in staging.put_all(rows))
    tracemalloc.start()
    try:
        built = build_part(staging, path.table, PartPlan("heads", 0, IdRange(), files))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (built.piece.count, built.revision) == (200, 200)
    assert peak < 200 * 60_000 / 4


@pytest.mark.parametrize("oplog", [True, False])
def test_parts_and_flip_give_the_bytes_of_a_rebuild(oplog: bool) -> None:
    path = _path(oplog=oplog)
    _fill(path, range(60))
    _fill(path, range(0, 60, 7), score=1)
    table = path.table
    start = table.manifest.root()
    staging, files = _staged(path)
    parts = _parts(path, table, staging, files, start)
    before = path.store.get(table.manifest.key)
    assert before is not None
    whole = path.table
    whole.rebuild()
    expected = whole.manifest.root()
    assert expected is not None
    assert expected.is_spread
    path.store.put(table.manifest.key, before.body)
    base = staged_base(table.manifest.layout, parts, dict(expected.indexes))
    flipped = Flip(table.manifest, base, start, _nothing_newer, differs=any(part.differs for part in parts)).run()
    assert flipped.encode() == expected.encode()


def _nothing_newer(root: object) -> CatchUp:
    raise AssertionError("the base did not change")


@pytest.mark.parametrize("merged", [False, True], ids=["deltas", "merged into the base"])
def test_what_is_folded_meanwhile_is_kept(merged: bool) -> None:
    path = _path()
    _fill(path, range(60))
    table = path.table
    start = table.manifest.root()
    staging, files = _staged(path)
    parts = _parts(path, table, staging, files, start)
    _fill(path, [3, 50, 70], score=5)
    if merged:
        path.table.tidy(force=True)
    current = path.table.manifest.root()
    assert current is not None
    assert current.is_spread
    base = staged_base(table.manifest.layout, parts, dict(current.indexes))

    def newer(root: Root[Manifest]) -> CatchUp:
        assert merged
        assert root is not None
        assert root.is_spread
        found = [table.manifest.pieces.get([piece.file])[0] for piece in table.manifest.partitions(root)]
        caught = [catch_up(staging, table, one, [file.file for file in files], IdRange()) for one in found]
        return CatchUp(tuple(delta for one in caught for delta in one.deltas))

    Flip(table.manifest, base, start, newer).run()
    rows = path.rows()
    assert [rows[one]["score"] for one in ("c003", "c050", "c070")] == [5, 5, 5]
    assert len(rows) == 61


@pytest.mark.parametrize("kind", ["spread", "merged", "whole"])
def test_a_document_that_is_deleted_meanwhile_does_not_come_back_without_oplog(kind: str) -> None:
    path = _path(oplog=False)
    _fill(path, range(20 if kind == "whole" else 60))
    if kind == "whole":
        _fill(path, range(20, 25), settle=False)  # staged, not folded: the table becomes a spread one
    table = path.table
    start = table.manifest.root()
    staging, files = _staged(path)
    parts = _parts(path, table, staging, files, start)
    path.remove("c003")
    path.settle()
    if kind == "merged":
        path.table.tidy(force=True)

    def newer(root: Root[Manifest]) -> CatchUp:
        names = [file.file for file in files]
        if root.whole is not None:
            return catch_up(staging, table, root.whole, names, IdRange())
        assert root is not None
        assert root.is_spread
        pieces = table.manifest.partitions(root)
        starts = ["", *(piece.start for piece in pieces[1:])]
        ranges = [IdRange(one, end) for one, end in zip(starts, [*starts[1:], None], strict=True)]
        found = [table.manifest.pieces.get([piece.file])[0] for piece in pieces]
        caught = [catch_up(staging, table, one, names, within) for one, within in zip(found, ranges, strict=True)]
        return CatchUp(tuple(d for one in caught for d in one.deltas), tuple(i for one in caught for i in one.ids))

    base = staged_base(table.manifest.layout, parts)
    flip = Flip(table.manifest, base, start, newer)
    flip.run()
    table.follow()
    table.fold_documents(flip.refold)
    assert "c003" not in path.rows()
    assert len(path.rows()) == sum(file.count for file in files) - 1


@pytest.mark.parametrize("kind", ["gone", "of another schema"])
def test_a_root_that_does_not_tell_what_was_folded_starts_the_rebuild_again(kind: str) -> None:
    path = _path()
    _fill(path, range(60))
    table = path.table
    start = table.manifest.root()
    staging, files = _staged(path)
    parts = _parts(path, table, staging, files, start)
    if kind == "gone":
        path.store.delete(table.manifest.key)
    else:
        assert start is not None
        assert start.is_spread
        path.store.put(table.manifest.key, replace(start, fields=("name",), revision=start.revision + 1).encode())
    base = staged_base(table.manifest.layout, parts)
    with pytest.raises(Overtaken):
        Flip(table.manifest, base, start, _nothing_newer).run()


def test_an_index_file_that_came_back_is_emptied_again() -> None:
    """An index was dropped, the table spread, and the index pushed again: readers would believe its old file."""
    path = _path()
    _fill(path, range(60))
    table = path.table
    start = table.manifest.root()
    assert start is not None
    assert start.is_spread
    (files,) = table.indexes
    files.file.update(lambda stored: replace(stored, partitioned=False) if stored else None)
    assert files.is_whole()
    staging, staged = _staged(path)
    parts = _parts(path, table, staging, staged, start)
    base = staged_base(table.manifest.layout, parts, dict(start.indexes))
    Flip(table.manifest, base, start, _nothing_newer).run()
    assert not path.table.indexes[0].is_whole()


def test_documents_that_were_folded_meanwhile_are_folded_once_more() -> None:
    path = _path(oplog=False, threshold=1000)
    _fill(path, range(10))
    table = path.table
    start = table.manifest.root()
    staging, files = _staged(path)
    _fill(path, [3], score=5)
    rebuild_documents(table, start, (row for file in files for row in staging.rows(file.file)))
    assert path.rows()["c003"]["score"] == 5
    path.assert_true()


@pytest.mark.parametrize("threshold", [10_000, 20, None], ids=["whole", "spread", "heads only"])
def test_what_a_run_that_died_has_staged_is_purged_after_a_day(threshold: int | None) -> None:
    path = DataPath(schema_of(oplog=True, manifest={"enabled": False}, indexes={}))
    directory = "org/customers/.worm.heads/"
    if threshold is not None:
        path, directory = _path(threshold=threshold), "org/customers/.worm.manifest/"
    _fill(path, range(60))
    _, files = _staged(path)
    staged = {f"{directory}{file.file}" for file in files}
    path.clock.advance(23 * 3600)
    assert _purged(path) == 0, "somebody may be at work with it"
    assert staged <= _keys(path)
    path.clock.advance(2 * 3600)
    assert _purged(path) >= len(staged)
    assert not staged & _keys(path)
    path.assert_true()


def _purged(path: DataPath) -> int:
    return Purge(path.workspace).run(lambda: 60.0)[0].table_files


def _keys(path: DataPath) -> set[str]:
    return {listed.key for listed in path.store.list("org/customers/.worm")}


def test_a_small_table_is_one_file_by_ids_and_by_bytes() -> None:
    path = _path(threshold=20)
    table = path.table
    assert table.manifest.layout.is_whole(20, SPREAD_BYTES)
    assert not table.manifest.layout.is_whole(21, 0)
    assert not table.manifest.layout.is_whole(1, SPREAD_BYTES + 1)


def test_a_delta_that_was_kept_and_caught_is_named_once() -> None:
    """Of heads, a fold that was delivered again after a merge gives the very file that catching up gives."""
    path = _path()
    _fill(path, range(60))
    layout, root = path.table.heads.layout, path.table.heads.root()
    assert root is not None
    delta = layout.new_file("delta", Heads("Customer")).piece
    base = Edit(replace(root, deltas=()), "source")
    flip = flipped(layout, base, root, (delta, delta), differs=True)
    assert flip.root.deltas == (delta,)
    check(root, flip.root, flip.by)


def test_indexes_point_to_the_root_before_the_table_is_spread() -> None:
    path = _path()
    table = path.table
    base: Root[Manifest] = Root("Customer", 0, 0, 7, "2026-01-01T00:00:00Z")
    table.indexes[0].put(*index_stubs(table.manifest.layout, base, is_split=True))
    stored = table.indexes[0].file.read()
    assert stored is not None
    assert (stored.partitioned, stored.revision) == (True, 7)
