"""Verify finds what is wrong and where; repair keeps the intact prefix and loses nothing."""

from __future__ import annotations

from itertools import count, islice
from pathlib import Path

import pytest

from tests.journal.log_room import DyingDisk, QuickDisk, every_death, log_bytes, opened, state_of, store_at, write_log
from worm.errors import NotFound
from worm.formats.strict_json import dumps
from worm.log.journal import store, tools
from worm.log.journal.file import OPLOG, Locked
from worm.log.journal.records import Begin, Insert
from worm.log.journal.state import minimal


@pytest.fixture
def path(tmp_path: Path) -> Path:
    folder = tmp_path / "app.omgdb"
    with store_at(folder) as store:
        for number in range(5):
            store.insert("c", {"_id": number})
    return folder


def damage(path: Path, line: int) -> tuple[bytes, int]:
    """Break one line; the whole log and where the line begins."""
    lines = log_bytes(path).splitlines(keepends=True)
    lines[line - 1] = lines[line - 1].replace(b"insert", b"inserT")
    (path / OPLOG).write_bytes(b"".join(lines))
    return b"".join(lines), sum(map(len, lines[: line - 1]))


def test_verify_rereads_refolds_and_compares_with_what_is_live(path: Path) -> None:
    with store_at(path) as store:
        report = store.verify()
        assert (report.records, report.size, report.documents) == (5, len(log_bytes(path)), 5)
        assert report.is_clean
        store._state.namespaces["c"].documents[b"3"] = b'{"_id":3,"v":"never written"}'
        (problem,) = store.verify().problems
        assert (problem.kind, problem.detail) == ("state-differs", "c: document 3")
        del store._state.namespaces["c"].documents[b"3"]
        store._state.namespaces["c"].indexes["v"] = {}
        assert [one.detail for one in store.verify().problems] == ["c: document 3", "c: index on v"]


def test_verify_names_file_line_and_offset(path: Path) -> None:
    _, offset = damage(path, 3)
    report = store.verify(path)
    (problem,) = report.problems
    assert (problem.kind, problem.key, problem.line, problem.offset) == ("log-damaged", str(path / OPLOG), 3, offset)
    assert f"line 3 (byte {offset}) has CRC" in problem.detail
    assert (report.records, report.documents) == (2, 2)


def test_verify_needs_no_lock_and_changes_nothing(path: Path) -> None:
    (path / OPLOG).write_bytes(log_bytes(path) + b"torn")
    (path / "LOCK").unlink()
    before = log_bytes(path)
    report = store.verify(path)
    assert (report.torn, report.is_clean, log_bytes(path)) == (4, True, before)
    assert [one.name for one in path.iterdir()] == [OPLOG]
    with pytest.raises(NotFound):
        store.verify(path / "nowhere")


def test_verify_proves_that_the_minimal_log_says_the_same(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "minimal", lambda state: list(minimal(state))[1:])
    (problem,) = store.verify(path).problems
    assert (problem.kind, problem.detail) == ("rebuild-differs", "c: document 0")
    monkeypatch.setattr(store, "minimal", lambda state: [*minimal(state), Insert("c", 0, {"_id": 0})])
    (problem,) = store.verify(path).problems
    assert (problem.kind, problem.detail) == ("rebuild-differs", "'c' already has a document with _id 0")


@pytest.mark.parametrize("line", [1, 3, 5])
def test_repair_keeps_the_intact_prefix_and_puts_the_rest_aside(path: Path, line: int) -> None:
    whole, offset = damage(path, line)
    plan = tools.repair(path, dry_run=True)
    assert (plan.kept, plan.moved, plan.side, log_bytes(path)) == (line - 1, len(whole) - offset, None, whole)
    done = tools.repair(path, dry_run=False)
    side = path / f"{OPLOG}.damaged-1"
    assert (done.kept, done.moved, done.reason, done.side) == (plan.kept, plan.moved, plan.reason, str(side))
    assert log_bytes(path) + side.read_bytes() == whole
    with store_at(path) as store:
        assert [one["_id"] for one in store.scan("c")] == list(range(line - 1))
        store.insert("c", {"_id": "new"})


def test_a_second_repair_has_a_side_file_of_its_own(path: Path) -> None:
    for number in (1, 2):
        damage(path, 4 - number)
        assert tools.repair(path, dry_run=False).side == str(path / f"{OPLOG}.damaged-{number}")
    assert tools.repair(path, dry_run=False).reason is None
    assert len(list(path.glob("*damaged*"))) == 2


def test_records_that_do_not_fit_are_put_aside_as_well(tmp_path: Path) -> None:
    folder = write_log(
        tmp_path / "s", Insert("c", 1, {"_id": 1}), (Begin(), 0), Insert("c", 1, {"_id": 1}), Insert("c", 2, {"_id": 2})
    )
    assert tools.repair(folder, dry_run=False).kept == 2
    assert state_of(folder).documents == 1


def test_a_torn_tail_is_put_aside_on_request(path: Path) -> None:
    (path / OPLOG).write_bytes(log_bytes(path) + b"torn")
    report = tools.repair(path, dry_run=False)
    assert (report.kept, report.moved, report.reason) == (5, 4, "the last record is torn")
    assert (path / f"{OPLOG}.damaged-1").read_bytes() == b"torn"


def test_repair_refuses_an_open_store_and_no_store(path: Path) -> None:
    with store_at(path), pytest.raises(Locked):
        tools.repair(path, dry_run=False)
    with pytest.raises(NotFound):
        tools.repair(path / "nowhere", dry_run=True)


def test_a_death_at_any_step_of_a_repair_loses_nothing(path: Path) -> None:
    whole, offset = damage(path, 3)
    deaths = 0
    for _ in every_death(lambda disk: tools.repair(path, dry_run=False, disk=disk)):
        deaths += 1
        sides = [one.read_bytes() for one in path.glob("*damaged*")]
        assert log_bytes(path) == whole or (log_bytes(path) == whole[:offset] and whole[offset:] in sides)
        tools.repair(path, dry_run=False, disk=QuickDisk())
        assert log_bytes(path) == whole[:offset]
        assert whole[offset:] in [one.read_bytes() for one in path.glob("*damaged*")]
        (path / OPLOG).write_bytes(whole)
    assert deaths > 5


def test_a_death_at_any_step_of_opening_and_writing_keeps_what_was_acknowledged(tmp_path: Path) -> None:
    path, numbers = tmp_path / "s", count()
    acked: list[int] = []

    def work(disk: DyingDisk) -> None:
        store = None
        try:
            store = opened(path, disk)
            for number in islice(numbers, 3):
                store.insert("c", {"_id": number})
                acked.append(number)
            with store.transaction() as tx:
                tx.insert("t", {"_id": next(numbers)})
                tx.insert("t", {"_id": next(numbers)})
        finally:
            if store is not None:
                store._log.close()

    for _ in every_death(work):
        state = state_of(path)
        there = set(state.namespaces["c"].documents) if "c" in state.namespaces else set()
        assert {dumps(one) for one in acked} <= there
        assert len(state.scan("t")) % 2 == 0
    assert len(acked) > 30
