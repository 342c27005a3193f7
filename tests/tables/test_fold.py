from __future__ import annotations

import json
import threading
from collections.abc import Mapping

import pytest

from tests.harness import DataPath, created, schema_of
from tests.query.asking import query_table
from worm.collections.entries import Change, ChangeSet, Head, Heads
from worm.collections.layout import SCHEMA_KEY
from worm.errors import Corrupt
from worm.formats import load_schema
from worm.formats.strict_json import JsonValue
from worm.query.query import Query
from worm.store.base import Attempt, Condition
from worm.tables.build import heads_anew, manifest_anew, recorded_changes
from worm.tables.index import Index, entry_key
from worm.tables.sealed import seal, unseal
from worm.tables.table import Table

TABLE_FILES = [
    "org/customers/.worm.manifest.json",
    "org/customers/.worm.index/status.json",
    "org/customers/.worm.heads.json",
]


def some_customers(path: DataPath) -> None:
    for number in range(8):
        path.put(f"c{number}", {"name": f"n{number}", "status": "active" if number % 2 else "inactive"})
    path.remove("c3")
    path.settle()


def test_the_files_of_a_table_are_sealed_canonical_json() -> None:
    path = DataPath()
    path.put("b", {"name": "Widgets", "status": "inactive"})
    path.put("a", {"name": "Acme", "status": "active"})
    path.settle()

    manifest = path.store.get(TABLE_FILES[0])
    index = path.store.get(TABLE_FILES[1])
    assert manifest is not None
    assert index is not None
    shape = unseal(manifest.body, "")
    assert shape == {
        "version": 1,
        "model": "Customer",
        "count": 2,
        "lastUpdated": "2026-01-01T00:00:02Z",
        "revision": 2,
        "fields": ["name", "status", "score", "tags", "createdAt", "updatedAt", ".", ".cut 32768/131072"],
        "entities": {"a": {"name": "Acme", "status": "active"}, "b": {"name": "Widgets", "status": "inactive"}},
        "seqs": {"a": 1, "b": 1},
    }
    assert manifest.body == seal(shape)
    assert unseal(index.body, "") == {
        "version": 1,
        "model": "Customer",
        "field": "status",
        "type": "standard",
        "unique": False,
        "lastUpdated": "2026-01-01T00:00:02Z",
        "revision": 2,
        "entries": {"active": ["a"], "inactive": ["b"]},
    }


@pytest.mark.parametrize("lost", TABLE_FILES)
@pytest.mark.parametrize("how", ["deleted", "damaged"])
def test_a_lost_or_damaged_file_comes_back_with_the_next_fold(lost: str, how: str) -> None:
    """Folding a change onto nothing would leave a table with only that change in it."""
    path = DataPath()
    some_customers(path)
    if how == "deleted":
        path.store.delete(lost)
    else:
        path.store.put(lost, b'{"checksum":"sha256:00","version":1}')
    path.put("new", {"name": "New", "status": "active"})
    path.settle()
    path.sweep()
    assert len(path.rows()) == 8
    path.assert_true()


def test_a_rebuild_gives_the_same_bytes_as_the_folds() -> None:
    path = DataPath()
    some_customers(path)
    before = {key: path.store.get(key) for key in TABLE_FILES}
    path.table.rebuild()
    assert {key: path.store.get(key) for key in TABLE_FILES} == before, "nothing differs, so nothing is written"
    for key in TABLE_FILES:
        path.store.delete(key)
    path.table.rebuild()
    rebuilt = {key: path.store.get(key) for key in TABLE_FILES}
    assert {key: found and found.body for key, found in rebuilt.items()} == {
        key: found and found.body for key, found in before.items()
    }


def test_a_rebuild_drops_rows_without_a_source_and_keeps_what_was_folded_meanwhile() -> None:
    path = DataPath()
    some_customers(path)
    table = path.table
    manifest = table.manifest.read()
    assert manifest is not None
    bogus = Change("bogus", Head(1, None, None, True, manifest.last_updated), {"name": "?"})
    table.fold([bogus])
    assert "bogus" in path.rows()
    path.table.rebuild()
    assert "bogus" not in path.rows()
    path.assert_true()


def test_sixteen_folds_at_once_lose_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two workers that read one manifest and both write it would lose one's rows without the condition."""
    path = DataPath()
    batches: list[list[str]] = []
    for worker in range(16):
        for number in range(3):
            path.put(f"w{worker}n{number}", {"name": "x", "status": "active"})
        path.run_capture()
        batches.append(path.change_sets())
    collections = [path.collection for _ in batches]
    monkeypatch.setattr(path.clock, "sleep", lambda seconds: None)

    def fold(number: int) -> None:
        key = batches[number][0].split('"key": "')[1].split('"')[0]
        found = path.store.get(key)
        assert found is not None
        Table(collections[number]).fold(ChangeSet.decode(found.body, key).changes)

    threads = [threading.Thread(target=fold, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(path.rows()) == 48
    path.assert_true()


def test_an_index_is_never_replaced_by_an_older_one() -> None:
    path = DataPath()
    path.put("a", {"status": "active"})
    path.settle()
    old = path.table
    stale_manifest = old.manifest.read()
    assert stale_manifest is not None
    path.put("a", {"status": "inactive"})
    path.settle()
    old.indexes[0].fold(stale_manifest)
    index = path.table.indexes[0].file.read()
    assert index is not None
    assert index.entries == {"inactive": ["a"]}


def test_a_model_without_oplog_keeps_its_table_from_the_documents() -> None:
    path = DataPath(schema_of(oplog=False))
    path.put("a", {"name": "one", "status": "active"})
    path.put("b", b"{oops")
    path.settle()
    path.put("a", {"name": "two", "status": "inactive"})
    path.put("c", {"name": "three"})
    path.settle()
    path.remove("c")
    path.settle()
    assert path.rows() == {"a": {"name": "two", "status": "inactive"}}
    path.assert_true()

    path.put("d", {"name": "unreported"})
    path.remove("a")
    path.events.clear()
    assert path.sweep().reconciled == 2
    assert path.rows() == {"d": {"name": "unreported"}}
    path.assert_true()


def test_a_document_that_changes_while_it_is_folded_is_folded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without oplog there is no seq: a fold that read the old document could overwrite the row of the new one."""
    path = DataPath(schema_of(oplog=False))
    path.put("a", {"name": "one"})
    original = path.store.attempt_put
    changed: list[bool] = []

    def change_under_the_fold(key: str, body: bytes, condition: Condition, metadata: Mapping[str, str]) -> Attempt:
        if not changed:
            changed.append(True)
            path.put("a", {"name": "two"})
        return original(key, body, condition, metadata)

    monkeypatch.setattr(path.store, "attempt_put", change_under_the_fold)
    path.table.fold_documents(["a"])
    assert path.rows() == {"a": {"name": "two"}}


def test_index_entry_keys_of_different_values_never_collide() -> None:
    values: list[JsonValue] = [
        1,
        "1",
        True,
        "true",
        None,
        "null",
        "=1",
        "=",
        "",
        0,
        False,
        1.5,
        "1.5",
        "=null",
        [1],
        {"a": 1},
        '="1"',
    ]
    keys = [entry_key(value) for value in values]
    assert len(set(keys)) == len(values)
    assert entry_key(1.0) == entry_key(1)


def test_unique_and_multi_value_indexes_have_their_shapes_and_name_conflicts() -> None:
    path = DataPath(
        schema_of(
            indexes={
                "byName": {"field": "name", "unique": True},
                "byTags": {"field": "tags", "type": "multiValue"},
            }
        )
    )
    path.put("a", {"name": "Acme", "tags": ["vip", "vip", "old"]})
    path.put("b", {"name": "Acme", "tags": ["vip"]})
    path.put("c", {"name": "Other"})
    path.settle()
    by_name, by_tags = (files.file.read() for files in path.table.indexes)
    assert by_name is not None
    assert by_tags is not None
    assert by_name.entries == {"Acme": "a", "Other": "c"}
    assert by_name.conflicts == {"Acme": ["a", "b"]}
    assert by_tags.entries == {"vip": ["a", "b"], "old": ["a"]}
    assert (by_name.ids("Acme"), by_name.ids("Other"), by_tags.ids("none")) == (["a", "b"], ["c"], [])
    assert [one.kind for one in path.verify().differences] == ["unique-conflict"]


def test_a_sealed_file_that_was_changed_or_cut_is_corrupt() -> None:
    body = seal({"version": 1, "entities": {"a": 1}})
    assert unseal(body, "k") == {"version": 1, "entities": {"a": 1}}
    for damaged in (body.replace(b'"a":1', b'"a":2'), body[:-5], b"{}", b""):
        with pytest.raises(Corrupt):
            unseal(damaged, "k")
    assert unseal(json.dumps(json.loads(body), indent=2).encode(), "k") == {"version": 1, "entities": {"a": 1}}


def test_index_of_an_index_definition_that_changed_is_rewritten() -> None:
    path = DataPath()
    some_customers(path)
    unique = schema_of(indexes={"byStatus": {"field": "status", "unique": True}})
    path.store.put(SCHEMA_KEY, load_schema(unique).to_json())
    path.sweeper.run(lambda: 1.0)
    index = path.table.indexes[0].file.read()
    assert isinstance(index, Index)
    assert index.unique
    assert {one.kind for one in path.verify().differences} == {"unique-conflict"}


def test_a_change_set_that_expired_is_nothing_to_do() -> None:
    outcome = DataPath().run_fold([created(".worm.changes/customers/01KDVDNA003DGBDWYGH920DN3Z.json")])
    assert (outcome.failed, outcome.rejected, outcome.ignored) == ({}, {}, 1)


def test_the_collection_sentinel_counts_what_lives_and_names_the_newest_change() -> None:
    path = DataPath()
    some_customers(path)
    sentinel = path.store.get("org/customers/.worm")
    assert sentinel is not None
    assert json.loads(sentinel.body) == {
        "model": "Customer",
        "idType": "string",
        "mode": "readwrite",
        "oplog": True,
        "softDelete": False,
        "count": 7,
        "lastModified": "2026-01-01T00:00:09Z",
    }
    path.store.delete("org/customers/.worm")
    path.put("new", {"name": "New"})
    path.settle()
    again = path.store.get("org/customers/.worm")
    assert again is not None
    assert json.loads(again.body)["count"] == 8, "it works without one, and makes it anew"


def test_a_field_that_a_push_adds_reaches_the_rows_of_documents_that_are_there() -> None:
    """Rows made with other fields must not answer for the new one."""
    path = DataPath(schema_of(manifest={"enabled": True, "fields": ["name"]}, indexes={}))
    path.put("a", {"name": "Acme", "status": "active"})
    path.settle()
    path.store.put(SCHEMA_KEY, load_schema(schema_of(indexes={"byStatus": {"field": "status"}})).to_json())
    assert [row["id"] for row in query_table(path.table, Query.of(filter={"status": "active"}))] == ["a"]
    path.sweeper.run(lambda: 1.0)
    assert path.rows() == {"a": {"name": "Acme", "status": "active"}}
    index = path.table.indexes[0].file.read()
    assert index is not None
    assert index.entries == {"active": ["a"]}
    path.assert_true()


def test_an_index_follows_a_manifest_that_was_damaged_and_made_anew_without_an_oplog() -> None:
    path = DataPath(schema_of(oplog=False))
    for status in ("one", "two", "three"):
        path.put("a", {"status": status})
        path.settle()
    path.store.put("org/customers/.worm.manifest.json", b"{}")
    path.put("a", {"status": "four"})
    path.settle()
    index = path.table.indexes[0].file.read()
    assert index is not None
    assert index.entries == {"four": ["a"]}
    path.assert_true()


@pytest.mark.parametrize("shape", [{"version": 1}, {"version": 1, "heads": []}, {"version": 2, "heads": {}}])
def test_a_heads_file_of_another_shape_is_corrupt(shape: dict[str, object]) -> None:
    with pytest.raises(Corrupt, match="not heads that this version of worm reads"):
        Heads.decode(json.dumps({"model": "Customer", **shape}).encode(), "k")


# A rebuild that read the source before others folded


def test_a_rebuild_does_not_bring_back_a_row_that_was_deleted_since_it_read_the_source() -> None:
    path = DataPath()
    path.put("a", {"name": "one"})
    path.settle()
    read = list(recorded_changes(path.collection))
    path.remove("a")
    path.settle()
    stored = path.table.manifest.read()
    assert manifest_anew(path.collection, stored, read) is None


def test_a_rebuild_takes_the_document_of_a_damaged_entity_and_not_the_row_that_was_stored() -> None:
    path = DataPath()
    path.put("a", {"name": "one"})
    path.settle()
    broken = Change("a", None, {"name": "as stored"}, Corrupt("a gap"), "etag-1", "2026-01-01T00:00:00Z")
    made = manifest_anew(path.collection, path.table.manifest.read(), [broken])
    assert made is not None
    assert (made.entities, made.seqs, made.etags) == ({"a": {"name": "as stored"}}, {}, {"a": "etag-1"})


def test_a_rebuild_of_the_heads_keeps_the_newer_of_what_it_read_and_what_is_stored() -> None:
    path = DataPath()
    path.put("a", {"name": "one"})
    path.settle()
    old, old_changes = path.table.heads.read(), list(recorded_changes(path.collection))
    path.put("a", {"name": "two"})
    path.settle()
    new, new_changes = path.table.heads.read(), list(recorded_changes(path.collection))
    assert old is not None
    assert new is not None
    rebuilt = heads_anew(path.collection, old, new_changes)
    assert rebuilt is not None
    assert (rebuilt.heads, new.heads["a"].seq) == (new.heads, 2)
    assert heads_anew(path.collection, new, old_changes) is None


def test_a_table_that_is_not_there_is_nothing_to_read_or_merge() -> None:
    path = DataPath()
    path.store.delete("org/customers/.worm.manifest.json")
    assert path.table.manifest.read() is None
    assert path.table.manifest.reform() is False
    path.table.tidy(force=True)
    assert path.store.get("org/customers/.worm.manifest.json") is None
