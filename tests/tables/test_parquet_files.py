"""Parquet files of tables: written with their partitions, read instead of them, never needed, told and mended."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta

import pytest

from tests.examples import crash_points
from tests.harness import DataPath
from tests.query.asking import query_table
from tests.tables.test_spread_tables import assert_answers, files_of, fill, oplog, purge, root_of, spread_path
from tests.tables.test_view import ACTIVE, change, requests, state_of
from worm.errors import Corrupt
from worm.query.execute import Reader
from worm.query.needs import Request
from worm.store.faulty_store import FaultyStore, SimulatedCrash
from worm.tables import tree
from worm.tables.manifest import Manifest
from worm.tables.parquet_part import ParquetFiles, ParquetPart
from worm.tables.root import Piece, Root, decode_directory
from worm.tables.table import Table

__all__ = ["oplog"]

DIRECTORY, LAKE = "org/customers/.worm.manifest/", "org/customers/.worm.lake/"
Damage = Callable[[bytes], bytes | None]


@pytest.fixture(autouse=True)
def merged_on_demand_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "BASE_SHARE", 0)


def filled(count: int = 9, *, oplog: bool = True, **more: int) -> DataPath:
    path = spread_path(oplog=oplog, **more)
    fill(path, count)
    path.table.tidy(force=True)
    return path


def parquet_of(path: DataPath) -> dict[str, bytes]:
    return {key: body for key, body in files_of(path).items() if key.endswith(".parquet")}


def parquet_key(path: DataPath, piece: Piece) -> str:
    return LAKE + path.table.manifest.parquet.file(piece.file)


def base_of(path: DataPath) -> dict[str, bytes]:
    """The partitions that the root names, and their Parquet files."""
    files = files_of(path)
    names = [name for one in root_of(path).partitions for name in (DIRECTORY + one.file, parquet_key(path, one))]
    return {name: files[name] for name in names}


def first_key(path: DataPath) -> str:
    return parquet_key(path, root_of(path).partitions[0])


def damage(path: DataPath, how: Damage) -> bytes:
    """Damage the first Parquet file; what it was."""
    key = first_key(path)
    held = path.store.get(key)
    assert held is not None
    damaged = how(held.body)
    path.store.delete(key)
    if damaged is not None:
        path.store.put(key, damaged)
    return held.body


def lost(body: bytes) -> None:
    return None


def cut_off(body: bytes) -> bytes:
    return body[: len(body) // 2]


def flipped(body: bytes) -> bytes:
    return body[:-3] + bytes([body[-3] ^ 1]) + body[-2:]


damages = pytest.mark.parametrize("how", [lost, cut_off, flipped])


# Writing


def test_partitions_have_parquet_files_and_nothing_else_has(oplog: bool) -> None:
    path = filled(oplog=oplog)
    change(path, "c001", score=50)
    root = root_of(path)
    assert root.deltas
    files = parquet_of(path)
    assert files.keys() == {parquet_key(path, piece) for piece in root.partitions}
    assert [piece.parquet for piece in root.partitions] == [
        len(files[parquet_key(path, piece)]) for piece in root.partitions
    ]
    assert not any(piece.parquet for piece in root.deltas)
    assert not any(part.parquet for one in root.indexes.values() for part in one.parts)


def test_a_rebuild_gives_the_same_bytes(oplog: bool) -> None:
    path = filled(oplog=oplog)
    for entity_id in ("c000", "c007", "c020"):
        change(path, entity_id, score=1)
    path.remove("c003")
    path.settle()
    path.table.tidy(force=True)
    before = base_of(path)
    path.table.rebuild()
    assert base_of(path) == before
    for key in before:
        path.store.delete(key)
    path.table.rebuild()
    assert base_of(path) == before
    path.assert_true()


def test_a_merge_leaves_the_parquet_files_of_partitions_that_stay() -> None:
    path = filled(12)
    first, *others = [parquet_key(path, piece) for piece in root_of(path).partitions]
    change(path, "c000", score=50)
    path.table.tidy(force=True)
    for key in others:
        assert len(list(path.store.versions(key))) == 1
    assert first_key(path) != first
    assert parquet_of(path).keys() >= {first, first_key(path), *others}
    path.assert_true()


def test_a_worker_that_stays_writes_a_parquet_file_that_was_deleted_meanwhile() -> None:
    """The table goes back to a content that it had: its files were collected since."""
    path = filled(oplog=False)
    keeper = path.table
    keeper.rebuild()
    before = base_of(path)
    change(path, "c001", score=50)
    path.table.tidy(force=True)
    path.clock.advance(timedelta(days=2).total_seconds())
    assert purge(path) > 0
    assert not before.keys() <= files_of(path).keys()
    fill(path, 1, first=1)
    keeper.manifest.root()
    keeper.tidy(force=True)
    assert base_of(path) == before
    path.assert_true()


def test_a_crash_between_any_two_writes_leaves_a_table_that_is_read_and_mended(oplog: bool) -> None:
    seen: set[str] = set()
    start = filled(oplog=oplog)
    change(start, "c000", score=50)
    change(start, "c008", score=51)
    for number, when in crash_points(40):
        path = start.fork()
        faulty = FaultyStore(path.store, seed=1, clock=path.clock)
        faulty.crash_at_write(number, when)
        path.new_workers(faulty)
        known = parquet_of(path).keys()
        try:
            path.workspace.refresh()
            path.workspace.table("Customer").tidy(force=True)
            is_done = True
        except SimulatedCrash:
            is_done = False
        path.new_workers(path.store)
        news = parquet_of(path).keys() - known
        named = {parquet_key(path, piece) for piece in root_of(path).partitions}
        assert named <= parquet_of(path).keys(), "what a root names is there"
        seen.add(f"{len(news)} new, {'named' if news and news <= named else 'not named'}")
        assert requests(path, ACTIVE, path.table)[1] == [51, 50, 7, 5, 3, 1]
        path.table.tidy(force=True)
        path.sweep()
        assert_answers(path)
        path.assert_true()
        path.clock.advance(timedelta(days=2).total_seconds())
        purge(path)
        assert len(parquet_of(path)) == len(root_of(path).partitions)
        if is_done:
            break
    assert {"0 new, not named", "1 new, not named", "2 new, not named", "2 new, named"} <= seen


# Reading


def test_a_scan_reads_parquet_files_in_as_many_requests_as_there_are_partitions(oplog: bool) -> None:
    path = filled(12, oplog=oplog)
    change(path, "c001", score=50)
    root = root_of(path)
    wanted = 1 + len(root.partitions) + len(root.deltas)
    table = path.table
    read = path.store.requests.bytes_read
    assert requests(path, ACTIVE, table) == (wanted, [50, 11, 9, 7, 5, 3])
    taken = path.store.requests.bytes_read - read
    held = path.store.get("org/customers/.worm.manifest.json")
    assert held is not None
    assert taken == held.size + sum(piece.parquet for piece in root.partitions) + root.delta_size
    reader = Reader(path.table)
    estimate = reader.explain(Request(ACTIVE)).estimate
    assert (estimate.requests, estimate.bytes) == ({"GET": wanted}, taken)


@damages
def test_a_parquet_file_that_is_lost_or_damaged_changes_no_answer(how: Damage, oplog: bool) -> None:
    path = filled(oplog=oplog)
    change(path, "c000", score=50)
    damage(path, how)
    table = path.table
    root = root_of(path)
    before = state_of(table).requests
    found = requests(path, ACTIVE, table)
    assert found == (1 + before + 1, [50, 7, 5, 3, 1]), "one request more: the partition"
    state = state_of(table)
    assert list(state.damages) == [root.partitions[0].file]
    assert isinstance(state.damages[root.partitions[0].file], Corrupt)
    assert requests(path, ACTIVE, table)[0] == 1
    assert_answers(path)
    other = state_of(path.table)
    assert dict(other.rows) == path.rows()
    assert (other.seqs, other.etags) == (state.seqs, state.etags)
    assert other.seqs == state.seqs


@damages
def test_verify_tells_it_and_a_rebuild_mends_it(how: Damage, oplog: bool) -> None:
    path = filled(oplog=oplog)
    before = damage(path, how)
    (found,) = path.verify().differences
    assert (found.kind, found.key) == ("parquet-damaged", first_key(path))
    path.table.rebuild()
    assert parquet_of(path)[first_key(path)] == before
    path.assert_true()


def put_parquet(files: ParquetFiles, file: str, part: Manifest) -> None:
    _, body = files.drafted(file, part)
    assert body is not None
    files.put(file, body)


def test_a_parquet_file_that_says_something_else_is_told_and_mended() -> None:
    path = filled()
    before = damage(path, lambda body: body)
    piece = root_of(path).partitions[0]
    other = path.table.manifest
    (part,) = other.pieces.get([piece.file])
    put_parquet(other.parquet, piece.file, part.part(part.ids()[1:]))
    assert parquet_of(path)[first_key(path)] != before
    (found,) = path.verify().differences
    assert (found.kind, found.key) == ("parquet-differs", first_key(path))
    path.table.rebuild()
    assert parquet_of(path)[first_key(path)] == before


def test_a_sweep_writes_a_lost_parquet_file_anew(oplog: bool) -> None:
    path = filled(oplog=oplog)
    before = damage(path, lost)
    path.sweep()
    assert parquet_of(path)[first_key(path)] == before
    path.assert_true()


def test_the_parquet_file_of_another_partition_is_not_believed() -> None:
    path = filled()
    one, another = (parquet_key(path, piece) for piece in root_of(path).partitions)
    held = path.store.get(another)
    assert held is not None
    path.store.put(one, held.body)
    table = path.table
    assert requests(path, ACTIVE, table)[1] == [7, 5, 3, 1]
    assert "another partition" in str(next(iter(state_of(table).damages.values())))


def test_a_parquet_file_of_other_rows_is_not_believed() -> None:
    path = filled()
    piece = root_of(path).partitions[0]
    manifest = path.table.manifest
    (part,) = manifest.pieces.get([piece.file])
    put_parquet(manifest.parquet, piece.file, part.part(part.ids()[:-1]))
    table = path.table
    assert requests(path, ACTIVE, table) == (2 + len(root_of(path).partitions), [7, 5, 3, 1])
    assert list(state_of(table).damages) == [piece.file]
    assert dict(state_of(table).rows) == path.rows()


def test_a_query_has_the_columns_decoded_as_their_files_come(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[set[str]] = []

    def prepare(rows: ParquetPart, fields: Iterable[str]) -> None:
        asked.append(set(fields))

    path = filled()
    monkeypatch.setattr(ParquetPart, "prepare", prepare)
    state = path.table.view(["status"])
    assert state is not None
    assert asked == []
    state.read(["status", "score"])
    assert asked == [{"status", "score"}] * len(root_of(path).partitions)
    asked.clear()
    assert requests(path, ACTIVE, path.table)[1] == [7, 5, 3, 1]
    assert asked[: len(root_of(path).partitions)] == [{"status", "score"}] * len(root_of(path).partitions)


def test_a_damaged_partition_behind_a_damaged_parquet_file_sends_the_query_to_the_documents() -> None:
    path = filled()
    damage(path, cut_off)
    path.store.delete(DIRECTORY + root_of(path).partitions[0].file)
    assert requests(path, ACTIVE, path.table)[1] == [7, 5, 3, 1]


def test_what_was_damaged_is_forgotten_with_its_partition() -> None:
    path = filled()
    damage(path, lost)
    table = path.table
    query_table(table, ACTIVE)
    assert state_of(table).damages
    change(path, "c000", score=50)
    path.table.tidy(force=True)
    query_table(table, ACTIVE)
    assert not state_of(table).damages


# Tables from before


def without_parquet(path: DataPath) -> None:
    """The table as it was written before there were Parquet files."""
    for key in parquet_of(path):
        path.store.delete(key)
    root = root_of(path)
    older = tuple(Piece(one.file, one.count, one.size, one.start) for one in root.partitions)
    held = path.store.get("org/customers/.worm.manifest.json")
    assert held is not None
    changed = Root(**{name: getattr(root, name) for name in root.__slots__} | {"partitions": older})
    path.store.put("org/customers/.worm.manifest.json", changed.encode())


def test_a_table_without_parquet_files_is_read_as_ever_and_gets_them_with_a_merge(oplog: bool) -> None:
    path = filled(oplog=oplog)
    without_parquet(path)
    table = path.table
    assert requests(path, ACTIVE, table) == (1 + len(root_of(path).partitions), [7, 5, 3, 1])
    assert not state_of(table).damages
    assert state_of(table).requests == 0
    path.sweep()
    assert not parquet_of(path)
    path.assert_true()
    change(path, "c000", score=50)
    path.table.tidy(force=True)
    assert all(piece.parquet for piece in root_of(path).partitions)
    assert len(parquet_of(path)) == len(root_of(path).partitions)
    path.assert_true()


def test_a_rebuild_gives_them_too() -> None:
    path = filled()
    before = files_of(path)
    without_parquet(path)
    path.table.rebuild()
    assert files_of(path) == before


def test_a_root_with_a_directory_tells_the_bytes_of_a_scan() -> None:
    path = filled(140, threshold=2, partitions=70)
    root = root_of(path)
    assert root.directory is not None
    listed = decode_directory(files_of(path)[DIRECTORY + root.directory.file], "")
    assert len(listed) == 70
    wanted = root.directory.size + sum(piece.parquet for piece in listed) + root.delta_size
    assert root.scan_size == wanted
    assert requests(path, ACTIVE, Table(path.collection))[0] == 1 + 1 + 70
    assert not path.table.manifest.lacks_files(root)
    path.store.delete(parquet_key(path, listed[69]))
    assert path.table.manifest.lacks_files(root)
