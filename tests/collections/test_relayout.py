"""Moving oplog, snapshots and trash to another layout: everything arrives, nothing is lost, at any interruption."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Literal

import pytest

from tests.examples import some
from worm.cli.relayout import Relayout, RelayoutReport, Step, layouts, told, with_storage
from worm.clock import Ids, VirtualClock
from worm.collections.layout import BUCKET_SENTINEL, RELAYOUT_KEY, SCHEMA_KEY, StorageResolver
from worm.dev.faulty_store import FaultyStore, SimulatedCrash
from worm.errors import Conflict, Corrupt
from worm.formats import Schema, load_schema
from worm.formats.definition import StorageDef
from worm.formats.strict_json import JsonValue
from worm.store.base import Object, Store
from worm.store.memory import MemoryStore
from worm.upkeep.pushed_schema import load_pushed_schema, push_schema

MODELS: dict[str, object] = {
    "Customer": {"path": "#org/@customers/(id:slug)", "file": "profile.json", "oplog": True, "softDelete": True},
    "Settings": {"path": "#org/@settings", "oplog": True},
}
LAYOUTS = ("root", "collection", "inline")
DOCUMENTS = {"org/customers/a/profile.json": b'{"name":"A"}', "org/settings/data.json": b"{}"}
MIXED = {"layout": "inline", "oplog": "collection", "trash": "root"}


MARK = "251593300800-9999999999999990000"


def _storage(**shape: JsonValue) -> StorageDef:
    return StorageDef.of(shape)


def _schema(storage: StorageDef) -> Schema:
    return with_storage(load_schema({"version": "1.0", "models": MODELS}), storage)


def _moved(storage: StorageDef) -> dict[str, bytes]:
    """Everything that moves, by its key in a layout."""
    keys = StorageResolver(_schema(storage))
    return {
        **{keys.oplog_key("Customer", "a", seq): b"entry %d" % seq for seq in (1, 2)},
        keys.oplog_key("Customer", "gone", 10000): b"far",
        keys.oplog_key("Settings", "_", 1): b"settings",
        **{keys.time_mark_key(model, one, MARK): b"mark" for model, one in (("Customer", "gone"), ("Settings", "_"))},
        keys.snapshot_key("Customer", "a", "2026-01-01T00:00:00Z"): b"snapshot",
        keys.trash_key("Customer", "gone"): b"copy",
        keys.tombstone_key("Customer", "gone"): b"tombstone",
    }


def _bucket(storage: StorageDef) -> MemoryStore:
    clock = VirtualClock()
    store = MemoryStore("bucket", versioned=True, clock=clock, ids=Ids.seeded(1, clock))
    push_schema(store, _schema(storage))
    for key, body in {**DOCUMENTS, **_moved(storage)}.items():
        store.put(key, body, metadata={"worm-actor": "user:ann"})
    clock.advance(60)
    return store


def _contents(store: Store) -> dict[str, bytes]:
    """All current objects but the schema and the sentinels."""
    known = {SCHEMA_KEY, BUCKET_SENTINEL}
    keys = [listed.key for listed in store.list("") if listed.key not in known and not listed.key.endswith("/.worm")]
    return {key: _object(store, key).body for key in keys}


def _object(store: Store, key: str) -> Object:
    found = store.get(key)
    assert found is not None
    return found


def _run(store: Store, storage: StorageDef, *, delete_old: bool = False) -> RelayoutReport:
    return Relayout(store, storage, threads=1).run(delete_old=delete_old)


class Meanwhile:
    """Does something once, at the first progress of a step."""

    def __init__(self, step: Step, store: Store, *, put: Mapping[str, bytes] | None = None, delete: str = "") -> None:
        self.step, self.store, self.put, self.delete = step, store, dict(put or {}), delete
        self.done = False

    def __call__(self, step: Step, number: int) -> None:
        if step != self.step or self.done:
            return
        self.done = True
        for key, body in self.put.items():
            self.store.put(key, body)
        if self.delete:
            self.store.delete(self.delete)


PAIRS = [(one, other) for one, other in itertools.product((*LAYOUTS, MIXED), repeat=2) if one != other]


def _as_storage(named: str | dict[str, str]) -> StorageDef:
    return _storage(layout=named) if isinstance(named, str) else _storage(**named)


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_everything_moves_from_any_layout_to_any_other(source: str, target: str) -> None:
    old, new = _as_storage(source), _as_storage(target)
    store = _bucket(old)
    report = _run(store, new, delete_old=True)
    assert _contents(store) == {**DOCUMENTS, **_moved(new)}
    assert load_pushed_schema(store) == _schema(new)
    moving = {*_moved(old)} - {*_moved(new)}
    assert (report.copied, report.verified, report.deleted) == (len(moving), len(moving), len(moving))
    assert (report.present, report.late, report.withdrawn, report.superseded, report.problems) == (0, 0, 0, 0, [])


def test_a_copy_keeps_the_metadata_and_the_old_objects_stay_unless_asked() -> None:
    old, new = _storage(layout="root"), _storage(layout="collection")
    store = _bucket(old)
    report = _run(store, new)
    assert report.deleted == 0
    expected = {**DOCUMENTS, **_moved(old), **_moved(new)}
    assert {key: body for key, body in _contents(store).items() if key != RELAYOUT_KEY} == expected
    assert _object(store, "org/customers/.oplog/a/0001.json").metadata["worm-actor"] == "user:ann"


def test_old_objects_can_be_deleted_by_a_later_run_which_leaves_nothing_else() -> None:
    old, new = _storage(layout="root"), _storage(layout="inline")
    store = _bucket(old)
    _run(store, new)
    report = _run(store, new, delete_old=True)
    assert (report.copied, report.late, report.deleted) == (0, 0, len(_moved(old)))
    assert _contents(store) == {**DOCUMENTS, **_moved(new)}
    assert _run(store, new, delete_old=True).is_nothing


def test_a_plan_counts_and_changes_nothing() -> None:
    store = _bucket(_storage(layout="root"))
    before, writes = _contents(store), store.requests.snapshot()["PUT"]
    report = Relayout(store, _storage(layout="collection", trash="root")).plan()
    assert dict(report.objects) == {("Customer", "oplog"): 4, ("Customer", "snapshots"): 1, ("Settings", "oplog"): 2}
    assert report.size == len(b"entry 1entry 2farsettingssnapshotmarkmark")
    assert (_contents(store), store.requests.snapshot()["PUT"]) == (before, writes)


def test_nothing_happens_where_everything_lies_right_already() -> None:
    store = _bucket(_storage(layout="root"))
    before = _contents(store)
    assert _run(store, _storage(layout="inline", oplog="root", snapshots="root", trash="root")).is_nothing
    assert _contents(store) == before


def test_sentinels_name_the_new_layout() -> None:
    store = _bucket(_storage(layout="root"))
    _run(store, _storage(layout="collection"))
    assert b'"layout":"collection"' in _object(store, BUCKET_SENTINEL).body.replace(b" ", b"")


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("delete_old", [False, True])
def test_a_crash_at_any_write_ends_in_the_same_state_after_another_run(
    when: Literal["before", "after"], delete_old: bool
) -> None:
    old, new = _storage(layout="root"), _storage(layout="collection")
    undisturbed = FaultyStore(_bucket(old))
    _run(undisturbed, new, delete_old=delete_old)
    expected = _contents(undisturbed)
    assert undisturbed.writes == (23 if delete_old else 13)
    for number in some(range(1, undisturbed.writes + 1)):
        store = FaultyStore(_bucket(old))
        store.crash_at_write(number, when)
        with pytest.raises(SimulatedCrash):
            _run(store, new, delete_old=delete_old)
        assert _live(store.inner) == _moved(load_pushed_schema(store.inner).storage), number
        store.revive()
        _run(store, new, delete_old=delete_old)
        assert _contents(store) == expected, (number, when)
        assert b'"collection"' in _object(store, BUCKET_SENTINEL).body


def _live(store: Store) -> dict[str, bytes]:
    """What is there of the layout that the schema names."""
    contents = _contents(store)
    return {key: contents[key] for key in _moved(load_pushed_schema(store).storage) if key in contents}


def test_what_is_written_under_the_old_layout_meanwhile_is_moved_by_the_second_pass() -> None:
    old, new = _storage(layout="root"), _storage(layout="collection")
    store = _bucket(old)
    late = {".oplog/customers/a/0003.json": b"entry 3", ".snapshots/customers/a/2026-01-02T00:00:00Z.json": b"late"}
    report = Relayout(store, new, threads=1, progress=Meanwhile("copy", store, put=late)).run(delete_old=True)
    assert (report.copied, report.late, report.deleted) == (9, 2, 11)
    assert _contents(store) == {
        **DOCUMENTS,
        **_moved(new),
        "org/customers/.oplog/a/0003.json": b"entry 3",
        "org/customers/.snapshots/a/2026-01-02T00:00:00Z.json": b"late",
    }


def test_trash_that_was_restored_meanwhile_does_not_come_back() -> None:
    old, new = _storage(layout="root"), _storage(layout="collection")
    store = _bucket(old)
    restored = Meanwhile("copy", store, delete=".worm.trash/customers/gone/.worm.tombstone")
    report = Relayout(store, new, threads=1, progress=restored).run(delete_old=True)
    assert report.withdrawn == 1
    kept = {key: body for key, body in _moved(new).items() if body != b"tombstone"}
    assert _contents(store) == {**DOCUMENTS, **kept}


def test_trash_purged_or_changed_under_the_new_layout_is_not_undone_by_a_later_run() -> None:
    old, new = _storage(layout="root"), _storage(layout="collection")
    store = _bucket(old)
    _run(store, new)
    store.delete("org/customers/.worm.trash/gone/profile.json")
    store.put("org/customers/.worm.trash/gone/.worm.tombstone", b"another")
    report = _run(store, new, delete_old=True)
    assert (report.superseded, report.verified, report.deleted) == (2, 7, 9)
    expected = {key: b"another" if body == b"tombstone" else body for key, body in _moved(new).items()}
    del expected["org/customers/.worm.trash/gone/profile.json"]
    assert _contents(store) == {**DOCUMENTS, **expected}


def test_a_different_object_in_the_new_place_is_a_conflict_that_names_both_and_changes_neither() -> None:
    store = _bucket(_storage(layout="root"))
    store.put("org/customers/.oplog/a/0002.json", b"other")
    both = ".oplog/customers/a/0002.json and org/customers/.oplog/a/0002.json"
    with pytest.raises(Conflict, match=both):
        _run(store, _storage(layout="collection"), delete_old=True)
    assert load_pushed_schema(store).storage == _storage(layout="root")
    assert _live(store) == _moved(_storage(layout="root"))
    assert _object(store, "org/customers/.oplog/a/0002.json").body == b"other"


def test_an_entry_of_the_same_seq_under_both_layouts_is_told_and_nothing_is_deleted() -> None:
    """Capture that was not paused may write one seq under each layout."""
    old, new = _storage(layout="root"), _storage(layout="collection")
    store = _bucket(old)
    twice = {".oplog/customers/a/0003.json": b"one", "org/customers/.oplog/a/0003.json": b"other"}
    with pytest.raises(Conflict, match=r"\.oplog/customers/a/0003\.json and org/customers/\.oplog/a/0003\.json"):
        Relayout(store, new, threads=1, progress=Meanwhile("copy", store, put=twice)).run(delete_old=True)
    assert {*_moved(old), *_moved(new)} <= {*_contents(store)}
    store.delete(".oplog/customers/a/0003.json")
    assert _run(store, new, delete_old=True).deleted == len(_moved(old))


def test_an_object_that_only_the_new_layout_has_is_refused_before_anything_is_written() -> None:
    store = _bucket(_storage(layout="root"))
    store.put("org/customers/.worm.trash/old/profile.json", b"{}")
    before = _contents(store)
    with pytest.raises(Conflict, match=r"is already in the new layout, but \.worm\.trash/customers/old"):
        _run(store, _storage(layout="collection"))
    assert _contents(store) == before


def test_a_missing_copy_is_never_taken_for_moved() -> None:
    old, new = _storage(layout="root"), _storage(layout="collection")
    store = _bucket(old)
    gone = Meanwhile("verify", store, delete="org/customers/.oplog/a/0001.json")
    with pytest.raises(Corrupt, match=r"the copy of \.oplog/customers/a/0001\.json is missing at org/customers"):
        Relayout(store, new, threads=1, progress=gone).run(delete_old=True)
    assert {*_moved(old)} <= {*_contents(store)}


def test_problems_of_the_moved_oplogs_keep_the_old_objects() -> None:
    old, new = _storage(layout="root"), _storage(layout="collection")
    store = _bucket(old)
    report = Relayout(store, new, check=lambda schema: [f"gap in {schema.storage.layout}"]).run(delete_old=True)
    assert (report.problems, report.deleted) == (["gap in collection"], 0)
    assert {*_moved(old)} <= {*_contents(store)}


def test_another_relayout_waits_for_an_unfinished_one() -> None:
    store = FaultyStore(_bucket(_storage(layout="root")))
    store.crash_at_write(4, "after")
    with pytest.raises(SimulatedCrash):
        _run(store, _storage(layout="collection"))
    store.revive()
    with pytest.raises(Conflict, match="a relayout to collection is unfinished"):
        _run(store, _storage(layout="inline"))
    with pytest.raises(Conflict, match="a relayout to collection is unfinished"):
        Relayout(store, _storage(layout="inline")).plan()


def test_another_relayout_waits_until_the_old_objects_of_the_last_one_are_deleted() -> None:
    store = _bucket(_storage(layout="root"))
    _run(store, _storage(layout="collection"))
    for back in ("root", "inline"):
        with pytest.raises(Conflict, match="--to collection --delete-old"):
            _run(store, _storage(layout=back))
    _run(store, _storage(layout="collection"), delete_old=True)
    _run(store, _storage(layout="root"), delete_old=True)
    assert _contents(store) == {**DOCUMENTS, **_moved(_storage(layout="root"))}


def test_a_schema_pushed_during_the_relayout_is_kept() -> None:
    """Only the storage changes; another's field must survive."""
    old, new = _storage(layout="root"), _storage(layout="collection")
    store = _bucket(old)
    other = load_schema(
        {"version": "1.0", "storage": {"layout": "root"}, "models": {**MODELS, "Tag": {"path": "@tags/(id:slug)"}}}
    )
    pushed = Meanwhile("copy", store, put={SCHEMA_KEY: other.to_json()})
    Relayout(store, new, threads=1, progress=pushed).run()
    assert load_pushed_schema(store) == with_storage(other, new)


def test_a_schema_with_a_third_layout_pushed_meanwhile_stops_it() -> None:
    store = _bucket(_storage(layout="root"))
    pushed = Meanwhile("copy", store, put={SCHEMA_KEY: _schema(_storage(layout="inline")).to_json()})
    with pytest.raises(Conflict, match="another schema was pushed"):
        Relayout(store, _storage(layout="collection"), threads=1, progress=pushed).run()
    with pytest.raises(Conflict, match="the schema's storage is inline"):
        _run(store, _storage(layout="collection"))


def test_what_is_not_ours_in_these_directories_is_counted_and_stays() -> None:
    store = _bucket(_storage(layout="inline"))
    store.put("org/customers/a/.oplog/notes.txt", b"mine")
    report = _run(store, _storage(layout="collection"), delete_old=True)
    assert report.foreign == 1
    assert _object(store, "org/customers/a/.oplog/notes.txt").body == b"mine"


def test_many_objects_are_copied_by_many_threads() -> None:
    store = _bucket(_storage(layout="root"))
    for seq in range(3, 251):
        store.put(f".oplog/customers/a/{seq:04d}.json", b"%d" % seq)
    steps: list[tuple[Step, int]] = []
    report = Relayout(store, _storage(layout="collection"), progress=lambda *step: steps.append(step)).run()
    assert (report.copied, report.verified) == (257, 257)
    assert steps == [
        *(("copy", number) for number in (100, 200, 257)),
        *(("verify", number) for number in (100, 200, 257)),
    ]


def test_a_marker_that_is_not_ours_stops_it() -> None:
    store = _bucket(_storage(layout="root"))
    store.put(RELAYOUT_KEY, b'{"version":2}')
    with pytest.raises(Corrupt, match="not a relayout marker"):
        _run(store, _storage(layout="collection"))


@pytest.mark.parametrize("shape", [{"layout": "inline"}, MIXED, {"layout": "root", "oplog": "inline"}])
def test_a_layout_is_told_as_the_command_takes_it(shape: dict[str, str]) -> None:
    storage = _storage(**shape)
    first, *options = told(storage).split()
    given = dict(zip((one.removeprefix("--") for one in options[::2]), options[1::2], strict=True))
    assert layouts(_storage(layout=first, **given)) == layouts(storage)
