"""Versions and delete markers that somebody removes for good: history and table follow at once, by their events.

S3 reports each removal with the id of what is gone, which the history knows already. A worker that skips such an event
as "recorded" shows a document that is gone, or hides one that is back, until the next sweep."""

from __future__ import annotations

from datetime import timedelta
from itertools import permutations

import pytest

from tests.harness import BUCKET, DataPath, created, removed, schema_of
from worm.clock import VirtualClock, iso_seconds, moment_of
from worm.collections.entries import OplogEntry
from worm.collections.trash import Trashed
from worm.formats.strict_json import JsonValue
from worm.upkeep.session import Session, Settings
from worm.upkeep.workers.batch import KeyHint, hints_of
from worm.upkeep.workers.capture import Capture

ADMIN = "210987654321"
ONE, TWO = {"name": "one"}, {"name": "two"}
SECONDS = (0, 1, 99, 100, 101, 102, 150, 201, 210, 211, 212, 213, 214, 1000)


def after(ts: str, seconds: int) -> str:
    moment = moment_of(ts)
    assert moment is not None
    return iso_seconds(moment + timedelta(seconds=seconds))


def undeleted() -> DataPath:
    """A document that was deleted, all recorded, and whose delete marker is removed then; the event of that waits."""
    path = DataPath()
    path.put("a", ONE)
    path.settle()
    marker = path.remove("a")
    path.settle()
    assert path.rows() == {}
    path.forget("a", marker, requester=ADMIN)
    return path


def test_an_undelete_brings_the_row_back_and_says_who_did_it() -> None:
    """The usual undelete of S3: the document is there again, and nobody would know."""
    path = undeleted()
    path.settle()
    assert path.rows() == {"a": ONE}
    restored = path.history("a")[2]
    assert (restored.op, restored.actor, restored.snapshot) == ("restore", ADMIN, ONE)
    assert restored.metadata["reverted"] is True
    path.assert_true()


def test_an_undelete_is_noticed_by_a_worker_that_does_not_know_of_the_delete() -> None:
    """Its memory says that the document was there all the time; only the oplog says that it was deleted since."""
    path = DataPath()
    version = path.put("a", ONE)
    path.settle()
    marker = path.remove("a")
    path.run_capture()
    path.forget("a", marker)
    path.new_workers(path.store)  # of the heads that it reads, the tables worker has not heard of the delete yet
    assert path.table.heads.read() is not None
    path.run_capture()
    path.run_fold()
    assert path.ops("a") == ["create", "delete", "restore"]
    assert path.history("a")[2].version_id == version
    assert path.rows() == {"a": ONE}
    path.assert_true()


def test_an_undelete_is_noticed_by_a_worker_that_knows_nothing() -> None:
    path = undeleted()
    path.store.delete(path.table.heads.key)
    path.new_workers(path.store)
    path.run_capture()
    path.run_fold()
    assert path.ops("a") == ["create", "delete", "restore"]
    assert path.rows() == {"a": ONE}


def test_a_delete_after_an_undelete_that_nobody_saw_changes_nothing() -> None:
    """The document was recorded as deleted, and is deleted: the marker of the second delete has no entry, and verify
    does not miss one."""
    path = undeleted()
    second = path.remove("a")
    path.settle()
    assert path.ops("a") == ["create", "delete"]
    path.assert_true()
    assert path.sweep().problems == {}
    path.assert_true()
    path.forget("a", second)
    path.settle()
    assert path.ops("a") == ["create", "delete", "restore"]
    assert path.rows() == {"a": ONE}
    path.assert_true()


def test_what_comes_after_a_delete_that_changed_nothing_is_recorded() -> None:
    path = undeleted()
    path.remove("a")
    path.settle()
    path.put("a", TWO)
    third = path.put("a", ONE)
    path.settle()
    assert path.ops("a") == ["create", "delete", "create", "update"]
    path.assert_true()
    path.forget("a", list(path.store.versions(path.key("a")))[1].version_id)
    path.settle()
    assert path.history("a")[-1].version_id == third
    path.assert_true()


def test_a_delete_of_what_never_was_has_no_entry() -> None:
    path = DataPath()
    path.remove("a")
    path.settle()
    path.assert_true()
    path.put("a", ONE)
    path.settle()
    assert path.ops("a") == ["create"]
    path.assert_true()


def test_a_delete_marker_that_deleted_a_recorded_document_is_missed() -> None:
    """Only what the history has deleted already needs no entry."""
    path = DataPath()
    path.put("a", ONE)
    path.settle()
    path.remove("a")
    path.put("a", TWO)
    path.settle()
    path.store.delete(path.collection.oplog.key("a", 3))
    path.store.delete(path.collection.oplog.key("a", 2))
    newest = next(iter(path.store.versions(path.key("a"))))
    named: dict[str, JsonValue] = {"etag": newest.etag, "versionId": newest.version_id}
    changed = OplogEntry(2, "update", iso_seconds(newest.last_modified), diff={"name": ["one", "two"]}, metadata=named)
    path.store.put(path.collection.oplog.key("a", 2), changed.to_bytes())
    assert "version-unrecorded" in [found.kind for found in path.verify().differences]


# When it happened


def test_an_undelete_has_the_time_at_which_it_was_seen() -> None:
    """With the time of the old version the document would seem never to have been gone."""
    path = DataPath(schema_of(snapshots={"enabled": True, "every": 3}))
    path.put("a", ONE)
    path.settle()
    path.clock.advance(100)
    marker = path.remove("a")
    path.settle()
    path.clock.advance(100)
    path.forget("a", marker)
    path.clock.advance(10)
    seen = iso_seconds(path.clock.now())
    path.settle()
    written, deleted, restored = (entry.ts for entry in path.history("a"))
    assert written < deleted < restored == seen
    for at in (after(written, seconds) for seconds in SECONDS):
        expected = (3, ONE) if at >= restored else (2, None) if at >= deleted else (1, ONE)
        assert path.collection.oplog.at_time("a", at) == expected, at
    assert [one.ts for one in path.collection.snapshots.list("a")] == [restored]
    path.assert_true()


def test_a_version_that_is_current_again_has_the_time_at_which_that_was_seen() -> None:
    path = DataPath()
    path.put("a", ONE)
    newest = path.put("a", TWO)
    path.settle()
    path.clock.advance(100)
    path.forget("a", newest)
    path.settle()
    assert path.history("a")[2].ts == iso_seconds(path.clock.now())
    path.assert_true()


def test_a_delete_marker_that_is_the_newest_again_has_the_time_at_which_that_was_seen() -> None:
    path = DataPath()
    path.put("a", ONE)
    path.remove("a")
    newest = path.put("a", TWO)
    path.settle()
    path.clock.advance(100)
    path.forget("a", newest)
    path.settle()
    assert path.ops("a") == ["create", "delete", "create", "delete"]
    assert path.history("a")[3].ts == iso_seconds(path.clock.now())
    path.assert_true()


@pytest.mark.parametrize("ahead", [3600, -3600])
def test_the_times_of_a_history_never_fall_whatever_the_clock_of_the_worker_says(ahead: float) -> None:
    """Moments are found by bisection: a time that falls would hide all that came before it."""
    path = undeleted()
    clock = VirtualClock(path.clock.now() + timedelta(seconds=ahead))
    path.capture = Capture(Session(path.store, Settings(BUCKET), ids=path.ids, clock=clock))
    path.settle()
    path.put("a", TWO)
    path.settle()
    assert path.ops("a") == ["create", "delete", "restore", "update"]
    times = [entry.ts for entry in path.history("a")]
    assert times == sorted(times)
    assert path.collection.oplog.at_time("a", times[-1]) == (4, TWO)
    path.assert_true()


def test_the_removal_of_the_current_version_returns_to_the_one_below() -> None:
    path = DataPath()
    path.put("a", ONE)
    newest = path.put("a", TWO)
    path.settle()
    path.forget("a", newest, requester=ADMIN)
    path.settle()
    returned = path.history("a")[2]
    assert (returned.op, returned.actor, returned.diff) == ("update", ADMIN, {"name": ["two", "one"]})
    assert path.rows() == {"a": ONE}
    path.assert_true()


def test_the_removal_of_an_old_version_changes_nothing() -> None:
    path = DataPath()
    oldest = path.put("a", ONE)
    path.put("a", TWO)
    path.settle()
    path.forget("a", oldest)
    with path.store.requests.measure() as spent:
        path.run_capture()
    assert spent == {"GET": 4, "total": 4}, "schema and heads; the document, and whether its entry is the last one"
    assert path.change_sets() == []
    assert path.ops("a") == ["create", "update"]
    path.assert_true()


@pytest.mark.parametrize("batches", [1, 4])
def test_a_purge_of_all_versions_is_a_delete(batches: int) -> None:
    """`rclone purge` removes every version and every marker; a row of what is gone would stay."""
    path = DataPath()
    versions = [path.put("a", ONE), path.put("a", TWO), path.remove("a"), path.put("a", ONE)]
    path.settle()
    for version in versions:
        path.forget("a", version, requester=ADMIN)
        if batches > 1:
            path.settle()
    path.settle()
    gone = path.history("a")[-1]
    assert (gone.op, gone.actor, gone.snapshot) == ("delete", ADMIN, ONE)
    assert path.ops("a") == ["create", "update", "delete", "create", "delete"]
    assert path.rows() == {}
    path.assert_true()
    path.put("a", TWO)
    path.settle()
    assert path.rows() == {"a": TWO}
    path.assert_true()


def test_a_purge_from_the_newest_version_down_ends_as_a_delete_in_any_order_of_events() -> None:
    for order in permutations(range(3)):
        path = DataPath()
        versions = [path.put("a", ONE), path.put("a", TWO), path.remove("a")]
        path.settle()
        for version in reversed(versions):
            path.forget("a", version)
        events, path.events = path.events, []
        for number in order:
            assert path.run_capture([events[number]]).failed == {}
        path.run_fold()
        assert path.ops("a") == ["create", "update", "delete"]
        assert path.rows() == {}
        path.assert_true()


def test_a_purged_document_with_soft_delete_goes_to_the_trash_as_it_was_recorded() -> None:
    """There is no version left to rescue it from; the oplog has it."""
    path = DataPath(schema_of(softDelete=True))
    version = path.put("a", TWO)
    path.settle()
    path.forget("a", version, requester=ADMIN)
    path.settle()
    trashed: list[Trashed] = list(path.collection.trash.list(path.clock.now()))
    assert [(one.id, one.tombstone.deleted_by) for one in trashed] == [("a", ADMIN)]
    assert path.collection.trash.begin_restore("a", path.clock.now()) == b'{"name":"two"}'
    path.assert_true()


def test_deletes_and_undeletes_may_follow_each_other() -> None:
    path = DataPath()
    path.put("a", ONE)
    for _ in range(3):
        path.forget("a", path.remove("a"))
        path.settle()
    assert path.ops("a") == ["create"], "a marker that is gone before anybody looks was never seen"
    for _ in range(3):
        marker = path.remove("a")
        path.settle()
        path.forget("a", marker)
        path.settle()
    assert path.ops("a") == ["create", *["delete", "restore"] * 3]
    assert path.rows() == {"a": ONE}
    path.assert_true()


def test_a_removal_that_is_reported_twice_is_recorded_once() -> None:
    path = undeleted()
    events = list(path.events)
    path.settle()
    path.run_capture(events, deliveries=2)
    path.run_capture([*events, *events])
    assert path.ops("a") == ["create", "delete", "restore"]
    path.assert_true()


def test_the_removal_of_a_version_below_an_invalid_one_keeps_the_last_valid_state() -> None:
    path = DataPath()
    path.put("a", ONE)
    path.settle()
    path.put("a", b"no document")
    path.run_capture()
    newest = path.put("a", TWO)
    path.settle()
    path.forget("a", newest)
    assert [str(reason) for reason in path.run_capture().rejected.values()] != []
    path.run_fold()
    assert path.ops("a") == ["create", "update"]
    path.assert_true()


def test_the_table_of_a_model_without_an_oplog_follows_too() -> None:
    path = DataPath(schema_of(oplog=False))
    oldest, newest = path.put("a", ONE), path.put("a", TWO)
    path.settle()
    path.forget("a", newest)
    path.settle()
    assert path.rows() == {"a": ONE}
    marker = path.remove("a")
    path.settle()
    path.forget("a", marker)
    path.settle()
    assert path.rows() == {"a": ONE}
    path.forget("a", oldest)
    path.settle()
    assert path.rows() == {}


def test_an_upload_that_is_reported_again_still_costs_nothing() -> None:
    path = DataPath()
    version = path.put("a", ONE)
    path.settle()
    with path.store.requests.measure() as spent:
        path.run_capture([created(path.key("a"), version)])
    assert spent == {"GET": 2, "total": 2}, "schema and heads"


# What the events say


def notification(event: str, version: str | None) -> str:
    described = '"key": "a"' if version is None else f'"key": "a", "versionId": "{version}"'
    return (
        f'{{"Records": [{{"eventName": "{event}", "s3": {{"bucket": {{"name": "b"}}, "object": {{{described}}}}}}}]}}'
    )


def test_a_notification_tells_the_removal_of_a_version_from_a_delete() -> None:
    def hint(event: str, version: str | None) -> KeyHint:
        return hints_of(notification(event, version), bucket="b")[0]

    assert hint("ObjectRemoved:Delete", "v1") == KeyHint("a", "v1", is_removal=True)
    assert hint("LifecycleExpiration:Delete", "v1") == KeyHint("a", "v1", is_removal=True)
    assert hint("ObjectRemoved:Delete", None) == KeyHint("a")
    assert hint("ObjectRemoved:DeleteMarkerCreated", "v1") == KeyHint("a", "v1")
    assert hint("ObjectCreated:Put", "v1") == KeyHint("a", "v1")


def test_the_removal_of_a_version_from_before_versioning_is_one_too() -> None:
    """A bucket whose versioning is suspended calls the version of each key `null`."""
    assert hints_of(removed("a", "null"), bucket="documents")[0] == KeyHint("a", None, "123456789012", True)


def test_the_next_upload_is_not_taken_for_one_of_who_removed_the_version_before() -> None:
    path = DataPath(versioned=False)
    path.put("a", ONE)
    path.run_capture([removed(path.key("a"), "null", requester=ADMIN), created(path.key("a"), requester="bob")])
    assert [entry.actor for entry in path.history("a")] == ["bob"]
