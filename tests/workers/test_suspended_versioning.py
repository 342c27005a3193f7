"""Versioning that is suspended for a while: each write then replaces the null version, which only its etag tells from
the previous one."""

from __future__ import annotations

from dataclasses import replace

from tests.harness import DataPath

ONE, TWO, THREE = {"name": "one"}, {"name": "two"}, {"name": "three"}


def test_a_null_version_that_replaced_a_recorded_one_has_an_entry_before_the_next_version() -> None:
    """Both are called null: what was written last before versioning was resumed must not pass for recorded."""
    path = DataPath(versioned=False)
    path.put("a", ONE)
    path.settle()
    path.put("a", TWO)
    path.store.versioned = True
    path.put("a", THREE)
    path.settle()
    assert path.ops("a") == ["create", "update", "update"]
    assert [(entry.diff or {}).get("name") for entry in path.history("a")] == [None, ["one", "two"], ["two", "three"]]
    path.assert_true()


def test_several_entries_may_name_the_null_version() -> None:
    """A sound history that `worm verify` calls damaged teaches people to ignore it."""
    path = DataPath(versioned=False)
    for document in (ONE, TWO, ONE):
        path.put("a", document)
        path.settle()
    path.store.versioned = True
    path.put("a", THREE)
    path.settle()
    assert path.ops("a") == ["create", "update", "update", "update"]
    path.assert_true()


def test_a_null_version_below_the_current_one_that_no_entry_names_is_reported() -> None:
    path = DataPath(versioned=False)
    path.put("a", ONE)
    path.settle()
    path.store.versioned = True
    path.put("a", THREE)
    path.settle()
    path.assert_true()
    stored = path.store._history[path.key("a")]
    stored[0] = replace(stored[0], etag='"another"')
    assert [found.kind for found in path.verify().differences] == ["version-unrecorded"]
