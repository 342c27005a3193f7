"""Tables past `partitionThreshold`: split, deltas, merges, the way back, damage and races."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from functools import cache
from typing import Literal, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples, some
from tests.harness import DataPath, schema_of
from worm.collections.entries import Change, Head
from worm.collections.layout import SCHEMA_KEY
from worm.formats import IndexDef, load_schema
from worm.formats.strict_json import JsonValue
from worm.store.faulty_store import FaultyStore, SimulatedCrash
from worm.tables import tree
from worm.tables.layout import T
from worm.tables.manifest import Manifest
from worm.tables.root import Root
from worm.tables.table import Table
from worm.tables.tree import Tree
from worm.upkeep.purge import Purge

MANIFEST = "org/customers/.worm.manifest.json"
INDEX = "org/customers/.worm.index/status.json"
BY_STATUS = IndexDef(field="status")
BY_TAGS = IndexDef(field="tags", type="multiValue")


def spread_path(*, threshold: int = 4, partitions: int = 3, **customer: object) -> DataPath:
    manifest = {"enabled": True, "partitionThreshold": threshold, "maxPartitions": partitions}
    indexes = {"byStatus": {"field": "status"}, "byTags": {"field": "tags", "type": "multiValue"}}
    return DataPath(schema_of(**{"manifest": manifest, "indexes": indexes, **customer}))  # type: ignore[arg-type]


def fill(path: DataPath, count: int, *, first: int = 0) -> None:
    for number in range(first, first + count):
        status = "active" if number % 2 else "inactive"
        path.put(f"c{number:03d}", {"status": status, "tags": [f"t{number % 3}"], "score": number})
    path.settle()


def purge(path: DataPath, *, dry_run: bool = False) -> int:
    return Purge(path.workspace).run(lambda: 1.0, dry_run=dry_run)[0].table_files


def raise_threshold(path: DataPath, threshold: int) -> None:
    manifest = {"enabled": True, "partitionThreshold": threshold, "maxPartitions": 3}
    models = cast("dict[str, dict[str, object]]", path.schema["models"])
    schema = {**path.schema, "models": {"Customer": {**models["Customer"], "manifest": manifest}}}
    path.store.put(SCHEMA_KEY, load_schema(schema).to_json())


def change_one(path: DataPath) -> None:
    path.put("c011", {"status": "active", "tags": ["t1"]})
    path.settle()


def is_spread(tree: Tree[T]) -> bool:
    root = tree.root()
    return root is not None and root.is_spread


def root_of(path: DataPath) -> Root[Manifest]:
    root = path.table.manifest.root()
    assert root is not None
    assert root.is_spread
    return root


def files_of(path: DataPath) -> dict[str, bytes]:
    """Every derived file of the table."""
    found: dict[str, bytes] = {}
    for listed in path.store.list("org/customers/.worm."):
        held = path.store.get(listed.key)
        assert held is not None
        found[listed.key] = held.body
    return found


def expected_ids(path: DataPath, matches: Callable[[dict[str, JsonValue]], bool]) -> set[str]:
    found = set()
    for one, version in path.collection.latest_versions():
        held = None if version.is_delete_marker else path.store.get(path.key(one))
        if held is not None and matches(json.loads(held.body)):
            found.add(one)
    return found


def assert_answers(path: DataPath) -> None:
    """Scan, streaming and both indexes say what the documents say."""
    table = path.table
    state = table.view()
    assert state is not None
    live = expected_ids(path, lambda _: True)
    assert set(state.rows) == live
    unread = path.table.view()
    assert unread is not None
    assert {one for batch in unread.batches() for one in batch.rows} == live
    for status in ("active", "inactive", "gone"):
        wanted = expected_ids(path, lambda document, status=status: document.get("status") == status)  # type: ignore[misc]
        assert path.table.ids_with(BY_STATUS, [status]) == wanted
    tagged = expected_ids(path, lambda document: bool({"t0", "t2"} & set(document["tags"])))  # type: ignore[arg-type]
    assert path.table.ids_with(BY_TAGS, ["t0", "t2"]) == tagged


@pytest.fixture(params=[True, False], ids=["oplog", "no-oplog"])
def oplog(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def test_a_table_past_the_threshold_is_split_into_balanced_ranges(oplog: bool) -> None:
    path = spread_path(oplog=oplog)
    fill(path, 4)
    assert not is_spread(path.table.manifest)
    assert_answers(path)
    fill(path, 8, first=4)
    path.table.tidy(force=True)
    counts = [piece.count for piece in root_of(path).partitions]
    assert sum(counts) == 12
    assert len(counts) == 3
    assert max(counts) <= 2 * min(counts)
    assert_answers(path)
    path.assert_true()


def test_meta_tells_the_ranges() -> None:
    path = spread_path()
    fill(path, 9)
    path.table.tidy(force=True)
    path.sweep()
    held = path.store.get("org/customers/.worm.manifest/_meta.json")
    assert held is not None
    meta = json.loads(held.body)
    assert (meta["partitionCount"], meta["partitionBy"], meta["totalCount"]) == (2, "id_range", 9)
    assert [part.get("from", "") for part in meta["partitions"]] == ["", "c004"]
    assert [part["count"] for part in meta["partitions"]] == [4, 5]
    for part in meta["partitions"]:
        assert path.store.get(f"org/customers/.worm.manifest/{part['file']}") is not None


def test_42000_entities_make_four_partitions_as_documented() -> None:
    collection = DataPath(schema_of()).collection
    assert Table(collection).manifest.layout.ranges(42_000) == (4, 16)
    assert Table(collection).manifest.layout.ranges(10_001) == (2, 16)
    assert Table(collection).manifest.layout.ranges(1_600_000) == (16, 16)


def test_the_number_of_partitions_follows_the_size_where_the_setting_would_make_them_too_large() -> None:
    """A partition of millions of rows fits into no task, and not into the memory of the worker that merges it."""
    assert Table(DataPath(schema_of()).collection).manifest.layout.ranges(100_000_000) == (1000, 1000)
    few = {"enabled": True, "maxPartitions": 2, "partitionThreshold": 1_000_000}
    layout = Table(DataPath(schema_of(manifest=few)).collection).manifest.layout
    assert [layout.ranges(count) for count in (50_000, 200_000, 1_500_000)] == [(1, 2), (2, 2), (15, 15)]


def test_the_file_of_an_index_says_that_it_is_partitioned_and_an_old_fold_cannot_bring_it_back() -> None:
    path = spread_path()
    fill(path, 4)
    old = path.table
    whole = old.manifest.read()
    assert whole is not None
    fill(path, 3, first=4)
    stub = path.table.indexes[0].file.read()
    assert stub is not None
    assert (stub.partitioned, stub.entries) == (True, {})
    old.indexes[0].fold(whole)
    assert path.table.indexes[0].file.read() == stub
    assert_answers(path)


def test_folding_a_spread_table_reads_and_writes_its_root_and_a_delta_only() -> None:
    path = spread_path()
    fill(path, 40)
    path.table.tidy(force=True)
    table = path.table
    table.manifest.root()
    change = Change("c001", Head(9, "e", "v", True, "2030-01-01T00:00:00Z"), {"status": "new", "tags": []})
    with path.store.requests.measure() as spent:
        table.fold([change])
    # manifest: root 304, delta, root; heads: GET, delta, root.
    assert spent["total"] == 6
    assert path.table.ids_with(BY_STATUS, ["new"]) == {"c001"}
    assert "c001" not in (path.table.ids_with(BY_STATUS, ["active"]) or set())


def test_bytes_per_change_do_not_grow_with_the_table() -> None:
    written = []
    for size in (40, 400):
        path = spread_path(threshold=20, partitions=16)
        fill(path, size)
        path.table.tidy(force=True)
        table, before = path.table, path.store
        table.manifest.root()
        known = set(files_of(path))
        row: dict[str, JsonValue] = {"status": "new", "tags": ["x"]}
        table.fold([Change("c001", Head(9, "e", "v", True, "2030-01-01T00:00:00Z"), row)])
        assert before is path.store
        files = files_of(path)
        written.append(sum(len(body) for key, body in files.items() if key not in known) + len(files[MANIFEST]))
    assert written[1] < 3 * written[0], "the root names its partitions, up to maxPartitions"


def test_an_equal_fold_again_adds_nothing() -> None:
    path = spread_path()
    fill(path, 9)
    path.table.tidy(force=True)
    change = Change("c001", Head(9, "e", "v", True, "2030-01-01T00:00:00Z"), {"status": "new"})
    path.table.fold([change])
    before = files_of(path)
    path.table.fold([change])
    assert files_of(path) == before


def test_full_levels_of_deltas_are_merged(monkeypatch: pytest.MonkeyPatch, oplog: bool) -> None:
    monkeypatch.setattr(tree, "DELTAS_MAX", 3)
    monkeypatch.setattr(tree, "BASE_SHARE", 0)
    path = spread_path(oplog=oplog)
    fill(path, 9)
    for number in range(14):
        path.put(f"c{number % 5:03d}", {"status": f"s{number}", "tags": []})
        path.settle()
        deltas = root_of(path).deltas
        assert all(sum(piece.level == level for piece in deltas) < 3 for level in range(4))
    assert max(piece.level for piece in root_of(path).deltas) == 2
    assert_answers(path)
    path.assert_true()


def test_deltas_of_a_quarter_of_the_base_are_merged_into_it(oplog: bool) -> None:
    path = spread_path(oplog=oplog, threshold=20)
    fill(path, 60)
    path.table.tidy(force=True)
    bases = set()
    for number in range(20):
        path.put(f"c{number:03d}", {"status": "again", "tags": ["t0"]})
        path.settle()
        root = root_of(path)
        assert root.delta_size * tree.BASE_SHARE <= 1.5 * root.base_size
        bases.add(tuple(piece.file for piece in root.partitions))
    assert 2 < len(bases) < 15
    assert_answers(path)
    path.assert_true()


def test_a_table_that_knows_fewer_ids_becomes_one_file_again(oplog: bool) -> None:
    """With an oplog deleted ids are known for ever, so only a larger threshold does it."""
    path = spread_path(oplog=oplog, threshold=6)
    fill(path, 12)
    for number in range(10):
        path.remove(f"c{number:03d}")
        path.settle()
    if oplog:
        raise_threshold(path, 30)
        change_one(path)
    path.table.tidy(force=True)
    assert not is_spread(path.table.manifest)
    index = path.table.indexes[0].file.read()
    assert index is not None
    assert not index.partitioned
    assert_answers(path)
    path.assert_true()


def test_incremental_and_rebuilt_files_are_equal_byte_for_byte(oplog: bool) -> None:
    path = spread_path(oplog=oplog)
    fill(path, 15)
    for number in range(0, 15, 2):
        path.put(f"c{number:03d}", {"status": "changed", "tags": ["t9"]})
        path.settle()
    path.remove("c003")
    path.settle()
    path.table.tidy(force=True)
    path.table.heads.root()
    kept = files_of(path)
    root = root_of(path)
    rebuilt = path.table
    rebuilt.manifest.file.update(lambda stored: stored)  # nothing cached helps it
    rebuilt.rebuild()
    assert root_of(path) == root
    assert {key: body for key, body in files_of(path).items() if "heads" not in key} == {
        key: body for key, body in kept.items() if "heads" not in key
    }


def test_a_rebuild_from_nothing_gives_the_same_rows_and_entries() -> None:
    path = spread_path()
    fill(path, 15)
    path.put("c004", {"status": "late", "tags": []})
    path.settle()
    before = path.table.manifest.read()
    for key in files_of(path):
        path.store.delete(key)
    path.table.rebuild()
    after = path.table.manifest.read()
    assert before is not None
    assert after is not None
    assert after.encode() == before.encode()
    assert_answers(path)
    path.assert_true()


@cache
def _spread_with_a_delta() -> DataPath:
    path = spread_path(threshold=20)
    fill(path, 60)
    path.table.tidy(force=True)
    path.put("c001", {"status": "x", "tags": []})
    path.settle()
    return path


@pytest.mark.parametrize("damage", ["gone", "flipped"])
@pytest.mark.parametrize("victim", ["partition-", "delta-", "part-"])
def test_a_lost_or_damaged_file_is_reported_and_made_anew(damage: str, victim: str) -> None:
    path = _spread_with_a_delta().fork()
    root = root_of(path)
    pieces = {"partition-": root.partitions, "delta-": root.deltas, "part-": root.indexes["status"].parts}[victim]
    directory = ".worm.index/status" if victim == "part-" else ".worm.manifest"
    key = f"org/customers/{directory}/{pieces[0].file}"
    held = path.store.get(key)
    assert held is not None
    if damage == "gone":
        path.store.delete(key)
    else:
        path.store.put(key, held.body.replace(b"c00", b"d00"))
    assert [one.kind for one in path.verify().differences] != []
    if victim != "part-":
        assert path.table.manifest.read() is None
    if victim != "partition-":
        assert path.table.ids_with(BY_STATUS, ["active"]) is None
    path.table.rebuild()
    path.assert_true()
    assert_answers(path)


def test_a_merge_that_meets_damage_builds_the_table_anew() -> None:
    path = spread_path(threshold=20)
    fill(path, 60)
    path.put("c001", {"status": "x", "tags": []})
    path.settle()
    path.store.delete(next(key for key in files_of(path) if "/partition-" in key))
    path.table.tidy(force=True)
    table = path.table
    table.manifest.root()
    table.tidy(force=True)
    path.assert_true()


def test_a_reader_whose_files_were_merged_and_deleted_reads_the_new_ones() -> None:
    path = spread_path()
    fill(path, 9)
    reader = path.table
    reader.manifest.root()
    path.put("c001", {"status": "x", "tags": []})
    path.settle()
    path.table.tidy(force=True)
    path.clock.advance(3 * 86_400)
    purge(path)
    stale = reader.manifest.file.held.value
    assert stale is not None
    assert stale.is_spread
    assert reader.manifest.read() == path.table.manifest.read()


def test_only_old_files_that_no_root_names_are_deleted() -> None:
    path = spread_path()
    fill(path, 9)
    path.put("c001", {"status": "x", "tags": []})
    path.settle()
    path.table.tidy(force=True)
    assert purge(path) == 0
    young = set(files_of(path))
    path.clock.advance(timedelta(days=2).total_seconds())
    assert purge(path, dry_run=True) > 0
    assert set(files_of(path)) == young
    assert purge(path) > 0
    rest = set(files_of(path))
    root = root_of(path)
    named = {f"org/customers/.worm.manifest/{piece.file}" for piece in (*root.partitions, *root.deltas)}
    parts = {
        f"org/customers/.worm.index/{field}/{part.file}"
        for field, pieces in root.indexes.items()
        for part in pieces.parts
    }
    parquet = {f"org/customers/.worm.lake/{one}" for one in path.table.manifest.parquet.files(root.partitions)}
    assert len(parquet) == len(root.partitions)
    kept = {key for key in rest if "/.worm.manifest/" in key or "/.worm.lake/" in key or "/part-" in key}
    assert kept == named | parquet | parts | {"org/customers/.worm.manifest/_meta.json"}
    assert rest < young
    assert_answers(path)
    path.assert_true()


def test_deltas_merged_during_a_merge_of_the_base_without_seqs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without seqs a delta that outlives the base it is in must not bring an older row back."""
    monkeypatch.setattr(tree, "DELTAS_MAX", 3)
    monkeypatch.setattr(tree, "BASE_SHARE", 0)
    path = spread_path(oplog=False)
    fill(path, 9)
    path.put("c001", {"status": "first", "tags": []})
    path.settle()
    slow = path.table
    slow.manifest.root()
    for status in ("second", "third"):
        path.put("c001", {"status": status, "tags": []})
        path.settle()  # the third full level is merged into one
    path.put("c001", {"status": "fourth", "tags": []})
    path.settle()
    root = slow.manifest.root()
    assert root is not None
    assert root.is_spread
    slow.tidy(force=True)
    assert path.table.ids_with(BY_STATUS, ["fourth"]) == {"c001"}
    assert_answers(path)
    path.assert_true()


@pytest.mark.parametrize("when", ["before", pytest.param("after", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "action", ["split", *(pytest.param(one, marks=pytest.mark.slow) for one in ("merge", "shrink"))]
)
def test_a_crash_at_any_write_is_healed_by_the_next_fold_or_sweep(
    action: str, when: Literal["before", "after"], oplog: bool
) -> None:
    start = spread_path(oplog=oplog, threshold=6)
    fill(start, 6 if action == "split" else 12)
    if action == "split":
        start.put("c100", {"status": "active", "tags": []})
    else:
        start.put("c001", {"status": "active", "tags": []})
        for one in range(2, 11) if action == "shrink" else ():
            start.remove(f"c{one:03d}")
    start.run_capture()
    for number in some(range(1, 40)):
        path = start.fork()
        faulty = FaultyStore(path.store, seed=1, clock=path.clock)
        faulty.crash_at_write(number, when)
        path.new_workers(faulty)
        bodies = path.change_sets()
        try:
            path.run_fold(bodies)
            table = Table(path.workspace.table("Customer").collection)
            table.manifest.root()
            table.tidy(force=True)
            done = True
        except SimulatedCrash:
            done = False
        path.new_workers(path.store)
        assert_state_is_readable(path)
        path.run_fold(bodies)
        path.sweep()
        assert_answers(path)
        path.assert_true()
        if done:
            assert number > 5
            return
    raise AssertionError("it never ended")


def assert_state_is_readable(path: DataPath) -> None:
    """Whatever happened, what the root names is there."""
    assert path.table.manifest.read() is not None


steps = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 11), st.sampled_from(["a", "b", "c"])),
        st.tuples(st.just("remove"), st.integers(0, 11), st.just("")),
        st.tuples(st.just("settle"), st.booleans(), st.just("")),
        st.tuples(st.just("fold"), st.just(0), st.just("")),
    ),
    max_size=40,
)


@given(steps, st.booleans(), st.integers(1, 6))
@settings(max_examples=examples(60), deadline=None)
def test_any_sequence_of_changes_and_merges_gives_the_documents(
    sequence: list[tuple[str, int, str]], oplog: bool, threshold: int
) -> None:
    path = spread_path(oplog=oplog, threshold=threshold)
    for action, number, status in sequence:
        if action == "put":
            path.put(f"c{number:03d}", {"status": status, "tags": [status]})
        elif action == "remove":
            path.remove(f"c{number:03d}")
        elif action == "fold":
            path.settle()
        else:
            table = path.table
            table.manifest.root()
            table.tidy(force=bool(number))
    path.settle()
    assert_answers(path)
    path.assert_true()


@pytest.mark.parametrize(("victim", "by"), [("/partition-", "table"), ("/part-", "table"), ("/part-", "index")])
def test_a_process_that_wrote_a_file_writes_it_again_where_it_was_lost(victim: str, by: str) -> None:
    """It remembers what it stored, and would take the file for stored."""
    path = spread_path()
    fill(path, 9)
    table = path.table
    table.rebuild()
    for key in files_of(path):
        if victim in key:
            path.store.delete(key)
    if by == "table":
        table.rebuild()
    else:
        table.rebuild_index(table.indexes[0])
    assert_answers(path)
    path.assert_true()


def test_a_worker_writes_the_part_of_an_index_again_that_was_deleted_while_no_root_named_it() -> None:
    """It remembers what it stored, and would name a file that the purge has deleted since."""
    path = spread_path()
    fill(path, 9)
    before: dict[str, JsonValue] = {"status": "active", "tags": ["t1"], "score": 1}
    named: list[set[str]] = []
    for document in ({**before, "status": "other"}, before) * 2:
        path.put("c001", document)
        path.settle()
        path.workspace.table("Customer").tidy(force=True)
        path.clock.advance(timedelta(days=2).total_seconds())
        purge(path)
        named.append(root_of(path).index_files("status"))
        assert_answers(path)
    assert named[:2] == named[2:]
    path.assert_true()


def test_the_sweep_gives_a_spread_table_an_index_that_a_push_adds() -> None:
    path = spread_path()
    fill(path, 9)
    models = cast("dict[str, dict[str, object]]", path.schema["models"])
    indexes = {"byScore": {"field": "score"}, **cast("dict[str, object]", models["Customer"]["indexes"])}
    path.schema = {**path.schema, "models": {"Customer": {**models["Customer"], "indexes": indexes}}}
    path.store.put(SCHEMA_KEY, load_schema(path.schema).to_json())
    assert path.table.ids_with(IndexDef(field="score"), [3]) is None
    path.table.complete()
    assert path.table.ids_with(IndexDef(field="score"), [3]) == {"c003"}
    path.assert_true()
