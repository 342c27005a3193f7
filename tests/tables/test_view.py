"""The state of a table: requests, what stays while the root changes, damage; with msgspec and without."""

from __future__ import annotations

import pytest

from tests.harness import DataPath, schema_of
from tests.query.asking import query_table
from tests.tables.test_spread_tables import BY_STATUS, assert_answers, fill, oplog, root_of, spread_path
from worm.collections.entries import Row
from worm.formats.strict_json import JsonValue
from worm.query.query import Query
from worm.tables import parts, tree, view
from worm.tables.manifest import Manifest
from worm.tables.table import Table
from worm.tables.view import TableView

__all__ = ["oplog"]

MANIFEST = "org/customers/.worm.manifest.json"
ACTIVE = Query.of(filter={"status": {"$ne": "inactive"}}, sort={"field": "score", "order": "desc"})


@pytest.fixture(params=["msgspec", "hashed beside", "orjson"])
def by_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Are rows kept as bytes?"""
    is_available = bool(request.param != "orjson")
    monkeypatch.setattr(parts, "HASH_BESIDE_BYTES", 0 if request.param == "hashed beside" else 1 << 20)
    monkeypatch.setattr(parts, "is_available", lambda: is_available)
    monkeypatch.setattr(view, "is_available", lambda: is_available)
    return is_available


@pytest.fixture(autouse=True)
def merged_on_demand_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "BASE_SHARE", 0)


def whole_path(count: int = 9, **customer: object) -> DataPath:
    path = DataPath(schema_of(**customer))  # type: ignore[arg-type]
    fill(path, count)
    return path


def state_of(table: Table) -> TableView:
    state = table.view()
    assert state is not None
    return state


def requests(path: DataPath, query: Query, table: Table) -> tuple[int, list[JsonValue]]:
    with path.store.requests.measure() as spent:
        rows = query_table(table, query)
    return spent["total"], [row["score"] for row in rows]


def change(path: DataPath, entity_id: str, **fields: JsonValue) -> None:
    path.put(entity_id, {"status": "active", "tags": [], **fields})
    path.settle()


# Whole tables


def test_a_whole_table_is_one_request_and_is_asked_for_again_by_its_etag(by_bytes: bool) -> None:
    path = whole_path()
    table = path.table
    assert requests(path, ACTIVE, table) == (1, [7, 5, 3, 1])
    held = state_of(table)
    assert held.columns.is_in_memory is not by_bytes
    read = path.store.requests.bytes_read
    assert requests(path, ACTIVE, table) == (1, [7, 5, 3, 1])
    assert path.store.requests.bytes_read == read
    assert state_of(table) is held
    change(path, "c020", score=20)
    assert requests(path, ACTIVE, table) == (1, [20, 7, 5, 3, 1])


def test_a_state_says_the_same_with_and_without_parsing(oplog: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    path = whole_path(oplog=oplog)
    path.remove("c003")
    path.settle()
    opened = state_of(path.table)
    monkeypatch.setattr(parts, "is_available", lambda: False)
    parsed = state_of(path.table)
    assert not opened.columns.is_in_memory
    assert parsed.columns.is_in_memory
    assert_same(opened, parsed)
    assert opened.seqs.get("c003", 0) == (2 if oplog else 0)
    assert [batch.rows for batch in opened.batches()] == [parsed.rows]


def reading_partitions(path: DataPath) -> TableView:
    """A state whose Parquet files are gone; they are there again after it."""
    kept = {one.key: path.store.get(one.key) for one in path.store.list("org/customers/.worm.lake/")}
    columns = {key: found.body for key, found in kept.items() if found is not None}
    for key in columns:
        path.store.delete(key)
    state = state_of(path.table)
    assert len(state.rows) == state.count
    assert len(state.damages) == len(columns) > 0
    for key, body in columns.items():
        path.store.put(key, body)
    return state


def assert_same(one: TableView, other: TableView) -> None:
    assert (one.count, one.count_hint) == (other.count, other.count_hint)
    assert (one.fields, one.last_updated, one.size_bytes) == (other.fields, other.last_updated, other.size_bytes)
    assert (one.rows, one.seqs, one.etags) == (other.rows, other.seqs, other.etags)
    assert (one.is_partitioned, one.partitions, one.deltas) == (other.is_partitioned, other.partitions, other.deltas)


def test_queries_and_look_ups_leave_a_whole_manifest_unparsed() -> None:
    path = whole_path()
    table = path.table
    query_table(table, ACTIVE)
    assert table.ids_with(BY_STATUS, ["active"]) == {"c001", "c003", "c005", "c007"}
    assert table.manifest.file.undecoded is not None
    assert table.manifest.root() is not None
    assert table.manifest.file.undecoded is None


def test_a_table_that_folds_itself_has_its_rows_at_hand(by_bytes: bool) -> None:
    path = whole_path()
    table = path.table
    query_table(table, ACTIVE)
    path.put("c001", {"status": "inactive", "tags": [], "score": 1})
    path.run_capture()
    table.rebuild()
    read = path.store.requests.bytes_read
    assert requests(path, ACTIVE, table) == (1, [7, 5, 3])
    assert path.store.requests.bytes_read == read
    assert state_of(table).columns.is_in_memory


@pytest.mark.parametrize("how", ["changed", "cut", "gone", "other fields", "other source"])
def test_a_manifest_that_is_not_to_be_trusted_is_no_state(by_bytes: bool, how: str) -> None:
    path = whole_path()
    table = path.table
    assert state_of(table).count == 9
    held = path.store.get(MANIFEST)
    assert held is not None
    if how == "gone":
        path.store.delete(MANIFEST)
    elif how == "other fields":
        path.store.put(MANIFEST, Manifest("Customer", {"a": {}}, fields=("x",)).encode())
    elif how == "other source":
        fields = state_of(table).fields
        path.store.put(MANIFEST, Manifest("Customer", {"a": {}}, fields=fields, oplog=False).encode())
    else:
        path.store.put(MANIFEST, held.body[:-1] if how == "cut" else held.body.replace(b'"active"', b'"acTive"'))
    for _ in range(2):
        assert table.view() is None
        assert (table.manifest.damage is not None) is (how in ("changed", "cut"))
    path.store.put(MANIFEST, held.body)
    assert state_of(table).count == 9
    assert table.manifest.damage is None


def test_a_manifest_that_an_editor_laid_out_anew_is_read(by_bytes: bool) -> None:
    path = whole_path()
    held = path.store.get(MANIFEST)
    assert held is not None
    path.store.put(MANIFEST, held.body.replace(b'","', b'", "', 1).replace(b"{", b"{ ", 1))
    assert requests(path, ACTIVE, path.table) == (1, [7, 5, 3, 1])


def test_without_auto_update_a_manifest_that_is_behind_is_no_state(by_bytes: bool, oplog: bool) -> None:
    path = DataPath(schema_of(oplog=oplog, manifest={"enabled": True, "autoUpdate": False}))
    fill(path, 3)
    path.table.rebuild()
    table = path.table
    assert state_of(table).count == 3
    change(path, "c009")
    assert table.view() is None
    path.table.rebuild()
    assert state_of(table).count == 4


def test_after_invalidating_the_next_state_is_made_anew(by_bytes: bool) -> None:
    path = whole_path()
    table = path.table
    assert state_of(table).count == 9
    table.invalidate()
    assert path.store.get(MANIFEST) is None
    assert state_of(table).count == 9


# Spread tables


def test_partitions_are_read_once_and_stay_while_deltas_come(by_bytes: bool, oplog: bool) -> None:
    path = spread_path(oplog=oplog)
    fill(path, 9)
    path.table.tidy(force=True)
    table = path.table
    files = len(root_of(path).partitions)
    assert state_of(table).requests == files
    assert requests(path, ACTIVE, table) == (1 + files, [7, 5, 3, 1])
    assert state_of(table).requests == 0
    assert requests(path, ACTIVE, table)[0] == 1
    change(path, "c000", score=100)
    change(path, "c010", score=10)
    path.remove("c005")
    path.settle()
    deltas = len(root_of(path).deltas)
    assert deltas
    assert state_of(table).requests == deltas
    assert requests(path, ACTIVE, table) == (1 + deltas, [100, 10, 7, 3, 1])
    assert not state_of(table).columns.is_in_memory
    assert list(state_of(table).columns.ids) == sorted(state_of(table).rows)
    assert_answers(path)


def test_a_spread_state_says_the_same_with_and_without_parsing(oplog: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    path = spread_path(oplog=oplog)
    fill(path, 9)
    path.table.tidy(force=True)
    for entity_id in ("c000", "c004", "c004", "c011"):
        change(path, entity_id)
    path.remove("c008")
    path.settle()
    by_columns, by_partitions = state_of(path.table), reading_partitions(path)
    assert_same(by_columns, by_partitions)
    assert not by_columns.damages
    monkeypatch.setattr(view, "is_available", lambda: False)
    parsed = reading_partitions(path)
    assert_same(by_columns, parsed)
    opened = by_columns
    streamed: dict[str, Row] = {}
    for batch in state_of(path.table).batches():
        streamed |= batch.rows
    assert list(streamed) == list(opened.columns.ids)
    assert streamed == opened.rows


def test_a_delta_that_the_base_has_already_does_not_bring_an_older_row_back(by_bytes: bool) -> None:
    """A fold that was delivered again writes a delta with an old seq."""
    path = spread_path()
    fill(path, 9)
    change(path, "c001", score=50)
    path.table.tidy(force=True)
    row: Row = {"status": "active", "score": 1}
    stale = Manifest("Customer", {"c001": row, "c100": row}, {"c001": 1, "c100": 1})
    writer = path.table.manifest
    root = root_of(path)
    writer.file.update(lambda _: root.with_delta(writer.put("delta", stale), "", root.revision))
    assert requests(path, ACTIVE, path.table)[1] == [50, 7, 5, 3, 1]


def test_what_a_table_wrote_itself_it_does_not_read(by_bytes: bool, oplog: bool) -> None:
    path = spread_path(oplog=oplog)
    fill(path, 9)
    for entity_id in ("c000", "c008"):
        change(path, entity_id, score=100)
    table = path.table
    table.rebuild()
    assert len(root_of(path).partitions) == 2
    assert state_of(table).requests == 0
    assert requests(path, ACTIVE, table) == (1, [100, 100, 7, 5, 3, 1])
    change(path, "c001", score=200)
    assert requests(path, ACTIVE, table) == (2, [200, 100, 100, 7, 5, 3])
    rows = query_table(table, ACTIVE)
    rows[0]["tags"].append("mine")  # type: ignore[union-attr]
    assert query_table(table, ACTIVE)[0]["tags"] == []


def test_a_partition_that_is_replaced_is_forgotten() -> None:
    path = spread_path()
    fill(path, 9)
    path.table.tidy(force=True)
    table = path.table
    query_table(table, ACTIVE)
    before = state_of(table)
    change(path, "c000", score=100)
    path.table.tidy(force=True)
    assert requests(path, ACTIVE, table)[1] == [100, 7, 5, 3, 1]
    assert (before.requests, before.rows["c000"]["score"]) == (0, 0)
    assert len(table._part_files._parts) == len(root_of(path).partitions)


@pytest.mark.parametrize("how", ["gone", "changed"])
def test_a_lost_partition_sends_the_query_to_the_documents(by_bytes: bool, how: str) -> None:
    path = spread_path()
    fill(path, 9)
    path.table.tidy(force=True)
    key = f"org/customers/.worm.manifest/{root_of(path).partitions[0].file}"
    held = path.store.get(key)
    assert held is not None
    if how == "gone":
        path.store.delete(key)
    else:
        path.store.put(key, held.body.replace(b'"active"', b'"acTive"'))
    assert requests(path, ACTIVE, path.table) == (1 + len(root_of(path).partitions), [7, 5, 3, 1])
    path.store.delete(f"org/customers/.worm.lake/{path.table.manifest.parquet.file(key.rpartition('/')[2])}")
    assert requests(path, ACTIVE, path.table)[0] > 9, "it read the documents"
    assert requests(path, ACTIVE, path.table)[1] == [7, 5, 3, 1]
