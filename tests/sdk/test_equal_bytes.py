"""Equal bytes that come back while somebody edits: the save is right, and no version between is missing in the history.

A save is conditional on the etag, and equal bytes have the same one. So a save may meet another version than the one
that was read, and its word about its parent is no proof."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.harness import created
from tests.sdk.sessions import KEY, Bench, must
from worm.sdk.database import Model
from worm.sdk.document import DocumentDict
from worm.store.base import Object, Store, Version
from worm.upkeep.session import Session, Settings
from worm.upkeep.workers.batch import Message
from worm.upkeep.workers.capture import Capture

Change = Callable[[Store, Object], object]


def moved_and_back(store: Store, found: Object) -> None:
    store.delete(KEY)
    store.put(KEY, found.body, metadata=found.metadata)


def uploaded_again(store: Store, found: Object) -> None:
    store.put(KEY, found.body)


def changed_and_back(store: Store, found: Object) -> None:
    store.put(KEY, b'{"name": "between"}')
    store.put(KEY, found.body)


CHANGES = pytest.mark.parametrize(
    ("change", "ops"),
    [
        (moved_and_back, ["create", "delete", "create", "update"]),
        (uploaded_again, ["create", "update", "update"]),
        (changed_and_back, ["create", "update", "update", "update"]),
    ],
)


def editing(tmp_path: Path) -> tuple[Bench, Model[DocumentDict], DocumentDict]:
    """Somebody has read a document and is about to change it."""
    bench = Bench("memory-versioned", tmp_path)
    customers = bench.customers()
    customers.insert({"id": "a", "name": "one"})
    return bench, customers, must(customers.get("a"))


@CHANGES
def test_a_save_over_bytes_that_came_back_records_all_that_lies_between(
    tmp_path: Path, change: Change, ops: list[str]
) -> None:
    bench, customers, edited = editing(tmp_path)
    bench.tick()
    change(bench.store, must(bench.store.get(KEY)))
    bench.tick()
    edited["name"] = "two"
    customers.save(edited)
    assert bench.ops() == ops
    assert must(customers.get("a"))["name"] == "two"
    bench.assert_clean()


@CHANGES
@pytest.mark.parametrize("is_reversed", [False, True])
def test_capture_does_not_believe_a_save_where_events_tell_of_other_versions(
    tmp_path: Path, change: Change, ops: list[str], is_reversed: bool
) -> None:
    bench, _, edited = editing(tmp_path)
    bench.tick()
    known = {version.version_id for version in bench.store.versions(KEY)}
    change(bench.store, must(bench.store.get(KEY)))
    bench.tick()
    edited["name"] = "two"
    bench.customers(maintenance="events").save(edited)
    events = [created(KEY, one.version_id) for one in bench.store.versions(KEY) if one.version_id not in known]
    messages = [Message(f"m{number}", event) for number, event in enumerate(events)]
    capture = Capture(Session(bench.store, Settings("documents", threads=1), ids=bench.ids, clock=bench.clock))
    assert capture.run(messages[::-1] if is_reversed else messages).failed == {}
    assert bench.ops() == ops
    bench.repair()
    bench.assert_clean()


def test_a_save_looks_at_the_versions_instead_of_reading_what_it_has_just_written(tmp_path: Path) -> None:
    """The proof costs no extra request: a create takes one less than a read and a listing."""
    bench, customers, edited = editing(tmp_path)
    edited["name"] = "two"
    seen: list[str] = []
    read, list_versions = bench.store.get, bench.store.versions

    def get(key: str, *, version_id: str | None = None, max_bytes: int | None = None) -> Object | None:
        seen.append(f"GET {key}")
        return read(key, version_id=version_id, max_bytes=max_bytes)

    def versions(key: str) -> Iterator[Version]:
        seen.append(f"VERSIONS {key}")
        return list_versions(key)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench.store, "get", get)
        patch.setattr(bench.store, "versions", versions)
        customers.save(edited)
        customers.insert({"id": "b", "name": "one"})
    documents = [one for one in seen if one.endswith("/profile.json") and "/." not in one]
    assert documents == [f"VERSIONS {KEY}", f"VERSIONS {KEY.replace('/a/', '/b/')}"]
