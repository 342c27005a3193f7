from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.harness import DataPath, created, schema_of
from worm.collections.entries import Head, OplogEntry
from worm.collections.origins import write_metadata
from worm.collections.reconcile import Recorded, Sighting
from worm.formats.strict_json import JsonValue
from worm.store.base import Object, Version, Won
from worm.store.memory import MemoryStore

LAYOUTS = ["root", "collection", "inline"]


def test_a_raw_create_becomes_entry_one_with_the_whole_document_and_its_version() -> None:
    path = DataPath()
    version = path.put("a", {"name": "Acme", "status": "active"})
    path.settle()

    (entry,) = path.history("a")
    assert (entry.seq, entry.op, entry.actor) == (1, "create", "123456789012")
    assert entry.snapshot == {"name": "Acme", "status": "active"}
    assert entry.version_id == version
    assert entry.ts == "2026-01-01T00:00:01Z"
    assert path.rows() == {"a": {"name": "Acme", "status": "active"}}
    path.assert_true()


def test_an_update_entry_holds_before_and_after_and_tells_null_from_no_such_field() -> None:
    path = DataPath()
    path.put("a", {"name": "Acme", "status": None})
    path.settle()
    path.put("a", {"name": "Acme", "score": None})
    path.settle()

    update = path.history("a")[1]
    assert update.diff == {"status": [None, None], "score": [None, None]}
    assert update.absent == {"before": ["score"], "after": ["status"]}
    path.assert_true()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_overwrites_between_two_events_are_not_lost_from_the_history(layout: str) -> None:
    """A burst of uploads that share one late event would lose its middle states if only the current one were read."""
    path = DataPath(schema_of(storage={"layout": layout}))
    for name in ("one", "two", "three"):
        path.put("a", {"name": name})
    path.remove("a")
    path.put("a", {"name": "again"})
    last = path.events[-1]
    path.events = [last]
    path.settle()

    assert path.ops("a") == ["create", "update", "update", "delete", "create"]
    assert [entry.ts for entry in path.history("a")] == sorted(entry.ts for entry in path.history("a"))
    path.assert_true()


def test_events_in_reverse_order_and_three_times_change_nothing() -> None:
    path = DataPath()
    path.put("a", {"name": "one"})
    path.put("a", {"name": "two"})
    path.remove("a")
    events, path.events = path.events, []
    for event in reversed(events * 3):
        path.run_capture([event])
        path.run_fold()

    assert path.ops("a") == ["create", "update", "delete"]
    path.assert_true()


def test_a_delete_keeps_the_document_in_its_entry_and_takes_the_row_away() -> None:
    path = DataPath()
    path.put("a", {"name": "Acme"})
    path.settle()
    path.remove("a")
    path.settle()

    assert path.history("a")[1].snapshot == {"name": "Acme"}
    assert path.rows() == {}
    path.assert_true()


def test_a_delete_marker_over_nothing_is_not_a_change() -> None:
    path = DataPath()
    path.remove("ghost")
    path.settle()
    path.put("a", {"name": "Acme"})
    path.remove("a")
    path.remove("a")
    path.settle()

    assert path.history("ghost") == []
    assert path.ops("a") == ["create", "delete"]
    path.assert_true()


def test_a_late_older_change_set_does_not_bring_a_deleted_row_back() -> None:
    path = DataPath()
    path.put("a", {"name": "Acme"})
    path.run_capture()
    first = path.change_sets()
    path.remove("a")
    path.run_capture()
    path.run_fold()
    path.run_fold(first)

    assert path.rows() == {}
    path.assert_true()


def test_without_versioning_each_event_records_the_current_state() -> None:
    path = DataPath(versioned=False)
    path.put("a", {"name": "one"})
    path.settle()
    path.put("a", {"name": "two"})
    path.settle()
    path.remove("a")
    path.settle()
    path.put("a", {"name": "three"})
    path.settle()

    assert path.ops("a") == ["create", "update", "delete", "create"]
    path.assert_true()


def test_a_version_removed_by_hand_is_recorded_as_a_return_to_the_one_before() -> None:
    path = DataPath()
    path.put("a", {"name": "one"})
    newest = path.put("a", {"name": "two"})
    path.settle()
    path.store.forget_version(path.key("a"), newest)
    path.run_capture([created(path.key("a"))])
    path.run_fold()

    returned = path.history("a")[2]
    assert (returned.op, returned.diff) == ("update", {"name": ["two", "one"]})
    assert returned.metadata["reverted"] is True
    assert path.rows() == {"a": {"name": "one"}}
    path.assert_true()


def test_a_listing_older_than_the_entries_does_not_look_like_a_removal(monkeypatch: pytest.MonkeyPatch) -> None:
    """The version that was recorded last seemed removed; an entry said so, and the version got a second one later."""
    path = DataPath()
    path.put("a", {"name": "one"})
    path.settle()
    old = list(path.store.versions(path.key("a")))
    path.put("a", {"name": "two"})
    path.settle()
    path.put("a", {"name": "three"})
    genuine, answers = path.store.versions, [old, old]
    monkeypatch.setattr(path.store, "versions", lambda key: iter(answers.pop()) if answers else genuine(key))
    path.settle()

    assert (answers, path.ops("a")) == ([], ["create", "update", "update"])
    path.assert_true()


def test_an_empty_listing_of_a_document_that_is_there_is_no_delete(monkeypatch: pytest.MonkeyPatch) -> None:
    path = DataPath()
    path.put("a", {"name": "one"})
    path.settle()
    path.put("a", {"name": "two"})
    genuine, answers = path.store.versions, [list[Version]()]
    monkeypatch.setattr(path.store, "versions", lambda key: iter(answers.pop()) if answers else genuine(key))
    path.settle()

    assert (answers, path.ops("a")) == ([], ["create", "update"])
    path.assert_true()


def test_a_writer_whose_own_version_is_not_listed_looks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A save was acknowledged without an entry when the listing after it was an old one."""
    path = DataPath()
    path.put("a", {"name": "one"})
    path.settle()
    old = list(path.store.versions(path.key("a")))
    genuine, answers = path.store.versions, [old]
    monkeypatch.setattr(path.store, "versions", lambda key: iter(answers.pop()) if answers else genuine(key))
    written = path.store.put(path.key("a"), b'{"name": "two"}')
    found = path.store.get(path.key("a"), version_id=written.version_id)
    done = path.table.collection.reconciler({}).reconcile("a", Head.of(path.history("a")[0]), written=found)

    assert (answers, done.appended, path.ops("a")) == ([], 1, ["create", "update"])


def test_a_delete_marker_removed_by_hand_is_recorded_as_a_restore() -> None:
    path = DataPath()
    path.put("a", {"name": "one"})
    path.remove("a")
    path.settle()
    marker = next(iter(path.store.versions(path.key("a"))))
    path.store.forget_version(path.key("a"), marker.version_id)
    path.run_capture([created(path.key("a"))])
    path.run_fold()

    assert path.ops("a") == ["create", "delete", "restore"]
    path.assert_true()


def test_an_expired_recorded_version_does_not_hide_the_ones_after_it() -> None:
    path = DataPath()
    first = path.put("a", {"name": "one"})
    path.settle()
    path.put("a", {"name": "two"})
    path.put("a", {"name": "three"})
    path.store.forget_version(path.key("a"), first)
    path.settle()

    assert path.ops("a") == ["create", "update", "update"]
    path.assert_true()


def test_a_stale_hint_costs_requests_but_records_nothing_twice() -> None:
    path = DataPath()
    for number in range(20):
        path.put("a", {"score": number})
    path.settle()
    reconciler = path.collection.reconciler()
    stale = Head(3, "etag", "no-such-version", True, "2026-01-01T00:00:00Z")
    for hint in (None, stale, Head.of(path.history("a")[4])):
        assert reconciler.reconcile("a", hint).appended == 0

    assert len(path.history("a")) == 20
    path.assert_true()


def test_the_sdk_parent_etag_saves_the_version_listing_but_a_foreign_one_does_not() -> None:
    path = DataPath()
    path.put("a", {"name": "one"})
    path.settle()
    first = path.store.get(path.key("a"))
    assert first is not None
    parent = write_metadata(actor="ann", parent=first.etag, parent_version=first.version_id, written=path.clock.now())
    saved = path.store.put_if_match(path.key("a"), b'{"name":"two"}', first.etag, metadata=parent)
    assert isinstance(saved, Won)
    with path.store.requests.measure() as spent:
        path.run_capture([created(path.key("a"), saved.version_id)])
    assert "VERSIONS" not in spent
    path.run_fold()
    assert path.history("a")[1].actor == "ann"

    path.store.put(path.key("a"), b'{"name":"raw"}')
    path.store.put(path.key("a"), b'{"name":"four"}', metadata=write_metadata(actor="bob", parent=saved.etag + "x"))
    path.run_capture([created(path.key("a"))])
    path.run_fold()
    assert [entry.op for entry in path.history("a")] == ["create", "update", "update", "update"]
    path.assert_true()


def test_an_overwrite_with_equal_content_is_still_an_entry_of_its_own() -> None:
    path = DataPath()
    path.put("a", {"name": "same"})
    path.put("a", {"name": "same"})
    path.settle()

    assert [entry.diff for entry in path.history("a")] == [None, {}]
    path.assert_true()


def test_a_clock_that_runs_backwards_does_not_order_the_history() -> None:
    path = DataPath()
    path.put("a", {"name": "one"})
    path.clock.advance(-3600)
    path.put("a", {"name": "two"})
    path.settle()

    assert [entry.diff or entry.snapshot for entry in path.history("a")] == [{"name": "one"}, {"name": ["one", "two"]}]
    assert path.history("a")[1].ts == path.history("a")[0].ts
    path.assert_true()


def test_without_versions_content_that_returns_to_an_earlier_one_is_a_change_again() -> None:
    """Entry 1 holds the same etag as the present; taking it for the present would lose the return."""
    path = DataPath(versioned=False)
    for name in ("one", "two", "one"):
        path.put("a", {"name": name})
        result = path.collection.reconciler().reconcile("a", None)
        assert result.appended == 1
    assert [entry.op for entry in path.history("a")] == ["create", "update", "update"]


def test_without_versions_a_sweep_finds_entries_that_never_reached_the_table() -> None:
    """The heads name the present's etag, but the oplog went on and came back."""
    path = DataPath(versioned=False)
    path.put("a", {"name": "one"})
    path.settle()
    path.put("a", {"name": "two"})
    path.run_capture()
    path.change_sets()  # lost
    path.put("a", {"name": "one"})
    path.events.clear()  # lost
    path.new_workers(path.store)
    path.sweep()
    assert path.ops("a") == ["create", "update", "update"]
    path.assert_true()


def test_equal_contents_in_between_are_not_skipped_by_a_write_that_names_their_etag() -> None:
    """X, Y, X again, and then an SDK write over the second X: its parent's etag is the head's, its version is not."""
    path = DataPath()
    path.put("a", {"name": "x"})
    path.settle()
    path.put("a", {"name": "y"})
    path.put("a", {"name": "x"})
    path.events.clear()
    again = path.store.get(path.key("a"))
    assert again is not None
    metadata = write_metadata(actor="ann", parent=again.etag, parent_version=again.version_id, written=path.clock.now())
    saved = path.store.put_if_match(path.key("a"), b'{"name":"z"}', again.etag, metadata=metadata)
    assert isinstance(saved, Won)
    path.run_capture([created(path.key("a"), saved.version_id)])
    path.run_fold()
    assert path.ops("a") == ["create", "update", "update", "update"]
    path.assert_true()


def test_an_oplog_without_any_version_left_is_found_and_its_document_recorded_as_deleted() -> None:
    """Somebody removed all versions, and nothing hints at an oplog: the row would stay for ever."""
    path = DataPath()
    path.put("acme", {"name": "Acme"})
    path.settle()
    for version in list(path.store.versions(path.key("acme"))):
        path.store.forget_version(path.key("acme"), version.version_id)
    path.collection.reconciler().reconcile("acme", None)
    assert path.ops("acme") == ["create", "delete"]


def test_metadata_of_the_sdk_does_not_make_an_invalid_document_accepted() -> None:
    """Everybody can set metadata. It only excuses mistakes that the recorded document has, too."""
    path = DataPath()
    path.put("acme", {"name": "Acme"})
    path.settle()
    path.store.put(path.key("acme"), b'{"name": 5}', metadata={"worm-parent": "none"})
    found = path.store.get(path.key("acme"))
    assert found is not None
    assert path.collection.was_accepted("acme", found) is False
    path.run_capture([created(path.key("acme"), found.version_id)])
    assert path.ops("acme") == ["create"]


# What others do between two of our requests


def test_a_version_that_is_removed_between_the_listing_and_its_read_is_not_missed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = DataPath()
    first = path.put("a", {"name": "one"})
    path.put("a", {"name": "two"})
    real = path.store.get

    def get(key: str, **options: Any) -> Object | None:
        if first is not None and options.get("version_id") == first:
            MemoryStore.forget_version(path.store, key, first)
        return real(key, **options)

    collection = path.collection
    monkeypatch.setattr(collection.store, "get", get)
    collection.reconciler().reconcile("a", None)
    assert [(entry.op, entry.snapshot) for entry in path.history("a")] == [("create", {"name": "two"})]


def test_without_versioning_an_entry_names_the_very_object_whose_content_it_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Uploads between our read, our listing and our second read: an etag of one and the content of another would be a
    history that never was."""
    path = DataPath(versioned=False)
    path.put("a", {"name": "one"})
    store, waiting = path.store, [b'{"name": "three"}', b'{"name": "two"}']
    versions, get, is_listed = store.versions, store.get, False

    def upload() -> None:
        if waiting:
            MemoryStore.put(store, path.key("a"), waiting.pop())

    def slow_versions(key: str) -> Iterator[Version]:
        nonlocal is_listed
        upload()
        is_listed = True
        return versions(key)

    def slow_get(key: str, **options: Any) -> Object | None:
        if key == path.key("a") and is_listed:
            upload()
        return get(key, **options)

    collection = path.collection
    monkeypatch.setattr(store, "versions", slow_versions)
    monkeypatch.setattr(store, "get", slow_get)
    collection.reconciler().reconcile("a", None)
    current = store.head(path.key("a"))
    assert current is not None
    (entry,) = path.history("a")
    assert (entry.snapshot, entry.etag) == ({"name": "three"}, current.etag)


def test_the_snapshot_of_an_entry_that_another_recorded_never_holds_a_later_document() -> None:
    """The other one died before its snapshot, and we went on from its entry."""
    path = DataPath(schema_of(snapshots={"enabled": True, "every": 2}))
    path.put("a", {"name": "one"})
    path.settle()
    hint = Head.of(path.history("a")[0])
    path.put("a", {"name": "two"})
    path.settle()
    for taken in path.collection.snapshots.list("a"):
        path.store.delete(path.collection.resolver.snapshot_key("Customer", "a", taken.ts))
    path.put("a", {"name": "three"})
    path.collection.reconciler().reconcile("a", hint)

    collection = path.collection
    assert path.ops("a") == ["create", "update", "update"]
    for taken in collection.snapshots.list("a"):
        found = collection.snapshots.read("a", taken.ts)
        assert found is not None
        assert found.document == collection.oplog.state_at("a", found.seq)


# What entries and writers may say


@pytest.mark.parametrize("skipped", [[{"versionId": "gone"}], [], "damage", 5, {"versionId": "gone"}, [5]])
def test_a_delete_goes_into_the_trash_whatever_became_of_the_invalid_version_over_it(skipped: JsonValue) -> None:
    path = DataPath(schema_of(softDelete=True))
    path.put("a", {"name": "Acme"})
    path.settle()
    previous = Head.of(path.history("a")[0])
    entry = OplogEntry(2, "delete", "2026-01-01T00:00:09Z", snapshot={"name": "Acme"}, metadata={"skipped": skipped})
    path.collection.reconciler().follow(Recorded("a", entry, previous, {"name": "Acme"}, None))
    copy = path.store.get(path.collection.trash.copy_key("a"))
    assert copy is not None
    assert json.loads(copy.body) == {"name": "Acme"}


def test_an_invalid_first_document_that_claims_to_be_of_our_sdk_is_rejected() -> None:
    """Anybody can send our metadata. What it says about a document before counts only where there was one."""
    path = DataPath()
    path.store.put(path.key("a"), b'{"name": 5}', metadata=write_metadata(actor=None, parent=None))
    result = path.collection.reconciler().reconcile("a", None)
    assert result.rejected is not None
    assert (result.appended, path.history("a")) == (0, [])


def test_an_entry_takes_actor_and_note_from_whichever_event_of_its_version_has_them() -> None:
    path = DataPath()
    path.put("a", {"name": "Acme"})
    path.settle()
    marker = path.remove("a")
    said = [
        Sighting(marker),
        Sighting(marker, actor="user:ann", note={"reason": "closed"}),
        Sighting("other", "user:b"),
    ]
    path.collection.reconciler().reconcile("a", Head.of(path.history("a")[0]), said)
    deleted = path.history("a")[1]
    assert (deleted.actor, deleted.reason) == ("user:ann", "closed")
