"""The sweep goes through a collection range by range: in bounded memory, with a deadline, and from where it stopped."""

from __future__ import annotations

import gc
import json
import threading
import tracemalloc
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.harness import DataPath, schema_of
from tests.tables.test_spread_tables import spread_path
from worm.clock import iso_seconds
from worm.collections.collection import Collection
from worm.collections.entries import Change, Head, Heads
from worm.collections.id_ranges import IdRange
from worm.collections.reconcile import Survey
from worm.errors import Corrupt, Denied, Invalid, Unavailable, WormError
from worm.formats.fields import encode_id, id_problem
from worm.store.base import Object, ObjectInfo, Read, Version, acceptable
from worm.tables.ranges import TableRanges
from worm.tables.root import Counted, Piece, Root
from worm.tables.table import Table
from worm.upkeep.sweep_cursor import SweepCursor, cursor_key
from worm.upkeep.sweep_listing import RangeListing
from worm.upkeep.sweep_pass import Compared, DocumentPass, HistoryPass, How, Scheduled, SweepReport
from worm.upkeep.workers.lambdas import SAFETY_SECONDS

DAY = 86_400.0
OPLOG = pytest.mark.parametrize("oplog", [True, False])


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Ten documents are a page, fifty a range; a part of the heads has ten; tables are partitioned."""
    bounds(monkeypatch, page=10, documents=50, heads=10, table_bytes=4_000)
    return monkeypatch


def bounds(patch: pytest.MonkeyPatch, *, page: int, documents: int, heads: int, table_bytes: int) -> None:
    patch.setattr("worm.upkeep.sweep_listing.PAGE", page)
    patch.setattr("worm.upkeep.sweep_listing.RANGE_DOCUMENTS", documents)
    patch.setattr("worm.tables.layout.HEADS_PER_PART", heads)
    patch.setattr("worm.tables.ranges.RANGE_BYTES", table_bytes)


def partitioned(*, oplog: bool = True) -> DataPath:
    return DataPath(schema_of(manifest={"enabled": True, "partitionThreshold": 20}, oplog=oplog))


def filled(count: int, path: DataPath | None = None, *, first: int = 0) -> DataPath:
    """Documents whose events all workers have heard of."""
    path = path or partitioned()
    for number in range(first, first + count):
        path.put(f"c{number:05}", {"name": f"n{number}", "status": "new"})
    path.settle()
    path.table.complete()
    return path


def runs(path: DataPath, *seconds: float, most: int = 2_000) -> Iterator[SweepReport]:
    """Runs of the sweep, each with so little time (default: none), until a pass is finished."""
    for _ in range(most):
        path.new_workers(path.store)
        left = iter(seconds)
        report = path.sweeper.run(lambda left=left: next(left, 0.0))[0]  # type: ignore[misc]  # a default of a lambda
        assert report.error is None, report.error
        yield report
        if report.finished:
            return
    raise AssertionError("the passes do not come to their end")


# Time


@OPLOG
@pytest.mark.usefixtures("small")
def test_a_sweep_that_finds_nothing_still_looks_at_its_time_after_each_page(oplog: bool) -> None:
    path = filled(95, partitioned(oplog=oplog))
    reports = list(runs(path))
    assert [one.listed for one in reports[:3]] == [9, 9, 9], "the tenth shows that the ninth has no other version"
    assert sum(one.listed for one in reports) == reports[-1].passed == 95
    assert [one.reconciled for one in reports] == [0] * len(reports)


@pytest.mark.usefixtures("small")
def test_a_page_of_documents_with_many_versions_takes_no_more_time() -> None:
    """A thousand documents may have millions of versions: a sweep that only counted documents was killed before its
    first look at the time, and began again there for ever."""
    path = filled(12)
    for turn in range(12):
        for number in range(12):
            path.put(f"c{number:05}", {"name": f"turn {turn}"})
    path.settle()
    assert [one.listed for one in runs(path)] == [2] * 6


@OPLOG
@pytest.mark.usefixtures("small")
def test_objects_that_are_no_documents_do_not_keep_a_sweep_from_its_deadline(oplog: bool) -> None:
    """Millions of them may lie in the folder of a collection. The time was looked at after a document only."""
    path = filled(3, partitioned(oplog=oplog))
    for number in range(300):
        path.store.put(f"org/customers/b{number:05}/photo.jpg", b"x")
    path.put("d00000", {"name": "unheard"})
    path.events.clear()
    reports = list(runs(path))
    assert [one.continues_at for one in reports[:2]] == ["b00019", "b00038"]
    assert 300 / 19 <= len(reports) <= 300 / 19 + 3
    assert (reports[-1].passed, sum(one.reconciled for one in reports)) == (4, 1)
    path.assert_true()


@pytest.mark.parametrize("layout", ["root", "inline"])
@pytest.mark.usefixtures("small")
def test_the_versions_of_one_document_do_not_keep_a_sweep_from_its_deadline(
    small: pytest.MonkeyPatch, layout: str
) -> None:
    """Of a document that changes every second, there are as many versions after two months as can be listed in 15
    minutes: no run got further. With histories beside the documents, its entries are listed, too."""
    small.setattr("worm.upkeep.sweep_listing.JUMP_PAGES", 2)
    path = DataPath(schema_of(storage={"layout": layout}, manifest={"enabled": True, "partitionThreshold": 20}))
    for number in range(300):
        path.put("c00001", {"name": str(number)})
    path.settle()
    for name in ("c00000", "c00001", "c00001-b", "c00002"):
        path.put(name, {"name": "unheard"})
    path.events.clear()
    most, listed = 0, 0

    def no_time() -> float:
        nonlocal most, listed
        now = path.store.requests.snapshot().get("LISTED", 0)
        most, listed = max(most, now - listed), now
        return 0.0

    list_versions = path.store.list_versions

    def counted(prefix: str, *, start_after: str | None = None) -> Iterator[Version]:
        for version in list_versions(prefix, start_after=start_after):
            path.store.requests.add("LISTED")
            yield version

    small.setattr(path.store, "list_versions", counted)
    for _ in range(20):
        path.new_workers(path.store)
        if path.sweeper.run(no_time)[0].finished:
            break
    assert most <= 50, "of 300, and as many entries"
    assert path.ops("c00001") == ["create", *["update"] * 300]
    assert len(path.rows()) == 4
    path.assert_true()


@OPLOG
@pytest.mark.usefixtures("small")
def test_a_chunk_is_not_begun_if_one_takes_longer_than_the_time_left(small: pytest.MonkeyPatch, oplog: bool) -> None:
    """Documents may be large, or have many unrecorded versions: a chunk of them takes minutes, and a function has 20
    seconds to finish."""
    for name in ("CHUNK", "DOCUMENTS_CHUNK"):
        small.setattr(f"worm.upkeep.sweep_pass.{name}", 4)
    path, kind = partitioned(oplog=oplog), HistoryPass if oplog else DocumentPass
    for number in range(40):
        path.put(f"c{number:05}", {"name": "new"})
    path.events.clear()
    work = kind.work

    def slow(this: Any, suspects: Mapping[str, Survey]) -> None:
        work(this, suspects)
        path.clock.sleep(30.0)

    def left_after_a_run() -> float:
        path.new_workers(path.store)
        end = path.clock.monotonic() + 100.0
        path.sweeper.run(lambda: end - path.clock.monotonic())
        return end - path.clock.monotonic()

    small.setattr(kind, "work", slow)
    assert [left_after_a_run() for _ in range(4)] == [10.0, 10.0, 10.0, 70.0]
    path.assert_true()


def test_a_chunk_of_documents_without_history_takes_no_more_requests_than_fit_into_the_time_for_finishing() -> None:
    path = DataPath(schema_of(manifest={"enabled": True}, oplog=False, snapshots={"enabled": True}))
    for number in range(4_500):
        path.store.put(path.key(f"c{number:05}"), b"{}")
    path.new_workers(path.store)
    looks = [path.store.requests.total]

    def left() -> float:
        looks.append(path.store.requests.total)
        return 1.0

    assert path.sweeper.run(left)[0].finished
    assert max(after - before for before, after in pairwise(looks)) < 600 * SAFETY_SECONDS


@pytest.mark.usefixtures("small")
def test_an_unfinished_sweep_says_where_it_stopped_and_how_much_is_done() -> None:
    path = filled(95)
    first, second, *_ = runs(path)
    assert first.summary() | {"documents": 95} == {
        **dict.fromkeys(("reconciled", "recorded", "materialized", "problems", "damaged"), 0),
        "model": "Customer",
        "listed": 9,
        "finished": False,
        "continuesAt": "c00009",
        "passed": 9,
        "documents": 95,
    }
    assert 0 < first.documents <= 95
    assert (second.continues_at, second.passed) == ("c00018", 18)


@OPLOG
@pytest.mark.usefixtures("small")
def test_changes_that_no_event_reported_are_found_whatever_time_each_run_has(oplog: bool) -> None:
    path = filled(60, partitioned(oplog=oplog))
    for number in (3, 29, 58):
        path.put(f"c{number:05}", {"name": "changed"})
    for number in (7, 44):
        path.remove(f"c{number:05}")
    for number in range(200, 275):
        path.put(f"c{number:05}", {"name": "new"})
    path.events.clear()
    reports = list(runs(path))
    assert sum(one.reconciled for one in reports) == 80
    assert len(path.rows()) == 60 - 2 + 75
    path.assert_true()


def test_documents_without_history_are_looked_at_in_parallel_after_their_fold() -> None:
    """One after the other, 5,000 HEADs take two minutes, and a fold cannot be stopped halfway."""
    path = partitioned(oplog=False)
    for number in range(9):
        path.put(f"c{number:05}", {"name": "new"})
    path.new_workers(path.store)
    asked, head = set[str](), path.store.head

    def noted(key: str, *, version_id: str | None = None) -> ObjectInfo | None:
        asked.add(threading.current_thread().name)
        return head(key, version_id=version_id)

    path.store.head = noted  # type: ignore[method-assign]  # of this store
    path.settle()
    for number in range(9):
        path.put(f"c{number:05}", {"name": "changed"})
    path.events.clear()
    path.sweep()
    assert "MainThread" not in asked
    path.assert_true()


@pytest.mark.usefixtures("small")
def test_many_suspects_of_one_range_stop_between_two_chunks(small: pytest.MonkeyPatch) -> None:
    """Also those that only the heads know: somebody deleted all documents, with their versions."""
    small.setattr("worm.upkeep.sweep_pass.CHUNK", 4)
    path = filled(30)
    for number in range(30):
        for version in list(path.store.versions(path.key(f"c{number:05}"))):
            path.store.forget_version(version.key, version.version_id or "")
    path.events.clear()
    reports = list(runs(path))
    assert max(one.reconciled for one in reports) == 4
    assert path.rows() == {}
    path.assert_true()


# Errors


@pytest.mark.usefixtures("small")
def test_a_sweep_that_fails_after_some_progress_stores_its_position(small: pytest.MonkeyPatch) -> None:
    path = filled(200)
    path.put("c00003", {"name": "changed"})
    path.events.clear()
    run, ranges = RangeListing.run, list[IdRange]()

    def fail_late(listing: RangeListing, within: IdRange) -> IdRange:
        ranges.append(within)
        if len(ranges) == 3:
            raise Unavailable("the network is gone")
        return run(listing, within)

    with small.context() as patched:
        patched.setattr(RangeListing, "run", fail_late)
        report = path.sweeper.run(lambda: 100.0)[0]
    assert isinstance(report.error, Unavailable)
    assert not report.finished
    assert path.ops("c00003") == ["create", "update"]
    assert path.rows()["c00003"]["name"] == "changed", "what it recorded is folded before the position is stored"
    assert SweepCursor.read(path.collection).start == report.continues_at > "c00003"
    path.new_workers(path.store)
    assert path.sweep().finished
    path.assert_true()


@pytest.mark.usefixtures("small")
def test_a_sweep_whose_fold_fails_does_not_store_a_position_after_it(small: pytest.MonkeyPatch) -> None:
    path = filled(60)
    path.put("c00003", {"name": "changed"})
    path.events.clear()

    def refuse(*_: object, **__: object) -> None:
        raise Unavailable("no fold today")

    with small.context() as patched:
        patched.setattr("worm.tables.table.Table.fold", refuse)
        report = path.sweeper.run(lambda: 100.0)[0]
    assert isinstance(report.error, WormError)
    assert SweepCursor.read(path.collection).start == ""
    path.new_workers(path.store)
    path.sweep()
    path.assert_true()


@OPLOG
@pytest.mark.usefixtures("small")
def test_a_pass_that_fails_at_its_beginning_is_due_again_at_the_next_run(
    small: pytest.MonkeyPatch, oplog: bool
) -> None:
    """Otherwise a network that is gone once a day would keep lost events from being found."""
    path = filled(60, partitioned(oplog=oplog))
    assert scheduled(path).finished
    path.clock.advance(DAY + 1)

    def fail(*_: object) -> None:
        raise Unavailable("the network is gone")

    with small.context() as patched:
        patched.setattr(RangeListing, "run", fail)
        assert isinstance(scheduled(path).error, Unavailable)
    path.clock.advance(900)
    assert scheduled(path).listed == 60


@pytest.mark.parametrize(("limit", "folds"), [({}, [40]), ({"CHANGES": 7}, [8] * 5), ({"BYTES": 1}, [4] * 10)])
def test_changes_wait_for_a_fold_until_they_are_as_many_as_the_rows_or_too_many_to_be_held(
    small: pytest.MonkeyPatch, limit: Mapping[str, int], folds: Sequence[int]
) -> None:
    bounds(small, page=10, documents=1_000, heads=10, table_bytes=1 << 20)
    small.setattr("worm.upkeep.sweep_pass.CHUNK", 4)
    for name, most in limit.items():
        small.setattr(f"worm.upkeep.sweep_pass.FOLD_{name}_MAX", most)
    path, folded, fold = filled(60), list[int](), Table.fold

    def noted(table: Table, changes: Sequence[Change], **more: bool) -> None:
        folded.append(len(changes))
        fold(table, changes, **more)

    for number in range(100, 140):
        path.put(f"c{number:05}", {"name": "new"})
    path.events.clear()
    small.setattr(Table, "fold", noted)
    path.sweep()
    assert folded == folds
    path.assert_true()


def test_a_change_without_history_is_found_if_the_table_has_changed_since(small: pytest.MonkeyPatch) -> None:
    path = filled(30, partitioned(oplog=False))
    path.put("c00003", {"name": "unheard"})
    path.events.clear()
    path.put("c00004", {"name": "heard"})
    path.settle()
    assert path.sweep().reconciled == 1
    assert path.rows()["c00003"]["name"] == "unheard"
    path.put("c00003", {"name": "unheard"})
    path.events.clear()
    assert path.sweep().reconciled == 1, "the same content again is newer than the table"
    path.assert_true()


@pytest.mark.usefixtures("small")
def test_a_sweep_that_fails_inside_a_range_continues_after_the_chunks_that_are_done(small: pytest.MonkeyPatch) -> None:
    small.setattr("worm.upkeep.sweep_pass.CHUNK", 4)
    path, work, chunks = partitioned(), HistoryPass.work, list[Mapping[str, Survey]]()
    for number in range(20):
        path.put(f"c{number:05}", {"name": "new"})
    path.events.clear()

    def fail_late(this: HistoryPass, suspects: Mapping[str, Survey]) -> None:
        chunks.append(suspects)
        if len(chunks) == 3:
            raise Unavailable("the network is gone")
        work(this, suspects)

    with small.context() as patched:
        patched.setattr(HistoryPass, "work", fail_late)
        report = path.sweeper.run(lambda: 100.0)[0]
    assert isinstance(report.error, Unavailable)
    assert SweepCursor.read(path.collection).start == report.continues_at == "c00008"
    assert len(path.rows()) == 8
    path.new_workers(path.store)
    assert path.sweep().listed == 12
    path.assert_true()


@OPLOG
@pytest.mark.parametrize("snapshots", [True, False])
@pytest.mark.usefixtures("small")
def test_a_document_that_may_not_be_read_does_not_keep_the_sweep_from_those_after_it(
    small: pytest.MonkeyPatch, oplog: bool, snapshots: bool
) -> None:
    """S3 refuses to read an object that a lifecycle rule has archived."""
    manifest = {"enabled": True, "partitionThreshold": 20}
    path = filled(30, DataPath(schema_of(manifest=manifest, oplog=oplog, snapshots={"enabled": snapshots})))
    for number in range(30):
        path.put(f"c{number:05}", {"name": "changed"})
    path.events.clear()
    get = path.store.get

    def refuse(key: str, *, version_id: str | None = None, max_bytes: int | None = None) -> Object | None:
        if key == path.key("c00007"):
            raise Denied("the object is archived", key=key)
        return get(key, version_id=version_id, max_bytes=max_bytes)

    def refuse_some(reads: Sequence[Read], *, max_bytes: int | None = None) -> list[Object | Exception | None]:
        found = list[Object | Exception | None]()
        for one in reads:
            try:
                found.append(refuse(one.key, version_id=one.version_id, max_bytes=max_bytes))
            except Denied as error:
                found.append(error)
        return found

    small.setattr(path.store, "get", refuse)
    small.setattr(path.store, "get_many", refuse_some)
    path.new_workers(path.store)
    report = path.sweep()
    assert (report.finished, report.error, list(report.problems)) == (True, None, ["c00007"])
    assert isinstance(report.failure, Denied)
    assert [one for one, row in path.rows().items() if row["name"] != "changed"] == ["c00007"]


@pytest.mark.usefixtures("small")
def test_a_document_without_history_that_is_too_large_does_not_keep_the_sweep_from_those_after_it() -> None:
    """Its read counts as absent and its HEAD does not, so it seemed to change during each fold: the sweep failed at the
    same place for ever, and so did every change set that named the document."""
    path = partitioned(oplog=False)
    path.max_document_bytes = 1_000
    path.new_workers(path.store)
    for number in range(30):
        path.put(f"c{number:05}", {"name": "x" * 2_000 if number == 7 else "new"})
    path.settle()
    path.put("c00008", {"name": "unheard"})
    path.put("c00003", {"name": "x" * 2_000})
    path.events.clear()
    report = path.sweep()
    assert (report.finished, report.error) == (True, None)
    assert path.rows().keys() == {f"c{number:05}" for number in range(30) if number not in (3, 7)}
    assert path.rows()["c00008"]["name"] == "unheard"
    path.assert_true()


@pytest.mark.usefixtures("small")
def test_a_document_that_the_store_refuses_to_send_does_not_keep_the_sweep_from_those_after_it(
    small: pytest.MonkeyPatch,
) -> None:
    """S3 answers GET and HEAD of an object that was encrypted with the client's own key with 400."""
    path, refused = filled(30, partitioned(oplog=False)), "c00007"
    for number in range(30):
        path.put(f"c{number:05}", {"name": "changed"})
    path.events.clear()
    get, head, get_many = path.store.get, path.store.head, path.store.get_many

    def check(key: str) -> None:
        if key == path.key(refused):
            raise Invalid("the store rejected the request: 400 InvalidRequest", key=key)

    def get_one(key: str, *, version_id: str | None = None, max_bytes: int | None = None) -> Object | None:
        check(key)
        return get(key, version_id=version_id, max_bytes=max_bytes)

    def head_one(key: str, *, version_id: str | None = None) -> ObjectInfo | None:
        check(key)
        return head(key, version_id=version_id)

    def get_some(reads: Sequence[Read], *, max_bytes: int | None = None) -> list[Object | Exception | None]:
        found = get_many(reads, max_bytes=max_bytes)
        return [
            Invalid("400") if read.key == path.key(refused) else one for read, one in zip(reads, found, strict=True)
        ]

    small.setattr(path.store, "get", get_one)
    small.setattr(path.store, "head", head_one)
    small.setattr(path.store, "get_many", get_some)
    path.new_workers(path.store)
    report = path.sweep()
    assert (report.finished, report.error) == (True, None)
    assert path.rows().keys() == {f"c{number:05}" for number in range(30)} - {refused}
    assert {row["name"] for row in path.rows().values()} == {"changed"}


@pytest.mark.usefixtures("small")
def test_another_object_in_the_place_of_a_snapshot_does_not_keep_the_sweep_from_the_other_documents() -> None:
    path = DataPath(schema_of(manifest={"enabled": True}, oplog=False, snapshots={"enabled": True}))
    for number in range(30):
        path.put(f"c{number:05}", {"name": "new"})
    path.events.clear()
    (version,) = path.store.versions(path.key("c00007"))
    path.store.put(f".snapshots/customers/c00007/{iso_seconds(version.last_modified)}.json", b"no JSON")
    path.new_workers(path.store)
    report = path.sweep()
    assert (report.finished, report.error, list(report.problems)) == (True, None, ["c00007"])
    assert isinstance(report.failure, Corrupt)
    assert len(path.rows()) == 30
    assert len(list(path.store.list(".snapshots/"))) == 30


class Unsettled(HistoryPass):
    """As in a task that has an inventory, which may be older than any head."""

    def is_settled(self, head: Head) -> bool:
        return False


def test_another_version_of_the_same_second_may_be_newer_than_a_head_that_no_listing_proves_wrong() -> None:
    path = filled(3)
    path.put("c00001", {"name": "heard"})
    path.settle()
    path.store.put(path.key("c00001"), b'{"name": "unheard, in the same second"}')
    report = SweepReport("Customer")
    path.new_workers(path.store)
    path.workspace.refresh()
    how = How(lambda: 1.0, resume=False, folds=True, progress=lambda listed: None)
    Unsettled(path.workspace, path.workspace.table("Customer"), how, report).run(SweepCursor())
    assert (report.reconciled, report.recorded) == (1, 1)
    path.assert_true()


class Killed(BaseException):
    """The process is gone."""


@pytest.mark.usefixtures("small")
def test_a_sweep_that_is_killed_loses_one_range(small: pytest.MonkeyPatch) -> None:
    path, ranges, at = filled(300), list[str](), TableRanges.at

    def die_at_the_fourth(reader: TableRanges[Heads], start: str) -> tuple[IdRange, Heads | None]:
        ranges.append(start)
        if len(ranges) == 4:
            raise Killed
        return at(reader, start)

    with small.context() as patched:
        patched.setattr(TableRanges, "at", die_at_the_fourth)
        with pytest.raises(Killed):
            path.sweep()
    assert SweepCursor.read(path.collection).start == ranges[-1]
    path.new_workers(path.store)
    assert path.sweep().listed < 300


def test_a_build_that_is_killed_before_its_indexes_leaves_none_that_looks_newer(small: pytest.MonkeyPatch) -> None:
    """A new manifest without history counts its revisions from the start. An index of the lost one was taken for a
    newer one, and queries got its ids, until as many folds as before had come."""
    path = DataPath(schema_of(oplog=False))
    for status in ("new", "open", "old"):
        path.put("c00001", {"status": status})
        path.settle()
    path.put("c00001", {"status": "gone"})
    path.events.clear()
    path.store.delete(path.table.manifest.key)

    def die(table: Table) -> None:
        raise Killed

    with small.context() as patched:
        patched.setattr(Table, "follow", die)
        path.new_workers(path.store)
        with pytest.raises(Killed):
            path.sweep()
    path.new_workers(path.store)
    assert path.sweep().finished
    table = path.table
    assert table.view() is not None
    (index,) = [files.definition for files in table.indexes]
    assert (table.ids_with(index, ["old"]), table.ids_with(index, ["gone"])) == (set(), {"c00001"})
    path.assert_true()


# Memory and requests


def most_held(path: DataPath, patch: pytest.MonkeyPatch) -> tuple[int, int, int]:
    """The most heads, listed ids and suspects of one range."""
    heads, listed, suspects = [0], [0], [0]
    at, compared = TableRanges.at, HistoryPass.compared

    def noted_at(reader: TableRanges[Heads], start: str) -> tuple[IdRange, Heads | None]:
        within, known = at(reader, start)
        heads.append(0 if known is None else known.known)
        return within, known

    def noted(this: HistoryPass, within: IdRange, known: Heads | None) -> Compared:
        found = compared(this, within, known)
        listed.append(len(found.listed))
        suspects.append(len(found.suspects))
        return found

    with patch.context() as patched:
        patched.setattr(TableRanges, "at", noted_at)
        patched.setattr(HistoryPass, "compared", noted)
        path.new_workers(path.store)
        assert path.sweep().finished
    return max(heads), max(listed), max(suspects)


def test_what_a_sweep_holds_does_not_depend_on_the_size_of_the_collection(small: pytest.MonkeyPatch) -> None:
    path = filled(150)
    few = most_held(path, small)
    path = filled(450, path, first=150)
    many = most_held(path, small)
    assert few[0] <= many[0] <= 60
    assert few[1] <= many[1] <= 50
    for number in range(1_000, 1_300):
        path.put(f"c{number:05}", {"name": "new"})
    path.events.clear()
    assert most_held(path, small)[2] <= 60, "nor on the number of new documents"
    path.assert_true()


def test_a_sweep_does_not_hold_the_documents_of_damaged_histories() -> None:
    """A traceback keeps alive everything that was read before the error."""
    path = DataPath()
    for number in range(40):
        for text in ("x", "y"):
            path.put(f"c{number:05}", {"name": text * 100_000})
    path.settle()
    for listed in list(path.store.list(".oplog/")):
        path.store.delete(listed.key)
        path.store.put(f"{listed.key.rpartition('/')[0]}/0007.json", b"no JSON")
    path.store.delete(path.table.heads.key)
    path.new_workers(path.store)
    tracemalloc.start()
    try:
        report = path.sweep()
        gc.collect()
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(report.damaged) == 40
    assert held < 2_000_000, "of four million bytes"


def test_a_whole_pass_reads_each_part_of_the_heads_once_and_lists_each_page_once(small: pytest.MonkeyPatch) -> None:
    path = filled(600)
    root = path.table.heads.root()
    assert root is not None
    small.setattr("worm.upkeep.sweep_listing.RANGE_DOCUMENTS", 1_000)
    path.new_workers(path.store)
    starts, at = list[str](), TableRanges.at

    def noted(reader: TableRanges[Heads], start: str) -> tuple[IdRange, Heads | None]:
        starts.append(start)
        return at(reader, start)

    small.setattr(TableRanges, "at", noted)
    with path.store.requests.measure() as spent:
        assert path.sweep().reconciled == 0
    ranges = len(starts)
    assert ranges >= 10
    assert spent["GET"] <= root.partition_count + len(root.deltas) + ranges + 10, "a range takes a look at the root"
    assert spent["VERSIONS"] <= 2 * ranges + 3, "here every range is less than a page, and has a block of escaped ids"
    assert spent["PUT"] <= ranges + 1


@pytest.mark.usefixtures("small")
def test_ranges_without_documents_do_not_make_a_sweep_list_their_histories() -> None:
    """With ids that begin with a time, the first ranges are those of the oldest documents, which are all deleted. Their
    oplogs were listed as if the store kept no versions, by every run, up to the first document."""
    path = filled(100)
    for number in range(60):
        path.remove(f"c{number:05}")
    path.settle()
    for number in range(60):
        for version in list(path.store.versions(path.key(f"c{number:05}"))):
            path.store.forget_version(version.key, version.version_id or "")
    path.events.clear()
    with path.store.requests.measure() as spent:
        report = path.sweep()
    assert (report.reconciled, report.finished) == (0, True)
    assert spent["LIST"] == 4, "at the end, files of heads, manifest, Parquet and index are looked for"
    path.assert_true()


@pytest.mark.usefixtures("small")
def test_ids_with_an_escape_do_not_make_a_sweep_list_the_other_ids_again_and_again() -> None:
    """Each of them was once a range of its own, before which up to 100,000 other documents were listed."""
    path = partitioned()
    for number in range(200):
        path.store.put(path.collection.documents.key(f"c{number:05}"), b"{}")
    for number in range(0, 200, 5):
        path.store.put(path.collection.documents.key(f"c{number:05}/escaped"), b"{}")
    with path.store.requests.measure() as spent:
        assert path.sweep().recorded == 240
    assert spent["VERSIONS"] < 25, "a few for each of five ranges"
    path.assert_true()


def test_deltas_that_are_too_large_to_be_held_are_read_for_a_window_of_ids(small: pytest.MonkeyPatch) -> None:
    path = filled(120)
    small.setattr("worm.tables.tree.BASE_SHARE", 0)  # no merge
    for turn in range(5):
        for number in range(turn, 120, 3):
            path.put(f"c{number:05}", {"name": f"turn {turn}"})
        path.settle()
    root = path.table.heads.root()
    assert root is not None
    assert len(root.deltas) >= 4
    small.setattr("worm.tables.ranges.DELTAS_BYTES", 0)
    small.setattr("worm.tables.ranges.WINDOW_IDS", 25)
    whole = path.table.heads.read()
    assert whole is not None
    reader, start, found = TableRanges(path.table.heads), "", dict[str, object]()
    while True:
        within, part = reader.at(start)
        assert part is not None
        found |= {one: head for one, head in part.heads.items() if one in within}
        if within.end is None:
            break
        assert within.end > start
        start = within.end
    assert found == whole.heads
    path.new_workers(path.store)
    assert path.sweep().reconciled == 0


def test_heads_that_are_replaced_while_they_are_read_are_read_again(small: pytest.MonkeyPatch) -> None:
    path = filled(120)
    heads = path.table.heads
    planned = heads.partitions

    def replaced(root: Root[Counted]) -> Sequence[Piece]:
        """Between the root and its files, another process makes a new base, and the old files are collected."""
        pieces = planned(root)
        small.undo()
        filled(120, path, first=500)
        path.table.heads.reform()
        named = path.table.heads.named() or set()
        for listed in list(path.store.list("org/customers/.worm.heads/")):
            if listed.key.rpartition("/")[2] not in named:
                path.store.delete(listed.key)
        return pieces

    small.setattr(heads, "partitions", replaced)
    _, part = TableRanges(heads).at("c00100")
    assert part is not None
    assert "c00100" in part.heads


@pytest.mark.usefixtures("small")
def test_a_part_of_the_heads_that_is_gone_costs_a_look_at_its_documents(small: pytest.MonkeyPatch) -> None:
    path = filled(120)
    gone = next(one.key for one in path.store.list("org/customers/.worm.heads/heads-3-"))
    path.store.delete(gone)
    path.new_workers(path.store)
    report = path.sweep()
    assert 0 < report.reconciled < 120
    assert report.recorded == 0
    path.assert_true()


@pytest.mark.usefixtures("small")
def test_heads_that_are_built_again_do_not_hide_a_change_that_no_fold_has_seen(small: pytest.MonkeyPatch) -> None:
    """Its process died between the entry and the fold. Once the heads had it, no sweep looked at the row again."""
    path = filled(60)
    path.put("c00001", {"name": "recorded"})
    path.run_capture()
    path.change_sets()  # lost
    for listed in list(path.store.list("org/customers/.worm.heads/heads-3-")):
        path.store.delete(listed.key)
    path.put("c00050", {"name": "changed"})
    path.run_capture()
    small.setattr("worm.tables.tree.BASE_SHARE", 1_000_000)  # the merge after this fold finds that a file is gone
    path.run_fold()
    heads = path.table.heads.read()
    assert heads is not None
    assert heads.heads["c00001"].seq == 2
    path.new_workers(path.store)
    path.sweep()
    assert path.rows()["c00001"]["name"] == "recorded"
    path.assert_true()


def test_heads_that_are_completed_do_not_hide_a_delete_that_no_fold_has_seen() -> None:
    path = filled(9, spread_path(threshold=1000))
    path.remove("c00001")
    path.run_capture()
    path.change_sets()  # lost
    for version in list(path.store.versions(path.key("c00001"))):
        path.store.forget_version(version.key, version.version_id or "")
    path.store.delete("org/customers/.worm.heads.json")
    path.new_workers(path.store)
    path.put("c00002", {"name": "again"})
    path.settle()
    assert path.sweep().finished
    assert "c00001" not in path.rows()
    path.assert_true()


# Ids of every kind

ID = st.text(st.sampled_from("a0-.%/!~é\U0001f600z"), min_size=1, max_size=5).filter(
    lambda text: id_problem("string", text) is None
)


@settings(max_examples=60, deadline=None)
@example(known=["a", "a-b", "a.b", "a0"], new=["a-", "a/b", "%", "a"], page=1, documents=1)
@given(
    known=st.lists(ID, max_size=12, unique=True),
    new=st.lists(ID, max_size=12, unique=True),
    page=st.integers(1, 5),
    documents=st.integers(1, 8),
)
def test_no_id_is_left_out_wherever_a_run_stops(known: list[str], new: list[str], page: int, documents: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        bounds(patch, page=page, documents=documents, heads=3, table_bytes=300)
        patch.setattr("worm.upkeep.sweep_pass.CHUNK", 2)
        path = partitioned()
        documents_of = path.collection.documents
        for entity_id in known:
            path.store.put(documents_of.key(entity_id), b'{"name": "known"}')
        path.sweep()
        for entity_id in new:
            path.clock.advance(1)
            path.store.put(documents_of.key(entity_id), b'{"name": "new"}')
        for entity_id in known[::4]:
            path.store.delete(documents_of.key(entity_id))
        list(runs(path))
        wanted = ({*known, *new}) - set(known[::4])
        assert set(path.rows()) == wanted
        path.assert_true()


@settings(max_examples=60, deadline=None)
@example(ids=["!/", "!0", "!a"], due=1, start="")  # the block of escaped ids comes after the cut
@given(ids=st.lists(ID, max_size=20, unique=True), due=st.integers(1, 6), start=st.one_of(st.just(""), ID))
def test_a_cut_range_has_all_ids_up_to_its_end(ids: list[str], due: int, start: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        bounds(patch, page=1, documents=due, heads=3, table_bytes=300)
        path = partitioned()
        collection: Collection = path.collection
        for entity_id in ids:
            path.store.put(collection.documents.key(entity_id), b"{}")
        seen = dict[str, str]()

        def see(entity_id: str, version: object, is_sole: bool) -> None:
            seen[entity_id] = entity_id

        listing = RangeListing(collection, lambda: 1.0, see)
        within = listing.run(IdRange(start))
        assert within.start == start
        assert within.end is None or within.end > start
        assert {one for one in listing.ids if one in within} == {one for one in ids if one in within}
        assert set(seen) >= listing.ids


BESIDE = st.sampled_from([".oplog/0001.json", "aa", "profile.jso", "profile.json.x", "zz", "x/y", ""])
"""Names of objects in the folder of a document. Empty: an object with the name of the folder."""


@settings(max_examples=200, deadline=None)
@example(ids={"a": 1, "a-b": 1}, beside=[("a", "", 9)], page=1, jump=1, looks=[])  # a- and a/ come after the object a
@example(ids={"a-b": 1, "a": 2}, beside=[("a", ".oplog/0001.json", 9)], page=1, jump=2, looks=[0, 1])
@given(
    ids=st.dictionaries(ID, st.sampled_from([1, 2, 3, 20]), max_size=8),
    beside=st.lists(st.tuples(ID, BESIDE, st.sampled_from([1, 2, 20])), max_size=8),
    page=st.integers(1, 5),
    jump=st.integers(1, 3),
    looks=st.lists(st.integers(0, 1), max_size=20),
)
def test_no_object_beside_documents_and_no_version_hides_a_document(
    ids: Mapping[str, int], beside: Sequence[tuple[str, str, int]], page: int, jump: int, looks: Sequence[int]
) -> None:
    """A document that seems to have one version only, but has more, would lose its history."""
    with pytest.MonkeyPatch.context() as patch:
        bounds(patch, page=page, documents=100, heads=3, table_bytes=300)
        patch.setattr("worm.upkeep.sweep_listing.JUMP_PAGES", jump)
        collection: Collection = partitioned().collection
        keys = {one: collection.documents.key(one) for one in ids}
        objects = [(keys[one], times) for one, times in ids.items()]
        for one, name, times in beside:
            objects.append((f"{collection.path}{encode_id(one)}/{name}".removesuffix("/"), times))
        for key, times in objects:
            for _ in range(times if acceptable(key) else 0):
                collection.store.put(key, b"{}")
        times_left, start, found = iter(looks), "", set[str]()

        def see(entity_id: str, version: Version, is_sole: bool) -> None:
            newest, *others = collection.store.versions(keys[entity_id])
            assert (version, is_sole) == (newest, not others)

        for _ in range(100):
            listing = RangeListing(collection, lambda: next(times_left, 1.0), see)
            within = listing.run(IdRange(start))
            assert within.start == start
            found |= {one for one in listing.ids if one in within}
            if within.end is None:
                break
            assert within.end > start
            start = within.end
        assert found == set(ids)


# Cursors


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("cursor", "listed"),
    [
        ({"version": 1, "after": "org/customers/c00050/profile.json"}, 70),
        ({"version": 1, "after": ""}, 120),
        ({"version": 1, "after": "org/customers/%7A%2F/profile.json"}, 120),
        ({"version": 1, "after": "something else"}, 120),
        ({"version": 2, "from": "c00050"}, 70),
        ({"version": 2, "from": 5}, 120),
        ({"version": 2, "from": "c00050", "listed": -1}, 120),
    ],
)
def test_a_cursor_of_an_earlier_version_is_continued_and_a_damaged_one_is_not(
    cursor: Mapping[str, object], listed: int
) -> None:
    path = filled(120)
    path.store.put(cursor_key(path.collection), json.dumps(cursor).encode())
    assert path.sweep().listed == listed


# A schedule


def scheduled(path: DataPath, *, seconds: float = 100.0, every: float = DAY, **limits: int) -> SweepReport:
    path.new_workers(path.store)
    return path.sweeper.run(lambda: seconds, scheduled=Scheduled(every, **limits))[0]


@OPLOG
@pytest.mark.usefixtures("small")
def test_a_pass_begins_once_a_day_and_an_unfinished_one_continues_at_the_next_run(oplog: bool) -> None:
    path = filled(45, partitioned(oplog=oplog))
    assert not scheduled(path, seconds=0.0).finished
    path.clock.advance(900)
    continued = scheduled(path)
    assert (continued.finished, continued.listed, continued.passed) == (True, 36, 45)
    path.clock.advance(900)
    path.put("c00001", {"name": "unheard"})
    path.events.clear()
    with path.store.requests.measure() as spent:
        between = scheduled(path)
    assert (between.is_due, between.finished, between.listed) == (False, True, 0)
    assert set(spent) == {"GET", "total"}
    path.clock.advance(DAY - 2_000)
    assert scheduled(path).is_due is False
    path.clock.advance(300)
    assert scheduled(path).reconciled == 1
    path.assert_true()


@pytest.mark.usefixtures("small")
def test_a_pass_that_seems_to_have_begun_in_the_future_does_not_keep_the_next_one_away() -> None:
    path = filled(5)
    assert scheduled(path).listed == 5
    path.clock.advance(-3_600)
    assert scheduled(path).listed == 5


@pytest.mark.usefixtures("small")
def test_a_run_between_two_passes_builds_the_table_that_is_missing() -> None:
    path = filled(15)
    scheduled(path)
    path.store.delete(path.table.manifest.key)
    assert scheduled(path).is_due is False
    assert len(path.rows()) == 15


@pytest.mark.usefixtures("small")
def test_a_pass_by_spark_keeps_the_function_away_until_a_second_one_is_missing() -> None:
    path = filled(15)
    cursor = SweepCursor().begun(path.clock.now())
    replace(cursor, by_spark=True).finished(path.clock.now()).save(path.collection)
    path.clock.advance(1.9 * DAY)
    assert scheduled(path).is_due is False
    path.clock.advance(0.2 * DAY)
    assert scheduled(path).listed == 15
    assert SweepCursor.read(path.collection).by_spark is False


@OPLOG
@pytest.mark.usefixtures("small")
def test_a_table_that_is_too_large_to_be_built_is_left_to_spark_but_history_is_recorded(oplog: bool) -> None:
    path = filled(45, partitioned(oplog=oplog))
    path.store.delete(path.table.manifest.key)
    path.put("c00001", {"name": "unheard"})
    path.events.clear()
    report = scheduled(path, builds_max=10)
    assert "the Spark job `rebuild`" in report.left
    assert path.table.manifest.root() is None
    assert path.ops("c00001") == (["create", "update"] if oplog else [])
    assert scheduled(path, every=0.0, builds_max=1_000).left == ""
    assert path.rows()["c00001"]["name"] == "unheard"
    path.assert_true()


@OPLOG
@pytest.mark.usefixtures("small")
def test_no_merge_builds_a_table_that_is_too_large_because_one_of_its_files_is_gone(
    small: pytest.MonkeyPatch, oplog: bool
) -> None:
    """A merge reads all files. If one is gone, it once built the table from all histories, in the middle of a pass,
    whatever the limit and the time."""
    path = filled(60, partitioned(oplog=oplog))
    small.setattr("worm.tables.tree.BASE_SHARE", 1_000_000)  # every merge is due
    for gone in ("org/customers/.worm.manifest/partition-1-", "org/customers/.worm.heads/heads-3-"):
        for listed in list(path.store.list(gone)):
            path.store.delete(listed.key)
    for number in range(60):
        path.put(f"c{number:05}", {"name": "unheard"})
    path.events.clear()
    built = list[Table]()
    small.setattr(Table, "rebuild", lambda table: built.append(table))
    small.setattr(Table, "rebuild_heads", lambda table, changes: built.append(table))
    assert "the Spark job `rebuild`" in scheduled(path, every=0.0, builds_max=10).left
    assert scheduled(path, builds_max=10).is_due is False
    assert built == []
    small.undo()
    path.new_workers(path.store)
    path.sweep()
    assert {row["name"] for row in path.rows().values()} == {"unheard"}
    path.assert_true()


@pytest.mark.usefixtures("small")
def test_no_fold_builds_a_table_from_all_histories_when_manifest_and_heads_are_lost(small: pytest.MonkeyPatch) -> None:
    """Nothing but a listing says then how large the table is. The first fold of a pass read all histories, whatever the
    limit and the time: the function was killed at the same place every quarter of an hour."""
    small.setattr("worm.upkeep.sweep_pass.RECORDED_MAX", 30)
    path = filled(60)
    for key in (path.table.manifest.key, path.table.heads.key):
        path.store.delete(key)
    assert "more than 40" in scheduled(path, builds_max=40).left
    assert path.table.manifest.root() is None
    assert scheduled(path, every=0.0, builds_max=100).left == ""
    assert len(path.rows()) == 60
    path.assert_true()


@pytest.mark.usefixtures("small")
def test_a_pass_that_ends_with_its_time_leaves_the_table_to_the_next_run() -> None:
    path = filled(15)
    path.store.delete(path.table.manifest.key)
    left = iter([1.0])
    path.new_workers(path.store)
    report = path.sweeper.run(lambda: next(left, 0.0), scheduled=Scheduled(DAY))[0]
    assert (report.finished, report.listed) == (True, 15)
    assert path.table.manifest.root() is None
    assert scheduled(path).is_due is False
    assert len(path.rows()) == 15


def test_without_time_the_other_models_wait_and_each_run_begins_with_another() -> None:
    customer = schema_of()["models"]["Customer"]  # type: ignore[index]  # JSON
    models = {name: customer | {"path": f"#org/@{name}/(id:string)"} for name in ("A", "B", "Customer")}
    path = DataPath({"version": "1.0", "models": models})
    for name in models:
        path.store.put(f"org/{name}/1/profile.json", b"{}")
    begun = list[str]()
    for _ in models:
        path.new_workers(path.store)
        reports = path.sweeper.run(lambda: 0.0)
        assert [one.model for one in reports] == ["A", "B", "Customer"]
        begun += [one.model for one in reports if one.finished]
        path.clock.advance(900)
    assert sorted(begun) == ["A", "B", "Customer"]


def test_a_window_of_deltas_that_a_new_one_shortens_begins_again(small: pytest.MonkeyPatch) -> None:
    path = filled(120)
    small.setattr("worm.tables.tree.BASE_SHARE", 0)  # no merge
    small.setattr("worm.tables.ranges.DELTAS_BYTES", 0)
    small.setattr("worm.tables.ranges.WINDOW_IDS", 25)

    def change(numbers: Iterable[int]) -> None:
        for number in numbers:
            path.put(f"c{number:05}", {"name": "changed"})
        path.settle()

    change([*range(0, 60, 3), 110])
    reader, start, is_changed = TableRanges(path.table.heads), "", False
    while True:
        if start >= "c00060" and not is_changed:
            change(range(1, 60, 3))
            is_changed = True
        within, part = reader.at(start)
        assert part is not None
        if within.end is None:
            break
        assert within.end > start
        start = within.end
    assert is_changed


@pytest.mark.usefixtures("small")
def test_a_pass_is_due_while_heads_are_partial() -> None:
    """Streams wait until they are complete; a day would be long."""
    path = spread_path(threshold=1000)
    filled(9, path)
    assert scheduled(path).is_due
    path.store.delete("org/customers/.worm.heads.json")
    path.new_workers(path.store)
    path.put("c00001", {"name": "again"})
    path.settle()
    assert scheduled(path).is_due
    heads = path.table.heads.read()
    assert heads is not None
    assert not heads.partial
    path.clock.advance(900)
    assert not scheduled(path).is_due


@pytest.mark.usefixtures("small")
def test_a_pass_is_due_while_heads_are_lost_but_not_if_there_was_never_a_valid_document() -> None:
    path = filled(9)
    assert scheduled(path).is_due
    path.store.delete(path.table.heads.key)
    assert scheduled(path).is_due
    assert path.table.heads.root() is not None
    assert not scheduled(path).is_due
    path = partitioned()
    path.put("c00001", b"no JSON")
    assert scheduled(path).is_due
    assert not scheduled(path).is_due
