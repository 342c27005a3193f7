"""What only the store in memory has."""

from __future__ import annotations

from worm.store.memory import MemoryStore


def test_a_key_whose_only_version_is_forgotten_is_gone() -> None:
    store = MemoryStore(versioned=True)
    version = store.put("a", b"1").version_id
    store.put("b", b"2")
    store.forget_version("a", version)
    assert [one.key for one in store.list("")] == ["b"]
    assert [one.key for one in store.list_versions("")] == ["b"]
    assert store.get("a") is None
    store.put("a", b"3")
    assert [one.key for one in store.list("")] == ["a", "b"]
